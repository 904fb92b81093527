"""What a broker with a lossless route lives through until a test ends it, and what must hold afterwards."""

import contextlib
import json
import shutil
import signal
import sqlite3
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support import crashing
from tests.support.broker_process import BrokerProcess
from tests.support.forked import REST_BRIDGE, Forked
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import Seen
from tests.support.lossless import on_disk, route
from tests.support.waiting import SECONDS, eventually

DISK: Final = 1 << 20  # bytes that a file of a small disk takes
_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 0x40, 0x50, 0x62, 0x70
_ACKNOWLEDGED: Final = (_PUBACK, _PUBREC)
_STATUS: Final = "$SYS/broker/routes/L/status"


class CrashedError(Exception):
    """The broker process has ended behind the wanted effect."""


class Broker(BrokerProcess):
    """A broker process that notes its effects, and may end behind one of them."""

    def __init__(self, folder: Path, routes: str, file_bytes: int | None) -> None:
        super().__init__(
            folder, routes, spool=str(folder / "spool.db"), reload_seconds=0.02, status_seconds=0.05, workers=1
        )
        self.effects = folder / "effects"
        self._file_bytes = file_bytes

    def start(self, behind: crashing.Point | None = None) -> None:
        """Start, and wait until clients can connect or it has ended."""
        module, environment = crashing.Crash(self.effects, behind, self._file_bytes).of(REST_BRIDGE)
        with (self._folder / "broker.log").open("a") as log:
            arguments = ["serve", "-c", str(self._config)]
            self._running = Forked(module, arguments, self._folder, environment=environment, output=log, bridges=1)
        eventually(lambda: self.has_ended or self._accepts(), "the broker accepts no connection")

    @property
    def has_ended(self) -> bool:
        return self._running is not None and self._running.poll() is not None

    def _accepts(self) -> bool:
        with contextlib.suppress(AssertionError):  # it ended just now
            return super()._accepts()
        return False

    def end(self) -> int:
        """End it as Ctrl-C does, unless it has crashed or crashes on the way; return its exit status."""
        assert self._running is not None
        self._running.send_signal(signal.SIGINT)
        return self._running.wait(SECONDS)


class Life:
    """What a story does with a broker; raises `CrashedError` from the moment at which the broker has ended."""

    def __init__(self, folder: Path, target: Recorder, qos: int, file_bytes: int | None) -> None:
        self.folder, self.qos = folder, qos
        self.routes = route(target.port)
        self.broker = Broker(folder, self.routes, file_bytes)
        self.gate = Gate()
        self.gate.open.set()
        self.acknowledged: set[str] = set()
        self.keys: dict[str, list[str]] = defaultdict(list)
        """The Idempotency-Keys of a message's calls, by its topic."""
        self._lock = threading.Lock()
        self._wire: Wire | None = None
        self._ids = 0
        self.lives = 2
        """How many broker processes have had the messages at most."""
        self.spool = folder / "spool.db"
        target.answer = self.gate.before(self._answer)

    def _answer(self, seen: Seen) -> tuple[int, bytes]:
        with self._lock:
            self.keys[seen.body.split()[0].decode()].append(seen.headers["Idempotency-Key"])
        return 200, b""

    def publish(self, *names: str, size: int = 0) -> None:
        """Publish messages in one piece, and wait until all are acknowledged."""
        topics = {self._ids + number: f"in/{name}" for number, name in enumerate(names, 1)}
        self._ids += len(topics)
        packets = [
            publish_packet(topic, topic.encode() + b" " + bytes(size), number, qos=self.qos)
            for number, topic in topics.items()
        ]
        with self._connected():
            if self._wire is None:
                self._wire = Wire(self.broker.port, "publisher", timeout=SECONDS)
            self._wire.send(b"".join(packets))
            while topics:
                for kind, body in self._wire.receive():
                    self._acknowledge(self._wire, kind, body[:2], topics)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            eventually(lambda: self.broker.has_ended, f"the connection is lost: {error}\n{self.broker.log}")
            raise CrashedError from error

    def _acknowledge(self, wire: Wire, kind: int, packet_id: bytes, topics: dict[int, str]) -> None:
        number = int.from_bytes(packet_id)
        if kind in _ACKNOWLEDGED:
            self.acknowledged.add(topics[number])
        if kind == _PUBREC:
            wire.send(bytes([_PUBREL, 2]) + packet_id)
        elif kind in (_PUBACK, _PUBCOMP):
            del topics[number]

    def until(self, holds: Callable[[], object], complaint: str) -> None:
        """Wait for something that the broker does."""
        eventually(lambda: self.broker.has_ended or holds(), f"{complaint}\n{self.broker.log}")
        if self.broker.has_ended:
            raise CrashedError

    def use(self, routes: str) -> None:
        """Change the routes, and wait until the broker uses them."""
        count = self.broker.log.count("routes reloaded")
        self.write(routes)
        self.until(lambda: self.broker.log.count("routes reloaded") > count, "the routes are not reloaded")

    def write(self, routes: str) -> None:
        """Change the route file."""
        file = self.folder / "routes.lot"
        file.with_suffix(".new").write_text(routes)
        file.with_suffix(".new").replace(file)

    def drained(self) -> None:
        """Wait until no call is on disk."""
        self.until(lambda: on_disk(self.spool) == 0, "a call stays on disk")

    def settled(self) -> None:
        """Wait until the route holds nothing."""
        held = ("queued", "in_flight", "held_bytes")
        self.until(lambda: not any(self.status()[name] for name in held), "the route holds something for ever")

    def hang_up(self) -> None:
        """Close the publisher's connection."""
        if self._wire is not None:
            self._wire.sock.close()
            self._wire = None

    def status(self) -> dict[str, Any]:
        """Return the counters of the route's status as the broker publishes them next."""
        with self._connected(), contextlib.closing(Wire(self.broker.port, "watching")) as wire:
            wire.subscribe(_STATUS)
            while True:
                for _, payload in wire.messages():
                    messages: dict[str, Any] = json.loads(payload)["messages"]
                    return messages

    @property
    def refused(self) -> set[str]:
        """The topics of messages that the disk had no room for."""
        last = {topic: kind for kind, topic in crashing.read(self.broker.effects) if topic}
        return {topic for topic, kind in last.items() if kind.endswith("failed")}


def plain(life: Life) -> None:
    """Messages one by one and in one piece, which the server answers."""
    life.publish("a")
    life.drained()
    life.publish("b", "c", "d")
    life.drained()


def replayed(life: Life) -> None:
    """The same, beside messages of a run that was killed before (see `begin`)."""
    life.gate.open.set()
    life.publish("x")
    life.drained()


def reloaded(life: Life) -> None:
    """The route gets another definition, is removed and comes back while its messages wait and run."""
    life.gate.open.clear()
    life.publish("a", "b", "c")
    life.until(lambda: not life.gate.entered.empty(), "no call begins")
    life.use(life.routes.replace('"/x"', '"/y"'))
    life.publish("d")
    life.use(life.routes.replace("ROUTE L", "ROUTE Other").replace("in/#", "elsewhere"))
    life.gate.open.set()
    life.use(life.routes)
    life.publish("e")
    life.drained()


def full(life: Life) -> None:
    """The disk is full while the server does not answer, and the routes are reloaded; then calls end and make room."""
    life.gate.open.clear()
    number = 0
    while not life.refused:
        life.publish(f"first-{number}", size=100_000)
        number += 1
    life.use(life.routes.replace('"/x"', '"/y"'))
    life.publish("large", size=150_000)
    life.gate.open.set()
    life.drained()
    life.publish("b", "c", size=50_000)
    life.drained()


STORIES: Final[dict[str, Callable[[Life], None]]] = {
    story.__name__: story for story in (plain, replayed, reloaded, full)
}


@contextlib.contextmanager
def living(story: str, qos: int) -> Iterator[Life]:
    """Make a life in a folder of its own; nothing of it is left."""
    with tempfile.TemporaryDirectory() as folder, recording() as target:
        life = Life(Path(folder), target, qos, DISK if story == "full" else None)
        try:
            yield life
        finally:
            life.hang_up()
            life.gate.open.set()
            life.broker.close()


def begin(life: Life, story: str) -> None:
    """Leave on disk what the story finds there: messages of a broker that was killed before."""
    if story != "replayed":
        return
    life.gate.open.clear()
    life.broker.start()
    life.publish("a", "b", "c")
    life.hang_up()
    life.broker.kill()
    life.broker.effects.unlink()
    life.lives += 1


def play(life: Life, story: str, behind: crashing.Point | None) -> bool:
    """Play a story up to a point, or whole with a stop at its end; return True where the broker crashed."""
    try:
        life.broker.start(behind)
        STORIES[story](life)
        life.settled()
    except CrashedError:
        return True
    finally:
        life.hang_up()
    return life.broker.end() == -signal.SIGKILL


def recover(life: Life) -> None:
    """Start the broker again and check what it makes of what it finds."""
    rows = rows_after_a_crash(life.spool)
    life.broker.start()
    life.gate.open.set()  # not before: what the bridge process of the crashed broker holds must not be called by it
    if (life.folder / "routes.lot").read_text() != life.routes:
        life.use(life.routes)
    life.drained()
    life.publish("last")
    life.drained()
    expected = dict.fromkeys(life.status(), 0) | {"total": rows + 1, "succeeded": rows + 1}
    life.until(lambda: life.status() == expected, f"not the status of {rows} messages from disk and a new one")
    missing = life.acknowledged - life.refused - life.keys.keys()
    assert not missing, f"acknowledged and not called: {missing}"
    assert not life.refused & life.keys.keys(), "refused and called"
    several = {topic: keys for topic, keys in life.keys.items() if len(set(keys)) > 1 or len(keys) > life.lives}
    assert not several, f"called with several keys, or too often: {several}"
    assert len({key for keys in life.keys.values() for key in keys}) == len(life.keys), "one key for two messages"
    assert "Traceback" not in life.broker.log, life.broker.log
    life.hang_up()
    status = life.broker.end()
    assert status == 0, f"exit status {status}: {life.broker.log}"
    left = {file.name for file in life.folder.glob("spool*")}
    assert left == {"spool.db", "spool.db-lock", "spool.db-reserve"}, left


def rows_after_a_crash(spool: Path) -> int:
    """Count the calls in a spool that no process has open, and leave its log to the next broker."""
    with tempfile.TemporaryDirectory() as folder:
        for file in spool.parent.glob("spool.db*"):
            shutil.copy(file, folder)
        with contextlib.suppress(sqlite3.OperationalError):  # it was killed before there was a table
            return on_disk(Path(folder) / "spool.db")
        return 0
