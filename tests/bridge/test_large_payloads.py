"""Large payloads in a real broker: what two processes hold of them, what is refused, and that it is given back."""

import contextlib
import json
import resource
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.bridge.broker_process import BrokerProcess
from tests.bridge.http_target import Seen
from tests.bridge.recorder import Answer, Recorder, recording
from tests.waiting import eventually

MIB = 1 << 20


def route(target: Recorder, more: str = "", *, name: str = "Hang", config: str = "", event: str = "") -> str:
    """A route whose messages hold one field of use."""
    topic = name.lower()
    return f"""
    DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" {more} WITH REQUEST_TIMEOUT '300'
        {config}
        ADD EVENT E
            WITH SOURCE_TOPIC "{topic}/#" WITH METHOD "POST" WITH ENDPOINT "/{topic}"
            WITH BODY '{{"n": {{value.json.n}}}}' WITH DESTINATION_TOPIC "out/{topic}" {event}
    """


def message(number: int, size: int) -> bytes:
    start, end = f'{{"n": {number}, "pad": "', '"}'
    return f"{start}{'x' * (size - len(start) - len(end))}{end}".encode()


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


def processes(broker: int) -> list[int]:
    """Return the broker and its bridge processes."""
    children = Path(f"/proc/{broker}/task/{broker}/children").read_text().split()
    return [broker, *map(int, children)]


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
        return sum(map(memory, processes(self._broker)))

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, self.now())

    def stop(self) -> int:
        """Return by how much memory grew at most."""
        self._ended.set()
        self._thread.join()
        return self.most - self.idle


class Results:
    """Counts what the routes publish, by topic and code."""

    def __init__(self, port: int) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._wire = Wire(port, "results", timeout=0.2)
        self._wire.subscribe("out/#")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def of(self, topic: str) -> dict[str, int]:
        return {code: count for (of, code), count in self.counts.items() if of == topic}

    def _read(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                self.counts.update((topic, code_of(payload)) for topic, payload in self._wire.messages())

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._wire.close()


def publish(port: int, count: int, size: int, *, others: int = 5) -> int:
    """Publish large messages to Hang, and after every few a small one to Good; return how many of these there were."""
    with contextlib.closing(Wire(port, "publisher")) as wire:
        small = 0
        for number in range(count):
            wire.send(publish_packet(f"hang/{number}", message(number, size), 1))
            wire.expect(0x40)
            if number % others == 0:
                small += 1
                wire.send(publish_packet(f"good/{number}", b'{"n": 1}', 2))
                wire.expect(0x40)
        return small


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as target:
        yield target


@pytest.fixture
def broker(tmp_path: Path, target: Recorder) -> Iterator[BrokerProcess]:
    """A broker with default settings and two routes on one server."""
    process = BrokerProcess(tmp_path, route(target) + route(target, name="Good"))
    process.start()
    eventually(lambda: len(processes(process.pid)) == 2)
    try:
        yield process
    finally:
        process.close()


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_large_messages_at_a_server_that_hangs_cost_bounded_memory_and_no_other_route_a_call(
    count: int, target: Recorder, broker: BrokerProcess
) -> None:
    peak = Peak(broker.pid)
    with contextlib.closing(Results(broker.port)) as results, hanging(target) as released:
        small = publish(broker.port, count, 4 * MIB)
        eventually(lambda: results.of("out/hang") == {"overloaded": count - 16})
        eventually(lambda: results.of("out/good") == {"ok": small})
        released.set()
        eventually(lambda: results.of("out/hang") == {"overloaded": count - 16, "ok": 16})
        assert results.of("out/good") == {"ok": small}
    assert peak.stop() < 450 * MIB
    eventually(lambda: peak.now() - peak.idle < 40 * MIB, "memory is not given back")


def test_a_bridge_process_with_little_memory_survives_large_messages(target: Recorder, broker: BrokerProcess) -> None:
    bridge = processes(broker.pid)[1]
    resource.prlimit(bridge, resource.RLIMIT_AS, (1_800_000 << 10, 1_800_000 << 10))
    with contextlib.closing(Results(broker.port)) as results, hanging(target) as released:
        small = publish(broker.port, 100, 4_000_000)
        released.set()
        eventually(lambda: results.of("out/hang") == {"overloaded": 84, "ok": 16})
        eventually(lambda: results.of("out/good") == {"ok": small})
    assert processes(broker.pid)[1] == bridge
