"""What the benchmarks share: routes, processes on free ports, their load, CPU and memory of a process, medians."""

import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from amqtt_rest_bridge.settings import Settings
from tests.support.ports import free_port

ANONYMOUS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
BRIDGE = "amqtt_rest_bridge.plugin.RestBridgePlugin"
OUTSTANDING = 64
WORKERS = Settings.workers
SLOW = 0.05  # seconds that a slow HTTP server takes


def client_route(port: int, name: str = "R", source: str = "in") -> str:
    """Return a route that posts what comes on `in`, and publishes the answer on `out`."""
    return f"""
DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
        WITH DEFAULT_CONTENT_TYPE "application/octet-stream"
    ADD EVENT E
        WITH SOURCE_TOPIC "{source}" WITH METHOD "POST" WITH ENDPOINT "/echo" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"
"""


def server_route(port: int) -> str:
    """Return a route that publishes on `out` what is posted to `/hook`."""
    return f"""
DEFINE ROUTE Hook WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "out"
"""


@contextlib.contextmanager
def process(*arguments: str, **keywords: Any) -> Iterator[subprocess.Popen[str]]:
    """Run `python ARGUMENTS` until the block ends."""
    running = subprocess.Popen([sys.executable, *arguments], text=True, **keywords)
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        if running.stdout is not None:
            running.stdout.close()


@contextlib.contextmanager
def echo_server(delay: float = 0.0, port: int = 0, hangs: float = 0.0) -> Iterator[int]:
    """Run the HTTP target; gives its port. With `hangs` it answers nothing for the first seconds after its start."""
    with process("-m", "tests.benchmarks.target", "echo", str(delay), str(port), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        found = int(running.stdout.readline())
        if hangs:
            running.send_signal(signal.SIGSTOP)
            answering = threading.Timer(hangs, running.send_signal, (signal.SIGCONT,))
            answering.start()
        yield found


@contextlib.contextmanager
def broker(
    plugins: dict[str, Any], log: Path | None = None, tree: Path | None = None
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a broker with plugins (beside anonymous access); gives its MQTT port and process once it accepts.

    `tree` is the checkout whose bridge it runs, this one by default.
    """
    port = free_port()
    config = {"listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}, "plugins": ANONYMOUS | plugins}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder, "broker.yaml")
        path.write_text(json.dumps(config))
        output = stack.enter_context((log or Path(folder, "log")).open("w"))
        command = ("-c", "from amqtt.scripts.broker_script import main; main()", "-c", str(path))
        environment = {**os.environ, "PYTHONPATH": str(tree)} if tree else None
        running = stack.enter_context(process(*command, stderr=output, stdout=output, env=environment, cwd=tree))
        await_port(port, running)
        yield port, running


def bridge_broker(
    routes: str, log: Path | None = None, tree: Path | None = None, **settings: Any
) -> contextlib.AbstractContextManager[tuple[int, subprocess.Popen[str]]]:
    """Run a broker with the bridge and the given route texts."""

    @contextlib.contextmanager
    def run() -> Iterator[tuple[int, subprocess.Popen[str]]]:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "routes.lot").write_text(routes)
            with broker({BRIDGE: {"routes": folder, "reload_seconds": 0, **settings}}, log, tree) as started:
                yield started

    return run()


def load(mode: str, *numbers: float) -> subprocess.Popen[str]:
    """Start a process of `tests.benchmarks.load`."""
    command = [sys.executable, "-m", "tests.benchmarks.load", mode, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def counting(port: int, seconds: float) -> subprocess.Popen[str]:
    """Start a process that counts what arrives on `out`, and wait until it has subscribed."""
    running = load("count", port, seconds)
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


def result(running: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for what a load process measured."""
    output, _ = running.communicate()
    measured: dict[str, Any] = json.loads(output)
    return measured


def wrk(url: str, connections: int, seconds: float, *options: str) -> dict[str, float]:
    """Post 100 bytes over kept connections for some seconds; return requests, requests/s, and errors of the answers.

    `options` of wrk take the place of the script that posts.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write('wrk.method = "POST"; wrk.body = string.rep("x", 100); wrk.headers["Content-Type"] = "text/plain"')
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}", *(options or ("-s", script.name)), url]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) requests in ([\d.]+)s", output)
    assert found is not None, output
    errors = sum(map(int, re.findall(r"(?:connect|read|write|timeout|responses:?) (\d+)", output)))
    return {"requests": int(found[1]), "per_second": int(found[1]) / float(found[2]), "errors": errors}


def await_port(port: int, running: subprocess.Popen[str], seconds: float = 120.0) -> None:
    """Wait until something accepts on a port."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if running.poll() is not None:
            raise RuntimeError(f"the process ended with status {running.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
    raise TimeoutError(f"nothing accepts on port {port}")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, all threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the processes that a process started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def report(name: str, value: str, wanted: str = "") -> None:
    """Print one line of a benchmark's table."""
    print(f"{name:<58} {value:>30}  {wanted}", flush=True)
