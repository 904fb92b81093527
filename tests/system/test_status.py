"""The status of a route: when it is published, and what subscribers see."""

import json
from pathlib import Path

import pytest

from tests.support.doors import DOORS, Hosting
from tests.support.http_recorder import Recorder


def route(target: Recorder, config: str = "") -> str:
    return f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" {config}
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/x"
    """


@pytest.mark.parametrize("hosting", DOORS)
def test_the_status_is_retained_and_published_again_when_the_health_changes(hosting: Hosting, target: Recorder) -> None:
    with hosting(route(target, "WITH RETRIES '0'"), status_seconds=60) as host:
        client = host.client(host.status_filter)
        topic, payload = client.message()
        assert topic.endswith("/routes/R/status")
        assert json.loads(payload)["health"] == "Green"
        target.answer = lambda _: (500, b"")
        client.publish("in", b"1")
        assert json.loads(client.message()[1])["health"] == "Yellow"


@pytest.mark.parametrize("hosting", DOORS)
def test_a_lossless_route_whose_server_is_down_is_not_green(hosting: Hosting, target: Recorder, tmp_path: Path) -> None:
    routes = route(target, 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"')
    target.answer = lambda _: (503, b"")
    with hosting(routes, status_seconds=60, spool=str(tmp_path / "spool.db")) as host:
        client = host.client(host.status_filter)
        assert json.loads(client.message()[1])["health"] == "Green"
        client.publish("in", b"1")
        status = json.loads(client.message()[1])
    assert (status["health"], status["connection"]) == ("Yellow", "connected")
    assert status["health_reason"] == (
        "tries failed: 1 of the last 1; messages tried again: 1, the last failed try with http_status"
    )
    assert status["last_error"]["code"] == "http_status"
    assert (status["messages"]["total"], status["messages"]["failed"]) == (1, 0)


@pytest.mark.parametrize("hosting", DOORS)
def test_a_route_is_not_green_while_a_message_is_tried_again(hosting: Hosting, target: Recorder) -> None:
    answers = iter([(503, b"")])
    target.answer = lambda _: next(answers, (200, b""))
    with hosting(route(target), status_seconds=60) as host:
        client = host.client(host.status_filter)
        client.message()
        client.publish("in", b"1")
        retried, succeeded = (json.loads(payload) for _, payload in client.messages(2))
    reason = "messages tried again: 1, the last failed try with http_status"
    assert (retried["health"], retried["health_reason"]) == ("Yellow", reason)
    assert (retried["last_error"], retried["errors"]["total"]) == (None, 0)
    assert (succeeded["health"], succeeded["messages"]["succeeded"]) == ("Green", 1)
