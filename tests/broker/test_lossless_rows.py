"""Lossless routes in front of a queue: which messages have rows, when the queue gets them, and when an ACL decides."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import IncomingApplicationMessage, Session

from amqtt_rest_bridge.broker.acl import AclTimes
from amqtt_rest_bridge.broker.lossless import Lossless, LosslessEvent, taken_by
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import EventName, Message
from amqtt_rest_bridge.store import Kept, Spool
from amqtt_rest_bridge.times import Backoff
from tests.support.lossless import on_disk

E = LosslessEvent("R", "E", "in/#", 1000, 1 << 20)
AT_ONCE = AclTimes(failed=Backoff(0.0))


class Queue:
    """What a session of the bridge gets."""

    def __init__(self) -> None:
        self.put_rows: list[tuple[EventName, str, Message | None, int]] = []
        self.refusals: list[tuple[EventName, Message, int, CallError]] = []

    def put(self, name: EventName, key: str, message: Message | None, hops: int) -> None:
        self.put_rows.append((name, key, message, hops))

    def refuse(self, name: EventName, message: Message, hops: int, failure: CallError) -> None:
        self.refusals.append((name, message, hops, failure))

    @property
    def keys(self) -> list[str]:
        return [key for _, key, _, _ in self.put_rows]

    @property
    def payloads(self) -> list[bytes | None]:
        return [None if message is None else message.payload for _, _, message, _ in self.put_rows]


MayPublish = Callable[[Session, str], Awaitable[bool]]


class Rig:
    """A store of lossless messages on a spool of its own; `errors` are those that it has reported."""

    def __init__(self, path: Path) -> None:
        self.spool = Spool(path)
        self.errors: list[tuple[str, str, str]] = []

    def store(self, may_publish: MayPublish | None = None, times: AclTimes | None = None) -> Lossless:
        """Make the store; without an ACL every client may publish."""
        return Lossless(
            self.spool,
            cast("Any", SimpleNamespace(may_publish=may_publish or yes, is_there=may_publish is not None)),
            lambda: 1000.0,
            lambda *error: self.errors.append(error),
            2000,
            times,
        )


async def yes(_session: Session, _topic: str) -> bool:
    return True


async def no(_session: Session, _topic: str) -> bool:
    return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture
def rig(path: Path) -> Iterator[Rig]:
    rig = Rig(path)
    with contextlib.closing(rig.spool):
        yield rig


def session_of(client_id: str, username: str | None = None) -> Session:
    session = Session()
    session.client_id, session.username = client_id, username
    return session


def packet_of(topic: str, payload: bytes, qos: int = 1, *, dup: bool = False) -> PublishPacket:
    packet = PublishPacket.build("t", payload, 7, dup, qos, False)
    packet.topic_name = topic  # `build` takes no wildcards, clients send them
    return packet


async def published(store: Lossless, payload: bytes, topic: str = "in/x", session: Session | None = None) -> bytes:
    """Handle a packet, and return the payload that amqtt passes on to the broadcast."""
    packet = packet_of(topic, payload)
    await store.on_packet(packet=packet, session=session or session_of("me"))
    return packet.data or b""


def broadcast(store: Lossless, session: Session | None, topic: str, payload: bytes) -> None:
    store.offer(topic, payload, 0, taken_by(session, topic, payload))


def run(store: Lossless, scenario: Callable[[], Awaitable[None]], until: Callable[[], object] = lambda: True) -> None:
    """Run a scenario beside the store, and then until a condition holds."""

    async def both() -> None:
        running = asyncio.create_task(store.run())
        async with asyncio.timeout(10):
            await scenario()
            while store._undecided or not until():
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait((running,))

    asyncio.run(both())


def publish(store: Lossless, *payloads: bytes, topic: str = "in/x") -> None:
    """Publish as a client, and wait until the ACL has decided."""

    async def scenario() -> None:
        for payload in payloads:
            await published(store, payload, topic)

    run(store, scenario)


def test_a_message_is_on_disk_when_its_hook_first_waits_and_gone_when_its_call_has_ended(rig: Rig, path: Path) -> None:
    store, queue = rig.store(yes), Queue()
    store.subscribe(E, queue)
    with pytest.raises(StopIteration):
        store.on_packet(packet=packet_of("in/x", b"1"), session=session_of("me")).send(None)
    assert on_disk(path) == 1
    assert queue.put_rows == [], "it was sent before the ACL was asked"
    publish(store, b"2")
    assert queue.payloads == [b"1", b"2"]
    for key in queue.keys:
        store.forget_row(key)
    rig.spool.flush()
    assert (on_disk(path), dict(store.rows)) == (0, {})


def test_without_an_acl_a_message_is_put_before_its_hook_first_waits(rig: Rig) -> None:
    store, queue = rig.store(), Queue()
    store.subscribe(E, queue)
    with pytest.raises(StopIteration):
        store.on_packet(packet=packet_of("in/x", b"1"), session=session_of("me")).send(None)
    assert queue.payloads == [b"1"]
    assert rig.spool._connection.execute("SELECT client_id FROM calls").fetchall() == [(None,)]


def test_each_event_that_a_message_matches_has_a_row_with_a_key_of_its_own(rig: Rig) -> None:
    store, queue, other = rig.store(), Queue(), Queue()
    store.subscribe(E, queue)
    store.subscribe(replace(E, event="F", topic_filter="in/x"), queue)
    store.subscribe(replace(E, route="Other", topic_filter="in/+"), other)
    store.subscribe(replace(E, event="G", topic_filter="out"), queue)
    publish(store, b"1")
    assert [name for name, *_ in queue.put_rows] == [("R", "E"), ("R", "F")]
    assert [name for name, *_ in other.put_rows] == [("Other", "E")]
    assert len({*queue.keys, *other.keys}) == 3
    assert store.rows == {"R": 2, "Other": 1}


@pytest.mark.parametrize(("topic", "rows"), [("in/x", 1), ("in/+", 0), ("in/#", 0), ("$in/x", 0)])
def test_a_topic_that_amqtt_lets_no_client_publish_to_has_no_row(rig: Rig, topic: str, rows: int) -> None:
    store = rig.store()
    store.subscribe(E, Queue())
    store.subscribe(replace(E, route="D", topic_filter="$in/#"), Queue())
    publish(store, b"1", topic=topic)
    assert sum(store.rows.values()) == rows


# What the broadcast offers.


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_a_message_has_one_row_whatever_a_reload_makes_of_its_route_between_packet_and_broadcast(
    rig: Rig, *, before: bool, after: bool
) -> None:
    session, store, queue = session_of("me"), rig.store(), Queue()

    async def scenario() -> None:
        if before:
            store.subscribe(E, queue)
        payload = await published(store, b"payload", session=session)
        if before and not after:
            store.unsubscribe(E.name)
        elif after and not before:
            store.subscribe(E, queue)
        assert taken_by(session, "in/x", payload) == (frozenset({E.name}) if before else ())
        broadcast(store, session, "in/x", payload)

    run(store, scenario)
    assert sum(store.rows.values()) == (before or after)
    store.subscribe(E, queue)
    assert len(set(queue.keys)) == (before or after)


def test_an_event_that_comes_between_packet_and_broadcast_has_the_message_too(rig: Rig) -> None:
    store, queue, session = rig.store(), Queue(), session_of("me")
    store.subscribe(E, queue)

    async def scenario() -> None:
        payload = await published(store, b"1", session=session)
        store.subscribe(replace(E, route="New"), queue)
        broadcast(store, session, "in/x", payload)

    run(store, scenario)
    assert sorted(name for name, *_ in queue.put_rows) == [("New", "E"), ("R", "E")]


def test_a_plugin_that_publishes_a_clients_payload_again_is_heard(rig: Rig) -> None:
    store, queue, session = rig.store(), Queue(), session_of("me")
    store.subscribe(E, queue)

    async def scenario() -> None:
        payload = await published(store, b"1", session=session)
        for publisher, topic in ((session, "in/x"), (None, "in/x"), (None, "in/y"), (session, "in/z")):
            broadcast(store, publisher, topic, payload)

    run(store, scenario)
    topics = sorted(message.topic for _, _, message, _ in queue.put_rows if message is not None)
    assert topics == ["in/x", "in/x", "in/y", "in/z"]


def test_what_no_packet_has_brought_has_a_row_at_once_whatever_the_acl_says_and_keeps_its_hops(
    rig: Rig, path: Path
) -> None:
    store, queue = rig.store(no), Queue()
    store.subscribe(E, queue)
    store.offer("in/x", b"will", 3, ())
    ((name, key, message, hops),) = queue.put_rows
    assert (name, message, hops) == (E.name, Message("in/x", b"will", 1000.0), 3)
    assert on_disk(path) == 1
    assert store.read(key) == Kept(key, "R", "E", Message("in/x", b"will", 1000.0), 3, None, None)


def test_a_repeated_message_of_qos_2_has_one_row(rig: Rig) -> None:
    store, queue, session = rig.store(), Queue(), session_of("me")
    store.subscribe(E, queue)

    async def scenario() -> None:
        first = packet_of("in/x", b"1", 2)
        await store.on_packet(packet=first, session=session)
        assert first.data is not None
        session.inflight_in[7] = IncomingApplicationMessage(7, "in/x", 2, first.data, False)
        again = packet_of("in/x", b"1", 2, dup=True)
        await store.on_packet(packet=again, session=session)
        broadcast(store, session, "in/x", again.data or b"")

    run(store, scenario)
    assert queue.payloads == [b"1"]


# What is not kept.


def test_a_route_that_holds_its_most_messages_of_all_events_refuses_the_newest(rig: Rig, path: Path) -> None:
    store, queue = rig.store(), Queue()
    small = replace(E, most=2)
    store.subscribe(small, queue)
    store.subscribe(replace(small, event="F", topic_filter="other"), queue)
    publish(store, b"1")
    publish(store, b"2", topic="other")
    publish(store, b"3")
    ((name, message, _, failure),) = queue.refusals
    assert (name, message.payload, failure.code) == (E.name, b"3", FailureCode.OVERLOADED)
    assert failure.message == "the route is overloaded: its OVERLOAD_CAPACITY of 2 messages is used up"
    assert on_disk(path) == 2
    store.forget_row(queue.keys[1])
    publish(store, b"4")
    assert queue.payloads == [b"1", b"2", b"4"]


def test_a_route_without_room_for_the_bytes_refuses_the_newest_but_takes_one_of_any_size(rig: Rig, path: Path) -> None:
    store, queue = rig.store(), Queue()
    store.subscribe(replace(E, most_bytes=1024), queue)
    publish(store, b"x" * 1500, b"y")
    ((_, message, _, failure),) = queue.refusals
    assert (message.payload, failure.code) == (b"y", FailureCode.OVERLOADED)
    assert failure.message == (
        "the route is overloaded: its OVERLOAD_BYTES of 1 KiB have no room for a payload of 1 byte"
    )
    assert on_disk(path) == 1


def test_a_full_disk_refuses_the_newest_message_and_keeps_the_others(rig: Rig, path: Path) -> None:
    store, queue = rig.store(), Queue()
    store.subscribe(E, queue)
    publish(store, b"kept")
    pages = rig.spool._connection.execute("PRAGMA page_count").fetchone()[0]
    rig.spool._connection.execute(f"PRAGMA max_page_count = {pages}")
    while not queue.refusals:
        publish(store, b"x" * 1500)
    ((_, _, _, failure),) = queue.refusals
    assert failure.message.startswith("the message could not be written to the spool: ")
    assert store.refusing is not None
    assert store.rows == {"R": on_disk(path)} == {"R": len(queue.keys)}
    assert queue.payloads[0] == b"kept"


# The ACL.


def test_the_acl_is_asked_for_the_user_that_published_not_for_a_later_one(rig: Rig) -> None:
    asked: list[tuple[str | None, str | None]] = []
    session = session_of("a", "bob")

    async def answer(publisher: Session, _topic: str) -> bool:
        asked.append((publisher.client_id, publisher.username))
        return publisher.username == "ann"

    store, queue = rig.store(answer), Queue()
    store.subscribe(E, queue)

    async def scenario() -> None:
        await published(store, b"1", session=session)
        session.username = "ann"

    run(store, scenario)
    assert asked == [("a", "bob")]
    assert queue.put_rows == []


def test_an_acl_that_fails_is_asked_again_and_its_answer_counts(
    rig: Rig, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[bool | Exception] = [ZeroDivisionError(), ZeroDivisionError(), True, ZeroDivisionError(), False]

    async def answer(_session: Session, _topic: str) -> bool:
        verdict = answers.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    store, queue = rig.store(answer, times=AT_ONCE), Queue()
    store.subscribe(E, queue)
    publish(store, b"1")
    publish(store, b"2")
    assert answers == []
    assert caplog.text.count("the ACL did not say whether") == 1
    assert [(route, code) for route, code, _ in rig.errors] == [("R", "acl_failed")] * 3
    assert queue.payloads == [b"1"]
    rig.spool.flush()
    assert rig.spool._connection.execute("SELECT client_id FROM calls").fetchall() == [(None,)]


def test_an_acl_that_is_slow_for_one_publisher_delays_that_one_alone_and_keeps_its_order(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue()

    async def scenario() -> None:
        answers = asyncio.Event()

        async def answer(publisher: Session, _topic: str) -> bool:
            if publisher.client_id == "bob":
                await answers.wait()
            return True

        store = rig.store(answer, times=AclTimes(slow=0.001))
        store.subscribe(E, queue)
        running = asyncio.create_task(store.run())
        for client, payload in [("bob", b"1"), ("bob", b"2"), ("ann", b"3"), ("bob", b"4"), ("ann", b"5")]:
            await published(store, payload, session=session_of(client))
        while len(queue.keys) < 2 or not rig.errors:
            await asyncio.sleep(0)
        assert queue.payloads == [b"3", b"5"]
        answers.set()
        while len(queue.keys) < 5:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    assert queue.payloads == [b"3", b"5", b"1", b"2", b"4"]
    assert "the ACL has not said for 0.001 s whether bob may publish on in/x; its messages wait" in caplog.text
    assert [(route, code) for route, code, _ in rig.errors] == [("R", "acl_slow")]


def test_a_store_that_stops_before_the_acl_has_decided_asks_again_when_it_runs_again(rig: Rig) -> None:
    queue, asked = Queue(), []

    async def answer(_publisher: Session, _topic: str) -> bool:
        asked.append(1)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return True

    async def scenario() -> None:
        store = rig.store(answer)
        store.subscribe(E, queue)
        for payload in (b"1", b"2"):
            await published(store, payload)
        running = asyncio.create_task(store.run())
        while not asked:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait((running,))
        running = asyncio.create_task(store.run())
        async with asyncio.timeout(10):
            while len(queue.keys) < 2:
                await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    assert queue.payloads == [b"1", b"2"]


def test_payloads_beyond_16_mib_that_wait_for_the_acl_are_read_again_when_it_has_decided(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.broker.lossless._MOST_UNDECIDED", 1500)
    store, queue = rig.store(yes), Queue()
    store.subscribe(E, queue)
    publish(store, *(b"%d" % number * 1000 for number in range(4)))
    assert [payload is None for payload in queue.payloads] == [False, False, True, True]
    read = [store.read(key) for key in queue.keys]
    assert [row.message.payload[:1] for row in read if row is not None] == [b"0", b"1", b"2", b"3"]
    publish(store, b"small again")
    assert queue.payloads[-1] == b"small again"


# What is on disk before its event has a queue.


def left(path: Path, *rows: tuple[str, str, bytes], client: tuple[str, str | None] | None = None) -> list[str]:
    """Leave rows of route, event and payload on disk; return their keys."""
    with contextlib.closing(Spool(path)) as spool:
        return [spool.keep(route, event, Message("in/x", payload, 5.0), 2, client) for route, event, payload in rows]


def test_what_an_earlier_run_left_is_put_by_its_keys_oldest_first_and_read_when_its_turn_comes(path: Path) -> None:
    keys = left(path, ("R", "E", b"0"), ("R", "F", b"1"), ("R", "E", b"2"))
    rig, queue = Rig(path), Queue()
    with contextlib.closing(rig.spool):
        store = rig.store()
        assert store.rows == {"R": 3}
        store.subscribe(E, queue)
        publish(store, b"new")
        assert queue.put_rows[:2] == [(E.name, keys[0], None, 0), (E.name, keys[2], None, 0)]
        assert queue.payloads[2:] == [b"new"]
        row = store.read(keys[2])
        assert row is not None
        assert (row.message, row.hops) == (Message("in/x", b"2", 5.0), 2)
        store.forget_row(keys[2])
        rig.spool.flush()
        assert store.read(keys[2]) is None


def test_what_a_publisher_sends_while_the_acl_decides_about_its_earlier_messages_goes_behind_them(path: Path) -> None:
    keys = left(path, ("R", "E", b"0"), ("R", "E", b"1"))
    keys += left(path, ("R", "E", b"2"), ("R", "E", b"3"), client=("me", None))
    rig, queue = Rig(path), Queue()
    with contextlib.closing(rig.spool):
        store = rig.store(yes)
        store.subscribe(E, queue)
        publish(store, b"new")
        assert queue.keys[:-1] == keys
        assert queue.payloads[-1] == b"new"


@pytest.mark.parametrize("is_permitted", [True, False])
@pytest.mark.parametrize("first", ["subscribed", "decided"])
def test_the_acl_decides_about_what_an_earlier_run_left_undecided(
    path: Path, first: str, *, is_permitted: bool
) -> None:
    (key,) = left(path, ("R", "E", b"0"), client=("then", "ann"))
    asked: list[tuple[str | None, str | None, str]] = []

    async def answer(publisher: Session, topic: str) -> bool:
        asked.append((publisher.client_id, publisher.username, topic))
        return is_permitted

    async def nothing() -> None:
        pass

    rig, queue = Rig(path), Queue()
    with contextlib.closing(rig.spool):
        store = rig.store(answer)
        if first == "subscribed":
            store.subscribe(E, queue)
            assert queue.put_rows == []
        run(store, nothing)
        store.subscribe(E, queue)
        assert asked == [("then", "ann", "in/x")]
        assert queue.keys == [key] * is_permitted
    assert on_disk(path) == is_permitted


def test_rows_of_an_event_that_does_not_exist_stay_on_disk_are_warned_of_and_put_when_it_does(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = left(path, ("Gone", "E", b"0"), ("Gone", "E", b"1"), ("R", "E", b"2"))
    rig, queue = Rig(path), Queue()
    with contextlib.closing(rig.spool):
        store = rig.store()
        store.subscribe(E, queue)
        assert caplog.text == ""
        store.bridge_is_ready()
        assert [record.getMessage() for record in caplog.records] == [
            "the spool holds 2 message(s) for route Gone, event E, which does not exist; sent once it does"
        ]
        store.subscribe(replace(E, route="Gone"), queue)
        assert queue.keys == [keys[2], *keys[:2]]
        caplog.clear()
        store.bridge_is_ready()
        assert caplog.text == ""


def test_a_queue_gets_each_row_once_and_another_queue_gets_all_that_have_not_ended(rig: Rig) -> None:
    store, first, second = rig.store(), Queue(), Queue()
    store.subscribe(E, first)
    publish(store, b"0", b"1", b"2")
    store.forget_row(first.keys[1])
    store.subscribe(replace(E, topic_filter="elsewhere"), first)
    publish(store, b"no more")
    assert first.payloads == [b"0", b"1", b"2"]
    store.subscribe(E, second)
    publish(store, b"3")
    assert second.keys[:2] == [first.keys[0], first.keys[2]]
    assert second.payloads == [None, None, b"3"]
    assert len(first.keys) == 3


def test_rows_whose_session_has_ended_go_into_the_queues_that_their_events_have_now(rig: Rig) -> None:
    store, first, second = rig.store(), Queue(), Queue()
    store.subscribe(E, first)
    store.subscribe(replace(E, event="F"), first)
    publish(store, b"0", b"1")
    of_e, of_f, ended, _ = first.keys
    store.forget_row(ended)
    store.unsubscribe(("R", "F"))
    store.subscribe(E, second)
    second.put_rows.clear()
    store.put_again([ended, of_f, of_e])
    assert second.put_rows == [(E.name, of_e, None, 0)]


def test_an_event_that_is_lossless_no_longer_sends_its_rows_and_keeps_no_more(rig: Rig, path: Path) -> None:
    store, lossless, main = rig.store(yes), Queue(), Queue()
    store.subscribe(E, lossless)
    publish(store, b"0")

    async def scenario() -> None:
        await published(store, b"1")
        store.keep_no_more(E.name, main)
        await published(store, b"2")
        store.offer("in/x", b"3", 0, ())

    run(store, scenario)
    assert main.keys[0] == lossless.keys[0]
    assert main.payloads == [None, b"1"]
    for key in main.keys:
        store.forget_row(key)
    rig.spool.flush()
    assert on_disk(path) == 0


def test_what_the_acl_permits_after_its_event_is_gone_is_put_when_it_is_back(rig: Rig) -> None:
    store, queue = rig.store(yes), Queue()
    store.subscribe(E, queue)

    async def scenario() -> None:
        await published(store, b"1")
        store.unsubscribe(E.name)

    run(store, scenario)
    assert queue.put_rows == []
    store.subscribe(E, queue)
    assert queue.payloads == [None]


# Rows that cannot be read.


def spoil(path: Path, key: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET topic = CAST(x'ff' AS TEXT) WHERE key = ?", (key,))


def test_a_row_that_cannot_be_read_any_more_when_its_turn_comes_is_reported_and_counts_no_longer(
    rig: Rig, path: Path
) -> None:
    store, queue = rig.store(), Queue()
    store.subscribe(E, queue)
    publish(store, b"0")
    spoil(path, queue.keys[0])
    assert store.read(queue.keys[0]) is None
    assert [(route, code) for route, code, _ in rig.errors] == [("R", "unreadable_row")]
    assert dict(store.rows) == {}
    store.forget_row(queue.keys[0])
    rig.spool.flush()
    assert on_disk(path) == 1


# Batches.
