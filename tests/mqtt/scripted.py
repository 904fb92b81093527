"""A broker that does exactly what a test scripts, and what uses it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from amqtt_rest_bridge.mqtt.connection import MqttConnection, OnMessage
from amqtt_rest_bridge.mqtt.packets import Publish, publish
from amqtt_rest_bridge.mqtt.standard import MQTT_3_1_1
from amqtt_rest_bridge.mqtt.values import Address, ClientSession
from amqtt_rest_bridge.signals import loop_factory
from tests.support.http_target import Peer, Script, Target

CONNACK = bytes.fromhex("2003 0000 00")
SESSION = ClientSession("client", 3600, 2)
OLD = ClientSession("client", 0, 0, level=MQTT_3_1_1)
LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "installed"])


def message(payload: bytes, packet_id: int | None, qos: int = 1) -> bytes:
    return publish("in", payload, packet_id, qos=qos, properties={})


@asynccontextmanager
async def broker(script: Script) -> AsyncIterator[Address]:
    """Run a broker."""
    with Target(script) as target:
        yield Address("127.0.0.1", target.port, None, None, None, "the broker")


@asynccontextmanager
async def connected(
    script: Script, answer: bytes = CONNACK, *, take: OnMessage = lambda *_: None
) -> AsyncIterator[MqttConnection]:
    """Run a broker that has answered CONNECT, and what is connected to it."""

    def answering(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(answer)
        script(peer)

    async with broker(answering) as address:
        connection = MqttConnection(address, SESSION, take)
        await connection.open()
        yield connection
        connection.abort()


def run(script: Script, use: Callable[[Address], Awaitable[None]]) -> None:
    """Run a broker and what uses it."""

    async def using() -> None:
        async with broker(script) as address:
            await use(address)

    asyncio.run(asyncio.wait_for(using(), 20))


def run_connected(script: Script, use: Callable[[MqttConnection], Awaitable[None]], answer: bytes = CONNACK) -> None:
    """Run a broker that has answered CONNECT, and what uses the connection."""

    async def using() -> None:
        async with connected(script, answer) as connection:
            await use(connection)

    asyncio.run(asyncio.wait_for(using(), 20))


def read(peer: Peer, count: int) -> bytes:
    """Return so many bytes that the client sends."""
    data = b""
    while len(data) < count:
        more = peer.sock.recv(count - len(data))
        assert more, data
        data += more
    return data


class Taken:
    """Messages, none of which is acknowledged."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self._more = asyncio.Event()

    def __call__(self, _: MqttConnection, received: Publish) -> None:
        self.payloads.append(received.payload)
        self._more.set()

    async def until(self, count: int) -> None:
        while len(self.payloads) < count:
            self._more.clear()
            await self._more.wait()
