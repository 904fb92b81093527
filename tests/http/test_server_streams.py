"""Answers that come piece by piece: how they are framed, paced and ended."""

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from amqtt_rest_bridge.http.exchange import Request, Response
from amqtt_rest_bridge.http.server import PortLimits
from tests.support.http_ports import PATIENCE, Raw, RunningServer, get, serving
from tests.support.waiting import eventually

PIECE = bytes(65_536)


class Pieces:
    """A stream of what a test puts into it; b"" ends it. `taken` is how often it was asked."""

    def __init__(self) -> None:
        self.taken = 0
        self.closed = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._wake: Callable[[], None] = lambda: None
        self._pieces: deque[bytes] = deque()

    def put(self, *pieces: bytes) -> None:
        """Add pieces; from a test's thread."""
        self._pieces.extend(pieces)
        self._loop.call_soon_threadsafe(self._wake)

    def begin(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def take(self) -> bytes | float:
        self.taken += 1
        return self._pieces.popleft() if self._pieces else PATIENCE

    def close(self) -> None:
        self.closed.set()


class Ticks(Pieces):
    """A stream that has a piece each time that it is asked after a while."""

    def take(self) -> bytes | float:
        self.taken += 1
        return b"tick " if self.taken % 2 == 0 else 0.01


class Streaming:
    """Answers /stream with a stream, everything else at once."""

    def __init__(self, kind: type[Pieces] = Pieces) -> None:
        self.streams: deque[Pieces] = deque()
        self._kind = kind

    def answer(self, request: Request) -> Response:
        if request.target != "/stream":
            return Response("200 OK", (), b"at once")
        stream = self._kind()
        self.streams.append(stream)
        return Response("200 OK", (("Content-Type", "text/event-stream"),), stream=stream)


class Port:
    def __init__(self, port: int, app: Streaming, server: RunningServer) -> None:
        self.port, self.app, self.server = port, app, server

    def open(self, *headers: str) -> tuple[Raw, Pieces]:
        """Ask for a stream and read the head of its answer."""
        raw = Raw(self.port).send(get("/stream", *headers))
        head = b""
        while b"\r\n\r\n" not in head:
            head += raw.exactly(1)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length" not in head
        assert b"Connection: close" in head
        return raw, self.app.streams.pop()


@contextmanager
def streaming(limits: PortLimits | None = None, kind: type[Pieces] = Pieces) -> Iterator[Port]:
    app = Streaming(kind)
    with serving(app, limits=limits) as server:
        yield Port(server.bound_port, app, server)


def test_pieces_arrive_as_they_come_and_the_end_closes_the_connection() -> None:
    with streaming() as port:
        raw, stream = port.open()
        with raw:
            stream.put(b"one ", b"two ")
            assert raw.exactly(8) == b"one two "
            stream.put(b"three", b"")
            assert raw.read_to_the_end() == b"three"
        assert stream.closed.wait(PATIENCE)


def test_a_stream_whose_head_cannot_be_written_is_closed_and_nothing_follows_the_error() -> None:
    class Misnamed(Streaming):
        def answer(self, request: Request) -> Response:
            answer = super().answer(request)
            self.streams[-1].put(b"never sent", b"")
            return replace(answer, headers=(("X-Name", "a\nb"),))

    app = Misnamed()
    with serving(app) as server, Raw(server.bound_port).send(get("/stream", "Connection: close")) as raw:
        head, _, body = raw.read_to_the_end().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    assert app.streams.pop().closed.is_set()


def test_a_stream_is_asked_again_after_the_seconds_that_it_gave() -> None:
    with streaming(kind=Ticks) as port:
        raw, _ = port.open()
        with raw:
            assert [raw.exactly(5) for _ in range(3)] == [b"tick "] * 3


def test_a_stream_that_is_woken_often_while_its_port_is_busy_is_asked_once() -> None:
    with streaming() as port:
        raw, stream = port.open()
        with raw:
            stream.put(b"first")
            assert raw.exactly(5) == b"first"
            gate = threading.Event()
            port.server.loop.loop.call_soon_threadsafe(gate.wait, PATIENCE)
            for _ in range(1000):
                stream.put()
            gate.set()
            stream.put(b"last")
            assert raw.exactly(4) == b"last"
            assert stream.taken < 10


def test_a_peer_that_goes_is_noticed_although_nothing_is_sent() -> None:
    with streaming() as port:
        raw, stream = port.open()
        raw.__exit__()
        assert stream.closed.wait(PATIENCE)


def test_a_caller_that_does_not_read_holds_one_piece_and_delays_no_other() -> None:
    with streaming() as port:
        raw, stream = port.open()
        with raw:
            stream.put(*itertools.repeat(PIECE, 1000))
            eventually(lambda: 0 < stream.taken < 1000)
            with Raw(port.port) as other:
                taken = [(other.ask(get("/")).body, stream.taken)[1] for _ in range(20)]
            assert taken[-1] < 500  # of 64 MB; the rest waits for the caller
            assert not stream.closed.is_set()


def test_a_caller_that_takes_nothing_for_the_time_given_is_closed() -> None:
    with streaming(PortLimits(slow_seconds=0.2)) as port:
        raw, stream = port.open()
        with raw:
            stream.put(*itertools.repeat(PIECE, 1000))
            assert stream.closed.wait(PATIENCE)


def test_a_quiet_stream_is_not_idle_and_what_its_caller_sends_is_ignored() -> None:
    with streaming(PortLimits(idle_seconds=0.05)) as port:
        raw, stream = port.open()
        with raw, Raw(port.port) as other:
            assert other.ask(get("/")).body == b"at once"
            assert other.is_closed_by_peer()  # idle for long enough
            raw.send(get("/"))
            stream.put(b"still there", b"")
            assert raw.read_to_the_end() == b"still there"


def test_a_server_that_stops_ends_its_streams() -> None:
    with streaming() as port:
        raw, stream = port.open()
        with raw:
            port.server.stop(PATIENCE)
            assert stream.closed.wait(PATIENCE)
            assert raw.is_closed_by_peer()
