"""Which calls a bridge process has, and which wait here until it can start them soon. The broker's loop alone.

A payload is needed here until its call has ended, whatever the bridge process does with it. So a bridge process is sent
only what is in flight (as many calls of a route as it has workers) and, over all routes, some megabytes ahead of that:
it never waits for the next small message, and no publisher can fill its memory. What waits here stays in order, and
each route goes on as its own calls end: no route ever waits for the bytes of another one.

A call that waits for its next try or its turn holds no worker, so it is not in flight. Of an ORDERED event the first
call of each topic is like any other; those behind it cannot run, so they are sent ahead or wait here, and hold up no
call of another topic.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from amqtt_rest_bridge.routing.calls import Call, CallPlace

READ_AHEAD_BYTES: Final = 8 << 20
"""Bytes that a bridge process is sent ahead of what is in flight, over all its routes."""
_CALL_BYTES: Final = 256  # what a call takes beside its payload
_LARGE: Final = 64 << 10  # a payload that waits here, not encoded, while the link has ...
MOST_UNREAD: Final = 4 << 20  # ... so many bytes that the bridge process has not read; then nothing more is dispatched
_ENDED_AT_ONCE: Final = 16  # calls that a reload has ended, in one iteration of the loop: a millisecond at most


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
        if listening.event.ordered:
            key = call.line = listening.event.name, call.message.topic
            line = flow.lines.get(key)
            if line is not None:
                return self._enter_behind(line, call)
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
        flow = self._flows[call.listening.route]
        if call.place is CallPlace.WAITING:
            if flow.active < self._workers:
                flow.active, call.place = flow.active + 1, CallPlace.ACTIVE
            else:
                self._put_ahead(flow, call)

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
        if flow.active < self._workers:
            flow.active, call.place = flow.active + 1, CallPlace.ACTIVE
            return True
        if self._ahead + size + _CALL_BYTES > READ_AHEAD_BYTES:
            return False
        self._put_ahead(flow, call)
        return True

    def _put_ahead(self, flow: _Flow, call: Call) -> None:
        flow.ahead[call.id] = call
        call.place = CallPlace.AHEAD
        self._ahead += _size(call)

    def _remove(self, call: Call, place: CallPlace) -> None:
        flow, before = self._flows[call.listening.route], call.place
        call.place = place
        if before is CallPlace.ACTIVE:
            flow.active -= 1
            if flow.ahead:
                _, first = flow.ahead.popitem(last=False)
                self._ahead -= _size(first)
                flow.active, first.place = flow.active + 1, CallPlace.ACTIVE
        elif before is CallPlace.AHEAD:
            del flow.ahead[call.id]
            self._ahead -= _size(call)
        elif before is CallPlace.BEHIND:
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

    def _enter_behind(self, line: _Line, call: Call) -> bool:
        if line.head.place is CallPlace.HELD or line.held or not self._has_room_behind(call):
            line.held.append(call)
            return False
        self._put_behind(line, call)
        return True

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
            if flow.active < self._workers:
                flow.active, line.head.place = flow.active + 1, CallPlace.ACTIVE
            else:
                self._put_ahead(flow, line.head)
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


def _size(call: Call) -> int:
    return len(call.message.payload) + _CALL_BYTES
