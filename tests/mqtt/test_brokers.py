"""A connection to a mosquitto, to an amqtt, and over WebSockets."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from amqtt_rest_bridge.mqtt.connection import MqttConnection, OnMessage
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Address, BrokerError, ClientSession, Subscription
from tests.mqtt.scripted import OLD, Taken
from tests.support.embedded_broker import ANONYMOUS, Host
from tests.support.http_target import Target, answering
from tests.worker.mosquitto import PROGRAM, Mosquitto

PROPERTIES: dict[Property, Any] = {
    Property.PAYLOAD_FORMAT_INDICATOR: 1, Property.CONTENT_TYPE: "text/plain", Property.RESPONSE_TOPIC: "reply",
    Property.CORRELATION_DATA: b"\x00\x01", Property.USER_PROPERTY: [("k", "v"), ("k", "w")],
    Property.MESSAGE_EXPIRY_INTERVAL: 60,
}  # fmt: skip
NUMBER = Property.SUBSCRIPTION_IDENTIFIER
needs_mosquitto = pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")


def address_of(port: int, path: str | None = None) -> Address:
    return Address("127.0.0.1", port, None, None, None, "it", path)


@asynccontextmanager
async def opened(
    port: int, session: ClientSession, take: OnMessage = lambda *_: None, path: str | None = None
) -> AsyncIterator[MqttConnection]:
    connection = MqttConnection(address_of(port, path), session, take)
    await connection.open()
    yield connection
    await connection.disconnect()


async def published(connection: MqttConnection, topic: str, payload: bytes, **properties: Any) -> None:
    done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    connection.publish(topic, payload, done.set_result, **properties)
    assert await done is None


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


@needs_mosquitto
@pytest.mark.mosquitto
async def test_mosquitto_passes_on_what_is_published_with_its_properties_and_keeps_the_session(
    mosquitto: Mosquitto,
) -> None:
    taken: asyncio.Queue[Publish] = asyncio.Queue()
    port, session = mosquitto.port, ClientSession("reader", 60, 10)
    async with opened(port, ClientSession("writer", 0, 10)) as writer:
        async with opened(port, session, lambda _, one: taken.put_nowait(one)) as reader:
            assert not reader.granted.session_present
            await reader.subscribe([Subscription("in/#", 300), Subscription("in/+", 7)])
            await published(writer, "in/ü", b"x", properties=PROPERTIES)
            came = await taken.get()
            numbers = set(came.properties[NUMBER])
            if numbers != {7, 300}:  # a broker may send a message for each subscription
                numbers |= set((await taken.get()).properties[NUMBER])
            assert numbers == {7, 300}
            assert (came.topic, came.payload, came.qos, came.retain, came.duplicate) == ("in/ü", b"x", 1, False, False)
            assert {name: value for name, value in came.properties.items() if name != NUMBER} == PROPERTIES
            await reader.unsubscribe([Subscription("in/#")])
        assert await reader.ended() == "the connection was lost"
        async with opened(port, session, lambda _, one: taken.put_nowait(one)) as again:
            assert again.granted.session_present
            assert (await taken.get()).duplicate  # it was not acknowledged


@needs_mosquitto
@pytest.mark.mosquitto
async def test_a_session_whose_client_takes_less_than_before_gets_all_of_its_messages(mosquitto: Mosquitto) -> None:
    taken, again = Taken(), Taken()

    def take(connection: MqttConnection, received: Publish) -> None:
        connection.acknowledge(received.packet_id or 0)
        again(connection, received)

    async with opened(mosquitto.port, ClientSession("writer", 0, 10)) as writer:
        async with opened(mosquitto.port, ClientSession("reader", 60, 10), taken) as reader:
            await reader.subscribe([Subscription("in", 1)])
            for number in range(30):
                writer.publish("in", b"%d" % number, lambda _: None)
            await taken.until(10)
        async with opened(mosquitto.port, ClientSession("reader", 60, 2), take) as smaller:
            await again.until(30)
            assert again.payloads == [b"%d" % number for number in range(30)]
            assert smaller.is_open


@pytest.fixture
def amqtt() -> Iterator[Host]:
    listeners = {"default": {"type": "tcp", "bind": "127.0.0.1:0"}, "web": {"type": "ws", "bind": "127.0.0.1:0"}}
    host = Host({"listeners": listeners, "plugins": ANONYMOUS})
    yield host
    host.stop()


@pytest.mark.parametrize(("name", "path"), [("default", None), ("web", "/mqtt")])
async def test_amqtt_passes_on_messages_over_tcp_and_websockets(amqtt: Host, name: str, path: str | None) -> None:
    taken: asyncio.Queue[Publish] = asyncio.Queue()

    def take(connection: MqttConnection, received: Publish) -> None:
        if received.packet_id is not None:
            connection.acknowledge(received.packet_id)
        taken.put_nowait(received)

    async with opened(amqtt.port_of(name), OLD, take, path) as connection:
        await connection.subscribe([Subscription("in")])
        for payload in (b"x", b"y" * 100_000):
            await published(connection, "in", payload)
            assert (await taken.get()).payload == payload
        connection.pause()
        connection.publish("in", b"z", lambda _: None)
        await asyncio.sleep(0.1)
        assert taken.empty()
        connection.resume()
        assert (await taken.get()).payload == b"z"
        await connection.unsubscribe([Subscription("in")])


@pytest.mark.parametrize("way", ["text", "abort", "close"])
async def test_a_websocket_that_carries_text_or_is_closed_ends_the_connection(way: str) -> None:
    async def answer(peer: ServerConnection) -> None:
        assert peer.subprotocol == "mqtt"
        await peer.recv()
        await peer.send(bytes.fromhex("2002"))  # a packet may come in any frames
        await peer.send(bytes.fromhex("0000"))
        if way == "text":
            await peer.send("text")
            await peer.wait_closed()
        elif way == "abort":
            peer.transport.abort()

    async with serve(answer, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with opened(port, OLD, path="/") as connection:
            assert await connection.ended() == "the connection was lost"


@pytest.mark.parametrize("data", [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"\x20\x02\x00\x00"])
async def test_what_answers_without_a_websocket_is_not_reached(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.5)
    with Target(answering(data)) as target, pytest.raises(BrokerError, match=r"^cannot reach the broker it: "):
        await MqttConnection(address_of(target.port, "/mqtt"), OLD, lambda *_: None).open()
