"""Acknowledged messages are passed on, in order, however the connection of their publisher ends."""

import asyncio
import contextlib
import itertools
import logging
import re
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from amqtt_rest_bridge.broker.repairs import connections
from tests.benchmarks.mqtt_wire import Wire, connect_packet, publish_packet, subscribe_packet
from tests.broker.repairs.users import USERS, Rights, user
from tests.support.commands import Workplace
from tests.support.embedded_broker import Host, configuration, hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import AUTHORITY, CERTIFICATES
from tests.support.publishing import (
    DISCONNECT,
    PUBACK,
    PUBREC,
    End,
    Listener,
    await_answers,
    await_requests,
    close_unread,
    flooded,
    listening,
    numbered,
    packets,
    publish,
    pubrels,
    route,
)
from tests.support.waiting import SECONDS, eventually

CONNECTED = b"\x20\x02\x00\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Host, Recorder]]:
    """A broker with a route, and its server."""
    with recording() as target, hosting(route(target)) as host:
        yield host, target


@pytest.fixture
def listener(shared: tuple[Host, Recorder]) -> Iterator[Listener]:
    """What reaches a subscriber of that broker. In the end the server of the route was sent the same."""
    host, target = shared
    with listening(host.mqtt_port) as listener:
        yield listener
        await_requests(target, listener.payloads)


@pytest.fixture
def host(shared: tuple[Host, Recorder], listener: Listener) -> Host:
    return shared[0]


def assert_next(host: Host, listener: Listener, payloads: list[bytes]) -> None:
    """Show that these payloads, and nothing else, reach the subscriber before a later message."""
    publish(host.mqtt_port, [b"last"], End.DISCONNECT)
    listener.await_messages([*payloads, b"last"])


@pytest.fixture
def named(target: Recorder, rights: type[Rights]) -> Iterator[Host]:
    """A broker with `USERS`."""
    with hosting(route(target), USERS) as running:
        yield running
        rights.may.set()


@pytest.fixture
def heard(named: Host) -> Iterator[Listener]:
    """What reaches a subscriber of that broker."""
    with listening(named.mqtt_port, login=("eve", "eve")) as listener:
        yield listener


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "uvloop":
        monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)


def publish_acknowledged(wire: Wire, payloads: list[bytes], topic: str) -> None:
    """Publish and wait for each PUBACK; keep the connection open."""
    wire.send(packets(payloads, topic=topic))
    await_answers(wire, PUBACK, len(payloads))


@pytest.mark.parametrize(
    ("qos", "count", "flooders"),
    [
        pytest.param(1, 100, 0, id="1-100"),
        pytest.param(2, 100, 0, id="2-100"),
        pytest.param(1, 100, 1, id="1-100 beside a flood"),
        *(
            pytest.param(qos, count, flooders, id=f"{qos}-{count}-{flooders}", marks=pytest.mark.long)
            for qos, count, flooders in [(2, 100, 1), *itertools.product((1, 2), (500, 5000), (0, 1))]
        ),
    ],
)
@pytest.mark.parametrize("end", End)
def test_acknowledged_messages_reach_routes_and_subscribers_in_order(
    host: Host, listener: Listener, qos: int, end: End, count: int, flooders: int
) -> None:
    payloads = numbered(count)
    with flooded(host.mqtt_port, flooders):
        publish(host.mqtt_port, payloads, end, qos)
        listener.await_messages(payloads)


@pytest.mark.parametrize("last", [DISCONNECT, b""], ids=["DISCONNECT", "close"])
def test_messages_of_qos_0_before_the_end_reach_routes_and_subscribers(
    host: Host, listener: Listener, last: bytes
) -> None:
    payloads = numbered(100)
    wire = Wire(host.mqtt_port, "publisher")
    wire.send(packets(payloads, qos=0) + last)
    wire.sock.close()
    listener.await_messages(payloads)


def test_messages_of_qos_2_released_before_the_end_reach_routes_and_subscribers(host: Host, listener: Listener) -> None:
    payloads = numbered(100)
    wire = Wire(host.mqtt_port, "publisher")
    wire.send(packets(payloads, qos=2))
    await_answers(wire, PUBREC, len(payloads))
    with host.standing_still():
        close_unread(wire, pubrels(len(payloads)))
    listener.await_messages(payloads)


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("policy", ["lossless", "balanced"])
@pytest.mark.parametrize("count", [pytest.param(100, id="100"), pytest.param(5000, id="5000", marks=pytest.mark.long)])
def test_a_publisher_that_closes_at_once_with_unread_pubacks_loses_nothing(
    tmp_path: Path, target: Recorder, caplog: pytest.LogCaptureFixture, count: int, policy: str
) -> None:
    payloads = numbered(count)
    with (
        hosting(route(target, policy), spool=str(tmp_path / "spool.db")) as host,
        listening(host.mqtt_port) as listener,
    ):
        caplog.clear()
        close_unread(Wire(host.mqtt_port, "publisher", will=("in/will", b"gone")), packets(payloads))
        listener.await_messages([*payloads, b"gone"])
        await_requests(target, [*payloads, b"gone"])
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


@contextlib.contextmanager
def hosting_also(folder: Path, target: Recorder, **listener: Any) -> Iterator[tuple[Host, int]]:
    """Run a broker with a second listener; yield it and the port of that listener."""
    (folder / "routes.lot").write_text(route(target))
    config = configuration(folder / "routes.lot")
    config["listeners"]["second"] = {"bind": "127.0.0.1:0", **listener}
    host = Host(config)
    try:
        yield host, host.port_of("second")
    finally:
        host.stop()


@pytest.mark.usefixtures("loop")
def test_messages_over_tls_before_a_close_with_unread_pubacks_are_passed_on(tmp_path: Path, target: Recorder) -> None:
    payloads, server = numbered(100), str(CERTIFICATES / "server.pem")
    with (
        hosting_also(tmp_path, target, type="tcp", ssl=True, certfile=server, keyfile=server) as (host, port),
        listening(host.mqtt_port) as listener,
    ):
        context = ssl.create_default_context(cafile=AUTHORITY)
        context.check_hostname = False
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as peer:
            peer.sendall(connect_packet("publisher"))
            assert peer.recv(4) == CONNECTED
            peer.sendall(packets(payloads))
            peer.recv(1)  # after the first PUBACK the broker has all: they are one TLS record
        listener.await_messages(payloads)
        await_requests(target, payloads)


def test_acknowledged_messages_of_a_websocket_are_passed_on(tmp_path: Path, target: Recorder) -> None:
    payloads = numbered(100)
    with (
        hosting_also(tmp_path, target, type="ws") as (host, port),
        listening(host.mqtt_port) as listener,
        connect_websocket(f"ws://127.0.0.1:{port}", subprotocols=[Subprotocol("mqtt")]) as peer,
    ):
        peer.send(connect_packet("publisher", will=("in/will", b"gone")))
        assert peer.recv() == CONNECTED
        peer.send(packets(payloads) + DISCONNECT)
        peer.close()
        listener.await_messages(payloads)
        await_requests(target, payloads)
        eventually(lambda: len(connections.handlers(host.broker)) == 1, "the connection does not end")
        publish(host.mqtt_port, [b"last"], End.DISCONNECT)
        listener.await_messages([*payloads, b"last"])


@pytest.mark.parametrize("qos", [0, 1], ids=["a close", "a close with unread PUBACKs"])
def test_a_will_is_not_sent_after_a_disconnect_that_comes_together_with_the_end(
    host: Host, listener: Listener, qos: int
) -> None:
    payloads = numbered(100)
    wire = Wire(host.mqtt_port, "publisher", will=("in/will", b"gone"))
    with host.ending("publisher"), host.standing_still():
        close_unread(wire, packets(payloads, qos) + DISCONNECT)
    assert_next(host, listener, payloads)


def test_a_client_that_sends_connect_messages_and_disconnect_at_once_is_served(host: Host, listener: Listener) -> None:
    """Its DISCONNECT has come before amqtt begins to serve the connection."""
    payloads = numbered(100)
    with socket.create_connection(("127.0.0.1", host.mqtt_port)) as sock:
        sock.sendall(connect_packet("publisher", will=("in/will", b"gone")) + packets(payloads) + DISCONNECT)
        listener.await_messages(payloads)
        while sock.recv(10_000):
            pass
    eventually(lambda: len(connections.handlers(host.broker)) == 1, "the connection does not end")
    assert_next(host, listener, payloads)


def test_a_subscription_right_before_a_disconnect_is_kept_in_the_session(named: Host) -> None:
    ann = user(named, "ann", clean=False)
    with named.ending("ann"):
        ann.send(subscribe_packet("out/#", 1) + DISCONNECT)
        ann.sock.close()
    assert "out/#" in named.broker.subscriptions


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_the_payload_of_a_packet_that_is_cut_off_is_not_read_as_packets(
    host: Host, listener: Listener, size: int
) -> None:
    inner = publish_packet("in/x", b"inner")
    wire = Wire(host.mqtt_port, "publisher")
    with host.ending("publisher"):
        wire.send(packets([b"before"]) + publish_packet("in/x", inner + bytes(size))[:-size])
        wire.sock.close()
    assert_next(host, listener, [b"before"])


def test_reading_stops_soon_after_a_disconnect(host: Host, listener: Listener) -> None:
    wire = Wire(host.mqtt_port, "publisher")
    with host.ending("publisher"), contextlib.suppress(ConnectionError):
        wire.send(packets([b"before"]) + DISCONNECT + packets(numbered(5000)))
    wire.sock.close()
    publish(host.mqtt_port, [b"last"], End.DISCONNECT)
    eventually(lambda: b"last" in listener.payloads, "what is published later does not come")
    assert listener.payloads[0] == b"before"
    assert len(listener.payloads) < 200


def test_messages_before_and_after_a_forbidden_topic_that_ends_the_connection_are_passed_on(
    host: Host, listener: Listener
) -> None:
    wire = Wire(host.mqtt_port, "publisher", will=("in/will", b"gone"))
    wire.send(packets([b"1"]) + publish_packet("$forbidden", b"", 2) + packets([b"3"]))
    await_answers(wire, PUBACK, 3)
    listener.await_messages([b"1", b"3", b"gone"])
    with pytest.raises(ConnectionError):
        wire.receive()
    wire.sock.close()


def test_messages_and_then_the_will_wait_for_a_slow_acl(
    named: Host, heard: Listener, target: Recorder, rights: type[Rights]
) -> None:
    payloads = numbered(20)
    ann, bob = user(named, "ann", will=("in/ann", b"gone")), user(named, "bob")
    publish_acknowledged(ann, payloads, "in/slow/ann")
    ann.sock.close()
    assert rights.asked.wait(SECONDS)
    publish_acknowledged(bob, [b"of bob"], "in/bob")
    heard.await_messages([b"of bob"])
    rights.may.set()
    heard.await_messages([b"of bob", *payloads, b"gone"])
    await_requests(target, [b"of bob", *payloads, b"gone"])
    bob.close()


def test_messages_behind_many_subscriptions_wait_for_a_slow_acl_that_answers(
    named: Host, heard: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LOOK_SECONDS", 0.05)
    payloads, bob = numbered(5), user(named, "bob")
    subscriptions = b"".join(subscribe_packet(f"slow/{number}") for number in range(10))
    bob.send(subscriptions + packets(payloads, topic="in/bob") + DISCONNECT)
    heard.await_messages(payloads)
    bob.sock.close()


def test_an_acl_that_hangs_loses_the_messages_of_one_publisher_and_the_log_counts_them(
    named: Host, heard: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_LOOK_SECONDS", 0.05)
    ann, bob = user(named, "ann"), user(named, "bob")
    publish_acknowledged(ann, numbered(20), "in/slow/ann")
    with named.ending("ann"):
        ann.close()
    assert "ann: 20 acknowledged message(s) are dropped: the ACL has not answered for 0.5 s" in caplog.messages
    publish_acknowledged(bob, [b"of bob"], "in/bob")
    heard.await_messages([b"of bob"])
    bob.close()


each_session = pytest.mark.parametrize("clean", [True, False], ids=["new", "kept"])


@each_session
def test_a_take_over_waits_until_the_earlier_connections_messages_are_passed_on(
    named: Host, heard: Listener, rights: type[Rights], clean: bool
) -> None:
    payloads, later = numbered(20), numbered(20, "later ")
    first = user(named, "ann", clean=clean)
    publish_acknowledged(first, payloads, "in/slow/ann")
    assert rights.asked.wait(SECONDS)
    threading.Timer(0.1, rights.may.set).start()
    second = user(named, "ann", clean=clean)
    publish_acknowledged(second, later, "in/slow/ann")
    heard.await_messages([*payloads, *later])
    with pytest.raises(ConnectionError):
        first.receive()
    first.sock.close()
    second.close()


@each_session
def test_a_take_over_that_waits_too_long_drops_nothing_and_each_message_has_its_publishers_rights(
    named: Host, heard: Listener, rights: type[Rights], monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    monkeypatch.setattr(connections, "_TAKE_OVER_SECONDS", 0.1)
    ann = user(named, "ann", clean=clean)
    for payload, topic in ((b"1", "in/slow/ann"), (b"2", "in/slow/bob"), (b"3", "in/slow/ann")):
        publish_acknowledged(ann, [payload], topic)
    assert rights.asked.wait(SECONDS)
    bob = user(named, "bob", "ann", clean=clean)
    publish_acknowledged(bob, [b"of bob"], "in/bob")
    heard.await_messages([b"of bob"])
    rights.may.set()
    heard.await_messages([b"of bob", b"1", b"3"])
    ann.sock.close()
    publish_acknowledged(bob, [b"of bob still"], "in/bob")
    heard.await_messages([b"of bob", b"1", b"3", b"of bob still"])
    bob.close()


@each_session
def test_of_several_that_wait_to_take_over_the_last_one_stays(
    named: Host, rights: type[Rights], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    """All have waited too long when the broker, which was suspended, looks again."""
    monkeypatch.setattr(connections, "_TAKE_OVER_SECONDS", 0.5)
    first = user(named, "ann", clean=clean)
    publish_acknowledged(first, [b"1"], "in/slow/ann")
    assert rights.asked.wait(SECONDS)
    (handler,) = connections.handlers(named.broker)
    with contextlib.ExitStack() as stack:
        stack.enter_context(first.sock)
        later = [stack.enter_context(socket.create_connection(("127.0.0.1", named.mqtt_port))) for _ in range(4)]
        for sock in later:
            sock.settimeout(SECONDS)
            sock.sendall(connect_packet("ann", login=("ann", "ann"), clean=clean))
        eventually(lambda: len(handler.connection_ended._waiters) == 4, "not all wait")
        with named.standing_still():
            threading.Event().wait(0.6)
        assert later[-1].recv(4) == bytes([0x20, 2, not clean, 0])  # the others may be closed before they are answered
        eventually(lambda: len(connections.handlers(named.broker)) == 2, "more than the last one stay")
        session, last = named.broker._sessions["ann"]
        assert last in connections.handlers(named.broker)
        assert session.transitions.is_connected()
        later[-1].sendall(PINGREQ)
        assert later[-1].recv(2) == PINGRESP
    assert "already connected" not in caplog.text, "amqtt takes over, too, and may end a later connection"


def test_messages_for_a_client_that_has_gone_are_kept_while_its_own_are_passed_on(
    named: Host, heard: Listener, rights: type[Rights]
) -> None:
    ann, bob = user(named, "ann", clean=False), user(named, "bob")
    ann.subscribe("out/#", 1)
    publish_acknowledged(ann, [b"x"], "in/slow/ann")
    assert rights.asked.wait(SECONDS)
    session = named.broker._sessions["ann"][0]
    ann.close()
    eventually(lambda: not session.transitions.is_connected(), "the broker does not notice")
    publish_acknowledged(bob, [b"result"], "out/bob")
    eventually(lambda: session.retained_messages.qsize() == 1, "it is not kept")
    rights.may.set()
    ann = user(named, "ann", clean=False)
    assert ann.messages() == [("out/bob", b"result")]
    heard.await_messages([b"x"])
    ann.close()
    bob.close()


def test_a_shutdown_passes_on_acknowledged_messages(tmp_path: Path, target: Recorder) -> None:
    """The log counts those that their route has no time to call."""
    payloads, place = numbered(100), Workplace(tmp_path)
    place.write("routes.lot", route(target))
    with place.serving() as running, listening(port := running.port) as listener:
        publish(port, payloads, End.TOGETHER)
        running.send(signal.SIGTERM)
        assert running.end() == 0
        listener.close()
        assert listener.payloads == payloads
        lost = re.findall(r"route Forward: (\d+) message\(s\) had not been answered", "".join(running.lines))
        assert target.arrived.qsize() + sum(map(int, lost)) == len(payloads)


@pytest.mark.usefixtures("rights")
def test_a_shutdown_does_not_wait_for_an_acl_that_hangs_and_counts_what_it_drops(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with hosting(route(target), USERS) as host:
        gone, stays = user(host, "ann", "gone"), user(host, "ann", "stays")
        publish_acknowledged(gone, numbered(3), "in/slow/ann")
        publish_acknowledged(stays, numbered(5), "in/slow/ann")
        gone.close()
    assert sorted(line for line in caplog.messages if "dropped" in line) == [
        "gone: 3 acknowledged message(s) are dropped: the broker ends",
        "stays: 5 acknowledged message(s) are dropped: the broker ends",
    ]
    stays.sock.close()
