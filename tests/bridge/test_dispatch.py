"""The dispatcher alone: what it deals, counts and publishes, whatever becomes of bridges and routes meanwhile."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import IncomingApplicationMessage, Session

from amqtt_rest_bridge.broker.account import RouteAccount
from amqtt_rest_bridge.broker.calls import Call
from amqtt_rest_bridge.broker.dispatch import Dispatcher
from amqtt_rest_bridge.broker.lossless import Lossless, MayPublish, taken_by
from amqtt_rest_bridge.broker.publisher import MAX_QUEUE
from amqtt_rest_bridge.broker.spool import Spool
from amqtt_rest_bridge.model import (
    ClientEvent,
    Message,
    Method,
    OverloadPolicy,
    Publication,
    RestApiConfig,
    Route,
    RouteConfig,
)
from amqtt_rest_bridge.placeholders import Place, PlaceholderText
from amqtt_rest_bridge.route_set import Numbering


class Bridge:
    """Takes calls and keeps them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.seen: list[tuple[str, bytes]] = []

    def deal(self, call: Call) -> None:
        self.calls.append(call)

    def hurry(self) -> None:
        """Nothing waits here."""

    def forward(self, topic: str, payload: bytes) -> bool:
        self.seen.append((topic, payload))
        return True

    def show(self, topic_filter: str, payload: bytes) -> None:
        self.seen.append((topic_filter, payload))


class Queue:
    """The publisher's queue, which nobody empties."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []

    def put(self, publication: Publication, hops: int, give: Callable[[int], None] | None = None) -> bool:
        if give is None and len(self.publications) >= MAX_QUEUE:
            return False
        self.publications.append(publication)
        return True


def text(source: str, place: Place) -> PlaceholderText:
    return PlaceholderText(source, place, (source,))


def route(endpoint: str = "/x", name: str = "R", source: str = "in/#") -> Route:
    event = ClientEvent(
        "E", source, Method.GET, text(endpoint, Place.ENDPOINT), destination_topic=text("out", Place.TOPIC)
    )
    return Route(name, RestApiConfig(), (event,), route_config=RouteConfig(100_000))


class Rig:
    """A dispatcher between a bridge and a queue."""

    def __init__(self) -> None:
        self.bridge, self.queue, self.numbering = Bridge(), Queue(), Numbering()
        self.dispatcher = Dispatcher(self.bridge, self.queue, 4)
        self.use(route())

    def use(self, *routes: Route, reads: tuple[str, ...] = ()) -> None:
        self.dispatcher.set_routes(self.numbering.number(routes), reads, {})

    @property
    def account(self) -> RouteAccount:
        return self.dispatcher.accounts["R"]

    def offer(self, count: int = 1) -> list[Call]:
        for _ in range(count):
            self.dispatcher.offer("in/1", b"payload")
        return self.bridge.calls[-count:]

    def end(self, call: Call) -> None:
        self.dispatcher.done(call, (call.id, 200, None, "", 0.1, ()), lambda _: None)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_call_that_is_lost_between_two_tries_waits_no_more(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.dispatcher.waiting(call, 1)
    assert rig.account.waiting == 1
    rig.dispatcher.lost(call)
    assert (rig.account.outstanding, rig.account.waiting) == (0, 0)
    messages = rig.account.status(0.0)["messages"]
    assert (messages["failed"], messages["queued"], messages["in_flight"]) == (1, 0, 0)


def test_a_call_that_is_dealt_again_between_two_tries_waits_no_more(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.dispatcher.waiting(call, 1)
    rig.dispatcher.again(call)
    assert (rig.account.outstanding, rig.account.waiting) == (1, 0)
    rig.end(call)
    assert rig.account.outstanding == 0


def test_a_call_whose_route_is_reloaded_while_it_waits_is_counted_to_its_end(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.dispatcher.waiting(call, 1)
    rig.use(route("/changed"))
    rig.dispatcher.waiting(call, -1)
    assert (rig.account.outstanding, rig.account.waiting) == (1, 0)
    rig.end(call)
    assert (rig.account.outstanding, rig.account.waiting) == (0, 0)


def test_a_call_is_dealt_again_by_the_present_definition_of_its_event(rig: Rig) -> None:
    (call,) = rig.offer()
    number = call.listening.number
    rig.use(route("/changed"))
    rig.dispatcher.again(call)
    (same,) = rig.bridge.calls[1:]
    assert same is call
    assert call.listening.number != number
    assert call.listening.event.endpoint.source == "/changed"


def test_a_route_that_was_gone_meanwhile_is_not_credited_with_calls_it_never_had(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.use()
    rig.use(route())
    rig.dispatcher.again(call)
    rig.end(call)
    assert rig.account.outstanding == 0


def test_a_call_whose_event_is_gone_ends_with_a_failure(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.use()
    rig.dispatcher.again(call)
    assert b"bridge_restarted" in rig.queue.publications[0].payload


def test_however_many_calls_a_bridge_process_held_each_gets_its_failure(rig: Rig) -> None:
    for call in rig.offer(MAX_QUEUE + 5):
        rig.dispatcher.lost(call)
    assert len(rig.queue.publications) == MAX_QUEUE + 5


def test_the_health_of_a_route_that_is_gone_is_not_told(rig: Rig) -> None:
    told: list[RouteAccount] = []
    rig.dispatcher.on_health = told.append
    one, other = rig.offer(2)
    rig.dispatcher.lost(one)
    assert [account.health for account in told] == ["Yellow"]
    rig.use()
    rig.dispatcher.done(other, (other.id, 500, "http_status", "500", 0.1, ()), lambda _: None)
    rig.dispatcher.lost(other)
    assert len(told) == 1


def test_read_events_keep_what_they_saw_when_retained_messages_are_looked_at_again(rig: Rig) -> None:
    rig.use(reads=("seen", "new"))
    rig.dispatcher.offer("seen", b"latest")
    for topic in ("seen", "new"):
        rig.dispatcher.remember(topic, b"retained", only_new=True)
    assert dict(rig.dispatcher.latest()) == {"seen": b"latest", "new": b"retained"}


def test_a_message_taken_before_a_reload_goes_to_the_event_as_it_is_after_it(rig: Rig) -> None:
    before = rig.dispatcher.named("R", "E")
    assert before is not None
    before.account.admit_again()
    rig.use(route("/changed"))
    rig.dispatcher.take_spooled(before, Message("in/1", b"", 0.0), 0, "key")
    after = rig.dispatcher.named("R", "E")
    assert [call.listening for call in rig.bridge.calls] == [after]


LOSSLESS = RouteConfig(10, OverloadPolicy.LOSSLESS)


@pytest.fixture
def spool(rig: Rig, tmp_path: Path) -> Iterator[Spool]:
    rig.use(replace(route(), route_config=LOSSLESS), replace(route(source="$in/#", name="D"), route_config=LOSSLESS))
    with contextlib.closing(Spool(tmp_path / "spool.db")) as spool:
        rig.dispatcher.spool = spool
        yield spool


def take(rig: Rig, spool: Spool, topic: str, may_publish: MayPublish) -> None:
    """Let a client's packet come in while nothing of an earlier run is left."""

    async def scenario() -> None:
        lossless = Lossless(rig.dispatcher, spool, may_publish, lambda: 0.0)
        running = asyncio.create_task(lossless.run())
        packet = PublishPacket.build("t", b"1", 1, False, 1, False)
        packet.topic_name = topic  # `build` takes no wildcards, clients send them
        await lossless.take_hook(packet=packet, session=Session())
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


def test_an_acl_that_fails_is_asked_again_and_its_answer_counts(
    rig: Rig, spool: Spool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.broker.lossless._FIRST_DELAY", 0.0)
    answers: list[bool | Exception] = [ZeroDivisionError(), ZeroDivisionError(), True, ZeroDivisionError(), False]

    async def answer(_session: Session, _topic: str) -> bool:
        verdict = answers.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def scenario() -> None:
        lossless = Lossless(rig.dispatcher, spool, answer, lambda: 0.0)
        running = asyncio.create_task(lossless.run())
        for left in (2, 0):
            packet = PublishPacket.build("in/x", b"1", 1, False, 1, False)
            await lossless.take_hook(packet=packet, session=Session())
            while len(answers) > left:
                assert rig.account.outstanding == len(rig.bridge.calls) + 1
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    assert caplog.text.count("the ACL did not say whether") == 1
    assert rig.account.status(0.0)["last_error"]["code"] == "acl_failed"
    assert (rig.account.outstanding, len(rig.bridge.calls)) == (1, 1)
    spool.flush()
    assert spool._connection.execute("SELECT client_id FROM calls").fetchall() == [(None,)]


def taken(rig: Rig, packet: PublishPacket, session: Session) -> bytes | None:
    """Let a packet come in, and give the payload that amqtt passes on to the broadcast."""
    assert rig.dispatcher.spool is not None
    lossless = Lossless(rig.dispatcher, rig.dispatcher.spool, yes, lambda: 0.0)

    async def scenario() -> None:
        await lossless.take_hook(packet=packet, session=session)
        running = asyncio.create_task(lossless.run())
        while lossless.backlog:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(scenario())
    return packet.data


def broadcast(rig: Rig, session: Session | None, topic: str, payload: bytes | None) -> None:
    assert payload is not None
    rig.dispatcher.offer(topic, payload, 0, taken_by(session, topic, payload))


def test_a_message_is_taken_once_whatever_a_reload_makes_of_its_route_in_between(rig: Rig, spool: Spool) -> None:
    lossless, balanced = replace(route(), route_config=LOSSLESS), route()
    for before, after in itertools.product((lossless, balanced), repeat=2):
        rig.bridge.calls.clear()
        rig.use(before)
        session = Session()
        payload = taken(rig, PublishPacket.build("in/x", b"payload", 1, False, 1, False), session)
        rig.use(after)
        broadcast(rig, session, "in/x", payload)
        assert [call.message.payload for call in rig.bridge.calls] == [b"payload"]


def test_an_event_that_comes_between_packet_and_broadcast_has_the_message_too(rig: Rig, spool: Spool) -> None:
    lossless, session = replace(route(), route_config=LOSSLESS), Session()
    rig.use(lossless)
    payload = taken(rig, PublishPacket.build("in/x", b"1", 1, False, 1, False), session)
    rig.use(lossless, route(name="New"), replace(lossless, name="NewLossless"))
    broadcast(rig, session, "in/x", payload)
    assert sorted(call.listening.route for call in rig.bridge.calls) == ["New", "NewLossless", "R"]


def test_a_plugin_that_publishes_a_clients_payload_again_is_heard(rig: Rig, spool: Spool) -> None:
    session = Session()
    payload = taken(rig, PublishPacket.build("in/x", b"1", 1, False, 1, False), session)
    for publisher, topic in ((session, "in/x"), (None, "in/x"), (None, "in/y"), (session, "in/z")):
        broadcast(rig, publisher, topic, payload)
    assert [call.message.topic for call in rig.bridge.calls] == ["in/x", "in/x", "in/y", "in/z"]


def test_a_repeated_message_of_qos_2_is_taken_once(rig: Rig, spool: Spool) -> None:
    session = Session()
    first = PublishPacket.build("in/x", b"1", 7, False, 2, False)
    payload = taken(rig, first, session)
    assert payload is not None
    session.inflight_in[7] = IncomingApplicationMessage(7, "in/x", 2, payload, False)
    again = taken(rig, PublishPacket.build("in/x", b"1", 7, True, 2, False), session)
    broadcast(rig, session, "in/x", again)
    assert len(rig.bridge.calls) == 1
