"""Clients of the broker: authenticated before they touch a session, and asked for leave of their wills. Its loop alone.

amqtt 0.12.1 gives a CONNECT the session of its client id (subscriptions, will, credentials) and then authenticates it;
one that it refuses has changed them all, and has ended the connection of the client whose id it is. And it sends any
will to any topic. Here a CONNECT is authenticated as a newcomer; only then it gets the session, as in amqtt.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from amqtt.broker import Broker
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.session import Session

from amqtt_rest_bridge.topics import check_topic_name, loggable

log = logging.getLogger(__name__)

_TAKE_OVER_SECONDS: Final = 2.0  # what a connection gets to end, before the next one has its session
_LOOK_SECONDS: Final = 0.05
# What a session has of the connection that it belongs to at the time.
_OF_THE_CONNECTION: Final = (
    "will_flag", "will_topic", "will_message", "will_qos", "will_retain", "keep_alive", "username", "password",
    "is_anonymous", "remote_address", "remote_port", "ssl_object",
)  # fmt: skip

MayPublish = Callable[[Session, str], Awaitable[bool]]
"""Ask the topic plugins whether a client may publish on a topic."""


class Connections:
    """Stand in for those steps of a broker that begin and end a connection.

    Args:
        broker: An amqtt broker whose constructor runs, or has run.
        may_publish: Asks the ACL.
    """

    def __init__(self, broker: Any, may_publish: MayPublish) -> None:
        self._broker = broker
        self._may_publish = may_publish
        self._authenticate = broker._authenticate
        self._serve = broker._handle_client_session
        self._end = broker._handle_disconnect
        self._let_in: set[int] = set()  # ids of the sessions that are authenticated, and not yet asked for by amqtt
        self._ends: dict[Any, asyncio.Event] = {}  # of the connections that are served, by their handlers
        broker._initialize_client_session = self._meet
        broker._handle_client_session = self._receive
        broker._authenticate = self._is_let_in
        broker._handle_disconnect = self._see_off

    async def _meet(self, reader: Any, writer: Any, address: str, port: int) -> Any:
        """Read a CONNECT; the session is a new one, whatever its client id."""
        return await Broker._initialize_client_session(
            cast("Broker", _NoSessions(self._broker)), reader, writer, address, port
        )

    async def _receive(
        self, reader: Any, writer: Any, session: Session, handler: Any, server: Any, listener_name: str
    ) -> None:
        """Authenticate a connection, and serve it."""
        if not await self._authenticate(session, self._broker.listeners_config[listener_name]):
            handler.attach(session, reader, writer)
            await handler.mqtt_connack_authorize(False)
            await writer.close()
            return
        session = await self._settle(session)
        self._let_in.add(id(session))
        end = self._ends[handler] = asyncio.Event()
        try:
            await self._serve(reader, writer, session, handler, server, listener_name)
        finally:
            self._let_in.discard(id(session))
            del self._ends[handler]
            end.set()

    async def _is_let_in(self, session: Session, listener: Any) -> bool:
        """Answer amqtt, which authenticates whom it serves, from what `_receive` has asked."""
        if id(session) in self._let_in:
            self._let_in.discard(id(session))
            return True
        return bool(await self._authenticate(session, listener))

    async def _settle(self, newcomer: Session) -> Session:
        """Return the session that an authenticated client goes on with; an earlier connection that has it ends."""
        sessions, client_id = self._broker._sessions, newcomer.client_id
        if newcomer.clean_session:
            await self._broker._delete_session(client_id)
            return newcomer
        if client_id not in sessions:
            return newcomer
        session, handler = sessions[client_id]
        if session.transitions.is_connected():
            await self._take_over(handler)
        for name in _OF_THE_CONNECTION:
            setattr(session, name, getattr(newcomer, name))
        session.attributes.update(newcomer.attributes)
        session.parent = 1
        return cast("Session", session)

    async def _take_over(self, handler: Any) -> None:
        """End a connection as if its client had gone: its will is sent, by its own rights (Decision).

        amqtt ends it too, but goes on at once; the will would be that of the next connection.
        """
        end = self._ends.get(handler)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_OVER_SECONDS):
                while end is not None and not end.is_set():
                    # Again and again, since a handler that starts forgets that it was told to end.
                    await handler.handle_connection_closed()
                    await handler.stop()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(end.wait(), _LOOK_SECONDS)

    async def _see_off(self, session: Session, handler: Any, waiter: "asyncio.Future[Any]") -> None:
        """End a connection; its will is sent where its client might publish."""
        if (
            session.will_flag
            and not isinstance(waiter.result(), DisconnectPacket)
            and not await self._may_leave_will(session)
        ):
            session.will_flag = False
            topic = loggable(session.will_topic or "")
            log.info("%s may not publish on %s: its will is not sent", _name(session), topic)
        await self._end(session, handler, waiter)

    async def _may_leave_will(self, session: Session) -> bool:
        topic = session.will_topic or ""
        if topic.startswith("$") or check_topic_name(topic) is not None:
            return False
        try:
            return await self._may_publish(session, topic)
        except Exception:
            log.exception("the ACL did not answer whether %s may publish on %s", _name(session), loggable(topic))
            return False


class _NoSessions:
    """A broker as `Broker._initialize_client_session` sees it, with no session that it could change."""

    def __init__(self, broker: Any) -> None:
        self.plugins_manager = broker.plugins_manager
        self.config = broker.config
        self.logger = broker.logger
        self._sessions: dict[str, Any] = {}

    async def _delete_session(self, client_id: str) -> None:
        """Keep the session of a client id until the client is known to be its owner."""


def _name(session: Session) -> str:
    return loggable(session.client_id or "")
