"""What a worker does with connections to a broker that does exactly what a test scripts, down to the byte."""

import asyncio
import threading
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from amqtt_rest_bridge.errors import BrokerAwayError, CallError, NoRoomError, PublicationRefusedError
from amqtt_rest_bridge.group.leases import Leases
from amqtt_rest_bridge.group.sessions import MemberSession
from amqtt_rest_bridge.lot.model import Message, Publication
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.intake import Feed, Intake, MqttDelivery
from amqtt_rest_bridge.mqtt.packets import Publish, acknowledgement
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.reconnecting import ConnectionUser, ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import PUBACK
from amqtt_rest_bridge.mqtt.values import Address, ClientSession
from tests.mqtt.scripted import CONNACK, message, run, run_connected
from tests.support.fixed_broker import FixedBroker
from tests.support.http_target import Peer
from tests.worker.mosquitto import Mosquitto

SESSION = ClientSession("plant-0", 3600, 100)


class Nothing:
    """What watches no topic."""

    filters: Collection[str] = ()

    def resubscribing(self) -> AbstractContextManager[Collection[str]]:
        return nullcontext(())

    def see(self, message: Message, *, retained: bool = False, size: int = 0) -> None:
        raise AssertionError(message)

    def refuse(self, message: Message, failure: CallError) -> None:
        raise AssertionError(message)


class ChangingPassword:
    """A broker whose password is another one at each connection."""

    def __init__(self, address: Address) -> None:
        self._addresses = (replace(address, username="bridge", password=one) for one in ("first", "second"))

    @property
    def address(self) -> Address:
        return next(self._addresses)


class Idle(ConnectionUser):
    """What needs nothing of its connections."""

    def receive(self, connection: MqttConnection, received: Publish) -> None:
        raise AssertionError(received)

    async def connected(self, connection: MqttConnection) -> None:
        pass


def puback(packet_id: int) -> bytes:
    return acknowledgement(PUBACK, packet_id)


def accept(peer: Peer, connack: bytes = CONNACK) -> bytes:
    """Answer CONNECT, and return it."""
    connect = peer.sock.recv(1024)
    peer.send(connack)
    return connect


def publish(publisher: MqttPublisher, topic: str, **options: Any) -> "asyncio.Future[None]":
    return publisher.publish(Publication(topic, b"x"), hops=0, **options)


async def opened(address: Address) -> MqttConnection:
    connection = MqttConnection(address, SESSION, lambda *_: None)
    await connection.open()
    return connection


def test_an_acknowledgement_of_an_old_connection_reaches_no_message_of_the_next() -> None:
    """The broker has forgotten the session and uses the packet id for another message."""
    sent: list[bytes] = []
    was_taken = threading.Event()

    def script(peer: Peer) -> None:
        accept(peer)
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
        offered: asyncio.Queue[tuple[bytes, MqttDelivery]] = asyncio.Queue()

        def offer(message: Message, *, delivery: MqttDelivery | None, **_: Any) -> None:
            assert delivery is not None
            delivery.hold()
            offered.put_nowait((message.payload, delivery))

        event = frozenset({("Route", "Event")})
        intake = Intake(FixedBroker(address), SESSION, offer, 0, 1)
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
        data = b""
        for number in range(1, 6):
            while data.count(b"out") < min(5, number + 1):
                data += peer.sock.recv(1024)
            assert data.count(b"out") <= number + 1
            peer.send(puback(number))
        peer.wait()

    async def use(connection: MqttConnection) -> None:
        publisher = MqttPublisher()
        publisher.use_connection(connection)
        for _ in range(5):
            publisher.announce(Publication("out", b"x"))
        assert await publisher.settled(10) == 0

    run_connected(script, use, bytes.fromhex("2006 0000 03 210002"))  # Receive Maximum 2


def test_a_session_that_the_broker_keeps_for_less_long_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def script(peer: Peer) -> None:
        accept(peer, bytes.fromhex("2008 0000 05 110000003C"))  # Session Expiry Interval 60
        peer.wait()

    async def use(address: Address) -> None:
        client = ReconnectingClient(FixedBroker(address), SESSION, Idle())
        await client.open()
        await client.close()

    run(script, use)
    assert caplog.messages == ["the broker keeps the session of plant-0 for 60 s, not for session_expiry, 3600 s"]


def test_the_password_is_read_again_before_each_connection() -> None:
    connects: list[bytes] = []

    def script(peer: Peer) -> None:
        connects.append(accept(peer))
        if peer.number == 1:
            peer.reset()
        else:
            peer.wait()

    async def use(address: Address) -> None:
        client = ReconnectingClient(ChangingPassword(address), SESSION, Idle())
        running = asyncio.ensure_future(client.run())
        while len(connects) < 2:
            await asyncio.sleep(0.005)
        running.cancel()
        await client.close()

    run(script, use)
    assert b"first" in connects[0] and b"second" in connects[1]


@pytest.mark.parametrize(("word", "ends"), [("E001 82", 6), ("", 18)], ids=["with a DISCONNECT", "without a word"])
def test_a_publication_that_ends_each_connection_is_dropped_and_the_others_arrive(word: str, ends: int) -> None:
    """The broker is as mosquitto: it closes with what came behind unread, which takes its DISCONNECT away."""
    acknowledged: list[bytes] = []

    def script(peer: Peer) -> None:
        accept(peer)
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
        publisher = MqttPublisher()
        topics = ["poison" if number in (4, 7) else f"out/{number}" for number in range(10)]
        publications = [publish(publisher, topic) for topic in topics]
        for _ in range(ends + 1):
            connection = await opened(address)
            publisher.use_connection(connection)
            ended = asyncio.ensure_future(connection.ended())
            settled = asyncio.ensure_future(publisher.settled(10))
            await asyncio.wait((ended, settled), return_when=asyncio.FIRST_COMPLETED)
            if settled.done():
                break
            settled.cancel()
            publisher.lose_connection(ended.result(), refused=connection.has_refused_packet)
        assert settled.done() and settled.result() == 0
        outcomes = await asyncio.gather(*publications, return_exceptions=True)
        why = "Protocol error" if word else "the connection was lost"
        line = f"not published on poison: each connection on which it is sent ends: {why}"
        assert [str(one) for one in outcomes if isinstance(one, PublicationRefusedError)] == [line] * 2
        connection.abort()
        await ended

    run(script, use)
    assert set(acknowledged) == {f"out/{number}".encode() for number in range(10) if number not in (4, 7)}


@pytest.mark.mosquitto
def test_a_worker_with_as_many_failures_as_may_wait_learns_of_its_group_when_it_connects(mosquitto: Mosquitto) -> None:
    """The mark that ends retained records is sent behind them."""

    async def use() -> None:
        publisher = MqttPublisher()
        failures = [publish(publisher, "failures") for _ in range(20_000)]
        leases = Leases("plant", 1, "a", prefers=None, adopt_seconds=30, version="1", clock=0)
        known = asyncio.Event()
        address = Address("127.0.0.1", mosquitto.port, None, None, None, mosquitto.url)
        session = MemberSession(FixedBroker(address), "plant", leases, publisher, Nothing(), known)
        await session.client.open()
        async with asyncio.timeout(10):
            while not leases.workers.is_connected:
                await known.wait()
                known.clear()
            await asyncio.gather(*failures)
        await session.client.close()

    asyncio.run(use())


def test_a_publication_that_does_not_wait_is_given_up_while_the_broker_is_away_or_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_ROOM_SECONDS", "_ACKNOWLEDGED_SECONDS"):
        monkeypatch.setattr(f"amqtt_rest_bridge.mqtt.publisher.{name}", 0.3)
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        while data := peer.sock.recv(1024):
            sent.append(data)

    async def use(connection: MqttConnection) -> None:
        publisher = MqttPublisher()
        with pytest.raises(BrokerAwayError, match=r"^the broker is away$"):
            await publish(publisher, "away", wait=False)
        publisher.use_connection(connection)
        publications = [publish(publisher, topic, wait=False) for topic in ("first", "second")]
        with pytest.raises(NoRoomError):
            await publications[1]
        with pytest.raises(BrokerAwayError, match="has not acknowledged it"):
            await publications[0]
        assert await publisher.settled(0) == 1  # it may have been published
        lost = publish(publisher, "third", wait=False)
        connection.abort()
        publisher.lose_connection(await connection.ended())
        with pytest.raises(BrokerAwayError, match="was lost"):
            await lost
        assert await publisher.settled(0) == 0

    run_connected(script, use, bytes.fromhex("2006 0000 03 210001"))  # Receive Maximum 1
    assert b"first" in b"".join(sent) and b"second" not in b"".join(sent)


def test_a_publication_that_does_not_wait_ends_within_the_seconds_for_an_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.publisher._ACKNOWLEDGED_SECONDS", 1.2)

    async def use(connection: MqttConnection) -> None:
        publisher = MqttPublisher()
        publisher.use_connection(connection)
        began = time.monotonic()
        with pytest.raises(BrokerAwayError, match="has not acknowledged it"):
            await publish(publisher, "first", wait=False)
        assert 1.2 <= time.monotonic() - began < 2  # not the second for room on top
        connection.abort()

    run_connected(lambda peer: peer.wait(), use)


def test_a_publication_whose_caller_is_gone_before_it_was_sent_is_never_sent() -> None:
    topics: list[bytes] = []

    def script(peer: Peer) -> None:
        accept(peer)
        while b"".join(topics).count(b"out") < 2:
            topics.append(peer.sock.recv(1024))
        peer.send(puback(1) + puback(2))
        peer.wait()

    async def use(address: Address) -> None:
        publisher = MqttPublisher()
        publications = [publish(publisher, f"out/{number}") for number in range(3)]
        publications[1].cancel()
        connection = await opened(address)
        publisher.use_connection(connection)
        await asyncio.gather(publications[0], publications[2])
        connection.abort()

    run(script, use)
    assert b"out/1" not in b"".join(topics)
