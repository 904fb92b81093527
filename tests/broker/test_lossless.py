"""OVERLOAD_POLICY "lossless": what was acknowledged reaches the server, whatever is killed in between."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.broker.conftest import StartBroker
from tests.broker.publisher import Publisher
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.lossless import Keys, on_disk, route
from tests.support.ports import free_port
from tests.support.publishing import DISCONNECT, PUBACK, await_answers, numbered, packets
from tests.support.waiting import eventually

ACL = {"amqtt.plugins.topic_checking.TopicAccessControlListPlugin": {"publish_acl": {"anonymous": ["in/ok/#"]}}}


# Kills of the broker.


@pytest.mark.parametrize("count", [pytest.param(200, id="200"), pytest.param(2000, marks=pytest.mark.long)])
def test_acknowledged_messages_survive_a_kill_of_the_broker(start_broker: StartBroker, count: int) -> None:
    port, publisher = free_port(), Publisher(50)
    broker = start_broker(route(port))
    publisher.publish(broker.port, count)
    broker.kill()
    with recording(port) as target:
        keys = Keys(target)
        broker.start()
        eventually(lambda: len(keys.of) == count, "not everything arrived")
        assert all(len(own) == 1 for own in keys.of.values())
        assert len({key for own in keys.of.values() for key in own}) == count


def test_an_acknowledged_message_survives_a_kill_whatever_its_topic_holds(start_broker: StartBroker) -> None:
    """amqtt takes topics on which the bridge itself would not publish."""
    port = free_port()
    broker = start_broker(route(port))
    topics = ["in/a\0b", "in/\x1b[2J", "in/\n", "in/\uffff", "in/\u202e", "in/" + "x" * 60_000]
    with contextlib.closing(Wire(broker.port, "sender")) as wire:
        for topic in topics:
            wire.send(publish_packet(topic, topic.encode(), 1))
            wire.expect(0x40)
    broker.kill()
    with recording(port) as target:
        keys = Keys(target)
        broker.start()
        eventually(lambda: set(keys.of) == {topic.encode() for topic in topics}, "not everything arrived")


@pytest.mark.parametrize(
    ("count", "kills"), [pytest.param(100, 3, id="3 kills"), pytest.param(250, 20, marks=pytest.mark.long)]
)
def test_kills_at_random_moments_lose_nothing_that_was_acknowledged(
    target: Recorder, start_broker: StartBroker, count: int, kills: int
) -> None:
    keys, moments, publisher = Keys(target), random.Random(7), Publisher(50)
    broker = start_broker(route(target.port))
    for kill in range(kills):
        some = (kill * count) + moments.randrange(count)
        with publisher.publishing(broker.port):
            eventually(lambda some=some: len(publisher.acknowledged) >= some, pause_seconds=0.001)  # type: ignore[misc]
            broker.kill()
        broker.start()
    eventually(lambda: keys.of.keys() >= publisher.payloads, "an acknowledged message is missing")
    assert all(len(keys.of[payload]) == 1 for payload in publisher.payloads)


def test_what_the_acl_refuses_never_arrives_not_even_after_a_kill(start_broker: StartBroker) -> None:
    port = free_port()
    refused, allowed = Publisher(20, b"-%d".__mod__, "in/no"), Publisher(20, b"+%d".__mod__, "in/ok/1")
    broker = start_broker(route(port), plugins=ACL)
    for publisher in (refused, allowed):
        publisher.publish(broker.port, 20)
    broker.kill()
    with recording(port) as target:
        keys = Keys(target)
        broker.start()
        for publisher in (refused, allowed):
            publisher.publish(broker.port, 20)
        eventually(lambda: keys.of.keys() == allowed.payloads, "not everything arrived")


# Messages of QoS 2: which PUBLISH under a packet id in use is a new one?


def publish_and_crash(host: Host, packet: bytes, client_id: str = "crashing") -> None:
    """Publish with QoS 2 in a session that is kept, and vanish after the PUBREC."""
    wire = Wire(host.mqtt_port, client_id, clean=False)
    wire.send(packet)
    wire.expect(0x50)
    wire.sock.close()


@pytest.fixture(scope="module")
def module_target() -> Iterator[Recorder]:
    with recording() as target:
        yield target


@pytest.fixture(scope="module")
def shared(module_target: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A broker with a lossless route to `module_target`."""
    with hosting(route(module_target.port), spool=str(tmp_path_factory.mktemp("shared") / "spool.db")) as host:
        yield host


@pytest.mark.parametrize("restarts", [pytest.param(8, id="8"), pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("dup", [False, True], ids=["as new", "as repeated"])
def test_a_publisher_that_crashes_before_its_pubrel_and_starts_again_at_id_1_loses_nothing(
    shared: Host, module_target: Recorder, restarts: int, dup: bool
) -> None:
    sent = numbered(restarts)
    for body in sent:
        publish_and_crash(shared, publish_packet("in/x", body, 1, dup=dup, qos=2), f"crashing-{dup}")
    assert sorted(module_target.request().body for _ in sent) == sorted(sent)


def test_a_message_of_qos_2_that_is_sent_again_before_its_pubrel_is_one_message(
    shared: Host, module_target: Recorder
) -> None:
    publish_and_crash(shared, publish_packet("in/x", b"once", 1, qos=2), "repeating")
    wire = Wire(shared.mqtt_port, "repeating", clean=False)
    wire.send(publish_packet("in/x", b"once", 1, dup=True, qos=2) * 3)
    wire.send(bytes([0x62, 2, 0, 1]))
    wire.expect(0x70)
    wire.send(publish_packet("in/x", b"last", 1, qos=2))
    wire.expect(0x50)
    assert {module_target.request().body for _ in range(2)} == {b"once", b"last"}  # each on a connection of its own
    assert module_target.arrived.empty()
    wire.sock.close()


@pytest.mark.parametrize(
    ("topic", "body", "dup"),
    [
        pytest.param("in/x", b"0", False, id="the same without DUP"),
        pytest.param("in/y", b"0", True, id="another topic"),
        pytest.param("in/x", b"1", True, id="another payload"),
    ],
)
def test_a_message_of_qos_2_under_an_id_in_use_is_new_unless_dup_topic_and_payload_are_the_same(
    shared: Host, module_target: Recorder, topic: str, body: bytes, dup: bool
) -> None:
    for packet in (publish_packet("in/x", b"0", 1, qos=2), publish_packet(topic, body, 1, dup=dup, qos=2)):
        publish_and_crash(shared, packet, f"{topic} {body!r}")
    first, second = module_target.request(), module_target.request()
    assert {first.body, second.body} == {b"0", body}  # in either order: they are under way side by side
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


# Without a kill.


def test_100_publishes_and_disconnect_in_one_write_all_arrive(shared: Host, module_target: Recorder) -> None:
    wire, bodies = Wire(shared.mqtt_port, "hasty"), numbered(100)
    wire.send(packets(bodies) + DISCONNECT)
    assert {module_target.request().body for _ in bodies} == set(bodies)
    wire.sock.close()


def test_each_message_is_sent_once_while_nothing_is_killed(target: Recorder, spool: Path) -> None:
    with hosting(route(target.port), spool=str(spool)) as host:
        client = host.client("out")
        for qos in (0, 1, 2):
            client.publish("in/x", b"%d" % qos, qos=qos)
            assert client.message() == ("out", b"%d" % qos)
        dying = Wire(host.mqtt_port, "dying", will=("in/will", b"will"))
        dying.sock.close()
        assert client.message() == ("out", b"will")
        client.publish("in/x", b"last")
        assert client.message() == ("out", b"last")
        assert target.arrived.qsize() == 5
        eventually(lambda: on_disk(spool) == 0, "an ended call stays on disk")


def test_an_empty_message_of_a_client_with_an_empty_will_is_sent_once(shared: Host, module_target: Recorder) -> None:
    with contextlib.closing(Wire(shared.mqtt_port, "terse", will=("in/will", b""))) as wire:
        wire.send(publish_packet("in/x", b"", 1))
        assert module_target.request().body == b""
    shared.client().publish("in/x", b"last")
    assert module_target.request().body == b"last"


def test_what_comes_after_a_restart_goes_behind_what_an_earlier_run_left(spool: Path) -> None:
    port, bodies = free_port(), numbered(51)
    ordered = route(port, event='WITH ORDERED "true"')
    with hosting(ordered, spool=str(spool)) as host:
        wire = Wire(host.mqtt_port, "sender")
        wire.send(packets(bodies[:-1]))
        await_answers(wire, PUBACK, 50)
        wire.close()
    with hosting(ordered, spool=str(spool)) as host:
        host.client().publish("in/x", bodies[-1])
        with recording(port) as target:
            assert [target.request().body for _ in bodies] == bodies
            eventually(lambda: on_disk(spool) == 0, "an ended call stays on disk")


def test_a_message_of_a_route_that_is_gone_stays_on_disk(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with hosting(route(port), spool=str(spool)) as host:
        for payload in (b"kept", b"too"):
            host.client().publish("in/x", payload)
    assert "which does not exist" not in caplog.text
    other = route(port).replace("ROUTE L", "ROUTE Other").replace("in/#", "elsewhere")
    with hosting(other, spool=str(spool)):
        said = "the spool holds 2 message(s) for route L, event E, which does not exist; sent once it does"
        eventually(lambda: said in caplog.messages, "nothing said so")
    with recording(port) as target, hosting(route(port), spool=str(spool)):
        assert {target.request().body for _ in range(2)} == {b"kept", b"too"}


# What is refused.


def test_a_full_route_refuses_the_newest_message(spool: Path) -> None:
    """The messages of all its events count."""
    with hosting(route(free_port(), capacity=2, more="F"), spool=str(spool)) as host:
        client = host.client("out")
        for topic in ("in/x", "F", "in/x"):
            client.publish(topic, b"x")
        assert b"OVERLOAD_CAPACITY of 2" in client.message()[1]
        assert on_disk(spool) == 2


def test_a_lossless_route_refuses_what_has_no_room_in_bytes_and_what_is_too_large_and_keeps_neither_on_disk(
    spool: Path,
) -> None:
    routes = route(free_port(), config="WITH OVERLOAD_BYTES '1KiB'")
    with hosting(routes, spool=str(spool), max_message_bytes=2000) as host:
        client = host.client("out")
        for size in (1500, 1, 2001):  # one is taken where nothing is queued
            client.publish("in/x", b"x" * size)
        assert b"OVERLOAD_BYTES of 1 KiB have no room for a payload of 1 byte" in client.message()[1]
        assert b"payload_too_large" in client.message()[1]
        assert on_disk(spool) == 1
