"""Client mode against its floor, a plugin that copies from topic to topic without HTTP.

    python -m tests.benchmarks.client_mode [SECTION ...]

Broker, HTTP target and MQTT clients are processes of their own; payloads of 100 bytes; medians of 3 runs, floor and
bridge in turn, so that both see the same machine. Sections: throughput, slow, latency, memory, routes, outage,
lossless.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from amqtt_rest_bridge.settings import Settings
from tests.benchmarks import rig
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.ports import free_port

FLOOR: dict[str, Any] = {"tests.benchmarks.floor.CopyPlugin": {}}
RUNS = 3
SECONDS = 5.0
OUTSTANDING = 64
WORKERS = Settings.workers
SLOW = 0.05  # seconds


def route(port: int, name: str = "R", source: str = "in") -> str:
    """Return the route that does what the floor does, by way of an HTTP server."""
    return f"""
DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
        WITH DEFAULT_CONTENT_TYPE "application/octet-stream"
    ADD EVENT E
        WITH SOURCE_TOPIC "{source}" WITH METHOD "POST" WITH ENDPOINT "/echo" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"
"""


def load(mode: str, *numbers: float) -> subprocess.Popen[str]:
    """Start a load process."""
    command = [sys.executable, "-m", "tests.benchmarks.load", mode, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def counting(port: int, seconds: float, idle: float = 2.0) -> subprocess.Popen[str]:
    """Start a process that counts what arrives on `out`, and wait until it has subscribed."""
    running = load("count", port, seconds, idle)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


def result(running: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for what a load process measured."""
    output, _ = running.communicate()
    measured: dict[str, Any] = json.loads(output)
    return measured


def pressed(port: int, pid: int, outstanding: int = OUTSTANDING, *, pair: bool = False) -> dict[str, Any]:
    """Load a broker and take messages a second, CPU a message, and the other pair's p99."""
    before, children = rig.cpu_seconds(pid), {child: rig.cpu_seconds(child) for child in rig.children(pid)}
    window = load("window", port, SECONDS, outstanding)
    other = load("pair", port, SECONDS - 1) if pair else None
    measured = result(window)
    measured["broker_us"] = (rig.cpu_seconds(pid) - before) / measured["sent"] * 1e6
    measured["bridge_us"] = sum(rig.cpu_seconds(child) - used for child, used in children.items())
    measured["bridge_us"] *= 1e6 / measured["sent"]
    if other is not None:
        measured["pair_p99"] = rig.quantile(result(other)["trips"], 0.99)
    return measured


def throughput() -> None:
    """Messages a second with 64 outstanding, CPU a message, the others' round trip."""
    floors, bridges, floor_pairs, bridge_pairs = [], [], [], []
    with rig.echo_server() as target:
        for _ in range(RUNS):
            with rig.broker(FLOOR) as (port, broker):
                floors.append(pressed(port, broker.pid))
            with rig.bridge_broker(route(target)) as (port, broker):
                bridges.append(pressed(port, broker.pid))
            with rig.broker(FLOOR) as (port, broker):
                floor_pairs.append(pressed(port, broker.pid, pair=True)["pair_p99"])
            with rig.bridge_broker(route(target)) as (port, broker):
                bridge_pairs.append(pressed(port, broker.pid, pair=True)["pair_p99"])
    floor, bridge = (rig.median([run["per_second"] for run in runs]) for runs in (floors, bridges))
    ratio = rig.median([b["per_second"] / f["per_second"] for f, b in zip(floors, bridges, strict=True)])
    floor_us, bridge_us = (rig.median([run["broker_us"] for run in runs]) for runs in (floors, bridges))
    rig.report("messages/s, floor / bridge", f"{floor:.0f} / {bridge:.0f}")
    rig.report("  ratio", f"{ratio:.2f}", "at least 0.55, aim 0.75")
    rig.report("broker CPU a message, floor / bridge (us)", f"{floor_us:.0f} / {bridge_us:.0f}")
    rig.report("  ratio", f"{bridge_us / floor_us:.2f}", "at most 1.25")
    rig.report("bridge process CPU a message (us)", f"{rig.median([run['bridge_us'] for run in bridges]):.0f}")
    wrong = sum(run["lost"] + run["doubled"] + run["failed"] for run in bridges)
    rig.report("lost, doubled or failed", str(wrong), "0")
    pairs = " / ".join(f"{rig.median(runs):.1f}" for runs in (floor_pairs, bridge_pairs))
    rig.report("another pair's p99 under that load, floor / bridge (ms)", pairs, "under 10")


def slow() -> None:
    """A target that takes 50 ms, against a plain client that keeps as many connections busy and does nothing else.

    More messages are outstanding than workers, as before any server that is the bottleneck.
    """
    shares, plains = [], []
    with rig.echo_server(SLOW) as target:
        for _ in range(RUNS):
            plains.append(result(load("requests", target, SECONDS, WORKERS))["per_second"] / (WORKERS / SLOW))
            with rig.bridge_broker(route(target)) as (port, broker):
                shares.append(pressed(port, broker.pid, 4 * WORKERS)["steady_per_second"] / (WORKERS / SLOW))
    rig.report(f"target of 50 ms: share of {WORKERS} workers / 50 ms", f"{rig.median(shares):.3f}", "at least 0.95")
    rig.report("  the same of a client without MQTT", f"{rig.median(plains):.3f}")


def latency() -> None:
    """Added latency at 200 messages a second."""
    ratios: dict[float, list[float]] = {0.5: [], 0.99: []}
    shown: dict[float, list[tuple[float, float]]] = {0.5: [], 0.99: []}
    with rig.echo_server() as target:
        for _ in range(RUNS):
            with rig.broker(FLOOR) as (port, _):
                floor = result(load("rate", port, SECONDS, 200))["latencies"]
            with rig.bridge_broker(route(target)) as (port, _):
                bridge = result(load("rate", port, SECONDS, 200))["latencies"]
            for share, values in ratios.items():
                pair = rig.quantile(floor, share), rig.quantile(bridge, share)
                shown[share].append(pair)
                values.append(pair[1] / pair[0])
    for share, wanted in ((0.5, 2.5), (0.99, 3.0)):
        floor_ms, bridge_ms = (rig.median([pair[index] for pair in shown[share]]) for index in (0, 1))
        rig.report(f"p{share * 100:.0f} at 200/s, floor / bridge (ms)", f"{floor_ms:.2f} / {bridge_ms:.2f}")
        rig.report("  ratio", f"{rig.median(ratios[share]):.2f}", f"at most {wanted}")


def memory(messages: int = 100_000) -> None:
    """Memory after 1,000 messages and after many."""
    with rig.echo_server() as target, rig.bridge_broker(route(target)) as (port, broker):
        processes = [broker.pid, *rig.children(broker.pid)]
        result(load("window", port, 600, OUTSTANDING, 1000))
        before = [rig.resident_mb(pid) for pid in processes]
        measured = result(load("window", port, 600, OUTSTANDING, messages))
        after = [rig.resident_mb(pid) for pid in processes]
    grown = ", ".join(f"{a - b:+.1f}" for a, b in zip(after, before, strict=True))
    rig.report(f"memory after {measured['sent']:,} messages, broker and bridge (MB)", grown, "within 20")


def routes() -> None:
    """1,000 routes loaded, one of them active."""
    ratios = []
    with rig.echo_server() as target:
        many = "".join(route(target, f"R{number}", f"idle/{number}") for number in range(999))
        for _ in range(RUNS):
            with rig.bridge_broker(route(target)) as (port, broker):
                alone = pressed(port, broker.pid)["per_second"]
            with rig.bridge_broker(route(target) + many) as (port, broker):
                ratios.append(pressed(port, broker.pid)["per_second"] / alone)
    rig.report("1,000 routes, one active: share of one route's rate", f"{rig.median(ratios):.3f}", "at least 0.95")


@contextlib.contextmanager
def target_in_shifts(port: int, until: float, back: float) -> Iterator[list[float]]:
    """Run a target that goes away after `until` seconds and is back after `back` more; gives when it was back."""
    returned: list[float] = []
    over = threading.Event()

    def shifts() -> None:
        with rig.echo_server(port=port):
            over.wait(until)
        over.wait(back)
        with rig.echo_server(port=port):
            returned.append(time.perf_counter())
            over.wait()

    thread = threading.Thread(target=shifts)
    thread.start()
    try:
        yield returned
    finally:
        over.set()
        thread.join()


def outage() -> None:
    """A target that is gone for 3 s (100 messages/s) and for 10 s (50 messages/s), default settings."""
    for gone, per_second, seconds in ((3.0, 100, 8.0), (10.0, 50, 16.0)):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder, target_in_shifts(port, 2.0, gone) as returned:
            started = rig.bridge_broker(route(port), Path(folder, "log"))
            with started as (mqtt, _):
                sent, good, bad, first = count(mqtt, per_second, seconds, lambda: bool(returned))
            delay = first - returned[0] if first is not None else float("inf")
        rig.report(f"target gone for {gone:.0f} s: sent / results / failures", f"{sent} / {good} / {bad}", "all ended")
        rig.report("  first success after it is back (s)", f"{delay:.2f}", "within 2")


def count(
    port: int, per_second: float, seconds: float, is_back: Callable[[], bool]
) -> tuple[int, int, int, float | None]:
    """Send at a rate; count results and failures until each message has one."""
    receiver, sender = Wire(port, "count-receiver", timeout=60), Wire(port, "count-sender")
    receiver.subscribe("out")
    total = int(per_second * seconds)

    def send() -> None:
        begun = time.perf_counter()
        for number in range(total):
            threading.Event().wait(max(0.0, begun + number / per_second - time.perf_counter()))
            sender.send(publish_packet("in", b"%05d" % number))

    thread = threading.Thread(target=send)
    thread.start()
    good, bad, first = set[bytes](), 0, None
    while len(good) + bad < total:
        for _, payload in receiver.messages():
            if len(payload) == 5:
                assert payload not in good, "doubled"
                good.add(payload)
                if first is None and is_back():
                    first = time.perf_counter()
            else:
                bad += 1
    thread.join()
    return total, len(good), bad, first


def lossless() -> None:
    """Acknowledged QoS 1 publications to a lossless route, against the same route without it."""
    plain, ratios = [], []
    policy = "    ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY '1000000' WITH OVERLOAD_POLICY \"{}\"\n"
    with rig.echo_server() as target:
        for _ in range(RUNS):
            with rig.bridge_broker(route(target) + policy.format("balanced")) as (port, _):
                plain.append(result(load("acknowledged", port, SECONDS, OUTSTANDING))["per_second"])
            with tempfile.TemporaryDirectory() as folder:
                text, spool = route(target) + policy.format("lossless"), str(Path(folder, "spool.db"))
                with rig.bridge_broker(text, spool=spool) as (port, _):
                    rate = result(load("acknowledged", port, SECONDS, OUTSTANDING))["per_second"]
            ratios.append(rate / plain[-1])
    rig.report("QoS 1 acknowledged a second, not lossless", f"{rig.median(plain):.0f}")
    rig.report("  share of it with lossless", f"{rig.median(ratios):.2f}", "at least 0.5")


SECTIONS: dict[str, Callable[[], None]] = {
    "throughput": throughput,
    "slow": slow,
    "latency": latency,
    "memory": memory,
    "routes": routes,
    "outage": outage,
    "lossless": lossless,
}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
