"""What a worker needs of a broker, tried on the broker itself: `rest-bridge worker --probe`. The event loop only.

`probe` runs the functions below that `_check` marks, from the first to the last; each says what it needs, and what to
do where the broker lacks it. Workers that run meanwhile notice nothing: all messages are below
`bridge/<group>/probe/<random>/`, but for one that `coreflux` needs, and all client ids begin with `<group>-probe-`.
Sessions and retained messages are removed at the end, also when the probe is interrupted.

SOURCE_TOPICs are subscribed under a share of the probe's own, which takes no message from workers, and only
for a moment. Nothing is published on DESTINATION_TOPICs, where it would count as a result; they are listed instead.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.lot.route_set import read_filters, reply_filters
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish, Will
from amqtt_rest_bridge.mqtt.standard import NO_PROPERTIES, REASONS, Properties, Property
from amqtt_rest_bridge.mqtt.values import Address, BrokerError, ClientSession, NoAnswerError, Subscription
from amqtt_rest_bridge.settings import PASSWORD_VARIABLE, WorkerSettings
from amqtt_rest_bridge.tools.commands.command import COMMAND_TOPIC, ROOT
from amqtt_rest_bridge.topics import schedule_topic

WAIT_SECONDS: Final = 5.0
"""How long each message is waited for."""
_QUIET_SECONDS: Final = 0.2  # after which what should not come has not come
_KEPT_SECONDS: Final = 60  # how long the broker keeps a session of a probe that was killed
_SHARED: Final = 20  # messages for two members
_BACKLOG: Final = 1100  # messages: Mosquitto and EMQX as they come keep 1,000
_BESIDE_PAYLOAD: Final = 4096  # bytes of a packet: its topic and properties


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """What a check has found. `holds` is None where nothing was tried; `hint` is what to do where it does not hold."""

    name: str
    holds: bool | None
    detail: str
    hint: str = ""


class _CheckFailedError(BridgeError):
    """The broker lacks what a check needs; the message says what happened."""


class _Client:
    """A connection, and the messages that have come on it; none is acknowledged by itself."""

    def __init__(self, address: Address, session: ClientSession) -> None:
        self.connection = MqttConnection(address, session, lambda _, message: self.messages.put_nowait(message))
        self.messages: asyncio.Queue[Publish] = asyncio.Queue()

    async def subscribe(self, topic_filter: str, identifier: int | None = None, *, retained: bool = False) -> None:
        """Subscribe with QoS 1; raises `BrokerError`."""
        await self.connection.subscribe([Subscription(topic_filter, identifier, retained)])

    async def publish(
        self, topic: str, *payloads: bytes, retain: bool = False, properties: Properties = NO_PROPERTIES
    ) -> None:
        """Publish with QoS 1; raises `_CheckFailedError` unless the broker acknowledges all in time."""
        answers: asyncio.Queue[str | None] = asyncio.Queue()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                for payload in payloads:
                    while not self.connection.can_publish:
                        await asyncio.sleep(0.001)
                    self.connection.publish(topic, payload, answers.put_nowait, retain=retain, properties=properties)
                for _ in payloads:
                    if (why := await answers.get()) is not None:
                        raise _CheckFailedError(f"the broker refuses a message on {topic}: {why}")
        except TimeoutError:
            raise _CheckFailedError(
                f"the broker does not acknowledge a message on {topic}{await self._end()}"
            ) from None

    async def next(self, what: str) -> Publish:
        """Return the next message; raises `_CheckFailedError` when `what` does not come in time."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self.messages.get()
        except TimeoutError:
            raise _CheckFailedError(f"{what} does not come within {WAIT_SECONDS:g} s{await self._end()}") from None

    def acknowledge(self, *messages: Publish) -> None:
        """Acknowledge messages."""
        for message in messages:
            if message.packet_id is not None:
                self.connection.acknowledge(message.packet_id)

    async def is_quiet(self) -> bool:
        """Return whether nothing more comes."""
        await asyncio.sleep(_QUIET_SECONDS)
        return self.messages.empty()

    async def _end(self) -> str:
        return "" if self.connection.is_open else f": {await self.connection.ended()}"


class _Probe:
    """The broker, and all that has to be removed from it."""

    def __init__(self, address: Address, settings: WorkerSettings, routes: Iterable[Route]) -> None:
        self.settings = settings
        self.routes = tuple(routes)
        self.random = uuid.uuid4().hex[:8]
        self.publisher: _Client  # once it is connected
        self._address = address
        self._opened: list[MqttConnection] = []
        self._kept: set[str] = set()  # client ids whose sessions outlive their connections
        self._retained: set[str] = set()

    def topic(self, name: str) -> str:
        """Return the topic of a check."""
        return f"bridge/{self.settings.group}/probe/{self.random}/{name}"

    async def open(
        self, name: str, *, kept: int = 0, receive_maximum: int = 65_535, will: Will | None = None
    ) -> _Client:
        """Connect a client whose session is kept for so many seconds; raises `BrokerError`."""
        client_id = f"{self.settings.group}-probe-{self.random}-{name}"
        if kept:
            self._kept.add(client_id)
        if will is not None:
            self._retained.add(will.topic)
        client = _Client(self._address, ClientSession(client_id, kept, receive_maximum, will))
        self._opened.append(client.connection)
        await client.connection.open()
        return client

    async def subscribed(
        self, name: str, *, identifier: int | None = None, kept: int = 0, receive_maximum: int = 65_535
    ) -> _Client:
        """Connect a client that has subscribed the topic of a check."""
        client = await self.open(name, kept=kept, receive_maximum=receive_maximum)
        await client.subscribe(self.topic(name), identifier)
        return client

    async def publish(self, name: str, *payloads: bytes, properties: Properties = NO_PROPERTIES) -> None:
        """Publish on the topic of a check."""
        await self.publisher.publish(self.topic(name), *payloads, properties=properties)

    async def retain(self, name: str, payload: bytes) -> None:
        """Publish a retained message; an empty payload removes it."""
        self._retained.add(self.topic(name))
        await self.publisher.publish(self.topic(name), payload, retain=True)

    def check_available(self, name: Property) -> None:
        """Raise `_CheckFailedError` where the broker says that it lacks something."""
        if not self.publisher.connection.granted.properties.get(name, 1):
            raise _CheckFailedError("the broker says that it has none")

    async def remove(self) -> None:
        """End all connections, and remove what is left on the broker."""
        for connection in self._opened:
            await connection.disconnect()
        with contextlib.suppress(BridgeError):
            for client_id in self._kept:
                kept = MqttConnection(self._address, ClientSession(client_id, 0, 1), lambda *_: None)
                await kept.open()
                await kept.disconnect()
            if self._retained:
                last = await self.open("last")
                for topic in self._retained:
                    await last.publish(topic, b"", retain=True)
                await last.connection.disconnect()


@dataclass(frozen=True, slots=True)
class _Check:
    """One thing that a worker needs: `run` tries it and returns what it found, or raises `BridgeError`."""

    name: str
    hint: str
    run: Callable[[_Probe], Awaitable[str]]
    needs_coreflux: bool


_CHECKS: Final[list[_Check]] = []


def _check(
    name: str, hint: str, *, needs_coreflux: bool = False
) -> Callable[[Callable[[_Probe], Awaitable[str]]], None]:  # fmt: skip
    """Make a check of the function below: the name that the table shows, and what to do if it fails."""
    return lambda run: _CHECKS.append(_Check(name, hint, run, needs_coreflux))


async def probe(address: Address, settings: WorkerSettings, routes: Iterable[Route]) -> list[ProbeFinding]:
    """Try on a broker what a worker with these settings and routes needs; takes some seconds, a minute at most."""
    under_test = _Probe(address, settings, routes)
    findings: list[ProbeFinding] = []
    try:
        for check in _CHECKS:
            if check.needs_coreflux and settings.coreflux is None:
                continue
            if not all(one.holds for one in findings[:2]):  # without these two nothing can be tried
                findings.append(ProbeFinding(check.name, None, "not tried"))
                continue
            try:
                if findings and not under_test.publisher.connection.is_open:  # the check before has said why
                    under_test.publisher = await under_test.open("publisher")
                findings.append(ProbeFinding(check.name, True, await check.run(under_test)))
            except BridgeError as error:
                findings.append(ProbeFinding(check.name, False, str(error), check.hint))
    finally:
        await under_test.remove()
    topics: dict[str, None] = {}
    for route in under_test.routes:
        texts = [event.destination_topic for event in route.client_events]
        texts += [event.destination_topic for event in route.server_events]
        topics |= dict.fromkeys(text.source for text in texts if text is not None)
        topics |= dict.fromkeys(event.error_topic for event in route.client_events if event.error_topic is not None)
    return [*findings, ProbeFinding("DESTINATION_TOPICs", None, f"not tried: {', '.join(topics) or 'there are none'}")]


@_check(
    "MQTT 5",
    f"check the address, the certificates, user name and password ({PASSWORD_VARIABLE} or password_secret), and "
    "whether the broker speaks MQTT 5 there and takes client ids that begin with <group>-",
)
async def _mqtt_5(probe: _Probe) -> str:
    try:
        probe.publisher = await probe.open("publisher")
    except NoAnswerError as error:
        raise _CheckFailedError(f"{error}: it expects TLS, or speaks MQTT 3.1.1 only, as amqtt does") from error
    return "connected"


@_check("topics of the group", "allow the user of the workers to publish and subscribe bridge/<group>/#, with QoS 1")
async def _group_topics(probe: _Probe) -> str:
    client = await probe.subscribed("own")
    await probe.publish("own", b"own")
    client.acknowledge(await client.next(f"what was published on {probe.topic('own')}"))
    if not probe.publisher.connection.granted.properties.get(Property.MAXIMUM_QOS, 1):
        raise _CheckFailedError("the broker has QoS 0 only")
    return f"bridge/{probe.settings.group}/... may be published and subscribed with QoS 1"


@_check(
    "shared subscriptions",
    "switch them on (HiveMQ, EMQX: a setting of the listener or zone); a broker without them cannot have workers",
)
async def _shared(probe: _Probe) -> str:
    probe.check_available(Property.SHARED_SUBSCRIPTION_AVAILABLE)
    topic = probe.topic("shared")
    members = [await probe.open(f"member-{number}") for number in (1, 2)]
    for member in members:
        await member.subscribe(f"$share/{probe.settings.group}:probe-{probe.random}/{topic}")
    await probe.publisher.publish(topic, *(b"%d" % number for number in range(_SHARED)))
    taken: list[bytes] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_SECONDS):
            while len(taken) < _SHARED or not all([await member.is_quiet() for member in members]):
                for member in members:
                    while not member.messages.empty():
                        message = member.messages.get_nowait()
                        member.acknowledge(message)
                        taken.append(message.payload)
                await asyncio.sleep(0.01)
    if len(taken) != _SHARED or len({*taken}) != _SHARED:
        raise _CheckFailedError(
            f"of {_SHARED} messages for two members {len(taken)} came, {len({*taken})} of them different"
        )
    return f"{_SHARED} messages for two members came once each"


@_check("subscription identifiers", "switch them on; a broker without them cannot have workers")
async def _identifiers(probe: _Probe) -> str:
    probe.check_available(Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE)
    client = await probe.subscribed("identifiers", identifier=268_435_453)
    await probe.publish("identifiers", b"which")
    message = await client.next("the message of the subscription")
    if list(message.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())) != [268_435_453]:
        raise _CheckFailedError("a message came without the identifier of its subscription")
    return "a message has the identifier of its subscription"


@_check(
    "properties",
    "without them hops are not counted, and replies and Idempotency-Keys of publishers do not arrive: ask the "
    "broker's maker, or look for a rule or a proxy that rewrites messages",
)
async def _properties(probe: _Probe) -> str:
    sent = {
        Property.RESPONSE_TOPIC: probe.topic("answer"),
        Property.CORRELATION_DATA: b"\x00\xff",
        Property.USER_PROPERTY: [("first", "1"), ("first", "2"), ("second", "ä")],
    }
    client = await probe.subscribed("properties")
    await probe.publish("properties", b"", properties=sent)
    message = await client.next("the message")
    lost = [
        name.name.replace("_", " ").lower() for name, value in sent.items() if message.properties.get(name) != value
    ]
    if lost:
        raise _CheckFailedError(f"a message came without its {', '.join(lost)}, or with another")
    return "user properties, response topic and correlation data come as they were published"


@_check(
    "kept sessions",
    "let sessions be kept for session_expiry, and queue without a limit for those that are away: Mosquitto "
    "max_queued_messages 0 and no persistent_client_expiration, EMQX mqtt.max_mqueue_len and "
    "mqtt.session_expiry_interval, HiveMQ queued-messages and session-expiry; or lower session_expiry",
)
async def _kept(probe: _Probe) -> str:
    wanted = probe.settings.session_expiry
    client = await probe.open("kept", kept=wanted)
    granted = client.connection.granted.session_expiry  # the next connection shortens it
    await client.connection.disconnect()
    client = await probe.subscribed("kept", kept=_KEPT_SECONDS)
    await client.connection.disconnect()
    await probe.publish("kept", *(b"%d" % number for number in range(_BACKLOG)))
    client = await probe.open("kept", kept=_KEPT_SECONDS)
    if not client.connection.granted.session_present:
        raise _CheckFailedError("a client that comes back finds its session gone")
    came = 0
    with contextlib.suppress(_CheckFailedError):
        while came < _BACKLOG:
            client.acknowledge(await client.next("the next one"))
            came += 1
    if came < _BACKLOG:
        raise _CheckFailedError(f"of {_BACKLOG} messages for a session that was away {came} came")
    if granted < wanted:
        raise _CheckFailedError(f"sessions are kept for {granted} s, not for session_expiry, {wanted} s")
    return f"a session that was away got its {_BACKLOG} messages; it is kept for {granted} s"


@_check(
    "redelivery",
    "without it a message whose worker is killed is lost, or sent twice: do not use this broker for workers",
)
async def _redelivery(probe: _Probe) -> str:
    client = await probe.subscribed("again", kept=_KEPT_SECONDS)
    await probe.publish("again", b"once")
    await client.next("the message")
    client.connection.abort()
    client = await probe.open("again", kept=_KEPT_SECONDS)
    message = await client.next("what was not acknowledged on the connection before")
    client.acknowledge(message)
    if not message.duplicate:
        raise _CheckFailedError("what was not acknowledged comes again, and is not marked as a duplicate")
    return "what was not acknowledged comes again, marked as a duplicate"


@_check("takeover of a client id", "without it two workers may run one slot: ask the broker's maker")
async def _takeover(probe: _Probe) -> str:
    first = await probe.subscribed("taken", kept=_KEPT_SECONDS)
    second = await probe.open("taken", kept=_KEPT_SECONDS)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await first.connection.ended()
    except TimeoutError:
        raise _CheckFailedError("two connections with one client id are open at once") from None
    if not second.connection.granted.session_present:
        raise _CheckFailedError("a connection that takes a client id over does not get its session")
    await probe.publish("taken", b"taken")
    await second.next("a message for the session")
    return "a second connection ends the first one and has its session"


@_check(
    "Receive Maximum",
    "known of Mosquitto 2.0.11: after a lost connection some calls may run twice. Another broker may send a worker "
    "more than it has room for, or drop what waits for room: ask its maker",
)
async def _receive_maximum(probe: _Probe) -> str:
    client = await probe.subscribed("few", receive_maximum=2)
    await probe.publish("few", *(b"%d" % number for number in range(5)))
    held = [await client.next("the first message"), await client.next("the second message")]
    if not await client.is_quiet() or not client.connection.is_open:  # the connection ends if a third message comes
        raise _CheckFailedError("with Receive Maximum 2 more than two messages came before one was acknowledged")
    for number in range(2, 5):  # one at a time, as calls end
        client.acknowledge(held.pop(0))
        held.append(await client.next("the next message, once one was acknowledged,"))
        if held[-1].payload != b"%d" % number:
            raise _CheckFailedError("messages of one publisher come in another order")
    client.acknowledge(*held)
    return "two at a time came, in their order"


@_check("retained messages", "switch them on: workers retain their notices")
async def _retained(probe: _Probe) -> str:
    probe.check_available(Property.RETAIN_AVAILABLE)
    topic = probe.topic("retained")
    await probe.retain("retained", b"kept")
    client = await probe.open("retained")
    await client.subscribe(topic, retained=True)
    message = await client.next("a retained message")
    client.acknowledge(message)
    if not message.retain:
        raise _CheckFailedError("a retained message came without its mark")
    await probe.retain("retained", b"")
    late = await probe.open("late")
    await late.subscribe(topic, retained=True)
    if not await late.is_quiet():
        raise _CheckFailedError("a retained message came after it had been removed")
    return "one came to a later subscriber, and was removed"


@_check("wills", "without them a killed worker is missed only after adopt_seconds")
async def _wills(probe: _Probe) -> str:
    topic = probe.topic("will")
    watcher = await probe.open("watcher")
    await watcher.subscribe(topic)
    dying = await probe.open("dying", will=Will(topic, b"gone"))
    dying.connection.abort()
    watcher.acknowledge(await watcher.next("the will of a client whose connection ended"))
    await probe.retain("will", b"")
    return "published when a connection ended"


@_check(
    "large messages",
    "raise the limit (Mosquitto max_packet_size and message_size_limit, EMQX mqtt.max_packet_size, HiveMQ "
    "max-packet-size), or lower max_response_bytes and max_body_bytes",
)
async def _packet_size(probe: _Probe) -> str:
    settings, connection = probe.settings, probe.publisher.connection
    name = max(("max_response_bytes", "max_body_bytes"), key=lambda one: int(getattr(settings, one)))
    size = int(getattr(settings, name))
    if connection.granted.maximum_packet_size < size + _BESIDE_PAYLOAD:
        raise _CheckFailedError(
            f"the broker takes packets of {connection.granted.maximum_packet_size} bytes; {name} is {size}"
        )
    client = await probe.subscribed("large")  # not `publisher`: a broker may end the connection of a large message
    try:
        await client.publish(probe.topic("large"), bytes(size))
        await client.next("it")
    except _CheckFailedError as error:
        raise _CheckFailedError(f"a message of {size} bytes ({name}): {error}") from None
    return f"a message of {size} bytes ({name}) came"


@_check("SOURCE_TOPICs", "allow the user of the workers to subscribe them, shared where events are not ORDERED")
async def _source_topics(probe: _Probe) -> str:
    events = [(route, event) for route in probe.routes for event in route.client_events]
    share = f"$share/{probe.settings.group}:probe-{probe.random}"
    filters = {
        event.source_topic if event.is_in_order else f"{share}/{event.source_topic}": None
        for route, event in events
        if event.source_topic != schedule_topic(route.name, event.name)
    }
    filters |= dict.fromkeys([*read_filters(probe.routes), *reply_filters(probe.routes)])
    client = await probe.open("sources", receive_maximum=1)
    refused: list[str] = []
    for topic_filter in filters:
        try:
            await client.subscribe(topic_filter)
        except BrokerError as error:
            if error.code is None:
                raise
            refused.append(f"{topic_filter.removeprefix(share + '/')} ({REASONS[error.code]})")
        else:
            await client.connection.unsubscribe([Subscription(topic_filter)])
    if refused:
        raise _CheckFailedError(f"{len(refused)} of {len(filters)} subscription(s) refused: {', '.join(refused)}")
    return (
        f"{len(filters)} subscription(s) granted; what comes of them was not tried: Mosquitto grants "
        "also those for which its ACL delivers nothing"
    )


@_check(
    "commands (coreflux)",
    "Mosquitto and ejabberd carry nothing of clients below $SYS, whatever their ACLs say: leave coreflux out and "
    "change the files of routes, which are loaded within reload_seconds, or use Coreflux's tools with amqtt "
    f"and the plugin. With other brokers let the ACL allow what commands/README.md lists below {ROOT}",
    needs_coreflux=True,
)
async def _commands(probe: _Probe) -> str:
    # One of the topics that the ACL of the documents opens to workers; no route has such a name for long.
    topic = f"{ROOT}/Routes/probe-{probe.random}"
    client = await probe.open("commands")
    await client.subscribe(COMMAND_TOPIC)
    await client.subscribe(topic)
    await probe.publisher.publish(topic, b"commands")
    while (message := await client.next(f"what was published on {topic}")).topic != topic:
        client.acknowledge(message)  # a command, which the workers take by another subscription
    client.acknowledge(message)
    return f"a message below {ROOT} came; who may publish commands is up to the broker's ACL and was not tried"
