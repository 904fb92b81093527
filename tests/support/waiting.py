"""Waiting for what sends no notification: the one loop that polls."""

import threading
from collections.abc import Callable
from time import monotonic

SECONDS = 60.0
_PAUSE_SECONDS = 0.005


def eventually(
    holds: Callable[[], object], complaint: str = "it never came about", seconds: float = SECONDS,
    pause_seconds: float = _PAUSE_SECONDS,
) -> None:  # fmt: skip
    """Return as soon as a condition holds; fail with the complaint when it does not in time."""
    pause = threading.Event()
    deadline = monotonic() + seconds
    while not holds():
        assert monotonic() < deadline, complaint
        pause.wait(pause_seconds)
