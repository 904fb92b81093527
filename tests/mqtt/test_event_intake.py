"""A session of the private endpoint: which events get a message, how it ends, and when it is acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from amqtt_rest_bridge.broker.bridge_session import failure_property
from amqtt_rest_bridge.catalogue import DISK_FULL, MESSAGE_TOO_LARGE
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import EventName, Message
from amqtt_rest_bridge.mqtt.event_intake import EventIntake
from amqtt_rest_bridge.mqtt.intake import MqttDelivery
from amqtt_rest_bridge.mqtt.private import EVENT, LOSSLESS, ROUTE
from amqtt_rest_bridge.mqtt.values import ClientSession, Subscription
from tests.mqtt.private_endpoint import PrivateEndpoint, until

A, B, GONE = ("R", "A"), ("R", "B"), ("R", "Gone")
NAMES = {1: A, 2: B, 3: GONE}
BOUNDS = "10 1000 0 1"


class Calls:
    """Holds each message until `end`; fulfils `RunsEvents`."""

    def __init__(self) -> None:
        self.present = {A, B}
        self.called: list[tuple[EventName, Message, int, MqttDelivery]] = []
        self.failed: list[tuple[EventName, CallError]] = []
        self.marks: list[str] = []  # of the failures

    def run_event(
        self, name: EventName, message: Message, delivery: MqttDelivery, *, hops: int, size: int
    ) -> object | None:
        if name not in self.present:
            return None
        delivery.hold()
        self.called.append((name, message, hops, delivery))
        return 1

    def fail_event(
        self, name: EventName, message: Message, failure: CallError, delivery: MqttDelivery, *, hops: int
    ) -> None:
        self.failed.append((name, failure))
        self.marks.append(delivery.mark(name))

    def drop_calls(self) -> None:
        """Abandon what was dropped."""
        for _, _, _, delivery in self.called:
            if delivery.is_dropped and not delivery.has_ended:
                delivery.abandon()

    @property
    def events(self) -> list[EventName]:
        return [name for name, *_ in self.called]


def subscriptions(*names: EventName, is_lossless: bool = False) -> dict[EventName, Subscription]:
    numbers = {name: number for number, name in NAMES.items()}
    bounds = ((LOSSLESS, BOUNDS),) if is_lossless else ()
    return {
        name: Subscription("in/#", numbers[name], user=((ROUTE, name[0]), (EVENT, name[1]), *bounds)) for name in names
    }


class Rig:
    def __init__(self, endpoint: PrivateEndpoint, client_id: str, *, is_lossless: bool) -> None:
        self.endpoint, self.calls = endpoint, Calls()
        session = ClientSession(client_id, 60, 100)
        self.intake = EventIntake(endpoint, session, self.calls, NAMES, is_lossless=is_lossless)
        self.intake.prepare(subscriptions(A, B, is_lossless=is_lossless), {A, B})
        self.running: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.running = asyncio.create_task(self.intake.client.run())
        await until(lambda: self.intake.client.connection is not None)

    async def end(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])
        await self.intake.client.close()


@asynccontextmanager
async def rigged(path: Path, *, is_lossless: bool = False) -> AsyncIterator[Rig]:
    async with PrivateEndpoint.served(path / "socket") as endpoint:
        rig = Rig(endpoint, "lossless:R" if is_lossless else "main", is_lossless=is_lossless)
        await rig.begin()
        yield rig
        await rig.end()


async def test_a_message_is_acknowledged_once_the_calls_of_all_its_events_have_ended(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.endpoint.send("main", b"1", 7, A, B, rest_bridge_time="5.5", rest_bridge_hops="2")
        await until(lambda: len(rig.calls.called) == 2)
        (first, message, hops, delivery), (second, *_) = rig.calls.called
        assert (first, second, hops, message) == (A, B, 2, Message("in/a", b"1", 5.5))
        assert (delivery.is_bounded, rig.intake.held) == (False, 1)
        delivery.release()
        await asyncio.sleep(0.01)
        assert rig.endpoint.acknowledged == []
        delivery.release()
        await until(lambda: rig.endpoint.acknowledged == [("main", 7)])
        assert rig.intake.held == 0


async def test_a_message_that_was_in_flight_when_a_bridge_died_fails_for_each_of_its_events(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.endpoint.send("main", b"1", 7, A, B, duplicate=True)
        await until(lambda: rig.endpoint.acknowledged == [("main", 7)])
        assert [(name, failure.code) for name, failure in rig.calls.failed] == [
            (A, "bridge_restarted"), (B, "bridge_restarted"),
        ]  # fmt: skip
        assert (rig.calls.called, rig.intake.redelivered) == ([], 1)


async def test_a_lossless_message_that_was_in_flight_is_called_again_with_its_key(tmp_path: Path) -> None:
    async with rigged(tmp_path, is_lossless=True) as rig:
        rig.endpoint.send("lossless:R", b"1", 7, A, duplicate=True, idempotency_key="key")
        await until(lambda: rig.calls.called)
        *_, delivery = rig.calls.called[0]
        assert (delivery.key(A), delivery.is_bounded) == ("key", True)
        delivery.release()
        await until(lambda: rig.endpoint.acknowledged == [("lossless:R", 7)])


async def test_a_message_on_disk_whose_route_is_no_longer_lossless_is_called_again_with_its_key(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.endpoint.send("main", b"1", 7, A, duplicate=True, idempotency_key="key")
        await until(lambda: rig.calls.called)
        *_, delivery = rig.calls.called[0]
        assert (delivery.key(A), delivery.has_key, delivery.is_bounded, rig.calls.failed) == ("key", True, True, [])
        delivery.release()
        await until(lambda: rig.endpoint.acknowledged == [("main", 7)])


@pytest.mark.parametrize("is_lossless", [False, True])
async def test_calls_go_on_over_a_connection_that_is_lost(tmp_path: Path, *, is_lossless: bool) -> None:
    async with rigged(tmp_path, is_lossless=is_lossless) as rig:
        client_id = rig.intake.client.client_id
        rig.endpoint.send(client_id, b"1", 7, A)
        await until(lambda: rig.calls.called)
        rig.endpoint.cut(client_id)
        await until(lambda: len(rig.endpoint.connects) == 2 and rig.intake.client.connection is not None)
        rig.endpoint.send(client_id, b"1", 7, A, duplicate=True)
        await until(lambda: rig.intake.redelivered == 1)
        rig.calls.called[0][-1].release()
        await until(lambda: rig.endpoint.acknowledged == [(client_id, 7)])
        assert (rig.calls.events, rig.calls.failed) == ([A], [])


@pytest.mark.parametrize("is_lossless", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(MESSAGE_TOO_LARGE.error("it has 9 bytes"), id="too large"),
        pytest.param(DISK_FULL.error("the spool is full"), id="not kept"),
    ],
)
async def test_a_message_that_the_endpoint_has_refused_ends_with_its_failure(
    tmp_path: Path, failure: CallError, *, is_lossless: bool
) -> None:
    async with rigged(tmp_path, is_lossless=is_lossless) as rig:
        client_id = rig.intake.client.client_id
        rig.endpoint.send(client_id, b"1", 7, A, rest_bridge_refused=failure_property(failure))
        await until(lambda: rig.endpoint.acknowledged == [(client_id, 7)])
        ((name, refused),) = rig.calls.failed
        assert (name, vars(refused), rig.calls.called) == (A, vars(failure), [])


@pytest.mark.parametrize(("packet_id", "mark"), [(7, "main 7 {}"), (None, "")])
async def test_a_failure_names_the_message_that_it_ends_unless_that_never_comes_again(
    tmp_path: Path, packet_id: int | None, mark: str
) -> None:
    async with rigged(tmp_path) as rig:
        refused = failure_property(MESSAGE_TOO_LARGE.error("it has 9 bytes"))
        rig.endpoint.send("main", b"", packet_id, A, rest_bridge_refused=refused)
        await until(lambda: rig.calls.failed)
        assert rig.calls.marks == [mark.format(rig.endpoint.identifiers[A])]


@pytest.mark.parametrize(("is_lossless", "acknowledged"), [(False, {7, 8, 9}), (True, {9})])
async def test_a_message_whose_event_is_gone_is_acknowledged_but_a_lossless_one_never(
    tmp_path: Path, acknowledged: set[int], *, is_lossless: bool
) -> None:
    async with rigged(tmp_path, is_lossless=is_lossless) as rig:
        client_id = rig.intake.client.client_id
        rig.endpoint.identifiers |= {GONE: 3, "unknown": 4}
        rig.endpoint.send(client_id, b"1", 7, GONE)
        rig.endpoint.send(client_id, b"2", 8, "unknown")
        rig.endpoint.send(client_id, b"3", 9, A)
        await until(lambda: rig.calls.called)
        rig.calls.called[0][-1].release()
        await until(lambda: (client_id, 9) in rig.endpoint.acknowledged)
        assert {number for _, number in rig.endpoint.acknowledged} == acknowledged


async def test_an_event_that_a_reload_removes_leaves_its_messages_with_the_endpoint_and_those_of_others_go_on(
    tmp_path: Path,
) -> None:
    async with rigged(tmp_path, is_lossless=True) as rig:
        rig.endpoint.send("lossless:R", b"1", 7, A)
        rig.endpoint.send("lossless:R", b"2", 8, B)
        await until(lambda: rig.calls.events == [A, B])
        rig.calls.present = {A}
        gone = rig.intake.prepare(subscriptions(A, is_lossless=True), {A})
        assert gone == {B}
        await rig.intake.subscribe()
        assert list(rig.endpoint.subscriptions["lossless:R"]) == [A]
        await rig.intake.give_up(gone)
        await until(lambda: len(rig.endpoint.connects) == 2 and rig.intake.client.connection is not None)
        rig.endpoint.send("lossless:R", b"1", 7, A, duplicate=True)
        await until(lambda: rig.intake.redelivered == 1)
        rig.calls.called[0][-1].release()
        await until(lambda: rig.endpoint.acknowledged == [("lossless:R", 7)])
        assert (rig.calls.events, rig.intake.held) == ([A, B], 0)


async def test_an_event_that_is_removed_while_the_connection_is_lost_is_given_up_on_the_next_one(
    tmp_path: Path,
) -> None:
    async with rigged(tmp_path, is_lossless=True) as rig:
        endpoint = rig.endpoint
        endpoint.cut("lossless:R")
        await until(lambda: rig.intake.client.connection is None)
        rig.calls.present = {A}
        gone = rig.intake.prepare(subscriptions(A, is_lossless=True), {A})
        await rig.intake.subscribe()
        giving_up = asyncio.create_task(rig.intake.give_up(gone))
        endpoint.send("lossless:R", b"1", 7, B, duplicate=True)
        await giving_up
        await until(lambda: endpoint.connects == ["lossless:R"] * 3)
        assert (list(endpoint.subscriptions["lossless:R"]), endpoint.acknowledged) == ([A], [])


async def test_an_event_that_another_session_takes_over_is_not_unsubscribed_and_what_has_come_is_called(
    tmp_path: Path,
) -> None:
    async with rigged(tmp_path) as rig:
        assert rig.intake.prepare(subscriptions(A), {A, B}) == set()
        await rig.intake.subscribe()
        assert set(rig.endpoint.subscriptions["main"]) == {A, B}
        rig.endpoint.send("main", b"1", 7, B)
        await until(lambda: rig.calls.events == [B])


async def test_a_session_that_is_paused_takes_nothing_more_and_acknowledges_what_ends(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.endpoint.send("main", b"1", 7, A)
        await until(lambda: rig.calls.called)
        rig.intake.pause()
        rig.endpoint.send("main", b"2", 8, A)
        await asyncio.sleep(0.02)
        rig.calls.called[0][-1].release()
        await until(lambda: rig.endpoint.acknowledged == [("main", 7)])
        assert len(rig.calls.called) == 1


async def test_a_thousand_events_are_subscribed_in_few_round_trips(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        wanted = {
            ("R", f"E{number}"): Subscription("in/#", number + 10, user=((ROUTE, "R"), (EVENT, f"E{number}")))
            for number in range(1000)
        }
        rig.intake.prepare(wanted, wanted)
        await rig.intake.subscribe()
        assert len(rig.endpoint.subscriptions["main"]) == 1000
        assert rig.endpoint.asked_together == 64
