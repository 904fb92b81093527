"""Large payloads in a real broker: what two processes hold of them, what is refused, and that it is given back.

They are as large as the largest by default is, 4 MiB, where tests are `long`. Elsewhere they, OVERLOAD_BYTES and the
bounds of the tests are a quarter of it.
"""

import contextlib
import json
import os
import resource
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Spool
from tests.benchmarks import rig
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.http_recorder import Answer, Recorder
from tests.support.http_target import Seen
from tests.support.publishing import Listener
from tests.support.waiting import eventually

MIB = 1 << 20
LARGE = 4 * MIB


def route(target: Recorder, *, name: str = "Hang", config: str = "", event: str = "") -> str:
    """A route whose messages hold one field of use."""
    topic = name.lower()
    return f"""
    DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" WITH REQUEST_TIMEOUT '300'
        {config}
        ADD EVENT E
            WITH SOURCE_TOPIC "{topic}/#" WITH METHOD "POST" WITH ENDPOINT "/{topic}"
            WITH BODY '{{"n": {{value.json.n}}}}' WITH DESTINATION_TOPIC "out/{topic}" {event}
    """


def message(number: int, size: int) -> bytes:
    start, end = b'{"n": %d, "pad": "' % number, b'"}'
    return b"".join((start, b"x" * (size - len(start) - len(end)), end))


@contextmanager
def hanging(target: Recorder) -> Iterator[threading.Event]:
    """Hold the answers to the route Hang back until the event is set, or the block ends."""
    released = threading.Event()

    def answer(seen: Seen) -> Answer:
        if seen.path == "/hang":
            released.wait()
        return 200, seen.body

    target.answer = answer
    try:
        yield released
    finally:
        released.set()


def code_of(payload: bytes) -> str:
    """Return the code of a failure, `ok` for a result."""
    return str(json.loads(payload).get("error", {}).get("code", "ok"))


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def processes_of(broker: int) -> list[int]:
    """Return the broker and its bridge processes."""
    return [broker, *rig.children(broker)]


class Peak:
    """The largest memory of a broker and its bridge processes together."""

    def __init__(self, broker: int) -> None:
        self._broker = broker
        self.idle = self.now()
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def now(self) -> int:
        return sum(map(memory, processes_of(self._broker)))

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, self.now())

    def stop(self) -> int:
        """Return by how much memory grew at most."""
        self._ended.set()
        self._thread.join()
        return self.most - self.idle


class Results(Listener):
    """Counts what the routes publish, by topic and code."""

    def __init__(self, port: int) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        super().__init__(port, "out/#", note=lambda topic, payload: self.counts.update([(topic, code_of(payload))]))

    def of(self, topic: str) -> dict[str, int]:
        return {code: count for (of, code), count in self.counts.items() if of == topic}


def publish(port: int, count: int, size: int, *, others: int = 5, first: int = 0) -> int:
    """Publish large messages to Hang, and after every few a small one to Good; return how many of these there were."""
    with contextlib.closing(Wire(port, "publisher")) as wire:
        small = 0
        for number in range(first, first + count):
            wire.send(publish_packet(f"hang/{number}", message(number, size), 1))
            wire.expect(0x40)
            if number % others == others - 1:
                small += 1
                wire.send(publish_packet(f"good/{number}", b'{"n": 1}', 2))
                wire.expect(0x40)
        return small


@contextmanager
def running(folder: Path, routes: str, **settings: Any) -> Iterator[BrokerProcess]:
    """Run a broker and its bridge."""
    process = BrokerProcess(folder, routes, **settings)
    process.start()
    try:
        eventually(lambda: len(processes_of(process.pid)) == 1 + settings.get("processes", 1))
        yield process
    finally:
        process.close()


@pytest.mark.parametrize(
    ("processes", "address_space"),
    [
        pytest.param(0, None, id="in the broker process"),
        pytest.param(1, None, id="in a process"),
        pytest.param(1, 1_800_000 << 10, id="in a process with little memory"),
    ],
)
@pytest.mark.parametrize(("count", "size"), [(18, MIB), pytest.param(1000, LARGE, marks=pytest.mark.long)])
def test_large_messages_at_a_server_that_hangs_cost_bounded_memory_and_no_other_route_a_call(
    tmp_path: Path, count: int, size: int, target: Recorder, processes: int, address_space: int | None
) -> None:
    routes = route(target, config=f"ADD ROUTE_CONFIG WITH OVERLOAD_BYTES '{16 * size}'") + route(target, name="Good")
    with (
        running(tmp_path, routes, processes=processes) as broker,
        contextlib.closing(Results(broker.port)) as results,
        hanging(target) as released,
    ):
        peak, bridge = Peak(broker.pid), processes_of(broker.pid)[-1]
        idle = memory(bridge)
        if address_space is not None:
            resource.prlimit(bridge, resource.RLIMIT_AS, (address_space, address_space))
        small = publish(broker.port, count, size)
        eventually(lambda: results.of("out/hang") == {"overloaded": count - 16})
        eventually(lambda: results.of("out/good") == {"ok": small})
        held = 24 if processes else 60
        eventually(lambda: memory(bridge) - idle < held * size, "the bridge keeps more than what it has admitted")
        released.set()
        eventually(lambda: results.of("out/hang") == {"overloaded": count - 16, "ok": 16})
        assert (results.of("out/good"), processes_of(broker.pid)[-1]) == ({"ok": small}, bridge)
        assert peak.stop() < 110 * size
        eventually(lambda: peak.now() - peak.idle < 10 * size, "memory is not given back")


def test_a_start_reads_from_the_spool_what_has_room_and_discards_nothing(tmp_path: Path, target: Recorder) -> None:
    spool = tmp_path / "spool.db"
    lossless = "ADD ROUTE_CONFIG WITH OVERLOAD_POLICY 'lossless' WITH OVERLOAD_BYTES"
    with contextlib.closing(Spool(spool)) as left:
        for number in range(24):
            left.keep("Hang", "E", Message(f"hang/{number % 2}", message(number, MIB), 1.0), 0, None)
        left.keep("Good", "E", Message("good/1", b'{"n": 1}', 1.0), 0, None)
    routes = route(target, config=f"{lossless} '4MiB'", event="WITH ORDERED 'true'")
    routes += route(target, name="Good", config=f"{lossless} '4MiB'")
    with hanging(target) as released, running(tmp_path, routes, spool=str(spool)) as broker:
        peak = Peak(broker.pid)
        seen = [target.request().path for _ in range(3)]
        assert sorted(seen) == ["/good", "/hang", "/hang"]
        with contextlib.closing(Results(broker.port)) as results:
            publish(broker.port, 1, 1000)
            eventually(lambda: results.of("out/hang") == {"overloaded": 1})
            assert peak.stop() < 30 * MIB
            released.set()
            eventually(lambda: results.of("out/hang") == {"overloaded": 1, "ok": 24})
    numbers = [json.loads(seen.body)["n"] for seen in target.requests if seen.path == "/hang"]
    assert [number for number in numbers if number % 2] == list(range(1, 24, 2))
    assert [number for number in numbers if number % 2 == 0] == list(range(0, 24, 2))


def bridge_of(broker: BrokerProcess) -> int:
    found = processes_of(broker.pid)[1:]
    return found[0] if found else 0


@pytest.mark.parametrize("event", ["", "WITH ORDERED 'true'"], ids=["", "ordered"])
def test_what_comes_while_the_bridge_is_away_survives_a_reload_and_what_was_sent_to_it_ends_with_a_failure(
    tmp_path: Path, target: Recorder, event: str
) -> None:
    routes = route(target, config="ADD ROUTE_CONFIG WITH OVERLOAD_BYTES '1GiB'", event=event) + route(
        target, name="Good"
    )
    with (
        running(tmp_path, routes, workers=2, reload_seconds=0.05) as broker,
        contextlib.closing(Results(broker.port)) as results,
        hanging(target) as released,
    ):
        idle = memory(broker.pid)
        publish(broker.port, 12, MIB, others=1000)
        eventually(lambda: target.requests, "no request comes")
        bridge = bridge_of(broker)
        os.kill(bridge, signal.SIGKILL)
        eventually(lambda: bridge_of(broker) != bridge, "it is not noticed")
        publish(broker.port, 3, MIB, others=1)
        eventually(lambda: results.of("out/good") == {"ok": 3})
        changed = (tmp_path / "routes.lot").read_text().replace('"out/hang"', '"out/changed"')
        (tmp_path / "routes.lot").write_text(changed)
        eventually(lambda: "routes reloaded" in broker.log)
        released.set()
        eventually(lambda: sum(results.counts.values()) == 18)
        ends = Counter(results.of("out/hang")) + Counter(results.of("out/changed"))
        assert set(ends) == {"bridge_restarted", "ok"}
        assert ends["ok"] >= 3  # those that came while it was away, or that it had not been sent
        assert results.of("out/changed")["ok"] >= 1  # those that waited for the reload
        eventually(lambda: memory(broker.pid) - idle < 10 * MIB, "memory is not given back")
