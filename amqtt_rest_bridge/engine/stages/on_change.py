"""ON_CHANGE: a message sends nothing if its text equals the last one sent with success for its topic.

Calls of one topic run one after the other (`order`), so that the end of the last one is known. Only digests are kept.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from amqtt_rest_bridge.engine.event import Call, SkippedError, Stage, Verdict
from amqtt_rest_bridge.engine.needs import Clock, Outcome
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, PlaceholderText

MOST_TOPICS: Final = 100_000
"""Topics whose last text is known; new ones push out the ones that were sent longest ago."""


class OnChangeStage(Stage):
    """Skips calls that bring nothing new. If its topic was pushed out, a call is sent even if unchanged.

    Args:
        text: What is compared.
        seconds: The same text is sent again after so many seconds, with None never.
        clock: Its monotonic time counts.
    """

    def __init__(self, text: PlaceholderText, seconds: int | None, clock: Clock) -> None:
        self._text = text
        self._seconds = seconds
        self._clock = clock
        self._last: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()  # by topic; the one sent last at the end

    def enter(self, call: Call, values: MessageValues) -> None:
        """Skip the call if its text equals the last one of its topic, and that one is not too old."""
        call.change_digest = digest(self._text.fill_bytes(values))
        last = self._last.get(digest(call.message.topic.encode()))
        if last is None or last[0] != call.change_digest:
            return
        if self._seconds is None or self._clock.monotonic() - last[1] < self._seconds:
            raise SkippedError("unchanged", "ON_CHANGE is the same as in the last message of the topic")

    def after_end(self, call: Call, verdict: Verdict | None) -> None:
        """Keep the text of a call that has succeeded. Failed calls change nothing."""
        if verdict is not None and verdict.outcome is Outcome.SUCCEEDED and call.change_digest is not None:
            topic = digest(call.message.topic.encode())
            self._last.pop(topic, None)
            self._last[topic] = call.change_digest, self._clock.monotonic()
            if len(self._last) > MOST_TOPICS:
                self._last.popitem(last=False)


def digest(data: bytes) -> bytes:
    """Return a digest of 16 bytes: different for different texts."""
    return blake2b(data, digest_size=16).digest()
