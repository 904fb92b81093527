"""QOS: with which QoS subscribers of 0, 1 and 2 receive what is published, by the plugin and by a worker."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest

from amqtt_rest_bridge.errors import PublicationRefusedError
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.mqtt import standard
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import acknowledgement, publish
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.values import Address
from tests.mqtt.scripted import read, run, run_connected
from tests.support.asking import ask
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import recording
from tests.support.http_target import Peer
from tests.support.ports import free_port
from tests.worker.mosquitto import SECONDS, Client, Mosquitto
from tests.worker.test_connection import accept, opened
from tests.worker.workers import Group

SETTINGS: dict[str, int | None] = {"none": None, "zero": 0, "one": 1, "two": 2}
KINDS = ("result", "failure", "request")
_START = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH ENABLE_SERVER "true"
        WITH SERVER_PORT '{port}'
"""
_EVENTS = """
    ADD EVENT Ask_{name} WITH SOURCE_TOPIC "in/{name}" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out/{name}/result" WITH RETAIN "true" {qos}
    ADD EVENT Fail_{name} WITH SOURCE_TOPIC "in/{name}" WITH METHOD "POST" WITH ENDPOINT "/{{value.json.x}}"
        WITH DESTINATION_TOPIC "out/{name}/failure" {qos}
    ADD EVENT Hook_{name} WITH METHOD "POST" WITH ENDPOINT "/{name}"
        WITH DESTINATION_TOPIC "out/{name}/request" WITH RETAIN "true" {qos}
"""

Deliveries = Counter[tuple[str, int]]
"""How many messages came by topic, and with which QoS."""


def routes(url: str, port: int) -> str:
    texts = [
        _EVENTS.format(name=name, qos="" if qos is None else f'WITH QOS "{qos}"') for name, qos in SETTINGS.items()
    ]
    return _START.format(url=url, port=port) + "".join(texts)


@contextlib.contextmanager
def subscribers(port: int) -> Iterator[list[Client]]:
    """Clients of MQTT 3.1.1, which both brokers speak, that want QoS 0, 1 and 2."""
    with contextlib.ExitStack() as opened:
        clients = [Client(port, f"subscriber-{qos}", level=paho.MQTTv311) for qos in range(3)]
        for qos, client in enumerate(clients):
            opened.callback(client.close)
            client.subscribe("out/#", qos=qos)
        yield clients


def deliveries(client: Client, count: int, *, retained: bool) -> Deliveries:
    found = [client.messages.get(timeout=SECONDS) for _ in range(count)]
    assert {message.retain for message in found} == {retained}
    return Counter((message.topic, message.qos) for message in found)


def expected(wanted: int, default: int, kinds: tuple[str, ...]) -> Deliveries:
    """Return what a subscriber gets that wants this QoS, where an event without QOS publishes with the default."""
    highest = {name: default if qos is None else qos for name, qos in SETTINGS.items()}
    return Counter((f"out/{name}/{kind}", min(wanted, highest[name])) for name in SETTINGS for kind in kinds)


def check(mqtt_port: int, http_port: int, default: int) -> None:
    with subscribers(mqtt_port) as those:
        for name in SETTINGS:
            those[0].publish(f"in/{name}", b"{}")
            assert ask(http_port, f"/{name}", b"{}").status == 200
        for wanted, one in enumerate(those):
            assert deliveries(one, 12, retained=False) == expected(wanted, default, KINDS)
    with subscribers(mqtt_port) as later:
        for wanted, one in enumerate(later):
            assert deliveries(one, 8, retained=True) == expected(wanted, default, ("result", "request"))


def test_the_plugin_publishes_with_the_lower_of_the_setting_and_the_subscription() -> None:
    with recording() as target, hosting(routes(target.url, 0)) as host:
        check(host.mqtt_port, host.http_port, default=2)


def test_what_other_plugins_publish_is_delivered_with_no_more_than_the_subscription_asks_for() -> None:
    with hosting(routes("http://127.0.0.1:9", 0)) as host, subscribers(host.mqtt_port) as those:
        host.wait(host.broker.internal_message_broadcast("out/other", b"", 1))
        found = [deliveries(one, 1, retained=False) for one in those]
    assert found == [Counter({("out/other", qos): 1}) for qos in (0, 1, 1)]


@pytest.mark.mosquitto
def test_a_worker_publishes_with_the_lower_of_the_setting_and_the_subscription(
    group: Group, mosquitto: Mosquitto
) -> None:
    port = free_port()
    with recording() as target:
        group.routes(routes(target.url, port))
        group.start(0).ready()
        check(mosquitto.port, port, default=1)


# The steps of a worker's publication, with a broker that is scripted.


def sent(payload: bytes, packet_id: int | None, qos: int) -> bytes:
    properties = {standard.Property.USER_PROPERTY: (("rest-bridge-hops", "0"),)}
    return publish("out", payload, packet_id, qos=qos, properties=properties)


def test_qos_2_ends_with_pubcomp_and_goes_out_again_on_the_next_connection_before_it() -> None:
    first, second = sent(b"first", 1, 2), sent(b"second", 2, 2)

    def script(peer: Peer) -> None:
        accept(peer)
        assert read(peer, len(first + second)) == first + second
        peer.send(acknowledgement(standard.PUBREC, 1) + bytes.fromhex("50 03 0002 97"))  # which refuses it
        assert read(peer, 4) == acknowledgement(standard.PUBREL, 1)
        if peer.number == 1:
            peer.reset()
        else:
            peer.send(acknowledgement(standard.PUBCOMP, 1))
            peer.wait()

    async def use(address: Address) -> None:
        publisher = MqttPublisher()
        publications = [publisher.publish(Publication("out", one, qos=2), hops=0) for one in (b"first", b"second")]
        for number in range(2):
            connection = await opened(address)
            if number == 1:
                publications.append(publisher.publish(Publication("out", b"second", qos=2), hops=0))
            publisher.use_connection(connection)
            if number == 0:
                await connection.ended()
                publisher.lose_connection("lost")
                assert [one.done() for one in publications] == [False, True]
        assert await publisher.settled(10) == 0
        first, *refused = await asyncio.gather(*publications, return_exceptions=True)
        assert first is None and [type(one) for one in refused] == [PublicationRefusedError] * 2
        connection.abort()

    run(script, use)


def test_qos_0_counts_as_published_once_it_is_written_and_waits_while_there_is_no_connection() -> None:
    def script(peer: Peer) -> None:
        accept(peer)
        assert read(peer, 2000 * len(sent(b"x", None, 0))) == sent(b"x", None, 0) * 2000
        peer.wait()

    async def use(address: Address) -> None:
        publisher = MqttPublisher()
        publications = [publisher.publish(Publication("out", b"x", qos=0), hops=0) for _ in range(2000)]
        connection = await opened(address)
        publisher.use_connection(connection)
        assert not any(one.done() for one in publications)
        assert await publisher.settled(10) == 0
        await asyncio.gather(*publications)
        connection.abort()
        await connection.ended()
        late = publisher.publish(Publication("out", b"x", qos=0), hops=0)
        await asyncio.sleep(0)
        publisher.lose_connection("lost")
        assert await publisher.settled(0) == 1 and not late.done()

    run(script, use)


@pytest.mark.parametrize("kind", [standard.PUBACK, standard.PUBCOMP])
def test_an_acknowledgement_of_another_step_ends_the_connection(kind: int) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(acknowledgement(kind, 1))
        peer.wait()

    async def use(connection: MqttConnection) -> None:
        connection.publish("out", b"x", lambda _: None, qos=2)
        assert f"{standard.NAMES[kind]} without a publication of QoS" in await connection.ended()

    run_connected(script, use)


def test_a_broker_that_takes_less_gets_less() -> None:
    def script(peer: Peer) -> None:
        expected = publish("out", b"x", 1, properties={})
        assert read(peer, len(expected)) == expected
        peer.send(acknowledgement(standard.PUBACK, 1))
        peer.wait()

    async def use(connection: MqttConnection) -> None:
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        connection.publish("out", b"x", done.set_result, qos=2)
        assert await done is None

    run_connected(script, use, bytes.fromhex("2005 0000 02 2401"))  # Maximum QoS 1
