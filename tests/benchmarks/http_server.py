"""Server mode's HTTP side alone, beside uvicorn (httptools) and aiohttp.web with applications that do nothing.

    python -m tests.benchmarks.http_server

needs wrk, openssl and the extra `benchmark`, and prints the table. Ours does all that it does in a bridge: a request is
published to another process, as to an MQTT broker, and answered once that has acknowledged it. The others only answer.
"""

import asyncio
import contextlib
import itertools
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from amqtt_rest_bridge.engine.needs import CallRun, Host, Limits, RequestRun
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server_mode import ServerMode
from amqtt_rest_bridge.http.server import HttpServer, PortLimits
from amqtt_rest_bridge.http.server_tls import TlsFiles
from amqtt_rest_bridge.lot.model import EventName, Message, Method, Publication, RestApiConfig, Route, ServerEvent
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, parse
from tests.benchmarks.rig import await_port, cpu_seconds, median, process, quantile, report, resident_mb
from tests.support.ports import free_port

SECONDS = 4
ROUNDS = 3
WRK = """wrk.method = "POST"; wrk.body = string.rep("x", 100); wrk.headers["Content-Type"] = "text/plain"
"""
LATEST = b'"' + b"x" * 36_000 + b'"'
ANSWER = b'{"status": "published", "topic": "hook/received"}'


class LoopClock:
    """The loop's time; see `engine.needs.Clock`."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def later(self, seconds: float, action: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, action)


class Beside(asyncio.Protocol):
    """A broker in another process, which sends back what it is sent; a reply comes after a second."""

    def __init__(self) -> None:
        self.mode: ServerMode | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)
        self._data = b""

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        subprocess.Popen(["/bin/cat"], stdin=theirs.fileno(), stdout=theirs.fileno())
        theirs.close()
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    def publish(
        self, publication: Publication, *, hops: int, route: str, wait: bool = True, mark: str = ""
    ) -> "asyncio.Future[None]":
        number, loop = next(self._numbers), asyncio.get_running_loop()
        future = self._waiting[number] = loop.create_future()
        assert self._transport is not None
        payload = publication.payload
        self._transport.write(b"%b%b%b" % (len(payload).to_bytes(4), number.to_bytes(8), payload))
        if publication.properties is not None and publication.properties.response_topic is not None:
            message = Message(publication.properties.response_topic, b"reply", 0.0, publication.properties)
            loop.call_later(1.0, self._see, message)
        return future

    def _see(self, message: Message) -> None:
        assert self.mode is not None
        self.mode.see(message)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 12 and len(self._data) >= (end := 12 + int.from_bytes(self._data[:4])):
            self._waiting.pop(int.from_bytes(self._data[4:12])).set_result(None)
            self._data = self._data[end:]

    def connect(self, config: RestApiConfig, server: str) -> Any:
        raise NotImplementedError

    def answer(self, key: bytes) -> bytes | None:
        return None

    def keep(self, key: bytes, seconds: float, answer: bytes) -> None:
        pass


class Recent:
    """Records that keep the last request."""

    last: RequestRun | None = None

    def forget_call(self, number: int) -> None:
        """Ignore it."""

    def note_error(self, route: str, code: str, message: str, now: float) -> None:
        """Ignore it."""

    def note_request(self, run: RequestRun) -> None:
        self.last = run

    def note_call(self, run: CallRun) -> None:
        pass

    def replayed_run(self, event: EventName, message: Message) -> str | None:
        """None was kept."""

    def note_unmatched(self, message: Message) -> None:
        pass


def routes() -> list[Route]:
    topic, reply = (parse(text, Place.TOPIC, Mode.SERVER) for text in ("hook/received", "answers/{request_id}"))
    events = (
        ServerEvent("Hook", Method.POST, "/hook", destination_topic=topic),
        ServerEvent("Last", Method.GET, "/last", source_topic="last"),
        ServerEvent("Live", Method.GET, "/live", source_topic="live", stream=True),
        ServerEvent("Ask", Method.POST, "/ask", destination_topic=topic, reply_topic=reply),
    )
    guarded = (ServerEvent("Guarded", Method.POST, "/guarded", destination_topic=topic),)
    return [
        Route("Hooks", RestApiConfig(enable_server=True), server_events=events),
        Route("Guarded", RestApiConfig(enable_server=True, server_token=("token",)), server_events=guarded),
    ]


async def start_ours(sock: socket.socket, *files: str) -> ServerMode:
    """Serve on a socket; HTTPS where files are given."""
    beside = Beside()
    await beside.start()
    host = Host(beside, beside.connect, beside, LoopClock(), lambda: 0.5, Limits(), records=Recent())
    outcomes = Outcomes(host)
    mode = beside.mode = ServerMode(host, outcomes)
    outcomes.use_routes(routes())
    mode.use_routes(routes())
    mode.see(Message("last", LATEST, 0.0))
    mode.see(Message("live", b"0", 0.0))
    tls = TlsFiles(*files) if files else None
    server = HttpServer(sock, mode.application(8080), tls=tls, limits=PortLimits(connections=5000, waiting=5000))
    server.start()
    return mode


async def start_aiohttp(sock: socket.socket) -> None:
    """Serve an application that reads the body and answers."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_post("/hook", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock).start()


async def start_uvicorn(sock: socket.socket) -> None:
    """Serve the same."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})

    config = uvicorn.Config(app, http="httptools", loop="none", lifespan="off", access_log=False, log_level="error")
    await uvicorn.Server(config).serve([sock])


def serve(kind: str, port: int, *files: str) -> None:
    """Serve until killed: `ours`, `aiohttp` or `uvicorn`; with `+` behind it on uvloop."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # by which asyncio knows TCP_NODELAY
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(1024)
    start: dict[str, Callable[..., Awaitable[Any]]] = {
        "ours": start_ours, "aiohttp": start_aiohttp, "uvicorn": start_uvicorn,
    }  # fmt: skip

    async def run() -> None:
        kept = await start[kind.rstrip("+")](sock, *files)
        await asyncio.Event().wait()
        del kept

    if kind.endswith("+"):
        import uvloop

        uvloop.run(run())
    else:
        asyncio.run(run())


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
    """Report the medians of the rounds' ratios."""
    pairs = list(zip(loads[one], loads[other], strict=True))
    rates, cpus = median([a.rate / b.rate for a, b in pairs]), median([a.cpu / b.cpu for a, b in pairs])
    report(f"  {one} / {other}", f"rate {rates:.2f}, CPU {cpus:.2f}", wanted)


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
        servers = {kind: stack.enter_context(serving(kind)) for kind in ("ours", "uvicorn", "aiohttp")}
        faster = {kind: stack.enter_context(serving(kind)) for kind in ("ours+", "uvicorn+")}
        tls = stack.enter_context(serving("ours", *certificate(folder)))
        ours = servers["ours"]
        for connections in (1, 16, 64):
            loads = compare(connections, servers | ({"TLS": tls} if connections == 16 else {}))
            ratio(loads, "ours", "uvicorn")
            ratio(loads, "ours", "aiohttp")
            if connections == 16:
                ratio(loads, "TLS", "ours", "rate >= 0.6")
                ratio(compare(connections, faster), "ours+", "uvicorn+")
        report("TLS connections, one after the other", f"{handshakes(tls[0]):,.0f} a second")
        report_latency("200 requests/s, uvicorn", at_a_rate(servers["uvicorn"][0]))
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
