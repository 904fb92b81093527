"""Requests that wait: for a reply on a topic (REPLY_TOPIC), and for requests that came before them.

`endpoint` expects the reply (`Replies`) before it publishes a request; `server_mode` passes the messages of reply
topics here. A reply with Correlation Data answers the request that was published with the same data. A reply without it
answers the one request that waits on its topic: each request has a topic of its own, or requests take turns (`Turns`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from amqtt_rest_bridge.catalogue import CALLER_LEFT, STOPPED_BEFORE_REPLY
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.http.exchange import Caller, RequestRefusedError, overloaded, refuse
from amqtt_rest_bridge.lot.model import Message

T = TypeVar("T")


async def result_within(future: asyncio.Future[T], seconds: float, clock: Clock) -> T:
    """Return the result of a future that nothing else awaits; raises `TimeoutError` if it has none in time."""
    timer = clock.later(seconds, lambda: None if future.done() else future.set_exception(TimeoutError()))
    try:
        return await future
    finally:
        timer.cancel()


class AwaitedReply:
    """The reply that one request waits for; made by `Replies.expect`."""

    def __init__(self, topic: str, correlation: bytes | None, *, takes_unmarked: bool, clock: Clock) -> None:
        self.topic = topic
        self._correlation = correlation
        self._takes_unmarked = takes_unmarked
        self._clock = clock
        self._future: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

    def is_for(self, correlation: bytes | None) -> bool:
        """Return whether a message with this Correlation Data, None for none, may be the reply."""
        if self._correlation is None or correlation is None:
            return self._takes_unmarked
        return correlation == self._correlation

    def arrive(self, message: Message | None) -> None:
        """Note the reply, None when the bridge ends; a later one is ignored."""
        if not self._future.done():
            self._future.set_result(message)

    async def within(self, seconds: float) -> Message:
        """Return the reply; raises `TimeoutError`, or `RequestRefusedError` (504) when the bridge shuts down."""
        message = await result_within(self._future, seconds, self._clock)
        if message is None:
            text = f"The request was published, but the bridge shut down before a reply came on {self.topic}"
            raise RequestRefusedError(refuse(STOPPED_BEFORE_REPLY, text))
        return message


class Replies:
    """The requests that wait for replies, by topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._awaited: dict[str, list[AwaitedReply]] = {}

    @contextlib.contextmanager
    def expect(self, topic: str, correlation: bytes | None, *, takes_unmarked: bool) -> Iterator[AwaitedReply]:
        """Return a context manager of the reply: within its block the first message that fits counts.

        Args:
            topic: Where it comes.
            correlation: The Correlation Data of the request, None without.
            takes_unmarked: Whether a message without Correlation Data is the reply, too.
        """
        reply = AwaitedReply(topic, correlation, takes_unmarked=takes_unmarked, clock=self._clock)
        self._awaited.setdefault(topic, []).append(reply)
        try:
            yield reply
        finally:
            self._awaited[topic].remove(reply)
            if not self._awaited[topic]:
                del self._awaited[topic]

    def see(self, message: Message) -> None:
        """Pass a message to the requests that wait for it."""
        correlation = None if message.properties is None else message.properties.correlation
        for reply in self._awaited.get(message.topic, ()):
            if reply.is_for(correlation):
                reply.arrive(message)

    def dismiss(self) -> None:
        """End the wait of every request, without a reply."""
        for replies in self._awaited.values():
            for reply in replies:
                reply.arrive(None)


class Turns:
    """Requests that are served one after the other, by what they share: a topic for replies, or a DEDUPE_KEY."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[str | bytes, deque[asyncio.Future[bool]]] = {}  # the first one has its turn

    @contextlib.asynccontextmanager
    async def turn(
        self, key: str | bytes, seconds: float, late: str, caller: Caller | None = None
    ) -> AsyncIterator[None]:
        """Wait until all requests with this key that came before have been answered; the block is the turn.

        If its caller leaves while a request waits, the request gives up its turn, so that the others need not wait for
        it. During its turn it stays, since its reply would be taken for the reply to the next one.

        Args:
            key: What the requests share.
            seconds: How long a request waits at most.
            late: The message of the refusal (503) after that time.
            caller: The caller of the request; without it, nothing is noticed of a caller that leaves.

        Raises:
            RequestRefusedError: 503 if that takes too long, 400 if the caller has left.
        """
        queue = self._queues.setdefault(key, deque())
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        queue.append(mine)
        _begin_first(queue)
        if caller is not None:
            caller.when_left(lambda: None if mine.done() else mine.set_result(False))
        try:
            try:
                is_present = await result_within(mine, seconds, self._clock)
            except TimeoutError:
                raise RequestRefusedError(overloaded(late)) from None
            if not is_present or (caller is not None and caller.has_left):
                left = "The caller closed its side of the connection"
                message = f"{left} before its turn on the reply topic; nothing was published"
                raise RequestRefusedError(refuse(CALLER_LEFT, message))
            yield
        finally:
            queue.remove(mine)
            if queue:
                _begin_first(queue)
            else:
                del self._queues[key]


def _begin_first(queue: deque[asyncio.Future[bool]]) -> None:
    """Begin the turn of the first request, if it has not begun."""
    if not queue[0].done():
        queue[0].set_result(True)
