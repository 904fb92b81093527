"""HTTP servers on loopback that do exactly what a test scripts, down to the byte: for the tests of the HTTP client."""

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from types import TracebackType

from tests.support.waiting import SECONDS

CERTIFICATES = Path(__file__).parent / "certificates"
AUTHORITY = str(CERTIFICATES / "authority.pem")

Script = Callable[["Peer"], None]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived."""

    line: str
    fields: tuple[tuple[str, str], ...]
    """Its headers, in the order in which they came."""
    body: bytes

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    @property
    def headers(self) -> Message:
        """The headers by their names in any case; None for one that did not come."""
        message = Message()
        for name, value in self.fields:
            message[name] = value
        return message

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key.lower() == name.lower()]


class Peer:
    """One accepted connection, seen from the server."""

    def __init__(self, sock: socket.socket, number: int, server: "Target") -> None:
        self.sock = sock
        self.number = number  # of the connection, from 1
        self.server = server
        self._data = b""

    def request(self) -> Seen | None:
        """Read a request and note it; None when the client has closed the connection."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            if not self._more():
                return None
        head, self._data = self._data[:end], self._data[end + 4 :]
        line, *lines = head.decode().split("\r\n")
        fields = tuple((name, value.strip()) for name, _, value in (text.partition(":") for text in lines))
        length = next((int(value) for name, value in fields if name.lower() == "content-length"), 0)
        while len(self._data) < length:
            if not self._more():
                return None
        body, self._data = self._data[:length], self._data[length:]
        seen = Seen(line, fields, body)
        self.server.requests.append(seen)
        return seen

    def _more(self) -> bool:
        with contextlib.suppress(OSError):
            data = self.sock.recv(65_536)
            self._data += data
            return bool(data)
        return False

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def drip(self, data: bytes, seconds: float = 0.05) -> None:
        """Send a byte now and then until the client has had enough."""
        for byte in data:
            self.sock.sendall(bytes([byte]))
            if self.server.stopping.wait(seconds):
                return

    def reset(self) -> None:
        """End the connection with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def wait(self) -> None:
        """Wait until the client closes the connection, or the test is over."""
        while not self.server.stopping.is_set():
            readable, _, _ = select.select([self.sock], [], [], 0.05)
            if readable and not self._more():
                return


class Target:
    """A server on a free port; every connection runs `script` on a thread of its own."""

    def __init__(
        self, script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._script = script
        self._tls = tls
        self._host = f"[{host}]" if ":" in host else host
        self._listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[Seen] = []
        self.connections = 0
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._peers: list[socket.socket] = []

    @property
    def url(self) -> str:
        """The base address; with TLS the name in the certificate is that of `localhost`."""
        is_local = self._tls is not None and self._host == "127.0.0.1"
        return f"http{'s' * (self._tls is not None)}://{'localhost' if is_local else self._host}:{self.port}"

    def __enter__(self) -> "Target":
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and every connection; it may be closed already."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._peers:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SECONDS)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._peers.append(sock)
                self._start(self._serve, sock, self.connections)

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError):  # the client went away, or refused our certificate
            if self._tls is None:
                self._script(Peer(sock, number, self))
            else:
                with self._tls.wrap_socket(sock, server_side=True) as wrapped:
                    self._peers.append(wrapped)
                    self._script(Peer(wrapped, number, self))


def reply(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    """Write a response with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def answering(response: bytes) -> Script:
    """Answer every request with the same bytes, on connections that stay open."""

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(response)

    return script


def closing(response: bytes) -> Script:
    """Answer the first request of each connection, then close it in order."""

    def script(peer: Peer) -> None:
        if peer.request() is not None:
            peer.send(response)

    return script


def silent(peer: Peer) -> None:
    """Accept a connection and say nothing."""
    peer.wait()


def echo(peer: Peer) -> None:
    """Answer every request with its own body."""
    while (seen := peer.request()) is not None:
        peer.send(reply(seen.body))


def server_tls(name: str = "server", *, client_authority: str | None = None) -> ssl.SSLContext:
    """Make the TLS side of a server with one of the certificates beside this file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / f"{name}.pem")
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)
    return context


class ConnectProxy(Target):
    """A forward proxy: CONNECT and absolute-form requests, all sent on to one port of loopback, whatever they name."""

    def __init__(
        self,
        port: int,
        *,
        refuse: bytes | None = None,
        established: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n",
    ) -> None:
        super().__init__(self._proxy)
        self._established = established
        self._target = port
        self._refuse = refuse

    def _proxy(self, peer: Peer) -> None:
        seen = peer.request()
        if seen is None:
            return
        if self._refuse is not None:
            peer.send(self._refuse)
            return
        if not seen.line.startswith("CONNECT "):
            while seen is not None:
                peer.send(reply(b"by the proxy"))
                seen = peer.request()
            return
        with socket.create_connection(("127.0.0.1", self._target)) as target:
            peer.send(self._established)
            _pump(peer.sock, target, self.stopping)


def _pump(left: socket.socket, right: socket.socket, stopping: threading.Event) -> None:
    other = {left: right, right: left}
    while not stopping.is_set():
        for sock in select.select([left, right], [], [], 0.05)[0]:
            data = sock.recv(65_536)
            if not data:
                return
            other[sock].sendall(data)
