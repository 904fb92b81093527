"""DEDUPE_KEY: a message whose key was seen within DEDUPE_FOR sends nothing more.

A call claims its key before its first request. While another call has the claim, the call waits without a place. Then
it is skipped if the other call has succeeded, else it gets the claim.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from amqtt_rest_bridge.engine.event import Call, HeldError, SkippedError, Stage, Step, Verdict
from amqtt_rest_bridge.engine.needs import Keeps
from amqtt_rest_bridge.engine.stages.on_change import digest
from amqtt_rest_bridge.lot.model import EventName
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText
from amqtt_rest_bridge.lot.placeholders.values import MessageValues

Tell = Callable[[bytes | None], bool]
"""Called with None if the claim is granted, or the kept answer of a key that was seen. Returns False to decline."""


def dedupe_key(event: EventName, text: bytes) -> bytes | None:
    """Return the key for a text of DEDUPE_KEY, None for an empty text. Different events never share a key."""
    return digest("\0".join((*event, "")).encode() + text) if text else None


class Claims:
    """The claims on keys: one at a time for each key. A call has one at most, so their number is bounded."""

    def __init__(self, keeps: Keeps) -> None:
        self._keeps = keeps
        self._open: dict[bytes, deque[Tell]] = {}  # what waits for a claim, by key

    def claim(self, key: bytes, tell: Tell) -> None:
        """Claim a key; `tell` is called now, or once the claim before it has ended. `end_claim` must follow a grant."""
        waiting = self._open.get(key)
        if waiting is not None:
            waiting.append(tell)
            return
        answer = self._keeps.answer(key)
        if answer is None:
            self._open[key] = deque()
        if not tell(answer) and answer is None:
            self.end_claim(key, 0.0, None)

    def end_claim(self, key: bytes, seconds: float, answer: bytes | None) -> None:
        """End a claim that was granted. The key counts as seen and has this answer; with None it does not."""
        if answer is not None:
            self._keeps.keep(key, seconds, answer)
        waiting = self._open.pop(key, None)
        while waiting:
            tell = waiting.popleft()
            if answer is not None:
                tell(answer)
                continue
            self._open[key] = waiting
            if tell(None):
                return
            del self._open[key]


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
        """Claim the key of a call; skip it where the key was seen."""
        if call.was_seen is None:
            call.dedupe_key = dedupe_key(self._event, self._text.fill_bytes(values))
            if call.dedupe_key is None:
                return
            self._claims.claim(call.dedupe_key, partial(self._answered, call))
            if call.was_seen is None:
                call.is_held = True
                raise HeldError
        if call.was_seen:
            raise SkippedError("duplicate", "DEDUPE_KEY was seen before")

    def _answered(self, call: Call, answer: bytes | None) -> bool:
        if call.has_ended:
            return False
        call.was_seen = answer is not None
        if call.is_held:
            call.is_held = False
            call.resume(call)
        return True

    def after(self, call: Call, verdict: Verdict | None) -> None:
        """End the claim of a call, before its result is published: a repeated message is skipped from then on."""
        if call.dedupe_key is not None and call.was_seen is False:
            call.was_seen = None
            is_done = verdict is not None and verdict.step is Step.DONE
            self._claims.end_claim(call.dedupe_key, self._seconds, b"" if is_done else None)
