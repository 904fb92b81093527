"""The private names of amqtt 0.12.1 that this package uses: all of them are in this module.

An upgrade of amqtt begins here: look up each name in the new `amqtt/broker.py` and `amqtt/plugins/manager.py`, and run
the tests of the broker; those of `repairs` show which defects are mended upstream. The functions take a broker whose
constructor runs, or has run, and are called in its loop unless they say otherwise.

amqtt has hooks for messages of clients, and runs them in a task for each message. It has no hook for last wills, `$SYS`
topics and messages of plugins, for a new connection, or for a CONNECT before it gets its session. In these places a
function of this package replaces one of amqtt's `Steps`.
"""

import asyncio
import sys
import traceback
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

from amqtt import adapters
from amqtt.broker import DEFAULT_PORTS, Broker, BrokerContext
from amqtt.contexts import Action, ListenerConfig
from amqtt.errors import MQTTError, PluginInitError
from amqtt.events import MQTTEvents
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.pubcomp import PubcompPacket
from amqtt.mqtt.pubrec import PubrecPacket
from amqtt.plugins.authentication import AnonymousAuthPlugin
from amqtt.plugins.manager import PluginManager
from amqtt.session import Session

Step = Callable[..., Coroutine[Any, Any, Any]]
"""A coroutine function of the broker, with amqtt's own parameters."""


class Steps(StrEnum):
    """The broker's coroutine functions that `replace` replaces; each says what it does, and its arguments."""

    SERVE_STREAM = "stream_connected"
    """Serve a TCP connection: reader, writer, name of the listener."""
    SERVE_WEBSOCKET = "ws_connected"
    """Serve a WebSocket: it, name of the listener."""
    READ_CONNECT = "_initialize_client_session"
    """Read a CONNECT, and return handler and session: reader, writer, address, port."""
    SERVE_CLIENT = "_handle_client_session"
    """Serve the client of a CONNECT: reader, writer, session, handler, server, name of the listener."""
    AUTHENTICATE = "_authenticate"
    """Return whether a client may connect: session, listener."""
    SERVE_PACKETS = "_client_message_loop"
    """Do what the packets of a client ask, until its connection ends: session, handler."""
    SUBSCRIBE_ALL = "_handle_subscription"
    """Subscribe what a SUBSCRIBE asks, and acknowledge it: session, handler, its future."""
    UNSUBSCRIBE_ALL = "_handle_unsubscription"
    """Do the same for an UNSUBSCRIBE."""
    END_CONNECTION = "_handle_disconnect"
    """End a connection, and send its will: session, handler, future of the packet that ended it."""
    STOP_HANDLER = "_stop_handler"
    """Stop the handler of a connection: handler."""
    BROADCAST = "_broadcast_message"
    """Send a message to the subscribers, whatever its source, after the ACL: session, topic, payload, QoS or None."""
    RETAIN = "retain_message"
    """Retain a message: session, topic, payload, QoS."""
    SUBSCRIBE = "add_subscription"
    """Subscribe a session, and return the code for SUBACK: filter and QoS, session."""
    PUBLISH_RETAINED = "_publish_retained_messages_for_subscription"
    """Send a session what is retained for a filter: filter and QoS, session."""
    DELIVER = "_handle_message_delivery"
    """Ask the ACL about a client's message, broadcast it; False ends the connection: session, handler, its future."""
    DECIDE = "_topic_filtering"
    """Return whether a client may, by the topic plugins: session, topic or filter, action."""
    LISTEN = "_create_server_instance"
    """Make a listener: name, type, address, port, TLS context."""
    FORWARD = "_broadcast_loop"
    """Forward messages to their subscribers, until the shutdown."""
    END_FORWARDING = "_shutdown_broadcast_loop"
    """End forwarding at the shutdown, once all sessions have ended."""


PACKET_RECEIVED: Final = MQTTEvents.PACKET_RECEIVED
"""The event with the arguments `packet` and, unless it is the CONNECT, `session`."""
DiscardedPacketError: Final = MQTTError
"""Raised for a packet by a step of `replace_packet_event`, it discards the packet."""


LOST_ERRORS: Final = (OSError, RuntimeError, adapters.ConnectionClosed)  # type: ignore[attr-defined]  # its import
"""What amqtt's writers raise of a connection that is lost: TCP with asyncio, with uvloop, and WebSockets."""

REFUSED: Final = 0x80
"""Of a subscription, in SUBACK: MQTT 3.1.1 section 3.9.3."""


def replace(broker: Any, step: Steps, new: Step) -> Step:
    """Replace a step, and return the former one, which the new one may call."""
    former = present(broker, step)
    setattr(broker, step, new)
    return former


def present(broker: Any, step: Steps) -> Step:
    """Return a step as it is now."""
    return cast("Step", getattr(broker, step))


# The broker that a plugin runs in.


def broker_of(context: BrokerContext) -> Any:
    """Return the broker behind a plugin's context; it has no plugin manager while plugins are constructed."""
    return context._broker_instance


def queue_length(broker: Any) -> Callable[[], int]:
    """Return a function that counts the messages which wait to be forwarded, of all publishers."""
    return cast("Callable[[], int]", broker._broadcast_queue.qsize)


class Acl:
    """The topic plugins of a broker, which decide who may publish what."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    @property
    def is_there(self) -> bool:
        """Return whether there is a topic plugin; otherwise every client may publish everything."""
        return bool(self._broker.plugins_manager.is_topic_filtering_enabled())

    async def may_publish(self, session: Session, topic: str) -> bool:
        """Ask the plugins, as amqtt does for a publish."""
        return bool(await self._broker._topic_filtering(session, topic, Action.PUBLISH))


def hooks(manager: Any) -> dict[Any, list[Step]]:
    """Return the hooks of a plugin manager by event, to be changed in place."""
    return cast("dict[Any, list[Step]]", manager._event_plugin_callbacks)


def failed_plugin(error: Exception) -> str | None:
    """Return the class name of the plugin whose constructor failed, None for another error; amqtt has it in a text."""
    if not isinstance(error, PluginInitError):
        return None
    return str(error).rpartition("<class '")[2].partition("'")[0].rpartition(".")[2]


def plugins_before(error: Exception) -> list[Any]:
    """Return the plugins constructed before the one that failed; only the traceback still refers to them."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        manager = frame.f_locals.get("self")
        if isinstance(manager, PluginManager):
            return list(manager.plugins)
    return []


# Messages on their way to the subscribers.


async def broadcast(broker: Any, session: Session, topic: str | None, payload: Any, qos: int | None) -> None:
    """Send a message to the subscribers, as if the client of a session had published it."""
    await broker._broadcast_message(session, topic, payload, qos)


def broadcast_at_most(broker: Any, session: Session | None, topic: str, payload: Any, qos: int) -> None:
    """Send a message to the subscribers, to each with the lower of this QoS and that of its subscription."""
    broker._broadcast_queue.put_nowait(_AtMost(session=session, topic=topic, data=payload, qos=qos))


class _AtMost(dict[str, Any]):
    """A message as amqtt queues it; amqtt asks for its QoS with the subscription's QoS as the default."""

    def get(self, key: str, default: Any = None) -> Any:
        return min(self[key], default) if key == "qos" else super().get(key, default)


class _Zero(int):
    """0 that counts as true."""

    def __bool__(self) -> bool:
        return True


RETAINED_QOS_0: Final = _Zero()
"""QoS 0 of a retained message; in place of a plain 0, which is false, amqtt uses the QoS of the subscription."""


def replace_packet_event(broker: Any, new: Step) -> Step:
    """Replace the step that fires events at plugins, and return the former one.

    Its arguments are the event and the arguments of that.

    The reader of a client awaits this step for each packet. A step that waits stops the reading of that client only,
    and one that raises `DiscardedPacketError` discards the packet.
    """
    former: Step = broker.plugins_manager.fire_event
    broker.plugins_manager.fire_event = new
    return former


def ends_something(packet: Any) -> bool:
    """Return whether a client's packet acknowledges a message (PUBACK, PUBREC, PUBCOMP) or is a DISCONNECT."""
    return isinstance(packet, (PubackPacket, PubrecPacket, PubcompPacket, DisconnectPacket))


def note_authentication(broker: Any, attribute: str) -> None:
    """Set an attribute of each session to the user name that a plugin has authenticated, or to None.

    amqtt's `AnonymousAuthPlugin` does not count: it accepts any name. Call this once the plugins are constructed.
    """
    manager = broker.plugins_manager
    ask = manager.map_plugin_auth

    async def asking(*, session: Session) -> Any:
        answers = await ask(session=session)
        certain = [answer for plugin, answer in answers.items() if not isinstance(plugin, AnonymousAuthPlugin)]
        session.attributes[attribute] = session.username if any(answer is True for answer in certain) else None
        return answers

    manager.map_plugin_auth = asking


async def publish_retained_without(broker: Any, prefix: str, subscription: tuple[str, int], session: Session) -> None:
    """Send a session the messages retained for a filter, except those whose topics begin with a prefix."""
    view = cast("Broker", _Hiding(broker, prefix))
    await Broker._publish_retained_messages_for_subscription(view, subscription, session)


class _Hiding:
    """A broker as `Broker._publish_retained_messages_for_subscription` uses it, without some retained messages."""

    def __init__(self, broker: Any, prefix: str) -> None:
        self.logger = broker.logger
        self._matches = broker._matches
        self._get_handler = broker._get_handler
        retained = broker._retained_messages.items()
        self._retained_messages = {topic: message for topic, message in retained if not topic.startswith(prefix)}


def replace_subscriptions(broker: Any, subscriptions: dict[str, list[tuple[Session, int]]]) -> None:
    """Replace the mapping of filters to sessions and QoS."""
    broker._subscriptions = subscriptions


async def forwarded(broker: Any) -> None:
    """Wait until every queued message has been forwarded, that is, its deliveries have begun.

    This queues a message on a topic without subscribers, and waits until it is freed: amqtt drops the message after it
    has looked for its subscribers, and CPython frees it at once, by its reference count.
    """
    passed = asyncio.Event()
    last = _Last(session=None, topic=f"$rest-bridge/{uuid.uuid4()}", data=b"")
    weakref.finalize(last, passed.set)
    broker._broadcast_queue.put_nowait(last)
    del last
    await passed.wait()


class _Last(dict[str, Any]):
    """A message as amqtt queues it, to which a weak reference is possible."""


def unsent(broker: Any) -> Iterator[tuple[int, bool]]:
    """Yield for each connected client the bytes that its socket has not taken, and whether a delivery waits for it.

    Deliveries with QoS 0 do not wait for up to 64 KiB.
    """
    for session, handler in list(sessions(broker).values()):
        transport = transport_of(getattr(handler, "writer", None))
        if transport is not None and session.transitions.is_connected():
            waits = handler._write_lock.locked() or bool(session.inflight_out)
            yield transport.get_write_buffer_size() + getattr(handler.writer, "gathered_bytes", 0), waits


def forward_next(broker: Any) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a function that takes the next queued message, asks the topic plugins, and starts the deliveries."""
    return partial(broker._run_broadcast, broker._tasks_queue)


def forwarding_shutdown(broker: Any) -> "asyncio.Future[Any]":
    """Return the future that is done when forwarding is to end; each start of the broker has a new one."""
    return cast("asyncio.Future[Any]", broker._broadcast_shutdown_waiter)


def deliveries(broker: Any) -> "deque[asyncio.Task[Any]]":
    """Return the tasks that send messages to subscribers, to be changed in place."""
    return cast("deque[asyncio.Task[Any]]", broker._tasks_queue)


# Connections.


def read_connects_as_of_newcomers(broker: Any, handler: type[BrokerProtocolHandler]) -> None:
    """Read each CONNECT as if its client had no session yet, so that none is changed before the authentication.

    `handler` is the class of the handlers of connections.
    """

    async def read_connect(reader: Any, writer: Any, address: str, port: int) -> Any:
        empty = cast("Broker", _NoSessions(broker))
        _, session = await Broker._initialize_client_session(empty, reader, writer, address, port)
        return handler(broker.plugins_manager), session

    replace(broker, Steps.READ_CONNECT, read_connect)


class _NoSessions:
    """A broker as `Broker._initialize_client_session` uses it, with no session that it could change."""

    def __init__(self, broker: Any) -> None:
        self.plugins_manager = broker.plugins_manager
        self.config = broker.config
        self.logger = broker.logger
        self._sessions: dict[str, Any] = {}

    async def _delete_session(self, client_id: str) -> None:
        """Keep the session of a client id until the client is known to be its owner."""


def sessions(broker: Any) -> dict[str, tuple[Session, Any]]:
    """Return each client id's session with the handler of its connection."""
    return cast("dict[str, tuple[Session, Any]]", broker._sessions)


def copy_of(session: Session) -> Session:
    """Return a shallow copy of a session, which keeps user and will when another connection continues the session.

    `Session()` is not called: it would make a state machine, 23 kB for each connection.
    """
    copy = Session.__new__(Session)
    vars(copy).update(vars(session))
    return copy


async def delete_session(broker: Any, client_id: str | None) -> None:
    """Forget the session of a client id."""
    await broker._delete_session(client_id)


async def stop_handler(broker: Any, handler: Any) -> None:
    """Stop the handler of a connection."""
    await broker._stop_handler(handler)


def end_reading(handler: Any) -> None:
    """Abort the connection of a handler that still reads packets, and cancel the task that reads them."""
    if handler._reader_task is None or handler._reader_stopped.is_set():
        return
    transport = transport_of(handler.writer)
    if transport is not None:
        transport.abort()
    handler._reader_task.cancel()


def transport_of(writer: Any) -> asyncio.WriteTransport | None:
    """Return the transport of amqtt's writer, or of a writer that wraps it as `inner`; None for a WebSocket."""
    stream = getattr(getattr(writer, "inner", writer), "_writer", None)
    return None if stream is None else cast("asyncio.WriteTransport", stream.transport)


# Listeners, and the broker as a service.


def is_run_by_amqtt() -> bool:
    """Return whether this process runs the `amqtt` command: nothing else imports the command's module."""
    return "amqtt.scripts.broker_script" in sys.modules


def servers(broker: Any) -> Iterator[tuple[str, Any]]:
    """Yield each listener's name and server; `instance` of a server has the sockets."""
    yield from broker._servers.items()


def forwarding_task(broker: Any) -> "asyncio.Task[None] | None":
    """Return the task that forwards messages to subscribers; None before the start."""
    return cast("asyncio.Task[None] | None", broker._broadcast_task)


def split_address(listener: ListenerConfig) -> tuple[str | None, int]:
    """Return the host and port of a listener's `bind`; raises `ValueError` when the port is not a number."""
    return Broker._split_bindaddr_port(str(listener.bind), DEFAULT_PORTS[listener.type])


def bare_address(address: str | None) -> str | None:
    """Return the address of a listener's `bind` as it can be bound, IPv6 without brackets; None for all addresses."""
    return (address and address.strip("[]")) or None


def load_certificate(listener: ListenerConfig) -> None:
    """Read the certificate and key of a TLS listener; raises what amqtt raises when they cannot be used."""
    Broker._create_ssl_context(listener)
