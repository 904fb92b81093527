"""Calls without threads, sockets or clocks: whatever happens in whatever order, a model of what was promised holds."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from amqtt_rest_bridge.calls.call import CallState, OpenCall, PreparedEvent, Step, Verdict
from amqtt_rest_bridge.calls.open_calls import OpenCalls, Turns
from amqtt_rest_bridge.calls.stages import Means, prepare
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    Method,
    OverloadPolicy,
    RestApiConfig,
    Route,
    RouteConfig,
    RunIds,
)
from amqtt_rest_bridge.placeholders import Mode, Place, parse

KEPT = 40  # bytes of payloads
RETRIES = 2
DISTANCE = 1.0  # seconds, between the requests of a route with a RATE_LIMIT
EVENT = ClientEvent(
    "E", "in/#", Method.PUT, parse("/", Place.ENDPOINT, Mode.CLIENT), parse("{payload}", Place.TEXT, Mode.CLIENT)
)


class Model:
    """What was promised, for the calls that have not ended."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[bool, str, bytes]] = {}  # lossless, topic, payload
        self.tries: dict[int, int] = {}
        self.last_request = -float("inf")

    def published(self, number: int, topic: str, payload: bytes, *, lossless: bool) -> None:
        self.open[number], self.tries[number] = (lossless, topic, payload), 0

    def requested(self, number: int, key: str | None, request: HttpRequest, now: float) -> None:
        lossless, topic, payload = self.open[number]
        assert request.body == payload
        assert key == (str(number) if lossless else None)
        self.tries[number] += 1
        if lossless:  # its event is ORDERED: nothing before it on its topic is open
            assert number == min(one for one, (kind, other, _) in self.open.items() if kind and other == topic)
        else:
            assert now >= self.last_request + DISTANCE
            self.last_request = now

    def ended(self, number: int, verdict: Verdict) -> None:
        lossless, _, _ = self.open.pop(number)
        assert verdict.step in {Step.DONE, Step.FAILED}
        assert verdict.step is Step.DONE or (not lossless and self.tries[number] == RETRIES + 1)

    def killed(self) -> list[int]:
        """Forget what is not lossless; return the others, in order."""
        self.open = {number: one for number, one in self.open.items() if one[0]}
        return sorted(self.open)


class Calls(RuleBasedStateMachine):
    """A driver whose every step is chosen: broker process, workers, timers, server."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.number = Model(), 0
        self.now, self.wall = 0.0, 0.0
        self.turns: Turns[OpenCall] = Turns()
        self.turns.seconds = DISTANCE
        self.begin_process()
        self.reload()

    def begin_process(self) -> None:
        self.calls = OpenCalls(KEPT)
        self.turns = Turns()
        self.turns.seconds = DISTANCE
        self.model.last_request = -float("inf")
        self.ready: deque[OpenCall] = deque()
        self.flying: list[OpenCall] = []
        self.timers: list[tuple[float, OpenCall]] = []
        self.asked: list[int] = []

    def arrive(self, number: int) -> None:
        lossless, topic, payload = self.model.open[number]
        event = self.events[lossless]
        call = OpenCall(number, event, Message(topic, payload, self.wall), str(number) if lossless else None)
        for enter in event.enters:
            enter(call)
        if self.calls.enter(call):
            self.go_on(call)

    def go_on(self, call: OpenCall) -> None:
        if call.idempotency_key is None:
            self.calls.wait(call)
            self.turns.enter(call)
        else:
            self.ready.append(call)

    def due(self, call: OpenCall, start: Callable[[OpenCall], None]) -> None:
        call.start = start
        if self.calls.resume(call):
            start(call)
        else:
            self.asked.append(call.id)

    @rule(topic=st.sampled_from(["in/a", "in/b"]), size=st.integers(0, 30), lossless=st.booleans())
    def publish(self, topic: str, size: int, lossless: bool) -> None:
        self.number += 1
        self.model.published(self.number, topic, b"%03d" % self.number + bytes(size), lossless=lossless)
        self.arrive(self.number)

    @precondition(lambda self: self.ready)
    @rule()
    def work(self) -> None:
        call = self.ready.popleft()
        assert call.state is CallState.READY
        begun = call.event.begin(call)
        assert not isinstance(begun, Verdict)
        self.model.requested(call.id, call.idempotency_key, begun.request, self.now)
        if call.idempotency_key is None:
            self.turns.sent(self.now)
        self.flying.append(call)

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 9), status=st.sampled_from([200, 200, 429, 503, None]), forgets=st.booleans())
    def answer(self, which: int, status: int | None, forgets: bool) -> None:
        call = self.flying.pop(which % len(self.flying))
        if forgets:
            call.let_go()
        reply = CallError(FailureCode.TIMEOUT, "none", "") if status is None else HttpResponse(status, "", (), b"", 0.0)
        verdict = call.event.judge(call, reply)
        assert call.waited(self.wall) >= 0.0
        if verdict.step is Step.AGAIN:
            self.calls.wait(call)
            self.timers.append((self.now + verdict.seconds, call))
            return
        self.model.ended(call.id, verdict)
        following = self.calls.end(call)
        if following is not None:
            self.go_on(following)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now, self.wall = self.now + seconds, self.wall + seconds
        over = [one for one in self.timers if one[0] <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for _, call in over:
            call.event = self.events[call.idempotency_key is not None]  # that of the last reload
            self.due(call, self.go_on)
        if self.turns.due is not None and self.turns.due <= self.now and (given := self.turns.give()) is not None:
            self.due(given, self.ready.append)

    @rule(seconds=st.integers(-100_000, 100_000))
    def set_the_clock(self, seconds: int) -> None:
        self.wall += seconds

    @precondition(lambda self: self.asked)
    @rule()
    def send_a_payload_again(self) -> None:
        number = self.asked.pop(0)
        _, topic, payload = self.model.open[number]
        call = self.calls.arrived(number, Message(topic, payload, self.wall))
        assert call is not None
        assert not call.lacks_payload
        call.start(call)

    @rule()
    def kill(self) -> None:
        self.begin_process()
        for number in self.model.killed():
            self.arrive(number)

    @rule()
    def reload(self) -> None:
        means = Means(lambda: self.wall, lambda: 0.5, RunIds())
        config = RestApiConfig(base_address="http://host.test", retries=RETRIES)
        plain = Route("R", config, (EVENT,))
        kept = Route("L", config, (EVENT,), route_config=RouteConfig(overload_policy=OverloadPolicy.LOSSLESS))
        ordered = replace(EVENT, ordered=True)
        self.events: dict[bool, PreparedEvent] = {
            False: prepare(plain, EVENT, max_body_bytes=100, means=means),
            True: prepare(kept, ordered, max_body_bytes=100, means=means),
        }

    @invariant()
    def payloads_are_kept_for_calls_that_wait_and_within_bounds(self) -> None:
        waiting = [*self.turns._waiting, *(call for _, call in self.timers)]
        assert self.calls._kept == sum(call.kept for call in waiting) <= KEPT

    def teardown(self) -> None:
        for topic in ("in/a", "in/b"):
            self.publish(topic, 0, False)
        self.set_the_clock(-100_000)
        rounds = [(0.1, 503)] * 12 + [(40.0, 503)] * (RETRIES + 2) * self.number + [(40.0, 200)] * (3 * self.number)
        for seconds, status in rounds:
            self.pass_time(seconds)
            while self.asked:
                self.send_a_payload_again()
            while self.ready:
                self.work()
            while self.flying:
                self.answer(0, status, False)
        assert self.model.open == {}
        assert (self.calls._lines, self.calls.due, self.calls._kept) == ({}, {}, 0)


def test_whatever_happens_each_call_keeps_its_promises() -> None:
    run_state_machine_as_test(Calls, settings=settings(deadline=None, max_examples=40, stateful_step_count=30))
