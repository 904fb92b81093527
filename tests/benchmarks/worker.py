"""`rest-bridge worker` beside mosquitto, the plugin in amqtt, and a script of asyncio beside mosquitto, in turns.

    python -m tests.benchmarks.worker [SECTION ...]

Brokers, HTTP target and MQTT clients are processes of their own; payloads of 100 bytes; QoS 1 from end to end; medians
of 3 rounds. The three promise different things: the worker acknowledges a message when its result is acknowledged, the
plugin's broker and the script acknowledge it on arrival. CPU is that of the broker and of what makes the calls.
The script needs the extra `benchmark`; without it the other two are compared. Sections: throughput, slow, scale.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
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
def workers(target: int, slots: int) -> Started:
    """Run the workers of a group beside mosquitto."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        broker = stack.enter_context(Mosquitto(Path(folder)))
        routes, file = Path(folder, "routes.lot"), Path(folder, "worker.yaml")
        routes.write_text(route(target))
        file.write_text(json.dumps({"broker": broker.url, "group": "plant", "slots": slots, "routes": str(routes)}))
        pids = [broker.pid]
        for slot in range(slots):
            command = ("-m", "amqtt_rest_bridge", "worker", "-c", str(file), "--slot", str(slot))
            running = stack.enter_context(rig.process(*command, stderr=subprocess.PIPE))
            stack.enter_context(running.stderr or contextlib.nullcontext())
            await_line(running, "ready:", running.stderr)
            pids += [running.pid, *rig.children(running.pid)]
        yield broker.port, pids


def worker(target: int) -> AbstractContextManager[tuple[int, list[int]]]:
    """Run one worker beside mosquitto."""
    return workers(target, 1)


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
    before = [rig.cpu_seconds(pid) for pid in pids]
    window = load("window", port, SECONDS, outstanding, 0, QOS)
    other = load("pair", port, SECONDS - 1)
    measured = result(window)
    used = [(rig.cpu_seconds(pid) - then) / measured["sent"] * 1e6 for pid, then in zip(pids, before, strict=True)]
    measured["cpu_us"] = sum(used)
    measured["parts_us"] = used
    measured["pair_p99"] = rig.quantile(result(other)["trips"], 0.99)
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


def parts(measured: dict[str, list[dict[str, Any]]]) -> None:
    """Print the CPU a message of each process: the broker's, and what makes the calls."""
    for name, runs in measured.items():
        each = [rig.median(values) for values in zip(*(run["parts_us"] for run in runs), strict=True)]
        rig.report(f"  by process, {name}", " + ".join(f"{value:.0f}" for value in each))


def wrong(measured: dict[str, list[dict[str, Any]]]) -> None:
    """Print what was lost, doubled or failed."""
    counts = [sum(run["lost"] + run["doubled"] + run["failed"] for run in runs) for runs in measured.values()]
    rig.report("lost, doubled or failed", " / ".join(map(str, counts)), "0")


def throughput() -> None:
    """Messages a second and CPU a message, with 64 outstanding."""
    measured = rounds(0.0, OUTSTANDING)
    compare("messages/s", measured, "per_second")
    compare("CPU a message (us)", measured, "cpu_us")
    parts(measured)
    compare("another pair's p99 under that load (ms)", measured, "pair_p99", 1)
    wrong(measured)


def slow() -> None:
    """The share of what 64 calls at a time can do before a target that takes 50 ms."""
    measured = rounds(SLOW, 4 * WORKERS)
    compare("share of 64 calls / 50 ms", measured, "steady_per_second", 3, SLOW / WORKERS)
    wrong(measured)


def busy_share(since: tuple[float, float]) -> tuple[float, tuple[float, float]]:
    """Return how much of all processors was in use since a moment, and this moment."""
    times = [float(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    now = sum(times), times[3] + times[4]
    return 1 - (now[1] - since[1]) / max(1.0, now[0] - since[0]), now


def scale() -> None:
    """What 1, 2 and 4 workers carry of 64 calls each before a target that takes 50 ms."""
    shares: dict[int, list[float]] = {1: [], 2: [], 4: []}
    pairs: dict[int, list[float]] = {slots: [] for slots in shares}
    busy: dict[int, list[float]] = {slots: [] for slots in shares}
    errors = 0
    with rig.echo_server(SLOW) as target:
        for _ in range(ROUNDS):
            for slots, values in shares.items():
                with workers(target, slots) as (port, pids):
                    time.sleep(0.5)
                    since = busy_share((0, 0))[1]
                    measured = pressed(port, pids, 2 * WORKERS * slots)
                    busy[slots].append(busy_share(since)[0])
                values.append(measured["steady_per_second"] * SLOW / WORKERS / slots)
                pairs[slots].append(measured["pair_p99"])
                errors += measured["lost"] + measured["doubled"] + measured["failed"]
    for slots, values in shares.items():
        title = f"{slots} worker(s): share of {slots} x {WORKERS} calls / 50 ms"
        rig.report(title, f"{rig.median(values):.3f}", "at least 0.9")
        shown = f"{rig.median(pairs[slots]):.1f} / {rig.median(busy[slots]):.2f}"
        rig.report("  another pair's p99 (ms) / share of the machine in use", shown)
    rig.report("lost, doubled or failed", str(errors), "0")


SECTIONS: dict[str, Callable[[], None]] = {"throughput": throughput, "slow": slow, "scale": scale}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
