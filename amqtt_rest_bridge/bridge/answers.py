"""How many requests each route and event answered since the last report, and how the last one ended. Any thread."""

import logging
import threading
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.bridge.broker_port import Served
from amqtt_rest_bridge.link.frames import SKIPPED, EventAnswers, RequestCount, RouteAnswers
from amqtt_rest_bridge.link.frames import Served as ServedReport

log = logging.getLogger(__name__)

_NO_ANSWERS: Final = RouteAnswers(0, 0, "", "")
_COUNTED: Final = frozenset({"broker_unavailable", "internal_error", "overloaded", "reply_timeout", SKIPPED})


class Answers:
    """Count answers."""

    def __init__(self) -> None:
        self.observed = False
        """Whether requests are counted by status too, for the admin port."""
        self._lock = threading.Lock()
        self._counts: dict[str, RouteAnswers] = {}
        self._lines: dict[Served, tuple[int, str, str | None]] = {}
        self._requests: dict[tuple[Served, str], int] = {}
        self._has_lines = log.isEnabledFor(logging.INFO)

    def count(self, served: Served, status: str, code: str | None, message: str | None) -> None:
        """Count one answer; a caller's mistake is not an error of the route, but is logged."""
        with self._lock:
            if self.observed:
                self._requests[served, status] = self._requests.get((served, status), 0) + 1
            if self._has_lines:
                before = self._lines.get(served)
                self._lines[served] = (1 if before is None else before[0] + 1, status, code)
            if code is not None and code not in _COUNTED:
                return
            counts = self._counts.get(served.route, _NO_ANSWERS)
            if code == SKIPPED:
                counts = replace(counts, skipped=counts.skipped + 1)
            elif code is None:
                counts = replace(counts, answered=counts.answered + 1)
            else:
                counts = replace(counts, failed=counts.failed + 1, code=str(code), message=message or "")
            self._counts[served.route] = counts

    def take(self) -> ServedReport:
        """Return the counts by route and the log's lines by event, and begin anew."""
        with self._lock:
            counts, self._counts = self._counts, {}
            lines, self._lines = self._lines, {}
            requests, self._requests = self._requests, {}
        return ServedReport(
            counts,
            [
                EventAnswers(one.route, one.event, count, f"answered {one.request} with {_reason(status, code)}")
                for one, (count, status, code) in lines.items()
            ],
            [RequestCount(one.route, one.event, status[:3], count) for (one, status), count in requests.items()],
        )


def _reason(status: str, code: str | None) -> str:
    return status[:3] if code is None else f"{status[:3]} {code}"
