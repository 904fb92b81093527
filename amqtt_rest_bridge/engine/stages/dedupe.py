"""DEDUPE_KEY: a message whose key was seen within DEDUPE_FOR sends nothing more.

A call claims its key before its first request. While another call has the claim, the call waits without a place. Then
it is skipped if the other call has succeeded, else it gets the claim.
"""

from collections import deque

from amqtt_rest_bridge.engine.event import Call, HeldError, SkippedError, Stage, Verdict
from amqtt_rest_bridge.engine.needs import Keeps, Outcome
from amqtt_rest_bridge.engine.stages.on_change import digest
from amqtt_rest_bridge.lot.model import EventName
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText
from amqtt_rest_bridge.lot.placeholders.values import MessageValues


def dedupe_key(event: EventName, text: bytes) -> bytes | None:
    """Return the key for a text of DEDUPE_KEY, None for an empty text. Different events never share a key."""
    return digest("\0".join((*event, "")).encode() + text) if text else None


class Claims:
    """The claims on keys: one at a time for each key. A call has one at most, so their number is bounded."""

    def __init__(self, keeps: Keeps) -> None:
        self._keeps = keeps
        self._waiting: dict[bytes, deque[Call]] = {}  # calls that wait for a claim to end, by its key

    def claim(self, key: bytes, call: Call) -> None:
        """Set `call.was_seen`; if another call has the claim, that is set once it has ended, and the call resumed.

        `end_claim` must follow if it is False: then the call has the claim.
        """
        if key in self._waiting:
            self._waiting[key].append(call)
            return
        call.was_seen = self._keeps.answer(key) is not None
        if not call.was_seen:
            self._waiting[key] = deque()

    def end_claim(self, key: bytes, seconds: float, *, is_done: bool) -> None:
        """End a claim. If its call has succeeded, the key counts as seen, else the next call has the claim."""
        if is_done:
            self._keeps.keep(key, seconds, b"")
        waiting = deque(call for call in self._waiting.pop(key) if not call.has_ended)
        while waiting:
            call = waiting.popleft()
            call.was_seen = is_done
            if not is_done:
                self._waiting[key] = waiting
                call.resume(call)
                return
            call.resume(call)


class Deduplicated(Stage):
    """Skips calls whose key was seen. A call without a key goes on.

    Args:
        event: The names of the route and the event.
        text: The text of DEDUPE_KEY.
        seconds: How long a key is known.
        claims: The claims of all events.
    """

    def __init__(self, event: EventName, text: PlaceholderText, seconds: int, claims: Claims) -> None:
        self._event = event
        self._text = text
        self._seconds = float(seconds)
        self._claims = claims

    def enter(self, call: Call, values: MessageValues) -> None:
        """Claim the key of a call; skip the call if the key was seen."""
        if call.was_seen is None:
            call.dedupe_key = dedupe_key(self._event, self._text.fill_bytes(values))
            if call.dedupe_key is None:
                return
            self._claims.claim(call.dedupe_key, call)
            if call.was_seen is None:
                raise HeldError
        if call.was_seen:
            raise SkippedError("duplicate", "DEDUPE_KEY was seen before")

    def after(self, call: Call, verdict: Verdict | None) -> None:
        """End the claim of a call, before its result is published: a repeated message is skipped from then on."""
        if call.dedupe_key is not None and call.was_seen is False:
            call.was_seen = None
            is_done = verdict is not None and verdict.outcome is Outcome.SUCCEEDED
            self._claims.end_claim(call.dedupe_key, self._seconds, is_done=is_done)
