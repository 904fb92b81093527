"""Processor time a message of the MQTT client beside mosquitto, and of paho-mqtt in turns with it.

    python -m tests.benchmarks.mqtt_client

Payloads of 100 bytes, QoS 1, one user property, 1,000 messages under way. Receiving: until PUBACK is sent, with a
subscription identifier; publishing: until PUBACK has come. Medians of 5 rounds of 20,000 messages; the time is that of
the process that runs the client alone, so that it says little of how busy the machine is. Neither does more than count.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Address, ClientSession, Subscription
from amqtt_rest_bridge.signals import loop_factory
from tests.benchmarks import rig
from tests.worker.mosquitto import Mosquitto

COUNT = 20_000
ROUNDS = 5
WINDOW = 1000
PAYLOAD = b"x" * 100
HOPS = ("rest-bridge-hops", "1")


async def publishing(port: int) -> float:
    """Publish, and return the processor time a message in microseconds."""
    done = asyncio.get_running_loop().create_future()
    sent = acknowledged = 0

    def fill() -> None:
        nonlocal sent
        while sent < COUNT and connection.can_publish and sent - acknowledged < WINDOW:
            sent += 1
            connection.publish("bench/in", PAYLOAD, count, properties={Property.USER_PROPERTY: (HOPS,)})

    def count(why: str | None) -> None:
        nonlocal acknowledged
        assert why is None
        acknowledged += 1
        if acknowledged == COUNT:
            done.set_result(None)
        fill()

    address = Address("127.0.0.1", port, None, None, None, "mosquitto")
    connection = MqttConnection(address, ClientSession("publisher", 0, 10), lambda *_: None, fill)
    await connection.open()
    before = time.process_time()
    fill()
    await done
    used = time.process_time() - before
    await connection.disconnect()
    return used / COUNT * 1e6


async def receiving(port: int) -> float:
    """Receive and acknowledge, and return the processor time a message in microseconds."""
    done = asyncio.get_running_loop().create_future()
    received = 0

    def take(on: MqttConnection, message: Publish) -> None:
        nonlocal received
        received += 1
        assert message.packet_id is not None
        on.acknowledge(message.packet_id)
        if received == COUNT:
            done.set_result(None)

    address = Address("127.0.0.1", port, None, None, None, "mosquitto")
    connection = MqttConnection(address, ClientSession("subscriber", 0, WINDOW), take)
    await connection.open()
    await connection.subscribe([Subscription("bench/in", 123_456_789)])
    with rig.process("-m", "tests.benchmarks.mqtt_client", "feed", str(port)):
        before = time.process_time()
        await done
        used = time.process_time() - before
    await connection.disconnect()
    return used / COUNT * 1e6


def paho_client(name: str) -> paho.Client:
    """Return paho's client, as workers used it: its user acknowledges, and reads what has come."""
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, manual_ack=True)
    client.max_inflight_messages = WINDOW
    return client


def paho_publishing(port: int) -> float:
    """Publish with paho."""
    acknowledged = 0

    def count(*_: object) -> None:
        nonlocal acknowledged
        acknowledged += 1

    client = paho_client("publisher")
    client.on_publish = count
    client.connect("127.0.0.1", port)
    while not client.is_connected():
        client.loop(0.1)
    properties = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = HOPS
    before, sent = time.process_time(), 0
    while acknowledged < COUNT:
        while sent < COUNT and sent - acknowledged < WINDOW:
            client.publish("bench/in", PAYLOAD, qos=1, properties=properties)
            sent += 1
        client.loop(1)
    used = time.process_time() - before
    client.disconnect()
    return used / COUNT * 1e6


def paho_receiving(port: int) -> float:
    """Receive and acknowledge with paho."""
    received, subscribed = 0, False

    def take(on: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        nonlocal received
        received += 1
        on.ack(message.mid, 1)

    def ready(*_: object) -> None:
        nonlocal subscribed
        subscribed = True

    client = paho_client("subscriber")
    client.on_message, client.on_subscribe = take, ready
    properties = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = WINDOW
    client.connect("127.0.0.1", port, properties=properties)
    while not client.is_connected():
        client.loop(0.1)
    properties = PahoProperties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
    properties.SubscriptionIdentifier = 123_456_789
    client.subscribe([("bench/in", SubscribeOptions(qos=1))], properties=properties)
    while not subscribed:
        client.loop(0.1)
    with rig.process("-m", "tests.benchmarks.mqtt_client", "feed", str(port)):
        before = time.process_time()
        while received < COUNT:
            client.loop(1)
        used = time.process_time() - before
    client.disconnect()
    return used / COUNT * 1e6


def run(measure: Callable[[int], object], port: int) -> float:
    """Run a measurement of either kind."""
    if not asyncio.iscoroutinefunction(measure):
        return float(measure(port))  # type: ignore[arg-type]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return float(runner.run(measure(port)))


def compare() -> None:
    """Print medians, and the ratio to paho."""
    pairs = (
        ("receive + acknowledge (us)", receiving, paho_receiving, "at most 20"),
        ("publish + PUBACK (us)", publishing, paho_publishing, "at most 22"),
    )
    with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder)) as broker:
        for title, mine, other, wanted in pairs:
            rounds = [(run(mine, broker.port), run(other, broker.port)) for _ in range(ROUNDS)]
            rig.report(title, f"{rig.median([one for one, _ in rounds]):.1f}", wanted)
            rig.report("  with paho", f"{rig.median([two for _, two in rounds]):.1f}")
            rig.report("  ratio", f"{rig.median([one / two for one, two in rounds]):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["feed"]:
        run(publishing, int(sys.argv[2]))
    else:
        compare()
