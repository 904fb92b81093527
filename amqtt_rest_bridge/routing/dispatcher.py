"""Which events a message concerns, whether its route has room for it, and what becomes of it. The broker's loop alone.

Every message that reaches the broker's subscribers passes `Dispatcher.offer`, so a message that concerns nobody costs
one look-up. Nothing here awaits.
"""

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from amqtt_rest_bridge.broker.disk.spool import Spool, SpoolFull
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.failures import (
    bridge_restarted,
    disk_full,
    failure_payload,
    failure_topic,
    overloaded,
    too_many_hops,
)
from amqtt_rest_bridge.link.frames import CallResult, Served
from amqtt_rest_bridge.model import Message, NumberedRoute, OverloadPolicy, Publication
from amqtt_rest_bridge.routing.calls import Call, EventName, Listening, Outgoing, Outlets
from amqtt_rest_bridge.routing.quiet_log import QuietLog, described
from amqtt_rest_bridge.routing.room import Waiting, WaitingRoom
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.routing.statistics import RouteAccount
from amqtt_rest_bridge.routing.watching import Watched, Watching
from amqtt_rest_bridge.topics import TopicIndex, loggable

log = logging.getLogger(__name__)

_GiveCredits = Callable[[int], None]
MAX_HOPS: Final = 8  # decisions section 5: a chain of routes ends here


class Dispatcher:
    """Match, admit and account; `clock` gives Unix seconds, `quiet` logs what may come often."""

    def __init__(
        self,
        outlets: Outlets,
        publisher: Outgoing,
        workers: int,
        clock: Callable[[], float] = time.time,
        quiet: QuietLog | None = None,
        room: Callable[[Callable[[Waiting], None]], WaitingRoom] = WaitingRoom,
    ) -> None:
        self.accounts: dict[str, RouteAccount] = {}
        self.on_health: Callable[[RouteAccount], None] = _nothing
        self.spool: Spool | None = None
        """Where the calls of lossless routes are kept; they need it."""
        self.orphans: list[str] = []
        """Keys of calls on disk whose event is gone, the oldest first."""
        self._outlets = outlets
        self._publisher = publisher
        self._clock = clock
        self._quiet = quiet or QuietLog()
        self._workers = workers
        self._index: TopicIndex[Listening | Watched] = TopicIndex(())
        self._server = ServerReports(self._quiet, self._tell_health)
        self._watching = Watching()
        self._lossless: TopicIndex[Listening] = TopicIndex(())
        self._by_name: dict[EventName, Listening] = {}
        self._ids = itertools.count(1)
        self._room = room(self._time_over)

    @property
    def has_lossless(self) -> bool:
        """Say whether any route is lossless, so that packets have to be looked at before their PUBACK."""
        return any(listening.lossless for listening in self._by_name.values())

    def set_routes(self, routes: Sequence[NumberedRoute], reads: Iterable[str], replies: Mapping[str, float]) -> None:
        """Replace all routes; for `reads` and `replies` see `Watching.replace`."""
        accounts: dict[str, RouteAccount] = {}
        entries: list[tuple[str, Listening]] = []
        for numbered in routes:
            route = numbered.route
            account = self.accounts.get(route.name) or RouteAccount(route, self._workers, self._clock())
            account.update(route)
            accounts[route.name] = account
            lossless = route.route_config.overload_policy is OverloadPolicy.LOSSLESS
            for number, event in zip(numbered.numbers, route.client_events, strict=True):
                name, request = (route.name, event.name), described(route, event)
                listening = Listening(number, route.name, event, account, lossless, name, request)
                entries.append((event.source_topic, listening))
        self.accounts = accounts
        self._server.replace((numbered.route for numbered in routes), accounts)
        self._by_name = {listening.name: listening for _, listening in entries}
        self._watching.replace(reads, replies)
        self._index = TopicIndex([*entries, *self._watching.entries()])
        self._lossless = TopicIndex([entry for entry in entries if entry[1].lossless])
        for waiting in list(self._room.empty()):  # by the present definition of their events
            present = self._by_name.get(waiting.listening.name)
            if present is None:
                self._time_over(waiting)
            else:
                self._take(present, waiting.message, waiting.hops, waiting.since)

    def latest(self) -> list[tuple[str, bytes]]:
        """Return the topic filters of read events with their latest payload, for a bridge process that starts."""
        return self._watching.latest()

    def offer(self, topic: str, payload: bytes, hops: int = 0, taken: Collection[EventName] = ()) -> None:
        """Take a message that reaches the broker's subscribers.

        Args:
            topic: Its topic name.
            payload: Its payload.
            hops: How many routes it has passed through.
            taken: The events that took it before its PUBACK, whatever their routes' policies are by now.
        """
        found = self._index.find(topic)
        if not found:
            return
        message = Message(topic, bytes(payload), self._clock())
        is_awaited = False
        for entry in found:
            if isinstance(entry, Watched):
                if entry.keep:
                    self._show(entry, message.payload)
                else:
                    is_awaited = is_awaited or self._watching.is_due(entry)
            elif entry.name not in taken:
                self._take(entry, message, hops)
        if is_awaited and not self._outlets.forward(topic, message.payload):
            self._server.reply_dropped(message)
        self._outlets.hurry()

    def remember(self, topic: str, payload: bytes, *, only_new: bool = False) -> None:
        """Take a retained message that reaches no subscriber now: read events answer with it.

        With `only_new` those that have seen a message already keep it: it may be a later one, not retained.
        """
        for entry in self._index.find(topic):
            if isinstance(entry, Watched) and entry.keep and (entry.latest is None or not only_new):
                self._show(entry, bytes(payload))

    def lossless(self, topic: str) -> tuple[Listening, ...]:
        """Give the lossless events that listen to a topic."""
        return self._lossless.find(topic)

    def named(self, route: str, event: str) -> Listening | None:
        """Give an event by its names, None when there is no such client event."""
        return self._by_name.get((route, event))

    def take_spooled(self, listening: Listening, message: Message, hops: int, key: str) -> None:
        """Deal a call that is admitted and on disk."""
        self.again(Call(next(self._ids), listening, message, hops, key))

    def take_back(self, listening: Listening, key: str) -> None:
        """Undo the admission of a call on disk, whose publisher may not publish."""
        listening.account.take_back()
        self._forget(key)

    def again(self, call: Call) -> None:
        """Deal a call that has not ended, by the event's present definition.

        Where a reload has removed the event, a lossless call stays on disk and any other one ends.
        """
        self.waiting(call, -1)
        listening, old = self.named(*call.listening.name), call.listening.account
        if listening is not None:
            if listening.account is not old:
                old.take_back()
                listening.account.admit_again()
            call.listening = listening
            self._outlets.deal(call)
        elif call.key is not None:
            old.take_back()
            self.orphans.append(call.key)
        else:
            self.lost(call)

    def done(self, call: Call, result: CallResult, give: Callable[[int], None]) -> None:
        """Note a call that has ended and publish its result."""
        listening, now = call.listening, self._clock()
        account = listening.account
        if result.code is None:
            changed = account.success(result.seconds, now)
            self._quiet.note(
                logging.INFO, listening.name, "%s answered %d in %.0f ms, message on %s",
                listening.request, result.status, 1000 * result.seconds, loggable(call.message.topic),
            )  # fmt: skip
        else:
            changed = account.failure(result.code, result.message, now)  # which the bridge process has logged
        if changed:
            self._tell_health(account)
        if result.publication is not None:
            self._publisher.put(result.publication, call.hops + 1, give)
        self._forget(call.key)
        self._let_in(account)

    def lost(self, call: Call) -> None:
        """End a call whose bridge process died with the failure `bridge_restarted`."""
        self.waiting(call, -1)
        failure, listening = bridge_restarted(), call.listening
        topic = loggable(call.message.topic)
        self._quiet.note(logging.WARNING, listening.name, "%s, message on %s", failure.code, topic)
        if listening.account.failure(failure.code, failure.message, self._clock()):
            self._tell_health(listening.account)
        # Admitted messages are few enough that each one's failure has room.
        self._publish_failure(listening, call.message, failure, call.hops, _no_credits)
        self._let_in(listening.account)

    def abandon(self) -> Mapping[str, int]:
        """Forget the messages that wait for room, at the broker's end; return how many they were, by route."""
        return Counter(waiting.listening.route for waiting in self._room.empty())

    def request(self, publication: Publication, give: Callable[[int], None]) -> None:
        """Publish what a request of server mode brought."""
        self._publisher.put(publication, 1, give)

    def waiting(self, call: Call, change: int) -> None:
        """Note that a call begins (+1) or ceases (-1) to wait for its next try; what is so already changes nothing."""
        if call.waits != (change > 0):
            call.waits = change > 0
            call.listening.account.wait(change)

    def try_failed(self, call: Call, code: str, message: str) -> None:
        """Note a failed try of a call that is tried until it succeeds."""
        self.trouble(call.listening.route, code, message)

    def trouble(self, route: str, code: str, message: str) -> None:
        """Note in a route's status an error that ended no call."""
        account = self.accounts.get(route)
        if account is not None and account.try_failed(code, message, self._clock()):
            self._tell_health(account)

    def served(self, report: Served) -> None:
        """Note what server mode answered."""
        self._server.served(report, self._clock())

    def stalled(self, ports: Sequence[int]) -> None:
        """Note ports that have stopped answering."""
        self._server.stalled(ports, self._clock())

    def unserved(self, process: int, ports: Mapping[int, str]) -> None:
        """Note all ports that a bridge process cannot serve, and why."""
        self._server.unserved(process, ports, self._clock())

    def refuse(self, listening: Listening, message: Message, failure: CallError, hops: int) -> None:
        """Answer a message that was not admitted: failure payload, status, and a log line a second at most."""
        text = "refused a message on %s: %s"
        self._quiet.note(logging.WARNING, listening.name, text, loggable(message.topic), failure.message)
        if listening.account.refuse(failure.code, failure.message, message.timestamp):
            self._tell_health(listening.account)
        if hops < MAX_HOPS:  # a chain ends in the log and the status: a payload could begin it anew
            self._publish_failure(listening, message, failure, hops)

    def _take(self, listening: Listening, message: Message, hops: int, since: float | None = None) -> None:
        """Admit a message, let it wait for room, or refuse it; `since` is for one that has waited already."""
        account = listening.account
        if hops >= MAX_HOPS:
            refusal: CallError | None = too_many_hops(MAX_HOPS)
        elif account.name in self._room:  # those that came before go first
            refusal = None if self._room.take(listening, message, hops, since) else overloaded(account.capacity)
        elif (refusal := account.admit()) is None:
            self._begin(listening, message, hops)
        elif self._room.take(listening, message, hops, since):
            refusal = None
        if refusal is not None:
            self.refuse(listening, message, refusal, hops)

    def _begin(self, listening: Listening, message: Message, hops: int) -> None:
        """Deal a message that is admitted."""
        key = None
        if listening.lossless and self.spool is not None:
            try:
                key = self.spool.keep(listening.route, listening.event.name, message, hops, None)
            except SpoolFull as error:
                listening.account.take_back()
                self.refuse(listening, message, disk_full(error), hops)
                return
        self._outlets.deal(Call(next(self._ids), listening, message, hops, key))

    def _let_in(self, account: RouteAccount) -> None:
        """Admit messages that wait for the room that a call has left."""
        while account.name in self._room and account.has_room:
            waiting = self._room.next(account.name)
            account.admit()
            self._begin(waiting.listening, waiting.message, waiting.hops)
            self._outlets.hurry()

    def _time_over(self, waiting: Waiting) -> None:
        self.refuse(waiting.listening, waiting.message, overloaded(waiting.listening.account.capacity), waiting.hops)

    def _show(self, watched: Watched, payload: bytes) -> None:
        watched.latest = payload
        self._outlets.show(watched.topic_filter, payload)

    def _forget(self, key: str | None) -> None:
        if key is not None and self.spool is not None:
            self.spool.forget(key)

    def _tell_health(self, account: RouteAccount) -> None:
        if self.accounts.get(account.name) is account:  # a route that is gone has no status
            self.on_health(account)

    def _publish_failure(
        self, listening: Listening, message: Message, failure: CallError, hops: int, give: _GiveCredits | None = None
    ) -> None:
        topic = failure_topic(listening.event, message)
        if topic is not None:
            payload = failure_payload(*listening.name, message.topic, message.timestamp, failure)
            self._publisher.put(Publication(topic, payload), hops + 1, give)


def _no_credits(_count: int) -> None:
    """Nobody waits for these credits."""


def _nothing(_account: RouteAccount) -> None:
    """Until somebody publishes the status, nobody minds a change of health."""
