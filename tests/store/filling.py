"""Spools for tests: messages that say their number, and what an earlier run left."""

import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Kept, Spool


def opened(path: Path) -> AbstractContextManager[Spool]:
    """Open a spool for a block."""
    return contextlib.closing(Spool(path))


def left_over(spool: Spool) -> list[Kept]:
    """Return the calls of an earlier run, all of them readable."""
    kept = list(spool.left_over())
    assert all(isinstance(one, Kept) for one in kept)
    return [one for one in kept if isinstance(one, Kept)]


def keys_on_disk(path: Path) -> list[str]:
    """Open a spool, and return the keys that an earlier run left."""
    with opened(path) as spool:
        return [one.key for one in left_over(spool)]


def message(number: int) -> Message:
    return Message(f"in/{number}", bytes([number % 256]) * number, 1000.0 + number)


def keep(spool: Spool, number: int = 1, client: tuple[str, str | None] | None = None) -> str:
    return spool.keep("R", "E", message(number), 0, client)


def filled(path: Path, count: int) -> list[str]:
    """Make a spool with so many messages, and close it."""
    with opened(path) as spool:
        return [keep(spool, number, ("me", "name")) for number in range(count)]


def in_child(work: Callable[[Callable[[str], object]], object]) -> list[str]:
    """Run something in a process that then dies at once; give the lines it has written."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            work(lambda line: os.write(writing, line.encode() + b"\n"))
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading) as lines:
        read = [line.strip() for line in lines]
    os.waitpid(child, 0)
    return read
