"""BREAKER without threads and clocks: when it opens, which calls are probes, and what closes it."""

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.stages.breaker import PROBE_SECONDS, Circuit
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.model import BreakerRule, HttpResponse

DOWN = catalogue.TIMEOUT.error("too late")


def answer(status: int, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, "", headers, b"", 0.0)


def opened(now: float = 0.0) -> Circuit:
    circuit = Circuit(BreakerRule(1, 30))
    circuit.replied(0, DOWN, now, 0.0)
    assert circuit.is_open
    return circuit


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
    circuit = Circuit(BreakerRule(2, 30))
    circuit.replied(1, reply, 0.0, 0.0)
    assert not circuit.is_open
    circuit.replied(2, reply, 30.0, 0.0)
    assert circuit.is_open is opens


def test_failures_that_are_spread_over_a_longer_time_do_not_open_it() -> None:
    circuit = Circuit(BreakerRule(3, 30))
    for now in range(0, 1000, 16):
        assert circuit.passes(now, now)
        circuit.replied(now, DOWN, now, 0.0)
    assert not circuit.is_open


def test_an_open_one_passes_one_call_at_a_time_and_one_in_five_seconds() -> None:
    circuit = opened()
    passed: list[float] = []
    for tenth in range(301):
        if circuit.passes(tenth, tenth / 10):
            passed.append(tenth / 10)
            assert not circuit.passes(-1, tenth / 10)
            assert circuit.due is None
            circuit.replied(tenth, DOWN, tenth / 10, 0.0)
    assert passed == [PROBE_SECONDS * one for one in range(1, 7)]


def test_a_probe_that_hangs_is_the_only_one() -> None:
    circuit = opened()
    assert circuit.passes(1, 5.0)
    assert not circuit.passes(2, 600.0)


@pytest.mark.parametrize("status", [200, 204, 302, 400, 404, 429, 500])
def test_any_answer_of_the_target_to_the_probe_closes_it(status: int) -> None:
    circuit = opened()
    assert circuit.passes(1, 5.0)
    circuit.replied(1, answer(status), 6.0, 0.0)
    assert not circuit.is_open
    assert circuit.passes(2, 6.0)


def test_a_closed_one_counts_from_the_beginning() -> None:
    circuit = Circuit(BreakerRule(2, 30))
    for call in (1, 2):
        circuit.replied(call, DOWN, 0.0, 0.0)
    assert circuit.passes(3, 5.0)
    circuit.replied(3, answer(200), 5.0, 0.0)
    circuit.replied(4, DOWN, 5.0, 0.0)
    assert not circuit.is_open


def test_what_was_under_way_when_it_opened_does_not_close_it() -> None:
    circuit = opened()
    circuit.replied(7, answer(200), 1.0, 0.0)
    assert circuit.is_open


def test_a_probe_that_reached_no_target_leaves_it_open_for_the_next_one() -> None:
    circuit = opened()
    assert circuit.passes(1, 5.0)
    circuit.replied(1, catalogue.OAUTH2_FAILED.error("no token"), 6.0, 0.0)
    assert circuit.is_open
    assert circuit.due == 10.0


def test_retry_after_delays_the_next_probe() -> None:
    circuit = opened()
    assert circuit.passes(1, 5.0)
    circuit.replied(1, answer(503, ("Retry-After", "60")), 6.0, 0.0)
    assert circuit.due == 66.0


def test_workers_that_share_a_target_share_its_probes() -> None:
    circuit = Circuit(BreakerRule(1, 30))
    circuit.workers = 3
    circuit.replied(0, DOWN, 0.0, 0.0)
    assert circuit.due == 3 * PROBE_SECONDS
