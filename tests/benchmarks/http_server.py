"""Server mode's HTTP side alone: our server and application beside a Falcon app on plain waitress that does nothing.

`python -m tests.benchmarks.http_server` (needs wrk and openssl) prints the table. Ours does all it does in a bridge
process, with an engine that hands each publication to another process over a socket pair, as the link does.
"""

import contextlib
import logging
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon
import waitress

from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.bridge.server.broker_access import AwaitedReply, BrokerAccess, TopicPayload, Wake
from amqtt_rest_bridge.bridge.timers import Timers
from amqtt_rest_bridge.http_server import HttpServer, Limits, TlsFiles
from amqtt_rest_bridge.link.bridge_end import BridgeEnd, Entry
from amqtt_rest_bridge.link.frames import Publications
from amqtt_rest_bridge.model import Method, Publication, RestApiConfig, Route, ServerEvent
from amqtt_rest_bridge.placeholders import Mode, Place, parse
from tests.benchmarks.rig import await_port, cpu_seconds, median, process, quantile, report, resident_mb
from tests.support.ports import free_port

SECONDS = 4
ROUNDS = 3
WRK = """wrk.method = "POST"; wrk.body = string.rep("x", 100); wrk.headers["Content-Type"] = "text/plain"
"""
LATEST = TopicPayload(b'"' + b"x" * 36_000 + b'"')


class Beside(BrokerAccess):
    """Every publication goes to another process, which throws it away; a reply takes a second."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        subprocess.Popen(["/bin/cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        self._end = BridgeEnd(ours)
        self._timers = Timers()
        super().__init__(self._end)

    def publish(self, publication: Publication) -> bool:
        self._end.send(Publications([publication]))
        return True

    def enqueue(self, publication: Publication, wake: Wake, _: object = None) -> Entry:
        entry = Entry(publication, 0)
        entry.sent = entry.outcome = self.publish(publication)
        return entry

    def latest(self, topic_filter: str) -> TopicPayload | None:
        return LATEST

    @contextlib.contextmanager
    def expect(
        self, topic: str, wake: Wake, correlation: bytes | None = None, *, takes_unmarked: bool = True
    ) -> Iterator[AwaitedReply]:
        reply = AwaitedReply(wake, correlation, takes_unmarked=takes_unmarked)
        self._timers.after(1.0, lambda: reply.arrive(b"reply"))
        yield reply


def serve(kind: str, port: int, *files: str) -> None:
    """Serve until killed: `bare`, or `ours`, which speaks HTTPS when it is given files."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(1024)
    if kind == "bare":
        app = falcon.App()
        app.add_sink(_nothing, "/")
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        waitress.serve(app, sockets=[sock], threads=4, asyncore_use_poll=True, connection_limit=5000)
        return
    topic, reply = (parse(text, Place.TOPIC, Mode.SERVER) for text in ("hook/received", "answers/{request_id}"))
    events = (
        ServerEvent("Hook", Method.POST, "/hook", destination_topic=topic),
        ServerEvent("Last", Method.GET, "/last", source_topic="last"),
        ServerEvent("Ask", Method.POST, "/ask", destination_topic=topic, reply_topic=reply),
    )
    routes = [Route("Hooks", RestApiConfig(enable_server=True), server_events=events)]
    tls = TlsFiles(*files) if files else None
    server = HttpServer(sock, RouteApplication(routes, Beside()), tls=tls, limits=Limits(connections=5000))
    server.start()
    threading.Event().wait()


def _nothing(req: falcon.Request, resp: falcon.Response, **_: Any) -> None:
    req.env["wsgi.input"].read()
    resp.data = b'{"status": "published", "topic": "hook/received"}'


@contextlib.contextmanager
def serving(kind: str, *files: str) -> Iterator[tuple[int, int]]:
    """Run `serve` in a process; gives its port and process id."""
    port = free_port()
    with process("-m", "tests.benchmarks.http_server", "serve", kind, str(port), *files) as running:
        await_port(port, running)
        yield port, running.pid


class Load:
    """Requests a second, and CPU microseconds a request, of one wrk run."""

    def __init__(self, port: int, pid: int, connections: int, scheme: str = "http", path: str = "/hook") -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(WRK)
            script.flush()
            before = cpu_seconds(pid)
            command = ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}", "-s", script.name]
            ran = subprocess.run(
                [*command, f"{scheme}://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True
            )
        found = re.search(r"(\d+) requests in", ran.stdout)
        assert found is not None, ran.stdout
        assert "Non-2xx" not in ran.stdout, ran.stdout
        assert "Socket errors" not in ran.stdout, ran.stdout
        self.requests = int(found[1])
        self.rate = self.requests / SECONDS
        self.cpu = (cpu_seconds(pid) - before) / self.requests * 1e6


def compare(connections: int, servers: dict[str, tuple[int, int]]) -> dict[str, list[Load]]:
    """Load the servers in turns, so that noise hits all alike."""
    loads: dict[str, list[Load]] = {name: [] for name in servers}
    for _ in range(ROUNDS):
        for name, (port, pid) in servers.items():
            loads[name].append(Load(port, pid, connections, "https" if name == "TLS" else "http"))
    for name, runs in loads.items():
        rate, cpu = median([run.rate for run in runs]), median([run.cpu for run in runs])
        report(f"POST of 100 bytes, {connections} connections, {name}", f"{rate:,.0f} requests/s, {cpu:.0f} us CPU")
    return loads


def ratio(loads: dict[str, list[Load]], one: str, other: str, wanted: str = "") -> None:
    """Report the median of the rounds' ratios."""
    ratios = [a.rate / b.rate for a, b in zip(loads[one], loads[other], strict=True)]
    report(f"  {one} / {other}", f"{median(ratios):.2f}", wanted)


def at_a_rate(port: int, per_second: int = 200, seconds: float = 10.0) -> list[float]:
    """Send requests at a steady rate over one connection; the time of each in milliseconds."""
    request = b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
    took = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = time.perf_counter()
        for _ in range(int(per_second * seconds)):
            due += 1 / per_second
            threading.Event().wait(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            sock.sendall(request)
            while not sock.recv(4096).endswith(b"}"):
                pass
            took.append((time.perf_counter() - began) * 1000)
    return took


def report_latency(name: str, took: list[float], wanted: str = "") -> None:
    report(name, f"p50 {quantile(took, 0.5):.2f} ms, p99 {quantile(took, 0.99):.2f} ms", wanted)


def idle_connections(port: int, pid: int, count: int = 1000) -> None:
    """Load a server that has idle connections besides."""
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    load = Load(port, pid, 16)
    report(f"16 connections beside {count:,} idle ones", f"{load.rate:,.0f} requests/s, {load.cpu:.0f} us CPU")
    for sock in idle:
        sock.close()


def memory(port: int, pid: int) -> None:
    """Report how the process grows over many requests and connections."""
    Load(port, pid, 32)
    before, requests = resident_mb(pid), 0
    while requests < 200_000:
        requests += Load(port, pid, 32).requests
    for _ in range(10_000):
        socket.create_connection(("127.0.0.1", port)).close()
    report(f"memory, {requests:,} requests and 10,000 connections", f"+{resident_mb(pid) - before:.1f} MiB", "<= 20")


def unread_callers(port: int, pid: int, count: int = 500) -> None:
    """Report what callers cost that send 585 GETs in one piece and read nothing: the others' latency, and memory."""
    report_latency("200 requests/s before there are unread callers", at_a_rate(port))
    before = resident_mb(pid)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            sock.sendall(b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n" * 585)
        took = at_a_rate(port)
    report_latency(f"200 requests/s beside {count} unread callers", took, "unchanged")
    report(f"memory for {count} unread callers of 36 kB", f"+{resident_mb(pid) - before:.1f} MiB", "<= 50")


def certificate(folder: str) -> tuple[str, str]:
    files = str(Path(folder, "c.pem")), str(Path(folder, "k.pem"))
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=x"
    subprocess.run([*command.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def handshakes(port: int, count: int = 300) -> float:
    """Return how many new TLS connections a second are served, one after the other."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    began = time.perf_counter()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port)) as sock, context.wrap_socket(sock) as tls:
            tls.sendall(b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n")
            tls.recv(4096)
    return count / (time.perf_counter() - began)


def main() -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        bare, ours = stack.enter_context(serving("bare")), stack.enter_context(serving("ours"))
        tls = stack.enter_context(serving("ours", *certificate(folder)))
        for connections in (1, 16, 32, 64):
            loads = compare(connections, {"bare": bare, "ours": ours} | ({"TLS": tls} if connections == 16 else {}))
            ratio(loads, "ours", "bare", ">= 1")
            if connections == 16:
                ratio(loads, "TLS", "ours", ">= 0.6")
        report("TLS connections, one after the other", f"{handshakes(tls[0]):,.0f} a second")
        report_latency("200 requests/s, bare", at_a_rate(bare[0]))
        report_latency("200 requests/s, ours", at_a_rate(ours[0]), "<= 1.5, <= 10 ms")
        waiting = stack.enter_context(serving("ours"))
        threading.Thread(target=Load, args=(*waiting, 64, "http", "/ask"), daemon=True).start()
        report_latency("200 requests/s beside 64 waiting ones, ours", at_a_rate(waiting[0], seconds=SECONDS))
        idle_connections(*ours)
        unread_callers(*stack.enter_context(serving("ours")))
        memory(*ours)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        main()
