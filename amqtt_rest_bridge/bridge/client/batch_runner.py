"""The runner of a route with BATCH_SIZE: its calls are gathered before they start, and one of each batch starts.

`calls.batches` decides which calls go together; here are the thread that fills in their items, one a route, so that
they are gathered in order of arrival, and the timers that close batches. The first call of a batch goes the way of any
other call; its riders stay in flight for the broker process until it ends, and end with it.
"""

import threading
from functools import partial
from typing import Final

from amqtt_rest_bridge.bridge.client.route_runner import RouteContext, RouteRunner
from amqtt_rest_bridge.bridge.client.senders import Sender
from amqtt_rest_bridge.calls.batches import Gathering, carrying, halve
from amqtt_rest_bridge.calls.call import OpenCall, Step, Verdict
from amqtt_rest_bridge.model import ClientEvent, NumberedRoute

_AROUND: Final = 64  # bytes of a body beside its items, beyond the text of BODY


class BatchRunner(RouteRunner):
    """Run the calls of a route, those of events with BATCH_SIZE in batches. For the arguments see `RouteRunner`."""

    def __init__(self, numbered: NumberedRoute, sender: Sender, context: RouteContext) -> None:
        super().__init__(numbered, sender, context)
        settings = context.settings
        self._gatherings: dict[str, Gathering] = {}  # by event
        for event in numbered.route.client_events:
            if event.batch_size is not None:
                around = _AROUND + len((event.body.source if event.body else "").encode())
                most = max(1, settings.max_body_bytes - around)
                self._gatherings[event.name] = Gathering(event.batch_size, most, has_groups=settings.runs.unique_keys)
        self._gathering = threading.Lock()
        self._joins = self._new_pool("join", self._join, 1)

    def close_batches(self) -> None:
        """Begin with what waits for its batch to be closed."""
        for gathering in self._gatherings.values():
            self._close_batch(gathering, gathering.number)

    def retire(self) -> None:
        """End the present calls; what waits for its batch to be closed begins before all that comes later."""
        super().retire()
        self.close_batches()

    def stop(self) -> None:
        """Start no more requests but those of open batches, whose calls are lost unless the broker keeps them."""
        if not self._is_lossless:
            self._joins.drain()
            self._pool.drain()
            self._checks = None  # no turn of RATE_LIMIT comes any more
            self.close_batches()
        waiting = [] if self._is_lossless else self._pool.drain()
        super().stop()
        self._pool.submit(waiting)

    def _enters(self, call: OpenCall) -> bool:
        if call.riders is None and call.event.event.batch_size is not None:
            self._joins.submit((call,))
            return False
        return super()._enters(call)

    def _join(self, call: OpenCall) -> None:
        """Add a call to the open batch of its event, unless it sends nothing."""
        self._evaluate(call, call.event.join, self._gather)

    def _gather(self, call: OpenCall) -> None:
        gathering = self._gatherings[call.event.event.name]
        with self._gathering:  # also while batches start, lest a later one starts first
            was_open = None if gathering.is_empty else gathering.number
            for first in gathering.add(call):
                self._start_batch(first)
            number = gathering.number
            if not gathering.is_empty and number != was_open:
                seconds = 0.0 if self._retired else call.event.event.batch_seconds
                self._context.timers.after(seconds, partial(self._close_batch, gathering, number))

    def _close_batch(self, gathering: Gathering, number: int) -> None:
        with self._gathering:
            if not gathering.is_empty and gathering.number == number:
                self._start_batch(gathering.take(number))

    def _start_batch(self, call: OpenCall) -> None:
        if self._enters(call):
            self._start(call)

    def _run(self, call: OpenCall) -> None:
        if call.riders and self._context.calls.withdrawn:
            call = self._without_withdrawn(call)
        super()._run(call)

    def _follow(self, call: OpenCall, verdict: Verdict, also: list[int] | None = None) -> None:
        riders = call.riders or []
        if verdict.step is Step.SPLIT:
            self._split(call)
            return
        if verdict.step is Step.AGAIN or not riders:
            super()._follow(call, verdict, also or [])
            return
        call.riders = None
        shared = [(rider, call.event.share(rider, call, verdict)) for rider in riders]
        if verdict.failure is None:
            super()._follow(call, verdict, [rider.id for rider in riders])
            self._count(-len(riders))
            return
        super()._follow(call, verdict)
        for rider, own in shared:
            super()._follow(rider, own)

    def _split(self, call: OpenCall) -> None:
        """Send the halves of a batch that the server refused, of an ORDERED event one after the other."""
        second = halve(call)
        second.start = self._start
        if second.line is None:
            self._start(second)
        else:
            with self._context.lock:
                self._context.calls.precede(second)
        self._start(call)

    def _without_withdrawn(self, call: OpenCall) -> OpenCall:
        """Return the first call of a batch without those that were withdrawn, which are given back."""
        batch, withdrawn = [call, *(call.riders or ())], self._context.calls.withdrawn
        kept = [one for one in batch if one.id not in withdrawn]
        if not kept:
            for rider in batch[1:]:
                self._give_back(rider)
            call.riders = []
            return call
        first = carrying(kept, call)
        for one in batch:
            if one.id in withdrawn:
                one.line = one.riders = None
                self._give_back(one)
        return first

    def _give_back(self, call: OpenCall) -> None:
        """Return a call to the broker process; the others of its batch go on without it."""
        if call.riders:
            rest = carrying(call.riders, call)
            rest.start = self._start
            call.line = call.riders = None
            self._start(rest)
        super()._give_back(call)

    def _resume(self, call: OpenCall) -> bool:
        """Go on with a batch that waited; lossless calls are gathered again where a reload has changed their form."""
        successor = self._context.successor() if self._retired and self._is_lossless else None
        is_kept = isinstance(successor, BatchRunner) and successor._has_form_of(call)  # noqa: SLF001  # of this class
        if call.riders and self._retired and self._is_lossless and not self._stopping and not is_kept:
            riders, call.riders = call.riders, None
            with self._context.lock:
                give_back = self._context.calls.take_back(call)
            give_back()
            for rider in riders:
                self._give_back(rider)
            return False
        return super()._resume(call)

    def _has_form_of(self, call: OpenCall) -> bool:
        """Return whether the items of a call's batch are what this definition would make of its messages."""
        return any(_form(one.event) == _form(call.event.event) for one in self._events.values())

    def _take_over(self, call: OpenCall, before: RouteRunner) -> bool:
        riders = len(call.riders or ())
        self._count(riders)
        before._count(-riders)  # noqa: SLF001  # of this class
        is_taken = super()._take_over(call, before)
        if not is_taken:
            self._count(-riders)
            before._count(riders)  # noqa: SLF001  # of this class
        return is_taken


def _form(event: ClientEvent) -> tuple[object, ...]:
    return event.name, event.batch_size, event.body, event.batch_item
