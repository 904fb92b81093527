"""Each defect that `broker/repairs` mends exists in a plain amqtt, and is gone in a mended one.

If a test fails for "plain", amqtt has mended the defect itself: remove the repair, which is in the module that the
heading above the test names.
"""

import asyncio
import contextlib
import gc
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from amqtt.broker import Broker
from amqtt.events import BrokerEvents
from amqtt.mqtt.publish import PublishPacket
from amqtt.plugins.base import BasePlugin
from amqtt.plugins.topic_checking import TopicAccessControlListPlugin
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from amqtt_rest_bridge.broker import repairs
from amqtt_rest_bridge.broker.repairs import shutdown
from amqtt_rest_bridge.broker.repairs.shutdown import Draining
from amqtt_rest_bridge.broker.service import record_failures
from tests.benchmarks.mqtt_wire import Wire, connect_packet, publish_packet, subscribe_packet
from tests.broker.repairs.test_forwarding import iterations
from tests.broker.repairs.users import PASSWORDS, RIGHTS, Rights, user
from tests.support.embedded_broker import Host
from tests.support.publishing import (
    DISCONNECT,
    PUBACK,
    Listener,
    await_answers,
    close_unread,
    listening,
    numbered,
    packets,
)
from tests.support.waiting import SECONDS, eventually

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HERE = __name__
SOON = 0.5  # how long a test waits for something that must not happen

REFUSED = connect_packet("c", login=("ann", "wrong"))
LARGE = [payload.ljust(300) for payload in numbered(2000)]
"""So many payloads that the broker has not read all of them when their connection is reset."""


@pytest.fixture(params=[pytest.param(False, id="plain"), pytest.param(True, id="mended")])
def mended(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Lists(TopicAccessControlListPlugin):
    """amqtt's ACL, with lists for subscriptions."""

    @dataclass
    class Config:
        """As in a configuration file."""

        publish_acl: dict[str, list[str]] = field(default_factory=dict)
        acl: dict[str, list[str]] = field(
            default_factory=lambda: {"ann": ["ann/+", "deep/+", "deep/+/+"], "bob": ["+"], "eve": ["eve/#", "x/+/#"]}
        )


class Broken(BasePlugin[Any]):
    """A plugin that cannot start."""

    async def on_broker_post_start(self) -> None:
        raise ValueError("no port")


class Published(BasePlugin[Any]):
    """Notes what amqtt reads of messages."""

    payloads: ClassVar[list[bytes]] = []

    async def on_mqtt_packet_received(self, *, packet: Any, **_: Any) -> None:
        if isinstance(packet, PublishPacket):
            self.payloads.append(bytes(packet.data or b""))


class Rounds(BasePlugin[Any]):
    """Counts the packets that amqtt reads in one iteration of the loop; `most` is the highest count."""

    most = now = 0

    async def on_mqtt_packet_received(self, **_: Any) -> None:
        if not self.now:
            asyncio.get_running_loop().call_soon(self.next)
        type(self).now += 1

    def next(self) -> None:
        Rounds.most, Rounds.now = max(Rounds.most, Rounds.now), 0


@contextlib.contextmanager
def running(
    mended: bool,
    *plugins: str,
    bind: str = "127.0.0.1:0",
    stop: bool = True,
    web: bool = False,
    mend: Callable[[Broker], None] = repairs.mend,
) -> Iterator[Host]:
    """Run a broker without the bridge, with `Passwords` and plugins that are classes of this module, or named by paths.

    It is not shut down at the end unless it is to `stop`.
    """
    listeners = {"default": {"type": "tcp", "bind": bind}}
    if web:
        listeners["web"] = {"type": "ws", "bind": bind}
    listed: dict[str, Any] = {PASSWORDS: {}} | {name if "." in name else f"{HERE}.{name}": {} for name in plugins}

    class Started(Host):
        @staticmethod
        async def _start(config: dict[str, Any]) -> Broker:
            broker = Broker(config)
            if mended:
                mend(broker)
            await broker.start()
            return broker

    host = Started({"listeners": listeners, "plugins": listed})
    try:
        yield host
    finally:
        if mended and stop:
            host.stop()
        elif stop:  # from Python 3.12.1 on, connections that are left open keep a plain amqtt from its end
            with contextlib.suppress(TimeoutError):
                host.wait(asyncio.wait_for(host.broker.shutdown(), 4 * SOON))
            host._end_loop()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the sockets that a plain amqtt has left open, so that Python warns of them here, not in a later test."""
    yield
    gc.collect()


def is_closed(sock: socket.socket, seconds: float) -> bool:
    """Return whether the broker ends a connection within `seconds`; bytes that it sends before are dropped."""
    sock.settimeout(seconds)
    try:
        while sock.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def are_sent(listener: Listener, payloads: list[bytes], host: Host) -> bool:
    """Publish a last message; return whether the listener was sent all payloads, in order, before it."""
    bob = user(host, "bob")
    bob.send(publish_packet("in/all", b"later"))
    eventually(lambda: b"later" in listener.payloads, "a later message is not sent")
    bob.close()
    return listener.payloads == [*payloads, b"later"]


# Mended by `permissions`.


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "bob/gone"])
def test_amqtt_sends_a_will_where_its_client_may_not_publish(topic: str, mended: bool) -> None:
    with running(mended, RIGHTS) as host:
        ann = user(host, "ann", will=(topic, b"forged"), will_retain=True)
        host.cut_off(ann.sock, "ann")
        assert (topic in host.broker.retained_messages) != mended


@pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated:DeprecationWarning")
def test_amqtt_takes_a_plus_in_an_acl_for_any_number_of_levels(mended: bool) -> None:
    wanted = {
        "ann": ["ann/+", "ann/#", "deep/#"],
        "bob": ["#", "top"],
        "eve": ["eve/#", "eve/x/#", "x/y/#", "x/#", "#"],
    }
    with running(mended, "Lists") as host:
        granted = {}
        for name, filters in wanted.items():
            wire = user(host, name)
            for topic_filter in filters:
                wire.send(subscribe_packet(topic_filter))
                granted[name, topic_filter] = wire.expect(0x90)[2] == 0
            wire.close()
        too_much = {("ann", "ann/#"), ("ann", "deep/#"), ("bob", "#")}
        meant = {("ann", "ann/+"), ("bob", "top"), ("eve", "eve/#"), ("eve", "eve/x/#"), ("eve", "x/y/#")}
        assert {key for key, is_granted in granted.items() if is_granted} == (meant if mended else meant | too_much)


def test_amqtt_sends_a_client_retained_messages_for_the_filters_of_others(mended: bool) -> None:
    with running(mended) as host:
        host.wait(host.broker.retain_message(None, "kept/1", b"x"))
        ann = user(host, "ann")
        ann.subscribe("kept/#")
        bob = user(host, "bob")
        if mended:
            bob.subscribe("all/end")
            bob.send(publish_packet("all/end", b""))
        assert bob.messages() == [("all/end", b"") if mended else ("kept/1", b"x")]
        assert ann.messages() == [("kept/1", b"x")]
        for wire in (ann, bob):
            wire.close()


# Mended by `connections`.


def test_amqtt_lets_a_refused_client_end_the_session_whose_id_it_names(mended: bool) -> None:
    with running(mended) as host:
        ann = user(host, "ann")
        ann.subscribe("news")
        with pytest.raises(ConnectionRefusedError, match="CONNACK 5"):
            Wire(host.mqtt_port, "ann", timeout=SECONDS, login=("bob", "wrong"))
        assert ("news" in host.broker.subscriptions) == mended
        ann.sock.close()


def test_amqtt_leaves_a_clients_earlier_connection_open_when_it_connects_with_a_new_session(mended: bool) -> None:
    with running(mended) as host:
        first, second = user(host, "ann"), user(host, "ann")
        assert is_closed(first.sock, SECONDS if mended else SOON) == mended
        for wire in (first, second):
            wire.sock.close()


def test_amqtt_drops_acknowledged_messages_when_the_connection_ends(mended: bool) -> None:
    payloads = numbered(100)
    with running(mended) as host, listening(host.mqtt_port, login=("bob", "bob")) as listener:
        ann = user(host, "ann")
        with host.ending("ann"):
            ann.send(packets(payloads) + DISCONNECT)
            await_answers(ann, PUBACK, len(payloads))
            ann.sock.close()
        assert are_sent(listener, payloads, host) == mended


def test_amqtt_drops_what_follows_a_failure_of_a_topic_plugin(mended: bool) -> None:
    payloads = numbered(100)
    with running(mended, RIGHTS) as host, listening(host.mqtt_port, login=("bob", "bob")) as listener:
        ann = user(host, "ann")
        lost = packets([b"lost"], topic="in/broken") + subscribe_packet("in/broken")
        ann.send(packets(payloads[:50], topic="in/all") + lost + packets(payloads[50:], topic="in/all"))
        await_answers(ann, PUBACK, 101)
        if mended:
            listener.await_messages(payloads)
        ann.close()
        assert are_sent(listener, payloads, host) == mended


def test_amqtt_subscribes_before_an_unsubscribe_that_came_first(mended: bool) -> None:
    with running(mended) as host:
        ann = user(host, "ann")
        ann.subscribe("all/t")
        ann.send(b"\xa2\x09\x00\x02\x00\x05all/t" + subscribe_packet("all/t"))  # UNSUBSCRIBE, SUBSCRIBE
        answers: list[int] = []
        while len(answers) < 2:
            answers += [kind for kind, _ in ann.receive()]
        assert answers == ([0xB0, 0x90] if mended else [0x90, 0xB0])
        ann.close()


# Mended by `traffic`.


def test_amqtt_makes_a_message_up_when_a_web_socket_closes_in_the_middle_of_one(mended: bool) -> None:
    Published.payloads.clear()
    packet = publish_packet("in/x", bytes(100))
    with (
        running(mended, "Published", web=True) as host,
        connect_websocket(f"ws://127.0.0.1:{host.port_of('web')}", subprotocols=[Subprotocol("mqtt")]) as peer,
    ):
        peer.send(connect_packet("ann", login=("ann", "ann")))
        assert peer.recv() == b"\x20\x02\x00\x00"
        peer.send(publish_packet("in/x", b"whole") + packet[:48])
        peer.send(packet[48:58])  # five more of it make the packet whole
        peer.close()
        bob = user(host, "bob")
        bob.send(publish_packet("in/x", b"later", 1))
        bob.expect(0x40)
        bob.close()
    assert Published.payloads == [b"whole", b"later"] if mended else bytes(100) in Published.payloads


def test_amqtt_forgets_a_disconnect_that_comes_together_with_the_end(mended: bool) -> None:
    with running(mended) as host:
        ann = user(host, "ann", will=("gone", b"x"), will_retain=True)
        with host.ending("ann"):
            close_unread(ann, packets(LARGE) + DISCONNECT)
        assert ("gone" not in host.broker.retained_messages) == mended


def test_amqtt_drops_packets_that_came_before_a_reset(mended: bool) -> None:
    with running(mended) as host, listening(host.mqtt_port, login=("bob", "bob")) as listener:
        ann = user(host, "ann")
        with host.ending("ann"):
            close_unread(ann, packets(LARGE))
        assert are_sent(listener, LARGE, host) == mended


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no MQTT"),
        pytest.param(connect_packet("c")[:5], id="a part of a CONNECT"),
        pytest.param(publish_packet("t", b""), id="a PUBLISH before the CONNECT"),
        pytest.param(REFUSED, id="a CONNECT that is refused"),
    ],
)
def test_amqtt_leaves_a_connection_open_that_it_has_finished_with(sent: bytes, mended: bool) -> None:
    if not mended and sys.version_info >= (3, 13):
        pytest.skip("Python 3.13 closes a connection that nothing refers to")
    with running(mended) as host, socket.create_connection(("127.0.0.1", host.mqtt_port)) as peer:
        peer.sendall(sent)
        if sent != REFUSED:
            peer.shutdown(socket.SHUT_WR)
        assert is_closed(peer, SECONDS if mended else SOON) == (mended or sent == REFUSED)  # which amqtt closes


def test_amqtt_reads_all_packets_of_a_client_in_one_iteration_of_the_loop(mended: bool) -> None:
    Rounds.most = 0
    with running(mended, "Rounds") as host:
        ann = user(host, "ann")
        ann.send(publish_packet("t", b"") * 5_000 + publish_packet("t", b"", 1))
        ann.expect(0x40)
        ann.close()
    assert Rounds.most < 40 if mended else Rounds.most > 200


def test_amqtt_takes_three_iterations_of_the_loop_to_forward_a_message(mended: bool) -> None:
    with running(mended) as host:
        taken = iterations(host, 300)
    assert taken <= 300 if mended else taken > 600


def test_amqtt_keeps_delivered_messages_while_one_client_does_not_acknowledge(mended: bool) -> None:
    with running(mended) as host:
        ann, bob = user(host, "ann"), user(host, "bob")
        ann.subscribe("first", 1)
        bob.subscribe("#")
        for topic in ["first"] + 100 * ["next"]:
            host.wait(host.broker.internal_message_broadcast(topic, b""))
            bob.expect(0x30)
        assert len(host.broker._tasks_queue) < 10 if mended else len(host.broker._tasks_queue) > 100
        for wire in (ann, bob):
            wire.close()


def test_amqtt_keeps_a_message_from_its_subscribers_when_others_come_and_go_meanwhile(
    rights: type[Rights], mended: bool
) -> None:
    with running(mended, RIGHTS) as host:
        leaving, other, last, publisher = [user(host, name) for name in ("leaving", "other", "last", "publisher")]
        for wire in (leaving, other, last):
            wire.subscribe("all/late")
        last.subscribe("all/+")
        publisher.send(publish_packet("all/late", b"x"))
        assert rights.asked.wait(SECONDS)
        publisher.subscribe("new")
        leaving.send(b"\xa2\x0c\x00\x02\x00\x08all/late")  # UNSUBSCRIBE
        leaving.expect(0xB0)
        rights.may.set()
        publisher.send(publish_packet("all/end", b""))
        received: list[tuple[str, bytes]] = []
        while ("all/end", b"") not in received:
            received += last.messages()
        assert (received == [("all/late", b"x")] * 2 + [("all/end", b"")]) == mended
        if mended:
            assert other.messages() == [("all/late", b"x")]
        for wire in (leaving, other, last, publisher):
            wire.close()


def test_amqtt_cannot_bind_an_ipv6_address(mended: bool) -> None:
    with contextlib.ExitStack() as stack:
        if not mended:
            stack.enter_context(pytest.raises(Exception, match="can't be started"))
        host = stack.enter_context(running(mended, bind="[::1]:0"))
        socket.create_connection(("::1", host.mqtt_port)).close()


# Mended by `shutdown`.


def test_amqtt_drops_messages_on_their_way_at_a_shutdown(mended: bool) -> None:
    with running(mended, stop=False) as host:
        ann = user(host, "ann")
        ann.subscribe("results")

        async def end() -> None:
            for number in range(16):
                await host.broker.internal_message_broadcast("results", b"%d" % number)
            if mended:
                await Draining(host.broker).delivered((), SECONDS)
            await host.broker.shutdown()

        host.wait(end())
        host._end_loop()
        received = b""
        with contextlib.suppress(ConnectionError):
            while data := ann.sock.recv(10_000):
                received += data
        assert (received.count(b"results") == 16) == mended
        ann.sock.close()


def test_amqtt_logs_a_stack_trace_for_messages_that_are_not_read_at_a_shutdown(
    mended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with running(mended) as host:
        ann, bob = user(host, "ann"), user(host, "bob")
        ann.subscribe("large")
        bob.send(publish_packet("large", bytes(1_000_000)) * 20 + publish_packet("last", b"", 1))
        bob.expect(0x40)
    assert any(record.exc_info for record in caplog.records) != mended
    for wire in (ann, bob):
        wire.sock.close()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio.wait_for keeps cancellations")
def test_amqtt_does_not_stop_a_connection_if_a_packet_comes_meanwhile(mended: bool) -> None:
    with running(mended, mend=shutdown.mend) as host:

        async def stopped(client_id: str, iterations: int) -> bool:
            handler = host.broker._sessions[client_id][1]
            assert handler.reader is not None
            handler.reader._reader.feed_data(publish_packet("t", b""))  # type: ignore[attr-defined]
            for _ in range(iterations):
                await asyncio.sleep(0)
            stop = asyncio.ensure_future(host.broker._stop_handler(handler))
            done, _ = await asyncio.wait((stop,), timeout=SOON)
            return bool(done)

        ended = []
        for iterations in range(6):
            with socket.create_connection(("127.0.0.1", host.mqtt_port)) as sock:
                packet = bytearray(connect_packet(f"c{iterations}", login=("ann", "ann")))
                packet[packet.index(b"MQTT") + 7] = 60  # a keep-alive, with which amqtt waits with a limit
                sock.sendall(packet + b"\xc0\x00")
                assert sock.recv(4) == b"\x20\x02\x00\x00"
                assert sock.recv(2) == b"\xd0\x00"  # PINGRESP: it is read
                ended.append(host.wait(stopped(f"c{iterations}", iterations)))
        assert all(ended) == mended


# Noticed by `service`.


def test_amqtt_starts_although_a_start_hook_fails() -> None:
    with running(False, "Broken") as host:
        assert host.broker.transitions.state == "started"
        recorded = record_failures(host.broker.plugins_manager)
        host.wait(host.broker.plugins_manager.fire_event(BrokerEvents.POST_START, wait=True))
        assert recorded == ["Broken cannot start: no port"]
