"""Dispatcher, statistics and read-ahead against a model: what is outstanding, counted, on disk and not acknowledged."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from amqtt_rest_bridge.link.frames import SKIPPED, CallResult, FailedTry
from amqtt_rest_bridge.model import EventName, Message, OverloadPolicy, Publication, Route, RouteConfig, RunIds
from amqtt_rest_bridge.processes.bridge_calls import ReadAhead
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.routing.calls import Call, CallPlace
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from tests.support.clock import Clock
from tests.support.dispatching import Rig, route

CAPACITY, MOST_BYTES, QUEUE_BYTES = 3, 1000, 2000
SIZES = st.sampled_from([0, 0, 1, 400, 700, 1500])
WORKERS = 2
IN_FLIGHT = 4  # calls of a route, over all bridge processes: see `Rig`


def routes() -> dict[str, Route]:
    """Return a route of each kind: lossless, one whose messages wait for room, and an ORDERED one."""
    kinds = {"Lossless": (OverloadPolicy.LOSSLESS, 0), "Waiting": (OverloadPolicy.BALANCED, 1000)}
    found = {}
    for name in ("Lossless", "Waiting", "Ordered"):
        policy, timeout = kinds.get(name, (OverloadPolicy.BALANCED, 0))
        made = route(name=name, source=f"{name}/+")
        event = replace(made.client_events[0], ordered=name == "Ordered")
        config = RouteConfig(CAPACITY, policy, timeout, overload_bytes=MOST_BYTES)
        found[name] = replace(made, client_events=(event,), route_config=config)
    return found


class Store:
    """A spool that may be full."""

    trouble = refusing = None

    def __init__(self) -> None:
        self.is_full = False
        self.kept: dict[str, tuple[str, Message]] = {}
        self._count = 0

    def keep(self, route: str, event: str, message: Message, *_: object) -> str:
        if self.is_full:
            raise OSError("full")
        self._count += 1
        self.kept[f"key {self._count}"] = route, message
        return f"key {self._count}"

    def forget(self, key: str) -> None:
        del self.kept[key]  # once only


class Source:
    """How a message of a worker is acknowledged."""

    is_dropped = is_bounded = False

    def __init__(self) -> None:
        self.holds = 0
        self.is_acknowledged = False

    def abandon(self) -> None:
        raise AssertionError("nothing was dropped")

    def hold(self) -> None:
        assert not self.is_acknowledged, "held after its acknowledgement"
        self.holds += 1

    def release(self) -> None:
        assert self.holds, "released more often than held"
        self.holds -= 1
        self.is_acknowledged = not self.holds

    def key(self, event: EventName) -> str:
        return f"key of {event}"


@dataclass(eq=False)
class Expected:
    """What the model knows of one run of a route."""

    statistics: RouteStatistics
    open: list[Message] = field(default_factory=list)
    room: list[tuple[float, Message]] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("succeeded", "failed", "refused", "skipped"), 0)
    )

    def has_room(self, size: int) -> bool:
        return not self.open or (len(self.open) < CAPACITY and _bytes(self.open) + size <= MOST_BYTES)


def _bytes(messages: list[Message]) -> int:
    return sum(len(message.payload) for message in messages)


class Model(RuleBasedStateMachine):
    """A broker with a spool (`is_worker` False), or a worker whose messages their source keeps."""

    is_worker = False

    @initialize()
    def begin(self) -> None:
        self.clock, self.store = Clock(), Store()
        self.records = BrokerRecords(RunIds())
        self.rig = Rig(None if self.is_worker else self.store, self.clock, QUEUE_BYTES, records=self.records)
        self.runs: list[Expected] = []
        self.present: dict[str, Expected] = {}
        self.sources: dict[Message, Source] = {}
        self.keys: dict[Message, str] = {}
        self.orphans: list[Message] = []
        self.soon: list[Callable[[], None]] = []
        self.backlog, self.numbers = 0, 0
        self.start_process()
        self.rig.bridge.dispatch = self.dispatch  # type: ignore[method-assign]
        self.use(set(routes()))

    # The bridge process.

    def start_process(self) -> None:
        self.held: dict[int, Call] = {}
        self.sent: list[Call] = []
        dispatcher = self.rig.dispatcher

        def renew(call: Call) -> bool:
            self.renewed(call, "failed")
            if not dispatcher.renew(call):
                del self.held[call.id]
                return False
            return True

        self.ahead = ReadAhead(WORKERS, lambda: self.backlog, self.sent.append, renew, self.soon.append)

    def dispatch(self, calls: Any) -> None:
        for call in calls:
            assert self.keys.setdefault(call.message, call.key or "") == (call.key or ""), "another key"
            self.held[call.id] = call
            if self.ahead.enter(call):
                self.sent.append(call)

    # The model.

    def expected_of(self, call: Call) -> Expected:
        return next(run for run in self.runs if run.statistics is call.listening.statistics)

    def renewed(self, call: Call, end: str) -> None:
        """Expect that a call goes on by the present definition of its event, or ends where there is none."""
        old, present = self.expected_of(call), self.present.get(call.listening.route)
        if present is old:
            return
        if present is not None:
            present.open.append(call.message)
        elif call.key is None:
            old.counts[end] += 1
        elif not self.is_worker:
            self.orphans.append(call.message)
        old.open.remove(call.message)

    def admit(self, name: str, message: Message) -> None:
        run, size = self.present[name], len(message.payload)
        is_bounded_by_source = self.is_worker and name == "Lossless"
        fits = run.has_room(size) and (not run.open or self.queued() + size <= QUEUE_BYTES)
        if is_bounded_by_source or (fits and not run.room):
            if name == "Lossless" and not self.is_worker and self.store.is_full:
                run.counts["refused"] += 1
            else:
                run.open.append(message)
        elif name == "Waiting" and (
            not run.room
            or (
                len(run.room) < CAPACITY
                and _bytes([one for _, one in run.room]) + size <= MOST_BYTES
                and self.queued() + size <= QUEUE_BYTES
            )
        ):
            run.room.append((self.clock.now, message))
        else:
            run.counts["refused"] += 1

    def queued(self) -> int:
        return sum(_bytes(run.open) + _bytes([one for _, one in run.room]) for run in self.runs)

    def ended(self, call: Call, how: str) -> None:
        run = self.expected_of(call)
        run.open.remove(call.message)
        run.counts[how] += 1
        while run.room and run.has_room(len(run.room[0][1].payload)):
            run.open.append(run.room.pop(0)[1])

    # What happens.

    @rule(
        name=st.sampled_from(sorted(routes())),
        size=SIZES,
        topic=st.sampled_from("xy"),
        count=st.integers(1, 2 * CAPACITY + 1),
    )
    def publish(self, name: str, size: int, topic: str, count: int) -> None:
        for _ in range(count):
            self.publish_one(name, size, topic)

    def publish_one(self, name: str, size: int, topic: str) -> None:
        self.numbers += 1
        message = Message(f"{name}/{topic}", b"x" * size, float(self.numbers))
        source = self.sources[message] = Source()
        if name in self.present:
            self.admit(name, message)
        self.rig.dispatcher.offer(message, delivery=source if self.is_worker else None)

    def running(self) -> list[Call]:
        return [call for call in self.sent if call.place in (CallPlace.ACTIVE, CallPlace.AHEAD)]

    @precondition(lambda self: self.running())
    @rule(data=st.data(), how=st.sampled_from(["succeeded", "failed", "skipped"]), publishes=st.booleans())
    def answer(self, data: st.DataObject, how: str, publishes: bool) -> None:
        call = data.draw(st.sampled_from(self.running()))
        code = {"succeeded": None, "failed": "http_status", "skipped": SKIPPED}[how]
        publication = Publication("out", b"") if publishes else None
        self.sent.remove(call)
        del self.held[call.id]
        self.ahead.ended(call)
        self.ended(call, how)
        self.rig.dispatcher.done(call, CallResult(call.id, 200, code, "", 0.0, 0.0, publication), lambda _: None)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), let_go=st.booleans(), failed=st.sampled_from([None, 503, 504]))
    def wait(self, data: st.DataObject, let_go: bool, failed: int | None) -> None:
        call = data.draw(st.sampled_from(self.running()))
        call.reports.waiting(call, +1)
        if failed is not None:
            call.reports.try_failed([call], FailedTry("busy", "busy", "wait", failed))
        call.let_go = let_go
        self.ahead.waits(call)

    def between_tries(self) -> list[Call]:
        return [call for call in self.sent if call.place is CallPlace.WAITING]

    @precondition(lambda self: self.between_tries())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.between_tries()))
        call.reports.waiting(call, -1)
        if call.let_go:
            self.sent.remove(call)
            self.ahead.returns(call)
        else:
            self.ahead.resumes(call)

    @rule()
    def kill(self) -> None:
        """The bridge process ends; what it has had is lost or replayed as `BridgePool` does it."""
        calls = list(self.held.values())
        was_sent = {call.id for call in calls if call.place is not CallPlace.HELD or call.let_go}
        self.ahead.close()
        self.start_process()
        for call in calls:
            if call.key is None and call.id in was_sent:
                self.ended(call, "failed")
                call.reports.lost(call)
        for call in calls:
            if call.key is not None or call.id not in was_sent:
                self.renewed(call, "failed")
                call.reports.replay(call)

    @rule(names=st.sets(st.sampled_from(sorted(routes()))))
    def reload(self, names: set[str]) -> None:
        self.use(names)

    def use(self, names: set[str]) -> None:
        before = dict(self.present)
        room = [(run, message) for run in before.values() for _, message in run.room]
        since = {message: when for run in before.values() for when, message in run.room}
        for run in before.values():
            run.room.clear()
        self.present = {name: run for name, run in before.items() if name in names}
        # Statistics come into being with the reload; what waited for room goes by the present definition.
        made = {name: Expected(None) for name in names if name not in before}  # type: ignore[arg-type]
        self.present |= made
        self.runs += made.values()
        for run, message in room:
            name = message.topic.partition("/")[0]
            if name in names:
                self.admit(name, message)
                self.present[name].room[:] = [(since.get(one, when), one) for when, one in self.present[name].room]
            else:
                run.counts["refused"] += 1
        self.rig.use(*(one for name, one in routes().items() if name in names))
        for name, run in made.items():
            run.statistics = self.rig.outcomes.statistics[name]
        self.adopt()

    def adopt(self) -> None:
        """What is on disk for a route that is back is dispatched, as `Lossless.adopt` does it."""
        present = self.rig.dispatcher.table.by_name.get(("Lossless", "E"))
        if present is None:
            return
        orphans, self.rig.dispatcher.orphans = self.rig.dispatcher.orphans, []
        assert [self.store.kept[key][1] for key in orphans] == self.orphans
        for key in orphans:
            message = self.store.kept[key][1]
            self.present["Lossless"].open.append(message)
            present.statistics.admission.take(len(message.payload))
            self.rig.dispatcher.dispatch_stored(present, message, 0, key)
        self.orphans.clear()

    @rule(is_full=st.booleans())
    def disk(self, is_full: bool) -> None:
        self.store.is_full = is_full

    @rule(seconds=st.sampled_from([0.25, 0.5, 2.0]))
    def time(self, seconds: float) -> None:
        for run in self.present.values():
            over = [one for one in run.room if one[0] + 1.0 <= self.clock.now + seconds]
            run.counts["refused"] += len(over)
            run.room[:] = run.room[len(over) :]
        self.clock.advance(seconds)

    @rule(backlog=st.sampled_from([0, 5 << 20]))
    def link(self, backlog: int) -> None:
        self.backlog = backlog
        if not backlog:
            self.ahead.link_has_room()

    @rule()
    def iterate(self) -> None:
        soon, self.soon = self.soon, []
        for action in soon:
            action()

    @rule()
    def published(self) -> None:
        self.rig.queue.publish()
        if self.is_worker:
            unended = {message for run in self.runs for message in [*run.open, *(one for _, one in run.room)]}
            for message, source in self.sources.items():
                if not (source.is_acknowledged or message in unended):
                    # A lossless message whose route is gone stays with its source, which sends it again.
                    assert message.topic.startswith("Lossless") and source.holds == 1

    # What holds at any time.

    @invariant()
    def counts(self) -> None:
        for run in self.runs:
            got, waiting = run.statistics.status(0.0)["messages"], [one for _, one in run.room]
            assert {name: got[name] for name in run.counts} == run.counts
            assert got["total"] == sum(run.counts.values()) + len(run.open)
            assert got["queued"] + got["in_flight"] == len(run.open) + len(waiting)
            between = sum(call.waits for call in self.held.values() if self.expected_of(call) is run)
            assert got["in_flight"] == min(len(run.open) - between, IN_FLIGHT)
            assert got["held_bytes"] == _bytes(run.open) + _bytes(waiting)
        assert self.rig.held.held == self.queued()

    @invariant()
    def calls(self) -> None:
        messages = [message for run in self.runs for message in run.open]
        assert sorted(call.message.timestamp for call in self.held.values()) == sorted(
            message.timestamp for message in messages
        )
        lossless = [message for message in [*messages, *self.orphans] if message.topic.startswith("Lossless")]
        if not self.is_worker:
            assert sorted(message.timestamp for _, message in self.store.kept.values()) == sorted(
                message.timestamp for message in lossless
            )

    @invariant()
    def tries(self) -> None:
        """Only calls that are open are tried again, and each counts once."""
        retrying = self.records.problems.retrying
        assert retrying.keys() <= self.held.keys()
        busy = [one for one in self.records.problems.listed(0.0, {}) if one.code == "busy"]
        assert all(one.count == one.retrying > 0 for one in busy)
        assert sum(one.count for one in busy) <= len(retrying)  # without those whose route a reload has removed

    @invariant()
    def acknowledgements(self) -> None:
        for run in self.runs:
            for message in [*run.open, *(one for _, one in run.room)] if self.is_worker else ():
                assert self.sources[message].holds, "acknowledged before its end"

    def teardown(self) -> None:
        """Everything ends: nothing is left, and nothing waits for ever."""
        if not hasattr(self, "rig"):
            return
        self.disk(is_full=False)
        self.use(set(routes()))
        self.link(0)
        while self.held:
            self.iterate()
            for call in self.between_tries():
                call.reports.waiting(call, -1)
                if call.let_go:
                    self.sent.remove(call)
                    self.ahead.returns(call)
                else:
                    self.ahead.resumes(call)
            running = self.running()
            assert running or self.soon or not self.held, "a call waits for ever"
            for call in running:
                self.sent.remove(call)
                del self.held[call.id]
                self.ahead.ended(call)
                self.ended(call, "succeeded")
                self.rig.dispatcher.done(call, CallResult(call.id, 200, None, "", 0.0, 0.0, None), lambda _: None)
        self.counts()
        self.calls()
        self.published()
        self.tries()
        assert not self.records.problems.retrying
        assert self.rig.held.held == 0
        assert not self.store.kept
        assert self.ahead._ahead == 0
        assert not any(flow.active or flow.lines for flow in self.ahead._flows.values())


class WorkerModel(Model):
    is_worker = True


SETTINGS = settings(
    deadline=None, max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck), derandomize=True
)
LONG = settings(SETTINGS, max_examples=3000, stateful_step_count=80, derandomize=False)
MACHINES = pytest.mark.parametrize("machine", [Model, WorkerModel], ids=["broker", "worker"])


@MACHINES
def test_calls_are_counted_stored_and_released_as_the_model_says(machine: type[Model]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.long
@MACHINES
def test_calls_are_counted_stored_and_released_as_the_model_says_in_many_runs(machine: type[Model]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
