"""Lossless routes in front of a dispatcher: who has a message, and when an ACL decides."""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import IncomingApplicationMessage, Session

from amqtt_rest_bridge.broker.acl import AclTimes
from amqtt_rest_bridge.broker.amqtt_broker import MayPublish
from amqtt_rest_bridge.broker.lossless import Lossless, Taken, taken_by
from amqtt_rest_bridge.model import Message, OverloadPolicy, RouteConfig
from amqtt_rest_bridge.spool import Spool
from amqtt_rest_bridge.times import Backoff
from tests.support.dispatching import Rig, route

LOSSLESS = RouteConfig(10, OverloadPolicy.LOSSLESS)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with contextlib.closing(Spool(tmp_path / "spool.db")) as spool:
        yield spool


@pytest.fixture
def rig(spool: Spool) -> Rig:
    rig = Rig(spool)
    rig.use(replace(route(), route_config=LOSSLESS), replace(route(source="$in/#", name="D"), route_config=LOSSLESS))
    return rig


def take(rig: Rig, spool: Spool, topic: str, may_publish: MayPublish) -> None:
    """Handle a client's packet while nothing of an earlier run is left."""

    async def scenario() -> None:
        lossless = Lossless(rig.dispatcher, spool, may_publish, lambda: 0.0)
        running = asyncio.create_task(lossless.run())
        packet = PublishPacket.build("t", b"1", 1, False, 1, False)
        packet.topic_name = topic  # `build` takes no wildcards, clients send them
        await lossless.on_packet(packet=packet, session=Session())
        while lossless.backlog:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())


async def yes(_session: Session, _topic: str) -> bool:
    return True


@pytest.mark.parametrize(("topic", "calls"), [("in/x", 1), ("in/+", 0), ("in/#", 0), ("$in/x", 0)])
def test_a_topic_that_amqtt_lets_no_client_publish_to_reaches_no_lossless_route(
    rig: Rig, spool: Spool, topic: str, calls: int
) -> None:
    take(rig, spool, topic, yes)
    assert len(rig.bridge.calls) == calls


def test_the_acl_is_asked_for_the_user_that_published_not_for_a_later_one(rig: Rig, spool: Spool) -> None:
    asked: list[tuple[str | None, str | None]] = []
    session = Session()
    session.client_id, session.username = "a", "bob"

    async def answer(publisher: Session, _topic: str) -> bool:
        asked.append((publisher.client_id, publisher.username))
        return publisher.username == "ann"

    async def scenario() -> None:
        lossless = Lossless(rig.dispatcher, spool, answer, lambda: 0.0)
        await lossless.on_packet(packet=PublishPacket.build("in/x", b"1", 1, False, 1, False), session=session)
        session.username = "ann"
        running = asyncio.create_task(lossless.run())
        while lossless.backlog or not asked:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    assert asked == [("a", "bob")]
    assert not rig.bridge.calls


def test_an_acl_that_fails_is_asked_again_and_its_answer_counts(
    rig: Rig, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[bool | Exception] = [ZeroDivisionError(), ZeroDivisionError(), True, ZeroDivisionError(), False]

    async def answer(_session: Session, _topic: str) -> bool:
        verdict = answers.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def scenario() -> None:
        lossless = Lossless(rig.dispatcher, spool, answer, lambda: 0.0, acl_times=AclTimes(failed=Backoff(0.0)))
        running = asyncio.create_task(lossless.run())
        for left in (2, 0):
            packet = PublishPacket.build("in/x", b"1", 1, False, 1, False)
            await lossless.on_packet(packet=packet, session=Session())
            while len(answers) > left:
                assert rig.statistics.admission.outstanding == len(rig.bridge.calls) + 1
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    assert caplog.text.count("the ACL did not say whether") == 1
    assert rig.statistics.status(0.0)["last_error"]["code"] == "acl_failed"
    assert (rig.statistics.admission.outstanding, len(rig.bridge.calls)) == (1, 1)
    spool.flush()
    assert spool._connection.execute("SELECT client_id FROM calls").fetchall() == [(None,)]


def test_an_acl_that_is_slow_for_one_publisher_delays_that_one_alone_and_keeps_its_order(
    rig: Rig, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    def payloads() -> list[bytes]:
        return [call.message.payload for call in rig.bridge.calls]

    async def scenario() -> None:
        answers = asyncio.Event()

        async def answer(publisher: Session, _topic: str) -> bool:
            if publisher.client_id == "bob":
                await answers.wait()
            return True

        lossless = Lossless(rig.dispatcher, spool, answer, lambda: 0.0, acl_times=AclTimes(prompt=0.001, slow=0.001))
        running = asyncio.create_task(lossless.run())
        for client, payload in [("bob", b"1"), ("bob", b"2"), ("ann", b"3"), ("bob", b"4"), ("ann", b"5")]:
            session = Session()
            session.client_id = client
            packet = PublishPacket.build("in/x", payload, 1, False, 1, False)
            await lossless.on_packet(packet=packet, session=session)
        while len(rig.bridge.calls) < 2 or not caplog.records:
            await asyncio.sleep(0)
        assert payloads() == [b"3", b"5"]
        answers.set()
        while len(rig.bridge.calls) < 5:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    assert payloads() == [b"3", b"5", b"1", b"2", b"4"]
    assert "the ACL has not said for 0.001 s whether bob may publish on in/x; its messages wait" in caplog.text
    assert rig.statistics.status(0.0)["last_error"]["code"] == "acl_slow"


def taken(rig: Rig, spool: Spool, packet: PublishPacket, session: Session) -> bytes | None:
    """Handle a packet, and return the payload that amqtt passes on to the broadcast."""
    lossless = Lossless(rig.dispatcher, spool, yes, lambda: 0.0)

    async def scenario() -> None:
        await lossless.on_packet(packet=packet, session=session)
        running = asyncio.create_task(lossless.run())
        while lossless.backlog:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    return packet.data


def broadcast(rig: Rig, session: Session | None, topic: str, payload: bytes | None) -> None:
    assert payload is not None
    events = taken_by(session, topic, payload) if isinstance(payload, Taken) else ()
    rig.dispatcher.offer(Message(topic, bytes(payload), 0.0), elsewhere=events)


def test_a_message_is_taken_once_whatever_a_reload_makes_of_its_route_in_between(rig: Rig, spool: Spool) -> None:
    lossless, balanced = replace(route(), route_config=LOSSLESS), route()
    for before, after in itertools.product((lossless, balanced), repeat=2):
        rig.bridge.calls.clear()
        rig.use(before)
        session = Session()
        payload = taken(rig, spool, PublishPacket.build("in/x", b"payload", 1, False, 1, False), session)
        rig.use(after)
        broadcast(rig, session, "in/x", payload)
        assert [call.message.payload for call in rig.bridge.calls] == [b"payload"]


def test_an_event_that_comes_between_packet_and_broadcast_has_the_message_too(rig: Rig, spool: Spool) -> None:
    lossless, session = replace(route(), route_config=LOSSLESS), Session()
    rig.use(lossless)
    payload = taken(rig, spool, PublishPacket.build("in/x", b"1", 1, False, 1, False), session)
    rig.use(lossless, route(name="New"), replace(lossless, name="NewLossless"))
    broadcast(rig, session, "in/x", payload)
    assert sorted(call.listening.route for call in rig.bridge.calls) == ["New", "NewLossless", "R"]


def test_a_plugin_that_publishes_a_clients_payload_again_is_heard(rig: Rig, spool: Spool) -> None:
    session = Session()
    payload = taken(rig, spool, PublishPacket.build("in/x", b"1", 1, False, 1, False), session)
    for publisher, topic in ((session, "in/x"), (None, "in/x"), (None, "in/y"), (session, "in/z")):
        broadcast(rig, publisher, topic, payload)
    assert [call.message.topic for call in rig.bridge.calls] == ["in/x", "in/x", "in/y", "in/z"]


def test_a_repeated_message_of_qos_2_is_taken_once(rig: Rig, spool: Spool) -> None:
    session = Session()
    first = PublishPacket.build("in/x", b"1", 7, False, 2, False)
    payload = taken(rig, spool, first, session)
    assert payload is not None
    session.inflight_in[7] = IncomingApplicationMessage(7, "in/x", 2, payload, False)
    again = taken(rig, spool, PublishPacket.build("in/x", b"1", 7, True, 2, False), session)
    broadcast(rig, session, "in/x", again)
    assert len(rig.bridge.calls) == 1
