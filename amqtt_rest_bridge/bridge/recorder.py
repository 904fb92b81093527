"""The last calls and requests of each route, for the admin port; there is a recorder only where there is such a port.

The workers and the ports' threads record, which has to be cheap: one tuple into a bounded queue, nothing formatted, no
lock. Secrets are masked when they are read. Any thread.

Decision: a route keeps its last 50 calls and requests, and its last 20 failures, which successes do not push out.
"""

import time
from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.link.admin_frames import FoundRecords, Observed, Record
from amqtt_rest_bridge.masking import mask
from amqtt_rest_bridge.model import ClientEvent, Route, ServerEvent
from amqtt_rest_bridge.topics import loggable

_RECENT: Final = 50  # of a route
_FAILURES: Final = 20
_MOST_LIVE: Final = 1000  # records between two looks at them
_LONGEST: Final = 1000  # characters of a URL; masked before the rest is cut off, lest a part of a secret is left


class _Raw(NamedTuple):
    """A record before it is looked at; `seconds` None for a try that another one follows."""

    time: float
    kind: str
    route: Route | None
    event: ClientEvent | ServerEvent | None
    topic: str | None
    method: str
    url: str | None
    status: int | None
    code: str | None
    message: str | None
    hint: str | None
    tries: int | None
    seconds: float


class Recorder:
    """Record; `live` is called soon after the first record while that is followed, on the thread that records."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[_Raw]] = {}
        self._failures: dict[str, deque[_Raw]] = {}
        self._live: deque[_Raw] | None = None
        self._followed = 0  # records since the last look

    def keep(self, routes: Collection[str]) -> None:
        """Record the calls of these routes from now on, and forget the others."""
        self._recent = {name: self._recent.get(name) or deque(maxlen=_RECENT) for name in routes}
        self._failures = {name: self._failures.get(name) or deque(maxlen=_FAILURES) for name in routes}

    def call(
        self,
        route: Route,
        event: ClientEvent,
        topic: str,
        url: str | None,
        status: int | None,
        failure: CallError | None,
        tries: int,
        seconds: float,
        kind: str = "call",
    ) -> None:
        """Record the end of a call, or (`kind` "retry") a try that failed; `url` None when none could be built."""
        if url is not None and len(url) > _LONGEST:
            url = mask(url, route.secrets)[:_LONGEST]
        code = message = hint = None
        if failure is not None:
            code, message, hint = failure.code.value, failure.message, failure.hint
        self._add(
            _Raw(
                time.time(), kind, route, event, topic[:_LONGEST], event.method, url,
                status, code, message, hint, tries, seconds,
            )
        )  # fmt: skip

    def request(
        self,
        route: Route | None,
        event: ServerEvent | None,
        method: str,
        target: str,
        topic: str | None,
        status: int,
        refused: tuple[str, str, str] | None,
        seconds: float,
    ) -> None:
        """Record an answered request of server mode; `refused` is the code, message and hint of an error.

        The query is left out, as in the access log: callers put credentials there.
        """
        path = target.partition("?")[0]
        if len(path) > _LONGEST:
            path = mask(path, () if route is None else route.secrets)[:_LONGEST]
        code, message, hint = refused or (None, None, None)
        self._add(
            _Raw(
                time.time(), "request", route, event, topic, method, path, status, code, message, hint, None, seconds,
            )
        )  # fmt: skip

    def found(self, route: str) -> FoundRecords:
        """Return the last records and failures of a route, the oldest first."""
        recent = [_shown(raw) for raw in tuple(self._recent.get(route, ()))]
        return FoundRecords(route, recent, [_shown(raw) for raw in tuple(self._failures.get(route, ()))])

    def follow(self, on: bool) -> None:
        """Begin or cease to gather what `take_live` returns."""
        self._live, self._followed = (deque(maxlen=_MOST_LIVE) if on else None), 0

    @property
    def is_followed(self) -> bool:
        """Return whether records are gathered for those that follow."""
        return self._live is not None

    def take_live(self) -> Observed | None:
        """Return what was recorded since the last time, None without any."""
        live = self._live
        if not live:
            return None
        self._live = deque(maxlen=_MOST_LIVE)
        count, self._followed = self._followed, 0
        return Observed([_shown(raw) for raw in live], max(0, count - len(live)))

    def _add(self, raw: _Raw) -> None:
        if raw.route is not None:
            recent = self._recent.get(raw.route.name)
            if recent is None:  # a call of a route that is gone
                return
            if raw.kind != "retry":
                recent.append(raw)
            if raw.code is not None:
                self._failures[raw.route.name].append(raw)
        live = self._live
        if live is not None:
            live.append(raw)
            self._followed += 1


def _shown(raw: _Raw) -> Record:
    secrets = () if raw.route is None else raw.route.secrets
    return Record(
        raw.time,
        raw.kind,
        None if raw.route is None else raw.route.name,
        None if raw.event is None else raw.event.name,
        None if raw.topic is None else loggable(raw.topic),
        str(raw.method),
        None if raw.url is None else mask(raw.url, secrets),
        raw.status,
        raw.code,
        None if raw.message is None else mask(raw.message, secrets),
        raw.hint,
        raw.tries,
        round(1000 * raw.seconds, 1),
    )
