"""Log lines about messages and requests, at most one a second of each kind for each event. The broker's loop alone.

The first of a quiet event is logged at once; those of the second that follows are counted, and its last one is logged
with their number. So a test message is seen at once, and a busy route costs a line a second and no formatting.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.masking import masker_of
from amqtt_rest_bridge.model import ClientEvent, Route, Run, RunIds
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0

Later = Callable[[float, Callable[[], None]], object]
"""Call a function on the loop, so many seconds from now."""
Name = tuple[str, str]
"""A route and its event."""


@dataclass(slots=True, eq=False)
class _Busy:
    """What was logged less than a second ago: how many have not been since, and the text of the last of them."""

    unlogged: int = 0
    text: str = ""
    arguments: tuple[object, ...] = ()
    topic: str | None = None
    run: Run | None = None


def on_this_loop(seconds: float, call: Callable[[], None]) -> object:
    """Call a function later on the running loop."""
    return asyncio.get_running_loop().call_later(seconds, call)


def described(route: Route, event: ClientEvent) -> str:
    """Return a client event's METHOD and server for a log line; never the path, which payloads and secrets fill."""
    server = "/".join((route.config.base_address or "").split("/", 3)[:3])
    return f"{event.method} {masker_of(route).address(server)}"


class QuietLog:
    """Write the lines; `runs` makes the ids of calls, `later` is for tests."""

    def __init__(self, runs: RunIds, later: Later = on_this_loop) -> None:
        self._runs = runs
        self._later = later
        self._busy: dict[tuple[int, Name], _Busy] = {}  # holds an event for a second after its last line

    def note(
        self,
        level: int,
        name: Name,
        text: str,
        *arguments: object,
        count: int = 1,
        topic: str | None = None,
        run: Run | None = None,
    ) -> None:
        """Log `count` messages or requests of an event, now or within a second.

        Args:
            level: Of the line; lines of another level are counted apart.
            name: The names of the route and the event.
            text: What became of the last one, as for `log.log`.
            *arguments: Formatted only when the line is written.
            count: How many.
            topic: Of the message, for the end of the line.
            run: Of the call, for its id at the end of the line.
        """
        if not log.isEnabledFor(level):
            return
        key = level, name
        busy = self._busy.get(key)
        if busy is not None:
            busy.unlogged += count
            busy.text, busy.arguments, busy.topic, busy.run = text, arguments, topic, run
            return
        self._busy[key] = _Busy()
        self._write(key, count, _Busy(0, text, arguments, topic, run))
        self._later(_QUIET_SECONDS, lambda: self._second_over(key))

    def flush(self) -> None:
        """Write what has only been counted, before the end."""
        for key, busy in self._busy.items():
            if busy.unlogged:
                self._write(key, busy.unlogged, busy)
                busy.unlogged = 0

    def _second_over(self, key: tuple[int, Name]) -> None:
        busy = self._busy[key]
        if not busy.unlogged:
            del self._busy[key]
            return
        self._write(key, busy.unlogged, busy)
        busy.unlogged = 0
        self._later(_QUIET_SECONDS, lambda: self._second_over(key))

    def _write(self, key: tuple[int, Name], count: int, last: _Busy) -> None:
        level, (route, event) = key
        on = "" if last.topic is None else f", message on {loggable(last.topic)}"
        run = "" if last.run is None else f", run {self._runs.of(last.run, route, event)}"
        more = f" (the last of {count})" if count > 1 else ""
        log.log(level, "route %s, event %s: %s%s", route, event, last.text % last.arguments + on + run, more)
