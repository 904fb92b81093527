"""Health of server mode: what the last requests say of the route, its callers and its replies, wherever it is shown."""

import json
import logging
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from amqtt_rest_bridge.bridge.server.broker_access import Answers
from amqtt_rest_bridge.model import RestApiConfig, Route
from amqtt_rest_bridge.records.bridge_records import RawRequest, ServedEvent
from amqtt_rest_bridge.routing.admission import QueueBytes
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from tests.support.admin_client import admin_of
from tests.support.dispatching import Rig
from tests.support.embedded_broker import Host, hosting
from tests.support.http_ports import Raw, get, post
from tests.support.old_server_mode import port
from tests.support.server_mode import error_code, event
from tests.support.waiting import eventually

EVENT = ServedEvent("R", "E", "POST /hook")
ANSWERS = {
    "+": ("200 OK", None),
    "s": ("200 OK", "skipped"),
    "1": ("401 Unauthorized", "unauthorized"),
    "0": ("400 Bad Request", "invalid_request"),
    "3": ("403 Forbidden", "origin_not_allowed"),
    "4": ("404 Not Found", "no_message"),
    "5": ("413 Content Too Large", "payload_too_large"),
    "g": ("503 Service Unavailable", "unauthorized"),  # a wrong credential for whose answer there was no place
    "o": ("503 Service Unavailable", "overloaded"),
    "t": ("504 Gateway Timeout", "reply_timeout"),
    "x": ("500 Internal Server Error", "internal_error"),
    "b": ("503 Service Unavailable", "broker_unavailable"),
    "d": ("503 Service Unavailable", "shutting_down"),
}


def statistics(*, both: bool = False) -> RouteStatistics:
    return RouteStatistics(Route("R", RestApiConfig(enable_client=both, enable_server=True)), 4, 100.0, QueueBytes(1))


def answered(status: str, code: str | None, seconds: float) -> RawRequest:
    failure = None if code in (None, "skipped") else (code, f"why {code}", "")
    kind = "skipped" if code == "skipped" else "request"
    return RawRequest(100.0, kind, (None, None), EVENT, "an id", None, "POST", "/hook", status, failure, seconds)


def serve(one: RouteStatistics, outcomes: str, *, at_once: bool = True) -> str:
    """Count requests by their answers, in one report or one for each; return the health."""
    answers = Answers()
    for number, outcome in enumerate(outcomes, start=1):
        status, code = ANSWERS[outcome]
        answers.count(answered(status, code, 0.01 * number))
        if not at_once:
            one.served(answers.take().routes["R"], 101.0)
    for report in answers.take().routes.values():
        one.served(report, 101.0)
    return one.health


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_requests_that_are_not_served_have_a_line_of_their_own_which_is_a_warning(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """The others, refused callers among them, are only looked at where INFO is logged."""
    rig = Rig()
    with caplog.at_level(level):
        answers = Answers()
        for outcome in "+10totxb++":
            answers.count(answered(*ANSWERS[outcome], 0.01))
        rig.server.served(answers.take())
    lines = [
        (logging.INFO, "answered POST /hook with 400 invalid_request, run an id (the last of 2)"),
        (logging.WARNING, "answered POST /hook with 503 broker_unavailable, run an id (the last of 5)"),
        (logging.INFO, "answered POST /hook with 200, run an id (the last of 3)"),
    ]
    wanted = [(of, f"route R, event E: {line}") for of, line in lines if of >= level]
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == wanted


@pytest.mark.parametrize("at_once", [pytest.param(True, id="one report"), pytest.param(False, id="a report each")])
@pytest.mark.parametrize(
    ("outcomes", "health"),
    [
        pytest.param("+" * 30, "Green", id="all well"),
        pytest.param("+s+s", "Green", id="WHEN is false"),
        pytest.param("1" * 30, "Yellow", id="all callers refused"),
        pytest.param("g" * 30, "Yellow", id="all of them without a place"),
        pytest.param("0345", "Yellow", id="refused for other reasons"),
        pytest.param("1" + "+" * 19, "Yellow", id="a refused caller among the last 20"),
        pytest.param("1" + "+" * 20, "Green", id="a refused caller before the last 20"),
        pytest.param("+tt", "Yellow", id="two without a reply"),
        pytest.param("+ttt", "Red", id="three without a reply"),
        pytest.param("otx", "Red", id="three for different reasons"),
        pytest.param("bbb", "Red", id="the broker is away"),
        pytest.param("tt1t", "Yellow", id="a refused caller between"),
        pytest.param("ttt+", "Yellow", id="well again"),
        pytest.param("+d", "Green", id="the bridge stops"),
        pytest.param("t" * 50, "Red", id="all failed"),
        pytest.param("t" + "+" * 50, "Green", id="long ago"),
    ],
)
def test_health_follows_the_last_requests(outcomes: str, health: str, at_once: bool) -> None:
    assert serve(statistics(), outcomes, at_once=at_once) == health


def test_refused_callers_are_named_apart_from_what_fails() -> None:
    one = statistics()
    assert one.status(101.0)["health_reason"] is None
    serve(one, "+t+11")
    status = one.status(102.0)
    assert status["health_reason"] == (
        "requests failed: 1 of the last 5; "
        "callers refused: 2 of the last 5 requests, the last one with 401 unauthorized"
    )
    assert status["last_error"]["code"] == "reply_timeout"
    assert status["errors"] == {"total": 1, "consecutive": 0}
    messages = status["messages"]
    assert {name: messages[name] for name in ("total", "succeeded", "failed", "refused")} == {
        "total": 5,
        "succeeded": 2,
        "failed": 1,
        "refused": 2,
    }


@pytest.mark.parametrize(
    ("calls", "requests", "health"),
    [
        pytest.param("+", "1", "Yellow", id="the target is well, callers are refused"),
        pytest.param("---", "+" * 20, "Red", id="the target fails, requests are well"),
        pytest.param("+" * 20, "ttt", "Red", id="the target is well, replies fail"),
        pytest.param("-", "1", "Yellow", id="both"),
        pytest.param("+", "+", "Green", id="neither"),
    ],
)
def test_a_route_of_both_modes_is_as_bad_as_the_worse(calls: str, requests: str, health: str) -> None:
    one = statistics(both=True)
    for outcome in calls:
        assert one.admission.admit(0) is None
        if outcome == "+":
            one.success(0.0, 0.01, 101.0)
        else:
            one.failure("timeout", "too slow", 101.0)
    assert serve(one, requests) == health
    status = one.status(102.0)
    reason = status["health_reason"] or ""
    assert ("messages failed" in reason) is ("-" in calls)
    assert ("callers refused" in reason) is ("1" in requests)
    assert ("requests failed" in reason) is ("t" in requests)
    assert status["connection"] == ("failing" if "-" in calls else "connected")


def test_a_request_says_nothing_of_the_connection_to_a_target() -> None:
    one = statistics(both=True)
    serve(one, "+")
    assert one.status(102.0)["connection"] == "idle"


def test_errors_in_a_row_are_counted_over_reports() -> None:
    one = statistics()
    for _ in range(2):
        serve(one, "t" * 30)
    assert one.status(102.0)["errors"]["consecutive"] == 60
    serve(one, "+tt")
    assert one.status(102.0)["errors"]["consecutive"] == 2


def test_the_latency_is_that_of_requests_that_were_served() -> None:
    one = statistics()
    serve(one, "+++t1")
    assert one.status(102.0)["latency_ms"] == {"p50": 20.0, "p99": 30.0}
    serve(one, "+" * 100_000)
    assert len(one._took) <= 1000


def test_a_preflight_that_is_refused_counts_as_a_caller_of_its_endpoint() -> None:
    hooks = port(event(), enable_cors=True, cors_origins=("https://shop.example",))
    asked = {"Access_Control_Request_Method": "POST"}
    assert hooks.ask("OPTIONS", "/hook", Origin="https://shop.example", **asked).status_code == 204
    assert hooks.broker.counted == []
    refusal = hooks.ask("OPTIONS", "/hook", Origin="https://evil.example", **asked)
    assert (refusal.status_code, error_code(refusal)) == (403, "origin_not_allowed")
    assert refusal.headers["vary"] == "Origin"
    assert hooks.broker.counted == [("Hooks", "origin_not_allowed")]


_ANSWERED = re.compile(
    r"route Intake, event Received: answered POST /hook with (.*), run \S+(?: \(the last of (\d+)\))?"
)
TOKEN = "Authorization: Bearer a-long-token"
ROUTE = """DEFINE ROUTE Intake WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0" WITH SERVER_TOKEN "a-long-token"
    ADD EVENT Received WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "received"
DEFINE ROUTE Open WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0"
    ADD EVENT Read WITH METHOD "GET" WITH ENDPOINT "/last" WITH SOURCE_TOPIC "last"
"""


@pytest.fixture(scope="module", params=[pytest.param(0, id="thread"), pytest.param(2, id="processes")])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with hosting(ROUTE, admin_port=0, status_seconds=3600, processes=request.param) as running:
        yield running


def status_of(host: Host, route: str = "Intake") -> dict[str, object]:
    routes = admin_of(host).get("/api/routes").json["routes"]
    (status,) = [status for status in routes if status["name"] == route]
    assert isinstance(status, dict)
    return status


def test_a_route_that_refuses_every_caller_says_so_wherever_it_is_shown(host: Host) -> None:
    client = host.client("$SYS/broker/routes/Intake/status")
    assert json.loads(client.message()[1])["health"] == "Green"
    with Raw(host.http_port) as raw:
        for _ in range(5):
            assert raw.ask(post("/hook")).status == 401
        assert raw.ask(post("/hook", b"x", TOKEN)).status == 200
    told = "callers refused: 5 of the last 6 requests, the last one with 401 unauthorized"
    eventually(lambda: status_of(host)["health_reason"] == told)
    assert json.loads(client.message()[1])["health"] == "Yellow"
    status = status_of(host)
    assert (status["health"], status["last_error"], status["connection"]) == ("Yellow", None, "connected")
    latency = status["latency_ms"]
    assert isinstance(latency, dict) and 0 < latency["p50"] < 20_000
    admin = admin_of(host)
    assert told in admin.get("/").text
    assert told in admin.get("/routes/Intake").text
    assert admin.value("rest_bridge_health", route="Intake") == 1
    labels = {"route": "Intake", "event": "Received"}
    assert admin.value("rest_bridge_requests_total", status="401", **labels) == 5
    assert admin.value("rest_bridge_request_seconds_count", **labels) == 1
    assert admin.value("rest_bridge_request_seconds_bucket", le="+Inf", **labels) == 1
    assert admin.value("rest_bridge_call_seconds_count", **labels) is None


def test_signed_and_unsigned_callers_of_one_second_have_a_log_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge")
    with hosting(ROUTE, processes=0) as host, Raw(host.http_port) as raw:
        for _ in range(2):
            assert raw.ask(post("/hook")).status == 401
            assert raw.ask(post("/hook", b"x", TOKEN)).status == 200
    lines = [_ANSWERED.fullmatch(line) for line in caplog.messages]
    counts = Counter[str]()
    for line in lines:
        if line is not None:
            counts[line[1]] += int(line[2] or 1)
    assert counts == {"401 unauthorized": 2, "200": 2}


def test_a_read_event_without_a_message_refuses_its_callers(host: Host) -> None:
    with Raw(host.http_port) as raw:
        assert raw.ask(get("/last"), "GET").status == 404
    told = "callers refused: 1 of the last 1 requests, the last one with 404 no_message"
    eventually(lambda: status_of(host, "Open")["health_reason"] == told)


def test_a_bridge_process_that_is_replaced_leaves_health_and_counts_as_they_are() -> None:
    with hosting(ROUTE, admin_port=0, processes=1) as host:
        with Raw(host.http_port) as raw:
            assert [raw.ask(post("/hook")).status for _ in range(3)] == [401] * 3
        eventually(lambda: status_of(host)["health"] == "Yellow")
        (before,) = host.bridges
        os.kill(before.pid, signal.SIGKILL)
        eventually(lambda: host.bridges[0] is not before and host.bridges[0].ready)
        told = "callers refused: 3 of the last {} requests, the last one with 401 unauthorized"
        assert status_of(host)["health_reason"] == told.format(3)
        with Raw(host.http_port) as raw:
            assert raw.ask(post("/hook", b"x", TOKEN)).status == 200
        eventually(lambda: status_of(host)["health_reason"] == told.format(4))


def test_replies_that_never_come_make_a_route_red_and_callers_cannot() -> None:
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
        eventually(lambda: status_of(host, "Ask")["health"] == "Red")
        status = status_of(host, "Ask")
        assert status["health_reason"] == "requests failed: 3 of the last 3"
        assert status["last_error"]["code"] == "reply_timeout"  # type: ignore[index]  # it is an object
