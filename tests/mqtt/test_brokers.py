"""A connection to a mosquitto, to an amqtt, and over WebSockets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from amqtt_rest_bridge.mqtt.connection import MqttConnection
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


@pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")
@pytest.mark.mosquitto
def test_mosquitto_passes_on_what_is_published_with_its_properties_and_keeps_the_session(tmp_path: Path) -> None:
    async def use(port: int) -> None:
        address = Address("127.0.0.1", port, None, None, None, "mosquitto")
        taken: asyncio.Queue[Publish] = asyncio.Queue()
        reader = MqttConnection(address, ClientSession("reader", 60, 10), lambda _, one: taken.put_nowait(one))
        await reader.open()
        assert not reader.granted.session_present
        await reader.subscribe([Subscription("in/#", 300), Subscription("in/+", 7)])
        writer = MqttConnection(address, ClientSession("writer", 0, 10), lambda *_: None)
        await writer.open()
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        writer.publish("in/ü", b"x", done.set_result, properties=PROPERTIES)
        assert await done is None
        came = await taken.get()
        numbers = set(came.properties[Property.SUBSCRIPTION_IDENTIFIER])
        if numbers != {7, 300}:  # a broker may send a message for each subscription
            numbers |= set((await taken.get()).properties[Property.SUBSCRIPTION_IDENTIFIER])
        assert numbers == {7, 300}
        assert (came.topic, came.payload, came.qos, came.retain, came.duplicate) == ("in/ü", b"x", 1, False, False)
        own = {name: value for name, value in came.properties.items() if name != Property.SUBSCRIPTION_IDENTIFIER}
        assert own == PROPERTIES
        await reader.unsubscribe([Subscription("in/#")])
        await reader.disconnect()
        assert await reader.ended() == "the connection was lost"
        again = MqttConnection(address, ClientSession("reader", 60, 10), lambda _, one: taken.put_nowait(one))
        await again.open()
        assert again.granted.session_present
        assert (await taken.get()).duplicate  # it was not acknowledged
        await again.disconnect()
        await writer.disconnect()

    with Mosquitto(tmp_path) as broker:
        asyncio.run(asyncio.wait_for(use(broker.port), 20))


@pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")
@pytest.mark.mosquitto
def test_a_session_whose_client_takes_less_than_before_gets_all_of_its_messages(tmp_path: Path) -> None:
    async def use(port: int) -> None:
        address = Address("127.0.0.1", port, None, None, None, "mosquitto")
        taken = Taken()
        reader = MqttConnection(address, ClientSession("reader", 60, 10), taken)
        await reader.open()
        await reader.subscribe([Subscription("in", 1)])
        writer = MqttConnection(address, ClientSession("writer", 0, 10), lambda *_: None)
        await writer.open()
        for number in range(30):
            writer.publish("in", b"%d" % number, lambda _: None)
        await taken.until(10)
        await reader.disconnect()
        again: list[bytes] = []
        done = asyncio.Event()

        def take(connection: MqttConnection, received: Publish) -> None:
            again.append(received.payload)
            connection.acknowledge(received.packet_id or 0)
            if len(again) == 30:
                done.set()

        smaller = MqttConnection(address, ClientSession("reader", 60, 2), take)
        await smaller.open()
        await done.wait()
        assert again == [b"%d" % number for number in range(30)]
        assert smaller.is_open
        await smaller.disconnect()
        await writer.disconnect()

    with Mosquitto(tmp_path) as broker:
        asyncio.run(asyncio.wait_for(use(broker.port), 20))


@pytest.mark.parametrize("name", ["default", "web"])
def test_amqtt_passes_on_messages_over_tcp_and_websockets(name: str) -> None:
    async def use(port: int) -> None:
        address = Address("127.0.0.1", port, None, None, None, "amqtt", None if name == "default" else "/mqtt")
        taken: asyncio.Queue[Publish] = asyncio.Queue()

        def take(connection: MqttConnection, received: Publish) -> None:
            if received.packet_id is not None:
                connection.acknowledge(received.packet_id)
            taken.put_nowait(received)

        connection = MqttConnection(address, OLD, take)
        await connection.open()
        await connection.subscribe([Subscription("in")])
        for payload in (b"x", b"y" * 100_000):
            done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            connection.publish("in", payload, done.set_result)
            assert await done is None
            assert (await taken.get()).payload == payload
        connection.pause()
        connection.publish("in", b"z", lambda _: None)
        await asyncio.sleep(0.1)
        assert taken.empty()
        connection.resume()
        assert (await taken.get()).payload == b"z"
        await connection.unsubscribe([Subscription("in")])
        await connection.disconnect()

    listeners = {"default": {"type": "tcp", "bind": "127.0.0.1:0"}, "web": {"type": "ws", "bind": "127.0.0.1:0"}}
    host = Host({"listeners": listeners, "plugins": ANONYMOUS})
    try:
        (sock, *_) = host.broker._servers[name].instance.sockets
        asyncio.run(asyncio.wait_for(use(sock.getsockname()[1]), 20))
    finally:
        host.stop()


@pytest.mark.parametrize("way", ["text", "abort", "close"])
def test_a_websocket_that_carries_text_or_is_closed_ends_the_connection(way: str) -> None:
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

    async def use() -> None:
        async with serve(answer, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")]) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            connection = MqttConnection(Address("127.0.0.1", port, None, None, None, "it", "/"), OLD, lambda *_: None)
            await connection.open()
            assert await connection.ended() == "the connection was lost"
            await connection.disconnect()

    asyncio.run(asyncio.wait_for(use(), 20))


@pytest.mark.parametrize("data", [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"\x20\x02\x00\x00"])
def test_what_answers_without_a_websocket_is_not_reached(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.5)

    async def use(port: int) -> None:
        address = Address("127.0.0.1", port, None, None, None, "it", "/mqtt")
        with pytest.raises(BrokerError, match=r"^cannot reach the broker it: "):
            await MqttConnection(address, OLD, lambda *_: None).open()

    with Target(answering(data)) as target:
        asyncio.run(asyncio.wait_for(use(target.port), 20))
