"""OVERLOAD_POLICY "lossless": what was acknowledged reaches the server, whatever is killed in between."""

import asyncio
import contextlib
import random
import struct
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.broker.lossless import Lossless
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import recording
from tests.support.lossless import Keys, on_disk, route
from tests.support.ports import free_port
from tests.support.waiting import eventually

ACL = {"amqtt.plugins.topic_checking.TopicAccessControlListPlugin": {"publish_acl": {"anonymous": ["in/ok/#"]}}}


def broker(processes: list[BrokerProcess], folder: Path, routes: str, **keywords: Any) -> BrokerProcess:
    one = BrokerProcess(folder, routes, spool=str(folder / "spool.db"), **keywords)
    processes.append(one)
    one.start()
    return one


def send_acknowledged(port: int, bodies: list[bytes], topic: str = "in/x") -> list[bytes]:
    """Publish with QoS 1, 50 at a time, and give what was acknowledged before the connection ended."""
    acknowledged: list[bytes] = []
    with contextlib.suppress(OSError), contextlib.closing(Wire(port, f"sender-{uuid.uuid4()}", timeout=10)) as wire:
        for start in range(0, len(bodies), 50):
            batch = bodies[start : start + 50]
            wire.send(b"".join(publish_packet(topic, body, index + 1) for index, body in enumerate(batch)))
            waiting = len(batch)
            while waiting:
                for kind, packet in wire.receive():
                    if kind == 0x40:
                        acknowledged.append(batch[struct.unpack(">H", packet)[0] - 1])
                        waiting -= 1
    return acknowledged


sizes = pytest.mark.parametrize("count", [pytest.param(200, id="200"), pytest.param(2000, marks=pytest.mark.long)])


@sizes
def test_acknowledged_messages_survive_a_kill_of_the_broker(
    tmp_path: Path, processes: list[BrokerProcess], count: int
) -> None:
    port = free_port()
    running = broker(processes, tmp_path, route(port))
    bodies = [str(number).encode() for number in range(count)]
    assert len(send_acknowledged(running.port, bodies)) == count
    running.kill()
    with recording(port) as target:
        keys = Keys(target)
        running.start()
        eventually(lambda: len(keys.of) == count, "not everything arrived")
        assert all(len(own) == 1 for own in keys.of.values())
        assert len({key for own in keys.of.values() for key in own}) == count


def test_an_acknowledged_message_survives_a_kill_whatever_its_topic_holds(
    tmp_path: Path, processes: list[BrokerProcess]
) -> None:
    """amqtt takes topics on which the bridge itself would not publish."""
    port = free_port()
    running = broker(processes, tmp_path, route(port))
    topics = ["in/a\0b", "in/\x1b[2J", "in/\n", "in/\uffff", "in/\u202e", "in/" + "x" * 60_000]
    for topic in topics:
        assert send_acknowledged(running.port, [topic.encode()], topic) == [topic.encode()]
    running.kill()
    with recording(port) as target:
        keys = Keys(target)
        running.start()
        eventually(lambda: set(keys.of) == {topic.encode() for topic in topics}, "not everything arrived")


@pytest.mark.parametrize(
    ("count", "kills"), [pytest.param(300, 3, id="3 kills"), pytest.param(5000, 20, marks=pytest.mark.long)]
)
def test_kills_at_random_moments_lose_nothing_that_was_acknowledged(
    tmp_path: Path, processes: list[BrokerProcess], count: int, kills: int
) -> None:
    moments = random.Random(7)
    with recording() as target:
        keys = Keys(target)
        running = broker(processes, tmp_path, route(target.port))
        acknowledged: list[bytes] = []
        share = count // kills
        for kill in range(kills):
            bodies = [f"{kill}-{number}".encode() for number in range(share)]
            sending = threading.Thread(
                target=lambda bodies=bodies: acknowledged.extend(send_acknowledged(running.port, bodies))
            )
            sending.start()
            sending.join(moments.uniform(0.02, 0.3))
            running.kill()
            sending.join()
            running.start()
        eventually(lambda: set(keys.of) >= set(acknowledged), "an acknowledged message is missing", 60)
        assert acknowledged
        assert all(len(own) == 1 for body, own in keys.of.items() if body in set(acknowledged))


def test_100_publishes_and_disconnect_in_one_write_all_arrive(tmp_path: Path) -> None:
    with recording() as target:
        keys = Keys(target)
        with hosting(route(target.port), spool=str(tmp_path / "spool.db")) as host:
            wire = Wire(host.mqtt_port, "hasty")
            bodies = [str(number).encode() for number in range(100)]
            packets = b"".join(publish_packet("in/x", body, index + 1) for index, body in enumerate(bodies))
            wire.send(packets + b"\xe0\x00")
            eventually(lambda: set(keys.of) == set(bodies), "not everything arrived")
            wire.sock.close()


def test_what_the_acl_refuses_never_arrives_not_even_after_a_kill(
    tmp_path: Path, processes: list[BrokerProcess]
) -> None:
    port = free_port()
    running = broker(processes, tmp_path, route(port), plugins=ACL)
    allowed, refused = [f"+{number}".encode() for number in range(20)], [f"-{number}".encode() for number in range(20)]
    send_acknowledged(running.port, refused, "in/no")
    send_acknowledged(running.port, allowed, "in/ok/1")
    running.kill()
    with recording(port) as target:
        keys = Keys(target)
        running.start()
        send_acknowledged(running.port, refused, "in/no")
        send_acknowledged(running.port, [b"last"], "in/ok/2")
        eventually(lambda: set(keys.of) == {*allowed, b"last"}, "not everything arrived")


def test_each_message_is_sent_once_while_nothing_is_killed(tmp_path: Path) -> None:
    with recording() as target, hosting(route(target.port), spool=str(tmp_path / "spool.db")) as host:
        client = host.client("out")
        for qos in (0, 1, 2):
            client.publish("in/x", str(qos).encode(), qos=qos)
            assert client.message() == ("out", str(qos).encode())
        dying = Wire(host.mqtt_port, "dying", will=("in/will", b"will"))
        dying.sock.close()
        assert client.message() == ("out", b"will")
        client.publish("in/x", b"last")
        assert client.message() == ("out", b"last")
        assert target.arrived.qsize() == 5
        eventually(lambda: on_disk(tmp_path / "spool.db") == 0, "an ended call stays on disk")


def test_a_full_route_refuses_the_newest_message(tmp_path: Path) -> None:
    with hosting(route(free_port(), capacity=2), spool=str(tmp_path / "spool.db")) as host:
        client = host.client("out")
        for number in range(3):
            client.publish("in/x", str(number).encode())
        assert b"OVERLOAD_CAPACITY of 2" in client.message()[1]


def test_a_lossless_route_refuses_what_has_no_room_in_bytes_and_what_is_too_large_and_keeps_neither_on_disk(
    tmp_path: Path,
) -> None:
    spool = tmp_path / "spool.db"
    routes = f"{route(free_port())} WITH OVERLOAD_BYTES '1KiB'"
    with hosting(routes, spool=str(spool), max_message_bytes=2000) as host:
        client = host.client("out")
        for size in (1500, 1, 2001):  # one is taken where nothing is queued
            client.publish("in/x", b"x" * size)
        assert b"OVERLOAD_BYTES of 1 KiB" in client.message()[1]
        assert b"payload_too_large" in client.message()[1]
        assert on_disk(spool) == 1


def test_a_full_disk_refuses_the_newest_message_and_keeps_the_others(tmp_path: Path) -> None:
    with recording() as target:
        with hosting(route(free_port()), spool=str(tmp_path / "spool.db")) as host:
            client = host.client("out")
            client.publish("in/x", b"kept")
            lossless = host.plugin._lossless
            assert lossless is not None
            spool = lossless._spool

            async def fill() -> None:
                pages = spool._connection.execute("PRAGMA page_count").fetchone()[0]
                spool._connection.execute(f"PRAGMA max_page_count = {pages}")

            host.wait(fill())
            client.publish("in/x", b"x" * 100_000)
            assert b"could not be written to the spool" in client.message()[1]
        with hosting(route(target.port), spool=str(tmp_path / "spool.db")) as host:
            assert target.request().body == b"kept"


def test_a_message_of_a_route_that_is_gone_stays_on_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = str(tmp_path / "spool.db")
    port = free_port()
    with hosting(route(port), spool=spool) as host:
        host.client().publish("in/x", b"kept")
    other = route(port).replace("ROUTE L", "ROUTE Other").replace("in/#", "elsewhere")
    with hosting(other, spool=spool) as host:
        eventually(lambda: "route L, event E, which does not exist" in caplog.text, "nothing said so")
    with recording(port) as target, hosting(route(port), spool=spool):
        assert target.request().body == b"kept"


def test_an_empty_message_of_a_client_with_an_empty_will_is_sent_once(tmp_path: Path) -> None:
    with recording() as target, hosting(route(target.port), spool=str(tmp_path / "spool.db")) as host:
        with contextlib.closing(Wire(host.mqtt_port, "terse", will=("in/will", b""))) as wire:
            wire.send(publish_packet("in/x", b"", 1))
            target.request()
        client = host.client("out")
        client.publish("in/x", b"last")
        eventually(lambda: target.arrived.qsize() > 0, "the last one is missing")
        assert target.request().body == b"last"


def test_what_comes_while_an_earlier_run_is_replayed_goes_after_it(tmp_path: Path) -> None:
    port = free_port()
    ordered = route(port).replace('WITH METHOD "POST"', 'WITH METHOD "POST" WITH ORDERED "true"')
    spool = str(tmp_path / "spool.db")
    with hosting(ordered, spool=spool) as host:
        client = host.client()
        for number in range(50):
            client.publish("in/x", b"%d" % number)
    with recording(port) as target:
        let_go = threading.Event()
        run = Lossless.run

        async def held(self: Lossless) -> None:
            while not let_go.is_set():
                await asyncio.sleep(0.001)
            await run(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lossless, "run", held)
            with hosting(ordered, spool=spool) as host:
                host.client().publish("in/x", b"new")
                let_go.set()
                assert [target.request().body for _ in range(51)] == [b"%d" % number for number in range(50)] + [b"new"]
                eventually(lambda: on_disk(tmp_path / "spool.db") == 0, "an ended call stays on disk")
