"""DEDUPE_KEY: a message whose key was seen within DEDUPE_FOR sends nothing more.

A call claims its key before its first request. While another call has the claim, the call waits without a place. Then
it is skipped if the other call has succeeded, else it gets the claim.
"""

from collections import deque

from amqtt_rest_bridge.engine.event import Call, HeldError, KeyClaim, SkippedError, Stage, Verdict
from amqtt_rest_bridge.engine.needs import Keeps, Outcome
from amqtt_rest_bridge.engine.stages.on_change import digest
from amqtt_rest_bridge.lot.model import EventName
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, PlaceholderText


def dedupe_key(event: EventName, text: bytes) -> bytes | None:
    """Return the key for a text of DEDUPE_KEY, None for an empty text. Different events never share a key."""
    return digest("\0".join((*event, "")).encode() + text) if text else None


class Claims:
    """The claims on keys: one at a time for each key. A call has one at most, so their number is bounded."""

    def __init__(self, seen_keys: Keeps) -> None:
        self._seen_keys = seen_keys
        self._waiting: dict[bytes, deque[Call]] = {}  # calls that wait for a claim to end, by its key

    def make(self, key: bytes, call: Call) -> KeyClaim | None:
        """Return the claim of a call on a key. Unless the key was seen, `end` must follow.

        Returns None while another call has the key: this call is resumed, with a claim, when the other call has ended.
        """
        if key in self._waiting:
            self._waiting[key].append(call)
            return None
        was_seen = self._seen_keys.answer(key) is not None
        if not was_seen:
            self._waiting[key] = deque()
        return KeyClaim(key, was_seen)

    def end(self, key: bytes, seconds: float, *, is_done: bool) -> None:
        """End a claim. If its call has succeeded, the key counts as seen, else the next call has the claim."""
        if is_done:
            self._seen_keys.keep(key, seconds, b"")
        waiting = deque(call for call in self._waiting.pop(key) if not call.has_ended)
        while waiting:
            call = waiting.popleft()
            call.claim = KeyClaim(key, is_done)
            if not is_done:
                self._waiting[key] = waiting
            call.resume(call)
            if not is_done:
                return


class DedupeStage(Stage):
    """Skips calls whose key was seen. A call whose text of DEDUPE_KEY is empty has no key, and is sent.

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
        """Claim the key of a call. Skip the call if the key was seen; hold it while another call has the key."""
        if call.claim is None:
            key = dedupe_key(self._event, self._text.fill_bytes(values))
            if key is None:
                return
            call.claim = self._claims.make(key, call)
            if call.claim is None:
                raise HeldError
        if call.claim.was_seen:
            raise SkippedError("duplicate", "DEDUPE_KEY was seen before")

    def after_end(self, call: Call, verdict: Verdict | None) -> None:
        """End the claim of a call, before its result is published: a repeated message is skipped from then on."""
        claim, call.claim = call.claim, None
        if claim is not None and not claim.was_seen:
            is_done = verdict is not None and verdict.outcome is Outcome.SUCCEEDED
            self._claims.end(claim.key, self._seconds, is_done=is_done)
