"""Server mode against its floor, a plugin's bare `broadcast_message` loop that feeds the same subscriber.

    python -m tests.benchmarks.server_mode [SECTION ...]

wrk (Debian's package) sends POSTs of 100 bytes; broker, load and the counting subscriber are processes of their own.
Sections: throughput, latency, memory, tls.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import rig
from tests.benchmarks.client_mode import counting, load, result
from tests.support.ports import free_port

RUNS = 3
SECONDS = 5
FEEDER: dict[str, Any] = {"tests.benchmarks.floor.FeedPlugin": {}}
CERTIFICATES = Path(__file__).parent.parent / "support" / "certificates"


def route(port: int) -> str:
    """Return the route that publishes what wrk posts."""
    return f"""
DEFINE ROUTE Hook WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "out"
"""


def wrk(port: int, connections: int, seconds: float, scheme: str = "http") -> dict[str, float]:
    """Post 100 bytes over kept connections; gives answers a second, their number, errors, and latencies in ms."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "post.lua")
        script.write_text(
            'wrk.method = "POST"\nwrk.body = string.rep("x", 100)\n'
            "done = function(summary, latency)\n"
            '  io.write(string.format("R %d %d %d %f %f\\n", summary.requests, summary.duration, '
            "summary.errors.status + summary.errors.read + summary.errors.write + summary.errors.timeout, "
            "latency:percentile(50) / 1000, latency:percentile(99) / 1000))\nend\n"
        )
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script)]
        output = subprocess.run(
            [*command, f"{scheme}://127.0.0.1:{port}/hook"], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"^R (\d+) (\d+) (\d+) ([\d.]+) ([\d.]+)$", output, re.MULTILINE)
    assert found is not None, output
    requests, microseconds, errors, p50, p99 = map(float, found.groups())
    return {
        "per_second": requests / microseconds * 1e6,
        "requests": requests,
        "errors": errors,
        "p50": p50,
        "p99": p99,
    }


def floor() -> dict[str, float]:
    """Count what a bare loop of `broadcast_message` feeds to one subscriber."""
    with rig.broker(FEEDER) as (port, broker):
        before = rig.cpu_seconds(broker.pid)
        counted = result(counting(port, SECONDS))
        used = rig.cpu_seconds(broker.pid) - before
    return {"per_second": counted["received"] / counted["seconds"], "us": used / counted["received"] * 1e6}


def hooked(connections: int, *, pair: bool = False) -> dict[str, float]:
    """Load the hook and count at the subscriber."""
    port = free_port()
    with rig.bridge_broker(route(port)) as (mqtt, broker):
        subscriber = counting(mqtt, SECONDS + 2)
        other = load("pair", mqtt, SECONDS) if pair else None
        before = rig.cpu_seconds(broker.pid)
        measured = wrk(port, connections, SECONDS)
        used = rig.cpu_seconds(broker.pid) - before
        counted = result(subscriber)
        measured["us"] = used / measured["requests"] * 1e6
        # wrk cuts off what is under way when its time is over: those were taken, and their answers not read.
        measured["lost"] = max(0.0, measured["requests"] - measured["errors"] - counted["received"])
        measured["extra"] = counted["received"] - measured["requests"] - connections
        if other is not None:
            measured["pair_p99"] = rig.quantile(result(other)["trips"], 0.99)
    return measured


def throughput() -> None:
    """Requests a second with 16 and 32 connections, CPU a request, the others' round trip."""
    for connections in (16, 32):
        floors, hooks = [], []
        for _ in range(RUNS):
            floors.append(floor())
            hooks.append(hooked(connections))
        ratios = [h["per_second"] / f["per_second"] for h, f in zip(hooks, floors, strict=True)]
        name = f"{connections} connections"
        rates = (rig.median([run["per_second"] for run in runs]) for runs in (floors, hooks))
        rig.report(f"{name}: floor / requests a second", " / ".join(f"{rate:.0f}" for rate in rates))
        rig.report("  ratio", f"{rig.median(ratios):.2f}", "at least 0.45")
        used = [rig.median([run["us"] for run in runs]) for runs in (floors, hooks)]
        rig.report("  broker CPU, floor / a request (us)", f"{used[0]:.0f} / {used[1]:.0f}")
        rig.report("  ratio", f"{used[1] / used[0]:.2f}", "at most 1.6")
        wrong = [int(sum(run[key] for run in hooks)) for key in ("errors", "lost")]
        rig.report("  errors / answered and lost", f"{wrong[0]} / {wrong[1]}", "0 / 0")
        twice = int(max(0, *(run["extra"] for run in hooks)))
        rig.report("  published twice", str(twice), "0")
    paired = [hooked(32, pair=True)["pair_p99"] for _ in range(RUNS)]
    rig.report("another pair's p99 under that load (ms)", f"{rig.median(paired):.1f}", "under 10")


def latency() -> None:
    """Latency at 200 requests a second, beside a Falcon application on waitress that does nothing."""
    ours, bare = [], []
    for _ in range(RUNS):
        port = free_port()
        with rig.bridge_broker(route(port)):
            ours.append(result(load("post", port, SECONDS, 200))["latencies"])
        with rig.process("-m", "tests.benchmarks.floor", stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            bare.append(result(load("post", int(running.stdout.readline()), SECONDS, 200))["latencies"])
    for share, wanted in ((0.5, 1.5), (0.99, 10.0)):
        pair = [rig.median([rig.quantile(run, share) for run in runs]) for runs in (bare, ours)]
        name = f"p{share * 100:.0f} at 200 requests/s, bare Falcon / ours (ms)"
        rig.report(name, f"{pair[0]:.2f} / {pair[1]:.2f}", f"ours at most {wanted}")


def memory(requests: int = 200_000, connections: int = 10_000) -> None:
    """Memory over many requests and many connections."""
    port = free_port()
    with rig.bridge_broker(route(port)) as (_, broker):
        processes = [broker.pid, *rig.children(broker.pid)]
        wrk(port, 16, 1)
        before = [rig.resident_mb(pid) for pid in processes]
        done = 0.0
        while done < requests:
            done += wrk(port, 16, 5)["requests"]
        result(load("connect", port, connections))
        after = [rig.resident_mb(pid) for pid in processes]
    grown = ", ".join(f"{a - b:+.1f}" for a, b in zip(after, before, strict=True))
    name = f"memory after {done:,.0f} requests, {connections:,} connections (MB)"
    rig.report(name, grown, "within 20")


def tls() -> None:
    """HTTPS with keep-alive against HTTP."""
    files: dict[str, Any] = dict.fromkeys(("server_certfile", "server_keyfile"), str(CERTIFICATES / "server.pem"))
    ratios = []
    for _ in range(RUNS):
        port = free_port()
        with rig.bridge_broker(route(port)):
            plain = wrk(port, 16, SECONDS)["per_second"]
        with rig.bridge_broker(route(port), **files):
            ratios.append(wrk(port, 16, SECONDS, "https")["per_second"] / plain)
    rig.report("TLS with keep-alive: share of the plain rate", f"{rig.median(ratios):.2f}", "at least 0.6")


SECTIONS: dict[str, Callable[[], None]] = {
    "throughput": throughput,
    "latency": latency,
    "memory": memory,
    "tls": tls,
}

if __name__ == "__main__":
    if shutil.which("wrk") is None:
        sys.exit("this benchmark needs wrk: apt-get install wrk")
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
