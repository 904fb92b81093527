"""Server mode's HTTP side alone, beside uvicorn (httptools) and aiohttp.web with applications that do nothing.

    python -m tests.benchmarks.http_server

needs wrk, openssl and the extra `benchmark`, and prints the table. Ours does all that it does in a bridge: a request is
published to another process, as to an MQTT broker, and answered once that has acknowledged it. The others only answer.
"""

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.engine.needs import Host, Limits
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.server_mode import ServerMode
from amqtt_rest_bridge.http.server import HttpServer, PortLimits
from amqtt_rest_bridge.http.server_tls import TlsFiles
from amqtt_rest_bridge.lot.model import Message, Method, Publication, RestApiConfig, Route, RunIds, ServerEvent
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, parse
from amqtt_rest_bridge.times import LoopClock
from tests.benchmarks.rig import await_port, cpu_seconds, median, process, quantile, report, wrk
from tests.support.ports import free_port

SECONDS = 4
ROUNDS = 3
LATEST = b'"' + b"x" * 36_000 + b'"'
ANSWER = b'{"status": "published", "topic": "hook/received"}'


class Beside(asyncio.Protocol):
    """A broker in another process, which sends back what it is sent."""

    def __init__(self) -> None:
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
        return future

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


def routes() -> list[Route]:
    topic = parse("hook/received", Place.TOPIC, Mode.SERVER)
    events = (
        ServerEvent("Hook", Method.POST, "/hook", destination_topic=topic),
        ServerEvent("Last", Method.GET, "/last", source_topic="last"),
        ServerEvent("Live", Method.GET, "/live", source_topic="live", stream=True),
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
    records = RunRecorder(RunIds())
    records.use_routes(routes())
    host = Host(beside, beside.connect, beside, LoopClock(), lambda: 0.5, Limits(), records=records)
    outcomes = Outcomes(host)
    mode = ServerMode(host, outcomes)
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

    def __init__(self, port: int, pid: int, connections: int, scheme: str = "http") -> None:
        before = cpu_seconds(pid)
        measured = wrk(f"{scheme}://127.0.0.1:{port}/hook", connections, SECONDS)
        assert measured["errors"] == 0, measured
        self.rate = measured["per_second"]
        self.cpu = (cpu_seconds(pid) - before) / measured["requests"] * 1e6


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


def certificate(folder: str) -> tuple[str, str]:
    files = str(Path(folder, "c.pem")), str(Path(folder, "k.pem"))
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=x"
    subprocess.run([*command.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def main() -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        servers = {kind: stack.enter_context(serving(kind)) for kind in ("ours", "uvicorn", "aiohttp")}
        faster = {kind: stack.enter_context(serving(kind)) for kind in ("ours+", "uvicorn+")}
        tls = stack.enter_context(serving("ours", *certificate(folder)))
        for connections in (1, 16, 64):
            loads = compare(connections, servers | ({"TLS": tls} if connections == 16 else {}))
            ratio(loads, "ours", "uvicorn")
            ratio(loads, "ours", "aiohttp")
            if connections == 16:
                ratio(loads, "TLS", "ours", "rate >= 0.6")
                ratio(compare(connections, faster), "ours+", "uvicorn+")
        for kind in ("uvicorn", "ours"):
            took = at_a_rate(servers[kind][0])
            report(f"200 requests/s, {kind}", f"p50 {quantile(took, 0.5):.2f} ms, p99 {quantile(took, 0.99):.2f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        main()
