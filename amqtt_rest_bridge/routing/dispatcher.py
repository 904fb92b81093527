"""Which events a message concerns, whether its route has room for it, and what becomes of it. The broker's loop alone.

Every message that reaches the broker's subscribers passes `Dispatcher.offer`, so a message that concerns no event costs
one look-up. Nothing here awaits. A message becomes one `Call` for each event that takes it; a bridge process runs the
call and reports its end through `Call.reports`, which is this dispatcher.
"""

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.failures import disk_full
from amqtt_rest_bridge.link.frames import CallResult, FailedTry
from amqtt_rest_bridge.link.newest import INCOMPLETE
from amqtt_rest_bridge.model import EventName, Message, NumberedRoute
from amqtt_rest_bridge.routing.admission import QueueBytes
from amqtt_rest_bridge.routing.calls import MAX_HOPS, Call, Delivery, Dispatches, Listening, ReleaseCredits, Store
from amqtt_rest_bridge.routing.outcomes import Later, Outcomes, on_this_loop
from amqtt_rest_bridge.routing.overload_queue import AT_ONCE, OverloadQueue
from amqtt_rest_bridge.routing.route_table import RouteTable, Watched, build_table
from amqtt_rest_bridge.routing.server_reports import ServerReports

_RESTARTED: Final = "the bridge process ended while it held this message; the request may or may not have been sent"
_REMOVED: Final = "the message waited for its turn when its route or event was removed; it was not sent"


class Dispatcher:
    """Match and admit messages, dispatch calls, and end them.

    Args:
        bridges: Where calls go.
        outcomes: What becomes of messages and calls is noted there.
        server: Server mode's side, which shares the routes.
        workers: How many requests a route can have in flight, over all bridge processes.
        store: Keeps the calls of lossless routes; None where there are none.
        queue: Counts the payloads of all routes together.
        max_message_bytes: A larger message takes no call.
        monotonic: The clock of OVERLOAD_TIMEOUT, in seconds.
        later: Sets a timer.
    """

    def __init__(
        self,
        bridges: Dispatches,
        outcomes: Outcomes,
        server: ServerReports,
        workers: int,
        *,
        store: Store | None,
        queue: QueueBytes,
        max_message_bytes: int,
        monotonic: Callable[[], float] = time.monotonic,
        later: Later = on_this_loop,
    ) -> None:
        self.table = RouteTable()
        """The routes in use."""
        self.orphans: list[str] = []
        """Keys of calls in the store whose event is gone, the oldest first."""
        self._bridges = bridges
        self._outcomes = outcomes
        self._server = server
        self._largest = max_message_bytes
        self._workers = workers
        self._queue = queue
        self._store = store
        self._records = outcomes.records
        self._ids = itertools.count(1)
        self._later = later
        self._overloaded = OverloadQueue(self._time_over, monotonic, later)

    def set_routes(self, routes: Sequence[NumberedRoute], reads: Iterable[str], replies: Mapping[str, float]) -> None:
        """Replace all routes; for `reads` and `replies` see `Watching.replace`."""
        self._server.replace((numbered.route for numbered in routes), reads, replies)
        watched = self._server.watching.entries()
        self.table = build_table(routes, watched, self._outcomes.statistics, self._workers, self._queue)
        if self._records is not None:
            self._records.keep([numbered.route for numbered in routes])
        gone: list[Call] = []
        for call in list(self._overloaded.empty()):  # by the present definition of their events
            present = self.table.by_name.get(call.listening.name)
            if present is None:
                gone.append(call)
            else:
                call.listening = present
                if self._admit(call):
                    self._bridges.dispatch((call,))
        self._refuse_removed(gone)

    def _refuse_removed(self, calls: Sequence[Call]) -> None:
        """Refuse messages of events that are gone, in their order, some in each iteration of the loop."""
        for call in calls[:AT_ONCE]:
            self.refuse(call, catalogue.ROUTE_REMOVED.error(_REMOVED))
        if len(calls) > AT_ONCE:
            self._later(0, lambda: self._refuse_removed(calls[AT_ONCE:]))

    def offer(
        self,
        message: Message,
        *,
        hops: int = 0,
        elsewhere: Collection[EventName] = (),
        delivery: Delivery | None = None,
        size: int = 0,
    ) -> None:
        """Dispatch a message that reaches the broker's subscribers.

        Args:
            message: The message.
            hops: How many routes it has passed through.
            elsewhere: Events that receive it by another subscription, or took it before its PUBACK, under any policy
                that their routes have by now.
            delivery: Held for each call and each publication that comes of the message, and during this method. What
                `abandon` drops stays held: its source delivers it again.
            size: Bytes of the message, where more came than its payload: many properties may be larger than it.
        """
        found = self.table.listeners[message.topic]
        if not found:
            if self._records is not None and self._records.following:
                self._records.unmatched(message)
            if delivery is None:
                return
        if delivery is not None:
            delivery.hold()  # a call that ends at once must not acknowledge what other events have still to take
        try:
            if found:
                self._offer(message, found, hops, elsewhere, delivery, max(size, len(message.payload)))
        finally:
            if delivery is not None:
                delivery.release()

    def _offer(
        self,
        message: Message,
        found: Iterable[Listening | Watched],
        hops: int,
        elsewhere: Collection[EventName],
        delivery: Delivery | None,
        size: int,
    ) -> None:
        calls: list[Call] = []
        failure, is_awaited = self.too_large(size), False
        try:
            for entry in found:
                if isinstance(entry, Watched):
                    is_awaited = (failure is None and self._watch(entry, message)) or is_awaited
                elif entry.name not in elsewhere:
                    call = self.call_of(entry, message, hops, delivery)
                    if self._admit(call, size):
                        calls.append(call)
        finally:
            if calls:
                self._bridges.dispatch(calls)
        if is_awaited and not self._bridges.forward(message):
            self._server.reply_dropped(message)
        if failure is not None:
            self._server.dropped_too_large(message, failure)

    def _watch(self, entry: Watched, message: Message) -> bool:
        """Show a message to read events; return whether requests may wait for it."""
        if entry.keep:
            self._show(entry, message.topic, message.payload)
            return False
        return self._server.watching.is_due(entry)

    def run(self, name: EventName, message: Message, delivery: Delivery) -> Call | None:
        """Dispatch a message that a schedule or a retry made to one event alone; return None where that is gone.

        `delivery` is held for its call.
        """
        listening = self.table.by_name.get(name)
        if listening is None:
            return None
        call = self.call_of(listening, message, 0, delivery)
        if self._admit(call):
            self._bridges.dispatch((call,))
        return call

    def remember(self, topic: str, payload: bytes, *, only_new: bool = False) -> None:
        """Accept a retained message that reaches no subscriber now: read events answer with it.

        With `only_new` those that have seen a message already keep it: it may be a later one, not retained.
        """
        if len(payload) > self._largest:
            return
        for entry in self.table.listeners[topic]:
            if isinstance(entry, Watched) and entry.keep and not (only_new and topic in entry.newest.topics):
                self._show(entry, topic, bytes(payload))

    @contextlib.contextmanager
    def asking_again(self) -> Iterator[set[str]]:
        """Take the filters of read events that had too many topics for complete, once the block has asked for them."""
        again = [newest for newest in self._server.watching.newest() if not newest.is_complete]
        for newest in again:
            newest.is_complete = True  # until some are dropped again
        try:
            yield {newest.topic_filter for newest in again}
        except BaseException:
            for newest in again:
                newest.is_complete = False
                self._bridges.show(newest, INCOMPLETE)  # to one that has started meanwhile
            raise
        for newest in again:
            if newest.is_complete:
                self._bridges.show_all(newest)

    def dispatch_stored(self, listening: Listening, message: Message, hops: int, key: str) -> None:
        """Dispatch a call that is admitted and in the store."""
        self.replay(Call(next(self._ids), key, listening, message, hops, self, key=key))

    def defer(self, route: str, count: int) -> None:
        """Note how many messages of a route wait on disk for room; those that come meanwhile are refused."""
        if (statistics := self._outcomes.statistics.get(route)) is not None:
            statistics.admission.deferred = count

    def forget_forbidden(self, listening: Listening, key: str, size: int) -> None:
        """Remove from the store a call whose publisher may not publish; `size` is its payload's."""
        listening.statistics.admission.undo(size)
        if self._store is not None:
            self._store.forget(key)

    def replay(self, call: Call) -> None:
        """Dispatch a call that has not ended, by the event's present definition.

        Where a reload has removed the event, a lossless call stays in the store and any other one ends.
        """
        self.waiting(call, -1)
        if self._use_present(call, catalogue.BRIDGE_RESTARTED.error(_RESTARTED)):
            self._bridges.dispatch((call,))

    def renew(self, call: Call) -> bool:
        """Use the present definition of an event for a call that no bridge process has had; False where it is gone."""
        return self._use_present(call, catalogue.ROUTE_REMOVED.error(_REMOVED))

    def _use_present(self, call: Call, failure: CallError) -> bool:
        """Use the present definition of an event; where there is none, a call ends with a failure, or stays on disk.

        One that its source has dropped is forgotten.
        """
        listening, old = self.table.by_name.get(call.listening.name), call.listening.statistics
        size = len(call.message.payload)
        if call.delivery is not None and call.delivery.is_dropped:
            old.admission.undo(size)
            self._outcomes.no_more_tries(call)
            call.delivery.abandon()
            return False
        if listening is not None:
            if listening.statistics is not old:
                self._outcomes.no_more_tries(call)  # which the next one that fails notes again
                old.admission.undo(size)
                listening.statistics.admission.take(size)
            call.listening = listening
            return True
        if call.key is None:
            self._lose(call, failure)
            return False
        old.admission.undo(size)
        self._outcomes.no_more_tries(call)
        if self._store is not None:
            self.orphans.append(call.key)
            if call.delivery is not None:
                call.delivery.release()  # the store has the message; without one its source keeps it
        return False

    def done(self, call: Call, result: CallResult, release_credits: ReleaseCredits) -> None:
        """End a call with its result."""
        self._outcomes.ended(call, result, release_credits)
        self._leave(call)

    def lost(self, call: Call) -> None:
        """End a call whose bridge process died with the failure `bridge_restarted`."""
        self._lose(call, catalogue.BRIDGE_RESTARTED.error(_RESTARTED))

    def _lose(self, call: Call, failure: CallError) -> None:
        self.waiting(call, -1)
        self._outcomes.lost(call, failure)
        self._leave(call)

    def abandon(self) -> Mapping[str, int]:
        """Forget the messages that wait for room, at the broker's end; return how many they were, by route."""
        return Counter(call.listening.route for call in self._overloaded.empty())

    def waiting(self, call: Call, change: int, *, for_try: bool = True) -> None:
        """Note that a call begins (+1) or ceases (-1) to wait; see `CallReports`. A repetition changes nothing."""
        if call.waits != (change > 0):
            call.waits = change > 0
            call.listening.statistics.wait(change, for_try=for_try)

    def try_failed(self, calls: Sequence[Call], failed: FailedTry) -> None:
        """Note a failed try that is followed by another one; see `CallReports`."""
        self._outcomes.try_failed(calls, failed)

    def report_error(self, route: str, code: str, message: str) -> None:
        """Note in a route's status an error that ended no call, such as an ACL that does not answer."""
        self._outcomes.error(route, code, message)

    def is_full(self) -> bool:
        """Return whether the payloads of all routes together take what they may."""
        return self._queue.held >= self._queue.limit

    def too_large(self, size: int) -> CallError | None:
        """Return why a message of `size` bytes takes no call, None when it does."""
        if size <= self._largest:
            return None
        what = f"the message has {size} bytes, max_message_bytes allows {self._largest}"
        return catalogue.MESSAGE_TOO_LARGE.error(what)

    def call_of(self, listening: Listening, message: Message, hops: int = 0, delivery: Delivery | None = None) -> Call:
        """Return the call of a message for one event, which is not admitted yet; it holds `delivery`."""
        if delivery is not None:
            delivery.hold()
        number = next(self._ids)
        return Call(number, number, listening, message, hops, self, delivery)

    def refuse(self, call: Call, failure: CallError) -> None:
        """End a call that was not admitted."""
        self._outcomes.refused(call, failure)
        if call.delivery is not None:
            call.delivery.release()

    def _admit(self, call: Call, received: int = 0) -> bool:
        """Return whether a call is admitted; else it waits for room, or was refused.

        `received`: bytes of its message, where they are more than the payload's.
        """
        listening, size = call.listening, len(call.message.payload)
        failure: CallError | None
        if call.hops >= MAX_HOPS:
            failure = catalogue.TOO_MANY_HOPS.error(
                f"the message went through {MAX_HOPS} routes one after the other and was not passed on"
            )
        elif (failure := self.too_large(max(size, received))) is None:
            if call.delivery is not None and (listening.lossless or call.delivery.is_bounded):
                listening.statistics.admission.take(size)
                return not listening.lossless or self._keep(call)
            failure = listening.statistics.admission.admit(size)  # those that came before go first
            if failure is None:
                return not listening.lossless or self._keep(call)
            if self._overloaded.accept(call):
                return False
        self.refuse(call, failure)
        return False

    def _keep(self, call: Call) -> bool:
        """Set the key of an admitted call of a lossless route; return False when the store is full."""
        listening = call.listening
        try:
            if self._store is not None:
                names = listening.route, listening.event.name
                call.key = self._store.keep(*names, call.message, call.hops, None, listening.numbering)
            elif call.delivery is not None:
                call.key = call.delivery.key(listening.name)
        except OSError as error:
            listening.statistics.admission.undo(len(call.message.payload))
            self.refuse(call, disk_full(error))
            return False
        call.run = call.id if call.key is None else call.key
        return True

    def _leave(self, call: Call) -> None:
        """Remove a call that has ended, and admit messages that wait for its room."""
        if call.key is not None and self._store is not None:
            self._store.forget(call.key)
        if call.delivery is not None:
            call.delivery.release()
        statistics = call.listening.statistics
        admission = statistics.admission
        admission.release(len(call.message.payload))
        while admission.outside and admission.has_room(len(self._overloaded.first(statistics.name).message.payload)):
            following = self._overloaded.next(statistics.name)
            admission.take(len(following.message.payload))
            if not following.listening.lossless or self._keep(following):
                self._bridges.dispatch((following,))

    def _time_over(self, call: Call) -> None:
        self.refuse(call, call.listening.statistics.admission.full(len(call.message.payload)))

    def _show(self, watched: Watched, topic: str, payload: bytes) -> None:
        newest = watched.newest
        was_complete = newest.is_complete
        newest.put(topic, payload)
        self._bridges.show(newest, topic)
        if was_complete and not newest.is_complete:
            self._bridges.show(newest, INCOMPLETE)
