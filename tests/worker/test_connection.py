"""What a worker does with connections to a broker that does exactly what a test scripts, down to the byte."""

import asyncio
import threading
from collections.abc import Collection
from dataclasses import replace

import pytest

from amqtt_rest_bridge.model import EventName, Message, Publication
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.values import Address, Session
from amqtt_rest_bridge.routing.calls import Delivery
from amqtt_rest_bridge.worker.clean_session import BrokerPublisher, CleanSession
from amqtt_rest_bridge.worker.intake import Feed, Intake
from amqtt_rest_bridge.worker.leases import Leases
from amqtt_rest_bridge.worker.reconnecting import ReconnectingClient
from tests.mqtt.scripted import CONNACK, message, run
from tests.support.dispatching import Rig
from tests.support.http_target import Peer
from tests.worker.mosquitto import Mosquitto

SESSION = Session("plant-0", 3600, 100)


def puback(packet_id: int) -> bytes:
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


def test_an_acknowledgement_of_an_old_connection_reaches_no_message_of_the_next() -> None:
    """The broker has forgotten the session and uses the packet id for another message."""
    sent: list[bytes] = []
    was_taken = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        subscribe = peer.sock.recv(1024)
        peer.send(b"\x90\x04" + subscribe[2:4] + b"\x00\x01")
        peer.send(message(b"first" if peer.number == 1 else b"second", 1))
        if peer.number == 1:
            was_taken.wait(5)
            peer.reset()
        else:
            sent.append(peer.sock.recv(1024))
            peer.wait()

    async def use(address: Address) -> None:
        offered: asyncio.Queue[tuple[bytes, Delivery]] = asyncio.Queue()

        def offer(
            message: Message, *, hops: int, elsewhere: Collection[EventName], delivery: Delivery | None, size: int
        ) -> None:
            assert delivery is not None and (hops, elsewhere) == (0, frozenset())
            assert size < 20
            delivery.hold()
            offered.put_nowait((message.payload, delivery))

        event = frozenset({("Route", "Event")})
        intake = Intake(lambda: address, SESSION, offer, 0, 1)
        intake.prepare([Feed("in", event)], event)
        await intake.client.open()
        running = asyncio.ensure_future(intake.client.run())
        payload, old = await offered.get()
        assert payload == b"first"
        was_taken.set()
        payload, new = await offered.get()
        assert payload == b"second"
        old.release()
        await asyncio.sleep(0)
        assert sent == []
        new.release()
        while not sent:
            await asyncio.sleep(0.005)
        assert sent == [puback(1)]
        running.cancel()
        await intake.client.close()

    run(script, use)


def test_no_more_is_published_at_once_than_the_receive_maximum_of_the_broker() -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(bytes.fromhex("2006 0000 03 210002"))  # Receive Maximum 2
        data = b""
        for number in range(1, 6):
            while data.count(b"out") < min(5, number + 1):
                data += peer.sock.recv(1024)
            assert data.count(b"out") <= number + 1
            peer.send(puback(number))
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        publisher = BrokerPublisher()
        publisher.up(connection)
        for _ in range(5):
            publisher.put(Publication("out", b"x"), 0)
        await publisher.settled(10)
        connection.abort()

    run(script, use)


def test_a_session_that_the_broker_keeps_for_less_long_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(bytes.fromhex("2008 0000 05 110000003C"))  # Session Expiry Interval 60
        peer.wait()

    async def nothing(_: MqttConnection) -> None:
        pass

    async def use(address: Address) -> None:
        client = ReconnectingClient(lambda: address, SESSION, lambda *_: None, nothing)
        await client.open()
        await client.close()

    run(script, use)
    assert caplog.messages == ["the broker keeps the session of plant-0 for 60 s, not for session_expiry, 3600 s"]


def test_the_password_is_read_again_before_each_connection() -> None:
    connects: list[bytes] = []

    def script(peer: Peer) -> None:
        connects.append(peer.sock.recv(1024))
        peer.send(CONNACK)
        if peer.number == 1:
            peer.reset()
        else:
            peer.wait()

    async def nothing(_: MqttConnection) -> None:
        pass

    async def use(address: Address) -> None:
        passwords = iter(["first", "second"])
        client = ReconnectingClient(
            lambda: replace(address, username="bridge", password=next(passwords)), SESSION, lambda *_: None, nothing
        )
        running = asyncio.ensure_future(client.run())
        while len(connects) < 2:
            await asyncio.sleep(0.005)
        running.cancel()
        await client.close()

    run(script, use)
    assert b"first" in connects[0] and b"second" in connects[1]


@pytest.mark.parametrize(("word", "ends"), [("E001 82", 6), ("", 18)], ids=["with a DISCONNECT", "without a word"])
def test_a_publication_that_ends_each_connection_is_dropped_and_the_others_arrive(
    caplog: pytest.LogCaptureFixture, word: str, ends: int
) -> None:
    """The broker is as mosquitto: it closes with what came behind unread, which takes its DISCONNECT away."""
    acknowledged: list[bytes] = []
    refused: list[tuple[str, str]] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        data = b""
        while more := peer.sock.recv(65_536):
            data += more
            while len(data) > 1 and len(data) >= (end := 2 + data[1]):  # each is shorter than 128 bytes
                at = 4 + data[3]
                topic, packet_id, data = data[4:at], data[at : at + 2], data[end:]
                if topic != b"poison":
                    acknowledged.append(topic)
                    peer.send(puback(int.from_bytes(packet_id, "big")))
                elif data:
                    peer.reset()
                    return
                else:
                    peer.send(bytes.fromhex(word))
                    return

    async def use(address: Address) -> None:
        publisher = BrokerPublisher()
        publisher.on_refused = lambda *refusal: refused.append(refusal)
        for number in range(10):
            publisher.put(Publication("poison" if number in (4, 7) else f"out/{number}", b"x"), 0, route="R")
        for _ in range(ends + 1):
            connection = MqttConnection(address, SESSION, lambda *_: None)
            await connection.open()
            publisher.up(connection)
            ended = asyncio.ensure_future(connection.ended())
            settled = asyncio.ensure_future(publisher.settled(10))
            await asyncio.wait((ended, settled), return_when=asyncio.FIRST_COMPLETED)
            if settled.done():
                break
            settled.cancel()
            publisher.down(ended.result(), refused=connection.has_refused_packet)
        assert settled.done() and settled.result() == 0
        connection.abort()
        await ended

    run(script, use)
    assert set(acknowledged) == {f"out/{number}".encode() for number in range(10) if number not in (4, 7)}
    why = "Protocol error" if word else "the connection was lost"
    line = f"not published on poison: each connection on which it is sent ends: {why}"
    assert refused == [("R", line)] * 2
    assert caplog.messages == [line]  # one a second


@pytest.mark.mosquitto
def test_a_worker_with_as_many_failures_as_may_wait_learns_of_its_group_when_it_connects(mosquitto: Mosquitto) -> None:
    """The mark that ends retained records is sent though there is no room for another failure."""

    async def use() -> None:
        publisher = BrokerPublisher()
        while publisher.put(Publication("failures", b"x"), 0):
            pass
        leases = Leases("plant", 1, "a", prefers=None, adopt_seconds=30, version="1", clock=0)
        known = asyncio.Event()
        address = Address("127.0.0.1", mosquitto.port, None, None, None, mosquitto.url)
        session = CleanSession(lambda: address, "plant", leases, publisher, Rig().dispatcher, known.set)
        await session.client.open()
        async with asyncio.timeout(10):
            while not leases.is_connected:
                await known.wait()
                known.clear()
        await session.client.close()

    asyncio.run(use())
