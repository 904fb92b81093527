"""Defect, amqtt 0.12.1: a client that is refused has changed the session of the client whose id it names.

amqtt gives a CONNECT the session of its client id (subscriptions, will, credentials), then authenticates it; one that
it refuses has changed them all, and has ended the connection of the client whose id it is. A connection that takes a
session over also sends its own will for that of the connection that it ends.

Mended: a CONNECT is authenticated with a new session; only then it gets the old one, as in amqtt.

Upstream: https://github.com/Yakifo/amqtt/pull/89 brought the take-over; no issue about its order is known.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any, Final

from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.amqtt_broker import Steps
from amqtt_rest_bridge.broker.repairs import wills
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_TAKE_OVER_SECONDS: Final = 2.0  # what a connection gets to end, before the next one has its session
_LOOK_SECONDS: Final = 0.05
# The attributes of a session that are those of its present connection.
_OF_THE_CONNECTION: Final = (
    "will_flag", "will_topic", "will_message", "will_qos", "will_retain", "keep_alive", "username", "password",
    "is_anonymous", "remote_address", "remote_port", "ssl_object",
)  # fmt: skip


def mend(broker: Any) -> None:
    """Replace the steps that begin and end a connection."""
    _Connections(broker)


@dataclass(frozen=True, slots=True, eq=False)
class _Served:
    """A connection that is served: `owner` has its client, credentials and will, `end` is set once it has ended.

    The session itself may be that of a later connection when an earlier one ends after a slow ACL.
    """

    owner: Session
    end: asyncio.Event = field(default_factory=asyncio.Event)


class _Connections:
    """The steps of a broker that begin and end a connection."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._admitted: set[int] = set()  # ids of the sessions that are authenticated, and not yet asked for by amqtt
        self._served: dict[Any, _Served] = {}  # by their handlers
        amqtt_broker.read_connects_as_of_newcomers(broker)
        self._serve = amqtt_broker.replace(broker, Steps.SERVE_CLIENT, lambda _: self._receive)
        self._authenticate = amqtt_broker.replace(broker, Steps.AUTHENTICATE, lambda _: self._is_admitted)
        self._end = amqtt_broker.replace(broker, Steps.END_CONNECTION, lambda _: self._disconnect)

    async def _receive(
        self, reader: Any, writer: Any, session: Session, handler: Any, server: Any, listener_name: str
    ) -> None:
        """Authenticate a connection, and serve it."""
        if not await self._authenticate(session, self._broker.listeners_config[listener_name]):
            handler.attach(session, reader, writer)
            await handler.mqtt_connack_authorize(False)
            await writer.close()
            return
        session = await self._session_of(session)
        self._admitted.add(id(session))
        served = self._served[handler] = _Served(amqtt_broker.copy_of(session))
        try:
            # A task of its own: amqtt resumes what serves a connection with each message, and all that waits for it.
            await asyncio.create_task(self._serve(reader, writer, session, handler, server, listener_name))
        finally:
            self._admitted.discard(id(session))
            del self._served[handler]
            served.end.set()

    async def _is_admitted(self, session: Session, listener: Any) -> bool:
        """Return to amqtt, which authenticates each connection, the result of `_receive`."""
        if id(session) in self._admitted:
            self._admitted.discard(id(session))
            return True
        return bool(await self._authenticate(session, listener))

    async def _session_of(self, newcomer: Session) -> Session:
        """Return the session that an authenticated client continues; an earlier connection that has it ends."""
        sessions, client_id = amqtt_broker.sessions(self._broker), newcomer.client_id
        if newcomer.clean_session:
            await amqtt_broker.delete_session(self._broker, client_id)
            return newcomer
        if client_id is None or client_id not in sessions:
            return newcomer
        session, handler = sessions[client_id]
        if session.transitions.is_connected():
            await self._take_over(handler)
        if session.username != newcomer.username:
            _drop_unasked(session)
        for name in _OF_THE_CONNECTION:
            setattr(session, name, getattr(newcomer, name))
        session.attributes.update(newcomer.attributes)
        session.parent = 1
        return session

    async def _take_over(self, handler: Any) -> None:
        """End a connection as if its client had gone: its will is sent, by its own rights (Decision).

        amqtt ends it too, but continues at once; the will would be that of the next connection.
        """
        served = self._served.get(handler)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_OVER_SECONDS):
                while served is not None and not served.end.is_set():
                    # Again and again, since a handler that starts forgets that it was stopped.
                    await handler.handle_connection_closed()
                    await handler.stop()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(served.end.wait(), _LOOK_SECONDS)

    async def _disconnect(self, session: Session, handler: Any, waiter: "asyncio.Future[Any]") -> None:
        """End a connection; then its will is sent where its client might publish."""
        owner = self._served[handler].owner
        present, its_handler = amqtt_broker.sessions(self._broker).get(session.client_id or "", (None, None))
        if present is session and its_handler is not handler:
            # A later connection has the session, since this one did not end in time: the rest of amqtt's step would
            # end that one.
            await amqtt_broker.stop_handler(self._broker, handler)
        else:
            session.will_flag = False
            await self._end(session, handler, waiter)
        if owner.will_flag and not isinstance(waiter.result(), DisconnectPacket):
            await wills.send(self._broker, owner)


def _drop_unasked(session: Session) -> None:
    """Drop messages of a session's earlier user on which the ACL has not been asked: it would be asked for the next.

    Decision: acknowledged ones too, but for lossless routes, which have them on disk with their publisher.
    """
    waiting = session.delivered_message_queue
    if not waiting.empty():
        client, count = loggable(session.client_id or ""), waiting.qsize()
        log.warning("%s has another user: %d message(s) of the earlier one are dropped", client, count)
    while not waiting.empty():
        waiting.get_nowait()
