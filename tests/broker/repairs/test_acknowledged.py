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
from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from amqtt_rest_bridge.broker.repairs import connections
from tests.benchmarks.mqtt_wire import Wire, connect_packet, publish_packet, subscribe_packet
from tests.support.commands import Workplace
from tests.support.embedded_broker import Host, configuration, hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import AUTHORITY, CERTIFICATES
from tests.support.publishing import (
    DISCONNECT,
    PUBACK,
    PUBREC,
    End,
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


class Names(BaseAuthPlugin):
    """A user's password is his name."""

    async def authenticate(self, *, session: Session) -> bool | None:
        return session.username == session.password


class Rights(BaseTopicPlugin):
    """An ACL: users may publish on topics that end in their names. It answers about `ann` once `may` is set."""

    may = threading.Event()
    asked = threading.Event()

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        assert session is not None
        assert topic is not None
        if action is not Action.PUBLISH:
            await asyncio.sleep(0.1 if topic.startswith("slow/") else 0)
            return True
        if session.username == "ann":
            self.asked.set()
            while not self.may.is_set():
                await asyncio.sleep(0.001)
        return topic.endswith(str(session.username))


NAMED: dict[str, Any] = {
    "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": False},
    f"{__name__}.Names": {},
    f"{__name__}.Rights": {},
}


@pytest.fixture
def host(target: Recorder) -> Iterator[Host]:
    with hosting(route(target)) as running:
        yield running


@pytest.fixture
def named(target: Recorder) -> Iterator[Host]:
    """A broker with users and the ACL `Rights`, which does not answer about `ann` yet."""
    Rights.may.clear()
    Rights.asked.clear()
    with hosting(route(target), NAMED) as running:
        try:
            yield running
        finally:
            Rights.may.set()


def user(host: Host, name: str, client_id: str, **options: Any) -> Wire:
    return Wire(host.mqtt_port, client_id, login=(name, name), timeout=SECONDS, **options)


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
    host: Host, target: Recorder, qos: int, end: End, count: int, flooders: int
) -> None:
    payloads = numbered(count)
    with listening(host.mqtt_port) as listener, flooded(host.mqtt_port, flooders):
        publish(host.mqtt_port, payloads, end, qos)
        listener.await_messages(payloads)
        await_requests(target, payloads)


@pytest.mark.parametrize("last", [DISCONNECT, b""], ids=["DISCONNECT", "close"])
def test_messages_of_qos_0_before_the_end_reach_routes_and_subscribers(
    host: Host, target: Recorder, last: bytes
) -> None:
    payloads = numbered(100)
    with listening(host.mqtt_port) as listener:
        wire = Wire(host.mqtt_port, "publisher")
        wire.send(packets(payloads, qos=0) + last)
        wire.sock.close()
        listener.await_messages(payloads)
        await_requests(target, payloads)


def test_messages_of_qos_2_released_before_the_end_reach_routes_and_subscribers(host: Host, target: Recorder) -> None:
    payloads = numbered(100)
    with listening(host.mqtt_port) as listener:
        wire = Wire(host.mqtt_port, "publisher")
        wire.send(packets(payloads, qos=2))
        await_answers(wire, PUBREC, len(payloads))
        with host.standing_still():
            close_unread(wire, pubrels(len(payloads)))
        listener.await_messages(payloads)
        await_requests(target, payloads)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("policy", ["lossless", "balanced"])
@pytest.mark.parametrize("count", [pytest.param(100, id="100"), pytest.param(5000, id="5000", marks=pytest.mark.long)])
def test_a_publisher_that_closes_at_once_with_unread_pubacks_loses_nothing(
    tmp_path: Path, target: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    count: int, policy: str, loop: str,
) -> None:  # fmt: skip
    if loop == "uvloop":
        monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)
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


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_messages_over_tls_before_a_close_with_unread_pubacks_are_passed_on(
    tmp_path: Path, target: Recorder, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    if loop == "uvloop":
        monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)
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
def test_a_will_is_not_sent_after_a_disconnect_that_comes_together_with_the_end(host: Host, qos: int) -> None:
    payloads = numbered(100)
    with listening(host.mqtt_port) as listener:
        wire = Wire(host.mqtt_port, "publisher", will=("in/will", b"gone"))
        with host.ending("publisher"), host.standing_still():
            close_unread(wire, packets(payloads, qos) + DISCONNECT)
        publish(host.mqtt_port, [b"last"], End.DISCONNECT)
        listener.await_messages([*payloads, b"last"])


def test_a_client_that_sends_connect_messages_and_disconnect_at_once_is_served(host: Host) -> None:
    """Its DISCONNECT has come before amqtt begins to serve the connection."""
    payloads = numbered(100)
    with listening(host.mqtt_port) as listener:
        with socket.create_connection(("127.0.0.1", host.mqtt_port)) as sock:
            sock.sendall(connect_packet("publisher", will=("in/will", b"gone")) + packets(payloads) + DISCONNECT)
            listener.await_messages(payloads)
            while sock.recv(10_000):
                pass
        eventually(lambda: len(connections.handlers(host.broker)) == 1, "the connection does not end")
        publish(host.mqtt_port, [b"last"], End.DISCONNECT)
        listener.await_messages([*payloads, b"last"])


def test_a_subscription_right_before_a_disconnect_is_kept_in_the_session(named: Host) -> None:
    ann = user(named, "ann", "a", clean=False)
    with named.ending("a"):
        ann.send(subscribe_packet("out/#", 1) + DISCONNECT)
        ann.sock.close()
    assert "out/#" in named.broker.subscriptions


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_the_payload_of_a_packet_that_is_cut_off_is_not_read_as_packets(host: Host, size: int) -> None:
    inner = publish_packet("in/x", b"inner")
    with listening(host.mqtt_port) as listener:
        wire = Wire(host.mqtt_port, "publisher")
        with host.ending("publisher"):
            wire.send(packets([b"before"]) + publish_packet("in/x", inner + bytes(size))[:-size])
            wire.sock.close()
        publish(host.mqtt_port, [b"last"], End.DISCONNECT)
        listener.await_messages([b"before", b"last"])


def test_reading_stops_soon_after_a_disconnect(host: Host) -> None:
    with listening(host.mqtt_port) as listener:
        wire = Wire(host.mqtt_port, "publisher")
        with host.ending("publisher"), contextlib.suppress(ConnectionError):
            wire.send(packets([b"before"]) + DISCONNECT + packets(numbered(5000)))
        wire.sock.close()
        publish(host.mqtt_port, [b"last"], End.DISCONNECT)
        eventually(lambda: b"last" in listener.payloads, "what is published later does not come")
        assert listener.payloads[0] == b"before"
        assert len(listener.payloads) < 200


def test_messages_before_and_after_a_forbidden_topic_that_ends_the_connection_are_passed_on(host: Host) -> None:
    with listening(host.mqtt_port) as listener:
        wire = Wire(host.mqtt_port, "publisher", will=("in/will", b"gone"))
        wire.send(packets([b"1"]) + publish_packet("$forbidden", b"", 2) + packets([b"3"]))
        await_answers(wire, PUBACK, 3)
        listener.await_messages([b"1", b"3", b"gone"])
        with pytest.raises(ConnectionError):
            wire.receive()
        wire.sock.close()


def test_messages_and_then_the_will_wait_for_a_slow_acl(named: Host, target: Recorder) -> None:
    payloads = numbered(20)
    with listening(named.mqtt_port, login=("bob", "bob")) as listener:
        ann = user(named, "ann", "a", will=("in/ann", b"gone"))
        publish_acknowledged(ann, payloads, "in/ann")
        ann.sock.close()
        assert Rights.asked.wait(SECONDS)
        publish_acknowledged(bob := user(named, "bob", "b"), [b"of bob"], "in/bob")
        listener.await_messages([b"of bob"])
        Rights.may.set()
        listener.await_messages([b"of bob", *payloads, b"gone"])
        await_requests(target, [b"of bob", *payloads, b"gone"])
        bob.close()


def test_messages_behind_many_subscriptions_wait_for_a_slow_acl_that_answers(
    named: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LOOK_SECONDS", 0.05)
    payloads = numbered(5)
    with listening(named.mqtt_port, login=("bob", "bob")) as listener:
        bob = user(named, "bob", "b")
        subscriptions = b"".join(subscribe_packet(f"slow/{number}") for number in range(10))
        bob.send(subscriptions + packets(payloads, topic="in/bob") + DISCONNECT)
        listener.await_messages(payloads)
        bob.sock.close()


def test_an_acl_that_hangs_loses_the_messages_of_one_publisher_and_the_log_counts_them(
    named: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_LOOK_SECONDS", 0.05)
    with listening(named.mqtt_port, login=("bob", "bob")) as listener:
        publish_acknowledged(ann := user(named, "ann", "a"), numbered(20), "in/ann")
        ann.close()
        assert Rights.asked.wait(SECONDS)
        eventually(lambda: len(connections.handlers(named.broker)) == 1, "the connection does not end")
        assert "a: 20 acknowledged message(s) are dropped: the ACL has not answered for 0.5 s" in caplog.messages
        publish_acknowledged(bob := user(named, "bob", "b"), [b"of bob"], "in/bob")
        listener.await_messages([b"of bob"])
        bob.close()


@pytest.mark.parametrize("clean", [True, False], ids=["new", "kept"])
def test_a_take_over_waits_until_the_earlier_connections_messages_are_passed_on(named: Host, clean: bool) -> None:
    payloads, later = numbered(20), numbered(20, "later ")
    with listening(named.mqtt_port, login=("bob", "bob")) as listener:
        first = user(named, "ann", "a", clean=clean)
        publish_acknowledged(first, payloads, "in/ann")
        assert Rights.asked.wait(SECONDS)
        threading.Timer(0.1, Rights.may.set).start()
        second = user(named, "ann", "a", clean=clean)
        publish_acknowledged(second, later, "in/ann")
        listener.await_messages([*payloads, *later])
        with pytest.raises(ConnectionError):
            first.receive()
        first.sock.close()
        second.close()


@pytest.mark.parametrize("clean", [True, False], ids=["new", "kept"])
def test_a_take_over_that_waits_too_long_drops_nothing_and_each_message_has_its_publishers_rights(
    named: Host, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    monkeypatch.setattr(connections, "_TAKE_OVER_SECONDS", 0.1)
    with listening(named.mqtt_port, login=("bob", "bob")) as listener:
        ann = user(named, "ann", "a", clean=clean)
        publish_acknowledged(ann, [b"1"], "in/ann")
        publish_acknowledged(ann, [b"2"], "in/bob")
        publish_acknowledged(ann, [b"3"], "in/ann")
        assert Rights.asked.wait(SECONDS)
        bob = user(named, "bob", "a", clean=clean)
        publish_acknowledged(bob, [b"of bob"], "in/bob")
        listener.await_messages([b"of bob"])
        Rights.may.set()
        listener.await_messages([b"of bob", b"1", b"3"])
        ann.sock.close()
        publish_acknowledged(bob, [b"of bob still"], "in/bob")
        listener.await_messages([b"of bob", b"1", b"3", b"of bob still"])
        bob.close()


@pytest.mark.parametrize("clean", [True, False], ids=["new", "kept"])
def test_of_several_that_wait_to_take_over_the_last_one_stays(
    named: Host, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    monkeypatch.setattr(connections, "_TAKE_OVER_SECONDS", 0.5)
    first = user(named, "ann", "a", clean=clean)
    publish_acknowledged(first, [b"1"], "in/ann")
    assert Rights.asked.wait(SECONDS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(first.sock)
        later = [stack.enter_context(socket.create_connection(("127.0.0.1", named.mqtt_port))) for _ in range(4)]
        for sock in later:
            sock.settimeout(SECONDS)
            sock.sendall(connect_packet("a", login=("ann", "ann"), clean=clean))
        assert later[-1].recv(1) == CONNECTED[:1]  # the others may be closed before they are answered
        eventually(lambda: len(connections.handlers(named.broker)) == 2, "more than the last one stay")


def test_messages_for_a_client_that_has_gone_are_kept_while_its_own_are_passed_on(named: Host) -> None:
    with listening(named.mqtt_port, login=("bob", "bob")) as listener:
        ann = user(named, "ann", "a", clean=False)
        ann.subscribe("out/#", 1)
        publish_acknowledged(ann, [b"x"], "in/ann")
        assert Rights.asked.wait(SECONDS)
        session = named.broker._sessions["a"][0]
        ann.close()
        eventually(lambda: not session.transitions.is_connected(), "the broker does not notice")
        bob = user(named, "bob", "b")
        publish_acknowledged(bob, [b"result"], "out/bob")
        eventually(lambda: session.retained_messages.qsize() == 1, "it is not kept")
        Rights.may.set()
        ann = user(named, "ann", "a", clean=False)
        assert ann.messages() == [("out/bob", b"result")]
        listener.await_messages([b"x"])
        ann.close()
        bob.close()


def test_a_shutdown_passes_on_acknowledged_messages(tmp_path: Path) -> None:
    """The log counts those that their route has no time to call."""
    payloads = numbered(200)
    with recording() as target:
        place = Workplace(tmp_path)
        place.write("routes.lot", route(target))
        with place.serving() as running, listening(port := running.port) as listener:
            publish(port, payloads, End.TOGETHER)
            running.send(signal.SIGTERM)
            assert running.end() == 0
            listener.close()
            assert listener.payloads == payloads
            lost = re.findall(r"route Forward: (\d+) message\(s\) had not been answered", "".join(running.lines))
            assert target.arrived.qsize() + sum(map(int, lost)) == len(payloads)


def test_a_shutdown_does_not_wait_for_an_acl_that_hangs_and_counts_what_it_drops(
    tmp_path: Path, target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    Rights.may.clear()
    (tmp_path / "routes.lot").write_text(route(target))
    host = Host(configuration(tmp_path / "routes.lot", NAMED))
    try:
        gone, ann = user(host, "ann", "gone"), user(host, "ann", "a")
        publish_acknowledged(gone, numbered(3), "in/ann")
        publish_acknowledged(ann, numbered(5), "in/ann")
        gone.close()
    finally:
        host.stop()
    dropped = sorted(line for line in caplog.messages if "dropped" in line)
    assert dropped == [
        "a: 5 acknowledged message(s) are dropped: the broker ends",
        "gone: 3 acknowledged message(s) are dropped: the broker ends",
    ]
    ann.sock.close()
