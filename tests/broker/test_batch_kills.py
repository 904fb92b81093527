"""Batches of a lossless route in a broker that is killed: no message is lost, a batch that comes again is the same."""

import collections
import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import Seen
from tests.support.lossless import on_disk
from tests.support.waiting import eventually

ROUTE = """DEFINE ROUTE L WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" WITH OVERLOAD_CAPACITY '1000000'
    ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{batch}}"
        WITH BATCH_SIZE 100 WITH BATCH_SECONDS 4
"""  # a fifth of BATCH_SECONDS is how late a message may come to the bridge process, on a starved machine too
AT_ONCE = 20


class Publisher:
    """Publish numbers at QoS 1 until the broker is gone, and note which were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self._next = 0

    def publish(self, port: int, until: int) -> None:
        """Publish up to a number."""
        with contextlib.suppress(OSError):
            wire = Wire(port, "publisher")
            try:
                while len(self.acknowledged) < until:
                    self._some(wire)
            finally:
                wire.sock.close()

    def _some(self, wire: Wire) -> None:
        first = self._next
        self._next += AT_ONCE
        packets = [publish_packet(f"in/{one % 7}", b"%d" % (first + one), 1 + one) for one in range(AT_ONCE)]
        wire.send(b"".join(packets))
        waiting = set(range(AT_ONCE))
        while waiting:
            for kind, packet_id in wire.receive():
                number = int.from_bytes(packet_id) - 1
                if kind == 0x40 and number in waiting:
                    waiting.remove(number)
                    self.acknowledged.add(first + number)


class Batches:
    """What a server got: the bodies of each key, the keys of each message, how often each key came."""

    def __init__(self, target: Recorder) -> None:
        self.bodies: dict[str, set[bytes]] = collections.defaultdict(set)
        self.keys: dict[int, set[str]] = collections.defaultdict(set)
        self.requests: collections.Counter[str] = collections.Counter()
        self.refusing = threading.Event()
        target.answer = self._answer

    def _answer(self, seen: Seen) -> tuple[int, bytes]:
        key = seen.headers["Idempotency-Key"] or ""
        self.bodies[key].add(seen.body)
        self.requests[key] += 1
        for number in json.loads(seen.body):
            self.keys[number].add(key)
        return (503, b"") if self.refusing.is_set() else (200, b"")

    def await_refused(self) -> None:
        """Refuse from now on, until there are requests that have to come again."""
        self.refusing.set()
        before = self.requests.total()
        eventually(lambda: self.requests.total() > before + 1, "nothing is sent")

    def check(self, sent: set[int]) -> None:
        """All that was sent came, some of it again, and each message in the same batch with the same key."""
        assert sent - self.keys.keys() == set()
        assert {key for key, bodies in self.bodies.items() if len(bodies) > 1} == set()
        assert {number: keys for number, keys in self.keys.items() if len(keys) > 1} == {}
        assert max(self.requests.values()) > 1


@pytest.mark.parametrize(
    ("count", "kills"), [pytest.param(1000, 2, id="1000"), pytest.param(20_000, 10, marks=pytest.mark.long)]
)
def test_batches_that_come_again_after_a_kill_hold_the_same_messages_and_have_the_same_key(
    tmp_path: Path, count: int, kills: int
) -> None:
    publisher = Publisher()
    spool = tmp_path / "spool.db"
    with recording() as target, contextlib.ExitStack() as stack:
        batches = Batches(target)
        broker = BrokerProcess(tmp_path, ROUTE.format(port=target.port), spool=str(spool))
        stack.callback(broker.close)
        for kill in range(1, kills + 1):
            broker.start()
            publishing = threading.Thread(target=publisher.publish, args=(broker.port, count))
            publishing.start()
            eventually(lambda kill=kill: len(publisher.acknowledged) >= kill * count // (kills + 1))  # type: ignore[misc]
            batches.await_refused()
            broker.kill()
            publishing.join()
            batches.refusing.clear()
        broker.start()
        publisher.publish(broker.port, count)
        eventually(lambda: on_disk(spool) == 0, "a message stays on disk")
    batches.check(publisher.acknowledged)


def test_batches_are_the_same_after_a_bridge_process_was_killed(tmp_path: Path) -> None:
    publisher = Publisher()
    with recording() as target:
        batches = Batches(target)
        spool = tmp_path / "spool.db"
        with hosting(ROUTE.format(port=target.port), processes=1, spool=str(spool)) as host:
            for part in (1, 2):
                batches.refusing.set()
                publisher.publish(host.mqtt_port, part * 500)
                batches.await_refused()
                os.kill(host.child.pid or 0, signal.SIGKILL)
                batches.refusing.clear()
                eventually(lambda: on_disk(spool) == 0, "a message has not ended")
    batches.check(publisher.acknowledged)
