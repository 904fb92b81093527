"""Which events a message concerns, whether its route has room for it, and what becomes of it. The broker's loop alone.

Every message that reaches the broker's subscribers passes `Dispatcher.offer`, so a message that concerns no event costs
one look-up. Nothing here awaits. A message becomes one `Call` for each event that takes it; a bridge process runs the
call and reports its end through `Call.reports`, which is this dispatcher.
"""

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.failures import bridge_restarted, disk_full, overloaded, too_many_hops
from amqtt_rest_bridge.link.frames import SKIPPED, CallResult
from amqtt_rest_bridge.model import Message, NumberedRoute
from amqtt_rest_bridge.route_set import event_names
from amqtt_rest_bridge.routing.calls import (
    NO_DELIVERY,
    BridgePort,
    Call,
    Delivery,
    EventName,
    Listening,
    PublisherPort,
    ReleaseCredits,
    Store,
    StoreFullError,
)
from amqtt_rest_bridge.routing.observer import Observer
from amqtt_rest_bridge.routing.quiet_log import QuietLog
from amqtt_rest_bridge.routing.results import ResultPublisher
from amqtt_rest_bridge.routing.room import Offered, WaitingRoom
from amqtt_rest_bridge.routing.route_table import RouteTable
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.routing.watching import Watched
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

MAX_HOPS: Final = 8  # a chain of routes ends here


class Dispatcher:
    """Match and admit messages, dispatch calls, count and publish what becomes of them.

    Args:
        bridges: Where calls go.
        publisher: Where results go.
        server: Server mode's side, which shares the routes and the statistics.
        statistics: Those of the present routes, by name; changed in place by `set_routes`.
        workers: How many requests a route can have in flight, over all bridge processes.
        store: Keeps the calls of lossless routes; None where there are none.
        on_health: Called with the statistics of a route whose health changed.
        quiet: Logs what may come often.
        observer: Counts for the admin port; None where there is none.
        clock: Unix seconds.
        room: Makes the room where messages of balanced routes wait.
    """

    def __init__(
        self,
        bridges: BridgePort,
        publisher: PublisherPort,
        server: ServerReports,
        statistics: dict[str, RouteStatistics],
        workers: int,
        *,
        store: Store | None,
        on_health: Callable[[RouteStatistics], None],
        quiet: QuietLog,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.time,
        room: Callable[[Callable[[Offered], None]], WaitingRoom] = WaitingRoom,
    ) -> None:
        self.table = RouteTable(statistics, workers, clock)
        """The routes in use."""
        self.orphans: list[str] = []
        """Keys of calls in the store whose event is gone, the oldest first."""
        self._bridges = bridges
        self._results = ResultPublisher(publisher)
        self._server = server
        self._store = store
        self._on_health = on_health
        self._clock = clock
        self._quiet = quiet
        self._observer = observer
        self._ids = itertools.count(1)
        self._room = room(self._time_over)

    @property
    def statistics(self) -> Mapping[str, RouteStatistics]:
        """Return the statistics of the present routes, by name."""
        return self.table.statistics

    def set_routes(self, routes: Sequence[NumberedRoute], reads: Iterable[str], replies: Mapping[str, float]) -> None:
        """Replace all routes; for `reads` and `replies` see `Watching.replace`."""
        self._server.replace((numbered.route for numbered in routes), reads, replies)
        self.table.replace(routes, self._server.watching.entries())
        if self._observer is not None:
            self._observer.keep(event_names(numbered.route for numbered in routes))
        for offered in list(self._room.empty()):  # by the present definition of their events
            present = self.table.named(offered.listening.name)
            if present is None:
                self._time_over(offered)
            else:
                offered.listening = present
                self._admit(offered)

    def offer(
        self,
        message: Message,
        *,
        hops: int = 0,
        taken: Collection[EventName] = (),
        delivery: Delivery | None = None,
    ) -> None:
        """Dispatch a message that reaches the broker's subscribers.

        Args:
            message: The message.
            hops: How many routes it has passed through.
            taken: The events that took it before its PUBACK, under any policy that their routes have by now.
            delivery: Held for each call and each publication that comes of the message, and during this method. What
                `abandon` drops stays held: its source delivers it again.
        """
        found = self.table.find(message.topic)
        if not found:
            if self._observer is not None and self._observer.following:
                self._observer.unmatched(message)
            if delivery is None:
                return
        held = delivery or NO_DELIVERY
        held.hold()  # a call that ends at once must not acknowledge what other events have still to take
        try:
            if found:
                self._offer(message, found, hops, taken, held)
        finally:
            held.release()

    def _offer(
        self,
        message: Message,
        found: Iterable[Listening | Watched],
        hops: int,
        taken: Collection[EventName],
        delivery: Delivery,
    ) -> None:
        is_awaited = False
        for entry in found:
            if isinstance(entry, Watched):
                if entry.keep:
                    self._show(entry, message.payload)
                else:
                    is_awaited = is_awaited or self._server.watching.is_due(entry)
            elif entry.name not in taken:
                delivery.hold()
                self._admit(Offered(entry, message, hops, delivery))
        if is_awaited and not self._bridges.forward(message.topic, message.payload):
            self._server.reply_dropped(message)
        self._bridges.flush()

    def run(self, name: EventName, message: Message, delivery: Delivery) -> None:
        """Dispatch a message that the schedule of an event made, to it alone; `delivery` is held for its call."""
        listening = self.table.named(name)
        if listening is not None:
            delivery.hold()
            self._admit(Offered(listening, message, 0, delivery))
            self._bridges.flush()

    def remember(self, topic: str, payload: bytes, *, only_new: bool = False) -> None:
        """Accept a retained message that reaches no subscriber now: read events answer with it.

        With `only_new` those that have seen a message already keep it: it may be a later one, not retained.
        """
        for entry in self.table.find(topic):
            if isinstance(entry, Watched) and entry.keep and (entry.latest is None or not only_new):
                self._show(entry, bytes(payload))

    def dispatch_stored(self, listening: Listening, message: Message, hops: int, key: str) -> None:
        """Dispatch a call that is admitted and in the store."""
        self.replay(Call(next(self._ids), listening, message, hops, self, key=key))

    def withdraw(self, listening: Listening, key: str) -> None:
        """Undo the admission of a call in the store, whose publisher may not publish."""
        listening.statistics.withdraw()
        self._forget(key)

    def replay(self, call: Call) -> None:
        """Dispatch a call that has not ended, by the event's present definition.

        Where a reload has removed the event, a lossless call stays in the store and any other one ends.
        """
        self.waiting(call, -1)
        listening, old = self.table.named(call.listening.name), call.listening.statistics
        if listening is not None:
            if listening.statistics is not old:
                old.withdraw()
                listening.statistics.admit_again()
            call.listening = listening
            self._bridges.dispatch(call)
        elif call.key is not None:
            old.withdraw()
            if self._store is not None:
                self.orphans.append(call.key)
                call.delivery.release()  # the store has the message; without one its source keeps it
        else:
            self.lost(call)

    def done(self, call: Call, result: CallResult, release_credits: ReleaseCredits) -> None:
        """Note a call that has ended and publish its result."""
        listening, now = call.listening, self._clock()
        statistics = listening.statistics
        if result.code is None:
            changed = statistics.success(result.seconds, now)
            self._quiet.note(
                logging.INFO, listening.name, "%s answered %d in %.0f ms",
                listening.request, result.status, 1000 * result.seconds, topic=call.message.topic,
            )  # fmt: skip
        elif result.code == SKIPPED:
            changed = False
            statistics.skip()
        else:
            changed = statistics.failure(result.code, result.message, now)  # which the bridge process has logged
        if self._observer is not None:
            self._observer.ended(listening.name, result)
        if changed:
            self._report_health(statistics)
        if result.publication is not None:
            self._results.put(result.publication, call.hops + 1, call.delivery, release_credits)
        self._forget(call.key)
        call.delivery.release()
        if statistics.outside:
            self._admit_waiting(statistics)

    def lost(self, call: Call) -> None:
        """End a call whose bridge process died with the failure `bridge_restarted`."""
        self.waiting(call, -1)
        failure, listening = bridge_restarted(), call.listening
        self._quiet.note(logging.WARNING, listening.name, "%s", failure.code, topic=call.message.topic)
        if self._observer is not None:
            self._observer.lost(listening, call.message, failure)
        if listening.statistics.failure(failure.code, failure.message, self._clock()):
            self._report_health(listening.statistics)
        self._results.put_failure(listening, call.message, failure, call.hops, call.delivery, has_room=True)
        call.delivery.release()
        self._admit_waiting(listening.statistics)

    def abandon(self) -> Mapping[str, int]:
        """Forget the messages that wait for room, at the broker's end; return how many they were, by route."""
        return Counter(offered.listening.route for offered in self._room.empty())

    def waiting(self, call: Call, change: int, *, for_try: bool = True) -> None:
        """Note that a call begins (+1) or ceases (-1) to wait; see `CallReports`. A repetition changes nothing."""
        if call.waits != (change > 0):
            call.waits = change > 0
            call.listening.statistics.wait(change, for_try=for_try)

    def try_failed(self, call: Call, code: str, message: str) -> None:
        """Note a failed try of a call that is tried until it succeeds."""
        self.report_error(call.listening.route, code, message)

    def report_error(self, route: str, code: str, message: str) -> None:
        """Note in a route's status an error that ended no call."""
        statistics = self.statistics.get(route)
        if statistics is not None and statistics.try_failed(code, message, self._clock()):
            self._report_health(statistics)

    def refuse(
        self, listening: Listening, message: Message, failure: CallError, hops: int, delivery: Delivery = NO_DELIVERY
    ) -> None:
        """Answer a message that was not admitted: failure payload, status, and a log line a second at most."""
        text = "refused a message on %s: %s"
        self._quiet.note(logging.WARNING, listening.name, text, loggable(message.topic), failure.message)
        if self._observer is not None:
            self._observer.refused(listening, message, failure)
        if listening.statistics.refuse(failure.code, failure.message, message.timestamp):
            self._report_health(listening.statistics)
        if hops < MAX_HOPS:  # a chain ends in the log and the status: a payload could begin it anew
            self._results.put_failure(listening, message, failure, hops, delivery)
        delivery.release()

    def _admit(self, offered: Offered) -> None:
        """Admit a message, queue it until there is room, or refuse it."""
        statistics = offered.listening.statistics
        if offered.hops >= MAX_HOPS:
            refusal: CallError | None = too_many_hops(MAX_HOPS)
        elif statistics.outside:  # those that came before go first
            refusal = None if self._room.accept(offered) else overloaded(statistics.capacity)
        elif offered.listening.lossless and offered.delivery is not NO_DELIVERY:  # whose source bounds what it sends
            statistics.admit_again()
            refusal = None
            self._begin(offered)
        elif (refusal := statistics.admit()) is None:
            self._begin(offered)
        elif self._room.accept(offered):
            refusal = None
        if refusal is not None:
            self._refuse(offered, refusal)

    def _begin(self, offered: Offered) -> None:
        """Dispatch a message that is admitted."""
        listening, message = offered.listening, offered.message
        key = offered.delivery.key(listening.name) if listening.lossless else None
        if listening.lossless and self._store is not None:
            try:
                key = self._store.keep(listening.route, listening.event.name, message, offered.hops, None)
            except StoreFullError as error:
                listening.statistics.withdraw()
                self._refuse(offered, disk_full(error))
                return
        call = Call(next(self._ids), listening, message, offered.hops, self, offered.delivery, key)
        self._bridges.dispatch(call)

    def _admit_waiting(self, statistics: RouteStatistics) -> None:
        """Admit messages that wait for the room that a call has left."""
        while statistics.outside and statistics.has_room:
            offered = self._room.next(statistics.name)
            statistics.admit()
            self._begin(offered)
            self._bridges.flush()

    def _time_over(self, offered: Offered) -> None:
        self._refuse(offered, overloaded(offered.listening.statistics.capacity))

    def _refuse(self, offered: Offered, failure: CallError) -> None:
        self.refuse(offered.listening, offered.message, failure, offered.hops, offered.delivery)

    def _show(self, watched: Watched, payload: bytes) -> None:
        watched.latest = payload
        self._bridges.show(watched.topic_filter, payload)

    def _forget(self, key: str | None) -> None:
        if key is not None and self._store is not None:
            self._store.forget(key)

    def _report_health(self, statistics: RouteStatistics) -> None:
        if self.statistics.get(statistics.name) is statistics:  # a route that is gone has no status
            self._on_health(statistics)
