"""How long to wait before what failed is tried or started again."""

import pytest

from amqtt_rest_bridge.processes.child import Restarts
from amqtt_rest_bridge.times import Backoff


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        pytest.param(Backoff(), [1, 2, 4, 8, 16, 30, 30], id="connections"),
        pytest.param(Backoff(at_once=True), [0, 1, 2, 4, 8, 16, 30], id="processes"),
        pytest.param(Backoff(0.1), [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4], id="tasks"),
    ],
)
def test_delays_double_up_to_the_longest(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay(failures) for failures in range(1, 8)] == pytest.approx(delays)
    assert backoff.delay(10_000) == 30


def test_what_ran_for_a_minute_has_recovered() -> None:
    now = 0.0
    restarts = Restarts(Backoff(at_once=True), lambda: now)
    delays = []
    for ran in (5.0, 5.0, 5.0, 59.9, 60.0, 0.0):
        restarts.begin()
        now += ran
        delays.append(restarts.ended())
    assert delays == [0, 1, 2, 4, 0, 1]
