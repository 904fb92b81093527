"""The calls of one bridge process: sent when it can start them soon, ended with what it reports. The broker's loop.

A payload is needed here until its call has ended, whatever the bridge process does with it. So a bridge process is sent
only what is in flight (as many calls of a route as it has workers) and, over all routes, some megabytes ahead of that:
it never waits for the next small message, and no publisher can fill its memory. What waits here stays in order, and
each route goes on as its own calls end: no route ever waits for the bytes of another one.

A call that waits for its next try or its turn holds no worker, so it is not in flight. Of an ORDERED event the first
call of each topic is like any other; those behind it cannot run, so they are sent ahead or wait here, and hold up no
call of another topic.
"""

import asyncio
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from amqtt_rest_bridge.link.broker_end import FRAME_BYTES, BrokerEnd
from amqtt_rest_bridge.link.frames import (
    INITIAL_CREDITS,
    CallResult,
    Calls,
    Claim,
    Claimed,
    CreditReturn,
    DispatchedCall,
    Publications,
    PublishOnce,
    Results,
    Returned,
    Settle,
    ToBroker,
    Waiting,
    Withdraw,
)
from amqtt_rest_bridge.processes.caller_feed import CallerFeed
from amqtt_rest_bridge.routing.calls import Call, CallPlace
from amqtt_rest_bridge.routing.server_reports import ServerReports

READ_AHEAD_BYTES: Final = 8 << 20
"""Bytes that a bridge process is sent ahead of what is in flight, over all its routes."""
_CALL_BYTES: Final = 256  # what a call takes beside its payload
_LARGE: Final = 64 << 10  # a payload that waits here, not encoded, while the link has ...
MOST_UNREAD: Final = 4 << 20  # ... so many bytes that the bridge process has not read; then nothing more is dispatched
_ENDED_AT_ONCE: Final = 16  # calls that a reload has ended, in one iteration of the loop: a millisecond at most
# Credits go back a quarter of the window at a time, or after a while: each frame wakes the bridge process, which took
# 15 % of the loop's time under full load when 64 credits or 2 ms were the measure.
_CREDIT_BATCH: Final = INITIAL_CREDITS // 4
_CREDIT_SECONDS: Final = 0.05


class BridgeCalls:
    """The link of a bridge process, and the calls that it holds.

    Args:
        sock: Of the link.
        loop: The broker's, which may not run yet.
        workers: How many calls of a route the bridge process runs at once.
        server: Where publications and claims of server mode go.
        on_frame: Called with each frame that is not about calls or publications.
        on_closed: Called when the link has been closed at the other end.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        workers: int,
        server: ServerReports,
        on_frame: Callable[[ToBroker], None],
        on_closed: Callable[[], None],
    ) -> None:
        self.open: dict[int, Call] = {}
        """Those that it holds, and those that will be sent to it when it can start them soon."""
        self.link = BrokerEnd(sock, self.handle, on_closed, self._sent)
        self.feed = CallerFeed(loop, self.link)
        """What its callers wait for."""
        self._loop = loop
        self._publisher, self._claims = server.publisher, server.claims
        self._on_frame = on_frame
        self._ahead = ReadAhead(workers, lambda: self.link.backlog, self._send, self._renew, loop.call_soon)
        self._released = 0  # credits that have not been sent yet

    def dispatch(self, calls: Sequence[Call]) -> None:
        """Send calls that it can start soon, gathered with those that follow; large ones in a frame each."""
        size = 0
        items: list[DispatchedCall] = []
        for call in calls:
            self.open[call.id] = call
            if not self._ahead.enter(call):
                continue
            if size > FRAME_BYTES:
                self.link.gather(Calls, items, size)
                size, items = 0, []
            size += len(call.message.payload)
            items.append(DispatchedCall(call.id, call.listening.number, call.message, call.key))
        if items:
            self.link.gather(Calls, items, size)

    def handle(self, frame: ToBroker) -> None:  # noqa: C901  # a case for each frame
        """Handle a frame of the bridge process."""
        match frame:
            case Results(results):
                for result in results:
                    self._end(result.call, result)
                    if result.also:  # at once, so that a store forgets all calls of a batch or none
                        shared = structs.replace(result, publication=None, evidence=None, also=[])
                        for number in result.also:
                            self._end(number, shared)
            case Publications(publications, first):
                for number, publication in enumerate(publications, first):
                    confirm = partial(self.feed.confirm, number) if first else None
                    self._publisher.put(publication, 1, self.release_credits, confirm)
            case Waiting():
                self._wait(frame)
            case Returned(call_id):
                call = self.open.pop(call_id)
                self._ahead.ended(call)
                call.reports.replay(call)
            case Claim(number, key):
                self._claims.claim(self, key, lambda answer: self.link.send(Claimed(number, answer)))
            case PublishOnce():
                self._publish_once(frame)
            case Settle(key, seconds, answer):
                self._claims.settle(key, seconds, answer)
            case _:
                self._on_frame(frame)

    def _publish_once(self, frame: PublishOnce) -> None:
        """Publish; the key was seen once that is done: a broker that is killed before it has not seen the key."""
        key, seconds, number = frame.key, frame.seconds, frame.number

        def release(count: int) -> None:
            if not number:
                self._claims.settle(key, seconds, frame.answer)
            self.release_credits(count)

        def confirm(published: bool) -> None:
            self._claims.settle(key, seconds, frame.answer if published else None)
            self.feed.confirm(number, published)

        self._claims.hand_over(key)
        self._publisher.put(frame.publication, 1, release, confirm if number else None)

    def withdraw(self) -> None:
        """Take back every call whose delivery was dropped: here at once, from the bridge process once it answers."""
        dropped = [call for call in self.open.values() if _is_dropped(call)]
        self._ahead.drop()
        sent = [call.id for call in dropped if call.place is not CallPlace.HELD or call.let_go]
        self.link.send(Withdraw(sent))

    def stop(self) -> None:
        """Send nothing more of what waits here, and end none of it."""
        self._ahead.stop()

    def close(self) -> list[Call]:
        """Return the calls that the bridge process held, which has ended."""
        self._ahead.close()
        self._claims.gone(self)
        calls, self.open = list(self.open.values()), {}
        return calls

    def _end(self, number: int, result: CallResult) -> None:
        if (call := self.open.pop(number, None)) is not None:
            self._ahead.ended(call)
            call.reports.done(call, result, self.release_credits)

    def _wait(self, frame: Waiting) -> None:
        call = self.open.get(frame.call)
        if call is None:  # it was withdrawn meanwhile
            return
        call.reports.waiting(call, frame.change, for_try=frame.for_try)
        if frame.failed is not None:
            riders = [self.open[number] for number in frame.failed.also if number in self.open]
            call.reports.try_failed([call, *riders], frame.failed)
        if frame.change > 0:
            call.let_go = frame.let_go
            self._ahead.waits(call)
        elif call.let_go:
            self._ahead.returns(call)
        else:
            self._ahead.resumes(call)

    def _send(self, call: Call) -> None:
        """Send a call that waited until it can be started."""
        dispatched = DispatchedCall(call.id, call.listening.number, call.message, call.key)
        self.link.gather(Calls, [dispatched], len(call.message.payload))

    def _renew(self, call: Call) -> bool:
        """Return whether the event of a call that waited still exists; if not, the call has ended."""
        if not call.reports.renew(call):
            del self.open[call.id]
            return False
        return True

    def release_credits(self, count: int) -> None:
        """Return credits to the bridge process, soon."""
        if not self._released:
            self._loop.call_later(_CREDIT_SECONDS, self._send_credits)
        self._released += count
        if self._released >= _CREDIT_BATCH:
            self._send_credits()

    def _send_credits(self) -> None:
        if self._released:
            count, self._released = self._released, 0
            self.link.send(CreditReturn(count))

    def _sent(self) -> None:
        self.feed.send_newest()
        self._ahead.link_has_room()


class _Line:
    """The calls of one topic of an ORDERED event: the one that may run, and those behind it, sent and not sent."""

    __slots__ = ("head", "held", "sent")

    def __init__(self, head: Call) -> None:
        self.head = head
        self.sent: deque[Call] = deque()
        self.held: deque[Call] = deque()


class _Flow:
    """The calls of one route: how many are in flight, those sent ahead, those that wait here."""

    __slots__ = ("active", "ahead", "held", "is_due", "lines")

    def __init__(self) -> None:
        self.active = 0
        self.ahead: OrderedDict[int, Call] = OrderedDict()
        self.held: deque[Call] = deque()
        self.is_due = False  # to be looked at in the next iteration of the loop
        self.lines: dict[tuple[str, str], _Line] = {}


class ReadAhead:
    """The calls of one bridge process, by route.

    Args:
        workers: How many calls of a route the bridge process runs at once.
        backlog: Returns how many bytes the bridge process has not read.
        send: Sends a call that waited here.
        renew: Called before that: returns False when a reload has removed the event, and the call has ended.
        soon: Calls something in the next iteration of the loop.
    """

    def __init__(
        self,
        workers: int,
        backlog: Callable[[], int],
        send: Callable[[Call], None],
        renew: Callable[[Call], bool],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._workers = workers
        self._backlog = backlog
        self._send = send
        self._renew = renew
        self._soon = soon
        self._flows: dict[str, _Flow] = {}
        self._ahead = 0  # bytes
        self._delayed: dict[str, None] = {}  # routes that wait for the link
        self._stopped = False

    def stop(self) -> None:
        """Send nothing more of what waits here, and end none of it."""
        self._stopped = True

    def drop(self) -> None:
        """End those that wait here and whose delivery was dropped: `renew` returns False for them."""
        for flow in self._flows.values():
            for line in flow.lines.values():
                line.held = deque(call for call in line.held if not _is_dropped(call) or self._renew(call))
            held, flow.held = flow.held, deque()
            for call in held:
                if call.let_go or not _is_dropped(call) or self._renew(call):
                    flow.held.append(call)
                elif call.line is not None:
                    self._leave_line(flow, call.line, call)

    def close(self) -> None:
        """Forget all calls: the bridge process has ended, and they go on elsewhere."""
        self._stopped = True
        self._flows.clear()
        self._delayed.clear()

    def enter(self, call: Call) -> bool:
        """Return whether a call is to be sent now; the others are sent when they can be started soon."""
        listening = call.listening
        flow = self._flows.get(listening.route)
        if flow is None:
            flow = self._flows[listening.route] = _Flow()
        call.place, call.line, call.let_go = CallPlace.HELD, None, False
        if listening.event.is_in_order and listening.event.batch_size is None:  # the bridge process orders batches
            key = call.line = listening.event.name, call.message.topic
            line = flow.lines.get(key)
            if line is not None:
                if line.head.place is CallPlace.HELD or line.held or not self._has_room_behind(call):
                    line.held.append(call)
                    return False
                self._put_behind(line, call)
                return True
            flow.lines[key] = _Line(call)
        if not flow.held and self._place(flow, call):
            return True
        flow.held.append(call)
        return False

    def waits(self, call: Call) -> None:
        """Note that a call waits for its next try or its turn, and holds no worker."""
        self._remove(call, CallPlace.WAITING)

    def resumes(self, call: Call) -> None:
        """Note that such a call is due; the bridge process has it."""
        if call.place is CallPlace.WAITING:
            self._put(self._flows[call.listening.route], call)

    def returns(self, call: Call) -> None:
        """Send such a call again, before those that wait here: the bridge process has not kept its payload."""
        flow = self._flows[call.listening.route]
        call.place = CallPlace.HELD
        flow.held.appendleft(call)
        self._pump(flow)

    def ended(self, call: Call) -> None:
        """Note the end of a call, and send those that it made room for."""
        if call.line is not None:
            self._leave_line(self._flows[call.listening.route], call.line, call)
        self._remove(call, CallPlace.HELD)

    def link_has_room(self) -> None:
        """Send what waited for the bridge process to read."""
        if not self._delayed:
            return
        delayed, self._delayed = self._delayed, {}
        for route in delayed:
            self._pump(self._flows[route])

    def _place(self, flow: _Flow, call: Call) -> bool:
        """Count a call as in flight or as ahead; return False when it has to wait here."""
        size = len(call.message.payload)
        if self._stopped:
            return False
        if size > _LARGE and self._backlog() > MOST_UNREAD:
            self._delayed[call.listening.route] = None
            return False
        if flow.active >= self._workers and self._ahead + size + _CALL_BYTES > READ_AHEAD_BYTES:
            return False
        self._put(flow, call)
        return True

    def _put(self, flow: _Flow, call: Call) -> None:
        """Count a call as in flight, or as ahead where no worker is free."""
        if flow.active < self._workers:
            flow.active, call.place = flow.active + 1, CallPlace.ACTIVE
        else:
            flow.ahead[call.id], call.place = call, CallPlace.AHEAD
            self._ahead += _size(call)

    def _remove(self, call: Call, place: CallPlace) -> None:
        flow, before = self._flows[call.listening.route], call.place
        call.place = place
        if before is CallPlace.ACTIVE:
            flow.active -= 1
            if flow.ahead:
                _, first = flow.ahead.popitem(last=False)
                self._ahead -= _size(first)
                self._put(flow, first)
        elif before in (CallPlace.AHEAD, CallPlace.BEHIND):
            flow.ahead.pop(call.id, None)
            self._ahead -= _size(call)
        if flow.held:
            self._pump(flow)

    def _pump(self, flow: _Flow) -> None:
        """Send what waits here and has room; where `renew` ends a call, others may enter meanwhile."""
        ended = 0
        while flow.held and not flow.is_due and not self._stopped:
            call = flow.held.popleft()
            if not call.let_go and not self._renew(call):
                if call.line is not None:
                    self._leave_line(flow, call.line, call)
                ended += 1
                if ended == _ENDED_AT_ONCE:
                    flow.is_due = True
                    self._soon(partial(self._go_on, flow))
            elif self._place(flow, call):
                call.let_go = False
                self._send(call)
            else:
                flow.held.appendleft(call)
                return

    def _go_on(self, flow: _Flow) -> None:
        flow.is_due = False
        self._pump(flow)

    # ORDERED events.

    def _has_room_behind(self, call: Call) -> bool:
        size = _size(call)
        return self._ahead + size <= READ_AHEAD_BYTES and not (size > _LARGE and self._backlog() > MOST_UNREAD)

    def _put_behind(self, line: _Line, call: Call) -> None:
        line.sent.append(call)
        call.place = CallPlace.BEHIND
        self._ahead += _size(call)

    def _leave_line(self, flow: _Flow, key: tuple[str, str], call: Call) -> None:
        """Start the next call of a topic: it is with the bridge process already, or is sent like any other."""
        line = flow.lines.get(key)
        if line is None or line.head is not call:
            return
        if line.sent:
            line.head = line.sent.popleft()
            self._ahead -= _size(line.head)
            self._put(flow, line.head)
        elif line.held:
            line.head = line.held.popleft()
            flow.held.append(line.head)  # sent by the end of this call, which leaves its room
        else:
            del flow.lines[key]
            return
        while line.held and line.head.place is not CallPlace.HELD and self._has_room_behind(line.held[0]):
            behind = line.held.popleft()
            if not self._renew(behind):
                return  # the next ones with the next end of a call
            self._put_behind(line, behind)
            self._send(behind)


def _is_dropped(call: Call) -> bool:
    return call.delivery is not None and call.delivery.is_dropped


def _size(call: Call) -> int:
    return len(call.message.payload) + _CALL_BYTES
