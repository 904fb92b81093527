"""BREAKER: when it opens, which calls are probes, and what closes it."""

import math

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.event import Call
from amqtt_rest_bridge.engine.stages import prepare
from amqtt_rest_bridge.engine.stages.breaker import PROBE_SECONDS, Breaker
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import BreakerRule, HttpResponse, Message
from tests.engine.host import VirtualClock, host_of, parsed, text

DOWN = catalogue.TIMEOUT.error("too late")


def answer(status: int, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, "", headers, b"", 0.0)


class Target:
    """Calls of one route to its target, at the times that a test says."""

    def __init__(self, rule: BreakerRule) -> None:
        (route,) = parsed(text())
        self._event = prepare(route, route.client_events[0], host_of())
        self.clock = VirtualClock()
        self.breaker = Breaker(self.clock, lambda _: None)
        self.breaker.change(self._event.target, rule)
        self._calls: dict[int, Call] = {}

    def call(self, number: int, now: float) -> Call:
        self.clock.pass_to(now)
        message = Message("in/a", b"", 0.0)
        return self._calls.setdefault(number, Call(number, lambda _: None, self._event, message, 0))

    def passes(self, number: int, now: float) -> bool:
        return self.breaker.passes(self.call(number, now))

    def reply(self, number: int, reply: HttpResponse | CallError, now: float) -> None:
        self.breaker.note_reply(self.call(number, now), reply)


def opened() -> Target:
    target = Target(BreakerRule(1, 30))
    target.reply(0, DOWN, 0.0)
    assert target.breaker.is_open
    return target


@pytest.mark.parametrize(
    ("reply", "opens"),
    [
        pytest.param(DOWN, True, id="timeout"),
        pytest.param(catalogue.CONNECTION_FAILED.error("refused"), True, id="no connection"),
        pytest.param(catalogue.TLS_FAILED.error("expired"), True, id="TLS"),
        *[pytest.param(answer(status), True, id=str(status)) for status in (502, 503, 504)],
        *[pytest.param(answer(status), False, id=str(status)) for status in (200, 404, 429, 500, 501, 505)],
        pytest.param(catalogue.OAUTH2_FAILED.error("no token"), False, id="no token"),
        pytest.param(catalogue.RESPONSE_TOO_LARGE.error("too large"), False, id="large response"),
    ],
)
def test_only_failures_of_the_target_open_it(reply: HttpResponse | CallError, opens: bool) -> None:
    target = Target(BreakerRule(2, 30))
    target.reply(1, reply, 0.0)
    assert not target.breaker.is_open
    target.reply(2, reply, 30.0)
    assert target.breaker.is_open is opens


def test_failures_that_are_spread_over_a_longer_time_do_not_open_it() -> None:
    target = Target(BreakerRule(3, 30))
    for now in range(0, 1000, 16):
        assert target.passes(now, now)
        target.reply(now, DOWN, now)
    assert not target.breaker.is_open


def test_an_open_one_passes_one_call_at_a_time_and_one_in_five_seconds() -> None:
    target = opened()
    passed: list[float] = []
    for tenth in range(301):
        if target.passes(tenth, tenth / 10):
            passed.append(tenth / 10)
            assert not target.passes(-1, tenth / 10)
            target.reply(tenth, DOWN, tenth / 10)
    assert passed == [PROBE_SECONDS * one for one in range(1, 7)]


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 429, 500])
def test_any_answer_of_the_target_to_the_probe_closes_it(status: int) -> None:
    target = opened()
    assert target.passes(1, 5.0)
    target.reply(1, answer(status), 6.0)
    assert not target.breaker.is_open
    assert target.passes(2, 6.0)


@pytest.mark.parametrize(
    ("reply", "next_probe"),
    [
        pytest.param(None, math.inf, id="none: it hangs"),
        pytest.param(catalogue.OAUTH2_FAILED.error("no token"), 10.0, id="it did not reach the target"),
        pytest.param(answer(503, ("Retry-After", "60")), 66.0, id="Retry-After"),
    ],
)
def test_a_probe_that_does_not_close_it_is_followed_by_another_one(
    reply: HttpResponse | CallError | None, next_probe: float
) -> None:
    target = opened()
    assert target.passes(1, 5.0)
    if reply is not None:
        target.reply(1, reply, 6.0)
    assert target.breaker.is_open
    assert not target.passes(2, min(next_probe, 600.0) - 0.1)
    assert target.passes(2, min(next_probe, 600.0)) is (next_probe < 600.0)


def test_a_closed_one_counts_from_the_beginning() -> None:
    target = Target(BreakerRule(2, 30))
    for call in (1, 2):
        target.reply(call, DOWN, 0.0)
    assert target.passes(3, 5.0)
    target.reply(3, answer(200), 5.0)
    target.reply(4, DOWN, 5.0)
    assert not target.breaker.is_open


def test_what_was_under_way_when_it_opened_does_not_close_it() -> None:
    target = opened()
    target.reply(7, answer(200), 1.0)
    assert target.breaker.is_open


def test_workers_that_share_a_target_share_its_probes() -> None:
    target = Target(BreakerRule(1, 30))
    target.breaker.workers = 3
    target.reply(0, DOWN, 0.0)
    assert not target.passes(1, 3 * PROBE_SECONDS - 0.1)
    assert target.passes(1, 3 * PROBE_SECONDS)
