"""The life of a call, from top to bottom: offered, admitted, its turn, its attempts, its end.

    offer -> _admit -> _queue_admitted -> _queue_for_place -> _run: _attempt -> result published, message released
                |                                ^                     |
                v refuse                         +---- _try_again <----+

A route has `workers` places. A call with a place is a task (`_run`): it has the place from the building of its request
until the broker has acknowledged the result. A call without a place is an entry of one queue, not a task: it waits for
room, for the calls before it in its line (ORDERED), for its examination, for its batch, for a place, for a target that
is down, or for the time of its next attempt. Then it comes to `_queue_for_place` again. Once a batch is closed, a
`Batch` goes this way in place of its calls.

A call ends in one of three ways. Most have a verdict: `_run` ends them, or `_end_without_place` where they send
nothing. `refuse` ends a call that was not admitted; `_leave_to_source` one whose source delivers the message again.

A call runs by the definition of its event that is in use when its first attempt begins. A lossless call, which may be
tried without end, uses the present definition at each attempt.
"""

import asyncio
import itertools
import logging
import math
import uuid
from collections import deque
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final

from msgspec import Struct, field

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.event import Attempts, Batch, Call, HeldError, PreparedRoute, Verdict
from amqtt_rest_bridge.engine.failure_queue import FailureQueue
from amqtt_rest_bridge.engine.needs import Delivery, Host, Outcome
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.stages.batch import Batches, batch_of, halve
from amqtt_rest_bridge.engine.stages.breaker import Breaker
from amqtt_rest_bridge.engine.stages.order import Order
from amqtt_rest_bridge.engine.stages.overload import REFUSED_AT_ONCE, RoomQueue
from amqtt_rest_bridge.engine.stages.rate_limit import Pace
from amqtt_rest_bridge.engine.statistics import RouteStatistics
from amqtt_rest_bridge.errors import CallError, FailureCode, PublicationRefusedError
from amqtt_rest_bridge.lot.model import HttpResponse, Message, RunKey

log = logging.getLogger(__name__)

MAX_HOPS: Final = 8
"""Routes that a message may go through, one after the other."""
_EXAMINED_TOGETHER: Final = 32  # calls, before other tasks have their turn
_QUICKLY_PARSED: Final = 16 << 10  # bytes of a payload; a smaller one is parsed at once
_SHORT_SECONDS: Final = 0.001  # a payload that takes longer to parse is followed by a pause
_REMOVED: Final = "the message waited for its turn when its route or event was removed; it was not sent"


class SharedByRoutes(Struct, eq=False):
    """What the calls of all routes share."""

    host: Host
    outcomes: Outcomes
    failure_queue: FailureQueue
    ordered_until: float = math.inf  # monotonic time until which ORDERED calls may begin here, and on no other worker
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # of the next calls
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # calls with a place, and examinations


class RouteCalls:
    """The calls of one route, including those that run by an earlier definition of it.

    Args:
        definition: The present definition of the route.
        statistics: The statistics of the route, with its admission.
        shared: What the calls of all routes share.
    """

    def __init__(self, definition: PreparedRoute, statistics: RouteStatistics, shared: SharedByRoutes) -> None:
        host = shared.host
        self.definition = definition
        self.statistics = statistics
        self.name = statistics.name
        self._shared = shared
        self._clock = host.clock
        self._outcomes = shared.outcomes
        self._admission = statistics.admission
        self._unended: dict[int, Call] = {}  # admitted and not ended, by number
        self._workers = 1  # workers that share RATE_LIMIT and probes, including this one
        self._is_stopping = False
        self._is_examining = False
        self._parsing = asyncio.Lock()
        # Where calls wait. RATE_LIMIT and BREAKER delay nothing any more if a reload has removed the setting.
        self._room_queue = RoomQueue(self._admission, host.clock, self.refuse)  # for room
        self._order = Order()  # for the call before them in their line
        self._ordered_waiting: list[Call] = []  # for a time when ORDERED calls may begin
        self._unexamined: deque[Call] = deque()  # to be examined
        self._batches = Batches(  # for their batch
            host.limits.max_body_bytes, host.clock, self._queue_batch, has_groups=host.keys_have_groups
        )
        self._place_queue: deque[Call] = deque()  # for a place
        self._pace: Pace | None = None  # for a turn of RATE_LIMIT
        self._breaker: Breaker | None = None  # for a target that is down
        self.use(definition)

    # Offered, and admitted.

    def offer(
        self, event: str, message: Message, hops: int, delivery: Delivery | None, retry_of: str | None = None,
        size: int = 0,
    ) -> RunKey:  # fmt: skip
        """Make a call of a message for an event: the call is admitted, waits for room, or is refused.

        The delivery is held until the call has ended. `size` is the size of the message in bytes; the length of the
        payload counts if that is more. Returns the key from which the id of the run is made.
        """
        call = self._make_call(event, message, hops, delivery, size)
        call.retry_of = retry_of
        self._admit(call)
        return call.run_key

    def fail(self, event: str, message: Message, hops: int, delivery: Delivery | None, failure: CallError) -> None:
        """End a message with a failure that its source found: it was refused, or a bridge that had admitted it died."""
        call = self._make_call(event, message, hops, delivery, 0)
        if failure.code is FailureCode.BRIDGE_RESTARTED:
            self._admission.hold(call.size)
            self._end_without_place(call, call.event.fail(call, failure))
        else:
            self.refuse(call, failure)

    def _make_call(self, event: str, message: Message, hops: int, delivery: Delivery | None, size: int) -> Call:
        if delivery is not None:
            delivery.hold()
        size, number = max(size, len(message.payload)), next(self._shared.numbers)
        return Call(number, self._queue_for_place, self.definition.events[event], message, size, hops, delivery)

    def _admit(self, call: Call) -> None:
        """Admit a call, queue it for room, or refuse it.

        A call is always admitted if its source bounds what it sends (`Delivery.is_bounded`), or keeps it on disk.
        """
        delivery, failure = call.delivery, None
        if call.hops >= MAX_HOPS:
            message = f"the message went through {MAX_HOPS} routes one after the other and was not passed on"
            failure = catalogue.TOO_MANY_HOPS.error(message)
        elif call.size > (most := self._shared.host.limits.max_message_bytes):
            message = f"the message has {call.size} bytes, max_message_bytes allows {most}"
            failure = catalogue.MESSAGE_TOO_LARGE.error(message)
        elif delivery is not None and (call.event.is_lossless or delivery.is_bounded):
            self._admission.hold(call.size)
        else:
            failure = self._admission.admit(call.size)
            if failure is not None and self._room_queue.add(call):
                return
        if failure is None:
            self._queue_admitted(call)
        else:
            self.refuse(call, failure)

    def refuse(self, call: Call, failure: CallError) -> None:
        """End a call that was not admitted."""
        self._outcomes.note_refusal(call, failure, self.statistics)
        if call.hops < MAX_HOPS:
            self._shared.failure_queue.put_refusal(call, failure)
        elif call.delivery is not None:  # a loop of routes ends here: a failure payload could start it again
            call.delivery.release()

    # It waits for a place.

    def _queue_admitted(self, call: Call) -> None:
        """Queue a call that was admitted: in its line if its event is ORDERED, for its batch if it has BATCH_SIZE."""
        self._unended[call.number] = call
        if call.delivery is not None and (call.event.is_lossless or call.delivery.has_key):
            call.key = call.delivery.key(call.name)
        elif call.event.is_lossless:
            call.key = str(uuid.uuid4())
        if call.event.event.batch_size is not None:
            self._examine(call)
        elif not call.event.is_in_order or self._order.enter(call):
            self._queue_for_place(call)

    def _queue_for_place(self, call: Call) -> None:
        """Queue a call for a place. With RATE_LIMIT it is examined first: if it sends nothing, it takes no turn."""
        if call.has_ended or self._is_stopping:
            return
        if self._pace is not None and not isinstance(call, Batch):
            self._examine(call)
        else:
            self._place_queue.append(call)
            self._give_places()

    def _examine(self, call: Call) -> None:
        """Find out, in a task that takes one call after the other, whether a call sends a request."""
        self._unexamined.append(call)
        self._start_examining()

    def _start_examining(self) -> None:
        if not self._is_examining:
            self._is_examining = True
            self._start(self._examine_waiting())

    async def _examine_waiting(self) -> None:
        """Queue each call for a place or add it to a batch; end it if it sends no request."""
        for number in itertools.count(1):
            if number % _EXAMINED_TOGETHER == 0:
                await asyncio.sleep(0)
            if not self._unexamined:
                break
            call = self._unexamined.popleft()
            if call.has_ended or self._is_stopping:
                continue
            try:
                verdict = self._use_present_definition(call) or await self._build(call)
            except HeldError:
                continue
            except Exception:
                log.exception("%s: unexpected error", call.event.label)
                verdict = call.event.fail_unexpectedly(call)
            if call.number not in self._unended:  # meanwhile its source has dropped the message
                continue
            if verdict is not None:
                self._end_without_place(call, verdict)
            elif call.event.event.batch_size is not None and call.line is None:
                self._batches.add(call)
            else:  # also a call with a line, which it entered before a reload added BATCH_SIZE: it is sent alone
                call.discard_request()
                if not call.has_payload:  # no other definition could build its request again
                    call.has_begun = True
                self._place_queue.append(call)
                self._give_places()
        self._is_examining = False

    def _queue_batch(self, calls: list[Call]) -> None:
        """Queue a batch in the place of its calls."""
        batch = batch_of(calls)
        for call in calls:
            del self._unended[call.number]
        self._unended[batch.number] = batch
        if not batch.event.is_in_order or self._order.enter(batch):
            self._queue_for_place(batch)

    def _give_places(self) -> None:
        """Begin waiting calls, the first of the queue first, while there are free places: each becomes a task."""
        admission, waiting = self._admission, self._place_queue
        while waiting and admission.in_flight < admission.places:
            call = waiting[0]
            if call.has_ended:
                waiting.popleft()
            elif call.line is not None and self._clock.monotonic() >= self._shared.ordered_until:
                self._ordered_waiting.append(waiting.popleft())
            elif self._pace is not None and not self._pace.give_turn(call):
                break  # `_pace` calls this method when the turn comes
            else:
                waiting.popleft()
                call.has_place = True
                admission.in_flight += 1
                self._start(self._run(call))

    # It has a place: an attempt, and what follows.

    async def _run(self, call: Call) -> None:
        """Make an attempt of a call: then publish its result and release its message, or queue it for another attempt.

        A call is counted before its result is published. It has its place until the broker has acknowledged that, and
        none while it waits for another attempt.
        """
        verdict = None
        try:
            verdict = await self._attempt(call)
            if verdict.outcome is not Outcome.RETRYING:
                ended = self._count_end(call, verdict)
                if verdict.publication is not None:
                    publish = self._shared.host.publisher.publish
                    try:
                        await publish(verdict.publication, hops=call.hops + 1, route=self.name, mark=call.mark)
                    except PublicationRefusedError as refused:
                        self._outcomes.note_unpublished(call.name, refused)
                self._release_all(call, ended, published=verdict)
        except HeldError:
            pass  # the stage or source that keeps the call puts it back into the queue
        except Exception:
            log.exception("%s: unexpected error", call.event.label)
            if not call.has_ended:
                self._end_without_place(call, call.event.fail_unexpectedly(call))
        finally:
            call.has_place = False
            self._admission.in_flight -= 1
            if self._pace is not None:
                self._pace.return_turn(call)
            if self._breaker is not None:
                self._breaker.return_probe(call)
        if verdict is not None and not call.has_ended:
            self._try_again(call, verdict)
        self._give_places()

    async def _attempt(self, call: Call) -> Verdict:
        """Build the request of a call and send it, with redirects and repetitions; return the verdict on the reply.

        A call that sends nothing has its verdict before: it is skipped or fails.

        Raises:
            HeldError: The call has to wait: for the claim of another call on its DEDUPE_KEY, or for a target that is
                down. While the target is down, a call without any attempt so far fails, unless it is lossless.
        """
        verdict = self._use_present_definition(call) or await self._build(call)
        if verdict is not None:
            return verdict
        call.has_begun = True
        event, request, client, attempts = call.event, call.request, call.event.client, call.attempts
        if request is None or client is None:
            raise AssertionError("a call is sent by its definition, once its request is built")
        breaker, pace = self._breaker, self._pace
        if breaker is not None and not breaker.passes(call):
            if not event.is_lossless and not attempts.count:
                return event.fail(call, catalogue.BREAKER_OPEN.error("the target of the route is down"))
            call.discard_request()
            breaker.hold(call)
            raise HeldError
        turn = None if pace is None else partial(pace.wait_for_turn, call)
        if call.calls[0].is_retried:
            self.statistics.retried += 1
        attempts.count += 1
        attempts.paused = 0.0
        began = self._clock.monotonic()
        reply: HttpResponse | CallError
        try:
            reply = await client.send(request, turn=turn)
            took = reply.elapsed
        except CallError as error:
            reply, took = error, self._clock.monotonic() - began - attempts.paused
        if breaker is not None:
            breaker.note_reply(call, reply)
        verdict = event.judge(call, reply)
        attempts.note(verdict, self._clock.time(), took)
        return verdict

    def _use_present_definition(self, call: Call) -> Verdict | None:
        """Use the present definition for a call that has not begun, or is lossless; any other call keeps its own.

        Returns None, or the verdict that ends the call if a reload has removed its event.

        Raises:
            HeldError: The call does not go on: a lossless call of a removed event is left to its source, and a batch
                whose items have another form now is gathered again.
        """
        before = call.event
        present = self.definition.events.get(before.event.name)
        if present is before or (call.has_begun and not before.is_lossless):
            return None
        before.forget(call)
        if present is None:
            if before.is_lossless and call.calls[0].delivery is not None:
                self._leave_to_source(call, call.calls)
                raise HeldError
            return before.fail(call, catalogue.ROUTE_REMOVED.error(_REMOVED))
        for one in (call, *call.calls):
            one.event = present
        if isinstance(call, Batch) and present.batch_form != before.batch_form:
            self._gather_again(call)
            raise HeldError
        return None

    def _gather_again(self, batch: Batch) -> None:
        """Take a batch apart: the items of its calls are made again, for other batches or a request of each."""
        self._close(batch)
        for call in batch.calls:
            self._unended[call.number] = call
            call.item, call.attempts = None, Attempts()
        self._unexamined.extendleft(reversed(batch.calls))  # before calls that came later
        self._start_examining()

    async def _build(self, call: Call) -> Verdict | None:
        """Build the request of a call, or its item of a batch that it waits for; both may parse the payload.

        Returns None, or the verdict on a call that sends nothing. Large payloads are parsed one at a time for each
        route. A slow one is followed by a pause of the same length, so that other routes get half of the loop's time.
        """
        is_item = not call.has_place and call.event.event.batch_size is not None
        build = call.event.make_item if is_item else call.event.build
        if call.size < _QUICKLY_PARSED:
            return build(call)
        async with self._parsing:
            began = self._clock.monotonic()
            verdict = None if call.has_ended else build(call)  # a claim of a dropped call would never end
            spent = self._clock.monotonic() - began
            if spent > _SHORT_SECONDS:
                await self._clock.sleep(spent)
        return verdict

    def _try_again(self, call: Call, verdict: Verdict) -> None:
        """Queue a call for its next attempt: when it is time, when the breaker decides, or at once as two halves."""
        self._leave_to_source(call, call.dropped_calls)
        if call.has_ended:
            return
        note = partial(self._outcomes.note_failed_attempt, call, verdict, self.statistics)
        if isinstance(call, Batch) and verdict.is_halved and len(call.calls) > 1:
            note("its halves are sent")
            second = halve(call)
            self._unended[second.number] = second
            self._queue_for_place(call)
            if second.line is None:
                self._queue_for_place(second)
            else:
                self._order.enter_next(second)
        elif self._breaker is not None and self._breaker.hold(call):
            note("retry by the breaker")
        else:
            self._clock.later(verdict.seconds, partial(self._queue_for_place, call))
            note(f"retry in {verdict.seconds:.1f} s")

    # It ends.

    def _end_without_place(self, call: Call, verdict: Verdict) -> None:
        """Count a call that has ended, and release its message; its failure payload, if any, is published later."""
        self._release_all(call, self._count_end(call, verdict))

    def _count_end(self, call: Call, verdict: Verdict) -> list[tuple[Call, Verdict]]:
        """Count the calls that end with a verdict; return each with its own one."""
        ended = call.event.verdicts(call, verdict)
        for one, own in ended:
            self._outcomes.note_end(one, own, self.statistics)
        return ended

    def _release_all(self, call: Call, ended: list[tuple[Call, Verdict]], published: Verdict | None = None) -> None:
        """Release the messages of a call or batch that has ended.

        A message with a failure payload is released once that is published. The verdict `published`, if given, is one
        whose result or failure payload has been published already.
        """
        self._close(call)
        for one, own in ended:
            if own.publication is not None and own is not published:
                self._shared.failure_queue.put(one, own.publication)
            elif one.delivery is not None:
                one.delivery.release()
            self._free_room(one)

    def _leave_to_source(self, call: Call, dropped: list[Call]) -> None:
        """Forget the calls `dropped`, whose messages their source delivers again: the call itself, or some of a batch.

        A batch continues with its other calls, if there are any.
        """
        left = [one for one in call.calls if one not in dropped]
        if isinstance(call, Batch) and left:
            call.calls = left
        elif dropped:
            self._close(call)
        for one in dropped:
            one.event.forget(one)
            self._outcomes.forget_retry(one, self.statistics)
            if one.delivery is not None:
                one.delivery.abandon()
            self._free_room(one)

    def _close(self, call: Call) -> None:
        """Forget a call or batch that has ended, and let the next one in its line go on."""
        call.has_ended = True
        self._unended.pop(call.number, None)
        if call.line is not None:
            following = self._order.leave(call)
            if following is not None:
                self._queue_for_place(following)

    def _free_room(self, call: Call) -> None:
        """Free the room of a call that has ended, and admit calls that wait for room."""
        call.has_ended = True
        self._admission.release(call.size)
        if self._admission.awaiting_room:
            for one in self._room_queue.admitted():
                self._queue_admitted(one)
        # A reload has replaced the client: its connections are idle now.
        if call.event.client is not self.definition.client and call.event.client is not None:
            call.event.client.close()

    # Called at a reload, by the group, and at the end of the bridge.

    def use(self, definition: PreparedRoute) -> None:
        """Use another definition from now on. A definition without events ends the waiting calls."""
        before, self.definition = self.definition, definition
        seconds, rule = definition.route.route_config.rate_limit, definition.route.route_config.breaker
        if self._pace is None and seconds is not None:
            self._pace = Pace(self._clock, self._give_places, self._workers)
        if self._pace is not None:
            self._pace.change(seconds or 0.0)
        if self._breaker is None and rule is not None:
            self._breaker = Breaker(self._clock, self._breaker_changed, self._workers)
        if self._breaker is not None:
            self._breaker.change(definition.route.config.server, rule)
        if before.client is not definition.client and before.client is not None:
            before.client.close()
        self._batches.close_changed(definition.events)
        removed = []
        for call in self._room_queue.remove():
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
            if number % REFUSED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def share_limits(self, workers: int) -> None:
        """Share RATE_LIMIT and the probes of a target that is down with other workers; queue ORDERED calls again."""
        self._workers = workers
        if self._pace is not None:
            self._pace.share(workers)
        if self._breaker is not None:
            self._breaker.workers = workers
        waiting, self._ordered_waiting = self._ordered_waiting, []
        for call in waiting:
            self._queue_for_place(call)

    def drop_calls(self) -> None:
        """Drop waiting calls whose source has dropped the message. Close open batches, so that the others are sent."""
        for call in self._room_queue.remove(lambda call: call.is_dropped):
            if call.delivery is not None:
                call.delivery.abandon()
        waiting = [(call, call.dropped_calls) for call in self._unended.values() if not call.has_place]
        for _, dropped in waiting:
            for one in dropped:
                one.has_ended = True  # for all calls first: dropping one may queue another
        for call, dropped in waiting:
            self._leave_to_source(call, dropped)
        self._batches.close_all()

    def stop(self) -> None:
        """Begin no more calls, but send open batches now; lossless batches stay with their source."""
        self._place_queue.clear()
        self._batches.close_all(lossless=False)
        self._is_stopping = True

    @property
    def is_idle(self) -> bool:
        """Return whether no message waits, no call runs, and the next request may leave at once."""
        may_send = self._pace is None or self._pace.seconds_left <= 0
        return not self._unended and not self._admission.awaiting_room and may_send

    def messages_left(self) -> tuple[int, int]:
        """Return how many messages are lost as the bridge ends, and how many their source keeps.

        Messages that wait for room are removed from their queue.
        """
        calls = [*(one for call in self._unended.values() for one in call.calls), *self._room_queue.remove()]
        kept = sum(call.delivery is not None and call.delivery.is_bounded for call in calls)
        return len(calls) - kept, kept

    def _breaker_changed(self, reason: str | None) -> None:
        log.warning("route %s: %s", self.name, reason or "the target answers again, the breaker is closed")
        self.statistics.open_breaker = reason
        self._outcomes.report_health(self.statistics)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        tasks = self._shared.tasks
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
