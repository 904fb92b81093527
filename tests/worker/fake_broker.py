"""A broker of MQTT 5 that lacks one thing: what the installed brokers all have. No limits, no hostile input."""

import asyncio
import itertools
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Self

from amqtt_rest_bridge.mqtt import packets, standard
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.topics import filter_matches

NOT_AUTHORIZED = 0x87
LEAST_PACKET = 1000
MOST_PUBLISHED = 1000


@dataclass
class Kept:
    """A session: its filters with their identifiers, and its messages in their order, those that were sent first."""

    filters: dict[str, int | None] = field(default_factory=dict)
    messages: dict[int, tuple[str, bytes, dict[Any, Any]]] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)  # on this connection
    again: set[int] = field(default_factory=set)  # on one before
    most: int = 65_535
    expiry: int = 0
    will: tuple[str, bytes] | None = None
    writer: asyncio.StreamWriter | None = None
    published: int = 0  # on this connection


class FakeBroker:
    """Listens from entering on; lacks what `--probe` calls `lacking`, or does what is described where it is done."""

    def __init__(self, lacking: str = "") -> None:
        self.lacking = lacking
        self.port = 0
        self.sessions: dict[str, Kept] = {}
        self.retained: dict[str, bytes] = {}
        self._ids = itertools.count(1)
        self._turns: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._end.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client_id, is_graceful = "", False
        try:
            while True:
                first = (await reader.readexactly(1))[0]
                length = shift = 0
                while True:
                    byte = (await reader.readexactly(1))[0]
                    length, shift = length | (byte & 0x7F) << shift, shift + 7
                    if byte < 0x80:
                        break
                body = await reader.readexactly(length)
                match first >> 4:
                    case standard.CONNECT:
                        client_id = self._connect(body, writer)
                    case standard.DISCONNECT:
                        is_graceful = True
                        return
                    case kind:
                        self._take(kind, first, body, self.sessions[client_id], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._gone(client_id, writer, is_graceful=is_graceful)
            writer.close()

    def _gone(self, client_id: str, writer: asyncio.StreamWriter, *, is_graceful: bool) -> None:
        session = self.sessions.get(client_id)
        if session is None or session.writer is not writer:
            return
        session.writer = None
        if session.will is not None and not is_graceful and self.lacking != "wills":
            self._publish(*session.will, {}, retain=True)
        if not session.expiry or self.lacking == "kept sessions":
            del self.sessions[client_id]

    def _connect(self, body: bytes, writer: asyncio.StreamWriter) -> str:
        flags = body[7]
        found, at = packets.read_properties(body, 10, len(body), standard.CONNECT)
        client_id, at = packets.text(body, at, len(body))
        will = None
        if flags & 0x04:
            topic, at = packets.text(body, at + 1, len(body))
            payload, at = packets.text(body, at, len(body))
            will = topic, payload.encode()
        before = self.sessions.get(client_id)
        if before is not None and before.writer is not None and self.lacking != "takeover of a client id":
            before.writer.transport.abort()
        present = before is not None and not flags & 0x02
        session = self.sessions[client_id] = before if before is not None and present else Kept()
        session.writer, session.will, session.published = writer, will, 0
        session.expiry = found.get(Property.SESSION_EXPIRY_INTERVAL, 0)
        session.most = found.get(Property.RECEIVE_MAXIMUM, 65_535)
        session.again |= session.sent
        if self.lacking == "redelivery":
            session.messages = {key: one for key, one in session.messages.items() if key not in session.sent}
        session.sent = set()
        says: dict[Property, int] = (
            {Property.MAXIMUM_PACKET_SIZE: LEAST_PACKET} if self.lacking == "large messages" else {}
        )
        code = 0x84 if self.lacking == "MQTT 5" else 0
        self._write(writer, standard.CONNACK << 4, bytes([present, code]) + packets.write_properties(says))
        self._flush(session)
        return client_id

    def _take(self, kind: int, first: int, body: bytes, session: Kept, writer: asyncio.StreamWriter) -> None:
        number = body[:2]
        if kind == standard.PUBLISH:
            topic, at = packets.text(body, 0, len(body))
            number = body[at : at + 2]
            found, at = packets.read_properties(body, at + 2, len(body), standard.PUBLISH)
            of_broker = topic.startswith("$SYS/")
            allowed = self.lacking != ("commands (coreflux)" if of_broker else "topics of the group")
            session.published += 1
            if self.lacking == "patience" and session.published > MOST_PUBLISHED:  # as NanoMQ 0.25 ends a publisher
                writer.transport.abort()
                return
            self._write(writer, standard.PUBACK << 4, number + (b"" if allowed else bytes([NOT_AUTHORIZED])))
            if allowed:
                self._publish(topic, body[at:], dict(found), retain=bool(first & 1))
        elif kind == standard.PUBACK:
            session.messages.pop(int.from_bytes(number, "big"), None)
            session.sent.discard(int.from_bytes(number, "big"))
            self._flush(session)
        elif kind == standard.SUBSCRIBE:
            found, at = packets.read_properties(body, 2, len(body), standard.SUBSCRIBE)
            topic_filter, at = packets.text(body, at, len(body))
            refused = self.lacking == "SOURCE_TOPICs" and topic_filter.endswith("in/+")
            self._write(writer, standard.SUBACK << 4, number + bytes([0, NOT_AUTHORIZED if refused else 1]))
            session.filters[topic_filter] = next(iter(found.get(Property.SUBSCRIPTION_IDENTIFIER, ())), None)
            if not body[at] & 0x20:  # retain handling
                for topic, payload in self.retained.items():
                    if filter_matches(topic_filter, topic):
                        self._write(writer, standard.PUBLISH << 4 | 1, packets.of_text(topic) + b"\0" + payload)
        elif kind == standard.UNSUBSCRIBE:
            session.filters.pop(packets.text(body, 3, len(body))[0], None)
            self._write(writer, standard.UNSUBACK << 4, number + b"\0\0")

    def _publish(self, topic: str, payload: bytes, properties: dict[Any, Any], *, retain: bool) -> None:
        if retain and self.lacking != "retained messages":
            self.retained[topic] = payload
            if not payload:
                del self.retained[topic]
        takers: defaultdict[str, list[tuple[Kept, int | None]]] = defaultdict(list)
        for client_id, session in self.sessions.items():
            for wanted, identifier in session.filters.items():
                _, share, plain = wanted.split("/", 2) if wanted.startswith("$share/") else ("", client_id, wanted)
                if filter_matches(plain, topic):
                    takers[share].append((session, identifier))
        for share, members in takers.items():
            one = next(self._turns[share]) % len(members)
            for session, identifier in members if self.lacking == "shared subscriptions" else members[one : one + 1]:
                if self.lacking == "a queue" and len(session.messages) >= session.most:  # as FlashMQ 1.26 drops it
                    continue
                own = {} if self.lacking == "properties" else dict(properties)
                if identifier is not None and self.lacking != "subscription identifiers":
                    own[Property.SUBSCRIPTION_IDENTIFIER] = [identifier]
                session.messages[next(self._ids)] = topic, payload, own
                self._flush(session)

    def _flush(self, session: Kept) -> None:
        most = session.most if self.lacking != "Receive Maximum" else 65_535
        for number, (topic, payload, properties) in session.messages.items():
            if session.writer is None or len(session.sent) >= most:
                return
            if number not in session.sent:
                session.sent.add(number)
                packet = packets.publish(
                    topic, payload, number, duplicate=number in session.again, properties=properties
                )  # fmt: skip
                session.writer.write(packet)

    def _write(self, writer: asyncio.StreamWriter, first: int, body: bytes) -> None:
        writer.write(bytes([first]) + packets.of_variable(len(body)) + body)
