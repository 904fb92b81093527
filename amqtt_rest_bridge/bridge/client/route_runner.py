"""One route's client mode in the bridge process: its queue, its workers, its retries.

`take` runs on the link's readers, `_work` on the route's workers or, for a lone call, on the reader that took it.
Retries come back by the timer thread.
"""

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from amqtt_rest_bridge.bridge.client import results, retries
from amqtt_rest_bridge.bridge.client.keyed_queue import Lanes
from amqtt_rest_bridge.bridge.client.requests import PreparedEvent
from amqtt_rest_bridge.bridge.client.thread_budget import ThreadBudget
from amqtt_rest_bridge.bridge.client.worker_pool import WorkerPool
from amqtt_rest_bridge.bridge.outbox import Outbox
from amqtt_rest_bridge.bridge.timers import Timers
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.link import Op
from amqtt_rest_bridge.model import (
    BridgeSettings,
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    NumberedRoute,
    OverloadPolicy,
    Publication,
)
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_SLOW_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 1.0


class Sender(Protocol):
    """What sends a request; see `bridge.http_sender`."""

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and read its response; raises `CallError`."""

    def expire(self) -> None:
        """Close connections that have been idle for too long; must not block."""

    def close(self) -> None:
        """Close idle connections."""


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    event: ClientEvent
    prepared: PreparedEvent


@dataclass(slots=True, eq=False)
class _Call:
    """A message for an event until its call has ended; `tries` counts the requests sent for it."""

    id: int
    event: _Event
    message: Message
    key: str | None
    started: float
    tries: int = 0
    lane: tuple[str, str, str] | None = None  # of an ORDERED event: route, event, topic


@dataclass(frozen=True, slots=True)
class Ways:
    """What all runners of an engine share; `heir` gives the present runner of a route that a reload has changed."""

    outbox: Outbox
    timers: Timers
    threads: ThreadBudget
    lanes: Lanes[Callable[[], None]]
    heir: Callable[[], "Runner | None"]


CallItem = tuple[int, int, str, bytes, float, str | None]
"""What a CALLS frame says of a call: its id, the event's number, topic, payload, timestamp, idempotency key."""


class Runner:
    """Run the calls of one route.

    Args:
        numbered: The route and its events' numbers.
        settings: Of the plugin.
        sender: Sends requests; closed with the runner.
        ways: Where results, retries and ORDERED calls go.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """

    def __init__(
        self, numbered: NumberedRoute, settings: BridgeSettings, sender: Sender, ways: Ways
    ) -> None:
        route = numbered.route
        self.name = route.name
        self._retries = route.config.retries
        self._lossless = route.route_config.overload_policy is OverloadPolicy.LOSSLESS
        self._sender = sender
        self._ways = ways
        self._outbox = ways.outbox
        self._events = {
            number: _Event(number, event, PreparedEvent(route, event, max_body_bytes=settings.max_body_bytes))
            for number, event in zip(numbered.numbers, route.client_events, strict=True)
        }
        self._by_name = {event.event.name: event for event in self._events.values()}
        self._pool: WorkerPool[_Call] = WorkerPool(
            f"route-{route.name}", self._work, settings.workers, ways.timers, ways.outbox.flush, ways.threads
        )
        self._stopping = False
        self._retired = False
        self._open = 0  # calls that have not ended
        self._unlogged = 0  # tries that failed, since the last line that said so ...
        self._logged = -_QUIET_SECONDS  # ... and when that was
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """Say whether every call has ended."""
        return not self._open

    @property
    def busy(self) -> bool:
        """Say whether a worker is at a call."""
        return self._pool.running > 0

    def take(self, items: Sequence[CallItem]) -> bool:
        """Take calls, in order of arrival; say whether nobody is at them: then the caller has to `wake` or `work`."""
        now = time.perf_counter()
        ready: list[_Call] = []
        with self._lock:
            self._open += len(items)
        for call_id, number, topic, payload, timestamp, key in items:
            call = _Call(call_id, self._events[number], Message(topic, payload, timestamp), key, now)
            if call.event.event.ordered:
                call.lane = (self.name, call.event.event.name, topic)
            if call.lane is None or self._ways.lanes.enter(call.lane, functools.partial(self._start, call)):
                ready.append(call)
        return bool(ready) and self._pool.queue(ready)

    def wake(self) -> None:
        """Let a worker begin with what waits."""
        self._pool.wake()

    def work(self) -> None:
        """Begin with what waits, on the calling thread; blocks until nothing does."""
        self._pool.work()

    def retire(self) -> None:
        """Note that a reload has changed the route: what is at hand ends as it began.

        Lossless calls, which may be tried for ever, go over to the new definition with their next try.
        """
        self._retired = True

    def stop(self) -> None:
        """Start nothing more; what runs goes on to its end, the rest stays with the broker."""
        self._stopping = True
        self._pool.drain()

    def expire(self) -> None:
        """Close connections that have been idle for too long."""
        self._sender.expire()

    def close(self) -> None:
        """End the workers after what they run and close idle connections."""
        self._pool.close()
        self._sender.close()

    def _start(self, call: _Call) -> None:
        if not self._stopping:
            self._pool.submit((call,))

    def _work(self, call: _Call) -> None:
        try:
            self._try(call)
        except Exception:
            log.exception("route %s, event %s: unexpected error", self.name, call.event.event.name)
            self._fail(call, _unexpected(), None)

    def _try(self, call: _Call) -> None:
        call.tries += 1
        response: HttpResponse | None = None
        try:
            built = call.event.prepared.build(call.message, idempotency_key=call.key)
            response = self._sender.send(built.request)
            failure = results.failure_of(built.request, response)
            if failure is None:
                self._succeed(call, response, results.result(call.event.event, built.destination, response))
                return
        except CallError as error:
            failure = error
        if not self._try_again(call, failure, response):
            self._fail(call, failure, response)

    def _try_again(self, call: _Call, failure: CallError, response: HttpResponse | None) -> bool:
        method = call.event.event.method
        outcome = failure if response is None else response
        if not retries.is_retryable(method, outcome, lossless=self._lossless):
            return False
        if not self._lossless and call.tries > self._retries:
            return False
        if not self._stopping:
            seconds = retries.delay(call.tries, response, now=time.time(), random=random.random)
            self._log_retry(call, failure, seconds)
            if self._lossless:
                self._outbox.send((Op.TRY_FAILED, call.id, failure.code.value, failure.message))
            self._outbox.send((Op.WAITING, call.id, 1))
            self._ways.timers.after(seconds, lambda: self._resume(call))
        return True

    def _log_retry(self, call: _Call, failure: CallError, seconds: float) -> None:
        """Log a try that failed, one a second: a long queue before a server that is down would fill any disk."""
        with self._lock:
            self._unlogged += 1
            now = time.monotonic()
            if now - self._logged < _QUIET_SECONDS:
                return
            count, self._unlogged, self._logged = self._unlogged, 0, now
        log.info(
            "route %s, event %s: %s on %s, tried again in %.1f s%s: %s",
            self.name,
            call.event.event.name,
            failure.code,
            loggable(call.message.topic),
            seconds,
            f" (the last of {count} tries that failed)" if count > 1 else "",
            failure.message,
        )

    def _resume(self, call: _Call) -> None:
        if self._retired and self._lossless and not self._stopping:
            self._hand_on(call)
        else:
            self._outbox.send((Op.WAITING, call.id, -1))
            self._start(call)

    def _hand_on(self, call: _Call) -> None:
        """Let the route's present definition have a call; if there is none, the broker."""
        heir = self._ways.heir()
        if heir is None or not heir._inherit(call):
            self._outbox.send((Op.RETURNED, call.id))
            self._leave(call)
        with self._lock:
            self._open -= 1

    def _inherit(self, call: _Call) -> bool:
        event = self._by_name.get(call.event.event.name)
        if event is None:
            return False
        call.event = event
        with self._lock:
            self._open += 1
        self._outbox.send((Op.WAITING, call.id, -1))
        self._start(call)
        return True

    def _succeed(self, call: _Call, response: HttpResponse, publication: Publication | None) -> None:
        event = call.event.event
        log.debug("route %s, event %s: %d on %s", self.name, event.name, response.status, loggable(call.message.topic))
        self._end(call, response.status, None, "", publication)

    def _fail(self, call: _Call, failure: CallError, response: HttpResponse | None) -> None:
        event = call.event.event
        status = None if response is None else response.status
        log.warning(
            "route %s, event %s: %s on %s after %d %s, %.3f s: %s",
            self.name,
            event.name,
            failure.code,
            loggable(call.message.topic),
            call.tries,
            "try" if call.tries == 1 else "tries",
            time.perf_counter() - call.started,
            failure.message,
        )
        publication = results.failure(self.name, event, call.message, failure, response)
        self._end(call, status, failure.code.value, failure.message, publication)

    def _end(
        self, call: _Call, status: int | None, code: str | None, message: str, publication: Publication | None
    ) -> None:
        publications = () if publication is None else ((publication.topic, publication.payload, publication.retain),)
        seconds = time.perf_counter() - call.started
        # Behind a slow server nothing follows soon that a result could travel with.
        hurry = seconds > _SLOW_SECONDS or not self._pool.backlog
        self._outbox.done((call.id, status, code, message, seconds, publications), hurry=hurry)
        self._leave(call)
        with self._lock:
            self._open -= 1

    def _leave(self, call: _Call) -> None:
        start_next = None if call.lane is None else self._ways.lanes.leave(call.lane)
        if start_next is not None:
            start_next()


def _unexpected() -> CallError:
    return CallError(
        FailureCode.CONNECTION_FAILED,
        "the call ended with an unexpected error of the bridge itself",
        "The broker's log has the details; please report them.",
    )
