"""Publishers that end their connections in all the ways there are, and what reaches subscribers and servers of it."""

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from typing import Any

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.http_recorder import Recorder
from tests.support.waiting import SECONDS, eventually

DISCONNECT = b"\xe0\x00"
TOPIC = "in/x"
PUBACK, PUBREC, PUBCOMP = 0x40, 0x50, 0x70


class End(StrEnum):
    """How a publisher ends its connection."""

    TOGETHER = "DISCONNECT in one write with the last packets"
    DISCONNECT = "DISCONNECT"
    CLOSE = "close"
    RESET = "reset"


def route(target: Recorder, policy: str = "balanced") -> str:
    """Return a route that posts each message below `in` to a server."""
    return f"""DEFINE ROUTE Forward WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD EVENT Post WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "{policy}" WITH OVERLOAD_CAPACITY '20000'
    """


def numbered(count: int, prefix: str = "") -> list[bytes]:
    """Return so many payloads."""
    return [f"{prefix}{number}".encode() for number in range(count)]


def packets(payloads: Sequence[bytes], qos: int = 1, topic: str = TOPIC) -> bytes:
    """Return a PUBLISH for each payload."""
    ids = range(1, len(payloads) + 1) if qos else [None] * len(payloads)
    pairs = zip(payloads, ids, strict=True)
    return b"".join(publish_packet(topic, payload, packet_id, qos=qos) for payload, packet_id in pairs)


def pubrels(count: int) -> bytes:
    """Return the PUBRELs of so many messages of QoS 2."""
    return b"".join(b"\x62\x02" + struct.pack(">H", number) for number in range(1, count + 1))


def publish(port: int, payloads: Sequence[bytes], end: End, qos: int = 1) -> None:
    """Publish, have all acknowledged, and end the connection."""
    count, together = len(payloads), DISCONNECT if end is End.TOGETHER else b""
    wire = Wire(port, "publisher", timeout=SECONDS)
    with wire.sock:
        if qos == 2:
            wire.send(packets(payloads, qos))
            await_answers(wire, PUBREC, count)
            wire.send(pubrels(count) + together)
            await_answers(wire, PUBCOMP, count)
        else:
            wire.send(packets(payloads, qos) + together)
            await_answers(wire, PUBACK, count)
        if end is End.DISCONNECT:
            wire.send(DISCONNECT)
        elif end is End.RESET:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def close_unread(wire: Wire, data: bytes) -> None:
    """Send something and close without reading an answer, so that the kernel resets the connection."""
    wire.send(data)
    eventually(lambda: not struct.unpack("i", fcntl.ioctl(wire.sock, termios.TIOCOUTQ, bytes(4)))[0], "not received")
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sock.close()


def await_answers(wire: Wire, kind: int, count: int) -> None:
    """Wait for so many packets of a kind."""
    while count > 0:
        count -= sum(one & 0xF0 == kind for one, _ in wire.receive())
    assert count == 0


class Listener:
    """A subscriber that notes each message, from now until its connection ends: in `payloads`, or by `note`."""

    def __init__(
        self, port: int, topic_filter: str = "in/#", *, qos: int = 1, client_id: str = "listener",
        note: Callable[[str, bytes], object] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.payloads: list[bytes] = []
        self._note = note or (lambda _, payload: self.payloads.append(payload))
        self.wire = Wire(port, client_id, timeout=SECONDS, **options)
        self.wire.subscribe(topic_filter, qos)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def await_messages(self, payloads: Sequence[bytes]) -> None:
        """Wait for these payloads, in this order and nothing else."""
        eventually(lambda: len(self.payloads) >= len(payloads), f"{payloads} are not all there", 4 * SECONDS)
        assert self.payloads == list(payloads)

    def close(self) -> None:
        """End the connection, and wait for the end of reading."""
        with contextlib.suppress(OSError):  # the broker has closed it
            self.wire.sock.shutdown(socket.SHUT_RDWR)
        self._reading.join()
        self.wire.sock.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                for topic, payload in self.wire.messages():
                    self._note(topic, payload)


@contextlib.contextmanager
def listening(port: int, topic_filter: str = "in/#", **options: Any) -> Iterator[Listener]:
    """Run a listener until the block ends."""
    with contextlib.closing(Listener(port, topic_filter, **options)) as listener:
        yield listener


def await_requests(target: Recorder, payloads: Collection[bytes]) -> None:
    """Wait until a server was sent each payload; it was sent each of them once."""
    eventually(lambda: target.arrived.qsize() >= len(payloads), "the server was not sent all", 4 * SECONDS)
    assert sorted(seen.body for seen in target.take_all()) == sorted(payloads)


@contextlib.contextmanager
def sending(port: int, data: bytes, pause: float = 0.0, client_id: str = "sending", **options: Any) -> Iterator[None]:
    """Send again and again until the broker ends the connection."""
    wire = Wire(port, client_id, **options)
    ended = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(pause):
                wire.send(data)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        wire.sock.close()


@contextlib.contextmanager
def flooded(port: int, publishers: int, **options: Any) -> Iterator[None]:
    """Run so many publishers that never pause."""
    with contextlib.ExitStack() as stack:
        for number in range(publishers):
            data = publish_packet(f"flood/{number}", b"x" * 100) * 200
            stack.enter_context(sending(port, data, client_id=f"flood-{number}", **options))
        yield
