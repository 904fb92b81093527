"""A connection to a broker that does exactly what a test scripts, down to the byte."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from amqtt_rest_bridge.processes.event_loop import loop_factory
from amqtt_rest_bridge.worker.connection import Connection
from amqtt_rest_bridge.worker.values import Address, Received, Session
from tests.bridge.http_target import Peer, Script, Target

CONNACK = bytes.fromhex("2003 0000 00")
SESSION = Session("plant-0", 3600, 100)
LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "installed"])


def publish(topic: str, payload: bytes, packet_id: int, *, dup: bool = False) -> bytes:
    """Write a PUBLISH packet of MQTT 5 with QoS 1, without properties."""
    body = len(topic).to_bytes(2, "big") + topic.encode() + packet_id.to_bytes(2, "big") + b"\x00" + payload
    return bytes([0x3A if dup else 0x32, len(body)]) + body


def puback(packet_id: int) -> bytes:
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def run(
    script: Script,
    use: Callable[[Address], Awaitable[None]],
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> None:
    """Run a broker and what uses it."""

    async def using(port: int) -> None:
        await asyncio.wait_for(use(Address("127.0.0.1", port, None, None, None, "the broker")), 10)

    with Target(script) as broker, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(using(broker.port))


@LOOPS
def test_what_comes_in_one_segment_with_connack_is_received_and_the_reset_behind_it_is_seen_at_once(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    reset = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + b"".join(publish("in", b"%d" % number, number) for number in range(1, 100)))
        peer.reset()
        reset.set()

    async def use(address: Address) -> None:
        received: list[bytes] = []

        def receive(_connection: Connection, message: Received) -> None:
            reset.wait(5)  # the loop sees messages and reset together
            received.append(message.payload)

        connection = Connection(address, SESSION, receive)
        await connection.open()
        assert await connection.ended() == "the connection was lost"
        assert received == [b"%d" % number for number in range(1, 100)]

    run(script, use, factory)
