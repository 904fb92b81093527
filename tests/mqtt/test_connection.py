"""A connection to brokers that do exactly what a test scripts, to a mosquitto, and to an amqtt."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import MQTT_3_1_1, Publish, Will, acknowledgement, publish
from amqtt_rest_bridge.mqtt.values import Address, BrokerError, NoAnswerError, Session, Subscription
from amqtt_rest_bridge.mqtt.wire import PUBCOMP, PUBREC, PUBREL, Property
from amqtt_rest_bridge.processes.supervisor import loop_factory
from tests.support.embedded_broker import ANONYMOUS, Host
from tests.support.http_target import Peer, Script, Target, answering, silent
from tests.worker.mosquitto import PROGRAM, Mosquitto

CONNACK = bytes.fromhex("2003 0000 00")
SESSION = Session("client", 3600, 2)
OLD = Session("client", 0, 0, level=MQTT_3_1_1)
LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "installed"])


def message(payload: bytes, packet_id: int | None, qos: int = 1) -> bytes:
    return publish("in", payload, packet_id, qos=qos, properties={})


def run(
    script: Script,
    use: Callable[[Address], Awaitable[None]],
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> None:
    """Run a broker and what uses it."""

    async def using(port: int) -> None:
        await asyncio.wait_for(use(Address("127.0.0.1", port, None, None, None, "the broker")), 20)

    with Target(script) as broker, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(using(broker.port))


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


FORBIDDEN = [
    pytest.param(b"".join(message(b"x", one) for one in (1, 2, 3)), 0x93, "Receive Maximum", id="receive-maximum"),
    pytest.param(message(b"x", 1) + message(b"y", 1), 0x82, "packet identifier 1, which is in use", id="in-use"),
    pytest.param(CONNACK, 0x82, "CONNACK twice", id="CONNACK-twice"),
    pytest.param(bytes.fromhex("9004 0009 0000"), 0x82, "nothing that was asked", id="SUBACK-for-nothing"),
    pytest.param(bytes.fromhex("B004 0009 0000"), 0x82, "nothing that was asked", id="UNSUBACK-for-nothing"),
    pytest.param(acknowledgement(PUBREC, 7), 0x82, "PUBREC without a publication of QoS 2", id="PUBREC-for-nothing"),
    pytest.param(b"\x32\x03\x00\x09a", 0x81, "a packet ends within a text", id="malformed"),
]


@LOOPS
@pytest.mark.parametrize(("data", "code", "why"), FORBIDDEN)
def test_what_the_broker_may_not_send_ends_the_connection_with_a_reason_on_both_sides(
    data: bytes, code: int, why: str, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + data)
        sent.append(peer.sock.recv(1024))
        assert peer.sock.recv(1024) == b""

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        ended = await connection.ended()
        assert ended.startswith("the broker sends what MQTT does not allow: ") and why in ended
        assert not connection.is_open
        with pytest.raises(BrokerError, match="the connection to the broker was lost"):
            await connection.subscribe([Subscription("a")])
        await connection.disconnect()

    run(script, use, factory)
    assert sent == [bytes([0xE0, 1, code])]


def test_what_a_broker_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        while peer.sock.recv(1024):
            pass

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.1)
        with pytest.raises(BrokerError, match=r"does not answer SUBSCRIBE$"):
            await connection.subscribe([Subscription("a")])
        with pytest.raises(BrokerError, match=r"does not answer UNSUBSCRIBE$"):
            await connection.unsubscribe(["a"])
        await connection.disconnect()

    run(script, use)


BEFORE_CONNACK = [
    pytest.param(message(b"x", 1), SESSION, r"PUBLISH before CONNACK \(Protocol error\)", id="PUBLISH"),
    pytest.param(b"\xd0\x00", SESSION, "another packet before CONNACK", id="PINGRESP"),
    pytest.param(bytes.fromhex("2003 0100 00"), Session("a", 0, 9), "a session that was not asked for", id="session"),
    pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", SESSION, "does not allow", id="HTTP"),
    pytest.param(b"", SESSION, "closed the connection without an answer to CONNECT", id="nothing"),
]


@pytest.mark.parametrize(("data", "session", "why"), BEFORE_CONNACK)
def test_what_answers_connect_with_something_else_is_refused(data: bytes, session: Session, why: str) -> None:
    async def use(address: Address) -> None:
        connection = MqttConnection(address, session, lambda *_: None)
        with pytest.raises(NoAnswerError, match=why):
            await connection.open()

    run(answering_once(data), use)


def answering_once(data: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(data)

    return script


def test_a_refusal_has_its_code_in_both_versions() -> None:
    async def use(address: Address) -> None:
        with pytest.raises(BrokerError, match="the broker refuses the client: bad user name or password") as raised:
            await MqttConnection(address, OLD, lambda *_: None).open()
        assert raised.value.code == 4

    run(answering_once(bytes.fromhex("2002 0004")), use)

    async def use_5(address: Address) -> None:
        with pytest.raises(BrokerError, match="the broker refuses the client: Banned") as raised:
            await MqttConnection(address, SESSION, lambda *_: None).open()
        assert raised.value.code == 0x8A

    run(answering_once(bytes.fromhex("2003 008A 00")), use_5)


def test_silence_after_connect_and_a_port_that_nothing_listens_on(
    monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.1)

    async def use(address: Address) -> None:
        with pytest.raises(NoAnswerError, match=r"^the broker the broker does not answer CONNECT$"):
            await MqttConnection(address, SESSION, lambda *_: None).open()
        elsewhere = Address("127.0.0.1", unused_port, None, None, None, "it")
        with pytest.raises(BrokerError, match=r"^cannot reach the broker it: Connection refused$"):
            await MqttConnection(elsewhere, SESSION, lambda *_: None).open()

    run(silent, use)


def test_connect_has_what_the_session_and_the_address_say() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        sent.append(peer.sock.recv(1024))
        peer.send(CONNACK)
        peer.wait()

    async def use(address: Address) -> None:
        address = Address(address.host, address.port, "u", "p", None, "it")
        session = Session("client", 60, 5, Will("w", b"gone"))
        connection = MqttConnection(address, session, lambda *_: None)
        await connection.open()
        assert (connection.receive_maximum, connection.session_expiry) == (65_535, 60)
        connection.abort()

    run(script, use)
    assert sent == [
        bytes.fromhex(
            "10 2B 0004 4D515454 05 EC 000F 08 21 0005 11 0000003C"
            "0006 636C69656E74 00 0001 77 0004 676F6E65 0001 75 0001 70"
        )
    ]


@LOOPS
def test_what_comes_in_one_segment_with_connack_is_received_and_the_reset_behind_it_is_seen_at_once(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    reset = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + b"".join(message(b"%d" % number, number) for number in range(1, 100)))
        peer.reset()
        reset.set()

    async def use(address: Address) -> None:
        received: list[bytes] = []

        def receive(_connection: MqttConnection, message: Publish) -> None:
            reset.wait(5)  # the loop sees messages and reset together
            received.append(message.payload)

        connection = MqttConnection(address, Session("client", 3600, 100), receive)
        await connection.open()
        assert await connection.ended() == "the connection was lost"
        assert received == [b"%d" % number for number in range(1, 100)]

    run(script, use, factory)


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        pytest.param("E002 9700", "Quota exceeded", id="quota exceeded"),
        pytest.param("E002 8700", "Not authorized", id="not authorized"),
        pytest.param("E002 8E00", "Session taken over", id="taken over"),
        pytest.param("E008 8E06 1F0003 627965", "Session taken over: bye", id="with a reason in words"),
        pytest.param(
            "F0 03 000000",
            "the broker sends what MQTT does not allow: a server sends no packet of type AUTH (Protocol error)",
            id="a packet that was not begun",
        ),
        pytest.param(
            "32FFFFFFFF7F",
            "the broker sends what MQTT does not allow: a length has more than four bytes (Malformed packet)",
            id="a length of five bytes",
        ),
    ],
)
def test_a_connection_that_the_broker_ends_says_why(packet: str, why: str) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + bytes.fromhex(packet))
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        assert await connection.ended() == why

    run(script, use)


@LOOPS
def test_while_it_is_paused_nothing_is_handed_out_and_acknowledgements_are_sent(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    answered = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + b"".join(message(b"%d" % one, None, 0) for one in range(100)) + message(b"last", 9))
        assert read(peer, 4) == bytes.fromhex("4002 0009")
        answered.set()
        peer.wait()

    async def use(address: Address) -> None:
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

    run(script, use, factory)


def test_a_packet_identifier_is_acknowledged_once_and_may_come_again_then() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        for _ in range(3):  # which is more than Receive Maximum
            peer.send(message(b"x", 7))
            sent.append(read(peer, 4))
        sent.append(peer.sock.recv(1024))

    async def use(address: Address) -> None:
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

    run(script, use)
    assert sent == [bytes.fromhex("4002 0007")] * 3 + [bytes.fromhex("E000")]


def test_packet_identifiers_that_are_in_use_are_left_out_when_they_begin_at_1_again() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        sent.append(read(peer, 2 * 11))
        sent.append(read(peer, 2 * 11))
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        for _ in range(2):
            connection.publish("out", b"x", lambda _: None)
        connection._last_id = 65_534
        for _ in range(2):
            connection.publish("out", b"x", lambda _: None)
        while len(sent) < 2:
            await asyncio.sleep(0.001)
        connection.abort()

    run(script, use)
    data = b"".join(sent)
    assert [int.from_bytes(data[at + 7 : at + 9], "big") for at in range(0, len(data), 11)] == [1, 2, 65_535, 3]


@LOOPS
def test_a_flood_leaves_the_loop_to_others_between_its_messages(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + b"".join(message(b"%d" % one, None, 0) for one in range(10_000)))
        peer.wait()

    async def use(address: Address) -> None:
        taken = Taken()
        connection = MqttConnection(address, SESSION, taken)
        await connection.open()
        before = steps = 0
        while before < 10_000:
            await asyncio.sleep(0)
            steps = max(steps, len(taken.payloads) - before)
            before = len(taken.payloads)
        assert taken.payloads == [b"%d" % one for one in range(10_000)]
        assert steps <= 2048  # 64 of each piece that uvloop reads in one iteration, 32 at most
        connection.abort()

    run(script, use, factory)


def test_a_message_of_qos_2_is_acknowledged_in_two_steps() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + message(b"x", 7, 2))
        sent.append(read(peer, 4))
        peer.send(acknowledgement(PUBREL, 7))
        sent.append(read(peer, 4))
        peer.send(message(b"y", 7, 2))
        peer.wait()

    async def use(address: Address) -> None:
        taken = Taken()
        connection = MqttConnection(address, SESSION, taken)
        await connection.open()
        await taken.until(1)
        connection.acknowledge(7)
        await taken.until(2)
        connection.abort()

    run(script, use)
    assert sent == [acknowledgement(PUBREC, 7), acknowledgement(PUBCOMP, 7)]


def test_a_handler_that_fails_loses_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + message(b"x", 1) + message(b"y", 2))
        peer.wait()

    async def use(address: Address) -> None:
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

    run(script, use)
    assert "a message on in was not looked at" in caplog.text


def test_no_packet_is_sent_that_is_larger_than_the_broker_takes() -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(bytes.fromhex("2008 0000 05 27 00000014"))  # Maximum Packet Size 20
        assert read(peer, 20) == publish("out", b"x" * 10, 2, properties={})
        peer.send(bytes.fromhex("4003 0002 97"))
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
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
        connection.abort()

    run(script, use)


@LOOPS
def test_a_broker_that_does_not_read_is_sent_no_more_until_it_does(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    reads = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        reads.wait(10)
        while peer.sock.recv(1 << 20):
            pass

    async def use(address: Address) -> None:
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

    run(script, use, factory)


def test_a_broker_that_does_not_answer_pingreq_is_left() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(bytes.fromhex("2006 0000 03 13 0001"))  # Server Keep Alive 1
        sent.append(read(peer, 2))
        peer.send(bytes.fromhex("D000"))
        sent.append(read(peer, 2))
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        assert await connection.ended() == "the broker does not answer PINGREQ"

    run(script, use)
    assert sent == [b"\xc0\x00"] * 2


def test_a_broker_that_wants_no_keep_alive_is_pinged_as_others_are() -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(bytes.fromhex("2006 0000 03 13 0000"))  # Server Keep Alive 0
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.ended(), 0.5)
        connection.abort()

    run(script, use)


def test_a_subscription_that_is_granted_less_than_it_needs_is_refused() -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        for _ in range(2):
            peer.send(b"\x90\x04" + peer.sock.recv(1024)[2:4] + b"\x00\x00")
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        await connection.subscribe([Subscription("a", qos=0)])
        with pytest.raises(BrokerError, match="the broker grants QoS 0 to the subscription of a, which needs QoS 1"):
            await connection.subscribe([Subscription("a")])
        connection.abort()

    run(script, use)


def test_a_broker_that_acknowledges_nothing_leaves_packet_identifiers_to_subscribe_with() -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        data = b""
        while b"\x00\x03end" not in data:
            data = data[-8:] + peer.sock.recv(1 << 20)
        at = data.index(b"\x00\x03end")
        peer.send(b"\x90\x04" + data[at - 3 : at - 1] + b"\x00\x01")
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        sent = 0
        while connection.can_publish:
            connection.publish("out", b"", lambda _: None)
            await asyncio.sleep(0)
            sent += 1
        assert sent == 1024
        await connection.subscribe([Subscription("end")])
        connection.abort()

    run(script, use)


@pytest.mark.parametrize("name", ["username", "password"])
@pytest.mark.parametrize("value", ["secret\udcff", "secret" * 20_000], ids=["not UTF-8", "too long"])
def test_credentials_that_mqtt_cannot_write_are_refused_without_them(name: str, value: str) -> None:
    async def use(address: Address) -> None:
        address = replace(address, username=value) if name == "username" else replace(address, password=value)
        with pytest.raises(BrokerError, match="is not UTF-8, or longer than MQTT can write") as raised:
            await MqttConnection(address, SESSION, lambda *_: None).open()
        assert "secret" not in str(raised.value)

    run(lambda peer: peer.wait(), use)


def test_packets_of_one_iteration_are_written_at_once() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK)
        sent.append(peer.sock.recv(65_536))
        peer.wait()

    async def use(address: Address) -> None:
        connection = MqttConnection(address, SESSION, lambda *_: None)
        await connection.open()
        for _ in range(100):
            connection.publish("out", b"x", lambda _: None)
        while not sent:
            await asyncio.sleep(0.001)
        connection.abort()

    run(script, use)
    assert sent[0].count(b"out") == 100


# Real brokers.

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
        reader = MqttConnection(address, Session("reader", 60, 10), lambda _, one: taken.put_nowait(one))
        await reader.open()
        assert not reader.session_present
        await reader.subscribe([Subscription("in/#", 300), Subscription("in/+", 7)])
        writer = MqttConnection(address, Session("writer", 0, 10), lambda *_: None)
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
        await reader.unsubscribe(["in/#"])
        await reader.disconnect()
        assert await reader.ended() == "the connection was lost"
        again = MqttConnection(address, Session("reader", 60, 10), lambda _, one: taken.put_nowait(one))
        await again.open()
        assert again.session_present
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
        reader = MqttConnection(address, Session("reader", 60, 10), taken)
        await reader.open()
        await reader.subscribe([Subscription("in", 1)])
        writer = MqttConnection(address, Session("writer", 0, 10), lambda *_: None)
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

        smaller = MqttConnection(address, Session("reader", 60, 2), take)
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
        await connection.unsubscribe(["in"])
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
def test_what_answers_without_a_websocket_is_not_reached(data: bytes) -> None:
    async def use(port: int) -> None:
        address = Address("127.0.0.1", port, None, None, None, "it", "/mqtt")
        with pytest.raises(BrokerError, match=r"^cannot reach the broker it: "):
            await MqttConnection(address, OLD, lambda *_: None).open()

    with Target(answering(data)) as target:
        asyncio.run(asyncio.wait_for(use(target.port), 20))
