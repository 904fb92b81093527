"""Defect, amqtt 0.12.1: acknowledged messages are dropped when the connection of their publisher ends.

amqtt acknowledges a PUBLISH as soon as it has read it, and queues the message. It passes queued messages on one after
the other, to routes and subscribers. A DISCONNECT, or the end of the stream, overtakes this queue: of 500 acknowledged
messages 3 are passed on. The end of the stream also cancels the handling of the last packets; if a DISCONNECT is among
them, the client's will is sent all the same. A write that fails does the same, and logs a stack trace for each PUBACK.
A topic plugin that fails for one message, or one subscription, costs all messages behind it.

Mended: `ClientHandler` reports the end of its connection after it has handled all packets, and keeps its queue.
`connections` ends the connection when the queue is empty. A topic plugin that fails costs that message, or that
subscription, alone.

Upstream: no issue is known.
"""

import asyncio
import contextlib
import logging
import ssl
from typing import Any, Final

from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.errors import ProtocolHandlerError
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.pingreq import PingReqPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import ApplicationMessage, Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

_QUEUING_ITERATIONS: Final = 2  # of the loop, from a packet to its message in the queue: a PUBREL takes two
_QUIET_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0
# Looks in a row that see no progress before messages are given up. They are counted, not timed, so that a process that
# was suspended for a minute has lost one look.
_LOOKS: Final = 10


def mend(broker: Any) -> None:
    """Pass on each message with the rights of its publisher.

    amqtt ends a connection for a message on a topic that clients may not use. The messages behind it are passed on too.
    """
    failed, refused = LineLimit(_QUIET_SECONDS), LineLimit(_QUIET_SECONDS)

    def by_publishers(deliver: amqtt_broker.Step) -> amqtt_broker.Step:
        async def pass_on(_: Session, handler: ClientHandler, waiter: "asyncio.Future[Any]") -> bool:
            try:
                goes_on = await deliver(handler.publisher, handler, waiter)
            except Exception:  # of a topic plugin
                goes_on = True
                if count := failed.count():
                    log.exception("%d acknowledged message(s) were not passed on; the last one failed so", count)
            if not goes_on:
                await handler.handle_connection_closed()
            return True

        return pass_on

    def or_refused(subscribe: amqtt_broker.Step) -> amqtt_broker.Step:
        async def subscribe_or_refuse(subscription: tuple[str, int], session: Session) -> Any:
            try:
                return await subscribe(subscription, session)
            except Exception:  # of a topic plugin
                if count := refused.count():
                    log.exception("%d subscription(s) are refused; the last one failed so", count)
                return amqtt_broker.REFUSED

        return subscribe_or_refuse

    amqtt_broker.replace(broker, amqtt_broker.Steps.DELIVER, by_publishers)
    amqtt_broker.replace(broker, amqtt_broker.Steps.SUBSCRIBE, or_refused)


class ClientHandler(BrokerProtocolHandler):
    """The handler of a client's connection, which keeps the client's messages until they have been passed on."""

    def __init__(self, plugins_manager: Any) -> None:
        super().__init__(plugins_manager)
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[DisconnectPacket | None] = loop.create_future()
        """Done when nothing more is read; the result is the client's DISCONNECT, or None without one."""
        self.served = asyncio.Event()
        """Set to end amqtt's task that serves the connection; the task finishes its present step first."""
        self.over = asyncio.Event()
        """Set when the connection has ended and its will, if one is due, has been sent."""
        self.publisher: Session | None = None
        """A copy of the session with this connection's user and will; its rights apply to the messages.

        A later connection may continue the session with another user.
        """
        self.passed = 0
        """How many messages have been passed on."""
        self._unpassed: asyncio.Queue[ApplicationMessage] = asyncio.Queue()
        self._in_hand = 0
        self._waiting: asyncio.Future[None] | None = None
        self._is_given_up = False

    @property
    def left(self) -> int:
        """Return how many messages have not been passed on."""
        return self._unpassed.qsize() + self._in_hand

    def attach(self, session: Session, reader: ReaderAdapter, writer: WriterAdapter) -> None:
        """Attach a session to its connection; the messages that it receives enter the queue of this handler."""
        super().attach(session, _PatientReader(reader), _Writer(writer))
        session.delivered_message_queue = self._unpassed

    async def stop(self) -> None:
        """Stop reading and close the connection; keep the messages that have not been passed on."""
        await self.handle_disconnect(None)
        await super().stop()
        if self.session is not None and self.session.delivered_message_queue is self._unpassed:
            self.session.delivered_message_queue = asyncio.Queue()  # one that amqtt may clear

    async def wait_disconnect(self) -> None:
        """Wait for `served`: amqtt ends its task that serves the connection when this returns."""
        await self.served.wait()

    async def handle_disconnect(self, disconnect: DisconnectPacket | None) -> None:
        """Set the result of `ended`; the first call counts."""
        if not self.ended.done():
            self.ended.set_result(disconnect)

    async def handle_connect(self, connect: ConnectPacket) -> None:
        """End the connection: a second CONNECT breaks the protocol."""
        await super().handle_connect(connect)
        await self.handle_disconnect(None)

    async def handle_publish(self, publish_packet: PublishPacket) -> None:
        """Queue a message, and acknowledge it unless the connection ends meanwhile."""
        with contextlib.suppress(ProtocolHandlerError):
            await super().handle_publish(publish_packet)

    async def handle_pingreq(self, pingreq: PingReqPacket) -> None:
        """Answer a PINGREQ, unless the connection ends meanwhile."""
        with contextlib.suppress(ProtocolHandlerError):
            await super().handle_pingreq(pingreq)

    async def mqtt_deliver_next_message(self) -> ApplicationMessage:
        """Return the next message to pass on.

        amqtt calls this when it has finished the message before: passed it on, or dropped it because the ACL refused.
        """
        if self._in_hand:
            self._in_hand = 0
            self.passed += 1
            self._unpassed.task_done()
        message = await self._unpassed.get()
        self._in_hand = 1
        return message

    async def all_passed(self) -> str:
        """Wait until no message is left, or until they are given up; return the reason for that.

        Messages are given up when the broker ends, or when the ACL answers about none of them for ten seconds.
        """
        waiting = self._waiting = asyncio.ensure_future(self._unpassed.join())
        looks, passed = _LOOKS, self.passed
        while looks and not (self._is_given_up or waiting.done()):
            await asyncio.wait((waiting,), timeout=_LOOK_SECONDS)
            looks, passed = _LOOKS if self.passed != passed else looks - 1, self.passed
        waiting.cancel()
        return "the broker ends" if self._is_given_up else f"the ACL has not answered for {_LOOKS * _LOOK_SECONDS:g} s"

    def give_up(self) -> None:
        """End `all_passed` although messages are left: the broker ends."""
        self._is_given_up = True
        if self._waiting is not None:
            self._waiting.cancel()


class _PatientReader(ReaderAdapter):
    """A connection's reader that reports the end of the stream when the packets before it have been queued."""

    def __init__(self, inner: ReaderAdapter) -> None:
        self._inner = inner

    async def read(self, n: int = -1) -> bytes:
        """Return the next `n` bytes."""
        try:
            return await self._inner.read(n)
        except (EOFError, OSError):
            await _queuing()
            raise

    def feed_eof(self) -> None:
        """End the stream."""
        self._inner.feed_eof()


async def _queuing() -> None:
    for _ in range(_QUEUING_ITERATIONS):
        await asyncio.sleep(0)


class _Writer(WriterAdapter):
    """A connection's writer that raises no error when the connection is lost, and drops what cannot be sent.

    Only the reader reports the end of a connection. asyncio closes a connection when its first PUBACK cannot be sent,
    and there may be more to read then.
    """

    def __init__(self, inner: WriterAdapter) -> None:
        self.inner = inner
        self._transport = amqtt_broker.transport_of(inner)
        self._is_lost = False

    def write(self, data: bytes) -> None:
        """Write data, or drop it if the connection is lost."""
        if self._transport is not None and self._transport.is_closing():
            self._is_lost = True
        if not self._is_lost:
            self.inner.write(data)

    async def drain(self) -> None:
        """Wait until more can be written."""
        if self._is_lost:
            return
        try:
            await self.inner.drain()
        except amqtt_broker.LOST_ERRORS:
            self._is_lost = True

    def get_peer_info(self) -> tuple[str, int] | None:
        """Return the peer's address and port."""
        return self.inner.get_peer_info()

    def get_ssl_info(self) -> ssl.SSLObject | None:
        """Return the TLS state of the connection; None without TLS."""
        return self.inner.get_ssl_info()

    async def close(self) -> None:
        """Close the connection."""
        await self.inner.close()
