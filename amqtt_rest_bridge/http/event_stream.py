"""Server-sent events (WHATWG HTML section 9.2): how they are written and a stream is kept open. Pure."""

import re
from collections.abc import Callable
from typing import Final

HEADERS: Final = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # a proxy must not gather events
    ("X-Content-Type-Options", "nosniff"),
)
RETRY: Final = b"retry: 2000\n\n"
"""At the beginning: a browser connects again 2 s after the end."""

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
    """Keeps a stream open through proxies: with a comment when nothing was sent for 15 s."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sent_at = monotonic()

    def of(self, piece: bytes) -> bytes | float:
        """Return a piece; in the place of an empty one a comment, or the seconds until it is due."""
        now = self._monotonic()
        if not piece and now - self._sent_at < _BEAT_SECONDS:
            return self._sent_at + _BEAT_SECONDS - now
        self._sent_at = now
        return piece or _BEAT
