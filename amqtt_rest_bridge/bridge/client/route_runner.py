"""The calls of one route of client mode, each from its arrival to its result.

A `RouteRunner` drives calls, see `calls.call`, with threads: `take` queues a call, `_run` begins a try and sends its
request, `_judge` gets the verdict on the reply, and `_follow` does what that says. `take` runs on the link's readers,
`_run` on the route's workers or, for a lone call, on the reader that took it; a retry comes back by the timer thread.

With a RATE_LIMIT a try is an exchange, a generator that stops before each of its requests. A call gives its worker back
there and waits for its turn; `_check` has built its request before, so that what is skipped or cannot be filled takes
none.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.bridge.claims import KeyClaims
from amqtt_rest_bridge.bridge.client.senders import Sender
from amqtt_rest_bridge.bridge.client.worker_pool import ThreadBudget, WorkerPool
from amqtt_rest_bridge.bridge.timers import Breaker, Lease, Pace, Timers
from amqtt_rest_bridge.calls.call import OpenCall, Step, Verdict
from amqtt_rest_bridge.calls.open_calls import OpenCalls
from amqtt_rest_bridge.calls.stages import Means, prepare
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http_client import Exchange
from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import SKIPPED, CallResult, DispatchedCall, FailedTry, Returned, Waiting
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, NumberedRoute
from amqtt_rest_bridge.records.bridge_records import BridgeRecords
from amqtt_rest_bridge.settings import BridgeSettings
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_SLOW_SECONDS: Final = 0.05
LARGE: Final = 128 << 10
"""Bytes of a payload that is filled in while no other large one is."""
_LOG_SECONDS: Final = 1.0
_FREELY: Final = nullcontext()
_CHANCE: Final = random.SystemRandom().random  # tests that embed a broker may seed, or watch, the shared generator
_NONE: Final[list[int]] = []


@dataclass(frozen=True, slots=True)
class RouteContext:
    """What the runners of routes share.

    `settings` are those of the plugin, `records` those of the admin port, None where there is none. `pace` spaces the
    requests of a route with a RATE_LIMIT, `breaker` is that of a route with a BREAKER, ORDERED calls begin while the
    `lease` lasts; `successor` returns the runner of its present definition. `calls` are those of all routes, used under
    `lock`.
    """

    settings: BridgeSettings
    records: BridgeRecords | None
    link: BridgeEnd
    claims: KeyClaims
    timers: Timers
    threads: ThreadBudget
    calls: OpenCalls
    lock: threading.Lock
    lease: Lease
    pace: Pace | None
    breaker: Breaker | None
    successor: "Callable[[], RouteRunner | None]"
    large: threading.Lock  # see `parsing`

    def parsing(self, size: int) -> AbstractContextManager[object]:
        """Return what is held while payloads of so many bytes are parsed and filled in: of large ones one at a time.

        4 MB of small JSON objects are 100 MB of Python's, and the interpreter lock lets one thread at a time parse
        anyway.
        """
        return _FREELY if size < LARGE else self.large


class RouteRunner:
    """Run the calls of one route.

    Args:
        numbered: The route and its events' numbers.
        sender: Sends requests; closed with the runner.
        context: What runners share.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """

    def __init__(self, numbered: NumberedRoute, sender: Sender, context: RouteContext) -> None:
        route, settings, records = numbered.route, context.settings, context.records
        self.name = route.name
        self._is_lossless = route.is_lossless
        # A queue before a server that is down would fill any disk with its retries.
        self._retry_lines = LineLimit(_LOG_SECONDS)
        self._sender = sender
        self._context = context
        self._link = context.link
        self._pace = context.pace
        self._breaker, self._target = context.breaker, route.config.server
        self._evidence = None if records is None else records.evidence
        self._keeps_all = records is not None and records.keeps_all
        record = None if records is None else records.recorder(route.name)
        means = Means(time.time, _CHANCE, settings.runs, record, time.monotonic)
        self._events = {
            number: prepare(route, event, max_body_bytes=settings.max_body_bytes, means=means)
            for number, event in zip(numbered.numbers, route.client_events, strict=True)
        }
        self._pools: list[WorkerPool[OpenCall]] = []
        self._pool = self._new_pool("route", self._run, settings.workers)
        # One thread, so that calls begin to wait for their turn in order of arrival; and of its own: what is skipped
        # leaves at once, though all workers wait for a slow server.
        self._checks = None if self._pace is None else self._new_pool("check", self._check, 1)
        self._stopping = self._retired = False
        self._open = 0  # calls that have not ended
        self._lock = threading.Lock()

    def _new_pool(self, kind: str, work: Callable[[OpenCall], None], limit: int) -> WorkerPool[OpenCall]:
        context, name = self._context, f"{kind}-{self.name}"
        pool = WorkerPool(name, work, limit, context.timers, context.link.flush, context.threads)
        self._pools.append(pool)
        return pool

    # The journey of a call.

    def take(self, calls: Sequence[DispatchedCall]) -> WorkerPool[OpenCall] | None:
        """Queue calls in order of arrival; return the pool where none of its threads runs, so that one has to begin."""
        ready: list[OpenCall] = []
        self._count(len(calls))
        for dispatched in calls:
            event = self._events[dispatched.event]
            call = OpenCall(dispatched.id, event, dispatched.message, dispatched.idempotency_key, self._start)
            if self._enters(call):
                ready.append(call)
        first = self._checks or self._pool
        return first if ready and first.queue(ready) else None

    def _enters(self, call: OpenCall) -> bool:
        for enter in call.event.enters:
            enter(call)
        if call.line is None:
            return True
        with self._context.lock:
            return self._context.calls.enter(call)

    def _check(self, call: OpenCall) -> None:
        """End a call at once that would send nothing; any other one waits for its turn."""
        self._evaluate(call, call.event.check, self._await_turn)

    def _evaluate(
        self, call: OpenCall, evaluate: Callable[[OpenCall], Verdict | None], go_on: Callable[[OpenCall], None]
    ) -> None:
        """Go on with a call, unless it was withdrawn, or ends because of what `evaluate` says."""
        if call.id in self._context.calls.withdrawn:
            self._give_back(call)
            return
        try:
            with self._context.parsing(len(call.message.payload)):
                verdict = evaluate(call)
            if verdict is None:
                go_on(call)
            else:
                self._follow(call, verdict)
        except Exception:
            log.exception("%s: unexpected error", call.event.label)
            self._follow(call, call.event.fail_unexpectedly(call))

    def _run(self, call: OpenCall) -> None:
        try:
            if self._pace is not None:
                self._run_turn(call, self._pace)
            elif call.id in self._context.calls.withdrawn:
                self._give_back(call)
            elif (request := self._begin(call)) is not None:
                reply: HttpResponse | CallError
                try:
                    reply = self._sender.send(request, call.stopwatch)
                except CallError as error:
                    reply = error
                self._judge(call, reply)
        except Exception:
            log.exception("%s: unexpected error", call.event.label)
            if self._breaker is not None:
                self._breaker.replied(call.id, None, self._target)
            self._follow(call, call.event.fail_unexpectedly(call))

    def _run_turn(self, call: OpenCall, pace: Pace) -> None:
        """Send one request of a call whose turn it is."""
        sends = False
        try:
            exchange, call.exchange = call.exchange, None
            if exchange is None:
                if call.id in self._context.calls.withdrawn:
                    self._give_back(call)
                    return
                request = self._begin(call)
                if request is None:
                    return
                exchange = self._sender.exchange(request, call.stopwatch)
                if not self._advance(call, exchange):
                    return
            sends = True
        finally:
            if not sends:
                pace.decline()
        pace.sending()
        if self._advance(call, exchange):
            call.exchange = exchange
            self._await_turn(call, first=True)  # whose turn may come before this returns

    def _begin(self, call: OpenCall) -> HttpRequest | None:
        """Begin a try and return its request; None where it sends nothing, or has to wait."""
        if call.line is not None and not self._context.lease.lasts:
            if self._begin_wait(call):
                self._context.lease.hold(partial(self._resume, call))
            return None
        with self._context.parsing(len(call.message.payload)):
            begun = call.event.begin(call)
        if isinstance(begun, Verdict):
            self._follow(call, begun)
            return None
        if self._breaker is not None and not self._breaker.passes(call.id, self._target):
            self._keep_from_target(call, self._breaker)
            return None
        if call.event.forgets_payload and len(call.message.payload) >= LARGE:
            call.let_go()
        call.stopwatch.seconds = 0.0
        return begun.request

    def _keep_from_target(self, call: OpenCall, breaker: Breaker) -> None:
        """Hold a lossless call, or one that was tried before, until the target is asked; fail any other one."""
        call.cancel_try()
        if self._is_lossless or call.tries:
            if self._begin_wait(call, for_try=False) and not breaker.hold(partial(self._resume, call), self._target):
                self._resume(call)
        else:
            self._follow(call, call.event.fail(call, catalogue.BREAKER_OPEN.error("the target of the route is down")))

    def _advance(self, call: OpenCall, exchange: Exchange) -> bool:
        """Go on to the next request of a try and return True; after the last one, judge the try."""
        reply: HttpResponse | CallError
        try:
            next(exchange)
            return True
        except StopIteration as end:
            reply = end.value
        except CallError as error:
            reply = error
        self._judge(call, reply)
        return False

    def _judge(self, call: OpenCall, reply: HttpResponse | CallError) -> None:
        if self._breaker is not None:
            self._breaker.replied(call.id, reply, self._target)
        call.took += call.stopwatch.seconds
        received = 0 if isinstance(reply, CallError) else len(reply.body)
        with self._context.parsing(len(call.message.payload) + received):
            verdict = call.event.judge(call, reply)
        self._follow(call, verdict)

    def _follow(self, call: OpenCall, verdict: Verdict, also: list[int] = _NONE) -> None:
        failure = verdict.failure
        if failure is not None and verdict.step is Step.AGAIN:
            self._retry(call, failure, verdict)
            return
        waited = call.waited(time.time())
        code, message = (None, "") if failure is None else (failure.code.value, failure.message)
        if failure is not None:
            log.warning(
                "%s: %s on %s after %d %s in %.3f s, waited %.3f s, run %s: %s",
                call.event.label, failure.code, loggable(call.message.topic), call.tries,
                "try" if call.tries == 1 else "tries", call.took, waited, call.event.run_id(call), failure.message,
            )  # fmt: skip
        elif verdict.step is Step.SKIPPED:
            code = SKIPPED
        elif log.isEnabledFor(logging.DEBUG):
            topic, run = loggable(call.message.topic), call.event.run_id(call)
            log.debug("%s: %d on %s, run %s", call.event.label, verdict.status, topic, run)
        # Behind a slow server no other result follows soon that this one could travel with.
        at_once = call.took > _SLOW_SECONDS or not self._pool.backlog
        evidence = self._evidence(call, verdict) if self._evidence and (failure or self._keeps_all) else None
        end = verdict.status, code, message, waited, call.took, verdict.publication
        self._link.done(CallResult(call.id, *end, evidence, also), at_once=at_once)
        if call.line is not None or call.kept:
            self._start_next(call)
        self._count(-1)

    def _retry(self, call: OpenCall, failure: CallError, verdict: Verdict) -> None:
        if self._stopping:  # the broker keeps the call and dispatches it again, or fails it
            return
        also = [rider.id for rider in call.riders or ()]
        failed = FailedTry(failure.code.value, failure.message, failure.hint, verdict.status, also)
        when, line = f"retry in {verdict.seconds:.1f} s", (loggable(call.message.topic), call.event.run_id(call))
        if self._begin_wait(call, failed=failed):
            resume = partial(self._resume, call)
            if self._breaker is not None and self._breaker.hold(resume, self._target):
                when = "retry by the breaker"  # which has its own time between two probes
            else:
                self._context.timers.after(verdict.seconds, resume)
        if count := self._retry_lines.count():
            more = f" (last of {count} failed tries)" if count > 1 else ""
            log.info(
                "%s: %s on %s, run %s, %s%s: %s", call.event.label, failure.code, *line, when, more, failure.message
            )

    def _start_next(self, call: OpenCall) -> None:
        """Start the call that is behind one which has ended, or leaves."""
        with self._context.lock:
            following = self._context.calls.end(call)
        if following is not None:
            following.start(following)

    def _start(self, call: OpenCall) -> None:
        """Queue a call."""
        if not self._stopping:
            (self._checks or self._pool).submit((call,))

    def _await_turn(self, call: OpenCall, *, first: bool = False) -> None:
        """Queue a call for its turn; with `first` before those that have sent nothing yet."""
        if self._pace is not None and not self._stopping and self._begin_wait(call, for_try=False):
            self._pace.enter(partial(self._take_turn, call), first=first)

    def _take_turn(self, call: OpenCall) -> None:
        if not self._stopping and not self._end_wait(call, lambda call: self._pool.submit((call,))):
            self._pace.decline()  # type: ignore[union-attr]  # it gave the turn

    def _begin_wait(self, call: OpenCall, *, for_try: bool = True, failed: FailedTry | None = None) -> bool:
        """Report that a call waits; return False for one that was withdrawn, which is given back."""
        with self._context.lock:
            is_withdrawn = call.exchange is None and call.id in self._context.calls.withdrawn
            is_complete = is_withdrawn or self._context.calls.wait(call, partial(self._give_back, call))
        if is_withdrawn:
            self._give_back(call)
            return False
        self._link.send_in_order(Waiting(call.id, 1, for_try, not is_complete, failed))
        return True

    def _give_back(self, call: OpenCall) -> None:
        """Return a call to the broker process."""
        self._link.send_in_order(Returned(call.id))
        self._start_next(call)
        self._count(-1)

    def _end_wait(self, call: OpenCall, start: Callable[[OpenCall], None]) -> bool:
        """Report that a call is due and start it once its payload is here; return False for one that was withdrawn."""
        call.start = start
        with self._context.lock:
            if self._context.calls.was_withdrawn(call):
                return False
            goes_on = self._context.calls.resume(call)
        self._link.send_in_order(Waiting(call.id, -1))
        if goes_on:
            start(call)
        return True

    # A retry that is due.

    def _resume(self, call: OpenCall) -> bool:
        """Go on with a call that waited; return False for one that was withdrawn, or is given back."""
        if self._context.calls.was_withdrawn(call):
            return False
        if not (self._retired and self._is_lossless) or self._stopping:
            return self._end_wait(call, self._start)
        successor = self._context.successor()
        if successor is not None and successor._take_over(call, self):  # noqa: SLF001  # of this class
            return True
        with self._context.lock:
            give_back = self._context.calls.take_back(call)
        give_back()
        return False

    def _take_over(self, call: OpenCall, before: "RouteRunner") -> bool:
        """Continue a call of the route's definition before; return False when its event no longer exists."""
        same = [event for event in self._events.values() if event.event.name == call.event.event.name]
        if not same:
            return False
        call.event = same[-1]
        for rider in call.riders or ():
            rider.event = call.event
        if not call.riders:
            call.item = None
        self._count(1)
        left = before if self._end_wait(call, self._start) else self  # it was withdrawn: `before` gave it back
        left._count(-1)  # noqa: SLF001  # of this class
        return True

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change

    # What the engine asks for.

    @property
    def is_idle(self) -> bool:
        """Return whether every call has ended."""
        return not self._open

    @property
    def is_busy(self) -> bool:
        """Return whether a worker runs a call."""
        return any(pool.running for pool in self._pools)

    def retire(self) -> None:
        """End the present calls by this definition of the route, which a reload has replaced.

        Lossless calls, whose retries have no end, move to the successor with their next retry.
        """
        self._retired = True

    def stop(self) -> None:
        """Start no more requests; those that run finish, the other calls stay with the broker."""
        self._stopping = True
        for pool in self._pools:
            pool.drain()

    def close_batches(self) -> None:
        """Begin with what waits for its batch to be closed: nothing, without BATCH_SIZE."""

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        self._sender.expire()

    def close(self) -> None:
        """End each worker after the call it runs, and close idle connections; does not wait."""
        for pool in self._pools:
            pool.close()
        self._sender.close()
