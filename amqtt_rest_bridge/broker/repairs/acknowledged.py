"""Defect, amqtt 0.12.1: messages that it has acknowledged are dropped when their publisher's connection ends.

amqtt answers a PUBLISH as soon as it has read it, and passes messages on one after the other. It handles a DISCONNECT,
or the end of the stream, before the messages in front of it: of 500 that were acknowledged 3 are passed on. The end of
the stream also cancels what has begun with the packets before it, a DISCONNECT too, whose client's will is then sent;
and so does a failed write, which logs a stack trace for each PUBACK. A topic plugin that fails once, for a message or a
subscription, costs all messages behind.

Mended: `ClientHandler` tells that its connection has ended once all that came has been handled, and keeps the messages
that have not been passed on; `connections` ends it when there are none left. A failure of a topic plugin costs that
message, or subscription, alone.

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

_BEGUN: Final = 2  # iterations of the loop in which what has been read is queued: a PUBREL's message in the second
_QUIET_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0
_LOOKS: Final = 10  # in which no message was passed on; a process that was stopped for longer counts one


def mend(broker: Any) -> None:
    """Pass on each message by the rights of its publisher, also those behind one for which amqtt ends a connection."""
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
    """The handler of a client's connection, which keeps what the client has published until it is passed on."""

    def __init__(self, plugins_manager: Any) -> None:
        super().__init__(plugins_manager)
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[DisconnectPacket | None] = loop.create_future()
        """Done when no more is read, with the DISCONNECT; None when there was none."""
        self.served = asyncio.Event()
        """Set for amqtt to end what serves the connection, once it has done what it is at."""
        self.over = asyncio.Event()
        """Set when all that follows from the end has been done."""
        self.publisher: Session | None = None
        """The session as it is with this connection; messages are passed on by its rights."""
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
        """Begin with the connection of a session, which has a queue of its own."""
        super().attach(session, _ToTheEnd(reader), _Writer(writer))
        session.delivered_message_queue = self._unpassed

    async def stop(self) -> None:
        """Stop reading and close the connection; what has been acknowledged stays."""
        await self.handle_disconnect(None)
        await super().stop()
        if self.session is not None and self.session.delivered_message_queue is self._unpassed:
            self.session.delivered_message_queue = asyncio.Queue()  # amqtt may clear that one

    async def wait_disconnect(self) -> None:
        """Wait until amqtt has passed on all."""
        await self.served.wait()

    async def handle_disconnect(self, disconnect: DisconnectPacket | None) -> None:
        """Note that the connection has ended."""
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
        """Answer unless the connection ends meanwhile."""
        with contextlib.suppress(ProtocolHandlerError):
            await super().handle_pingreq(pingreq)

    async def mqtt_deliver_next_message(self) -> ApplicationMessage:
        """Return the next message to pass on: amqtt asks for it when the one before has been passed on, or refused."""
        if self._in_hand:
            self._in_hand = 0
            self.passed += 1
            self._unpassed.task_done()
        message = await self._unpassed.get()
        self._in_hand = 1
        return message

    async def all_passed(self) -> str:
        """Wait until all messages have been passed on, or will not be; return why not."""
        waiting = self._waiting = asyncio.ensure_future(self._unpassed.join())
        looks, passed = _LOOKS, self.passed
        while looks and not (self._is_given_up or waiting.done()):
            await asyncio.wait((waiting,), timeout=_LOOK_SECONDS)
            looks, passed = _LOOKS if self.passed != passed else looks - 1, self.passed
        waiting.cancel()
        return "the broker ends" if self._is_given_up else f"the ACL has not answered for {_LOOKS * _LOOK_SECONDS:g} s"

    def give_up(self) -> None:
        """Pass on no more: the broker ends."""
        self._is_given_up = True
        if self._waiting is not None:
            self._waiting.cancel()


class _ToTheEnd(ReaderAdapter):
    """A connection's reader, which ends once what is done with the packets before has begun."""

    def __init__(self, inner: ReaderAdapter) -> None:
        self._inner = inner

    async def read(self, n: int = -1) -> bytes:
        """Read so many bytes."""
        try:
            return await self._inner.read(n)
        except (EOFError, OSError):
            await _begun()
            raise

    def feed_eof(self) -> None:
        """End the stream."""
        self._inner.feed_eof()


async def _begun() -> None:
    for _ in range(_BEGUN):
        await asyncio.sleep(0)


class _Writer(WriterAdapter):
    """A connection's writer, which drops what cannot be sent any more: that a connection has ended its reader tells.

    There may be more to read: asyncio closes a connection when its first PUBACK cannot be sent.
    """

    def __init__(self, inner: WriterAdapter) -> None:
        self.inner = inner
        self._transport = amqtt_broker.transport_of(inner)
        self._is_lost = False

    def write(self, data: bytes) -> None:
        """Write some data."""
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
        """Return what is known of a TLS connection."""
        return self.inner.get_ssl_info()

    async def close(self) -> None:
        """Close the connection."""
        await self.inner.close()
