"""Spools for tests: messages that say their number, and what an earlier run left."""

import contextlib
from pathlib import Path

from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Kept, Spool


def left_over(spool: Spool) -> list[Kept]:
    """Return the calls of an earlier run, all of them readable."""
    kept = list(spool.left_over())
    assert all(isinstance(one, Kept) for one in kept)
    return [one for one in kept if isinstance(one, Kept)]


def message(number: int) -> Message:
    return Message(f"in/{number}", bytes([number % 256]) * number, 1000.0 + number)


def filled(path: Path, count: int) -> list[str]:
    """Make a spool with so many messages, and close it."""
    with contextlib.closing(Spool(path)) as spool:
        return [spool.keep("R", "E", message(number), 0, ("me", "name")) for number in range(count)]
