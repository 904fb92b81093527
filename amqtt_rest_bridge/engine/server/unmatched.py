"""Requests of server mode that led to no endpoint: counted by port and path, logged once a minute.

`server_mode` notes each of them; the admin port shows the most frequent ones with the endpoint that was probably meant.

A scanner may ask for a million paths, so each port counts only the most frequent ones one by one. Paths come from
outside: before they are shown they are cut and escaped, and secrets of the routes in them masked.
"""

import logging
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import unquote

from msgspec import Struct

from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.lot.masking import masked_path, masker_of
from amqtt_rest_bridge.lot.model import Route, ServerEvent
from amqtt_rest_bridge.spelling import closest
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

MOST_SHOWN: Final = 20
_LOG_SECONDS: Final = 60.0
_LOGGED: Final = 3  # paths in a line
_PATHS: Final = 128  # paths of a port that are counted one by one since the beginning ...
_RECENT_PATHS: Final = 16  # ... and since the last line of the log
_MOST_NEAREST: Final = 256  # paths whose nearest endpoint is kept
_LONGEST_METHOD: Final = 16
_LONGEST_PATH: Final = 1000
_QUERY: Final = re.compile("[?#]|%3[fF]|%23")  # callers put credentials there, and encode it by mistake


class _Key(NamedTuple):
    """What is counted: requests with the same method, path and status of the answer."""

    method: str
    path: str
    status: int


class NearestEndpoint(Struct, frozen=True):
    """The endpoint that a caller probably meant."""

    method: str
    path: str
    route: str
    event: str


class UnmatchedPath(Struct, frozen=True):
    """A path of a port that led to no endpoint, with the status of the answers; times are Unix time."""

    port: int
    method: str
    path: str
    status: int
    count: int
    first: float
    last: float
    nearest: NearestEndpoint | None


@dataclass(slots=True, eq=False)
class FrequentKeys(Generic[K]):
    """Counts of the most frequent keys, at most `size` of them, however many keys come.

    The algorithm is Space-Saving (Metwally, Agrawal, El Abbadi, 2005). If there is no room for a new key, it replaces
    the key with the least count and continues that count; the part that it has not counted itself is its excess. A key
    that makes up more than one in `size` is never missed.
    """

    size: int
    _counts: dict[K, tuple[int, int]] = field(default_factory=dict)  # count, and the excess in it as a negative number

    def add(self, key: K) -> K | None:
        """Count a key; return the key that it has replaced, None if there was room."""
        replaced = None
        if key not in self._counts and len(self._counts) >= self.size:
            # Among equal counts the one with the most excess.
            replaced = min(self._counts, key=self._counts.__getitem__)
            least, _ = self._counts.pop(replaced)
            self._counts[key] = least, -least
        count, excess = self._counts.get(key, (0, 0))
        self._counts[key] = count + 1, excess
        return replaced

    def most_frequent(self, number: int) -> list[tuple[K, int]]:
        """Return so many keys, the most frequent first, each with its count without the excess."""
        counted = [(key, count + excess) for key, (count, excess) in self._counts.items()]
        return sorted(counted, key=itemgetter(1), reverse=True)[:number]


@dataclass(slots=True, eq=False)
class _PortCounts:
    """The counts of one port, since the beginning and since the last line of the log."""

    total: int = 0
    paths: FrequentKeys[_Key] = field(default_factory=lambda: FrequentKeys(_PATHS))
    times: dict[_Key, tuple[float, float]] = field(default_factory=dict)  # the first and the last, of those in `paths`
    unlogged: int = 0
    recent: FrequentKeys[_Key] = field(default_factory=lambda: FrequentKeys(_RECENT_PATHS))
    is_quiet: bool = True  # no line was logged in the last minute: the next request is logged at once


class UnmatchedRequests:
    """Counts the requests of all ports that led to no endpoint, and logs them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ports: dict[int, _PortCounts] = {}
        self._endpoints: dict[int, _Endpoints] = {}  # by SERVER_PORT
        self._secrets: frozenset[str] = frozenset()
        self._nearest: dict[tuple[int, _Key], NearestEndpoint | None] = {}

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Use other routes; a port that none of them has is forgotten."""
        self._endpoints, secrets = {}, set[str]()
        for route in routes:
            secrets |= route.secrets
            if route.config.enable_server:
                self._endpoints.setdefault(route.config.server_port, _Endpoints()).add(route)
        self._secrets = frozenset(secrets)
        self._nearest = {}
        for port in [port for port in self._ports if self._endpoints_of(port) is None]:
            self._write(port, self._ports.pop(port))
        for port in self._endpoints.keys() - {0}:
            self._ports.setdefault(port, _PortCounts())

    def note(self, port: int, method: str, path: str, status: int) -> None:
        """Count a request that came to a port, by method, path and the status of its answer."""
        counts, now = self._ports.setdefault(port, _PortCounts()), self._clock.time()
        key = _Key(method[:_LONGEST_METHOD], _QUERY.split(path[:_LONGEST_PATH], 1)[0], status)
        forgotten = counts.paths.add(key)
        if forgotten is not None:
            del counts.times[forgotten]
        counts.times[key] = counts.times.get(key, (now, now))[0], now
        counts.total += 1
        counts.unlogged += 1
        counts.recent.add(key)
        if counts.is_quiet:
            counts.is_quiet = False
            self._write(port, counts)
            self._clock.later(_LOG_SECONDS, partial(self._end_minute, port, counts))

    def totals(self) -> dict[int, int]:
        """Return how many requests of each port led to no endpoint."""
        return {port: counts.total for port, counts in self._ports.items()}

    def most_frequent(self) -> list[UnmatchedPath]:
        """Return the most frequent paths of all ports, the most frequent first."""
        found = []
        for count, port, key in self._frequent_paths():
            first, last = self._ports[port].times[key]
            method, path = self._shown(key)
            found.append(UnmatchedPath(port, method, path, key.status, count, first, last, self._nearest_of(port, key)))
        return found

    def find_one_nearest(self) -> bool:
        """Find the nearest endpoint for one path that `most_frequent` returns; return whether all are found now.

        The search takes a millisecond with 1,000 endpoints: too long for all paths in one iteration of the loop.
        """
        unknown = [(port, key) for _, port, key in self._frequent_paths() if (port, key) not in self._nearest]
        if unknown:
            self._nearest_of(*unknown[0])
        return len(unknown) <= 1

    def _frequent_paths(self) -> list[tuple[int, int, _Key]]:
        found = [
            (count, port, key)
            for port, counts in self._ports.items()
            for key, count in counts.paths.most_frequent(MOST_SHOWN)
        ]
        return nlargest(MOST_SHOWN, found)

    def flush(self) -> None:
        """Write what has only been counted, before the end."""
        for port, counts in self._ports.items():
            self._write(port, counts)

    def _end_minute(self, port: int, counts: _PortCounts) -> None:
        if self._ports.get(port) is not counts:
            return
        if not counts.unlogged:
            counts.is_quiet = True
            return
        self._write(port, counts)
        self._clock.later(_LOG_SECONDS, partial(self._end_minute, port, counts))

    def _write(self, port: int, counts: _PortCounts) -> None:
        if not counts.unlogged:
            return
        paths = []
        for key, count in counts.recent.most_frequent(_LOGGED):
            method, path = self._shown(key)
            near = self._nearest_of(port, key)
            nearest = "" if near is None else f", nearest: {near.method} {near.path} of route {near.route}"
            paths.append(f"{method} {path} ({key.status}, {count}x{nearest})")
        log.warning("port %d: %d request(s) led to no endpoint; most: %s", port, counts.unlogged, "; ".join(paths))
        counts.unlogged, counts.recent = 0, FrequentKeys(_RECENT_PATHS)

    def _shown(self, key: _Key) -> tuple[str, str]:
        """Return method and path as they are shown."""
        return loggable(key.method), loggable(masked_path(key.path, self._secrets))

    def _endpoints_of(self, port: int) -> "_Endpoints | None":
        """Return the endpoints of a bound port, None when no route has it; SERVER_PORT 0 may be bound to any."""
        return self._endpoints.get(port) or self._endpoints.get(0)

    def _nearest_of(self, port: int, key: _Key) -> NearestEndpoint | None:
        """Return the endpoint that a request for this path probably meant."""
        if (port, key) not in self._nearest:
            if len(self._nearest) >= _MOST_NEAREST:
                self._nearest = {}
            endpoints = self._endpoints_of(port)
            self._nearest[port, key] = None if endpoints is None else endpoints.nearest(key.method, key.path)
        return self._nearest[port, key]


class _Endpoints:
    """The endpoints of a port by their paths, percent-decoded; those with `{name}` segments apart."""

    def __init__(self) -> None:
        self._literal: dict[str, list[tuple[Route, ServerEvent]]] = {}
        self._with_names: list[tuple[list[str], Route, ServerEvent]] = []

    def add(self, route: Route) -> None:
        """Add the endpoints of a route."""
        for event in route.server_events:
            path = unquote(event.endpoint)
            if "{" in path:
                self._with_names.append((path.split("/"), route, event))
            else:
                self._literal.setdefault(path, []).append((route, event))

    def nearest(self, method: str, sent: str) -> NearestEndpoint | None:
        """Return the endpoint with the most similar path.

        Without one, return an endpoint whose path the sent one ends with, or the other way round: proxies add and
        remove prefixes.
        """
        path = unquote(sent)
        segments, paths = path.split("/"), dict(self._literal)
        for own, route, event in self._with_names:
            if len(own) == len(segments):
                filled = [there if one.startswith("{") else one for one, there in zip(own, segments, strict=True)]
                paths["/".join(filled)] = [*paths.get("/".join(filled), []), (route, event)]
        near = closest(path, paths)
        if near is None and len(path) > 1:
            near = next((one for one in paths if len(one) > 1 and (path.endswith(one) or one.endswith(path))), None)
        if near is None:
            return None
        route, event = next((one for one in paths[near] if one[1].method.value == method), paths[near][0])
        return NearestEndpoint(event.method.value, masker_of(route).address(event.endpoint), route.name, event.name)
