"""Floods of callers: how long another caller waits for its answer, and how late messages are taken, meanwhile.

    python -m tests.benchmarks.flood [SECONDS]

Server mode alone, as in `http_server`, in one process; callers, floods and the source of messages are others. The other
caller sends 200 requests a second and is answered once a broker has acknowledged what it sent. The source sends 1,000
messages a second, as an MQTT broker does, over a socket of the same event loop: they show what a flood costs MQTT.
"""

import asyncio
import contextlib
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from amqtt_rest_bridge.engine.server_mode import ServerMode
from amqtt_rest_bridge.lot.model import Message
from tests.benchmarks.http_server import at_a_rate, start_ours
from tests.benchmarks.rig import await_port, process, quantile, report
from tests.support.ports import free_port

_MESSAGE: Final = 32  # bytes
_TOO_LARGE: Final = b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
_FLOODS: Final = {
    "401": b"POST /guarded HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
    "401 for a wrong token": b"POST /guarded HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n",
    "404": b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n",
    "413": _TOO_LARGE,
    "200, pipelined": b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
}


class Intake(asyncio.Protocol):
    """Takes messages, whose payloads are the times at which they were sent; `late` is shared by all connections."""

    def __init__(self, mode: ServerMode, late: list[float]) -> None:
        self._mode = mode
        self._data = b""
        self._late = late

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"?":  # a question for the figures since the last one
            late = self._late or [0.0]
            self._transport.write(b"%d %.3f %.3f" % (len(late), quantile(late, 0.5), quantile(late, 0.99)))
            self._late.clear()
            return
        self._data += data
        while len(self._data) >= _MESSAGE:
            payload, self._data = self._data[:_MESSAGE], self._data[_MESSAGE:]
            self._late.append((time.time() - float(payload)) * 1000)
            self._mode.see(Message("live", payload, 0.0))


def serve(port: int, intake: int) -> None:
    """Serve until killed."""

    async def run() -> None:
        mode = await start_ours(socket.create_server(("127.0.0.1", port), backlog=1024))
        late: list[float] = []
        server = await asyncio.get_running_loop().create_server(lambda: Intake(mode, late), "127.0.0.1", intake)
        await server.serve_forever()

    asyncio.run(run())


def publish(port: int, seconds: float, rate: int = 1000) -> None:
    """Send messages at a steady rate."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            sock.sendall(f"{time.time():.6f}".encode().ljust(_MESSAGE))


def repeat(port: int, request: bytes, seconds: float, count: int = 256) -> int:
    """Send a request over each of `count` connections again and again, connect again where one ends; count answers."""
    selector, answers, end = selectors.DefaultSelector(), 0, time.monotonic() + seconds

    def connect() -> None:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(request)
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)

    for _ in range(count):
        connect()
    while time.monotonic() < end:
        for key, _ in selector.select(0.1):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            with contextlib.suppress(BlockingIOError):
                try:
                    data = sock.recv(65_536)
                    if data and b"Connection: close" not in data:
                        answers += 1
                        sock.sendall(request)
                        continue
                except ConnectionError:
                    data = b""
                answers += bool(data)
                selector.unregister(sock)
                sock.close()
                connect()
    for key in list(selector.get_map().values()):
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
    return answers


def drip(port: int, seconds: float, count: int = 1000) -> int:
    """Send a byte a second over each of `count` connections."""
    request = b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nX: " + b"x" * 1000
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        for at in range(sent, min(int(passed * count), count * len(request))):
            socks[at % count].sendall(request[at // count : at // count + 1])
            sent += 1
        time.sleep(0.001)
    for sock in socks:
        sock.close()
    return sent


def follow(port: int, seconds: float, count: int = 1000) -> int:
    """Read as many streams; return how many bytes came."""
    selector, read, end = selectors.DefaultSelector(), 0, time.monotonic() + seconds
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        selector.register(sock, selectors.EVENT_READ)
    while time.monotonic() < end:
        for key, _ in selector.select(0.1):
            assert isinstance(key.fileobj, socket.socket)
            read += len(key.fileobj.recv(65_536))
    for key in list(selector.get_map().values()):
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
    return read


def measure(name: str, port: int, intake: int, seconds: float, others: ProcessPoolExecutor) -> None:
    """Report the other caller's times and the intake's."""
    with socket.create_connection(("127.0.0.1", intake)) as figures:
        figures.sendall(b"?")
        figures.recv(100)
        source = others.submit(publish, intake, seconds)
        took = others.submit(at_a_rate, port, 200, seconds).result()
        source.result()
        figures.sendall(b"?")
        count, p50, p99 = figures.recv(100).decode().split()
    caller = f"p50 {quantile(took, 0.5):.2f} ms, p99 {quantile(took, 0.99):.2f} ms"
    report(name, caller, f"messages: {float(count) / seconds:.0f}/s, p50 {p50} ms late, p99 {p99} ms")


@contextlib.contextmanager
def flooding(others: ProcessPoolExecutor, flood: Callable[..., int], *arguments: object) -> Iterator[None]:
    """Run a flood meanwhile."""
    running = others.submit(flood, *arguments)
    time.sleep(1.5)
    yield
    print(f"  {running.result():,} answers, bytes sent or bytes read", flush=True)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    port, intake, long = free_port(), free_port(), seconds + 3
    command = ("-m", "tests.benchmarks.flood", "serve", str(port), str(intake))
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(process(*command, stderr=subprocess.DEVNULL))
        others = stack.enter_context(ProcessPoolExecutor(4, get_context("spawn")))
        await_port(port, running)
        await_port(intake, running)
        list(others.map(abs, range(4)))  # starts them
        measure("before", port, intake, seconds, others)
        for name, request in _FLOODS.items():
            with flooding(others, repeat, port, request, long):
                measure(f"256 connections that repeat {name}", port, intake, seconds, others)
        with flooding(others, drip, port, long):
            measure("1,000 connections that send a byte a second", port, intake, seconds, others)
        with flooding(others, follow, port, long):
            measure("1,000 streams of 1,000 messages/s", port, intake, seconds, others)
        measure("after", port, intake, seconds, others)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
