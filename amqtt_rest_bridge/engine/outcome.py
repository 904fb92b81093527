"""Counts, logs and records how messages and requests end, for status, log and admin port. Nothing here decides.

Each call that fails has a line of its own in the log. Other lines are written at most once a second for each event and
kind (`QuietLog`): the first line at once, then the last line of each second with the number of lines in it. So a test
message is seen at once, and a busy route costs a line a second.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from amqtt_rest_bridge.engine.event import Call, Verdict
from amqtt_rest_bridge.engine.needs import (
    CallRun,
    Clock,
    Host,
    Outcome,
    RequestRun,
)
from amqtt_rest_bridge.engine.statistics import WHEN_SECONDS, QueueBytes, RouteError, RouteStatistics
from amqtt_rest_bridge.errors import CallError, PublicationRefusedError
from amqtt_rest_bridge.lot.masking import Masker, masker_of
from amqtt_rest_bridge.lot.model import EventName, Message, Route, RunIds, RunKey
from amqtt_rest_bridge.lot.placeholders.conditions import WHEN_UNUSABLE
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0
_NOTHING: Final[Mapping[str, RouteStatistics]] = MappingProxyType({})


class _Line(Struct, gc=False):
    """The last line of an event and kind, and the number of lines since one was written."""

    text: str
    arguments: tuple[object, ...]
    topic: str | None
    run_key: RunKey | None
    count: int = 1


class QuietLog:
    """Writes log lines, at most one a second for each event and kind; `runs` makes the ids of calls."""

    def __init__(self, runs: RunIds, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        # The lines to write next, by level, event and kind. A key stays for a second after its last line was written.
        self._next: dict[tuple[int, EventName, str], _Line] = {}

    def note(
        self, level: int, name: EventName, text: str, *arguments: object, topic: str | None = None,
        run: RunKey | None = None, kind: str = "",
    ) -> None:  # fmt: skip
        """Log a message or request of an event, now or within a second.

        Args:
            level: The level of the line; lines of another level are counted apart.
            name: The names of the route and the event.
            text: What became of it, as for `log.log`.
            *arguments: Formatted only when the line is written.
            topic: The topic of the message, for the end of the line.
            run: The key of the call, for its id at the end of the line.
            kind: What distinguishes lines that are counted apart, such as the class of a status (2 for 2xx).
        """
        if not log.isEnabledFor(level):
            return
        key = level, name, kind
        line = self._next.get(key)
        if line is None:
            self._next[key] = _Line(text, arguments, topic, run)
            self._write_next(key)
        else:
            line.text, line.arguments, line.topic, line.run_key = text, arguments, topic, run
            line.count += 1

    def flush(self) -> None:
        """Write what has only been counted, before the end."""
        for key, line in self._next.items():
            if line.count:
                self._write(key, line)

    def _write_next(self, key: tuple[int, EventName, str]) -> None:
        line = self._next[key]
        if not line.count:
            del self._next[key]
            return
        self._write(key, line)
        self._clock.later(_QUIET_SECONDS, partial(self._write_next, key))

    def _write(self, key: tuple[int, EventName, str], last: _Line) -> None:
        level, (route, event), _ = key
        on = "" if last.topic is None else f", message on {loggable(last.topic)}"
        run = "" if last.run_key is None else f", run {self._runs.of(last.run_key, route, event)}"
        more = f" (and {last.count - 1} more like it)" if last.count > 1 else ""
        last.count = 0
        log.log(level, "route %s, event %s: %s%s", route, event, last.text % last.arguments + on + run, more)


class Outcomes:
    """Counts, logs and records how calls and requests end; both modes of the bridge share one object.

    Args:
        host: Has the clock and the records.
        on_health: Called with the statistics of a route whose health has changed.
    """

    def __init__(self, host: Host, on_health: Callable[[RouteStatistics], None] = lambda _: None) -> None:
        self.statistics: dict[str, RouteStatistics] = {}
        """The statistics of the present routes, by name."""
        self.queue_bytes = QueueBytes(host.limits.queue_bytes)
        """The payloads that all routes have queued and in flight."""
        self.quiet_log = QuietLog(host.runs, host.clock)
        """Logs what may come often."""
        self._records = host.records
        self._clock = host.clock
        self._places = host.limits.workers
        self._on_health = on_health

    def use_routes(self, routes: Iterable[Route], gone: Mapping[str, RouteStatistics] = _NOTHING) -> None:
        """Count for these routes from now on; a route that keeps its name keeps its statistics.

        `gone` are the statistics of removed routes whose calls still go on, by name.
        """
        before, now = {**gone, **self.statistics}, self._clock.time()
        self.statistics.clear()  # in place: others hold it
        for route in routes:
            statistics = before.get(route.name) or RouteStatistics(route, self._places, now, self.queue_bytes)
            statistics.update(route)
            self.statistics[route.name] = statistics

    def note_end(self, call: Call, verdict: Verdict, statistics: RouteStatistics) -> None:
        """Note a call that has ended."""
        event, attempts, now, failure = call.event, call.attempts, self._clock.time(), verdict.failure
        waited = call.waited(now)
        if self._records is not None and call.retry_of is None and call.message.sent_again is not None:
            call.retry_of = self._records.replayed_run(event.name, call.message)
        if event.event.when is not None:
            self._note_when(event.event.name, verdict.skipped, event.masker, statistics)
        if failure is not None:
            statistics.note_failure(
                RouteError(now, failure.code.value, failure.message), event.run_id(call), call.retry_of
            )
            if log.isEnabledFor(logging.WARNING):
                log.warning(
                    "%s: %s on %s after %d %s in %.3f s, waited %.3f s, run %s: %s",
                    event.label, failure.code, loggable(call.message.topic), attempts.count,
                    "try" if attempts.count == 1 else "tries", attempts.took, waited, event.run_id(call),
                    failure.message,
                )  # fmt: skip
        elif verdict.outcome is Outcome.SKIPPED:
            statistics.note_skip()
        else:
            statistics.note_success(waited, attempts.took, now, call.retry_of)
            self.quiet_log.note(
                logging.INFO, event.name, "%s answered %d in %.0f ms, waited %.0f ms%s",
                event.shown_request, verdict.status, 1000 * attempts.took, 1000 * waited,
                f" (batch of {attempts.together})" if attempts.together > 1 else "",
                topic=call.message.topic, run=call.run_key, kind=str(verdict.status)[:1],
            )  # fmt: skip
        self.forget_retry(call, statistics)
        if self._records is not None:
            self._record(call, verdict, now, waited)
        self.report_health(statistics)

    def note_failed_attempt(self, call: Call, verdict: Verdict, statistics: RouteStatistics, when: str) -> None:
        """Note a failed attempt that is followed by another one; `when` says when, for the log."""
        event, now, failure = call.event, self._clock.time(), verdict.failure
        if failure is None:
            return
        for one in call.calls:
            if not one.is_retried:
                one.is_retried = True
                statistics.retrying += 1
            self._record(one, verdict, now, one.waited(now))
        statistics.note_retry(failure.code.value)
        if event.is_lossless:
            statistics.note_error(RouteError(now, failure.code.value, failure.message), event.run_id(call))
        self.quiet_log.note(
            logging.INFO, event.name, "%s, %s: %s", failure.code, when, failure.message,
            topic=call.message.topic, run=call.run_key, kind="retry",
        )  # fmt: skip
        self.report_health(statistics)

    def note_refusal(self, call: Call, failure: CallError, statistics: RouteStatistics) -> None:
        """Note a message that was not admitted."""
        now = self._clock.time()
        statistics.note_refusal(
            RouteError(now, failure.code.value, failure.message), call.event.run_id(call), call.retry_of
        )
        self.quiet_log.note(
            logging.WARNING, call.name, "refused a message on %s: %s", loggable(call.message.topic), failure.message,
            run=call.run_key,
        )  # fmt: skip
        if self._records is not None:
            event = call.event
            self._records.note_call(CallRun(
                now, Outcome.REFUSED, call.number, call.run_key, event.route, event.event, call.message,
                failure=failure, retry_of=call.retry_of,
            ))  # fmt: skip
        self.report_health(statistics)

    def forget_retry(self, call: Call, statistics: RouteStatistics) -> None:
        """Stop counting a call as retried, if it was: it has ended or was given up."""
        if call.is_retried:
            call.is_retried = False
            statistics.retrying -= 1
            if self._records is not None:
                self._records.forget_call(call.number)

    def put_away(self, route: str, run: str) -> None:
        """Stop counting a failure whose message is not to be sent again."""
        if (statistics := self.statistics.get(route)) is not None:
            statistics.put_away(run)
            self.report_health(statistics)

    def note_unpublished(self, name: EventName, refused: PublicationRefusedError) -> None:
        """Note that the broker has refused a result, or the message of a request: an error of its route."""
        self.quiet_log.note(logging.ERROR, name, "%s", refused)
        self.note_error(name[0], "not_published", str(refused))

    def note_request(self, run: RequestRun) -> None:
        """Note a request of server mode that has been answered."""
        if self._records is not None:
            self._records.note_request(run)
        route, event = run.route, run.event
        if route is None or event is None:
            return
        level = logging.WARNING if run.outcome is Outcome.FAILED else logging.INFO
        code = f" {run.refusal.code}" if run.refusal is not None else f" {run.skipped[0]}" if run.skipped else ""
        status, name = run.answer.status[:3], (route.name, event.name)
        self.quiet_log.note(
            level, name, "answered %s with %s%s, run %s", run.label, status, code, run.request.id, kind=status[0]
        )
        statistics = self.statistics.get(route.name)
        if statistics is None:
            return
        if event.when is not None and run.outcome is not Outcome.REFUSED:
            self._note_when(event.name, run.skipped, masker_of(route), statistics)
        if run.outcome is Outcome.SUCCEEDED:
            statistics.note_served_request(run.took, run.time, run.retry_of)
        elif run.outcome is Outcome.SKIPPED:
            statistics.note_skipped_request()
        elif run.outcome is Outcome.FAILED and run.refusal is not None:
            error = RouteError(run.time, run.refusal.code, run.refusal.message)
            statistics.note_failed_request(error, run.request.id, run.retry_of)
        elif run.outcome is Outcome.REFUSED and run.refusal is not None:
            statistics.note_refused_caller(f"{run.answer.status[:3]} {run.refusal.code}")
        self.report_health(statistics)

    def note_dropped_message(self, name: EventName, message: Message, failure: CallError) -> None:
        """Note a message that cannot be the answer of a server event; it counts as an error of the route."""
        topic = loggable(message.topic)
        self.quiet_log.note(logging.ERROR, name, "dropped a message on %s: %s", topic, failure.message)
        self.note_error(name[0], failure.code.value, failure.message, of_server=True)

    def note_unmatched(self, message: Message) -> None:
        """Note a message that concerns no event."""
        if self._records is not None:
            self._records.note_unmatched(message)

    def note_error(self, route: str, code: str, message: str, *, of_server: bool = False) -> None:
        """Note in a route's status an error that ended no call and no request; `of_server` if it is of server mode."""
        statistics = self.statistics.get(route)
        if statistics is None:
            return
        note, now = statistics.note_server_error if of_server else statistics.note_error, self._clock.time()
        note(RouteError(now, code, message))
        if self._records is not None and not of_server:
            self._records.note_error(route, code, message, now)
        self.report_health(statistics)

    def report_health(self, statistics: RouteStatistics) -> None:
        """Report the health of a route if it has changed, except that of a removed route, which has no status."""
        if statistics.health_changed() and self.statistics.get(statistics.name) is statistics:
            self._on_health(statistics)

    def _note_when(
        self, event: str, skipped: tuple[str, str] | None, masker: Masker, statistics: RouteStatistics
    ) -> None:
        """Note whether a WHEN could be evaluated, and log once a minute that it fails for every message.

        Such a WHEN makes its route Yellow. `_check_whens` ends that after a minute without messages.
        """
        fault = None if skipped is None or skipped[0] != WHEN_UNUSABLE else masker.text(skipped[1])
        is_watched = bool(statistics.whens.broken)
        if statistics.whens.note(event, fault, self._clock.monotonic()):
            log.warning(
                "route %s, event %s: each message is skipped: %s", statistics.name, event, loggable(fault or "")
            )
        if statistics.whens.broken and not is_watched:
            self._clock.later(WHEN_SECONDS, partial(self._check_whens, statistics))

    def _check_whens(self, statistics: RouteStatistics) -> None:
        statistics.whens.check(self._clock.monotonic())
        self.report_health(statistics)
        if statistics.whens.broken:
            self._clock.later(WHEN_SECONDS, partial(self._check_whens, statistics))

    def _record(self, call: Call, verdict: Verdict, now: float, waited: float) -> None:
        if self._records is None:
            return
        event, attempts, is_over = call.event, call.attempts, verdict.outcome is not Outcome.RETRYING
        self._records.note_call(CallRun(
            now, verdict.outcome, call.number, call.run_key, event.route, event.event, call.message, attempts.url,
            verdict.status, verdict.skipped, verdict.failure, tuple(attempts.last or ()), attempts.count, waited,
            attempts.took, attempts.together, verdict.request if is_over else None,
            verdict.response if is_over else None, call.retry_of,
        ))  # fmt: skip
