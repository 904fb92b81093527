"""The bridge of the plugin at its private endpoint: its sessions, when it is ready, and what a reload does to them."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from amqtt_rest_bridge.broker.bridge_session import failure_property
from amqtt_rest_bridge.catalogue import MESSAGE_TOO_LARGE
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.group import plugin_member as module
from amqtt_rest_bridge.group.plugin_member import Identifiers, PluginMember, sessions_of
from amqtt_rest_bridge.lot.model import Message, Publication, Route
from amqtt_rest_bridge.mqtt.private import BROKER_TOPIC, LOSSLESS, OWN, READY_TOPIC, UNMATCHED_TOPIC, BrokerState
from amqtt_rest_bridge.mqtt.publisher import HOPS, MqttPublisher
from amqtt_rest_bridge.supervised_tasks import Supervisor
from tests.engine.host import parsed, text
from tests.mqtt.private_endpoint import PrivateEndpoint, until
from tests.mqtt.test_event_intake import Calls

E = ("R", "E")
LOSSLESS_ROUTE = 'WITH OVERLOAD_POLICY "lossless"'


def route(name: str = "R", *, lossless: bool = False, event: str = "") -> str:
    return text(event, name=name, route=LOSSLESS_ROUTE if lossless else "")


class Watched:
    """Watches one topic; fulfils `Watches`."""

    filters = ("read",)

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.refused: list[tuple[str, str]] = []

    @contextmanager
    def resubscribing(self) -> Iterator[Collection[str]]:
        yield ()

    def see(self, message: Message, *, retained: bool = False, size: int = 0) -> None:
        self.seen.append(message)

    def refuse(self, message: Message, failure: CallError) -> None:
        self.refused.append((message.topic, failure.message))


class Bridge:
    """The program, as far as its place needs it."""

    by_name: ClassVar[dict[str, Route]] = {}

    def __init__(self, endpoint: PrivateEndpoint, routes: tuple[Route, ...]) -> None:
        self.states: list[BrokerState] = []
        self.unmatched: list[str] = []
        self.endpoint, self.calls, self.watched = endpoint, Calls(), Watched()
        self.calls.present = {E}
        self.publisher, self.supervisor = MqttPublisher(is_private=True), Supervisor(lambda _: None)
        self.member = PluginMember(None, endpoint, self.publisher, self.calls, self.watched, self.supervisor)
        self.member.use_routes(routes)

    async def begin(self) -> None:
        await self.member.connect(self)  # type: ignore[arg-type]  # no route is commanded
        await self.member.begin()
        async with asyncio.timeout(10):
            await self.member.settle()

    def note_broker(self, state: BrokerState) -> None:
        self.states.append(state)

    def note_unmatched(self, topic: str) -> None:
        self.unmatched.append(topic)

    async def end(self) -> None:
        await self.member.stop_taking()
        await self.member.leave()
        await self.supervisor.stop()
        await self.member.close()

    @property
    def ready(self) -> list[list[list[str]]]:
        return [json.loads(payload) for topic, payload, _ in self.endpoint.published if topic == READY_TOPIC]


@asynccontextmanager
async def bridged(path: Path, *texts: str) -> AsyncIterator[Bridge]:
    async with PrivateEndpoint.served(path / "socket") as endpoint:
        bridge = Bridge(endpoint, parsed(*texts))
        await bridge.begin()
        yield bridge
        await bridge.end()


async def test_it_is_ready_once_each_session_has_subscribed_and_again_on_each_connection(tmp_path: Path) -> None:
    async with bridged(tmp_path, route(), route("L", lossless=True)) as bridge:
        endpoint = bridge.endpoint
        await until(lambda: bridge.ready)
        assert {name: set(one) for name, one in endpoint.subscriptions.items()} == {
            "own": {BROKER_TOPIC, "read"}, "main": {E}, "lossless:L": {("L", "E")},
        }  # fmt: skip
        assert endpoint.subscriptions["lossless:L"]["L", "E"][LOSSLESS] == "1000 67108864 0 1"
        assert bridge.ready == [[["R", "E"], ["L", "E"]]]
        endpoint.cut("own")
        await until(lambda: len(bridge.ready) == 2)
        assert bridge.member.own_session.client.reconnects == 1


async def test_it_connects_once_the_endpoint_is_served(tmp_path: Path) -> None:
    endpoint = PrivateEndpoint(tmp_path / "socket")
    bridge = Bridge(endpoint, parsed(route()))
    beginning = asyncio.create_task(bridge.begin())
    await asyncio.sleep(0.05)
    assert not beginning.done()
    await endpoint.serve()
    await beginning
    assert bridge.member.troubles == []
    await bridge.end()
    await endpoint.close()


async def test_what_the_broker_process_tells_is_kept_and_watched_topics_are_shown(tmp_path: Path) -> None:
    async with bridged(tmp_path, route()) as bridge:
        errors = [["L", "overloaded", "why"]]
        told = {"dropped": 3, "restarts": 1, "spool": {"L": 2}, "refusing": None, "errors": errors}
        bridge.endpoint.send("own", json.dumps(told).encode(), 7, BROKER_TOPIC, topic=BROKER_TOPIC)
        bridge.endpoint.send("own", b"value", 8, "read", topic="read")
        await until(lambda: bridge.watched.seen)
        assert bridge.states == [BrokerState(3, 1, {"L": 2}, None, (("L", "overloaded", "why"),))]
        assert [message.topic for message in bridge.watched.seen] == ["read"]


async def test_a_message_too_large_to_come_answers_nothing_and_topics_that_concern_no_event_come_while_wanted(
    tmp_path: Path,
) -> None:
    async with bridged(tmp_path, route()) as bridge:
        endpoint, member = bridge.endpoint, bridge.member
        endpoint.send(
            "own", b"", 7, "read", topic="read", rest_bridge_refused=failure_property(MESSAGE_TOO_LARGE.error("9"))
        )
        await until(lambda: bridge.watched.refused)
        assert (bridge.watched.refused, bridge.watched.seen) == ([("read", "9")], [])
        assert UNMATCHED_TOPIC not in endpoint.subscriptions["own"]
        await member.watch_unmatched(wanted=True)
        endpoint.send("own", b"other", 8, UNMATCHED_TOPIC, topic=UNMATCHED_TOPIC)
        await until(lambda: bridge.unmatched == ["other"])
        endpoint.cut("own")
        await until(lambda: endpoint.connects.count("own") == 2 and not member.troubles)
        assert UNMATCHED_TOPIC in endpoint.subscriptions["own"]
        await member.watch_unmatched(wanted=False)
        assert set(endpoint.subscriptions["own"]) == {BROKER_TOPIC, "read"}


async def test_its_own_publications_are_marked_and_those_of_routes_are_not(tmp_path: Path) -> None:
    async with bridged(tmp_path, route()) as bridge:
        bridge.publisher.announce(Publication("status", b""))
        await bridge.publisher.publish(Publication("answer", b""), hops=1, is_own=True)
        await bridge.publisher.publish(Publication("result", b""), hops=2)
        marks = {topic: user for topic, _, user in bridge.endpoint.published if topic != READY_TOPIC}
        assert marks == {"status": {HOPS: "1", OWN: ""}, "answer": {HOPS: "1", OWN: ""}, "result": {HOPS: "2"}}


async def test_a_publisher_for_another_broker_marks_nothing(tmp_path: Path) -> None:
    async with bridged(tmp_path, route()) as bridge:
        publisher, connection = MqttPublisher(), bridge.member.own_session.client.connection
        assert connection is not None
        publisher.use_connection(connection)
        publisher.announce(Publication("status", b""))
        await publisher.publish(Publication("answer", b""), hops=1, is_own=True)
        marks = [user for topic, _, user in bridge.endpoint.published if topic != READY_TOPIC]
        assert marks == [{HOPS: "1"}, {HOPS: "1"}]


@pytest.mark.parametrize("begins_lossless", [False, True])
async def test_a_route_that_is_made_lossless_or_balanced_moves_and_what_has_come_is_called_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begins_lossless: bool
) -> None:
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.1)
    before, after = ("lossless:R", "main") if begins_lossless else ("main", "lossless:R")

    async with bridged(tmp_path, route(lossless=begins_lossless)) as bridge:
        endpoint = bridge.endpoint
        endpoint.send(before, b"1", 7, E)
        await until(lambda: bridge.calls.called)
        bridge.member.use_routes(parsed(route(lossless=not begins_lossless)))
        await bridge.member.subscribe()
        await until(lambda: set(endpoint.subscriptions[after]) == {E})
        endpoint.send(before, b"2", 8, E)
        endpoint.send(after, b"3", 7, E)
        await until(lambda: len(bridge.calls.called) == 3)
        assert set(endpoint.subscriptions[before]) == {E}  # the endpoint has moved it
        await asyncio.sleep(0.2)
        for *_, delivery in bridge.calls.called:
            delivery.release()
        await until(lambda: sorted(endpoint.acknowledged) == sorted([(before, 7), (before, 8), (after, 7)]))


def test_an_event_that_only_runs_by_a_schedule_subscribes_nothing() -> None:
    scheduled = route(event="WITH EVERY 10s").replace('WITH SOURCE_TOPIC "in/#"', "").replace("{payload}", "x")
    assert sessions_of(parsed(scheduled), Identifiers())["main"].subscriptions == {}


def test_a_lossless_route_with_batches_may_receive_all_that_it_holds() -> None:
    batched = text("WITH BATCH_SIZE 5", route=LOSSLESS_ROUTE, body='WITH BODY "{batch}"')
    plain, many = (
        parsed(route(lossless=True)),
        parsed(batched.replace("OVERLOAD_CAPACITY 1000", "OVERLOAD_CAPACITY 9000")),
    )
    most = [sessions_of(one, Identifiers())["lossless:R"].receive_maximum for one in (plain, many)]
    assert most == [1000, 9000]


def test_identifiers_are_unique_and_the_same_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [("R", f"E{number}") for number in range(100)]
    first, second = Identifiers(), Identifiers()
    assert [first.of(name) for name in names] == [second.of(name) for name in names]
    assert first.names == {first.of(name): name for name in names}
    monkeypatch.setattr(module, "crc32", lambda _: 268_435_454)
    same = Identifiers()
    assert [same.of(name) for name in names[:3]] == [268_435_455, 1, 2]
