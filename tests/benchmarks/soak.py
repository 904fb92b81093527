"""Minutes of everything at once: a server with random faults, clients that vanish, reloads, killed bridge processes.

    python -m tests.benchmarks.soak [--minutes 5] [--seed 1]

At the end every message that reached the broker's subscribers is accounted for: results + failures (refusals are
failures with the code `overloaded`) = published; a lossless message ends in a result or a final failure.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks import rig
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.ports import free_port

PER_SECOND = 100
QUIET_SECONDS = 45.0  # the longest wait between two tries is 30 s


def routes(target: int, extra: str) -> str:
    """Return a plain route, an ordered one with little room, a lossless one, and one that comes and goes."""

    def route(name: str, event: str = "", block: str = "") -> str:
        return f"""
DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{target}" WITH ENABLE_CLIENT "true"
        WITH REQUEST_TIMEOUT '2' WITH RETRIES '2'
    ADD EVENT E
        WITH SOURCE_TOPIC "{name}/in/#" WITH METHOD "PUT" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "{name}/out" {event}
    {block}
"""

    small = "ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY '50'"
    lossless = 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"'
    return route("plain") + route("ordered", 'WITH ORDERED "true"', small) + route("lossless", block=lossless) + extra


class Books:
    """What was published and what it ended in, by route."""

    def __init__(self, port: int) -> None:
        self.published: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.changed = time.monotonic()
        self.over = threading.Event()
        self._wire = Wire(port, "books", timeout=0.5)
        for name in ("plain", "ordered", "lossless"):
            self._wire.subscribe(f"{name}/#")
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def open_items(self) -> Counter[str]:
        """Return how many messages of each route have no end yet, or an end too many."""
        left = Counter(self.published)
        left.subtract(self.results)
        for (name, _), count in self.failures.items():
            left[name] -= count
        # A lossless route also takes what amqtt read and then dropped because its publisher had vanished.
        left["lossless"] = max(0, left["lossless"])
        return Counter({name: count for name, count in left.items() if count})

    def close(self) -> None:
        """Stop reading."""
        self.over.set()
        self._thread.join()
        self._wire.close()

    def _read(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(TimeoutError):
                for topic, payload in self._wire.messages():
                    self.changed = time.monotonic()
                    name, _, rest = topic.partition("/")
                    if rest.startswith("in"):
                        self.published[name] += 1
                    elif payload.startswith(b'{"error"'):
                        self.failures[name, json.loads(payload)["error"]["code"]] += 1
                    else:
                        self.results[name] += 1


def publish(port: int, over: threading.Event, moments: random.Random) -> None:
    """Publish on all routes, now and then from a client that vanishes in the middle of it."""
    number = 0
    while not over.is_set():
        wire = Wire(port, f"sender-{number}")
        for _ in range(moments.randint(20, 400)):
            number += 1
            for name in ("plain", "ordered", "lossless"):
                packet = publish_packet(f"{name}/in/{number % 5}", b"%d" % number, 1 + number % 60_000)
                wire.send(packet)
            if over.wait(1 / PER_SECOND):
                break
        if moments.random() < 0.5:
            wire.sock.shutdown(socket.SHUT_RDWR)
        wire.close()


def disturb(broker: int, folder: Path, target: int, over: threading.Event, moments: random.Random) -> None:
    """Reload and kill bridge processes at random."""
    number = 0
    while not over.wait(moments.uniform(2, 8)):
        number += 1
        if moments.random() < 0.25:
            for child in rig.children(broker):
                os.kill(child, signal.SIGKILL)
            continue
        extra = f"""
DEFINE ROUTE Guest WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/v{number}" WITH DESTINATION_TOPIC "guest"
"""
        (folder / "routes.lot").write_text(routes(target, extra if number % 2 else ""))
        os.kill(broker, signal.SIGHUP)


def soak(minutes: float, seed: int) -> bool:
    """Run, print the books, say whether they balance."""
    moments, target = random.Random(seed), free_port()
    with TemporaryDirectory() as name, rig.process("-m", "tests.benchmarks.target", "faulty", str(target), str(seed)):
        folder, log = Path(name), Path(name, "broker.log")
        (folder / "routes.lot").write_text(routes(target, ""))
        settings = {"routes": str(folder / "routes.lot"), "spool": str(folder / "spool.db"), "reload_seconds": 0}
        with rig.broker({rig.BRIDGE: settings}, log) as (port, broker):
            books, over = Books(port), threading.Event()
            threads = [
                threading.Thread(target=publish, args=(port, over, moments)),
                threading.Thread(target=disturb, args=(broker.pid, folder, target, over, random.Random(seed + 1))),
            ]
            for thread in threads:
                thread.start()
            memory = [rig.resident_mb(broker.pid)]
            over.wait(minutes * 60)
            over.set()
            for thread in threads:
                thread.join()
            while books.open_items() and time.monotonic() - books.changed < QUIET_SECONDS:
                books.over.wait(0.5)
            memory.append(rig.resident_mb(broker.pid))
            books.close()
            alive = broker.poll() is None
    for route, count in sorted(books.published.items()):
        failures = {code: number for (own, code), number in sorted(books.failures.items()) if own == route}
        rig.report(f"{route}: published / results / failures", f"{count} / {books.results[route]} / {failures}")
    rig.report("without an end", str(dict(books.open_items())), "{}")
    rig.report("broker's memory at the start and at the end (MB)", " / ".join(f"{value:.0f}" for value in memory))
    return alive and not books.open_items()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to disturb (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default 1)")
    chosen = parser.parse_args()
    raise SystemExit(0 if soak(chosen.minutes, chosen.seed) else "the books do not balance")
