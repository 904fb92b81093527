"""How many requests each route and event answered since the last report, how they ended and how long they took.

The ports' threads count, the timers' thread reports. Any thread.
"""

import logging
import re
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.catalogue import BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT, SHUTTING_DOWN
from amqtt_rest_bridge.frequent import Frequent
from amqtt_rest_bridge.link.admin_frames import BUCKETS
from amqtt_rest_bridge.link.frames import (
    CALLER_REFUSED,
    NOT_SERVED,
    RECENT,
    SKIPPED,
    UNMATCHED_PATHS,
    WELL,
    EventAnswers,
    RequestCount,
    RequestTimes,
    RouteAnswers,
    Served,
    UnmatchedCount,
)

log = logging.getLogger(__name__)

_NO_ANSWERS: Final = RouteAnswers(0, 0, "", "")
_FAILURES: Final = frozenset(row.code for row in (BROKER_UNAVAILABLE, INTERNAL_ERROR, NO_ROOM, REPLY_TIMEOUT))
_STOPPING: Final = SHUTTING_DOWN.code
_MOST_TIMES: Final = 200  # of a route in one report
_LONGEST_METHOD: Final = 16
_LONGEST_PATH: Final = 1000
_QUERY: Final = re.compile("[?#]|%3[fF]|%23")  # callers put credentials there, and encode it by mistake

@dataclass(frozen=True, slots=True, eq=False)
class ServedEvent:
    """The server event that a request led to; `request` is its METHOD and ENDPOINT as the log shows them."""

    route: str
    event: str
    request: str


_Kind = tuple[ServedEvent, str, str | None]
"""What answers are counted by: event, status line, and the code of an error."""


class _Times:
    """How long an event took, see `RequestTimes`."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0


class Answers:
    """Count answers: one number for each kind, from which `take` makes what the broker wants to know."""

    def __init__(self) -> None:
        self.recorded = False
        """Whether requests are reported by status too, and their times by event, for the admin port."""
        self._lock = threading.Lock()
        self._begin()
        self._has_lines = log.isEnabledFor(logging.INFO)

    def _begin(self) -> None:
        self._counts: dict[_Kind, int] = {}  # the kind of the last answer at the end
        self._ids: dict[ServedEvent, str] = {}  # of the last request
        self._messages: dict[_Kind, str] = {}
        self._recent: dict[str, deque[_Kind]] = {}
        self._seconds: dict[str, deque[float]] = {}  # of those that were served well
        self._times: dict[ServedEvent, _Times] = {}
        self._unmatched: dict[int, Frequent[tuple[str, str, int]]] = {}
        self._unmatched_totals: dict[int, int] = {}

    def count(
        self, served: ServedEvent, request_id: str, status: str, code: str | None, message: str | None, seconds: float
    ) -> None:
        """Count an answer: its status line, for an error the code with its message (else None), and its duration.

        Called once for every request that led to an event.
        """
        kind = served, status, code
        with self._lock:
            self._counts[kind] = self._counts.pop(kind, 0) + 1
            self._ids[served] = request_id
            if message is not None:
                self._messages[kind] = message
            recent = self._recent.get(served.route)
            if recent is None:
                recent = self._recent[served.route] = deque(maxlen=RECENT)
                self._seconds[served.route] = deque(maxlen=_MOST_TIMES)
            recent.append(kind)
            if code is None:
                self._seconds[served.route].append(seconds)
            if self.recorded and (code is None or code in _FAILURES):
                times = self._times.get(served)
                if times is None:
                    times = self._times[served] = _Times()
                times.buckets[bisect_left(BUCKETS, seconds)] += 1
                times.seconds += seconds

    def unmatched(self, port: int, method: str, path: str, status: str) -> None:
        """Count a request that led to no endpoint: the port that it came to, its path and its answer's status line."""
        with self._lock:
            self._unmatched_totals[port] = self._unmatched_totals.get(port, 0) + 1
            paths = self._unmatched.setdefault(port, Frequent(UNMATCHED_PATHS))
            paths.add((method[:_LONGEST_METHOD], _QUERY.split(path[:_LONGEST_PATH], 1)[0], int(status[:3])))

    def take(self) -> Served:
        """Return what was counted by route and event, with the log's lines by event, and reset the counts."""
        with self._lock:
            counts, ids, messages, recent = self._counts, self._ids, self._messages, self._recent
            seconds, times = self._seconds, self._times
            unmatched, unmatched_totals = self._unmatched, self._unmatched_totals
            self._begin()
        routes = {
            route: replace(answers, recent=_outcomes(recent[route]), seconds=list(seconds[route]))
            for route, answers in _routes(counts, messages).items()
        }
        return Served(
            routes,
            _lines(counts, ids) if self._has_lines else [],
            [RequestCount(one.route, one.event, status[:3], count) for (one, status, _), count in counts.items()]
            if self.recorded
            else [],
            [RequestTimes(one.route, one.event, own.buckets, own.seconds) for one, own in times.items()],
            [
                UnmatchedCount(port, *key, count, excess)
                for port, paths in unmatched.items()
                for key, count, excess in paths.counts()
            ],
            unmatched_totals,
        )


def _outcomes(kinds: Iterable[_Kind]) -> str:
    """Write each answer as one character.

    Decision: an answer of a bridge or port that closes says nothing of the route's health.
    """
    return "".join(
        WELL if code is None or code == SKIPPED else NOT_SERVED if code in _FAILURES else CALLER_REFUSED
        for _, _, code in kinds
        if code != _STOPPING
    )


def _routes(counts: Mapping[_Kind, int], messages: Mapping[_Kind, str]) -> dict[str, RouteAnswers]:
    routes: dict[str, RouteAnswers] = {}
    for kind, count in counts.items():
        served, status, code = kind
        answers = routes.get(served.route, _NO_ANSWERS)
        if code is None:
            answers = replace(answers, answered=answers.answered + count)
        elif code == SKIPPED:
            answers = replace(answers, skipped=answers.skipped + count)
        elif code in _FAILURES:
            message = messages.get(kind, "")
            answers = replace(answers, failed=answers.failed + count, code=str(code), message=message)
        elif code != _STOPPING:
            answers = replace(answers, refused=answers.refused + count, refusal=f"{status[:3]} {code}")
        routes[served.route] = answers
    return routes


def _lines(counts: Mapping[_Kind, int], ids: Mapping[ServedEvent, str]) -> list[EventAnswers]:
    totals: dict[ServedEvent, int] = {}
    texts: dict[ServedEvent, str] = {}
    for (served, status, code), count in counts.items():
        totals[served] = totals.get(served, 0) + count
        texts[served] = f"answered {served.request} with {status[:3]}" + ("" if code is None else f" {code}")
    return [EventAnswers(one.route, one.event, total, f"{texts[one]}, run {ids[one]}") for one, total in totals.items()]
