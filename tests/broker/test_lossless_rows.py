"""Lossless routes in front of a queue: which messages have rows, when the queue gets them, and when an ACL decides."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from amqtt_rest_bridge.broker.acl import AclTimes
from amqtt_rest_bridge.broker.lossless import Lossless, LosslessEvent, taken_by
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import EventName, Message
from amqtt_rest_bridge.store import Kept, Spool
from amqtt_rest_bridge.times import Backoff
from tests.support.lossless import on_disk

E = LosslessEvent("R", "E", "in/#", 1000, 1 << 20)
MayPublish = Callable[[Session, str], Awaitable[bool]]


async def yes(_session: Session, _topic: str) -> bool:
    return True


async def no(_session: Session, _topic: str) -> bool:
    return False


def session_of(client_id: str, username: str | None = None) -> Session:
    session = Session()
    session.client_id, session.username = client_id, username
    return session


def packet_of(topic: str, payload: bytes) -> PublishPacket:
    packet = PublishPacket.build("t", payload, 7, False, 1, False)
    packet.topic_name = topic  # `build` takes no wildcards, clients send them
    return packet


class Queue:
    """What a session of the bridge gets."""

    def __init__(self) -> None:
        self.put_rows: list[tuple[EventName, str, Message | None, int]] = []
        self.refused: list[Message] = []

    def put(self, name: EventName, key: str, message: Message | None, hops: int) -> None:
        self.put_rows.append((name, key, message, hops))

    def refuse(self, _name: EventName, message: Message, _hops: int, _failure: CallError) -> None:
        self.refused.append(message)

    @property
    def names(self) -> list[EventName]:
        return [name for name, *_ in self.put_rows]

    @property
    def keys(self) -> list[str]:
        return [key for _, key, _, _ in self.put_rows]

    @property
    def payloads(self) -> list[bytes | None]:
        return [None if message is None else message.payload for _, _, message, _ in self.put_rows]


class Rig(Lossless):
    """A store of lossless messages on a spool of its own. Without an ACL every client may publish."""

    def __init__(self, path: Path, may_publish: MayPublish | None, times: AclTimes | None) -> None:
        self.spool = Spool(path)
        self.errors: list[tuple[str, str]] = []
        """Routes and codes of the errors that it has reported."""
        self.queue = Queue()
        acl: Any = SimpleNamespace(may_publish=may_publish or yes, is_there=may_publish is not None)
        super().__init__(self.spool, acl, lambda: 1000.0, lambda *error: self.errors.append(error[:2]), 2000, times)

    async def take(self, payload: bytes, topic: str = "in/x", session: Session | None = None) -> bytes:
        """Handle a packet, and return the payload that amqtt passes on to the broadcast."""
        packet = packet_of(topic, payload)
        await self.on_packet(packet=packet, session=session or session_of("me"))
        return packet.data or b""

    def broadcast(self, session: Session | None, topic: str, payload: bytes) -> None:
        self.offer(topic, payload, 0, taken_by(session, topic, payload))

    def run_scenario(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario beside the store, and wait until the ACL has decided."""

        async def both() -> None:
            running = asyncio.create_task(self.run())
            async with asyncio.timeout(10):
                await scenario()
                while self._undecided:
                    await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait((running,))

        asyncio.run(both())

    def publish(self, *payloads: bytes, topic: str = "in/x") -> None:
        """Publish as a client, and wait until the ACL has decided."""

        async def scenario() -> None:
            for payload in payloads:
                await self.take(payload, topic)

        self.run_scenario(scenario)

    def clients_on_disk(self) -> list[tuple[bytes | None]]:
        """Return the publishers of the rows about which the ACL has not decided; None for others."""
        self.spool.flush()
        return self.spool._connection.execute("SELECT client_id FROM calls").fetchall()


Begin = Callable[..., Rig]


@pytest.fixture
def begin(spool: Path) -> Iterator[Begin]:
    """Makes a store that keeps event E."""
    with contextlib.ExitStack() as stack:

        def make(acl: MayPublish | None = None, times: AclTimes | None = None, *, subscribed: bool = True) -> Rig:
            rig = Rig(spool, acl, times)
            stack.callback(rig.spool.close)
            if subscribed:
                rig.subscribe(E, rig.queue)
            return rig

        yield make


# What has a row.


@pytest.mark.parametrize("acl", [pytest.param(yes, id="an ACL"), pytest.param(None, id="no ACL")])
def test_a_message_is_on_disk_when_its_hook_first_waits_and_sent_once_the_acl_was_asked(
    begin: Begin, spool: Path, acl: MayPublish | None
) -> None:
    rig = begin(acl)
    with pytest.raises(StopIteration):
        rig.on_packet(packet=packet_of("in/x", b"1"), session=session_of("me")).send(None)
    assert rig.clients_on_disk() == [(b"me" if acl else None,)]
    assert rig.queue.payloads == ([] if acl else [b"1"])
    rig.publish(b"2")
    assert rig.queue.payloads == [b"1", b"2"]
    for key in rig.queue.keys:
        rig.forget_row(key)
    rig.spool.flush()
    assert (on_disk(spool), dict(rig.rows)) == (0, {})


def test_each_event_that_a_message_matches_has_a_row_with_a_key_of_its_own(begin: Begin) -> None:
    rig, other = begin(), Queue()
    rig.subscribe(replace(E, event="F", topic_filter="in/x"), rig.queue)
    rig.subscribe(replace(E, route="Other", topic_filter="in/+"), other)
    rig.subscribe(replace(E, event="G", topic_filter="out"), rig.queue)
    rig.publish(b"1")
    assert (rig.queue.names, other.names) == ([("R", "E"), ("R", "F")], [("Other", "E")])
    assert len({*rig.queue.keys, *other.keys}) == 3
    assert rig.rows == {"R": 2, "Other": 1}


@pytest.mark.parametrize(("topic", "rows"), [("in/x", 1), ("in/+", 0), ("in/#", 0), ("$in/x", 0)])
def test_a_topic_that_amqtt_lets_no_client_publish_to_has_no_row(begin: Begin, topic: str, rows: int) -> None:
    rig = begin()
    rig.subscribe(replace(E, route="D", topic_filter="$in/#"), Queue())
    rig.publish(b"1", topic=topic)
    assert sum(rig.rows.values()) == rows


# What the broadcast offers.


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_a_message_has_one_row_whatever_a_reload_makes_of_its_route_between_packet_and_broadcast(
    begin: Begin, *, before: bool, after: bool
) -> None:
    session, rig, new = session_of("me"), begin(subscribed=before), Queue()

    async def scenario() -> None:
        payload = await rig.take(b"payload", session=session)
        if before and not after:
            rig.unsubscribe(E.name)
        elif after and not before:
            rig.subscribe(E, rig.queue)
        rig.subscribe(replace(E, route="New"), new)
        rig.broadcast(session, "in/x", payload)

    rig.run_scenario(scenario)
    rig.subscribe(E, rig.queue)
    assert len(set(rig.queue.keys)) == (before or after)
    assert new.payloads == [b"payload"]
    assert dict(rig.rows) == {"New": 1} | ({"R": 1} if before or after else {})


def test_a_plugin_that_publishes_a_clients_payload_again_is_heard(begin: Begin) -> None:
    session, rig = session_of("me"), begin()

    async def scenario() -> None:
        payload = await rig.take(b"1", session=session)
        for publisher, topic in ((session, "in/x"), (None, "in/x"), (None, "in/y"), (session, "in/z")):
            rig.broadcast(publisher, topic, payload)

    rig.run_scenario(scenario)
    topics = sorted(message.topic for _, _, message, _ in rig.queue.put_rows if message is not None)
    assert topics == ["in/x", "in/x", "in/y", "in/z"]


def test_what_no_packet_has_brought_has_a_row_at_once_whatever_the_acl_says_and_keeps_its_hops(begin: Begin) -> None:
    rig, message = begin(no), Message("in/x", b"will", 1000.0)
    rig.offer("in/x", b"will", 3, ())
    ((name, key, sent, hops),) = rig.queue.put_rows
    assert (name, sent, hops) == (E.name, message, 3)
    assert rig.read(key) == Kept(key, "R", "E", message, 3, None, None)


def test_a_full_route_takes_a_message_again_when_a_call_has_ended(begin: Begin) -> None:
    rig = begin(subscribed=False)
    rig.subscribe(replace(E, most=2), rig.queue)
    rig.publish(b"1", b"2", b"3")
    assert [message.payload for message in rig.queue.refused] == [b"3"]
    rig.forget_row(rig.queue.keys[1])
    rig.publish(b"4")
    assert rig.queue.payloads == [b"1", b"2", b"4"]


def test_a_full_disk_refuses_the_newest_message_and_keeps_the_others(begin: Begin, spool: Path) -> None:
    rig = begin()
    rig.publish(b"kept")
    pages = rig.spool._connection.execute("PRAGMA page_count").fetchone()[0]
    rig.spool._connection.execute(f"PRAGMA max_page_count = {pages}")
    while not rig.queue.refused:
        rig.publish(b"x" * 1500)
    assert rig.refusing is not None
    assert rig.rows == {"R": on_disk(spool)} == {"R": len(rig.queue.keys)}


# The ACL.


def test_the_acl_is_asked_for_the_user_that_published_not_for_a_later_one(begin: Begin) -> None:
    asked: list[tuple[str | None, str | None]] = []
    session = session_of("a", "bob")

    async def answer(publisher: Session, _topic: str) -> bool:
        asked.append((publisher.client_id, publisher.username))
        return publisher.username == "ann"

    rig = begin(answer)

    async def scenario() -> None:
        await rig.take(b"1", session=session)
        session.username = "ann"

    rig.run_scenario(scenario)
    assert asked == [("a", "bob")]
    assert rig.queue.put_rows == []


def test_an_acl_that_fails_is_asked_again_and_its_answer_counts(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[bool | None] = [None, None, True, None, False]

    async def answer(_session: Session, _topic: str) -> bool:
        if (verdict := answers.pop(0)) is None:
            raise ZeroDivisionError
        return verdict

    rig = begin(answer, AclTimes(failed=Backoff(0.0)))
    rig.publish(b"1")
    rig.publish(b"2")
    assert answers == []
    assert caplog.text.count("the ACL did not say whether") == 1
    assert rig.errors == [("R", "acl_failed")] * 3
    assert rig.queue.payloads == [b"1"]
    assert rig.clients_on_disk() == [(None,)]


def test_an_acl_that_is_slow_for_one_publisher_delays_that_one_alone_and_keeps_its_order(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    answers = asyncio.Event()

    async def answer(publisher: Session, _topic: str) -> bool:
        if publisher.client_id == "bob":
            await answers.wait()
        return True

    rig = begin(answer, AclTimes(slow=0.001))

    async def scenario() -> None:
        for client, payload in [("bob", b"1"), ("bob", b"2"), ("ann", b"3"), ("bob", b"4"), ("ann", b"5")]:
            await rig.take(payload, session=session_of(client))
        while len(rig.queue.keys) < 2 or not rig.errors:
            await asyncio.sleep(0)
        assert rig.queue.payloads == [b"3", b"5"]
        answers.set()

    rig.run_scenario(scenario)
    assert rig.queue.payloads == [b"3", b"5", b"1", b"2", b"4"]
    assert "the ACL has not said for 0.001 s whether bob may publish on in/x; its messages wait" in caplog.text
    assert rig.errors == [("R", "acl_slow")]


def test_payloads_beyond_16_mib_that_wait_for_the_acl_are_read_again_when_it_has_decided(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.broker.lossless._MOST_UNDECIDED", 1500)
    rig = begin(yes)
    rig.publish(*(b"%d" % number * 1000 for number in range(4)))
    assert [payload is None for payload in rig.queue.payloads] == [False, False, True, True]
    read = [rig.read(key) for key in rig.queue.keys]
    assert [row.message.payload[:1] for row in read if row is not None] == [b"0", b"1", b"2", b"3"]
    rig.publish(b"small again")
    assert rig.queue.payloads[-1] == b"small again"


# What is on disk before its event has a queue.


def leave(path: Path, *rows: tuple[str, bytes], client: tuple[str, str | None] | None = None) -> list[str]:
    """Leave rows of event and payload on disk; return their keys."""
    with contextlib.closing(Spool(path)) as spool:
        return [spool.keep("R", event, Message("in/x", payload, 5.0), 2, client) for event, payload in rows]


def test_what_an_earlier_run_left_is_put_by_its_keys_oldest_first_and_read_when_its_turn_comes(
    begin: Begin, spool: Path
) -> None:
    first, of_f, second = leave(spool, ("E", b"0"), ("F", b"1"), ("E", b"2"))
    rig = begin(subscribed=False)
    assert rig.rows == {"R": 3}
    rig.subscribe(E, rig.queue)
    rig.publish(b"new")
    assert rig.queue.put_rows[:2] == [(E.name, first, None, 0), (E.name, second, None, 0)]
    assert rig.queue.payloads[2:] == [b"new"]
    assert rig.read(second) == Kept(second, "R", "E", Message("in/x", b"2", 5.0), 2, None, None)
    rig.forget_row(second)
    rig.spool.flush()
    assert rig.read(second) is None
    rig.subscribe(replace(E, event="F"), rig.queue)
    assert rig.queue.keys[3:] == [of_f]


def test_what_a_publisher_sends_while_the_acl_decides_about_its_earlier_messages_goes_behind_them(
    begin: Begin, spool: Path
) -> None:
    keys = leave(spool, ("E", b"0"), ("E", b"1")) + leave(spool, ("E", b"2"), ("E", b"3"), client=("me", None))
    rig = begin(yes)
    rig.publish(b"new")
    assert rig.queue.keys[:-1] == keys
    assert rig.queue.payloads[-1] == b"new"


@pytest.mark.parametrize("is_permitted", [True, False])
@pytest.mark.parametrize("first", ["subscribed", "decided"])
def test_the_acl_decides_about_what_an_earlier_run_left_undecided(
    begin: Begin, spool: Path, first: str, *, is_permitted: bool
) -> None:
    (key,) = leave(spool, ("E", b"0"), client=("then", "ann"))
    asked: list[tuple[str | None, str | None, str]] = []

    async def answer(publisher: Session, topic: str) -> bool:
        asked.append((publisher.client_id, publisher.username, topic))
        return is_permitted

    rig = begin(answer, subscribed=first == "subscribed")
    assert rig.queue.put_rows == []
    rig.publish()
    rig.subscribe(E, rig.queue)
    assert asked == [("then", "ann", "in/x")]
    assert rig.queue.keys == [key] * is_permitted
    rig.spool.flush()
    assert on_disk(spool) == is_permitted


def test_a_queue_gets_each_row_once_and_another_queue_gets_all_that_have_not_ended(begin: Begin) -> None:
    rig, other = begin(), Queue()
    rig.publish(b"0", b"1", b"2")
    first, ended, last = rig.queue.keys
    rig.forget_row(ended)
    rig.subscribe(replace(E, topic_filter="elsewhere"), rig.queue)
    rig.publish(b"no more")
    assert rig.queue.payloads == [b"0", b"1", b"2"]
    rig.subscribe(E, other)
    rig.publish(b"3")
    assert other.keys[:2] == [first, last]
    assert other.payloads == [None, None, b"3"]


def test_rows_whose_session_has_ended_go_into_the_queues_that_their_events_have_now(begin: Begin) -> None:
    rig, other = begin(), Queue()
    rig.subscribe(replace(E, event="F"), rig.queue)
    rig.publish(b"0", b"1")
    of_e, of_f, ended, _ = rig.queue.keys
    rig.forget_row(ended)
    rig.unsubscribe(("R", "F"))
    rig.subscribe(E, other)
    other.put_rows.clear()
    rig.queue_rows([ended, of_f, of_e])
    assert other.put_rows == [(E.name, of_e, None, 0)]


def test_an_event_that_is_lossless_no_longer_sends_its_rows_and_keeps_no_more(begin: Begin, spool: Path) -> None:
    rig, main = begin(yes), Queue()
    rig.publish(b"0")

    async def scenario() -> None:
        await rig.take(b"1")
        rig.stop_keeping(E.name, main)
        await rig.take(b"2")
        rig.offer("in/x", b"3", 0, ())

    rig.run_scenario(scenario)
    assert main.keys[0] == rig.queue.keys[0]
    assert main.payloads == [None, b"1"]
    for key in main.keys:
        rig.forget_row(key)
    rig.spool.flush()
    assert on_disk(spool) == 0


def test_what_the_acl_permits_after_its_event_is_gone_is_put_when_it_is_back(begin: Begin) -> None:
    rig = begin(yes)

    async def scenario() -> None:
        await rig.take(b"1")
        rig.unsubscribe(E.name)

    rig.run_scenario(scenario)
    assert rig.queue.put_rows == []
    rig.subscribe(E, rig.queue)
    assert rig.queue.payloads == [None]


def test_a_row_that_cannot_be_read_any_more_when_its_turn_comes_is_reported_and_counts_no_longer(
    begin: Begin, spool: Path
) -> None:
    rig = begin()
    rig.publish(b"0")
    (key,) = rig.queue.keys
    with contextlib.closing(sqlite3.connect(spool, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET topic = CAST(x'ff' AS TEXT) WHERE key = ?", (key,))
    assert rig.read(key) is None
    assert rig.errors == [("R", "unreadable_row")]
    assert dict(rig.rows) == {}
    rig.forget_row(key)
    rig.spool.flush()
    assert on_disk(spool) == 1
