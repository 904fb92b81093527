"""Health of server mode, wherever it is shown: the status topic, the API, the metrics, the pages and the log."""

import json
from collections.abc import Iterator

import pytest

from tests.support.admin_client import admin_of
from tests.support.doors import Host, Hosting, doors
from tests.support.http_ports import Raw, get, post
from tests.support.waiting import eventually

TOKEN = "Authorization: Bearer a-long-token"
ROUTE = """DEFINE ROUTE Intake WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0" WITH SERVER_TOKEN "a-long-token"
    ADD EVENT Received WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "received"
DEFINE ROUTE Open WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0"
    ADD EVENT Read WITH METHOD "GET" WITH ENDPOINT "/last" WITH SOURCE_TOPIC "last"
"""


@pytest.fixture(scope="module", params=doors(0))
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with request.param(ROUTE, admin_port=0, status_seconds=3600) as running:
        yield running


def test_a_route_that_refuses_every_caller_says_so_wherever_it_is_shown(host: Host) -> None:
    client = host.client(host.status_filter)
    assert {json.loads(payload)["health"] for _, payload in client.messages(2)} == {"Green"}
    with Raw(host.http_port) as raw:
        for _ in range(5):
            assert raw.ask(post("/hook")).status == 401
        assert raw.ask(post("/hook", b"x", TOKEN)).status == 200
    told = "callers refused: 5 of the last 6 requests, the last one with 401 unauthorized"
    eventually(lambda: admin_of(host).status("Intake")["health_reason"] == told)
    assert json.loads(client.message()[1])["health"] == "Yellow"
    status = admin_of(host).status("Intake")
    assert (status["health"], status["last_error"], status["connection"]) == ("Yellow", None, "connected")
    assert 0 < status["latency_ms"]["p50"] < 20_000
    admin = admin_of(host)
    assert told in admin.get("/").text
    assert told in admin.get("/routes/Intake").text
    assert admin.value("rest_bridge_health", route="Intake") == 1
    labels = {"route": "Intake", "event": "Received"}
    assert admin.value("rest_bridge_requests_total", status="401", **labels) == 5
    assert admin.value("rest_bridge_request_seconds_count", **labels) == 1
    assert admin.value("rest_bridge_request_seconds_bucket", le="+Inf", **labels) == 1
    assert admin.value("rest_bridge_call_seconds_count", **labels) is None


def test_a_read_event_without_a_message_refuses_its_callers(host: Host) -> None:
    with Raw(host.http_port) as raw:
        assert raw.ask(get("/last"), "GET").status == 404
    told = "callers refused: 1 of the last 1 requests, the last one with 404 no_message"
    eventually(lambda: admin_of(host).status("Open")["health_reason"] == told)


def test_replies_that_never_come_make_a_route_red_and_callers_cannot(hosting: Hosting) -> None:
    route = """DEFINE ROUTE Ask WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0" WITH REQUEST_TIMEOUT "1"
        ADD EVENT Asked WITH METHOD "POST" WITH ENDPOINT "/ask"
            WITH DESTINATION_TOPIC "q" WITH REPLY_TOPIC "a/{request_id}"
    """
    with hosting(route, admin_port=0) as host:
        callers = [Raw(host.http_port).send(post("/ask")) for _ in range(3)]
        for raw in callers:
            with raw:
                assert raw.answer().status == 504
        eventually(lambda: admin_of(host).status("Ask")["health"] == "Red")
        status = admin_of(host).status("Ask")
        assert status["health_reason"] == "requests failed: 3 of the last 3"
        assert status["last_error"]["code"] == "reply_timeout"
