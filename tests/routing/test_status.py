"""Route status: what it says, when it is published."""

import json
from pathlib import Path

import pytest

from amqtt_rest_bridge.model import OverloadPolicy, RestApiConfig, Route, RouteConfig
from amqtt_rest_bridge.routing.admission import QueueBytes
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder


def account(capacity: int = 10, policy: OverloadPolicy = OverloadPolicy.BALANCED, workers: int = 4) -> RouteStatistics:
    route = Route("R", RestApiConfig(), route_config=RouteConfig(capacity, policy))
    return RouteStatistics(route, workers, 100.0, QueueBytes(1))


def run(account: RouteStatistics, outcomes: str) -> str:
    """Count calls that succeed (+) or fail (-) and return the health."""
    for outcome in outcomes:
        assert account.admission.admit(0) is None
        if outcome == "+":
            account.success(10.0, 0.01, 101.0)
        else:
            account.failure("timeout", "too slow", 102.0)
    return account.health


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
    assert run(account(), outcomes) == health


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
    one = account()
    for code in codes:
        assert one.admission.admit(0) is None
        one.failure(code, "why", 101.0)
    assert one.status(102.0)["connection"] == connection


def test_the_status_counts_every_message() -> None:
    one = account(capacity=3, workers=2)
    run(one, "++-")
    for _ in range(3):
        assert one.admission.admit(0) is None
    refusal = one.admission.admit(0)
    assert refusal is not None
    one.refuse(refusal.code, refusal.message, 103.0)
    one.wait(1)
    status = one.status(110.5)
    assert status["messages"] == {
        "total": 7,
        "succeeded": 2,
        "failed": 1,
        "retried": 1,
        "refused": 1,
        "skipped": 0,
        "queued": 1,
        "in_flight": 2,
        "held_bytes": 0,
    }
    assert status["errors"] == {"total": 2, "consecutive": 2}
    assert status["last_error"]["code"] == "overloaded"
    assert status["last_success"] == "1970-01-01T00:01:41.000Z"
    assert status["latency_ms"] == {"p50": 10.0, "p99": 10.0}
    assert status["wait_ms"] == {"p50": 10_000.0, "p99": 10_000.0}
    assert (status["uptime_s"], status["timestamp"]) == (10.5, "1970-01-01T00:01:50.500Z")
    assert (status["name"], status["type"], status["connection"]) == ("R", "REST_API", "failing")


def test_a_call_between_two_tries_holds_no_worker_of_a_realtime_route() -> None:
    one = account(policy=OverloadPolicy.REALTIME, workers=1)
    assert one.admission.admit(0) is None
    assert one.admission.admit(0) is not None
    one.wait(1)
    assert one.admission.admit(0) is None


def test_a_call_that_is_tried_until_it_succeeds_shows_its_failed_tries() -> None:
    one = account(policy=OverloadPolicy.LOSSLESS)
    assert one.admission.admit(0) is None
    changed = []
    for _ in range(3):
        one.error("connection_failed", "refused", 102.0)
        changed.append(one.health_changed())
    assert changed == [True, False, True]
    status = one.status(103.0)
    assert (status["health"], status["connection"]) == ("Red", "failing")
    assert status["errors"] == {"total": 3, "consecutive": 3}
    assert (status["messages"]["failed"], status["last_error"]["message"]) == (0, "refused")
    one.success(0.0, 0.1, 104.0)
    assert (one.health, one.status(105.0)["connection"]) == ("Yellow", "connected")


def test_the_status_is_retained_and_published_again_when_the_health_changes(target: Recorder) -> None:
    routes = f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" WITH RETRIES '0'
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "out"
    """
    with hosting(routes, status_seconds=60) as host:
        client = host.client("$SYS/broker/routes/+/status")
        topic, payload = client.message()
        assert topic == "$SYS/broker/routes/R/status"
        assert json.loads(payload)["health"] == "Green"
        target.answer = lambda _: (500, b"")
        client.publish("in", b"1")
        assert json.loads(client.message()[1])["health"] == "Yellow"


def test_a_lossless_route_whose_server_is_down_is_not_green(target: Recorder, tmp_path: Path) -> None:
    routes = f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
    """
    target.answer = lambda _: (503, b"")
    with hosting(routes, status_seconds=60, spool=str(tmp_path / "spool.db")) as host:
        client = host.client("$SYS/broker/routes/+/status")
        assert json.loads(client.message()[1])["health"] == "Green"
        client.publish("in", b"1")
        status = json.loads(client.message()[1])
    assert (status["health"], status["connection"]) == ("Yellow", "connected")
    assert status["health_reason"] == (
        "tries failed: 1 of the last 1; messages tried again: 1, the last failed try with http_status"
    )
    assert status["last_error"]["code"] == "http_status"
    assert (status["messages"]["total"], status["messages"]["failed"]) == (1, 0)


def test_a_route_is_not_green_while_a_message_is_tried_again(target: Recorder) -> None:
    routes = f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/x"
    """
    answers = iter([(503, b"")])
    target.answer = lambda _: next(answers, (200, b""))
    with hosting(routes, status_seconds=60) as host:
        client = host.client("$SYS/broker/routes/+/status")
        client.message()
        client.publish("in", b"1")
        retried, succeeded = (json.loads(payload) for _, payload in client.messages(2))
    reason = "messages tried again: 1, the last failed try with http_status"
    assert (retried["health"], retried["health_reason"]) == ("Yellow", reason)
    assert (retried["last_error"], retried["errors"]["total"]) == (None, 0)
    assert (succeeded["health"], succeeded["messages"]["succeeded"]) == ("Green", 1)


def test_the_status_is_published_every_so_often(target: Recorder) -> None:
    routes = f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/x"
    """
    with hosting(routes, status_seconds=0.05) as host:
        client = host.client("$SYS/broker/routes/R/status")
        uptimes = [json.loads(payload)["uptime_s"] for _, payload in client.messages(3)]
    assert uptimes == sorted(uptimes)
