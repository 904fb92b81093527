"""A route that is made lossless and balanced under load, in a broker that is killed meanwhile, over and over."""

import collections
import contextlib
import threading
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.http_recorder import recording
from tests.support.http_target import Seen
from tests.support.lossless import on_disk, route
from tests.support.waiting import eventually

BATCH = 5
PAUSE = 0.005  # seconds between two batches: as much load as the target can answer meanwhile
Phase = tuple[str, int, int]  # the policy, and the numbers of the run and of the change


class Publisher:
    """A client that publishes at QoS 1 all the time and notes what was acknowledged, in which policy.

    A message counts as acknowledged under a policy that held from before it was sent until after its PUBACK.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = 0
        self._pause = threading.Event()
        self.policy: Phase | None = None
        self.acknowledged: dict[Phase | None, set[bytes]] = collections.defaultdict(set)

    def publish(self) -> None:
        """Connect and publish until the broker is gone."""
        with contextlib.suppress(OSError):
            wire = Wire(self._port, "publisher")
            try:
                while not self._pause.wait(PAUSE):
                    self._batch(wire)
            finally:
                wire.sock.close()

    def await_load(self) -> None:
        """Wait until messages have been acknowledged under the present policy."""
        eventually(lambda: len(self.acknowledged[self.policy]) > BATCH, "nothing is acknowledged")

    def _batch(self, wire: Wire) -> None:
        before = self.policy
        bodies = [b"%d" % number for number in range(self._number, self._number + BATCH)]
        self._number += BATCH
        wire.send(b"".join(publish_packet("in/x", body, 1 + index) for index, body in enumerate(bodies)))
        waiting = set(range(1, 1 + BATCH))
        while waiting:
            for kind, packet_id in wire.receive():
                number = int.from_bytes(packet_id)
                if kind == 0x40 and number in waiting:
                    waiting.remove(number)
                    if self.policy is before:
                        self.acknowledged[before].add(bodies[number - 1])


def reloaded(broker: BrokerProcess, file: Path, text: str) -> None:
    """Change the routes of a running broker and wait until it uses them."""
    count = broker.log.count("routes reloaded")
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(file)
    eventually(lambda: broker.log.count("routes reloaded") > count, "the routes are not reloaded")


@pytest.mark.parametrize("kills", [pytest.param(1, id="1"), pytest.param(20, marks=pytest.mark.long)])
def test_what_was_acknowledged_while_the_route_was_lossless_is_sent_whatever_it_was_when_the_broker_was_killed(
    tmp_path: Path, kills: int
) -> None:
    keys: dict[bytes, list[str | None]] = collections.defaultdict(list)
    lock = threading.Lock()

    def answer(seen: Seen) -> tuple[int, bytes]:
        with lock:
            keys[seen.body].append(seen.headers["Idempotency-Key"])
        return 200, b""

    spool, file = tmp_path / "spool.db", tmp_path / "routes.lot"
    with recording() as target, contextlib.ExitStack() as stack:
        target.answer = answer
        lossless = route(target.port, 1_000_000)
        texts = {"lossless": lossless, "balanced": lossless.replace('"lossless"', '"balanced"')}
        broker = BrokerProcess(tmp_path, lossless, spool=str(spool), reload_seconds=0.02)
        stack.callback(broker.close)
        publisher = Publisher(broker.port)
        policy = "lossless"
        for number in range(kills):
            broker.start()
            publisher.policy = (policy, number, 0)
            publishing = threading.Thread(target=publisher.publish)
            publishing.start()
            for toggle in range(1, 2 + number % 2):  # so that it is killed while lossless and while balanced
                publisher.await_load()
                publisher.policy = None
                policy = "balanced" if policy == "lossless" else "lossless"
                reloaded(broker, file, texts[policy])
                publisher.policy = (policy, number, toggle)
            publisher.await_load()
            broker.kill()
            publishing.join()
        broker.start()
        eventually(lambda: on_disk(spool) == 0, "a message stays on disk")
    phases = {held: bodies for held, bodies in publisher.acknowledged.items() if held and held[0] == "lossless"}
    kept = set[bytes]().union(*phases.values())
    assert len(kept) > BATCH
    assert kept - keys.keys() == set()
    twice = {body: sent for body, sent in keys.items() if len(sent) > 1}
    assert {body: sent for body, sent in twice.items() if len(set(sent)) > 1 or None in sent} == {}
