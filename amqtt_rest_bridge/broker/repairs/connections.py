"""The connections of clients, from CONNECT to the end: which steps of amqtt 0.12.1 are replaced, and why.

The life of a connection; names in capitals are steps of amqtt (`Steps`):

1. READ_CONNECT reads the CONNECT. Every CONNECT gets a new session and a `ClientHandler`, even if amqtt already has a
   session of the client.
2. SERVE_CLIENT is `serve_client`. It authenticates the client, ends an earlier connection with its client id, and calls
   amqtt's step. That calls AUTHENTICATE once more (`admit`), attaches the handler, and sends CONNACK.
3. The handler reads packets, and acknowledges them. It queues messages and subscriptions.
4. SERVE_PACKETS is `serve_packets`, which handles the queue in order: DELIVER, SUBSCRIBE_ALL or UNSUBSCRIBE_ALL.
5. When nothing more is read, `_Connections._end` waits until the queue is empty, calls END_CONNECTION, and sends the
   will if one is due.
6. At the shutdown END_FORWARDING is `give_up_all`, which drops what is still queued.

The defects:

- *Acknowledged messages are lost.* amqtt acknowledges a PUBLISH as soon as it has read it, and queues the message. A
  DISCONNECT, or the end of the stream, overtakes this queue: of 500 acknowledged messages 3 are passed on. The end of
  the stream also cancels the work on the last packets, so a DISCONNECT among them is forgotten, and the client's will
  is sent all the same. A failed write has the same effect, and logs a stack trace for each PUBACK. A topic plugin that
  fails for one message loses all messages behind it. Mended: the end of a connection is noted once all its packets are
  in the queue, and the connection ends when the queue is empty. A topic plugin that fails loses only that message.
- *A refused client changes the session of another client.* amqtt gives a CONNECT the session of its client id, changes
  the session's will and credentials, ends the earlier connection, and only then authenticates. Mended: the client is
  authenticated with a new session. Only then is the earlier connection ended, and the old session continued if the
  client asks for it.
- *A take-over sends the wrong will*, that of the later connection. If the client asks for a new session, amqtt leaves
  the earlier connection open (MQTT-3.1.4-2). Mended by the same order.
- *A SUBSCRIBE overtakes an UNSUBSCRIBE* of the same topic filter that came first, so the client has no subscription in
  the end. Also, each message costs a task and an `asyncio.wait` for four, a sixth of the broker's time. Mended: one
  task does what is in the queue.
- *Each packet is written by a system call of its own*, which costs more than everything else that the packet needs.
  Mended: the packets of a busy connection are gathered.

Upstream: https://github.com/Yakifo/amqtt/pull/89 brought the take-over; no issue is known.
"""

import asyncio
import contextlib
import logging
import ssl
from typing import Any, Final
from weakref import WeakKeyDictionary

from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.errors import ProtocolHandlerError
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.pingreq import PingReqPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler, Subscription
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from amqtt.session import ApplicationMessage, Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.amqtt_broker import Steps
from amqtt_rest_bridge.broker.repairs.permissions import send_will
from amqtt_rest_bridge.times import LineLimit, in_lull
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_TAKE_OVER_SECONDS: Final = 2.0  # how long a new connection waits for the end of the earlier one of its client id
_END_SECONDS: Final = 1.0  # how long the end of a connection waits for amqtt's task that serves it
_QUEUING_ITERATIONS: Final = 2  # of the loop, after which the message of a packet is in the queue; a PUBREL needs two
_YIELDED_ITERATIONS: Final = 2  # of the loop, for other clients and the bridge, after each message of a client
_QUIET_SECONDS: Final = 1.0  # between two lines about topic plugins that fail
# The ACL is given up when so many looks in a row find that nothing was taken from the queue. Looks are counted, not
# seconds: a process that was suspended for a minute has looked once, and gives up nothing.
_LOOK_SECONDS: Final = 1.0
_MOST_LOOKS: Final = 10
# A connection is busy while so many packets are written within so many seconds. Its packets are gathered, and written
# together in a lull of the loop, or when they have so many bytes.
_BUSY_PACKETS: Final = 8
_BUSY_SECONDS: Final = 0.01
_GATHERED_BYTES: Final = 16 << 10
# The attributes of a session that come from its present connection.
_CONNECTION_ATTRIBUTES: Final = (
    "will_flag", "will_topic", "will_message", "will_qos", "will_retain", "keep_alive", "username", "password",
    "is_anonymous", "remote_address", "remote_port", "ssl_object",
)  # fmt: skip

_handlers: "WeakKeyDictionary[Any, set[ClientHandler]]" = WeakKeyDictionary()


def mend(broker: Any) -> None:
    """Replace the steps of amqtt that begin, serve and end a connection."""
    _Connections(broker, _handlers.setdefault(broker, set()))


def handlers(broker: Any) -> list["ClientHandler"]:
    """Return the handlers of a mended broker's connections, also of ended ones whose messages are not yet passed on."""
    return list(_handlers.get(broker, ()))


class _Connections:
    """The connections of a broker: begins and ends each of them.

    Args:
        broker: The broker.
        handlers: The handlers of its connections, which this object adds and removes.
    """

    def __init__(self, broker: Any, handlers: set["ClientHandler"]) -> None:
        self._broker = broker
        self._handlers = handlers
        self._failure_warnings = LineLimit(_QUIET_SECONDS)
        self._latest: dict[str | None, ClientHandler] = {}  # the handler of the newest connection, by client id
        amqtt_broker.read_connects_as_of_newcomers(broker, ClientHandler)
        self._serve_as_amqtt = amqtt_broker.replace(broker, Steps.SERVE_CLIENT, self.serve_client)
        self._authenticate_as_amqtt = amqtt_broker.replace(broker, Steps.AUTHENTICATE, self.admit)
        amqtt_broker.replace(broker, Steps.SERVE_PACKETS, self.serve_packets)
        self._end_as_amqtt = amqtt_broker.present(broker, Steps.END_CONNECTION)
        self._end_forwarding_as_amqtt = amqtt_broker.replace(broker, Steps.END_FORWARDING, self.give_up_all)

    async def serve_client(
        self, reader: Any, writer: Any, session: Session, handler: "ClientHandler", server: Any, listener_name: str
    ) -> None:
        """Authenticate a client, serve its connection, and end it."""
        if not await self._authenticate_as_amqtt(session, self._broker.listeners_config[listener_name]):
            handler.attach(session, reader, writer)
            await handler.mqtt_connack_authorize(False)
            await writer.close()
            return
        session = await self._take_over(session)
        handler.publisher = amqtt_broker.copy_of(session)
        self._handlers.add(handler)
        self._latest[session.client_id] = handler
        # In a task of its own: otherwise each message would resume every coroutine between the loop and amqtt's.
        serving = asyncio.create_task(self._serve_as_amqtt(reader, writer, session, handler, server, listener_name))
        try:
            await asyncio.sleep(0)  # until `serving` has attached the handler: before that it cannot be stopped
            await asyncio.wait((serving, handler.reading_ended), return_when=asyncio.FIRST_COMPLETED)
            await self._end(session, handler, serving)
        finally:
            serving.cancel()
            self._handlers.discard(handler)
            if self._latest.get(session.client_id) is handler:
                del self._latest[session.client_id]
            handler.connection_ended.set()
        if serving.done() and not serving.cancelled():
            serving.result()

    async def _take_over(self, newcomer: Session) -> Session:
        """End the earlier connection of an authenticated client, and return the session for the new one.

        The earlier connection ends as if its client had gone: its messages are passed on before those of the new
        connection, and its will is sent, with the rights of its own user. If that takes more than two seconds, the new
        connection is served beside it.
        """
        sessions, client_id = amqtt_broker.sessions(self._broker), newcomer.client_id
        try:
            async with asyncio.timeout(_TAKE_OVER_SECONDS):
                while (earlier := self._latest.get(client_id)) is not None:
                    await earlier.handle_connection_closed()
                    await earlier.connection_ended.wait()
        except TimeoutError:
            # Several new connections may have waited for the same earlier one. The last of them gets the client id.
            if (earlier := self._latest.get(client_id)) is not None:
                await earlier.handle_connection_closed()
        if newcomer.clean_session:
            await amqtt_broker.delete_session(self._broker, client_id)
            return newcomer
        if client_id is None or client_id not in sessions:
            return newcomer
        session, _ = sessions[client_id]
        for name in _CONNECTION_ATTRIBUTES:
            setattr(session, name, getattr(newcomer, name))
        session.attributes = session.attributes | newcomer.attributes
        session.parent = 1
        return session

    async def admit(self, session: Session, _listener: Any) -> bool:
        """Return True: `serve_client` has authenticated the client.

        A session that an earlier connection still has is disconnected. Otherwise amqtt would end the connection that
        has the client id by now, which may be a later one.
        """
        if session.transitions.is_connected():
            session.transitions.disconnect()
        return True

    async def serve_packets(self, _: Session, handler: "ClientHandler") -> None:
        """Do what the packets of a client ask, until its connection ends."""
        await handler.pass_on(self._broker, self._failure_warnings)

    async def _end(self, session: Session, handler: "ClientHandler", serving: "asyncio.Task[Any]") -> None:
        """End a connection after its messages have been passed on. Without a DISCONNECT its will is sent."""
        await amqtt_broker.stop_handler(self._broker, handler)
        if not self._is_taken_over(session, handler):
            session.transitions.disconnect()  # from now on amqtt keeps what is published for the client
        reason = "its connection failed" if serving.done() else await handler.wait_until_passed()
        if left := handler.messages_left:
            client = loggable(session.client_id or "")
            log.warning("%s: %d acknowledged message(s) are dropped: %s", client, left, reason)
        handler.finish()
        if not (await asyncio.wait((serving,), timeout=_END_SECONDS))[0]:
            serving.cancel()
            await asyncio.wait((serving,), timeout=_END_SECONDS)
        if not self._is_taken_over(session, handler):
            session.will_flag = False  # so that amqtt's step sends no will: it is sent below
            await self._end_as_amqtt(session, handler, handler.reading_ended)
        publisher, has_disconnected = handler.publisher, isinstance(handler.reading_ended.result(), DisconnectPacket)
        if publisher is not None and publisher.will_flag and not has_disconnected:
            await send_will(self._broker, publisher)

    def _is_taken_over(self, session: Session, handler: "ClientHandler") -> bool:
        """Return whether a later connection has the session, since this connection did not end in time."""
        present, its_handler = amqtt_broker.sessions(self._broker).get(session.client_id or "", (None, None))
        return present is session and its_handler is not handler

    async def give_up_all(self) -> None:
        """Drop the messages of all connections, wait for the ends of these, and end forwarding."""
        left = list(self._handlers)
        for handler in left:
            handler.give_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                for handler in left:
                    await handler.connection_ended.wait()
        await self._end_forwarding_as_amqtt()


class ClientHandler(BrokerProtocolHandler):
    """The handler of a client's connection: it reads packets, acknowledges them, and queues what they ask.

    amqtt calls the methods `handle_...` for each packet, in a task that only reads. `pass_on` does what is in the
    queue, in a task of its own.
    """

    def __init__(self, plugins_manager: Any) -> None:
        super().__init__(plugins_manager)
        loop = asyncio.get_running_loop()
        self.reading_ended: asyncio.Future[DisconnectPacket | None] = loop.create_future()
        """Done when nothing more is read; the result is the client's DISCONNECT, or None without one."""
        self.connection_ended = asyncio.Event()
        """Set at the very end: no message is left, and the will, if one is due, has been sent."""
        self.publisher: Session | None = None
        """A copy of the session with this connection's user and will; its rights apply to the messages.

        A later connection may continue the session with another user.
        """
        self.messages_passed = 0
        """How many messages have been passed on."""
        self._queue: asyncio.Queue[Any] = asyncio.Queue()  # items: messages and subscriptions; None at the end
        self._queued_subscriptions = 0  # how many items are subscriptions; amqtt queues the messages itself
        self._items_done = 0
        self._items_in_work = 0  # 0 or 1
        self._is_finished = False  # `pass_on` is to end
        self._is_given_up = False  # the messages that are left are to be dropped
        self._all_passed: asyncio.Future[None] | None = None  # what `wait_until_passed` waits for

    def attach(self, session: Session, reader: ReaderAdapter, writer: WriterAdapter) -> None:
        """Attach a session to its connection; amqtt queues the session's messages in the queue of this handler."""
        super().attach(session, _PatientReader(reader), _Writer(writer))
        session.delivered_message_queue = self._queue

    async def stop(self) -> None:
        """Stop reading and close the connection; keep the messages that have not been passed on."""
        await self.handle_disconnect(None)
        await super().stop()
        if self.session is not None and self.session.delivered_message_queue is self._queue:
            self.session.delivered_message_queue = asyncio.Queue()  # one that amqtt may clear

    # What amqtt calls for a packet.

    async def handle_disconnect(self, disconnect: DisconnectPacket | None) -> None:
        """Set the result of `reading_ended`; the first call counts."""
        if not self.reading_ended.done():
            self.reading_ended.set_result(disconnect)

    async def handle_connect(self, connect: ConnectPacket) -> None:
        """End the connection: a second CONNECT breaks the protocol."""
        await super().handle_connect(connect)
        await self.handle_disconnect(None)

    async def handle_subscribe(self, subscribe: SubscribePacket) -> None:
        """Queue subscriptions behind the messages before them."""
        await super().handle_subscribe(subscribe)
        self._queue_subscriptions(await self.get_next_pending_subscription())

    async def handle_unsubscribe(self, unsubscribe: UnsubscribePacket) -> None:
        """Queue the end of subscriptions behind the messages before it."""
        await super().handle_unsubscribe(unsubscribe)
        self._queue_subscriptions(await self.get_next_pending_unsubscription())

    def _queue_subscriptions(self, subscriptions: Any) -> None:
        self._queued_subscriptions += 1
        self._queue.put_nowait(subscriptions)

    async def handle_publish(self, publish_packet: PublishPacket) -> None:
        """Queue a message, and acknowledge it unless the connection ends meanwhile."""
        with contextlib.suppress(ProtocolHandlerError):
            await super().handle_publish(publish_packet)

    async def handle_pingreq(self, pingreq: PingReqPacket) -> None:
        """Answer a PINGREQ, unless the connection ends meanwhile."""
        with contextlib.suppress(ProtocolHandlerError):
            await super().handle_pingreq(pingreq)

    # What is queued.

    @property
    def messages_left(self) -> int:
        """Return how many messages have not been passed on."""
        return self._queue.qsize() + self._items_in_work - self._queued_subscriptions

    async def pass_on(self, broker: Any, failed: LineLimit) -> None:
        """Pass on messages, and subscribe, in the order of the client's packets, until `finish`.

        Args:
            broker: The broker.
            failed: Limits the log of topic plugins that fail.
        """
        deliver = amqtt_broker.present(broker, Steps.DELIVER)
        while not self._is_finished and (item := await self._queue.get()) is not None:
            self._items_in_work = 1
            if isinstance(item, ApplicationMessage):
                try:
                    is_allowed = await deliver(self.publisher, self, _FinishedTask(item))
                except Exception:  # of a topic plugin
                    is_allowed = True
                    if count := failed.count():
                        log.exception("%d acknowledged message(s) were not passed on; the last one failed so", count)
                self.messages_passed += 1
                if not is_allowed:  # a topic that clients may not use; messages behind it are still passed on
                    await self.handle_connection_closed()
            else:
                step = Steps.SUBSCRIBE_ALL if isinstance(item, Subscription) else Steps.UNSUBSCRIBE_ALL
                await amqtt_broker.present(broker, step)(self.session, self, _FinishedTask(item))
                self._queued_subscriptions -= 1
            self._items_in_work = 0
            self._items_done += 1
            self._queue.task_done()
            for _ in range(_YIELDED_ITERATIONS):
                await asyncio.sleep(0)

    def finish(self) -> None:
        """End `pass_on` after its present item."""
        self._is_finished = True
        self._queue.put_nowait(None)

    async def wait_until_passed(self) -> str:
        """Wait until no message is left, or until the messages are given up; return why they would be given up.

        That is when the broker ends, or when the ACL has answered no question for ten seconds.
        """
        all_passed = self._all_passed = asyncio.ensure_future(self._queue.join())
        looks, done = _MOST_LOOKS, self._items_done
        while looks and not (self._is_given_up or all_passed.done()):
            await asyncio.wait((all_passed,), timeout=_LOOK_SECONDS)
            looks -= 1
            if self._items_done != done:
                looks, done = _MOST_LOOKS, self._items_done
        all_passed.cancel()
        seconds = _MOST_LOOKS * _LOOK_SECONDS
        return "the broker ends" if self._is_given_up else f"the ACL has not answered for {seconds:g} s"

    def give_up(self) -> None:
        """End `wait_until_passed` although messages are left: the broker ends."""
        self._is_given_up = True
        if self._all_passed is not None:
            self._all_passed.cancel()


class _FinishedTask:
    """What amqtt's steps get in place of a finished task: they only call `result`."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def result(self) -> Any:
        return self._result


class _PatientReader(ReaderAdapter):
    """A connection's reader that reports the end of the stream when the packets before it have been queued."""

    def __init__(self, inner: ReaderAdapter) -> None:
        self._inner = inner

    async def read(self, n: int = -1) -> bytes:
        """Return the next `n` bytes."""
        try:
            return await self._inner.read(n)
        except (EOFError, OSError):
            for _ in range(_QUEUING_ITERATIONS):
                await asyncio.sleep(0)
            raise

    def feed_eof(self) -> None:
        """End the stream."""
        self._inner.feed_eof()


class _Writer(WriterAdapter):
    """A connection's writer that raises no error when the connection is lost, and drops what cannot be sent.

    Only the reader reports the end of a connection, since there may be more to read when a PUBACK cannot be sent. The
    packets of a busy connection are gathered; those of others, and all of a WebSocket, are written at once.
    """

    def __init__(self, inner: WriterAdapter) -> None:
        self.inner = inner
        self._transport = amqtt_broker.transport_of(inner)
        self._loop = asyncio.get_running_loop()
        self._is_lost = False
        self._gathered: list[bytes] = []
        self.gathered_bytes = 0
        """How many bytes have not been given to the transport."""
        self._is_busy = False
        self._count = 0  # packets written since `_since`
        self._since = 0.0  # time of the loop

    def write(self, data: bytes) -> None:
        """Write data, or drop it if the connection is lost."""
        if self._transport is None:
            self.inner.write(data)
            return
        if self._is_lost or self._transport.is_closing():
            self._is_lost = True
            return
        self._count += 1
        if self._count == _BUSY_PACKETS:
            now = self._loop.time()
            self._is_busy, self._since, self._count = now - self._since < _BUSY_SECONDS, now, 0
        if not self._gathered:
            if not self._is_busy or self._loop.time() - self._since > _BUSY_SECONDS:
                self._transport.write(data)
                return
            in_lull(self._flush)
        self._gathered.append(data)
        self.gathered_bytes += len(data)
        if self.gathered_bytes > _GATHERED_BYTES:
            self._flush()

    async def drain(self) -> None:
        """Wait until more can be written."""
        if self._is_lost or (self._transport is not None and not self._transport.get_write_buffer_size()):
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
        self._flush()
        await self.inner.close()

    def _flush(self) -> None:
        gathered, self._gathered, self.gathered_bytes = self._gathered, [], 0
        if gathered and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(gathered))
