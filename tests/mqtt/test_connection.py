"""A connection, from CONNECT to its end, to brokers that do exactly what a test scripts."""

import asyncio
import errno
import socket
import ssl
import threading
import time
from dataclasses import replace

import pytest

from amqtt_rest_bridge.mqtt.connection import KeepAlive, Liveness, MqttConnection
from amqtt_rest_bridge.mqtt.packets import Decoder, Publish, Will, acknowledgement, publish
from amqtt_rest_bridge.mqtt.standard import DISCONNECT, MQTT_5, NAMES, PINGRESP, PUBACK, PUBREC, SUBACK
from amqtt_rest_bridge.mqtt.values import (
    Address,
    BrokerError,
    ClientSession,
    NoAnswerError,
    Subscription,
    why_not_connected,
)
from tests.mqtt.scripted import CONNACK, LOOPS, OLD, SESSION, Taken, broker, connected, message, read
from tests.support.http_target import Peer, Script, silent
from tests.support.waiting import SECONDS

LENGTH = bytes.fromhex("8084AF5F")  # 200,000,000
FORBIDDEN = [
    pytest.param(b"".join(message(b"x", one) for one in (1, 2, 3)), 0x93, "Receive Maximum", id="receive-maximum"),
    pytest.param(message(b"x", 1) + message(b"y", 1), 0x82, "packet identifier 1, which is in use", id="in-use"),
    pytest.param(CONNACK, 0x82, "CONNACK twice", id="CONNACK-twice"),
    pytest.param(bytes.fromhex("9004 0009 0000"), 0x82, "nothing that was asked", id="SUBACK-for-nothing"),
    pytest.param(bytes.fromhex("B004 0009 0000"), 0x82, "nothing that was asked", id="UNSUBACK-for-nothing"),
    pytest.param(acknowledgement(PUBREC, 7), 0x82, "PUBREC without a publication of QoS 2", id="PUBREC-for-nothing"),
    *(
        pytest.param(bytes([kind << 4]) + LENGTH, 0x97, "has 200000000 bytes", id=f"a-{NAMES[kind]}-of-200-MB")
        for kind in (PUBACK, SUBACK, PINGRESP, DISCONNECT)
    ),
    pytest.param(b"\x32\x03\x00\x09a", 0x81, "a packet ends within a text", id="malformed"),
]


@LOOPS
@pytest.mark.parametrize(("data", "code", "why"), FORBIDDEN)
async def test_what_the_broker_may_not_send_ends_the_connection_with_a_reason_on_both_sides(
    data: bytes, code: int, why: str
) -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        sent.append(peer.sock.recv(1024))
        assert peer.sock.recv(1024) == b""

    async with connected(script, CONNACK + data) as connection:
        ended = await connection.ended()
        assert ended.startswith("the broker sends what MQTT does not allow: ") and why in ended
        assert not connection.is_open
        with pytest.raises(BrokerError, match="the connection to the broker was lost"):
            await connection.subscribe([Subscription("a")])
        await connection.disconnect()
    assert sent == [bytes([0xE0, 1, code])]


@LOOPS
async def test_a_publication_of_qos_0_counts_as_published_once_it_is_written() -> None:
    packet = publish("out", b"x", None, qos=0, properties={})
    received: list[bytes] = []

    async with connected(lambda peer: received.append(peer.sock.recv(1024))) as connection:
        connection.publish("out", b"x", lambda _: connection.abort(), qos=0)
        await connection.ended()
    assert received == [packet]


@LOOPS
@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system cannot acknowledge at once")
async def test_acknowledgements_that_come_apart_do_not_wait_for_delayed_ones_of_tcp() -> None:
    """A broker with Nagle's algorithm on sends the second PUBACK 40 ms later otherwise."""
    packet = len(publish("out", b"x", 1, properties={}))
    seconds: list[float] = []

    def script(peer: Peer) -> None:
        for first in range(1, 61, 2):
            read(peer, 2 * packet)
            peer.send(acknowledgement(PUBACK, first))
            peer.send(acknowledgement(PUBACK, first + 1))
        peer.sock.recv(1024)

    async with connected(script) as connection:
        for _ in range(30):
            began, published = time.monotonic(), asyncio.Queue[str | None]()
            for _ in range(2):
                connection.publish("out", b"x", published.put_nowait)
            await published.get()
            await published.get()
            seconds.append(time.monotonic() - began)
        await connection.disconnect()
    assert min(seconds[20:]) < 0.03  # the first ones come at once in any case


async def test_what_a_broker_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: Peer) -> None:
        while peer.sock.recv(1024):
            pass

    async with connected(script) as connection:
        monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.1)
        with pytest.raises(BrokerError, match=r"does not answer SUBSCRIBE$"):
            await connection.subscribe([Subscription("a")])
        with pytest.raises(BrokerError, match=r"does not answer UNSUBSCRIBE$"):
            await connection.unsubscribe([Subscription("a")])
        await connection.disconnect()


BEFORE_CONNACK = [
    pytest.param(message(b"x", 1), SESSION, r"PUBLISH before CONNACK \(Protocol error\)", id="PUBLISH"),
    pytest.param(b"\xd0\x00", SESSION, "another packet before CONNACK", id="PINGRESP"),
    pytest.param(
        bytes.fromhex("2003 0100 00"), ClientSession("a", 0, 9), "a session that was not asked for", id="session"
    ),
    pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", SESSION, "does not allow", id="HTTP"),
    pytest.param(b"", SESSION, "closed the connection without an answer to CONNECT", id="nothing"),
]


@pytest.mark.parametrize(("data", "session", "why"), BEFORE_CONNACK)
async def test_what_answers_connect_with_something_else_is_refused(
    data: bytes, session: ClientSession, why: str
) -> None:
    async with broker(answering_once(data)) as address:
        connection = MqttConnection(address, session, lambda *_: None)
        with pytest.raises(NoAnswerError, match=why):
            await connection.open()


def answering_once(data: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(data)

    return script


@pytest.mark.parametrize(
    ("answer", "session", "said", "code"),
    [
        pytest.param("2002 0004", OLD, "bad user name or password", 4, id="3.1.1"),
        pytest.param("2003 008A 00", SESSION, "Banned", 0x8A, id="5"),
    ],
)
async def test_a_refusal_has_its_code(answer: str, session: ClientSession, said: str, code: int) -> None:
    async with broker(answering_once(bytes.fromhex(answer))) as address:
        with pytest.raises(BrokerError, match=f"the broker refuses the client: {said}") as raised:
            await MqttConnection(address, session, lambda *_: None).open()
        assert raised.value.code == code


async def test_silence_after_connect_and_a_port_that_nothing_listens_on(
    monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    async with broker(silent) as address:
        with monkeypatch.context() as patch:
            patch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.1)
            with pytest.raises(NoAnswerError, match=r"^the broker the broker does not answer CONNECT$"):
                await MqttConnection(address, SESSION, lambda *_: None).open()
        elsewhere = Address("127.0.0.1", unused_port, None, None, None, "it")
        with pytest.raises(
            BrokerError, match=r"^cannot reach the broker it: Connection refused; is the broker running\?$"
        ):
            await MqttConnection(elsewhere, SESSION, lambda *_: None).open()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(ConnectionResetError(), "it closed the connection", id="closed within TLS"),
        pytest.param(ConnectionResetError(errno.ECONNRESET, "x"), "Connection reset by peer", id="reset"),
        pytest.param(ssl.SSLCertVerificationError(1, "[SSL: X] x"), "its certificate is refused: ", id="TLS"),
        pytest.param(ValueError("no path"), "no path", id="other"),
    ],
)
def test_why_there_is_no_connection_is_said_in_words(error: OSError | ValueError, said: str) -> None:
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_message = "self-signed certificate"
        said += error.verify_message
    assert why_not_connected(error) == said


async def test_connect_has_what_the_session_and_the_address_say() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        sent.append(peer.sock.recv(1024))
        peer.send(CONNACK)
        peer.wait()

    async with broker(script) as address:
        session = ClientSession("client", 60, 5, Will("w", b"gone"))
        connection = MqttConnection(replace(address, username="u", password="p"), session, lambda *_: None)
        await connection.open()
        assert (connection.granted.receive_maximum, connection.granted.session_expiry) == (65_535, 60)
        connection.abort()
    assert sent == [
        bytes.fromhex(
            "10 2B 0004 4D515454 05 EC 000F 08 21 0005 11 0000003C"
            "0006 636C69656E74 00 0001 77 0004 676F6E65 0001 75 0001 70"
        )
    ]


@LOOPS
async def test_what_comes_in_one_segment_with_connack_is_received_and_the_reset_behind_it_is_seen_at_once() -> None:
    reset = threading.Event()

    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(CONNACK + b"".join(message(b"%d" % number, number) for number in range(1, 100)))
        peer.reset()
        reset.set()

    async with broker(script) as address:
        received: list[bytes] = []

        def receive(_connection: MqttConnection, message: Publish) -> None:
            reset.wait(SECONDS)  # the loop sees messages and reset together
            received.append(message.payload)

        connection = MqttConnection(address, ClientSession("client", 3600, 100), receive)
        await connection.open()
        assert await connection.ended() == "the connection was lost"
        assert received == [b"%d" % number for number in range(1, 100)]


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        pytest.param("E002 9700", "Quota exceeded", id="quota exceeded"),
        pytest.param("E002 8700", "Not authorized", id="not authorized"),
        pytest.param("E002 8E00", "Session taken over", id="taken over"),
        pytest.param("E008 8E06 1F0003 627965", "Session taken over: bye", id="with a reason in words"),
        pytest.param(
            "F0 03 000000",
            "the broker sends what MQTT does not allow: "
            "a packet of type AUTH does not come from this side (Protocol error)",
            id="a packet that was not begun",
        ),
        pytest.param(
            "32FFFFFFFF7F",
            "the broker sends what MQTT does not allow: a length has more than four bytes (Malformed packet)",
            id="a length of five bytes",
        ),
    ],
)
async def test_a_connection_that_the_broker_ends_says_why(packet: str, why: str) -> None:
    async with connected(Peer.wait, CONNACK + bytes.fromhex(packet)) as connection:
        assert await connection.ended() == why


KEEP_ALIVE = "2006 0000 03 13 000{}"
"""CONNACK with so many seconds of Server Keep Alive."""
EVERY_SECOND = bytes.fromhex(KEEP_ALIVE.format(1))


async def test_a_broker_that_does_not_answer_pingreq_is_left() -> None:
    sent: list[bytes] = []

    def script(peer: Peer) -> None:
        sent.append(read(peer, 2))
        peer.send(bytes.fromhex("D000"))
        sent.append(read(peer, 2))
        peer.wait()

    async with connected(script, EVERY_SECOND) as connection:
        assert await connection.ended() == "the broker does not answer PINGREQ"
    assert sent == [b"\xc0\x00"] * 2


async def test_a_broker_that_drips_a_packet_has_not_answered_pingreq() -> None:
    async with connected(lambda peer: peer.drip(message(bytes(1_000_000), 1)), EVERY_SECOND) as connection:
        assert await connection.ended() == "the broker does not answer PINGREQ"


async def test_a_large_packet_on_a_slow_link_is_waited_for_with_the_answers_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes longer than two keep alives, and than an answer may take."""
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.7)
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection._SLOWEST", 0)  # any pace counts, also that of a busy machine
    packet, taken = message(bytes(100_000), 1), Taken()

    def script(peer: Peer) -> None:
        packet_id = peer.sock.recv(1024)[2:4]
        peer.send(packet[:1000])
        assert read(peer, 6) == b"\xc0\x00" * 3
        peer.send(packet[1000:] + b"\x90\x04" + packet_id + b"\x00\x01")
        peer.wait()

    async with connected(script, EVERY_SECOND, take=taken) as connection:
        await connection.subscribe([Subscription("in")])
        assert taken.payloads == [bytes(100_000)]


@pytest.mark.parametrize(("received", "is_alive"), [(511, False), (512, True)])
def test_a_part_of_a_packet_counts_where_it_comes_with_1_kib_a_second(received: int, is_alive: bool) -> None:
    decoder = Decoder(MQTT_5)
    decoder.feed(message(bytes(100_000), 1)[:received])
    liveness = Liveness(decoder)
    assert (decoder.next(), liveness.check(0.5, can_read=True)) == (None, KeepAlive.PING)
    liveness.bytes_received += received
    assert liveness.check(0.5, can_read=True) is (KeepAlive.PING if is_alive else KeepAlive.END)


async def test_a_broker_that_wants_no_keep_alive_is_pinged_as_others_are() -> None:
    async with connected(Peer.wait, bytes.fromhex(KEEP_ALIVE.format(0))) as connection:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.ended(), 0.5)


async def test_a_subscription_that_is_granted_less_than_it_needs_is_refused() -> None:
    def script(peer: Peer) -> None:
        for _ in range(2):
            peer.send(b"\x90\x04" + peer.sock.recv(1024)[2:4] + b"\x00\x00")
        peer.wait()

    async with connected(script) as connection:
        await connection.subscribe([Subscription("a", qos=0)])
        with pytest.raises(BrokerError, match="the broker grants QoS 0 to the subscription of a, which needs QoS 1"):
            await connection.subscribe([Subscription("a")])


@pytest.mark.parametrize("name", ["username", "password"])
@pytest.mark.parametrize("value", ["secret\udcff", "secret" * 20_000], ids=["not UTF-8", "too long"])
async def test_credentials_that_mqtt_cannot_write_are_refused_without_them(name: str, value: str) -> None:
    async with broker(lambda peer: peer.wait()) as address:
        wrong = replace(address, **{name: value})  # type: ignore[arg-type]
        with pytest.raises(BrokerError, match="is not UTF-8, or longer than MQTT can write") as raised:
            await MqttConnection(wrong, SESSION, lambda *_: None).open()
        assert "secret" not in str(raised.value)
