"""How many requests each route and event answered since the last report, and how the last one ended. Any thread."""

import logging
import threading
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.bridge.broker_port import ServedEvent
from amqtt_rest_bridge.link.frames import SKIPPED, EventAnswers, RequestCount, RouteAnswers, Served

log = logging.getLogger(__name__)

_NO_ANSWERS: Final = RouteAnswers(0, 0, "", "")
_FAILURES: Final = frozenset({"broker_unavailable", "internal_error", "overloaded", "reply_timeout"})

_Kind = tuple[ServedEvent, str, str | None]
"""What answers are counted by: event, status line, and the code of an error."""


class Answers:
    """Count answers: one number for each kind, from which `take` makes what the broker wants to know."""

    def __init__(self) -> None:
        self.observed = False
        """Whether requests are reported by status too, for the admin port."""
        self._lock = threading.Lock()
        self._counts: dict[_Kind, int] = {}  # the kind of the last answer at the end
        self._messages: dict[_Kind, str] = {}
        self._has_lines = log.isEnabledFor(logging.INFO)

    def count(self, served: ServedEvent, status: str, code: str | None, message: str | None) -> None:
        """Count one answer; a caller's mistake is not an error of the route, but is logged."""
        kind = served, status, code
        with self._lock:
            self._counts[kind] = self._counts.pop(kind, 0) + 1
            if message is not None:
                self._messages[kind] = message

    def take(self) -> Served:
        """Return the counts by route and the log's lines by event, and begin anew."""
        with self._lock:
            counts, self._counts = self._counts, {}
            messages, self._messages = self._messages, {}
        return Served(
            _routes(counts, messages),
            _lines(counts) if self._has_lines else [],
            _requests(counts) if self.observed else [],
        )


def _routes(counts: Mapping[_Kind, int], messages: Mapping[_Kind, str]) -> dict[str, RouteAnswers]:
    routes: dict[str, RouteAnswers] = {}
    for kind, count in counts.items():
        served, _, code = kind
        answers = routes.get(served.route, _NO_ANSWERS)
        if code is None:
            routes[served.route] = replace(answers, answered=answers.answered + count)
        elif code == SKIPPED:
            routes[served.route] = replace(answers, skipped=answers.skipped + count)
        elif code in _FAILURES:
            message = messages.get(kind, "")
            routes[served.route] = replace(answers, failed=answers.failed + count, code=str(code), message=message)
    return routes


def _lines(counts: Mapping[_Kind, int]) -> list[EventAnswers]:
    totals: dict[ServedEvent, int] = {}
    texts: dict[ServedEvent, str] = {}
    for (served, status, code), count in counts.items():
        totals[served] = totals.get(served, 0) + count
        texts[served] = f"answered {served.request} with {status[:3]}" + ("" if code is None else f" {code}")
    return [EventAnswers(one.route, one.event, total, texts[one]) for one, total in totals.items()]


def _requests(counts: Mapping[_Kind, int]) -> list[RequestCount]:
    return [RequestCount(one.route, one.event, status[:3], count) for (one, status, _), count in counts.items()]
