"""Messages on a connection: acknowledgements, pauses, bounds, in what order and when. Brokers are scripted."""

import asyncio
import threading

import pytest

from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish, acknowledgement, publish
from amqtt_rest_bridge.mqtt.standard import PUBCOMP, PUBREC, PUBREL
from amqtt_rest_bridge.mqtt.values import BrokerError, Subscription
from tests.mqtt.scripted import CONNACK, LOOPS, SESSION, Taken, broker, connected, message, read
from tests.support.http_target import Peer
from tests.support.waiting import SECONDS


@LOOPS
async def test_while_it_is_paused_nothing_is_handed_out_and_acknowledgements_are_sent() -> None:
    answered = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + b"".join(message(b"%d" % one, None, 0) for one in range(100)) + message(b"last", 9))
        assert read(peer, 4) == bytes.fromhex("4002 0009")
        answered.set()
        peer.wait()

    async with broker(script) as address:
        payloads: list[bytes] = []

        def take(connection: MqttConnection, received: Publish) -> None:
            payloads.append(received.payload)
            connection.pause()

        connection = MqttConnection(address, SESSION, take)
        await connection.open()
        for count in range(1, 102):
            while len(payloads) < count:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(payloads) == count
            if count < 101:
                connection.resume()
        assert payloads == [b"%d" % one for one in range(100)] + [b"last"]
        connection.acknowledge(9)
        connection.acknowledge(9)  # which is sent once
        await asyncio.to_thread(answered.wait, 10)
        connection.abort()


async def test_a_packet_identifier_is_acknowledged_once_and_may_come_again_then() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        for _ in range(3):  # which is more than Receive Maximum
            peer.send(message(b"x", 7))
            sent.append(read(peer, 4))
        sent.append(peer.sock.recv(1024))

    async with broker(script) as address:

        def take(on: MqttConnection, received: Publish) -> None:
            assert received.packet_id == 7
            on.acknowledge(7)
            on.acknowledge(7)
            on.acknowledge(8)

        connection = MqttConnection(address, SESSION, take)
        await connection.open()
        while len(sent) < 3:
            await asyncio.sleep(0.001)
        assert connection.is_open
        await connection.disconnect()
    assert sent == [bytes.fromhex("4002 0007")] * 3 + [bytes.fromhex("E000")]


async def test_packet_identifiers_that_are_in_use_are_left_out_when_they_begin_at_1_again() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        sent.append(read(peer, 2 * 11))
        sent.append(read(peer, 2 * 11))
        peer.wait()

    async with connected(script) as connection:
        for _ in range(2):
            connection.publish("out", b"x", lambda _: None)
        connection._last_id = 65_534
        for _ in range(2):
            connection.publish("out", b"x", lambda _: None)
        while len(sent) < 2:
            await asyncio.sleep(0.001)
    data = b"".join(sent)
    assert [int.from_bytes(data[at + 7 : at + 9], "big") for at in range(0, len(data), 11)] == [1, 2, 65_535, 3]


@LOOPS
async def test_a_flood_leaves_the_loop_to_others_between_its_messages() -> None:
    taken = Taken()

    flood = b"".join(message(b"%d" % one, None, 0) for one in range(10_000))
    async with connected(Peer.wait, CONNACK + flood, take=taken):
        before = steps = 0
        while before < 10_000:
            await asyncio.sleep(0)
            steps = max(steps, len(taken.payloads) - before)
            before = len(taken.payloads)
        assert taken.payloads == [b"%d" % one for one in range(10_000)]
        assert steps <= 2048  # 64 of each piece that uvloop reads in one iteration, 32 at most


async def test_a_message_of_qos_2_is_acknowledged_in_two_steps() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        sent.append(read(peer, 4))
        peer.send(acknowledgement(PUBREL, 7))
        sent.append(read(peer, 4))
        peer.send(message(b"y", 7, 2))
        peer.wait()

    taken = Taken()

    async with connected(script, CONNACK + message(b"x", 7, 2), take=taken) as connection:
        await taken.until(1)
        connection.acknowledge(7)
        await taken.until(2)
    assert sent == [acknowledgement(PUBREC, 7), acknowledgement(PUBCOMP, 7)]


async def test_a_handler_that_fails_loses_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + message(b"x", 1) + message(b"y", 2))
        peer.wait()

    async with broker(script) as address:
        taken = Taken()

        def take(connection: MqttConnection, received: Publish) -> None:
            taken(connection, received)
            if received.payload == b"x":
                raise RuntimeError("it fails")

        connection = MqttConnection(address, SESSION, take)
        await connection.open()
        await taken.until(2)
        assert connection.is_open
        connection.abort()
    assert "a message on in was not looked at" in caplog.text


async def test_no_packet_is_sent_that_is_larger_than_the_broker_takes() -> None:
    def script(peer: Peer) -> None:
        assert read(peer, 20) == publish("out", b"x" * 10, 2, properties={})
        peer.send(bytes.fromhex("4003 0002 97"))
        peer.wait()

    async with connected(script, bytes.fromhex("2008 0000 05 27 00000014")) as connection:  # Maximum Packet Size 20
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        for topic, payload, why in (
            ("out", b"x" * 11, "a packet of 21 bytes; the broker takes 20 at most"),
            ("o" * 65_536, b"", "65536 bytes are more than MQTT can write, 65535"),
        ):
            with pytest.raises(BrokerError, match=why):
                connection.publish(topic, payload, answer.set_result)
        connection._last_id = 1
        connection.publish("out", b"x" * 10, answer.set_result)
        assert await answer == "Quota exceeded"


@LOOPS
async def test_a_broker_that_does_not_read_is_sent_no_more_until_it_does() -> None:
    reads = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        reads.wait(SECONDS)
        while peer.sock.recv(1 << 20):
            pass

    async with broker(script) as address:
        writable = asyncio.Event()

        def resume() -> None:
            assert connection.can_publish
            writable.set()

        connection = MqttConnection(address, SESSION, lambda *_: None, resume)
        await connection.open()
        sent = 0
        while connection.can_publish:
            connection.publish("out", b"x" * 100_000, lambda _: None)
            await asyncio.sleep(0)
            sent += 1
            assert sent < 1000
        reads.set()
        await writable.wait()
        connection.abort()


async def test_a_broker_that_acknowledges_nothing_leaves_packet_identifiers_to_subscribe_with() -> None:
    def script(peer: Peer) -> None:
        data = b""
        while b"\x00\x03end" not in data:
            data = data[-8:] + peer.sock.recv(1 << 20)
        at = data.index(b"\x00\x03end")
        peer.send(b"\x90\x04" + data[at - 3 : at - 1] + b"\x00\x01")
        peer.wait()

    async with connected(script) as connection:
        sent = 0
        while connection.can_publish:
            connection.publish("out", b"", lambda _: None)
            await asyncio.sleep(0)
            sent += 1
        assert sent == 1024
        await connection.subscribe([Subscription("end")])


async def test_packets_of_one_iteration_are_written_at_once() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        sent.append(peer.sock.recv(65_536))
        peer.wait()

    async with connected(script) as connection:
        for _ in range(100):
            connection.publish("out", b"x", lambda _: None)
        while not sent:
            await asyncio.sleep(0.001)
    assert sent[0].count(b"out") == 100
