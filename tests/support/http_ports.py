"""What the tests of the HTTP server share: a listening port, and a client that sends given bytes."""

import asyncio
import contextlib
import json
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

from amqtt_rest_bridge.engine.needs import Limits
from amqtt_rest_bridge.http import server as http
from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import Application, Refusal
from amqtt_rest_bridge.http.server import HttpServer
from amqtt_rest_bridge.http.server_tls import TlsFiles
from amqtt_rest_bridge.lot.model import Route, ServerEvent
from tests.support.answering import FakeBroker, FakeReply, RealClock, VirtualClock
from tests.support.server_mode import event, route

T = TypeVar("T")

PATIENCE = 20.0  # seconds before a test that hangs fails; nothing waits that long


@dataclass
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    headers: Message
    body: bytes
    version: int


def error_code_of(answer: Answer) -> str:
    """Take the code out of an error, after checking the form that every error has."""
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Request-ID"]
    error = json.loads(answer.body)["error"]
    assert set(error) == {"code", "message", "hint"}
    return str(error["code"])


class Raw:
    """A connection over which exact bytes go."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.sock = context.wrap_socket(sock, server_hostname="localhost") if context else sock
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, data: bytes) -> "Raw":
        self.sock.sendall(data)
        return self

    def answer(self, method: str = "POST") -> Answer:
        """Read one answer."""
        response = HTTPResponse(_Readable(self._file), method=method)  # type: ignore[arg-type]  # all it needs
        response.begin()
        body = response.read()
        assert isinstance(response.headers, HTTPMessage)
        return Answer(response.status, response.headers, body, response.version)

    def ask(self, data: bytes, method: str = "POST") -> Answer:
        return self.send(data).answer(method)

    def is_readable(self) -> bool:
        """Return whether an answer has come."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of what the peer sends; true when nothing more came."""
        return self.read_to_the_end() == b""

    def exactly(self, count: int) -> bytes:
        """Return so many bytes of what the peer sends."""
        data = b""
        while len(data) < count:
            data += self.sock.recv(count - len(data))
        return data

    def read_to_the_end(self) -> bytes:
        """Wait for the end of what the peer sends."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while more := self.sock.recv(10_000):
                data += more
        return data


class _Readable:
    """What `HTTPResponse` takes for a socket; keeps the file open for the next answer."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def makefile(self, _mode: str) -> Any:
        return _Unclosed(self._file)


class _Unclosed:
    def __init__(self, file: Any) -> None:
        self._file = file

    def close(self) -> None:
        """Leave the file open."""

    def flush(self) -> None:
        """Nothing to flush."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def post(path: str = "/hook", body: bytes = b"x", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


class Loop:
    """An event loop on a thread of its own; `make` makes it."""

    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop

    def __init__(self) -> None:
        self.loop = Loop.make()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def call(self, action: Callable[[], T]) -> T:
        """Return the result of a function that is called on the loop."""

        async def called() -> T:
            return action()

        return self.run(called())

    def close(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class RunningServer:
    """An HTTP server on the loop of a thread; its methods are for a test's thread."""

    def __init__(self, loop: Loop, sock: socket.socket, app: Application, **settings: Any) -> None:
        self.loop = loop
        self.server = loop.call(lambda: HttpServer(sock, app, **settings))
        self.port = self.server._port
        self.bound_port = self.server.bound_port

    def start(self) -> None:
        self.loop.call(self.server.start)

    def reload_tls(self) -> None:
        self.loop.call(self.server.reload_tls)

    def stop(self, grace: float, refusal: Refusal | None = None, serve_seconds: float = 0.0) -> None:
        self.loop.run(self.server.stop(grace, refusal, serve_seconds))


class Served:
    """An HTTP server at work."""

    def __init__(self, sock: socket.socket, server: RunningServer, broker: FakeBroker) -> None:
        self.sock = sock
        self.port: int = sock.getsockname()[1]
        self.server = server
        self.broker = broker

    def connect(self, context: ssl.SSLContext | None = None) -> Raw:
        return Raw(self.port, context)

    def ask(self, data: bytes, method: str = "POST") -> Answer:
        with self.connect() as raw:
            return raw.ask(data, method)

    def use(self, *routes: Route) -> None:
        """Serve other routes on the same fake broker."""
        self.server.loop.call(lambda: self.broker.mode.use_routes(routes))

    def waiting(self) -> FakeReply:
        """Return the next request that waits for a reply."""
        return self.broker.waiting.get(timeout=PATIENCE)

    def advance(self, seconds: float) -> None:
        """Move the time on; with a `VirtualClock`."""
        self.server.loop.call(lambda: self.broker.clock.advance(seconds))

    @property
    def connections(self) -> list[Any]:
        """The open connections; this and the next two are the only look behind the door of HttpServer."""
        return list(self.server.port.connections)

    @property
    def in_turn(self) -> int:
        """How many answers are being made."""
        return len(self.server.port.waiting)

    @property
    def is_stopping(self) -> bool:
        return self.server.port.closing is not None

    @property
    def bodies(self) -> list[bytes]:
        return [publication.payload for publication in self.broker.published]


def hook_route(**settings: Any) -> Route:
    """Three endpoints: /hook publishes, /last reads, /ask waits for a reply."""
    events: list[ServerEvent] = [
        event(name="Hook"),
        event("GET", "/last", None, name="Last", source="last"),
        event(endpoint="/ask", destination="questions", reply="answers/{request_id}", name="Ask"),
        event(endpoint="/one", destination="questions", reply="answers/all", name="One"),
    ]
    return route(*events, **settings)


def listening_socket() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(128)
    return sock


@contextmanager
def event_loop() -> Iterator[Loop]:
    """Run a loop on a thread."""
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()


@contextmanager
def serving(app: Application, sock: socket.socket | None = None, **settings: Any) -> Iterator[RunningServer]:
    """Serve an application on a socket, by default on a free port."""
    with event_loop() as loop, contextlib.ExitStack() as stack:
        listening = sock or stack.enter_context(listening_socket())
        server = RunningServer(loop, listening, app, **settings)
        server.start()
        try:
            yield server
        finally:
            server.stop(0)


@contextmanager
def served(
    *routes: Route,
    tls: TlsFiles | None = None,
    limits: http.PortLimits | None = None,
    max_body_bytes: int = 1000,
    access_log: AccessLog | None = None,
    clock: VirtualClock | None = None,
) -> Iterator[Served]:
    """Serve routes (`hook_route()` without any) on a free port; real time passes without a `clock`."""
    broker = FakeBroker(clock or RealClock(), Limits(max_body_bytes=max_body_bytes, max_message_bytes=16 << 20))
    broker.mode.use_routes(routes or [hook_route()])
    broker.reply("last", b"21.5")
    application = broker.mode.application(8080)
    settings = {"tls": tls, "max_body_bytes": max_body_bytes, "access_log": access_log, "limits": limits}
    with listening_socket() as sock, serving(application, sock, **settings) as server:
        broker.loop = server.loop.loop
        yield Served(sock, server, broker)


def certificate(folder: Path, name: str = "server") -> TlsFiles:
    """Make a self-signed certificate for localhost with the openssl program."""
    certfile, keyfile = folder / f"{name}.pem", folder / f"{name}.key"
    options = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -addext subjectAltName=DNS:localhost"
    command = ["openssl", "req", "-x509", *options.split()]
    command += ["-keyout", str(keyfile), "-out", str(certfile), "-subj", f"/CN={name}"]
    subprocess.run(command, check=True, capture_output=True)
    return TlsFiles(str(certfile), str(keyfile))
