"""One route's client mode in the bridge process, from a call that arrives to its result.

`RouteRunner` reads as the journey of a call: `take` queues it, `_run` builds and sends its request; then `_succeed`,
`_retry` or `_fail`, as `retries.RetryPolicy` decides. `take` runs on the link's readers, `_run` on the route's workers
or, for a lone call, on the reader that took it; a retry comes back by the timer thread.

A try is a generator that stops before each of its requests. With a RATE_LIMIT a call gives its worker back there and
waits for its turn; `_check` has built its request before, so that what is skipped or cannot be filled takes none.
"""

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.bridge.client import results, retries
from amqtt_rest_bridge.bridge.client.keyed_queue import KeyedQueue
from amqtt_rest_bridge.bridge.client.pace import Pace
from amqtt_rest_bridge.bridge.client.requests import BuiltRequest, PreparedEvent, Sender, SkippedError
from amqtt_rest_bridge.bridge.client.thread_budget import ThreadBudget
from amqtt_rest_bridge.bridge.client.waiting_payloads import WaitingPayloads
from amqtt_rest_bridge.bridge.client.worker_pool import WorkerPool
from amqtt_rest_bridge.bridge.outbox import Outbox
from amqtt_rest_bridge.bridge.timers import Timers
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http_client import Stopwatch
from amqtt_rest_bridge.link.frames import SKIPPED, CallResult, DispatchedCall, Returned, TryFailed, Waiting
from amqtt_rest_bridge.model import BridgeSettings, HttpResponse, Message, NumberedRoute, Publication
from amqtt_rest_bridge.records.recorder import Recorder
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_SLOW_SECONDS: Final = 0.05
_LARGE: Final = 128 << 10  # bytes of a payload that is filled in while no other large one is
_ENDED: Final = object()

Try = Generator[None, None, None]
"""Stops before each request that it sends; the call has ended, or waits for its next try, when it is over."""


@dataclass(frozen=True, slots=True)
class RouteContext:
    """What a route's runner uses of its engine.

    `pace` spaces the requests of a route with a RATE_LIMIT; `successor` returns the runner of its present definition.
    `parsing` is held while a large payload is parsed and filled in: 4 MB of small JSON objects are 100 MB of Python's,
    and the interpreter lock lets one thread at a time parse anyway. `payloads` are those of calls that wait.
    """

    outbox: Outbox
    timers: Timers
    threads: ThreadBudget
    ordered: KeyedQueue[Callable[[], None]]
    pace: Pace | None
    successor: Callable[[], "RouteRunner | None"]
    parsing: threading.Lock
    payloads: WaitingPayloads


@dataclass(slots=True, eq=False)
class _OpenCall:
    """A call that has not ended; `order_key` is set for an ORDERED event.

    With a RATE_LIMIT `current` is the try that waits for its turn to send another request.
    Without `has_payload` the broker process alone has the payload; while a call waits, `kept` are the bytes of its own
    that count as kept.
    """

    id: int
    event: PreparedEvent
    message: Message
    idempotency_key: str | None
    tries: int = 0
    took: float = 0.0  # seconds, for the requests of all tries
    order_key: tuple[str, str, str] | None = None  # route, event, topic
    url: str | None = None  # of the last try
    current: Try | None = None
    has_payload: bool = True
    kept: int = 0


class RouteRunner:
    """Run the calls of one route.

    Args:
        numbered: The route and its events' numbers.
        settings: Of the plugin.
        sender: Sends requests; closed with the runner.
        context: The parts of the engine that runners share.
        recorder: Records calls for the admin port; None where there is none.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """

    def __init__(
        self,
        numbered: NumberedRoute,
        settings: BridgeSettings,
        sender: Sender,
        context: RouteContext,
        recorder: Recorder | None = None,
    ) -> None:
        route = numbered.route
        self._recorder = recorder
        self.name = route.name
        self._policy = retries.policy_of(route)
        self._retry_log = retries.RetryLog()
        self._sender = sender
        self._context = context
        self._outbox = context.outbox
        self._pace = context.pace
        self._events = {
            number: PreparedEvent(route, event, max_body_bytes=settings.max_body_bytes)
            for number, event in zip(numbered.numbers, route.client_events, strict=True)
        }
        self._pool: WorkerPool[_OpenCall] = WorkerPool(
            f"route-{route.name}", self._run, settings.workers, context.timers, context.outbox.flush, context.threads
        )
        self._pools = [self._pool]
        self._checks: WorkerPool[_OpenCall] | None = None
        if self._pace is not None:
            # One thread, so that calls begin to wait for their turn in order of arrival; and of its own: what is
            # skipped leaves at once, though all workers wait for a slow server.
            self._checks = WorkerPool(
                f"check-{route.name}", self._check, 1, context.timers, context.outbox.flush, context.threads
            )
            self._pools.append(self._checks)
        self._stopping = False
        self._retired = False
        self._open = 0  # calls that have not ended
        self._lock = threading.Lock()

    # The journey of a call.

    def take(self, calls: Sequence[DispatchedCall]) -> "WorkerPool[_OpenCall] | None":
        """Queue calls in order of arrival; return the pool where none of its threads runs, so that one has to begin."""
        ready: list[_OpenCall] = []
        with self._lock:
            self._open += len(calls)
        for dispatched in calls:
            event = self._events[dispatched.event]
            call = _OpenCall(dispatched.id, event, dispatched.message, dispatched.idempotency_key)
            if event.event.ordered:
                call.order_key = (self.name, event.event.name, call.message.topic)
                if not self._context.ordered.enter(call.order_key, functools.partial(self._start, call)):
                    continue
            ready.append(call)
        first = self._checks or self._pool
        return first if ready and first.queue(ready) else None

    def _check(self, call: _OpenCall) -> None:
        """End a call at once that would send nothing; any other one waits for its turn."""
        try:
            self._build(call)
        except SkippedError:
            call.tries += 1
            self._skip(call)
        except CallError as error:
            call.tries += 1
            self._fail(call, results.error_without_secrets(call.event.masker, error), None)
        except Exception:
            log.exception("%s: unexpected error", call.event.label)
            self._fail(call, results.unexpected(), None)
        else:
            self._await_turn(call)

    def _run(self, call: _OpenCall) -> None:
        try:
            if self._pace is None:
                for _ in self._try(call):
                    pass
            else:
                self._run_turn(call, self._pace)
        except Exception:
            log.exception("%s: unexpected error", call.event.label)
            self._fail(call, results.unexpected(), None)

    def _run_turn(self, call: _OpenCall, pace: Pace) -> None:
        """Send one request of a call whose turn it is."""
        sends = False
        try:
            current, call.current = call.current, None
            if current is None:
                current = self._try(call)
                if next(current, _ENDED) is _ENDED:
                    return
            sends = True
        finally:
            if not sends:
                pace.decline()
        pace.sending()
        if next(current, _ENDED) is not _ENDED:
            call.current = current
            self._await_turn(call, first=True)  # whose turn may come before this returns

    def _try(self, call: _OpenCall) -> Try:
        call.tries += 1
        event, request, response, stopwatch = call.event, None, None, Stopwatch()
        try:
            built = self._build(call)
            request = built.request
            call.url = request.url
            if event.forgets_payload and len(call.message.payload) >= _LARGE:
                _let_go(call)
            response = yield from self._sender.exchange(request, stopwatch)
            failure = results.failure_of(request, response)
            if failure is None:
                publication = self._result(call, built.destination, response)
                call.took += stopwatch.seconds
                self._succeed(call, response, publication)
                return
        except SkippedError:
            self._skip(call)
            return
        except CallError as error:
            # The frames of its traceback hold the payload and what was parsed of it; with this one they make a circle.
            failure = error.with_traceback(None)
            failure.__cause__ = failure.__context__ = None
        call.took += stopwatch.seconds
        masker = results.masker_for(event.masker, request, response)
        failure = results.error_without_secrets(masker, failure)
        if self._policy.applies(event.event, call.tries, failure, response):
            self._retry(call, failure, response)
        else:
            self._fail(call, failure, None if response is None else results.without_secrets(masker, response))

    def _skip(self, call: _OpenCall) -> None:
        if self._recorder is not None:
            self._record(self._recorder, call, None, None, SKIPPED)
        self._end(call, None, SKIPPED, "", None)

    def _build(self, call: _OpenCall) -> BuiltRequest:
        if len(call.message.payload) < _LARGE:
            return call.event.build(call.message, idempotency_key=call.idempotency_key)
        with self._context.parsing:
            return call.event.build(call.message, idempotency_key=call.idempotency_key)

    def _result(self, call: _OpenCall, destination: str | None, response: HttpResponse) -> Publication | None:
        if len(call.message.payload) + len(response.body) < _LARGE:
            return call.event.result(call.message, destination, response)
        with self._context.parsing:
            return call.event.result(call.message, destination, response)

    def _succeed(self, call: _OpenCall, response: HttpResponse, publication: Publication | None) -> None:
        log.debug("%s: %d on %s", call.event.label, response.status, loggable(call.message.topic))
        if self._recorder is not None:
            self._record(self._recorder, call, response.status, None, "call")
        self._end(call, response.status, None, "", publication)

    def _retry(self, call: _OpenCall, failure: CallError, response: HttpResponse | None) -> None:
        if self._stopping:  # the broker keeps the call and dispatches it again, or fails it
            return
        if self._recorder is not None:
            self._record(self._recorder, call, None if response is None else response.status, failure, "retry")
        seconds = retries.delay(call.tries, response, now=time.time(), random=random.random)
        self._retry_log.write(call.event.label, failure, loggable(call.message.topic), seconds)
        if self._policy.lossless:
            self._outbox.send(TryFailed(call.id, failure.code.value, failure.message))
        self._begin_wait(call)
        self._context.timers.after(seconds, functools.partial(self._resume, call))

    def _fail(self, call: _OpenCall, failure: CallError, response: HttpResponse | None) -> None:
        log.warning(
            "%s: %s on %s after %d %s in %.3f s, waited %.3f s: %s",
            call.event.label,
            failure.code,
            loggable(call.message.topic),
            call.tries,
            "try" if call.tries == 1 else "tries",
            call.took,
            _waited(call),
            failure.message,
        )
        publication = results.failure(self.name, call.event.event, call.message, failure, response)
        status = None if response is None else response.status
        if self._recorder is not None:
            self._record(self._recorder, call, status, failure, "call")
        self._end(call, status, failure.code.value, failure.message, publication)

    def _end(
        self, call: _OpenCall, status: int | None, code: str | None, message: str, publication: Publication | None
    ) -> None:
        # Behind a slow server no other result follows soon that this one could travel with.
        at_once = call.took > _SLOW_SECONDS or not self._pool.backlog
        result = CallResult(call.id, status, code, message, _waited(call), call.took, publication)
        self._outbox.done(result, at_once=at_once)
        self._leave(call)

    def _record(
        self, recorder: Recorder, call: _OpenCall, status: int | None, failure: CallError | None, kind: str
    ) -> None:
        waited = _waited(call)
        recorder.call(call.event.of, call.message.topic, call.url, status, failure, call.tries, waited, call.took, kind)

    def _leave(self, call: _OpenCall) -> None:
        """Count a call as ended, and start the next one of the same ORDERED event and topic."""
        start_next = None if call.order_key is None else self._context.ordered.leave(call.order_key)
        if start_next is not None:
            start_next()
        with self._lock:
            self._open -= 1

    def _start(self, call: _OpenCall) -> None:
        """Queue a call."""
        if not self._stopping:
            (self._checks or self._pool).submit((call,))

    def _await_turn(self, call: _OpenCall, *, first: bool = False) -> None:
        """Queue a call for its turn; with `first` before those that have sent nothing yet."""
        if self._pace is not None and not self._stopping:
            self._begin_wait(call, for_try=False)
            self._pace.enter(functools.partial(self._take_turn, call), first=first)

    def _take_turn(self, call: _OpenCall) -> None:
        if not self._stopping:
            self._end_wait(call, self._submit)

    def _submit(self, call: _OpenCall) -> None:
        self._pool.submit((call,))

    def _begin_wait(self, call: _OpenCall, *, for_try: bool = True) -> None:
        """Report that a call waits; its payload goes where too many are kept, unless its try has begun."""
        size = len(call.message.payload)
        if self._context.payloads.keep(size):
            call.kept = size
        elif call.current is None:
            _let_go(call)
        self._outbox.send(Waiting(call.id, 1, for_try, let_go=_is_incomplete(call)))

    def _end_wait(self, call: _OpenCall, start: Callable[[_OpenCall], None]) -> None:
        """Report that a call is due and start it, once its payload is here."""
        if _is_incomplete(call):
            self._context.payloads.expect(call.id, functools.partial(self._restore, call, start))
            self._outbox.send(Waiting(call.id, -1))
            return
        self._context.payloads.release(call.kept)
        call.kept = 0
        self._outbox.send(Waiting(call.id, -1))
        start(call)

    @staticmethod
    def _restore(call: _OpenCall, start: Callable[[_OpenCall], None], message: Message) -> None:
        call.message, call.has_payload = message, True
        start(call)

    # A retry that is due.

    def _resume(self, call: _OpenCall) -> None:
        if not (self._retired and self._policy.lossless) or self._stopping:
            self._end_wait(call, self._start)
            return
        successor = self._context.successor()
        if successor is None or not successor._take_over(call):  # noqa: SLF001  # of this class
            self._context.payloads.release(call.kept)
            self._outbox.send(Returned(call.id))
            self._leave(call)
            return
        with self._lock:
            self._open -= 1

    def _take_over(self, call: _OpenCall) -> bool:
        """Continue a call of the route's earlier definition; return False when its event no longer exists."""
        same = [event for event in self._events.values() if event.event.name == call.event.event.name]
        if not same:
            return False
        call.event = same[-1]
        with self._lock:
            self._open += 1
        self._end_wait(call, self._start)
        return True

    # What the engine asks for.

    @property
    def idle(self) -> bool:
        """Return whether every call has ended."""
        return not self._open

    @property
    def busy(self) -> bool:
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

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        self._sender.expire()

    def close(self) -> None:
        """End each worker after the call it runs, and close idle connections; does not wait."""
        for pool in self._pools:
            pool.close()
        self._sender.close()


def _let_go(call: _OpenCall) -> None:
    """Leave the payload of a call to the broker process."""
    message, call.has_payload = call.message, False
    call.message = Message(message.topic, b"", message.timestamp)


def _is_incomplete(call: _OpenCall) -> bool:
    """Return whether a call that goes on needs its payload, which the broker process alone has."""
    return call.current is None and not call.has_payload


def _waited(call: _OpenCall) -> float:
    """Return the seconds since the broker received a message in which no request of its call was under way.

    By the clock of the messages, which is that of two processes and of restarts; where it is set back, 0.
    """
    return max(0.0, time.time() - call.message.timestamp - call.took)
