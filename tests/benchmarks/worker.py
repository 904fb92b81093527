"""`rest-bridge worker` beside mosquitto, the plugin in amqtt, and a script of asyncio beside mosquitto, in turns.

    python -m tests.benchmarks.worker [SECTION ...]

Brokers, HTTP target and MQTT clients are processes of their own; payloads of 100 bytes; QoS 1 from end to end; medians
of 3 rounds. The three promise different things: the worker acknowledges a message when its result is acknowledged, the
plugin's broker and the script acknowledge it on arrival. CPU is that of the broker and of what makes the calls.
The script needs the extra `benchmark`; without it the other two are compared. Sections: throughput, slow.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.benchmarks import rig
from tests.benchmarks.client_mode import OUTSTANDING, SLOW, WORKERS, load, result, route
from tests.worker.mosquitto import Mosquitto

ROUNDS = 3
SECONDS = 4.0
QOS = 1
HAS_SCRIPT = all(importlib.util.find_spec(name) for name in ("aiomqtt", "aiohttp"))

Started = Iterator[tuple[int, list[int]]]  # the broker's port, and the processes whose CPU counts


@contextlib.contextmanager
def plugin(target: int) -> Started:
    """Run the plugin in amqtt."""
    with rig.bridge_broker(route(target)) as (port, broker):
        yield port, [broker.pid, *rig.children(broker.pid)]


def await_line(running: subprocess.Popen[str], begins: str, lines: Any) -> None:
    """Wait until a process writes a line."""
    for line in lines:
        if begins in line:
            return
    raise RuntimeError(f"the process ended with status {running.wait()}")


@contextlib.contextmanager
def worker(target: int) -> Started:
    """Run one worker beside mosquitto."""
    with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder)) as broker:
        routes, file = Path(folder, "routes.lot"), Path(folder, "worker.yaml")
        routes.write_text(route(target))
        file.write_text(json.dumps({"broker": broker.url, "group": "plant", "routes": str(routes)}))
        command = ("-m", "amqtt_rest_bridge", "worker", "-c", str(file))
        with rig.process(*command, stderr=subprocess.PIPE) as running, running.stderr or contextlib.nullcontext():
            await_line(running, "ready:", running.stderr)
            yield broker.port, [broker.pid, running.pid, *rig.children(running.pid)]


@contextlib.contextmanager
def script(target: int) -> Started:
    """Run the script beside mosquitto."""
    with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder)) as broker:
        command = ("-m", "tests.benchmarks.asyncio_script", str(broker.port), str(target), str(QOS), str(WORKERS))
        with rig.process(*command, stdout=subprocess.PIPE) as running:
            await_line(running, "ready", running.stdout)
            yield broker.port, [broker.pid, running.pid]


ARMS: dict[str, Callable[[int], AbstractContextManager[tuple[int, list[int]]]]] = {"worker": worker, "plugin": plugin}
if HAS_SCRIPT:
    ARMS["script"] = script


def pressed(port: int, pids: list[int], outstanding: int) -> dict[str, Any]:
    """Load a broker; return messages a second, CPU a message in microseconds, and what went wrong."""
    before = sum(map(rig.cpu_seconds, pids))
    measured = result(load("window", port, SECONDS, outstanding, 0, QOS))
    measured["cpu_us"] = (sum(map(rig.cpu_seconds, pids)) - before) / measured["sent"] * 1e6
    return measured


def rounds(delay: float, outstanding: int) -> dict[str, list[dict[str, Any]]]:
    """Run all three in turns."""
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in ARMS}
    with rig.echo_server(delay) as target:
        for _ in range(ROUNDS):
            for name, arm in ARMS.items():
                with arm(target) as (port, pids):
                    measured[name].append(pressed(port, pids, outstanding))
    return measured


def compare(title: str, measured: dict[str, list[dict[str, Any]]], key: str, digits: int = 0, scale: float = 1) -> None:
    """Print medians, and the worker's ratio to each other arm."""
    names = " / ".join(measured)
    values = " / ".join(f"{rig.median([run[key] * scale for run in runs]):.{digits}f}" for runs in measured.values())
    rig.report(f"{title}, {names}", values)
    for other in list(measured)[1:]:
        pairs = zip(measured["worker"], measured[other], strict=True)
        rig.report(f"  worker / {other}", f"{rig.median([mine[key] / its[key] for mine, its in pairs]):.2f}")


def wrong(measured: dict[str, list[dict[str, Any]]]) -> None:
    """Print what was lost, doubled or failed."""
    counts = [sum(run["lost"] + run["doubled"] + run["failed"] for run in runs) for runs in measured.values()]
    rig.report("lost, doubled or failed", " / ".join(map(str, counts)), "0")


def throughput() -> None:
    """Messages a second and CPU a message, with 64 outstanding."""
    measured = rounds(0.0, OUTSTANDING)
    compare("messages/s", measured, "per_second")
    compare("CPU a message (us)", measured, "cpu_us")
    wrong(measured)


def slow() -> None:
    """The share of what 64 calls at a time can do before a target that takes 50 ms."""
    measured = rounds(SLOW, 4 * WORKERS)
    compare("share of 64 calls / 50 ms", measured, "steady_per_second", 3, SLOW / WORKERS)
    wrong(measured)


SECTIONS: dict[str, Callable[[], None]] = {"throughput": throughput, "slow": slow}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
