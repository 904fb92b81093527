"""The private endpoint of a broker process, as far as its client needs one: it answers, notes, and sends on demand.

It listens on a Unix socket and runs on the loop of the test.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from amqtt_rest_bridge.lot.model import EventName
from amqtt_rest_bridge.mqtt import packets, standard
from amqtt_rest_bridge.mqtt.private import EVENT, ROUTE, PrivateAddress
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Address


class PrivateEndpoint:
    """Keeps each session for ever, as the subscriptions of its last SUBSCRIBE and UNSUBSCRIBE packets."""

    def __init__(self, path: Path) -> None:
        self.address: Address = PrivateAddress(path).address
        self.subscriptions: dict[str, dict[EventName | str, dict[str, str]]] = defaultdict(dict)
        """User properties by session, and by event, or topic filter where there is none."""
        self.identifiers: dict[EventName | str, int] = {}
        self.connects: list[str] = []
        self.acknowledged: list[tuple[str, int]] = []
        self.published: list[tuple[str, bytes, dict[str, str]]] = []
        self.asked_together = 0
        """The most SUBSCRIBEs that came in one read."""
        self._path = path
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._owed: dict[str, bytes] = defaultdict(bytes)
        self._server: asyncio.Server | None = None

    @classmethod
    @asynccontextmanager
    async def served(cls, path: Path) -> "Any":
        endpoint = cls(path)
        await endpoint.serve()
        try:
            yield endpoint
        finally:
            await endpoint.close()

    async def serve(self) -> Self:
        self._server = await asyncio.start_unix_server(self._client, self._path)
        return self

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers.values():
            writer.transport.abort()

    def send(
        self, client_id: str, payload: bytes, packet_id: int | None, *events: EventName | str, duplicate: bool = False,
        topic: str = "in/a", **user: str,
    ) -> None:  # fmt: skip
        """Send a message for these events, with QoS 0 without a packet id; `user` are user properties, `_` for `-`."""
        properties: dict[Property, Any] = {
            Property.SUBSCRIPTION_IDENTIFIER: [self.identifiers[one] for one in events],
            Property.USER_PROPERTY: [(name.replace("_", "-"), value) for name, value in user.items()],
        }
        qos = int(packet_id is not None)
        packet = packets.publish(topic, payload, packet_id, qos=qos, duplicate=duplicate, properties=properties)
        if client_id in self._writers:
            self._writers[client_id].write(packet)
        else:
            self._owed[client_id] += packet

    def cut(self, client_id: str) -> None:
        """End the connection of a session; what is sent until the next one comes behind its CONNACK."""
        self._writers.pop(client_id).transport.abort()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client_id, data = "", b""
        while more := await reader.read(1 << 20):
            data, asked = data + more, 0
            while len(data) >= 2:
                try:
                    length, at = packets.variable(data, 1, len(data))
                except packets.PacketError:
                    break
                if len(data) < at + length:
                    break
                kind, body, data = data[0] >> 4, data[at : at + length], data[at + length :]
                asked += kind == standard.SUBSCRIBE
                if kind == standard.CONNECT:
                    client_id = self._connect(body, writer)
                else:
                    self._take(kind, body, client_id, writer)
            self.asked_together = max(self.asked_together, asked)
        writer.close()

    def _connect(self, body: bytes, writer: asyncio.StreamWriter) -> str:
        found, at = packets.read_properties(body, 10, len(body), standard.CONNECT)
        client_id, _ = packets.text(body, at, len(body))
        is_kept = bool(found.get(Property.SESSION_EXPIRY_INTERVAL)) and client_id in self.connects
        self.connects.append(client_id)
        self._writers[client_id] = writer
        writer.write(bytes([0x20, 3, is_kept, 0, 0]) + self._owed.pop(client_id, b""))
        return client_id

    def _take(self, kind: int, body: bytes, client_id: str, writer: asyncio.StreamWriter) -> None:
        match kind:
            case standard.DISCONNECT:
                writer.close()
            case standard.SUBSCRIBE:
                name, user, found, _ = self._subscription(body, kind)
                self.subscriptions[client_id][name] = user
                self.identifiers[name] = next(iter(found.get(Property.SUBSCRIPTION_IDENTIFIER, [0])))
                writer.write(b"\x90\x04" + body[:2] + b"\x00\x01")
            case standard.UNSUBSCRIBE:
                name, *_ = self._subscription(body, kind)
                self.subscriptions[client_id].pop(name, None)
                writer.write(b"\xb0\x04" + body[:2] + b"\x00\x00")
            case standard.PUBACK:
                self.acknowledged.append((client_id, int.from_bytes(body[:2], "big")))
            case standard.PUBLISH:
                topic, at = packets.text(body, 0, len(body))
                packet_id = body[at : at + 2]
                found, at = packets.read_properties(body, at + 2, len(body), kind)
                self.published.append((topic, body[at:], dict(found.get(Property.USER_PROPERTY, ()))))
                writer.write(b"\x40\x02" + packet_id)

    def _subscription(self, body: bytes, kind: int) -> tuple[EventName | str, dict[str, str], standard.Properties, int]:
        found, at = packets.read_properties(body, 2, len(body), kind)
        topic_filter, at = packets.text(body, at, len(body))
        user = dict(found.get(Property.USER_PROPERTY, ()))
        name = (user.pop(ROUTE), user.pop(EVENT)) if ROUTE in user else topic_filter
        return name, user | {"filter": topic_filter}, found, at


async def until(is_true: Callable[[], object]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.002)
