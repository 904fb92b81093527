"""What the tests of the HTTP server share: a listening port, and a client that sends given bytes."""

import contextlib
import json
import select
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import Any

from amqtt_rest_bridge.bridge.server.app import RouteApplication
from amqtt_rest_bridge.http_server import AccessLog, HttpServer, Limits, TlsFiles
from amqtt_rest_bridge.http_server.wrong_credentials import WrongCredentials
from amqtt_rest_bridge.model import Route, ServerEvent
from amqtt_rest_bridge.settings import BridgeSettings
from tests.support.server_mode import FakeBroker, FakeReply, event, route

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


class Served:
    """An HTTP server at work."""

    def __init__(self, sock: socket.socket, server: HttpServer, broker: FakeBroker) -> None:
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
        """Serve other routes on the same fake engine."""
        self.server.replace_app(RouteApplication(routes, self.broker, BridgeSettings(max_body_bytes=1000)))

    def waiting(self) -> FakeReply:
        """Return the place of the next request that waits for a reply."""
        return self.broker.waiting.get(timeout=PATIENCE)

    @property
    def connections(self) -> list[Any]:
        """The open connections; this and the next two are the only look behind the door of HttpServer."""
        return list(self.server._port.active_channels.values())

    @property
    def in_turn(self) -> int:
        """How many requests wait for their replies."""
        return len(self.server._port.waiting.exchanges)

    @property
    def is_stopping(self) -> bool:
        return self.server._port.closing is not None

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
def served(
    *routes: Route,
    tls: TlsFiles | None = None,
    limits: Limits | None = None,
    max_body_bytes: int = 1000,
    access_log: AccessLog | None = None,
    wrong_credentials: WrongCredentials | None = None,
) -> Iterator[Served]:
    """Serve routes (`hook_route()` without any) on a free port."""
    broker = FakeBroker()
    broker.changed("last", "last", b"21.5")
    settings = BridgeSettings(max_body_bytes=max_body_bytes)
    app = RouteApplication(routes or [hook_route()], broker, settings, wrong_credentials=wrong_credentials)
    with listening_socket() as sock:
        server = HttpServer(
            sock, app, tls=tls, max_body_bytes=max_body_bytes, access_log=access_log, limits=limits or Limits()
        )
        server.start()
        try:
            yield Served(sock, server, broker)
        finally:
            server.stop(0)


def certificate(folder: Path, name: str = "server") -> TlsFiles:
    """Make a self-signed certificate for localhost with the openssl program."""
    certfile, keyfile = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        *(
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ),
        *(
            "-keyout",
            str(keyfile),
            "-out",
            str(certfile),
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=DNS:localhost",
        ),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return TlsFiles(str(certfile), str(keyfile))
