"""What the client makes of a connection that breaks while it sends."""

import socket
import ssl
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from amqtt_rest_bridge.http_client.connection import DeadlineSocket, Outgoing, Received, exchange
from tests.support.http_target import AUTHORITY, Target, reply, server_tls

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RefusedSocket(socket.socket):
    """A socket whose other end stops reading after the first bytes: it broke between two writes."""

    other_end: socket.socket

    def send(self, data: "Buffer", flags: int = 0, /) -> int:
        count = super().send(memoryview(data)[:100], flags)
        self.other_end.recv(100)
        self.other_end.shutdown(socket.SHUT_RD)
        return count


def send_to_refusing_server(response: bytes) -> tuple[Received, DeadlineSocket]:
    """Exchange over a Unix socket, because TCP may lose the response to the reset that follows it."""
    ours, theirs = socket.socketpair()
    with RefusedSocket(fileno=ours.detach()) as sock, theirs:
        sock.other_end = theirs
        theirs.sendall(response)
        theirs.shutdown(socket.SHUT_WR)
        wire = DeadlineSocket(sock, monotonic, monotonic() + 5)
        return exchange(wire, Outgoing(0.0, "POST", "/", (), b"x" * 500_000, 100)), wire


def test_response_to_a_body_that_was_refused_half_way_is_read() -> None:
    """A server may answer 413 and stop reading: what it says is worth more than the broken pipe."""
    received, wire = send_to_refusing_server(reply(b"too much", "413 Content Too Large"))
    assert isinstance(wire.cut_off, BrokenPipeError)
    assert (received.status, received.body, received.reusable) == (413, b"too much", False)


def test_body_that_was_refused_half_way_without_a_response_is_a_broken_connection() -> None:
    with pytest.raises(BrokenPipeError):
        send_to_refusing_server(b"")


class BrokenTlsSocket(ssl.SSLSocket):
    """A TLS socket whose connection is gone by the time something is sent."""

    def send(self, data: "Buffer", flags: int = 0) -> int:
        raise BrokenPipeError


def test_tls_server_that_hung_up_before_the_request_is_asked_why() -> None:
    """It refuses a client certificate only after our handshake is done: the reason waits to be read."""
    with Target(lambda peer: None, tls=server_tls()) as target:
        context = ssl.create_default_context(cafile=AUTHORITY)
        context.sslsocket_class = BrokenTlsSocket
        plain = socket.create_connection(("127.0.0.1", target.port))
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            wire = DeadlineSocket(sock, monotonic, monotonic() + 5)
            with pytest.raises(BrokenPipeError):  # here it closed in order, which says nothing more
                exchange(wire, Outgoing(0.0, "POST", "/", (), None, 100))
    assert not wire.sent


class LateSocket(socket.socket):
    """A socket whose process is stopped beyond its deadline once the request is out."""

    now = 0.0

    def send(self, data: "Buffer", flags: int = 0, /) -> int:
        self.now = 60.0
        return super().send(data, flags)


def exchange_late(response: bytes) -> Received:
    ours, theirs = socket.socketpair()
    with LateSocket(fileno=ours.detach()) as sock, theirs:
        theirs.sendall(response)
        wire = DeadlineSocket(sock, lambda: sock.now, 5.0)
        return exchange(wire, Outgoing(0.0, "POST", "/", (), b"x", 100))


def test_a_response_that_came_while_its_reader_was_stopped_beyond_the_deadline_is_read() -> None:
    """The server has done what it was asked for: asked again it would do it twice."""
    assert exchange_late(reply(b"done")).body == b"done"


@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12"])
def test_a_response_that_is_not_there_after_the_deadline_is_waited_for_no_more(response: bytes) -> None:
    with pytest.raises(TimeoutError):
        exchange_late(response)
