"""Batches of a lossless route in a broker that is killed: no message is lost, a batch that comes again is the same."""

import collections
import contextlib
import json
import threading
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.http_recorder import recording
from tests.support.http_target import Seen
from tests.support.lossless import on_disk
from tests.support.waiting import eventually

ROUTE = """DEFINE ROUTE L WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" WITH OVERLOAD_CAPACITY '1000000'
    ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{batch}}"
        WITH BATCH_SIZE 100
"""
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


@pytest.mark.parametrize(
    ("count", "kills"), [pytest.param(1000, 2, id="1000"), pytest.param(20_000, 10, marks=pytest.mark.long)]
)
def test_batches_that_come_again_after_a_kill_hold_the_same_messages_and_have_the_same_key(
    tmp_path: Path, count: int, kills: int
) -> None:
    bodies: dict[str, set[bytes]] = collections.defaultdict(set)
    keys: dict[int, set[str]] = collections.defaultdict(set)
    requests: collections.Counter[str] = collections.Counter()
    killing = threading.Event()
    publisher = Publisher()

    def answer(seen: Seen) -> tuple[int, bytes]:
        key = seen.headers["Idempotency-Key"] or ""
        bodies[key].add(seen.body)
        requests[key] += 1
        for number in json.loads(seen.body):
            keys[number].add(key)
        return (503, b"") if killing.is_set() else (200, b"")

    spool = tmp_path / "spool.db"
    with recording() as target, contextlib.ExitStack() as stack:
        target.answer = answer
        broker = BrokerProcess(tmp_path, ROUTE.format(port=target.port), spool=str(spool))
        stack.callback(broker.close)
        for kill in range(1, kills + 1):
            broker.start()
            publishing = threading.Thread(target=publisher.publish, args=(broker.port, count))
            publishing.start()
            eventually(lambda kill=kill: len(publisher.acknowledged) >= kill * count // (kills + 1))  # type: ignore[misc]
            killing.set()  # what is sent from now on comes again
            before = sum(requests.values())
            eventually(lambda before=before: sum(requests.values()) > before + 1, "nothing is sent")  # type: ignore[misc]
            broker.kill()
            publishing.join()
            killing.clear()
        broker.start()
        publisher.publish(broker.port, count)
        eventually(lambda: on_disk(spool) == 0, "a message stays on disk")
    assert publisher.acknowledged - keys.keys() == set()
    assert {key for key, sent in bodies.items() if len(sent) > 1} == set()
    assert {number: sent for number, sent in keys.items() if len(sent) > 1} == {}
    assert max(requests.values()) > 1
