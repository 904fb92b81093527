"""`rest-bridge worker` beside mosquitto, that of another checkout, and a script of asyncio, in turns.

    python -m tests.benchmarks.worker [--tree TREE] [SECTION ...]

Brokers, HTTP target and clients are processes of their own; payloads of 100 bytes; QoS 1 from end to end; medians of 3
rounds. TREE is another checkout, such as `git worktree add /tmp/old 493b0165` makes; all run with this Python. The
worker acknowledges a message when its result is acknowledged, the script on arrival; the script needs the extra
`benchmark` and is left out without it. CPU is that of the broker and of what makes the calls. Sections: throughput,
slow, server (16 connections post to server mode; needs wrk), memory (also of the plugin), scale.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.benchmarks import rig
from tests.benchmarks.rig import OUTSTANDING, SLOW, WORKERS, client_route, load, result
from tests.support.ports import free_port
from tests.worker.mosquitto import Mosquitto

ROUNDS = 3
SECONDS = 4.0
QOS = 1
HAS_SCRIPT = all(importlib.util.find_spec(name) for name in ("aiomqtt", "aiohttp"))

Started = Iterator[tuple[int, list[int]]]  # the broker's port, and the processes whose CPU counts


def await_line(running: subprocess.Popen[str], begins: str, lines: Any) -> None:
    """Wait until a process writes a line."""
    for line in lines:
        if begins in line:
            return
    raise RuntimeError(f"the process ended with status {running.wait()}")


@contextlib.contextmanager
def workers(text: str, slots: int = 1, tree: Path | None = None) -> Started:
    """Run the workers of a group with the route of a text beside mosquitto."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        broker = stack.enter_context(Mosquitto(Path(folder)))
        routes, file = Path(folder, "routes.lot"), Path(folder, "worker.yaml")
        routes.write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(tree)} if tree else None
        file.write_text(json.dumps({"broker": broker.url, "group": "plant", "slots": slots, "routes": str(routes)}))
        pids = [broker.pid]
        for slot in range(slots):
            command = ("-m", "amqtt_rest_bridge", "worker", "-c", str(file), "--slot", str(slot))
            running = stack.enter_context(rig.process(*command, stderr=subprocess.PIPE, env=environment, cwd=tree))
            stack.enter_context(running.stderr or contextlib.nullcontext())
            await_line(running, "ready:", running.stderr)
            pids += [running.pid, *rig.children(running.pid)]
        yield broker.port, pids


@contextlib.contextmanager
def script(target: int) -> Started:
    """Run the script beside mosquitto."""
    with tempfile.TemporaryDirectory() as folder, Mosquitto(Path(folder)) as broker:
        command = ("-m", "tests.benchmarks.asyncio_script", str(broker.port), str(target), str(QOS), str(WORKERS))
        with rig.process(*command, stdout=subprocess.PIPE) as running:
            await_line(running, "ready", running.stdout)
            yield broker.port, [broker.pid, running.pid]


def trees(tree: Path | None) -> dict[str, Path | None]:
    """Return the checkouts whose workers are compared, by name; None is this one."""
    return {"worker": None} | ({tree.name: tree} if tree else {})


def client_worker(target: int, tree: Path | None) -> AbstractContextManager[tuple[int, list[int]]]:
    """Run a worker of client mode."""
    return workers(client_route(target), tree=tree)


def arms(tree: Path | None) -> Iterator[tuple[str, Callable[[int], AbstractContextManager[tuple[int, list[int]]]]]]:
    """Yield what is compared, with its name: each runs client mode with the HTTP server of a port."""
    for name, one in trees(tree).items():
        yield name, functools.partial(client_worker, tree=one)
    if HAS_SCRIPT:
        yield "script", script


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


def rounds(tree: Path | None, delay: float, outstanding: int) -> dict[str, list[dict[str, Any]]]:
    """Run all in turns."""
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in arms(tree)}
    with rig.echo_server(delay) as target:
        for _ in range(ROUNDS):
            for name, arm in arms(tree):
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


def throughput(tree: Path | None) -> None:
    """Messages a second and CPU a message, with 64 outstanding."""
    measured = rounds(tree, 0.0, OUTSTANDING)
    compare("messages/s", measured, "per_second")
    compare("CPU a message (us)", measured, "cpu_us")
    parts(measured)
    compare("another pair's p99 under that load (ms)", measured, "pair_p99", 1)
    wrong(measured)


def slow(tree: Path | None) -> None:
    """The share of what 64 calls at a time can do before a target that takes 50 ms."""
    measured = rounds(tree, SLOW, 4 * WORKERS)
    compare("share of 64 calls / 50 ms", measured, "steady_per_second", 3, SLOW / WORKERS)
    wrong(measured)


def server(tree: Path | None) -> None:
    """Requests a second and CPU a request with 16 connections, and from request to subscriber beside them."""
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in trees(tree)}
    for _ in range(ROUNDS):
        for name, one in trees(tree).items():
            http = free_port()
            with workers(rig.server_route(http), tree=one) as (port, pids):
                measured[name].append(posted(port, http, pids))
    compare("requests/s", measured, "per_second")
    compare("CPU a request (us)", measured, "cpu_us")
    parts(measured)
    for share in ("p50", "p99"):
        compare(f"request to subscriber, {share} (ms)", measured, share, 1)
    rig.report("errors", " / ".join(str(int(sum(run["errors"] for run in runs))) for runs in measured.values()), "0")


def posted(port: int, http: int, pids: list[int]) -> dict[str, Any]:
    """Post over 16 connections, and take the times of another caller's requests."""
    before = [rig.cpu_seconds(pid) for pid in pids]
    other = load("hook", port, SECONDS - 1, http, 100)
    measured: dict[str, Any] = {**rig.wrk(f"http://127.0.0.1:{http}/hook", 16, SECONDS)}
    used = [(rig.cpu_seconds(pid) - then) / measured["requests"] * 1e6 for pid, then in zip(pids, before, strict=True)]
    times = result(other)["latencies"]
    shares = {f"p{share}": rig.quantile(times, share / 100) for share in (50, 99)}
    return measured | shares | {"cpu_us": sum(used), "parts_us": used}


@contextlib.contextmanager
def plugin(text: str) -> Started:
    """Run amqtt with the plugin."""
    with rig.bridge_broker(text, start_seconds=120) as (port, broker):
        result(load("window", port, 60, 1, 1))  # the bridge has started
        yield port, [broker.pid, *rig.children(broker.pid)]


def memory(tree: Path | None) -> None:
    """Resident memory of the broker and the bridge, at the start and after 100,000 messages."""
    with rig.echo_server() as target:
        one = client_route(target)
        many = "".join(client_route(target, f"R{number}", f"idle/{number}") for number in range(1_000))
        arms = {f"{name} beside mosquitto": workers(one, tree=at) for name, at in trees(tree).items()}
        for name, arm in {**arms, "plugin": plugin(one), "plugin, 1,001 routes": plugin(one + many)}.items():
            with arm as (port, pids):
                before = [f"{rig.resident_mb(pid):.0f}" for pid in pids]
                sent = result(load("window", port, 120, OUTSTANDING, 100_000, QOS))["sent"]
                after = [f"{rig.resident_mb(pid):.0f}" for pid in pids]
            rig.report(f"{name}: MB at the start / after {sent:,} messages", f"{'+'.join(before)} / {'+'.join(after)}")


def busy_share(since: tuple[float, float]) -> tuple[float, tuple[float, float]]:
    """Return how much of all processors was in use since a moment, and this moment."""
    times = [float(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    now = sum(times), times[3] + times[4]
    return 1 - (now[1] - since[1]) / max(1.0, now[0] - since[0]), now


def scale(_tree: Path | None) -> None:
    """What 1, 2 and 4 workers carry of 64 calls each before a target that takes 50 ms."""
    shares: dict[int, list[float]] = {1: [], 2: [], 4: []}
    pairs: dict[int, list[float]] = {slots: [] for slots in shares}
    busy: dict[int, list[float]] = {slots: [] for slots in shares}
    errors = 0
    with rig.echo_server(SLOW) as target:
        for _ in range(ROUNDS):
            for slots, values in shares.items():
                with workers(client_route(target), slots) as (port, pids):
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


SECTIONS: dict[str, Callable[[Path | None], None]] = {
    "throughput": throughput,
    "slow": slow,
    "server": server,
    "memory": memory,
    "scale": scale,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="these alone (default all)")
    parser.add_argument("--tree", type=lambda text: Path(text).absolute(), help="another checkout")
    given = parser.parse_args()
    for section in given.sections or SECTIONS:
        SECTIONS[section](given.tree)
