"""Server-sent events (WHATWG HTML section 9.2): how a value is written, and what keeps a stream of values open.

Streams of read events are in `engine.server.reads`, those of the admin port in `admin.live`.
"""

import re
from collections.abc import Callable
from typing import Final

STREAM_HEADERS: Final = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # a proxy must not gather events
    ("X-Content-Type-Options", "nosniff"),
)
STREAM_BEGINNING: Final = b"retry: 2000\n\n"
"""The beginning of each stream: a browser connects again 2 s after its end."""

_BEAT_SECONDS: Final = 15.0
_BEAT: Final = b": still here\n\n"
_LINE_BREAK: Final = re.compile("\r\n|\r|\n")


def event_of(text: str, number: str | None = None, name: str | None = None) -> bytes:
    """Return one event; a text of several lines has a line of data for each."""
    head = "" if number is None else f"id: {number}\n"
    head += "" if name is None else f"event: {name}\n"
    data = "\ndata: ".join(_LINE_BREAK.split(text))
    return f"{head}data: {data}\n\n".encode()


class Pulse:
    """Keeps a stream open through proxies, by a comment after each 15 s in which nothing was sent."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sent_at = monotonic()

    def beat(self, piece: bytes) -> bytes | float:
        """Return a piece as it is. For an empty one return a comment, or the seconds until a comment is due."""
        now = self._monotonic()
        if not piece and now - self._sent_at < _BEAT_SECONDS:
            return self._sent_at + _BEAT_SECONDS - now
        self._sent_at = now
        return piece or _BEAT
