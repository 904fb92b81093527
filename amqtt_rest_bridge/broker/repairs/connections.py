"""Defect, amqtt 0.12.1: a client with a wrong password changes the session of the client whose id it uses.

amqtt first gives a CONNECT the session of its client id, with subscriptions, will and credentials, and authenticates it
then. A client that is refused has overwritten them by that time, and has ended the connection of the rightful client.

Two more defects concern a client id that connects again. With the session that is there, amqtt ends the earlier
connection, but sends the will of the later one. With a new session, amqtt leaves the earlier connection open
(MQTT-3.1.4-2), and drops the messages that it has acknowledged there.

Mended: a CONNECT is authenticated with a new session. Only then does the earlier connection end, and the client gets
the old session if it wants it. Every connection ends after its messages have been passed on (see `acknowledged`).

Upstream: https://github.com/Yakifo/amqtt/pull/89 brought the take-over; no issue about its order is known.
"""

import asyncio
import contextlib
import logging
from typing import Any, Final
from weakref import WeakKeyDictionary

from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.amqtt_broker import Steps
from amqtt_rest_bridge.broker.repairs import wills
from amqtt_rest_bridge.broker.repairs.acknowledged import ClientHandler
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_TAKE_OVER_SECONDS: Final = 2.0  # how long a new connection waits for the end of the earlier one of its client id
_END_SECONDS: Final = 1.0  # how long the end of a connection waits for amqtt's task that serves it
# The attributes that a session takes from its present connection.
_OF_THE_CONNECTION: Final = (
    "will_flag", "will_topic", "will_message", "will_qos", "will_retain", "keep_alive", "username", "password",
    "is_anonymous", "remote_address", "remote_port", "ssl_object",
)  # fmt: skip

_handlers: "WeakKeyDictionary[Any, set[ClientHandler]]" = WeakKeyDictionary()


def mend(broker: Any) -> None:
    """Replace the steps that begin and end a connection."""
    _Connections(broker, _handlers.setdefault(broker, set()))


def handlers(broker: Any) -> list[ClientHandler]:
    """Return the handlers of a mended broker's connections; an ended connection counts until no message is left."""
    return list(_handlers.get(broker, ()))


class _Connections:
    """Begins and ends the connections of a broker in place of amqtt's steps, and keeps the set `handlers`."""

    def __init__(self, broker: Any, handlers: set[ClientHandler]) -> None:
        self._broker = broker
        self._handlers = handlers
        self._latest: dict[str | None, ClientHandler] = {}  # by client id
        self._admitted: set[int] = set()  # `id()` of each authenticated session about which amqtt will ask
        amqtt_broker.read_connects_as_of_newcomers(broker, ClientHandler)
        self._serve = amqtt_broker.replace(broker, Steps.SERVE_CLIENT, lambda _: self._receive)
        self._authenticate = amqtt_broker.replace(broker, Steps.AUTHENTICATE, lambda _: self._is_admitted)
        self._end_as_amqtt = amqtt_broker.replace(broker, Steps.END_CONNECTION, lambda _: _ended_later)
        self._end_forwarding = amqtt_broker.replace(broker, Steps.END_FORWARDING, lambda _: self._give_up)

    async def _receive(
        self, reader: Any, writer: Any, session: Session, handler: ClientHandler, server: Any, listener_name: str
    ) -> None:
        """Authenticate a client, serve its connection, and end it."""
        if not await self._authenticate(session, self._broker.listeners_config[listener_name]):
            handler.attach(session, reader, writer)
            await handler.mqtt_connack_authorize(False)
            await writer.close()
            return
        session = await self._session_of(session)
        handler.publisher = amqtt_broker.copy_of(session)
        self._admitted.add(id(session))
        self._handlers.add(handler)
        self._latest[session.client_id] = handler
        # A task of its own, since each message resumes amqtt's coroutine by way of all coroutines that await it.
        serving = asyncio.create_task(self._serve(reader, writer, session, handler, server, listener_name))
        try:
            await asyncio.sleep(0)  # it has attached the handler then, which can be stopped
            await asyncio.wait((serving, handler.ended), return_when=asyncio.FIRST_COMPLETED)
            await self._end(session, handler, serving)
        finally:
            serving.cancel()
            self._admitted.discard(id(session))
            self._handlers.discard(handler)
            if self._latest.get(session.client_id) is handler:
                del self._latest[session.client_id]
            handler.over.set()
        if serving.done() and not serving.cancelled():
            serving.result()

    async def _is_admitted(self, session: Session, listener: Any) -> bool:
        """Return whether a client may connect; amqtt asks again about clients that `_receive` has authenticated."""
        if id(session) in self._admitted:
            self._admitted.discard(id(session))
            return True
        return bool(await self._authenticate(session, listener))

    async def _session_of(self, newcomer: Session) -> Session:
        """End the earlier connection of an authenticated client, and return the session for the new one."""
        sessions, client_id = amqtt_broker.sessions(self._broker), newcomer.client_id
        await self._take_over(client_id)
        if newcomer.clean_session:
            await amqtt_broker.delete_session(self._broker, client_id)
            return newcomer
        if client_id is None or client_id not in sessions:
            return newcomer
        session, _ = sessions[client_id]
        for name in _OF_THE_CONNECTION:
            setattr(session, name, getattr(newcomer, name))
        session.attributes = session.attributes | newcomer.attributes
        session.parent = 1
        return session

    async def _take_over(self, client_id: str | None) -> None:
        """End the earlier connection of a client id as if its client had gone, and wait for its end.

        Decision: its will is sent, with the rights of its own user. Its messages are passed on before those of the new
        connection. If that takes more than two seconds, the new connection is served beside it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_OVER_SECONDS):
                while (earlier := self._latest.get(client_id)) is not None:
                    await earlier.handle_connection_closed()
                    await earlier.over.wait()
            return
        # Of several that have waited for the same one, the last has the client id.
        if (earlier := self._latest.get(client_id)) is not None:
            await earlier.handle_connection_closed()

    async def _end(self, session: Session, handler: ClientHandler, serving: "asyncio.Task[Any]") -> None:
        """End a connection after its messages have been passed on, and send its will without a DISCONNECT."""
        await amqtt_broker.stop_handler(self._broker, handler)
        if not self._is_taken_over(session, handler):
            session.transitions.disconnect()  # first: amqtt then keeps what is published for the client
        reason = "its connection failed" if serving.done() else await handler.all_passed()
        handler.served.set()
        if not (await asyncio.wait((serving,), timeout=_END_SECONDS))[0]:
            serving.cancel()
            await asyncio.wait((serving,), timeout=_END_SECONDS)
        if handler.left:
            client = loggable(session.client_id or "")
            log.warning("%s: %d acknowledged message(s) are dropped: %s", client, handler.left, reason)
        if not self._is_taken_over(session, handler):
            session.will_flag = False
            await self._end_as_amqtt(session, handler, handler.ended)
        publisher = handler.publisher
        if publisher is not None and publisher.will_flag and not isinstance(handler.ended.result(), DisconnectPacket):
            await wills.send(self._broker, publisher)

    def _is_taken_over(self, session: Session, handler: ClientHandler) -> bool:
        """Return whether a later connection has the session; it got it when this one did not end in time."""
        present, its_handler = amqtt_broker.sessions(self._broker).get(session.client_id or "", (None, None))
        return present is session and its_handler is not handler

    async def _give_up(self) -> None:
        """Drop the messages of all connections, wait for the ends of these, and end forwarding."""
        left = list(self._handlers)
        for handler in left:
            handler.give_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                for handler in left:
                    await handler.over.wait()
        await self._end_forwarding()


async def _ended_later(*_: Any) -> None:
    """Do nothing: `_Connections` ends the connection later, when amqtt's task that serves it has ended."""
