"""Defect, amqtt 0.12.1: a client that is refused has changed the session of the client whose id it names.

amqtt gives a CONNECT the session of its client id (subscriptions, will, credentials), then authenticates it; one that
it refuses has changed them all, and has ended the connection of the client whose id it is. A connection that takes a
session over also sends its own will for that of the connection that it ends. One with a new session does not end the
earlier connection at all (MQTT-3.1.4-2), and drops the messages that amqtt has acknowledged to it.

Mended: a CONNECT is authenticated with a new session; only then it gets the old one, as in amqtt, and the earlier
connection ends. A connection ends when its messages have been passed on (see `acknowledged`), whatever ends it.

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

_TAKE_OVER_SECONDS: Final = 2.0  # what a connection gets to end, before the next one has its session
_END_SECONDS: Final = 1.0  # what a connection gets to end once its messages are given up
# The attributes of a session that are those of its present connection.
_OF_THE_CONNECTION: Final = (
    "will_flag", "will_topic", "will_message", "will_qos", "will_retain", "keep_alive", "username", "password",
    "is_anonymous", "remote_address", "remote_port", "ssl_object",
)  # fmt: skip

_handlers: "WeakKeyDictionary[Any, set[ClientHandler]]" = WeakKeyDictionary()


def mend(broker: Any) -> None:
    """Replace the steps that begin and end a connection."""
    _Connections(broker, _handlers.setdefault(broker, set()))


def handlers(broker: Any) -> list[ClientHandler]:
    """Return the handlers of a mended broker's connections, also of those that have ended with messages left."""
    return list(_handlers.get(broker, ()))


class _Connections:
    """The steps of a broker that begin and end a connection; it keeps `handlers` up to date."""

    def __init__(self, broker: Any, handlers: set[ClientHandler]) -> None:
        self._broker = broker
        self._handlers = handlers
        self._latest: dict[str | None, ClientHandler] = {}  # by client id
        self._admitted: set[int] = set()  # ids of the sessions that are authenticated, and not yet asked for by amqtt
        amqtt_broker.read_connects_as_of_newcomers(broker, ClientHandler)
        self._serve = amqtt_broker.replace(broker, Steps.SERVE_CLIENT, lambda _: self._receive)
        self._authenticate = amqtt_broker.replace(broker, Steps.AUTHENTICATE, lambda _: self._is_admitted)
        self._end_as_amqtt = amqtt_broker.replace(broker, Steps.END_CONNECTION, lambda _: _ended_later)
        self._end_forwarding = amqtt_broker.replace(broker, Steps.END_FORWARDING, lambda _: self._give_up)

    async def _receive(
        self, reader: Any, writer: Any, session: Session, handler: ClientHandler, server: Any, listener_name: str
    ) -> None:
        """Authenticate a connection, serve it until it has ended, and end it."""
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
        # A task of its own: amqtt resumes what serves a connection with each message, and all that waits for it.
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
        """Return to amqtt, which authenticates each connection, the result of `_receive`."""
        if id(session) in self._admitted:
            self._admitted.discard(id(session))
            return True
        return bool(await self._authenticate(session, listener))

    async def _session_of(self, newcomer: Session) -> Session:
        """Return the session that an authenticated client continues; an earlier connection of the client ends."""
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
        """End a connection as if its client had gone: its will is sent, by its own rights (Decision).

        What it has acknowledged is passed on first, for two seconds before that of the newcomer, then beside it.
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
        """End a connection when its messages are passed on; then its will is sent where its client might publish."""
        await amqtt_broker.stop_handler(self._broker, handler)
        if not self._is_another_ones(session, handler):
            session.transitions.disconnect()  # first, since what is sent to its client from now on has to be kept
        reason = "its connection failed" if serving.done() else await handler.all_passed()
        handler.served.set()
        if not (await asyncio.wait((serving,), timeout=_END_SECONDS))[0]:
            serving.cancel()
            await asyncio.wait((serving,), timeout=_END_SECONDS)
        if handler.left:
            client = loggable(session.client_id or "")
            log.warning("%s: %d acknowledged message(s) are dropped: %s", client, handler.left, reason)
        if not self._is_another_ones(session, handler):
            session.will_flag = False
            await self._end_as_amqtt(session, handler, handler.ended)
        publisher = handler.publisher
        if publisher is not None and publisher.will_flag and not isinstance(handler.ended.result(), DisconnectPacket):
            await wills.send(self._broker, publisher)

    def _is_another_ones(self, session: Session, handler: ClientHandler) -> bool:
        """Return whether a later connection has the session, since this one did not end in time."""
        present, its_handler = amqtt_broker.sessions(self._broker).get(session.client_id or "", (None, None))
        return present is session and its_handler is not handler

    async def _give_up(self) -> None:
        """End all connections: the broker ends."""
        left = list(self._handlers)
        for handler in left:
            handler.give_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                for handler in left:
                    await handler.over.wait()
        await self._end_forwarding()


async def _ended_later(*_: Any) -> None:
    """End nothing: `_Connections` does, once amqtt has ended what serves a connection."""
