"""The endpoint of the bridge, over its socket: what it sends, keeps, drops, and how sessions go on."""

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from amqtt_rest_bridge.broker.endpoint import PrivateEndpoint
from amqtt_rest_bridge.broker.lossless import Lossless
from amqtt_rest_bridge.lot.model import EventName, Publication
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
from amqtt_rest_bridge.store import Spool

A, B = ("Route", "A"), ("Route", "B")
KEPT = "100 1000 0 1.0"
"""The bounds of a lossless event: see `LOSSLESS`."""


def identifiers(message: Publish) -> Any:
    return message.properties[Property.SUBSCRIPTION_IDENTIFIER]


def user_properties(message: Publish) -> dict[str, str]:
    return dict(message.properties[Property.USER_PROPERTY])


class Client:
    """A client of the endpoint that does nothing by itself."""

    connack: Connack

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

    async def messages(self, count: int) -> list[Publish]:
        return [await self.next() for _ in range(count)]

    async def payloads(self, count: int) -> list[bytes]:
        return [message.payload for message in await self.messages(count)]

    def write(self, packet: bytes) -> None:
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
        self.write(packets.unsubscribe(self._number, topic_filter, {Property.USER_PROPERTY: user}))
        assert (await self.next()).kind == standard.UNSUBACK

    async def acknowledge_next(self) -> Publish:
        """Read a message and send its PUBACK."""
        message: Publish = await self.next()
        self.write(packets.acknowledgement(standard.PUBACK, message.packet_id or 0))
        return message

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


class Publishing:
    """In the place of `Publisher`: notes what is published, and is done with it at once unless it `holds`."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.holds = False
        self.published: list[tuple[Publication, int, bool]] = []
        self.waiting: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def put(self, publication: Publication, hops: int, *, own: bool, done: Callable[[], None]) -> None:
        self.published.append((publication, hops, own))
        if self.holds:
            self.waiting.append(done)
        else:
            done()


class Rig:
    """An endpoint that is served, and clients of it."""

    def __init__(self, **options: Any) -> None:
        self.publisher = Publishing()
        self.retained: dict[str, bytes] = {}
        settings = {"queue_bytes": 1 << 20, "max_message_bytes": 1 << 20} | options
        self.endpoint = PrivateEndpoint(self.publisher, lambda: list(self.retained.items()), **settings)  # type: ignore[arg-type]
        self._clients: list[Client] = []

    async def client(self, client_id: str, *, is_kept: bool = True, receive_maximum: int = 100) -> Client:
        reader, writer = await asyncio.open_unix_connection(str(self.endpoint.address.socket))
        client = Client(reader, writer)
        self._clients.append(client)
        properties: dict[Property, Any] = {Property.RECEIVE_MAXIMUM: receive_maximum}
        properties |= {Property.SESSION_EXPIRY_INTERVAL: 60} if is_kept else {}
        client.write(packets.connect(client_id, keep_alive=15, clean=not is_kept, properties=properties))
        client.connack = await client.next()
        assert isinstance(client.connack, Connack)
        return client

    async def own(self) -> Client:
        """Connect with a session that is not kept."""
        return await self.client("own", is_kept=False)

    async def main(self, *names: EventName, receive_maximum: int = 100, lossless: str | None = None) -> Client:
        """Connect with a session that is kept, and subscribe events to the topic `t`."""
        client = await self.client("main", receive_maximum=receive_maximum)
        for identifier, name in enumerate(names, 1):
            await client.subscribe("t", identifier, name, lossless)
        return client

    def offer(self, *payloads: bytes, topic: str = "t") -> None:
        for payload in payloads:
            self.endpoint.offer(topic, payload)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self.endpoint.close()


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Rig]:
    rig = Rig(**options)
    await rig.endpoint.serve()
    try:
        yield rig
    finally:
        await rig.close()


def with_endpoint(
    *, lossless: bool = False, **options: Any
) -> Callable[[Callable[[Rig], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test on an event loop of its own, with an endpoint of these options and, if it is lossless, a spool."""

    def decorate(test: Callable[[Rig], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def run(**more: Any) -> None:
            async with serving(**options, **more) as rig:
                await test(rig)

        def run_on_a_loop() -> None:
            if not lossless:
                asyncio.run(run())
                return
            with tempfile.TemporaryDirectory() as folder, closing(Spool(Path(folder, "spool.db"))) as spool:
                acl = cast("Any", SimpleNamespace(is_there=False))
                asyncio.run(run(lossless=Lossless(spool, acl, lambda: 5.0, lambda *_: None, 1 << 20)))

        return run_on_a_loop

    return decorate


@with_endpoint()
async def test_a_message_is_sent_once_with_all_identifiers_of_its_session(rig: Rig) -> None:
    client = await rig.client("main")
    await client.subscribe("t/#", 1, A)
    await client.subscribe("t/+", 2, B)
    rig.offer(b"1", topic="t/x")
    rig.offer(b"2", topic="u")
    rig.endpoint.offer("t/x", b"3", hops=2)
    first, second = await client.messages(2)
    assert (first.topic, first.payload, first.duplicate, second.payload) == ("t/x", b"1", False, b"3")
    assert first.properties == {Property.SUBSCRIPTION_IDENTIFIER: [1, 2]}
    assert user_properties(second)["rest-bridge-hops"] == "2"


@with_endpoint()
async def test_topics_of_messages_that_concern_no_event_are_sent_while_the_bridge_asks_for_them(rig: Rig) -> None:
    own, main = await rig.own(), await rig.client("main")
    await main.subscribe("t/#", 1, A)
    await own.subscribe("read", 2)
    await own.subscribe(UNMATCHED_TOPIC, 3)
    for topic in ("t/x", "$SYS/broker/uptime", "other/é", "read"):
        rig.offer(b"1", topic=topic)
    assert [(one.topic, one.payload) for one in await own.messages(3)] == [
        (UNMATCHED_TOPIC, "other/é".encode()), (UNMATCHED_TOPIC, b"read"), ("read", b"1"),
    ]  # fmt: skip
    await own.unsubscribe(UNMATCHED_TOPIC)
    for topic in ("other", "read"):
        rig.offer(b"2", topic=topic)
    assert (await own.next()).topic == "read"


@with_endpoint()
async def test_messages_wait_for_the_window_and_for_a_kept_session_that_is_away(rig: Rig) -> None:
    client = await rig.main(A, receive_maximum=2)
    rig.offer(b"0", b"1", b"2", b"3")
    assert (await client.acknowledge_next()).payload == b"0"
    assert await client.payloads(2) == [b"1", b"2"]
    await client.close()
    rig.offer(b"4")
    again = await rig.client("main", receive_maximum=10)
    assert again.connack.session_present
    assert [(one.payload, one.duplicate) for one in await again.messages(4)] == [
        (b"1", True), (b"2", True), (b"3", False), (b"4", False),
    ]  # fmt: skip


@with_endpoint()
async def test_a_message_whose_result_has_come_does_not_come_again_for_that_event(rig: Rig) -> None:
    client, own = await rig.main(A, B), await rig.own()
    rig.offer(b"both", b"one", b"none")
    both, one, _ = [message.packet_id for message in await client.messages(3)]
    await own.publish("out", b"", **{ENDS: f"main {both} 1,main {both} 2"})
    await own.publish("out", b"", **{ENDS: f"main {one} 1"})
    await client.close()
    again = await (await rig.client("main")).messages(2)
    assert [(came.payload, identifiers(came)) for came in again] == [(b"one", [2]), (b"none", [1, 2])]


@with_endpoint(queue_bytes=2000)
async def test_what_is_beyond_queue_bytes_is_dropped_counted_and_told(rig: Rig) -> None:
    client = await rig.main(A)
    await client.close()
    rig.offer(*[b"x" * 500] * 4)
    assert rig.endpoint.dropped == 2
    own = await rig.own()
    await own.subscribe(BROKER_TOPIC, 2)
    told = json.loads((await own.next()).payload)
    assert told == {"dropped": 2, "restarts": 0, "spool": {}, "refusing": None, "errors": [], "trouble": None}


@with_endpoint(queue_bytes=2000)
async def test_a_bridge_that_is_behind_hears_of_what_is_beyond_queue_bytes_and_what_is_small_still_has_room(
    rig: Rig,
) -> None:
    client = await rig.main(A, receive_maximum=1)
    rig.offer(b"first", b"x" * 1000, b"y" * 1000, b"small")
    assert (await client.acknowledge_next()).payload == b"first"
    refused = await client.next()
    code, why, _ = json.loads(user_properties(refused)[REFUSED])
    assert (refused.payload, refused.packet_id, code) == (b"", None, "overloaded")
    assert why == "the bridge is overloaded: its queue_bytes of 2000 bytes have no room for a payload of 1000 bytes"
    assert (await client.acknowledge_next()).payload == b"x" * 1000
    assert (await client.next()).payload == b"small"
    assert rig.endpoint.dropped == 0


@with_endpoint()
async def test_an_event_that_another_session_subscribes_is_served_there_alone(rig: Rig) -> None:
    main, other = await rig.main(A, B, receive_maximum=1), await rig.client("other")
    rig.offer(b"0", b"1")
    await other.subscribe("t", 3, A)
    rig.offer(b"2")
    assert await other.payloads(2) == [b"1", b"2"]
    assert identifiers(await main.acknowledge_next()) == [1, 2]
    assert identifiers(await main.next()) == [2]


@with_endpoint()
async def test_a_message_that_an_event_has_taken_before_does_not_come_again(rig: Rig) -> None:
    client = await rig.main(A, B)
    rig.endpoint.offer("t", b"1", taken=frozenset({A, B}))
    rig.endpoint.offer("t", b"2", taken=frozenset({A}))
    come = await client.next()
    assert (come.payload, identifiers(come)) == (b"2", [2])


@with_endpoint(max_message_bytes=10)
async def test_a_message_that_is_too_large_goes_without_its_payload(rig: Rig) -> None:
    client = await rig.main(A)
    rig.offer(b"x" * 11)
    come = await client.next()
    code, why, _ = json.loads(user_properties(come)["rest-bridge-refused"])
    assert (come.payload, code) == (b"", "payload_too_large")
    assert why == "the message has 11 bytes, max_message_bytes allows 10"


@with_endpoint()
async def test_the_bridge_publishes_and_is_acknowledged_once_the_broker_has_it(rig: Rig) -> None:
    client = await rig.own()
    rig.publisher.holds = True
    publishing = asyncio.ensure_future(client.publish("out", b"1", qos="2", own="1", **{"rest-bridge-hops": "3"}))
    while not rig.publisher.waiting:
        await asyncio.sleep(0)
    assert not publishing.done()
    rig.publisher.waiting.pop()()
    assert isinstance(await publishing, Acknowledged)
    assert rig.publisher.published == [(Publication("out", b"1", qos=2), 3, True)]


@with_endpoint()
async def test_a_result_on_the_topic_by_which_the_bridge_is_ready_says_nothing(rig: Rig) -> None:
    main, own = await rig.main(A), await rig.own()
    await own.publish(READY_TOPIC, b"[]")
    assert not rig.endpoint.ready.is_set()
    assert [publication.topic for publication, _, _ in rig.publisher.published] == [READY_TOPIC]
    rig.offer(b"1")
    assert (await main.next()).payload == b"1"


@with_endpoint()
async def test_the_bridge_is_ready_when_it_says_so_and_away_when_that_connection_ends(rig: Rig) -> None:
    away = asyncio.Event()
    rig.endpoint.on_away = away.set
    client = await rig.own()
    assert not rig.endpoint.ready.is_set()
    await client.publish(READY_TOPIC, b"[]", own="1")
    assert rig.endpoint.ready.is_set()
    await client.close()
    await away.wait()
    assert not rig.endpoint.ready.is_set()
    assert rig.publisher.published == []


@with_endpoint()
async def test_a_bridge_that_disconnects_is_not_away_and_what_it_sent_before_is_acknowledged(rig: Rig) -> None:
    rig.endpoint.on_away = lambda: pytest.fail("it was announced")
    client = await rig.own()
    await client.publish(READY_TOPIC, b"[]", own="1")
    client.write(packets.publish("out", b"1", 7, properties={}) + packets.disconnect())
    assert (await client.next()).packet_id == 7
    with pytest.raises(EOFError):
        await client.next()
    assert not rig.endpoint.ready.is_set()


@with_endpoint()
async def test_retained_messages_come_to_those_that_want_them_before_the_answer(rig: Rig) -> None:
    rig.retained = {f"t/{number}": b"x" for number in range(250)} | {"u": b"y"}
    client = await rig.client("own", is_kept=False, receive_maximum=1000)
    come = await client.subscribe("t/+", 1, retained=True)
    assert [one.retain for one in come] == [True] * 250
    rig.endpoint.offer_retained("t/9", b"new")
    assert (await client.next()).payload == b"new"


@with_endpoint()
async def test_a_session_that_is_not_kept_holds_the_newest_messages(rig: Rig) -> None:
    client = await rig.client("own", is_kept=False, receive_maximum=1)
    await client.subscribe("t", 1)
    rig.offer(*(b"%d" % number for number in range(10_011)))
    assert [(await client.acknowledge_next()).payload for _ in range(2)] == [b"0", b"11"]


@with_endpoint()
async def test_whether_the_bridge_was_heard_is_asked_again_and_again(rig: Rig) -> None:
    client = await rig.own()
    assert [rig.endpoint.has_heard(), rig.endpoint.has_heard()] == [True, False]
    client.write(packets.pingreq())
    await client.next()
    assert rig.endpoint.has_heard()


@with_endpoint()
async def test_messages_that_were_not_acknowledged_are_counted_by_route(rig: Rig) -> None:
    await rig.main(A, B, receive_maximum=1)
    rig.offer(b"", b"", b"")
    assert rig.endpoint.unfinished() == {"Route": 3}


# The socket.


def test_no_other_account_reaches_the_socket_and_nothing_of_it_stays() -> None:
    async def folder_of_an_endpoint() -> Path:
        async with serving() as rig:
            folder = rig.endpoint.address.folder
            assert folder is not None
            assert folder.stat().st_mode & 0o777 == 0o700
            return folder

    assert not asyncio.run(folder_of_an_endpoint()).exists()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder: the path of a Unix socket has a hundred bytes at most, and `tmp_path` may be too long."""
    with tempfile.TemporaryDirectory(prefix="b") as folder:
        yield Path(folder)


def test_a_start_removes_the_folders_of_brokers_that_were_killed(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))

    async def run() -> None:
        async with serving() as living:
            killed, young = (short_path / f"rest-bridge-{name}" / "socket" for name in ("killed", "young"))
            for path in (killed, young):
                path.parent.mkdir()
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.bind(str(path))
            a_file, elsewhere = (short_path / name / "socket" for name in ("rest-bridge-notes", "another"))
            for path in (a_file, elsewhere):
                path.parent.mkdir()
                path.write_text("kept")
            (short_path / "rest-bridge-link").symlink_to(elsewhere.parent)
            for path in (killed, Path(str(living.endpoint.address.socket)), a_file, elsewhere):
                os.utime(path, (0, 0))
            async with serving():
                assert not killed.parent.exists()
                assert all(path.exists() for path in (young, a_file, elsewhere))
                await living.client("own")

    asyncio.run(run())


# Messages on disk.


@with_endpoint(lossless=True)
async def test_rows_beyond_the_window_are_read_when_their_turn_comes_and_end_with_their_puback(rig: Rig) -> None:
    client = await rig.main(A, receive_maximum=1, lossless=KEPT)
    rig.offer(b"0", b"1", b"2")
    seen = [await client.acknowledge_next() for _ in range(3)]
    assert [message.payload for message in seen] == [b"0", b"1", b"2"]
    assert user_properties(seen[2])["rest-bridge-time"] == "5.0"
    assert len({user_properties(message)["idempotency-key"] for message in seen}) == 3
    assert await client.subscribe("t", 1, A, KEPT) == []  # its answer comes behind the PUBACKs
    assert rig.endpoint._lossless is not None
    assert rig.endpoint._lossless.rows == {}


@with_endpoint(lossless=True)
async def test_lossless_messages_that_were_refused_wait_up_to_a_bound_and_are_counted_beyond_it(rig: Rig) -> None:
    client = await rig.main(A, lossless=KEPT)
    await client.close()
    rig.offer(*[bytes(3 << 20)] * 4)
    assert rig.endpoint.dropped == 2
    again = await rig.client("main")
    for refused in await again.messages(2):
        assert REFUSED in user_properties(refused)


@with_endpoint(lossless=True)
async def test_rows_in_flight_come_again_first_and_those_of_a_removed_event_stay_on_disk(rig: Rig) -> None:
    client = await rig.client("lossless:Route", receive_maximum=2)
    await client.subscribe("a", 7, A, KEPT)
    await client.subscribe("b", 8, B, KEPT)
    for payload, topic in ((b"0", "a"), (b"1", "b"), (b"2", "a"), (b"3", "b")):
        rig.offer(payload, topic=topic)
    assert await client.payloads(2) == [b"0", b"1"]
    await client.unsubscribe("b", B)
    await client.close()
    again = await rig.client("lossless:Route", receive_maximum=2)
    assert [(one.payload, one.duplicate) for one in await again.messages(2)] == [(b"0", True), (b"2", False)]
    assert rig.endpoint._lossless is not None
    assert rig.endpoint._lossless.rows == {"Route": 4}
