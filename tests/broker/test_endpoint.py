"""The endpoint of the bridge, over its socket: what it sends, keeps, drops, and how sessions go on."""

import asyncio
import functools
import json
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from amqtt_rest_bridge.broker.bridge_session import BridgeConnection
from amqtt_rest_bridge.broker.endpoint import PrivateEndpoint
from amqtt_rest_bridge.catalogue import ROUTE_FULL
from amqtt_rest_bridge.lot.model import EventName, Message, Publication
from amqtt_rest_bridge.mqtt import packets, standard
from amqtt_rest_bridge.mqtt.packets import Acknowledged, Connack, Publish
from amqtt_rest_bridge.mqtt.private import (
    BROKER_TOPIC,
    ENDS,
    EVENT,
    LOSSLESS,
    OWN,
    QOS,
    READY_TOPIC,
    REFUSED,
    ROUTE,
    UNMATCHED_TOPIC,
)
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.times import LONGEST_LULL
from tests.support.waiting import SECONDS


class Client:
    """A client of the endpoint that does nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = packets.Decoder(standard.MQTT_5)
        self._number = 0

    async def next(self) -> Any:
        """Return the next packet."""
        while (packet := self._decoder.next()) is None:
            data = await self._reader.read(65_536)
            if not data:
                raise EOFError
            self._decoder.feed(data)
        return packet

    def write(self, packet: bytes) -> None:
        """Send a packet."""
        self._writer.write(packet)

    async def subscribe(
        self, topic_filter: str, identifier: int, name: EventName | None = None, lossless: str | None = None,
        *, retained: bool = False,
    ) -> list[Publish]:  # fmt: skip
        """Subscribe, read the answer, and return the messages that came before it."""
        self._number += 1
        user = [] if name is None else [(ROUTE, name[0]), (EVENT, name[1])]
        user += [] if lossless is None else [(LOSSLESS, lossless)]
        properties = {Property.SUBSCRIPTION_IDENTIFIER: (identifier,), Property.USER_PROPERTY: user}
        self.write(packets.subscribe(self._number, topic_filter, 1 | (0 if retained else 2 << 4), properties))
        before = []
        while isinstance(packet := await self.next(), Publish):
            before.append(packet)
        assert packet.kind == standard.SUBACK
        return before

    async def unsubscribe(self, topic_filter: str, name: EventName | None = None) -> None:
        """Unsubscribe, and read the answer."""
        self._number += 1
        user = [] if name is None else [(ROUTE, name[0]), (EVENT, name[1])]
        properties = {Property.USER_PROPERTY: user}
        self.write(packets.unsubscribe(self._number, topic_filter, properties))
        assert (await self.next()).kind == standard.UNSUBACK

    async def messages(self, count: int) -> list[Publish]:
        """Read so many messages."""
        return [await self.next() for _ in range(count)]

    def acknowledge(self, message: Publish) -> None:
        """Send PUBACK."""
        self.write(packets.acknowledgement(standard.PUBACK, message.packet_id or 0))

    async def publish(self, topic: str, payload: bytes = b"", **user: str) -> Any:
        """Publish, and return the next packet."""
        self._number += 1
        pairs = [({"own": OWN, "qos": QOS}.get(name, name), value) for name, value in user.items()]
        self.write(packets.publish(topic, payload, self._number, properties={Property.USER_PROPERTY: pairs}))
        return await self.next()

    async def close(self) -> None:
        """Close the socket without a word, and wait until the endpoint has noticed."""
        if not self._writer.is_closing():
            self._writer.write_eof()
            while await self._reader.read(65_536):
                pass
        self._writer.close()
        await self._writer.wait_closed()


class Accepting:
    """In the place of `PrivateEndpoint`, for a connection alone."""

    def connection_opened(self, connection: BridgeConnection) -> None:
        """Do nothing."""

    def act_on(self, connection: BridgeConnection, packet: Any) -> None:
        """Do nothing."""

    def connection_ended(self, connection: BridgeConnection) -> None:
        """Do nothing."""

    def has_room(self) -> bool:
        """Return True."""
        return True


class Publishing:
    """In the place of `Publisher`: notes what is published, and is done with it when told."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.holds = False
        self.published: list[tuple[Publication, int, bool]] = []
        self.waiting: list[Any] = []

    def __len__(self) -> int:
        """Return how many publications wait."""
        return len(self.waiting)

    def put(self, publication: Publication, hops: int, *, own: bool, done: Any) -> bool:
        """Note a publication."""
        self.published.append((publication, hops, own))
        if self.holds:
            self.waiting.append(done)
        else:
            done()
        return True


class Rig:
    """An endpoint that is served, and clients of it."""

    def __init__(self, **options: Any) -> None:
        self.publisher = Publishing()
        self.retained: dict[str, bytes] = {}
        settings = {"queue_bytes": 1 << 20, "max_message_bytes": 1 << 20} | options
        self.endpoint = PrivateEndpoint(self.publisher, lambda: list(self.retained.items()), **settings)  # type: ignore[arg-type]
        self._clients: list[Client] = []

    async def client(self, client_id: str, *, is_kept: bool = True, receive_maximum: int = 100) -> Client:
        """Connect."""
        reader, writer = await asyncio.open_unix_connection(str(self.endpoint.address.socket))
        client = Client(reader, writer)
        self._clients.append(client)
        properties: dict[Property, Any] = {Property.RECEIVE_MAXIMUM: receive_maximum}
        properties |= {Property.SESSION_EXPIRY_INTERVAL: 60} if is_kept else {}
        client.write(packets.connect(client_id, keep_alive=15, clean=not is_kept, properties=properties))
        client.connack = await client.next()  # type: ignore[attr-defined]
        assert isinstance(client.connack, Connack)  # type: ignore[attr-defined]
        return client

    async def close(self) -> None:
        """End all."""
        for client in self._clients:
            await client.close()
        self.endpoint.close()


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Rig]:
    """Serve an endpoint."""
    rig = Rig(**options)
    await rig.endpoint.serve()
    try:
        yield rig
    finally:
        await rig.close()


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


A, B = ("Route", "A"), ("Route", "B")


@on_a_loop
async def test_a_message_is_sent_once_with_all_identifiers_of_its_session() -> None:
    async with serving() as rig:
        client = await rig.client("main")
        await client.subscribe("t/#", 1, A)
        await client.subscribe("t/+", 2, B)
        rig.endpoint.offer("t/x", b"1")
        rig.endpoint.offer("u", b"2")
        rig.endpoint.offer("t/x", b"3", hops=2)
        first, second = await client.messages(2)
        assert (first.topic, first.payload, first.duplicate, second.payload) == ("t/x", b"1", False, b"3")
        assert first.properties == {Property.SUBSCRIPTION_IDENTIFIER: [1, 2]}
        assert ("rest-bridge-hops", "2") in second.properties[Property.USER_PROPERTY]


@on_a_loop
async def test_topics_of_messages_that_concern_no_event_are_sent_while_the_bridge_asks_for_them() -> None:
    async with serving() as rig:
        own, main = await rig.client("own", is_kept=False), await rig.client("main")
        await main.subscribe("t/#", 1, A)
        await own.subscribe("read", 2)
        await own.subscribe(UNMATCHED_TOPIC, 3)
        for topic in ("t/x", "$SYS/broker/uptime", "other/é", "read"):
            rig.endpoint.offer(topic, b"1")
        first, second, third = await own.messages(3)
        assert [(one.topic, one.payload) for one in (first, second, third)] == [
            (UNMATCHED_TOPIC, "other/é".encode()), (UNMATCHED_TOPIC, b"read"), ("read", b"1"),
        ]  # fmt: skip
        await own.unsubscribe(UNMATCHED_TOPIC)
        rig.endpoint.offer("other", b"2")
        rig.endpoint.offer("read", b"2")
        assert (await own.next()).topic == "read"


@on_a_loop
async def test_messages_wait_for_the_window_and_for_a_kept_session_that_is_away() -> None:
    async with serving() as rig:
        client = await rig.client("main", receive_maximum=2)
        await client.subscribe("t", 1, A)
        for number in range(4):
            rig.endpoint.offer("t", b"%d" % number)
        first, second = await client.messages(2)
        client.acknowledge(first)
        assert (await client.next()).payload == b"2"
        await client.close()
        rig.endpoint.offer("t", b"4")
        again = await rig.client("main", receive_maximum=10)
        assert again.connack.session_present  # type: ignore[attr-defined]
        come = await again.messages(4)
        assert [(one.payload, one.duplicate) for one in come] == [
            (b"1", True), (b"2", True), (b"3", False), (b"4", False),
        ]  # fmt: skip
        assert second.payload == b"1"


@on_a_loop
async def test_a_message_whose_result_has_come_does_not_come_again_for_that_event() -> None:
    async with serving() as rig:
        client, own = await rig.client("main"), await rig.client("own", is_kept=False)
        await client.subscribe("t", 1, A)
        await client.subscribe("t", 2, B)
        for payload in (b"both", b"one", b"none"):
            rig.endpoint.offer("t", payload)
        both, one, _ = [message.packet_id for message in await client.messages(3)]
        await own.publish("out", b"", **{ENDS: f"main {both} 1,main {both} 2"})
        await own.publish("out", b"", **{ENDS: f"main {one} 1"})
        await client.close()
        again = await (await rig.client("main")).messages(2)
        assert [(came.payload, came.properties[Property.SUBSCRIPTION_IDENTIFIER]) for came in again] == [
            (b"one", [2]), (b"none", [1, 2]),
        ]  # fmt: skip


@on_a_loop
async def test_what_is_beyond_queue_bytes_is_dropped_counted_and_told() -> None:
    async with serving(queue_bytes=2000) as rig:
        client = await rig.client("main")
        await client.subscribe("t", 1, A)
        await client.close()
        for _ in range(4):
            rig.endpoint.offer("t", b"x" * 500)
        assert rig.endpoint.dropped == 2
        own = await rig.client("own", is_kept=False)
        await own.subscribe(BROKER_TOPIC, 2)
        told = json.loads((await own.next()).payload)
        assert told == {"dropped": 2, "restarts": 0, "spool": {}, "refusing": None, "errors": [], "trouble": None}


@on_a_loop
async def test_a_bridge_that_is_behind_hears_of_what_is_beyond_queue_bytes_and_what_is_small_still_has_room() -> None:
    async with serving(queue_bytes=2000) as rig:
        client = await rig.client("main", receive_maximum=1)
        await client.subscribe("t", 1, A)
        for payload in (b"first", b"x" * 1000, b"y" * 1000, b"small"):
            rig.endpoint.offer("t", payload)
        first, refused = await client.messages(2)
        code, why, _ = json.loads(dict(refused.properties[Property.USER_PROPERTY])[REFUSED])
        assert (first.payload, refused.payload, refused.packet_id, code) == (b"first", b"", None, "overloaded")
        assert why == "the bridge is overloaded: its queue_bytes of 2000 bytes have no room for a payload of 1000 bytes"
        client.acknowledge(first)
        second = await client.next()
        client.acknowledge(second)
        assert (second.payload, (await client.next()).payload) == (b"x" * 1000, b"small")
        assert rig.endpoint.dropped == 0


@on_a_loop
async def test_an_event_that_another_session_subscribes_is_served_there_alone() -> None:
    async with serving() as rig:
        main, other = await rig.client("main", receive_maximum=1), await rig.client("other")
        await main.subscribe("t", 1, A)
        await main.subscribe("t", 2, B)
        for number in range(2):
            rig.endpoint.offer("t", b"%d" % number)
        await other.subscribe("t", 3, A)
        rig.endpoint.offer("t", b"2")
        there = await other.messages(2)
        assert [one.payload for one in there] == [b"1", b"2"]
        first = await main.next()
        main.acknowledge(first)
        second = await main.next()
        assert first.properties[Property.SUBSCRIPTION_IDENTIFIER] == [1, 2]
        assert second.properties[Property.SUBSCRIPTION_IDENTIFIER] == [2]


@on_a_loop
async def test_a_message_that_an_event_has_taken_before_does_not_come_again() -> None:
    async with serving() as rig:
        client = await rig.client("main")
        await client.subscribe("t", 1, A)
        await client.subscribe("t", 2, B)
        rig.endpoint.offer("t", b"1", taken=frozenset({A, B}))
        rig.endpoint.offer("t", b"2", taken=frozenset({A}))
        (come,) = await client.messages(1)
        assert (come.payload, come.properties[Property.SUBSCRIPTION_IDENTIFIER]) == (b"2", [2])


@on_a_loop
async def test_a_message_that_is_too_large_goes_without_its_payload() -> None:
    async with serving(max_message_bytes=10) as rig:
        client = await rig.client("main")
        await client.subscribe("t", 1, A)
        rig.endpoint.offer("t", b"x" * 11)
        (come,) = await client.messages(1)
        name, value = come.properties[Property.USER_PROPERTY][0]
        assert (come.payload, name) == (b"", "rest-bridge-refused")
        assert json.loads(value)[:2] == [
            "payload_too_large", "the message has 11 bytes, max_message_bytes allows 10",
        ]  # fmt: skip


@on_a_loop
async def test_the_bridge_publishes_and_is_acknowledged_once_the_broker_has_it() -> None:
    async with serving() as rig:
        client = await rig.client("own", is_kept=False)
        rig.publisher.holds = True
        publishing = asyncio.ensure_future(client.publish("out", b"1", qos="2", own="1", **{"rest-bridge-hops": "3"}))
        while not rig.publisher.waiting:
            await asyncio.sleep(0)
        assert not publishing.done()
        rig.publisher.waiting.pop()()
        assert isinstance(await publishing, Acknowledged)
        assert rig.publisher.published == [(Publication("out", b"1", qos=2), 3, True)]


@on_a_loop
async def test_packets_are_written_together_in_a_lull_of_the_loop_or_after_some_milliseconds() -> None:
    sent: list[bytes] = []
    transport = SimpleNamespace(write=sent.append, is_closing=lambda: False, set_write_buffer_limits=lambda _: None)
    connection = BridgeConnection(cast("PrivateEndpoint", Accepting()))
    connection.connection_made(cast("asyncio.Transport", transport))
    end = time.monotonic() + LONGEST_LULL / 2
    for packet in (b"1", b"2", b"3"):
        connection.write(packet)
        time.sleep(0.0002)  # it is busy
        await asyncio.sleep(0)
    assert sent == [] or time.monotonic() > end
    async with asyncio.timeout(SECONDS):
        while b"".join(sent) != b"123":
            time.sleep(0.0002)
            await asyncio.sleep(0)
    connection.write(b"4")
    while sent[-1] != b"4":
        await asyncio.sleep(0)


@on_a_loop
async def test_a_result_on_the_topic_by_which_the_bridge_is_ready_says_nothing() -> None:
    async with serving() as rig:
        main, own = await rig.client("main"), await rig.client("own", is_kept=False)
        await main.subscribe("t", 1, A)
        await own.publish(READY_TOPIC, b"[]")
        assert not rig.endpoint.ready.is_set()
        assert [publication.topic for publication, _, _ in rig.publisher.published] == [READY_TOPIC]
        rig.endpoint.offer("t", b"1")
        assert (await main.next()).payload == b"1"


@on_a_loop
async def test_the_bridge_is_ready_when_it_says_so_and_away_when_that_connection_ends() -> None:
    async with serving() as rig:
        away = asyncio.Event()
        rig.endpoint.on_away = away.set
        client = await rig.client("own", is_kept=False)
        assert not rig.endpoint.ready.is_set()
        await client.publish(READY_TOPIC, b"[]", own="1")
        assert rig.endpoint.ready.is_set()
        await client.close()
        await away.wait()
        assert not rig.endpoint.ready.is_set()
        assert rig.publisher.published == []


@on_a_loop
async def test_a_bridge_that_disconnects_is_not_away() -> None:
    async with serving() as rig:
        rig.endpoint.on_away = lambda: pytest.fail("it was announced")
        client = await rig.client("own", is_kept=False)
        await client.publish(READY_TOPIC, b"[]", own="1")
        client.write(packets.disconnect())
        with pytest.raises(EOFError):
            await client.next()
        assert not rig.endpoint.ready.is_set()


@on_a_loop
async def test_what_the_bridge_sent_before_its_disconnect_is_acknowledged() -> None:
    async with serving() as rig:
        client = await rig.client("own", is_kept=False)
        client.write(packets.publish("out", b"1", 7, properties={}) + packets.disconnect())
        assert (await client.next()).packet_id == 7
        with pytest.raises(EOFError):
            await client.next()


@on_a_loop
async def test_retained_messages_come_to_those_that_want_them_before_the_answer() -> None:
    async with serving() as rig:
        rig.retained = {f"t/{number}": b"x" for number in range(250)} | {"u": b"y"}
        client = await rig.client("own", is_kept=False, receive_maximum=1000)
        come = await client.subscribe("t/+", 1, retained=True)
        assert [one.retain for one in come] == [True] * 250
        rig.endpoint.offer_retained("t/9", b"new")
        assert (await client.next()).payload == b"new"


@on_a_loop
async def test_a_session_that_is_not_kept_holds_the_newest_messages() -> None:
    async with serving() as rig:
        client = await rig.client("own", is_kept=False, receive_maximum=1)
        await client.subscribe("t", 1)
        for number in range(10_011):
            rig.endpoint.offer("t", b"%d" % number)
        first = await client.next()
        client.acknowledge(first)
        assert (first.payload, (await client.next()).payload) == (b"0", b"11")


@on_a_loop
async def test_whether_the_bridge_was_heard_is_asked_again_and_again() -> None:
    async with serving() as rig:
        client = await rig.client("own", is_kept=False)
        assert rig.endpoint.has_heard()
        assert not rig.endpoint.has_heard()
        client.write(packets.pingreq())
        await client.next()
        assert rig.endpoint.has_heard()


@on_a_loop
async def test_no_other_account_reaches_the_socket_and_nothing_of_it_stays() -> None:
    async with serving() as rig:
        folder = rig.endpoint.address.folder
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not Path(folder).exists()


@on_a_loop
async def test_a_start_removes_the_folders_of_brokers_that_were_killed() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", folder)
        await remove_dead_folders(Path(folder))


async def remove_dead_folders(folder: Path) -> None:
    async with serving() as living:
        killed, young = (folder / f"rest-bridge-{name}" / "socket" for name in ("killed", "young"))
        for path in (killed, young):
            path.parent.mkdir()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(path))
        a_file, elsewhere = (folder / name / "socket" for name in ("rest-bridge-notes", "another"))
        for path in (a_file, elsewhere):
            path.parent.mkdir()
            path.write_text("kept")
        (folder / "rest-bridge-link").symlink_to(elsewhere.parent)
        for path in (killed, Path(str(living.endpoint.address.socket)), a_file, elsewhere):
            os.utime(path, (0, 0))
        async with serving():
            assert not killed.parent.exists()
            assert all(path.exists() for path in (young, a_file, elsewhere))
            await living.client("own")


@on_a_loop
async def test_messages_that_were_not_acknowledged_are_counted_by_route() -> None:
    async with serving() as rig:
        client = await rig.client("main", receive_maximum=1)
        await client.subscribe("t", 1, A)
        await client.subscribe("t", 2, B)
        for _ in range(3):
            rig.endpoint.offer("t", b"")
        assert rig.endpoint.unfinished() == {"Route": 3}


class Rows:
    """In the place of `Lossless`: keeps what it is given in memory."""

    has_events = True

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.rows: dict[str, int] = {}
        self.queues: dict[EventName, Any] = {}
        self.events: list[Any] = []

    def subscribe(self, wanted: Any, queue: Any) -> None:
        """Note a subscription."""
        self.events.append(wanted)
        self.queues[wanted.route, wanted.event] = queue

    def unsubscribe(self, name: EventName) -> None:
        """Note its end."""
        del self.queues[name]

    refusing = None

    def offer(self, *_: Any) -> None:
        """Take nothing."""

    def adopt(self, name: EventName, queue: Any) -> None:
        """Note the queue of an event that is not lossless."""
        self.queues[name] = queue

    def put_again(self, keys: Any) -> None:
        """Put nothing: the events of these tests are gone."""
        assert all(key in self.kept for key in keys)

    def bridge_is_ready(self) -> None:
        """Do nothing."""

    def read(self, key: str) -> Any:
        """Return a row."""
        return self.kept.get(key)

    def forget_row(self, key: str) -> None:
        """Remove a row."""
        del self.kept[key]


class Row:
    """A row."""

    def __init__(self, message: Message, hops: int = 0) -> None:
        self.message, self.hops = message, hops


@on_a_loop
async def test_rows_beyond_the_window_are_read_when_their_turn_comes_and_end_with_their_puback() -> None:
    rows = Rows()
    async with serving(lossless=rows) as rig:
        client = await rig.client("lossless:Route", receive_maximum=1)
        await client.subscribe("t", 7, A, "100 1000 0 1.0")
        for number in range(3):
            rows.kept[f"k{number}"] = Row(Message("t", b"%d" % number, 5.0))
            rows.queues[A].put(A, f"k{number}", rows.kept[f"k{number}"].message, 0)
        seen = []
        for _ in range(3):
            come = await client.next()
            seen.append((come.payload, dict(come.properties[Property.USER_PROPERTY])))
            client.acknowledge(come)
        assert [payload for payload, _ in seen] == [b"0", b"1", b"2"]
        assert seen[2][1] == {"rest-bridge-time": "5.0", "idempotency-key": "k2"}
        await client.subscribe("t", 7, A, "100 1000 0 1.0")
        assert rows.kept == {}
        assert len(rows.events) == 1


@on_a_loop
async def test_lossless_messages_that_were_refused_wait_up_to_a_bound_and_are_counted_beyond_it() -> None:
    rows = Rows()
    async with serving(lossless=rows) as rig:
        client = await rig.client("lossless:Route")
        await client.subscribe("t", 7, A, "100 1000 0 1.0")
        await client.close()
        for _ in range(4):
            failure = ROUTE_FULL.error("the route is overloaded")
            rows.queues[A].refuse(A, Message("t", bytes(3 << 20), 5.0), 0, failure)
        assert rig.endpoint.dropped == 2
        again = await rig.client("lossless:Route")
        for refused in await again.messages(2):
            assert REFUSED in dict(refused.properties[Property.USER_PROPERTY])


@on_a_loop
async def test_rows_in_flight_come_again_first_and_those_of_a_removed_event_stay_on_disk() -> None:
    rows = Rows()
    async with serving(lossless=rows) as rig:
        client = await rig.client("lossless:Route", receive_maximum=2)
        await client.subscribe("a", 7, A, "100 1000 0 1.0")
        await client.subscribe("b", 8, B, "100 1000 0 1.0")
        for number, (name, topic) in enumerate([(A, "a"), (B, "b"), (A, "a"), (B, "b")]):
            rows.kept[f"k{number}"] = Row(Message(topic, b"%d" % number, 5.0))
            rows.queues[name].put(name, f"k{number}", None, 0)
        await client.messages(2)
        await client.unsubscribe("b", B)
        await client.close()
        again = await rig.client("lossless:Route", receive_maximum=2)
        first, second = await again.messages(2)
        assert [(one.payload, one.duplicate) for one in (first, second)] == [(b"0", True), (b"2", False)]
        assert rows.kept.keys() == {"k0", "k1", "k2", "k3"}
