"""The life of a call, in the order in which it happens: offered, admitted, its turn, its attempts, its end.

A call with a place is a task. A route has `workers` places; a call has one from the building of its request until the
broker has acknowledged the result. A call that waits is an entry of a queue: for room, for a place, behind another call
of its line, in an open batch, for a turn of RATE_LIMIT, for its target, for its next attempt.

A call runs by the definition of its event that is in use when its first attempt begins. A lossless call, which may be
tried without end, uses the present definition at each attempt.
"""

import asyncio
import itertools
import logging
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

from msgspec import Struct, field

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.admission import AT_ONCE, Outside
from amqtt_rest_bridge.engine.event import PreparedEvent, PreparedRoute
from amqtt_rest_bridge.engine.needs import Delivery, Host
from amqtt_rest_bridge.engine.outcome import FailureQueue, Outcomes, note_attempt
from amqtt_rest_bridge.engine.results import failure_publication
from amqtt_rest_bridge.engine.stages import Call, HeldError, Step, Verdict
from amqtt_rest_bridge.engine.stages.batch import Batches, carrying, halve
from amqtt_rest_bridge.engine.stages.breaker import Breaker
from amqtt_rest_bridge.engine.stages.order import Order, OrderLease
from amqtt_rest_bridge.engine.statistics import RouteStatistics
from amqtt_rest_bridge.engine.turns import Turns
from amqtt_rest_bridge.errors import CallError, FailureCode, PublicationRefusedError
from amqtt_rest_bridge.lot.model import HttpResponse, Message, Publication, RunKey

log = logging.getLogger(__name__)

MAX_HOPS: Final = 8
"""Routes that a message may go through, one after the other."""
_LOOKED_AT_TOGETHER: Final = 32
_QUICKLY_PARSED: Final = 16 << 10  # bytes
_SHORT_SECONDS: Final = 0.001
_REMOVED: Final = "the message waited for its turn when its route or event was removed; it was not sent"
_MOST_MARKS: Final = 250  # messages of a batch that its result is said to end: MQTT's user properties have a bound


class Common(Struct, eq=False):
    """What the calls of all routes share."""

    host: Host
    outcomes: Outcomes
    failures: FailureQueue
    lease: OrderLease
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class RouteCalls:
    """The calls of one route, including those that run by an earlier definition of it.

    Args:
        definition: The present definition of the route.
        statistics: The statistics of the route, with its admission.
        common: What the calls of all routes share.
    """

    def __init__(self, definition: PreparedRoute, statistics: RouteStatistics, common: Common) -> None:
        clock, limits = common.host.clock, common.host.limits
        self.definition = definition
        self.statistics = statistics
        self.name = statistics.name
        self._common = common
        self._clock = clock
        self._most_bytes = limits.max_message_bytes
        self._outcomes = common.outcomes
        self._admission = statistics.admission
        self._open: dict[int, Call] = {}  # admitted and not ended, by number
        self._is_stopping = False
        self._resume = self._queue
        # Where calls wait: for room, behind others of their line, to be looked at, in a batch, for a place, a target.
        self._outside = Outside(self._admission, self._arrive, self.refuse, clock)
        self._order = Order()
        self._arrivals: deque[Call] = deque()
        self._is_looking = False
        self._parsing = asyncio.Lock()
        self._batches = Batches(limits.max_body_bytes, clock, self._line_up, has_groups=common.host.keys_have_groups)
        self._turns = Turns(self._admission, common.lease, clock, self._begin)
        self._breaker: Breaker | None = None
        self.use(definition)

    # Offered, and admitted.

    def offer(
        self, event: str, message: Message, hops: int, delivery: Delivery | None, retry_of: str | None = None,
        size: int = 0,
    ) -> RunKey:  # fmt: skip
        """Make a call of a message for an event: the call is admitted, waits for room, or is refused.

        The delivery is held until the call has ended. Returns the key from which the id of the run is made.
        """
        call = self._make(event, message, hops, delivery, size)
        call.retry_of = retry_of
        self._admit(call)
        return call.run

    def fail(self, event: str, message: Message, hops: int, delivery: Delivery | None, failure: CallError) -> None:
        """End a message with a failure that its source has found: it was refused, or admitted by a bridge that died."""
        call = self._make(event, message, hops, delivery)
        if failure.code is FailureCode.BRIDGE_RESTARTED:
            self._admission.take(call.size)
            self._end_now(call, call.event.fail(call, failure))
        else:
            self.refuse(call, failure)

    def _make(self, event: str, message: Message, hops: int, delivery: Delivery | None, size: int = 0) -> Call:
        """Return a call of a message, which holds its delivery."""
        if delivery is not None:
            delivery.hold()
        size, number = max(size, len(message.payload)), next(self._common.numbers)
        return Call(number, self._resume, self.definition.events[event], message, size, hops, delivery)

    def _admit(self, call: Call) -> None:
        delivery, failure = call.delivery, None
        if call.hops >= MAX_HOPS:
            went = f"the message went through {MAX_HOPS} routes one after the other and was not passed on"
            failure = catalogue.TOO_MANY_HOPS.error(went)
        elif call.size > self._most_bytes:
            what = f"the message has {call.size} bytes, max_message_bytes allows {self._most_bytes}"
            failure = catalogue.MESSAGE_TOO_LARGE.error(what)
        elif delivery is not None and (call.event.is_lossless or delivery.is_bounded):
            self._admission.take(call.size)
        else:
            failure = self._admission.admit(call.size)
            if failure is not None and self._outside.accept(call):
                return
        if failure is None:
            self._arrive(call)
        else:
            self.refuse(call, failure)

    def refuse(self, call: Call, failure: CallError) -> None:
        """End a call that was not admitted."""
        self._outcomes.refused(call, failure, self.statistics)
        event, publication = call.event, None
        if call.hops < MAX_HOPS:  # a loop of routes ends here: a failure payload could start it again
            # Without room for the message the failure is published without it. A message that is too large for a call
            # is too large for its failure, too.
            for has_payload in (failure.code is not FailureCode.PAYLOAD_TOO_LARGE, False):
                publication = failure_publication(
                    event.run_id(call), event.name, event.event, call.message, failure, has_payload=has_payload
                )
                if publication is None or self._common.failures.has_room(len(publication.payload)):
                    break
                publication = None
        self._publish_later(call, publication)

    # It waits for its turn.

    def _arrive(self, call: Call) -> None:
        """Queue a call that was admitted."""
        self._open[call.number] = call
        if call.delivery is not None and (call.event.is_lossless or call.delivery.has_key):
            call.key = call.delivery.key(call.name)
        elif call.event.is_lossless:
            call.key = str(uuid.uuid4())
        if call.event.event.batch_size is None:
            self._line_up(call)
        else:
            self._look_at(call)

    def _line_up(self, call: Call) -> None:
        """Queue a call. A call of an ORDERED event waits first until those before it in its line have ended."""
        if not call.event.is_in_order or self._order.enter(call, is_batch=call.item is not None):
            self._queue(call)

    def _queue(self, call: Call) -> None:
        """Queue a call for its turn. With RATE_LIMIT look at the call first: one that sends nothing takes no turn."""
        if call.has_ended or self._is_stopping:
            return
        if self._turns.pace is not None and call.item is None:
            self._look_at(call)
        else:
            self._turns.wait(call)

    def _look_at(self, *calls: Call) -> None:
        """Queue calls for `_look`, which takes them one after the other."""
        self._arrivals.extend(calls)
        if not self._is_looking:
            self._is_looking = True
            self._start(self._look_at_arrivals())

    async def _look_at_arrivals(self) -> None:
        number = 0
        while self._arrivals:
            call = self._arrivals.popleft()
            if not call.has_ended and not self._is_stopping:
                await self._look(call)
                number += 1
                if number % _LOOKED_AT_TOGETHER == 0:
                    await asyncio.sleep(0)
        self._is_looking = False

    async def _look(self, call: Call) -> None:
        """Find out whether a call sends a request: it waits for its turn or joins a batch if so, and ends if not."""
        is_of_batch = False
        try:
            verdict = self._rebind(call)
            is_of_batch = call.event.event.batch_size is not None
            if verdict is None:
                verdict = await self._take(call, call.event.join if is_of_batch else call.event.begin)
        except HeldError:
            return
        except Exception:
            log.exception("%s: unexpected error", call.event.label)
            verdict = call.event.fail_unexpectedly(call)
        if call.has_ended:  # its source has taken the message back meanwhile
            return
        if verdict is not None:
            self._end_now(call, verdict)
        elif is_of_batch:
            self._batches.add(call)
        else:
            call.discard_request()
            call.has_begun = call.has_begun or not call.has_payload
            self._turns.wait(call)

    # It has a place: an attempt, and what follows.

    def _begin(self, call: Call) -> None:
        self._start(self._run_all(call))

    async def _run_all(self, call: Call) -> None:
        """Run a call, and then one after the other those that get its place."""
        following: Call | None = call
        while following is not None:
            call = following
            await self._run(call)
            if not call.attempted:  # it has sent nothing, so that nothing else had its turn meanwhile
                await asyncio.sleep(0)
            following = self._turns.take()

    async def _run(self, call: Call) -> None:
        """Build the request of a call, send it and act on the reply: end the call, try it again, or halve its batch.

        The place of the call is free before another attempt is queued.
        """
        try:
            verdict = self._rebind(call) or await self._take(call, call.event.begin)
            if verdict is None:
                call.has_begun = True
                is_up = self._breaker is None or self._breaker.passes(call)
                verdict = await self._attempt(call) if is_up else self._without_target(call, self._breaker)
            if verdict.step is not Step.AGAIN and verdict.step is not Step.SPLIT:
                await self._end(call, verdict)
        except HeldError:
            return  # the stage or source that keeps the call puts it back into the queue
        except Exception:
            log.exception("%s: unexpected error", call.event.label)
            if not call.has_ended:
                self._end_now(call, call.event.fail_unexpectedly(call))
            return
        finally:
            if self._breaker is not None:
                self._breaker.left(call)
            self._turns.leave(call)
        if call.has_ended or self._drop(call):
            return
        if verdict.step is Step.AGAIN:
            self._try_again(call, verdict)
        else:
            self._split(call, verdict)

    def _rebind(self, call: Call) -> Verdict | None:
        """Use the present definition for a call; one that has begun keeps its own, unless it is lossless.

        Returns None, or the verdict that ends a call whose event a reload has removed.

        Raises:
            HeldError: The call does not go on here. A lossless call of a removed event is left to its source. A batch
                whose items have changed is gathered again.
        """
        before = call.event
        present = self.definition.events.get(before.event.name)
        if present is before or (call.has_begun and not before.is_lossless):
            return None
        before.give_up(call)
        if present is None:
            if before.is_lossless and call.delivery is not None:
                for one in call.batch:
                    self._give_up(one)
                raise HeldError
            return before.fail(call, catalogue.ROUTE_REMOVED.error(_REMOVED))
        batch, is_as_before = call.batch, form_of(present) == form_of(before)
        for one in batch:
            one.event = present
        if call.item is None or is_as_before:
            return None
        self._scatter(call)
        raise HeldError

    async def _take(self, call: Call, step: Callable[[Call], Verdict | None]) -> Verdict | None:
        """Run a step that may parse the payload of a call: `begin` or `join` of its event.

        Steps with large payloads run one at a time for each route. A slow step is followed by a pause of the same
        length, so that other routes get half of the loop's time.
        """
        if call.size < _QUICKLY_PARSED:
            return step(call)
        async with self._parsing:
            began = self._clock.monotonic()
            verdict = step(call)
            spent = self._clock.monotonic() - began
            if spent > _SHORT_SECONDS:
                await self._clock.sleep(spent)
        return verdict

    async def _attempt(self, call: Call) -> Verdict:
        """Send the request of a call, with redirects and repetitions; return the verdict on the reply."""
        event, built, client = call.event, call.built, call.event.client
        if built is None or client is None:
            raise AssertionError("a call is sent by its definition, once its request is built")
        pace = self._turns.pace
        turn = None if pace is None else partial(pace.take_turn, call)
        call.attempted, call.paused, began = call.attempted + 1, 0.0, self._clock.monotonic()
        reply: HttpResponse | CallError
        try:
            reply = await client.send(built.request, turn=turn)
            took = reply.elapsed
        except CallError as error:
            reply, took = error, self._clock.monotonic() - began - call.paused
        call.took += took
        if self._breaker is not None:
            self._breaker.replied(call, reply)
        verdict = event.judge(call, reply)
        note_attempt(call, verdict, self._clock.time(), took)
        return verdict

    def _without_target(self, call: Call, breaker: Breaker | None) -> Verdict:
        """Keep a lossless call, or one that was tried before, until the target is up; fail any other one."""
        if call.event.is_lossless or call.attempted:
            call.discard_request()
            if breaker is not None:
                breaker.hold(call)
            raise HeldError
        return call.event.fail(call, catalogue.BREAKER_OPEN.error("the target of the route is down"))

    def _try_again(self, call: Call, verdict: Verdict) -> None:
        """Queue a call again when it is time for its next attempt."""
        when = f"retry in {verdict.seconds:.1f} s"
        if self._breaker is not None and self._breaker.hold(call):
            when = "retry by the breaker"  # which has its own time between two probes
        else:
            self._clock.later(verdict.seconds, partial(self._queue, call))
        self._outcomes.attempt_failed(call, verdict, self.statistics, when)

    def _split(self, call: Call, verdict: Verdict) -> None:
        """Queue the halves of a batch that was refused. Those of an ORDERED event run one after the other."""
        self._outcomes.attempt_failed(call, verdict, self.statistics, "its halves are sent")
        second = halve(call)
        self._queue(call)
        if second.line is None:
            self._queue(second)
        else:
            self._order.precede(second)

    async def _end(self, call: Call, verdict: Verdict) -> None:
        """Count a call that has ended, and those that it carries; publish its result; release its message."""
        (_, *riders) = self._count(call, verdict)
        if verdict.publication is not None:
            ended = [call, *(rider for rider, own in riders if own.publication is None)][:_MOST_MARKS]
            marks = filter(None, [one.delivery.mark(one.name) for one in ended if one.delivery is not None])
            publish, mark = self._common.host.publisher.publish, ",".join(marks)
            try:
                await publish(verdict.publication, hops=call.hops + 1, route=self.name, mark=mark)
            except PublicationRefusedError as refused:
                self._outcomes.not_published(call.name, refused)
        self._close(call, None)
        for rider, own in riders:
            self._close(rider, own.publication)

    def _end_now(self, call: Call, verdict: Verdict) -> None:
        """End a call at once, without a place; its failure, if any, is published later."""
        for one, own in self._count(call, verdict):
            self._close(one, own.publication)

    def _count(self, call: Call, verdict: Verdict) -> list[tuple[Call, Verdict]]:
        """Count a call that has ended and those that it carries; return each with its verdict."""
        ended = [(call, verdict), *call.event.share(call, verdict)]
        for one, own in ended:
            self._outcomes.ended(one, own, self.statistics)
        return ended

    def _close(self, call: Call, publication: Publication | None) -> None:
        """Free the room of a call that has ended; release its message once its failure, if any, is published."""
        self._publish_later(call, publication)
        self._free(call)

    def _publish_later(self, call: Call, publication: Publication | None) -> None:
        """Queue a publication that needs no place of the route; release the message of the call after it."""
        if publication is not None:
            self._common.failures.put(publication, call.hops + 1, call.name, call.delivery)
        elif call.delivery is not None:
            call.delivery.release()

    def _free(self, call: Call) -> None:
        """Free the room of a call that has ended, and let calls that wait for it go on."""
        call.has_ended = True
        call.riders = call.carrier = None
        self._open.pop(call.number, None)
        self._admission.release(call.size)
        if call.line is not None and not call.is_behind:
            self._leave_line(call.line)
        if self._admission.outside:
            self._outside.look()
        if call.event.client is not self.definition.client and call.event.client is not None:
            call.event.client.close()  # of a definition that a reload has replaced

    def _leave_line(self, line: str) -> None:
        following = self._order.leave(line)
        if following is not None:
            self._queue(following)

    # What reloads, groups and the end of the bridge ask for.

    def use(self, definition: PreparedRoute) -> None:
        """Run calls by another definition from now on. A definition without events ends the calls that wait."""
        before, self.definition = self.definition, definition
        config = definition.route.route_config
        self._turns.use(config.rate_limit)
        if self._breaker is None and config.breaker is not None:
            self._breaker = Breaker(self._clock, self._breaker_changed)
            self._breaker.share(self._turns.workers)
        if self._breaker is not None:
            self._breaker.change(definition.route.config.server, config.breaker)
        if before.client is not definition.client and before.client is not None:
            before.client.close()
        for name, batch in self._batches.by_event.items():
            present = definition.events.get(name)
            if present is None or form_of(present) != form_of(batch[0].event):
                self._batches.close(name)
        removed = []
        for call in self._outside.empty():
            present = definition.events.get(call.event.event.name)
            if present is None:
                removed.append(call)
            else:
                call.event = present
                self._admit(call)
        if removed:
            self._start(self._refuse_removed(removed))

    async def _refuse_removed(self, calls: list[Call]) -> None:
        for number, call in enumerate(calls):
            self.refuse(call, catalogue.ROUTE_REMOVED.error(_REMOVED))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    def share(self, workers: int) -> None:
        """Share RATE_LIMIT and the probes of a target that is down with other workers."""
        self._turns.share(workers)
        if self._breaker is not None:
            self._breaker.share(workers)

    def withdraw(self) -> None:
        """Drop waiting calls whose source has taken the message back; close open batches."""
        for call in self._outside.remove(is_taken_back):
            if call.delivery is not None:
                call.delivery.abandon()
        waiting = [call for call in self._open.values() if not call.has_place and call.carrier is None]
        for call in waiting:
            for one in call.batch:
                one.has_ended = is_taken_back(one)  # for all calls first: dropping one may queue another
        for call in waiting:
            self._drop(call)
        for name in self._batches.by_event:
            self._batches.close(name)

    def _drop(self, call: Call) -> bool:
        """Drop the calls of a batch whose source has taken the message back.

        Returns whether the given call is one of them; then another call carries the rest of the batch.
        """
        dropped = [one for one in call.batch if is_taken_back(one)]
        kept = [one for one in call.batch if one not in dropped]
        if call in dropped and kept:  # another call carries the rest
            first = carrying(kept, call)
            if call.is_behind:
                self._order.replace(call, first)
            else:
                self._queue(first)
            call.line = call.riders = None
        elif dropped and kept:
            carrying(kept, call)
        for one in dropped:
            self._give_up(one)
        return call in dropped

    def _give_up(self, call: Call) -> None:
        """Forget a call that has not begun, or waits for its next attempt: its source keeps the message."""
        call.event.give_up(call)
        self._outcomes.retried_no_more(call, self.statistics)
        if call.delivery is not None:
            call.delivery.abandon()
        self._free(call)

    def _scatter(self, call: Call) -> None:
        """Take a batch apart and gather its calls again, since the present definition makes other items of them."""
        batch, line = call.batch, call.line
        for one in batch:
            one.item = one.riders = one.carrier = one.line = None
            one.has_begun = False
        self._arrivals.extendleft(reversed(batch))  # before calls that came later
        self._look_at()
        if line is not None:
            self._leave_line(line)

    def stop(self) -> None:
        """Begin no more calls except for open batches, which are sent now. Lossless ones stay with their source."""
        self._turns.clear()
        for name, batch in self._batches.by_event.items():
            if not batch[0].event.is_lossless:
                self._batches.close(name)
        self._is_stopping = True

    @property
    def is_idle(self) -> bool:
        """Return whether no message waits, no call runs, and the next request may leave at once."""
        return not self._open and not self._admission.outside and self._turns.is_due

    def left(self) -> tuple[int, int]:
        """Return how many messages are lost if the bridge ends now, and how many their source keeps."""
        calls = [*self._open.values(), *self._outside.empty()]
        kept = sum(call.delivery is not None and call.delivery.is_bounded for call in calls)
        return len(calls) - kept, kept

    def _breaker_changed(self, reason: str | None) -> None:
        log.warning("route %s: %s", self.name, reason or "the target answers again, the breaker is closed")
        self.statistics.note_breaker(reason)
        self._outcomes.noted(self.statistics)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        tasks = self._common.tasks
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def is_taken_back(call: Call) -> bool:
    """Return whether the source of a call has taken its message back."""
    return call.delivery is not None and call.delivery.is_dropped


def form_of(event: PreparedEvent) -> tuple[object, ...]:
    """Return the settings that shape the items of a batch. A batch stays together while they are unchanged."""
    own = event.event
    return own.batch_size, own.body, own.batch_item
