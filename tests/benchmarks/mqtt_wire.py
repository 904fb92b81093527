"""Just enough MQTT 3.1.1 over a plain socket to load a broker harder than a full client could."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any


def _packet(kind: int, body: bytes, payload: bytes = b"") -> bytes:
    length, header = len(body) + len(payload), bytearray([kind])
    while True:
        byte, length = length % 128, length // 128
        header.append(byte | (128 if length else 0))
        if not length:
            return b"".join((header, body, payload))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def publish_packet(
    topic: str, payload: bytes, packet_id: int | None = None, *, dup: bool = False, qos: int = 1
) -> bytes:
    """Write a PUBLISH packet: QoS 0, or with a packet id QoS 1 or 2."""
    if packet_id is None:
        return _packet(0x30, _text(topic), payload)
    return _packet(0x30 | qos << 1 | (0x08 if dup else 0), _text(topic) + struct.pack(">H", packet_id), payload)


def connect_packet(
    client_id: str,
    *,
    will: tuple[str, bytes] | None = None,
    will_qos: int = 0,
    will_retain: bool = False,
    clean: bool = True,
    login: tuple[str, str] | None = None,
) -> bytes:
    """Write a CONNECT packet without a keep-alive; `login` is a user name and a password."""
    flags, payload = 0x02 if clean else 0, _text(client_id)
    if will is not None:
        flags |= 0x04 | will_qos << 3 | (0x20 if will_retain else 0)
        payload += _text(will[0]) + struct.pack(">H", len(will[1])) + will[1]
    if login is not None:
        flags, payload = flags | 0xC0, payload + _text(login[0]) + _text(login[1])
    return _packet(0x10, _text("MQTT") + bytes([4, flags]) + struct.pack(">H", 0) + payload)


def subscribe_packet(topic_filter: str, qos: int = 0) -> bytes:
    """Write a SUBSCRIBE packet with one filter."""
    return _packet(0x82, struct.pack(">H", 1) + _text(topic_filter) + bytes([qos]))


class Wire:
    """A connected client; `options` are those of `connect_packet`."""

    def __init__(self, port: int, client_id: str, timeout: float = 60.0, **options: Any) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._left: list[tuple[int, bytes]] = []  # what came in one piece with an expected packet, after it
        try:
            self.sock.sendall(connect_packet(client_id, **options))
            code = self.expect(0x20)[1]
            if code:
                raise ConnectionRefusedError(f"CONNACK {code}")  # noqa: TRY301  # closes the socket as any other
        except BaseException:
            self.sock.close()
            raise

    def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        """Subscribe and wait for the SUBACK."""
        self.sock.sendall(subscribe_packet(topic_filter, qos))
        self.expect(0x90)

    def send(self, data: bytes) -> None:
        """Send packets."""
        self.sock.sendall(data)

    def receive(self) -> list[tuple[int, bytes]]:
        """Wait for data and give the packets in it: type byte and body."""
        if self._left:
            left, self._left = self._left, []
            return left
        data = self.sock.recv(262_144)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._buffer += data
        return list(self._packets())

    def messages(self) -> list[tuple[str, bytes]]:
        """Wait for data and give the messages in it; QoS 1 messages are acknowledged."""
        return [self.take(kind, body) for kind, body in self.receive() if kind & 0xF0 == 0x30]

    def take(self, kind: int, body: bytes) -> tuple[str, bytes]:
        """Return topic and payload of a PUBLISH, and acknowledge it if it has QoS 1."""
        size = struct.unpack_from(">H", body)[0]
        start = 2 + size
        if kind & 0x06:
            self.sock.sendall(b"\x40\x02" + body[start : start + 2])
            start += 2
        return body[2 : 2 + size].decode(), body[start:]

    def close(self) -> None:
        """Send DISCONNECT, if the peer still reads, and close."""
        with contextlib.suppress(OSError):
            self.sock.sendall(b"\xe0\x00")
        self.sock.close()

    def expect(self, kind: int) -> bytes:
        """Wait for a packet of a kind and give its body; others before it are lost."""
        return self._expect(kind)[1]

    def expect_publish(self) -> int:
        """Wait for a PUBLISH and give its type byte, which has its QoS."""
        return self._expect(0x30)[0]

    def _expect(self, kind: int) -> tuple[int, bytes]:
        while True:
            packets = self.receive()
            for number, packet in enumerate(packets, 1):
                if packet[0] & 0xF0 == kind:
                    self._left = packets[number:]
                    return packet

    def _packets(self) -> Iterator[tuple[int, bytes]]:
        buffer = self._buffer
        while len(buffer) >= 2:
            length = shift = 0
            index = 1
            while index < len(buffer):
                length |= (buffer[index] & 127) << shift
                index, shift = index + 1, shift + 7
                if not buffer[index - 1] & 128:
                    break
            else:
                return
            if buffer[index - 1] & 128 or len(buffer) < index + length:
                return
            kind, body = buffer[0], bytes(buffer[index : index + length])
            del buffer[: index + length]
            yield kind, body
