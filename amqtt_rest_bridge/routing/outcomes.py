"""What becomes of messages and calls: counted, logged, recorded for the admin port, published. The broker's loop alone.

Nothing here decides; the dispatcher does. A publication holds the delivery of its message until it has been published.

Log lines about messages and requests come at most once a second for each event, level and class of status (2xx, 4xx):
a refused caller does not hide behind an admitted one. The first is logged at once; those of the second that follows are
counted, and the last of them is logged with their number. So a test message is seen at once, and a busy route costs a
line a second and no formatting.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.failures import failure_payload, failure_topic
from amqtt_rest_bridge.link.frames import SKIPPED, CallResult, FailedTry
from amqtt_rest_bridge.masking import masker_of
from amqtt_rest_bridge.model import ClientEvent, EventName, Publication, Route, RunIds, RunKey
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.routing.calls import MAX_HOPS, Call, Delivery, Publishes, ReleaseCredits
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0

_Kind = tuple[int, EventName, int]
"""What lines are counted by: level, names of route and event, first digit of the status."""

Later = Callable[[float, Callable[[], None]], object]
"""Call a function on the loop, so many seconds from now."""


@dataclass(slots=True, eq=False)
class _Busy:
    """What was logged less than a second ago: how many have not been since, and the text of the last of them."""

    unlogged: int = 0
    text: str = ""
    arguments: tuple[object, ...] = ()
    topic: str | None = None
    run: RunKey | None = None


def on_this_loop(seconds: float, call: Callable[[], None]) -> object:
    """Call a function later on the running loop."""
    return asyncio.get_running_loop().call_later(seconds, call)


def described(route: Route, event: ClientEvent) -> str:
    """Return a client event's METHOD and server for a log line; never the path, which payloads and secrets fill."""
    server = route.config.server
    return f"{event.method} {masker_of(route).address(server)}"


class QuietLog:
    """Write the lines; `runs` makes the ids of calls, `later` is for tests."""

    def __init__(self, runs: RunIds, later: Later = on_this_loop) -> None:
        self._runs = runs
        self._later = later
        self._busy: dict[_Kind, _Busy] = {}  # holds a kind for a second after its last line

    def note(
        self,
        level: int,
        name: EventName,
        text: str,
        *arguments: object,
        status_class: int = 0,
        count: int = 1,
        topic: str | None = None,
        run: RunKey | None = None,
    ) -> None:
        """Log `count` messages or requests of an event, now or within a second.

        Args:
            level: Of the line.
            name: The names of the route and the event.
            text: What became of the last one, as for `log.log`.
            *arguments: Formatted only when the line is written.
            status_class: First digit of the HTTP status, 0 without one. Lines of another level or class are counted
                apart.
            count: How many.
            topic: Of the message, for the end of the line.
            run: Of the call, for its id at the end of the line.
        """
        if not log.isEnabledFor(level):
            return
        key = level, name, status_class
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

    def _second_over(self, key: _Kind) -> None:
        busy = self._busy[key]
        if not busy.unlogged:
            del self._busy[key]
            return
        self._write(key, busy.unlogged, busy)
        busy.unlogged = 0
        self._later(_QUIET_SECONDS, lambda: self._second_over(key))

    def _write(self, key: _Kind, count: int, last: _Busy) -> None:
        level, (route, event), _ = key
        on = "" if last.topic is None else f", message on {loggable(last.topic)}"
        run = "" if last.run is None else f", run {self._runs.of(last.run, route, event)}"
        more = f" (the last of {count})" if count > 1 else ""
        log.log(level, "route %s, event %s: %s%s", route, event, last.text % last.arguments + on + run, more)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Note them; both modes of the bridge share one.

    Args:
        publisher: Where results go.
        statistics: Those of the present routes, by name; the dispatcher keeps them up to date.
        runs: Makes the ids of calls.
        on_health: Called with the statistics of a route whose health changed.
        quiet: Logs what may come often.
        records: Of the admin port; None where there is none.
    """

    publisher: Publishes
    statistics: dict[str, RouteStatistics]
    runs: RunIds
    on_health: Callable[[RouteStatistics], None]
    quiet: QuietLog
    records: BrokerRecords | None = None

    def ended(self, call: Call, result: CallResult, release_credits: ReleaseCredits) -> None:
        """Note a call that has ended, and publish its result."""
        listening, statistics, now = call.listening, call.listening.statistics, time.time()
        if result.code is None:
            self.quiet.note(
                logging.INFO, listening.name, "%s answered %d in %.0f ms, waited %.0f ms",
                listening.request, result.status, 1000 * result.took, 1000 * result.waited,
                status_class=(result.status or 0) // 100, topic=call.message.topic, run=call.run,
            )  # fmt: skip
        if result.publication is not None:
            self._publish(call, result.publication, release_credits)
        if result.code is None:
            statistics.success(result.waited, result.took, now)
        elif result.code == SKIPPED:
            statistics.skip()
        else:
            statistics.failure(result.code, result.message, now)  # which the bridge process has logged
        if self.records is not None:
            self.records.ended(listening.name, listening.event, call.run, call.message, result)
        self.no_more_tries(call)
        self.noted(statistics)

    def lost(self, call: Call, failure: CallError) -> None:
        """Note a call whose bridge process died, or whose event is gone."""
        listening = call.listening
        self.quiet.note(logging.WARNING, listening.name, "%s", failure.code, topic=call.message.topic, run=call.run)
        if self.records is not None:
            self.records.lost(listening.name, listening.event, call.run, call.message, failure)
        self.no_more_tries(call)
        listening.statistics.failure(failure.code, failure.message, time.time())
        self.noted(listening.statistics)
        # Admitted messages are few enough for their failures to have room, and those cost no credits.
        self._publish_failure(call, failure, lambda _: None)

    def refused(self, call: Call, failure: CallError) -> None:
        """Note a message that was not admitted: failure payload, status, and a log line a second at most."""
        listening, message = call.listening, call.message
        self.quiet.note(
            logging.WARNING, listening.name, "refused a message on %s: %s", loggable(message.topic), failure.message,
            run=call.run,
        )  # fmt: skip
        if self.records is not None:
            self.records.refused(listening.name, listening.event, call.run, message, failure)
        listening.statistics.refuse(failure.code, failure.message, message.timestamp)
        self.noted(listening.statistics)
        if call.hops < MAX_HOPS:  # a chain ends in the log and the status: a payload could start it again
            self._publish_failure(call, failure, None)

    def try_failed(self, calls: Sequence[Call], failed: FailedTry) -> None:
        """Note a failed try of a call, or of the calls of a batch, that is followed by another one."""
        listening = calls[0].listening
        statistics = listening.statistics
        for call in calls:
            if not call.is_retried:
                call.is_retried = True
                statistics.retrying += 1
            if self.records is not None:
                self.records.try_failed(call.id, listening.name, listening.event, call.run, call.message, failed)
        statistics.retry(failed.code)
        if listening.lossless:
            statistics.error(failed.code, failed.message, time.time())
        self.noted(statistics)

    def no_more_tries(self, call: Call) -> None:
        """Note that a call has ended, or goes on elsewhere, if a try of it has failed."""
        if call.is_retried:
            call.is_retried = False
            call.listening.statistics.retrying -= 1
            if self.records is not None:
                self.records.problems.no_more_tries(call.id)

    def error(self, route: str, code: str, message: str, *, of_server: bool = False) -> None:
        """Note in a route's status an error that ended no call and no request; `of_server`: of server mode."""
        statistics = self.statistics.get(route)
        if statistics is None:
            return
        if self.records is not None and not of_server:
            self.records.problems.error(route, code, message, time.time())
        note = statistics.server_error if of_server else statistics.error
        note(code, message, time.time())
        self.noted(statistics)

    def noted(self, statistics: RouteStatistics) -> None:
        """Report the health of a route if what was noted has changed it; a route that is gone has no status."""
        if statistics.health_changed() and self.statistics.get(statistics.name) is statistics:
            self.on_health(statistics)

    def _publish_failure(self, of: Call, failure: CallError, release_credits: ReleaseCredits | None) -> None:
        """Queue the failure payload of a message, where its event names a topic for it."""
        event, message = of.listening.event, of.message
        topic = failure_topic(event, message)
        if topic is not None:
            # Decision: where no room is left for large failures, they go without the message; one that is too large
            # for a call is too large for its failure.
            is_kept = event.failure_payload and failure.code is not FailureCode.PAYLOAD_TOO_LARGE
            name = self.runs.of(of.run, *of.listening.name), *of.listening.name
            for kept in (message.payload, None) if is_kept else (None,):
                payload = failure_payload(*name, message.topic, message.timestamp, failure, None, kept)
                publication = Publication(topic, payload, qos=event.qos)
                if self._publish(of, publication, release_credits):
                    break

    def _publish(self, of: Call, publication: Publication, release_credits: ReleaseCredits | None) -> bool:
        """Queue a publication; its delivery is held until it has been published. Return False without room for it."""
        if of.delivery is not None:  # then it has room: the source bounds what it leaves unacknowledged
            of.delivery.hold()
            release_credits = _releasing(of.delivery, release_credits)
        return self.publisher.put(publication, of.hops + 1, release_credits, route=of.listening.route)


def _releasing(delivery: Delivery, release_credits: ReleaseCredits | None) -> ReleaseCredits:
    def published(count: int) -> None:
        if release_credits is not None:
            release_credits(count)
        delivery.release()

    return published
