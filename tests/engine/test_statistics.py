"""What the status of a route says of its calls: counts, health, connection."""

import pytest

from amqtt_rest_bridge.engine.statistics import QueueBytes, RouteError, RouteStatistics
from amqtt_rest_bridge.lot.model import OverloadPolicy, RestApiConfig, Route, RouteConfig


def statistics(capacity: int = 10, policy: OverloadPolicy = OverloadPolicy.BALANCED) -> RouteStatistics:
    route = Route("R", RestApiConfig(), route_config=RouteConfig(capacity, policy))
    return RouteStatistics(route, 2, 100.0, QueueBytes(1))


def run(one: RouteStatistics, outcomes: str) -> str:
    """Count calls that succeed (+) or fail (-) and return the health."""
    for outcome in outcomes:
        assert one.admission.admit(0) is None
        one.admission.release(0)
        if outcome == "+":
            one.note_success(10.0, 0.01, 101.0)
        else:
            one.note_failure(RouteError(102.0, "timeout", "too slow"))
    return one.health


@pytest.mark.parametrize(
    ("outcomes", "health"),
    [
        pytest.param("", "Green", id="nothing yet"),
        pytest.param("+" * 30, "Green", id="all well"),
        pytest.param("-" + "+" * 19, "Yellow", id="an error among the last 20"),
        pytest.param("-" + "+" * 20, "Green", id="an error before the last 20"),
        pytest.param("+--", "Yellow", id="two in a row"),
        pytest.param("+---", "Red", id="three in a row"),
        pytest.param("---+", "Yellow", id="well again"),
        pytest.param("-" * 25, "Red", id="all failed"),
    ],
)
def test_health_follows_the_last_calls(outcomes: str, health: str) -> None:
    assert run(statistics(), outcomes) == health


def test_a_failure_that_is_put_away_leaves_the_other_ones_in_a_row() -> None:
    one = statistics()
    for name in "abcde":
        one.note_failure(RouteError(102.0, "timeout", "too slow"), name)
    healths = []
    for name in "ecxabd":
        one.put_away(name)
        healths.append((one.health, one.status(105.0)["errors"]["consecutive"]))
    assert healths == [("Red", 4), ("Red", 3), ("Red", 3), ("Yellow", 2), ("Yellow", 1), ("Green", 0)]


def test_a_message_that_was_sent_again_with_success_counts_as_a_success() -> None:
    one = statistics()
    for name in "abc":
        one.note_failure(RouteError(102.0, "timeout", "too slow"), name)
    assert one.health == "Red"
    one.note_failure(RouteError(103.0, "timeout", "too slow"), "d", retry_of="a")
    for retried in "bcd":
        assert one.health_reason is not None
        one.note_success(0.0, 0.1, 104.0, retry_of=retried)
    assert (one.health, one.health_reason, one.status(105.0)["errors"]["consecutive"]) == ("Green", None, 0)
    one.note_success(0.0, 0.1, 104.0, retry_of="gone")
    assert one.health == "Green"
    for name in "xyz":
        one.note_failed_request(RouteError(106.0, "internal_error", "why"), name)
    assert one.health == "Red"
    for name in "xyz":
        one.note_served_request(0.0, 107.0, retry_of=name)
    assert one.health == "Green"


def test_the_last_error_is_the_newest_one_whose_message_was_not_sent_again_with_success() -> None:
    one, shown = statistics(), []
    for time, code in enumerate(("timeout", "placeholder_unresolved", "http_status")):
        one.note_failure(RouteError(time, code, "why"), code)
    for retried in ("http_status", "timeout", "placeholder_unresolved"):
        shown.append(one.status(102.0)["last_error"]["code"])
        one.note_success(0.0, 0.1, 103.0, retry_of=retried)
    assert [*shown, one.health] == ["http_status", "placeholder_unresolved", "placeholder_unresolved", "Green"]


@pytest.mark.parametrize(
    ("codes", "connection"),
    [
        pytest.param((), "idle", id="nothing yet"),
        pytest.param(("placeholder_unresolved",), "idle", id="no try of the server"),
        pytest.param(("http_status",), "connected", id="a server that answers 400"),
        pytest.param(("response_too_large",), "connected", id="a server that answers too much"),
        pytest.param(("connection_failed",), "failing", id="a server that is gone"),
        pytest.param(("tls_failed",), "failing", id="a certificate that is refused"),
        pytest.param(("timeout",), "failing", id="a server that does not answer"),
        pytest.param(("timeout", "http_status"), "connected", id="a server that is back"),
        pytest.param(("connection_failed", "overloaded"), "failing", id="a message that was not sent"),
    ],
)
def test_the_connection_is_failing_only_while_no_server_answers(codes: tuple[str, ...], connection: str) -> None:
    one = statistics()
    for code in codes:
        one.note_failure(RouteError(101.0, code, "why"))
    assert one.status(102.0)["connection"] == connection


def test_the_status_counts_every_message() -> None:
    one = statistics(capacity=3)
    run(one, "++-")
    for _ in range(3):
        assert one.admission.admit(0) is None
    refusal = one.admission.admit(0)
    assert refusal is not None
    one.note_refusal(RouteError(103.0, refusal.code, refusal.message))
    one.admission.in_flight = 2
    one.retried += 1
    status = one.status(110.5)
    assert status["messages"] == {
        "total": 7, "succeeded": 2, "failed": 1, "retried": 1, "retrying": 0, "refused": 1, "skipped": 0, "queued": 1,
        "in_flight": 2, "held_bytes": 0,
    }  # fmt: skip
    assert status["errors"] == {"total": 2, "consecutive": 2}
    assert status["last_error"]["code"] == "overloaded"
    assert status["last_success"] == "1970-01-01T00:01:41.000Z"
    assert status["latency_ms"] == {"p50": 10.0, "p99": 10.0}
    assert status["wait_ms"] == {"p50": 10_000.0, "p99": 10_000.0}
    assert (status["uptime_s"], status["timestamp"]) == (10.5, "1970-01-01T00:01:50.500Z")
    assert (status["name"], status["type"], status["connection"]) == ("R", "REST_API", "failing")


def test_a_call_that_is_tried_until_it_succeeds_shows_its_failed_tries() -> None:
    one = statistics(policy=OverloadPolicy.LOSSLESS)
    assert one.admission.admit(0) is None
    changed = []
    for _ in range(3):
        one.note_error(RouteError(102.0, "connection_failed", "refused"))
        changed.append(one.health_changed())
    assert changed == [True, False, True]
    status = one.status(103.0)
    assert (status["health"], status["connection"]) == ("Red", "failing")
    assert status["errors"] == {"total": 3, "consecutive": 3}
    assert (status["messages"]["failed"], status["last_error"]["message"]) == (0, "refused")
    one.note_success(0.0, 0.1, 104.0)
    assert (one.health, one.status(105.0)["connection"]) == ("Yellow", "connected")
