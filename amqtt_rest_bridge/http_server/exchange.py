"""One request and its answer, for which the application is called once. On the port's thread, `wake` excepted.

A pending answer is resumed when something woke it or its time is over. Of those `limit` wait at a time; one more is
refused before it has begun, so that nothing of it has been done.
"""

import itertools
import logging
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from amqtt_rest_bridge.http_server.application import Application, Pending, Refuse, Request, Response
from amqtt_rest_bridge.http_server.channel_loop import Timer
from amqtt_rest_bridge.http_server.refusals import Refusal, internal_error, overloaded

log = logging.getLogger(__name__)


class Waiting:
    """Room for the pending answers of a port.

    Args:
        limit: how many may wait.
        later: calls an action after so many seconds, on the port's thread.
        soon: calls an action in the next turn of the port's thread; from any thread.
    """

    def __init__(
        self,
        limit: int,
        later: Callable[[float, Callable[[], None]], Timer],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._limit = limit
        self.later = later
        self.soon = soon
        self.exchanges: set[Exchange] = set()
        # A random start and a number: a whole random UUID for each request takes 2 us, a fortieth of all that it takes.
        self._prefix = str(uuid.uuid4())[:24]
        self._numbers = itertools.count(1)

    def request_id(self) -> str:
        """Return the id of the next request, a UUID that no other request has."""
        return f"{self._prefix}{next(self._numbers):012x}"

    @property
    def is_full(self) -> bool:
        """Return whether no more may wait."""
        return len(self.exchanges) >= self._limit


class Exchange:
    """A request with the answer that is being made.

    Args:
        parser: the request; see `RequestParser`.
        waiting: where it may wait.
        on_answer: called when a pending answer is complete.
        refuse: makes the answer to a request that the application does not get, or fails on.
        remote: the address of the peer.
    """

    def __init__(
        self,
        parser: Any,
        waiting: Waiting,
        on_answer: "Callable[[Exchange], None]",
        refuse: Refuse,
        remote: str = "",
    ) -> None:
        self.parser = parser
        self.request_id = waiting.request_id()
        self.began = time.monotonic()
        self.response: Response | None = None
        self.on_wake: Callable[[], None] | None = None
        """What a wake does once the answer is a stream."""
        self._waiting = waiting
        self._on_answer = on_answer
        self._refuse = refuse
        self._remote = remote
        self._pending: Pending | None = None
        self._timer: Timer | None = None

    def ask(self, app: Application, refusal: Refusal | None) -> None:
        """Call the application, with a refusal only for the headers of its answer; sets a complete `response`."""
        if refusal is not None and not self.parser.is_understood:
            self._refused(refusal)
        else:
            self._attempt(partial(self._ask, app, refusal))

    def wake(self) -> None:
        """Schedule the next step of a pending answer or a stream; from any thread."""
        self._waiting.soon(self._woken)

    def caller_left(self) -> None:
        """Notify a pending answer that its caller has closed its side of the connection."""
        if self._pending is not None:
            self._pending.caller_left()
            self._woken()

    def fail(self, error: Exception) -> None:
        """Answer with an internal error instead."""
        log.error("The application failed on request %s", self.request_id, exc_info=error)
        self._end_waiting()
        self._refused(internal_error())

    def cancel(self) -> None:
        """Cancel a pending answer."""
        if self._pending is not None:
            self._pending.cancel()
            self._end_waiting()

    def _ask(self, app: Application, refusal: Refusal | None) -> None:
        parser = self.parser
        headers = {name.lower().replace("_", "-"): value for name, value in parser.headers.items()}
        body = parser.get_body_stream().read() if refusal is None and parser.body_rcv is not None else b""
        parser.close()  # so that an answer that waits does not hold the body twice
        answer = app.answer(
            Request(
                self.request_id,
                parser.command,
                parser.request_uri,
                parser.query,
                headers,
                body,
                refusal,
                self._remote,
            ),
            self.wake,
        )
        if isinstance(answer, Response):
            self.response = answer
        elif self._waiting.is_full:
            self.response = answer.refuse(overloaded())
        else:
            self._waiting.exchanges.add(self)
            self._pending = answer
            self._resume(answer)

    def _refused(self, refusal: Refusal) -> None:
        method, target = self.parser.asked
        self.response = self._refuse(Request(self.request_id, method, target, "", {}, b"", refusal, self._remote))

    def _woken(self) -> None:
        if self._pending is not None:
            self._attempt(partial(self._resume, self._pending))
            if self.response is not None:
                self._on_answer(self)
        elif self.on_wake is not None:
            self.on_wake()

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # it is logged
            self.fail(error)

    def _resume(self, pending: Pending) -> None:
        if self._timer is not None:
            self._timer.cancel()
        outcome = pending.resume()
        if isinstance(outcome, Response):
            self.response = outcome
            self._end_waiting()
        else:
            self._timer = self._waiting.later(outcome, self._woken)

    def _end_waiting(self) -> None:
        self._pending = None
        self._waiting.exchanges.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
