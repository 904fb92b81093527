"""Health of server mode, by the last requests: those that the route could not serve, and callers that are refused."""

import logging

import pytest

from amqtt_rest_bridge.engine.needs import Outcome, RequestRun
from amqtt_rest_bridge.engine.server.endpoint import outcome_of
from amqtt_rest_bridge.engine.statistics import RouteError, RouteStatistics
from amqtt_rest_bridge.http.exchange import Refusal, Request, Response
from amqtt_rest_bridge.lot.model import Message, Route
from tests.support.answering import FakeBroker, port
from tests.support.server_mode import error_code, event, route

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


class Serving:
    """A route whose requests have the outcomes that a test says."""

    def __init__(self, *, both: bool = False) -> None:
        self.broker = FakeBroker()
        self._route: Route = route(event(), name="R", enable_client=both)
        self.broker.statistics.use_routes([self._route])
        self._requests = 0

    @property
    def statistics(self) -> RouteStatistics:
        return self.broker.statistics.statistics["R"]

    def serve(self, answers: str) -> str:
        """Count requests by their answers; return the health."""
        for number, one in enumerate(answers, start=1):
            status, code = ANSWERS[one]
            refusal = None if code in (None, "skipped") else Refusal(code, status, f"why {code}", "")
            outcome = Outcome.SKIPPED if code == "skipped" else Outcome.SUCCEEDED
            request, answer = Request("an id", "POST", "/hook", "", {}), Response(status)
            run = RequestRun(
                101.0, outcome if refusal is None else outcome_of(refusal.code), 8080, self._route,
                self._route.server_events[0], request, answer, refusal, took=0.01 * number, label="POST /hook",
                skipped=("duplicate", "DEDUPE_KEY was seen before") if code == "skipped" else None,
            )  # fmt: skip
            self.broker.statistics.note_request(run)
        return self.statistics.health


@pytest.mark.parametrize(
    ("answers", "health"),
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
def test_health_follows_the_last_requests(answers: str, health: str) -> None:
    assert Serving().serve(answers) == health


def test_refused_callers_are_named_apart_from_what_fails() -> None:
    serving = Serving()
    assert serving.statistics.status(101.0)["health_reason"] is None
    serving.serve("+t+11")
    status = serving.statistics.status(102.0)
    assert status["health_reason"] == (
        "requests failed: 1 of the last 5; "
        "callers refused: 2 of the last 5 requests, the last one with 401 unauthorized"
    )
    assert status["last_error"]["code"] == "reply_timeout"
    assert status["errors"] == {"total": 1, "consecutive": 0}
    counts = {name: status["messages"][name] for name in ("total", "succeeded", "failed", "refused")}
    assert counts == {"total": 5, "succeeded": 2, "failed": 1, "refused": 2}


@pytest.mark.parametrize(
    ("calls", "answers", "health"),
    [
        pytest.param("+", "1", "Yellow", id="the target is well, callers are refused"),
        pytest.param("---", "+" * 20, "Red", id="the target fails, requests are well"),
        pytest.param("+" * 20, "ttt", "Red", id="the target is well, replies fail"),
        pytest.param("-", "1", "Yellow", id="both"),
        pytest.param("+", "+", "Green", id="neither"),
    ],
)
def test_a_route_of_both_modes_is_as_bad_as_the_worse(calls: str, answers: str, health: str) -> None:
    serving = Serving(both=True)
    for call in calls:
        if call == "+":
            serving.statistics.note_success(0.01, 0.01, 101.0)
        else:
            serving.statistics.note_failure(RouteError(101.0, "timeout", "too slow"))
    assert serving.serve(answers) == health
    status = serving.statistics.status(102.0)
    reason = status["health_reason"] or ""
    assert ("messages failed" in reason) is ("-" in calls)
    assert ("callers refused" in reason) is ("1" in answers)
    assert ("requests failed" in reason) is ("t" in answers)
    assert status["connection"] == ("failing" if "-" in calls else "connected")


def test_errors_in_a_row_are_counted() -> None:
    serving = Serving()
    serving.serve("t" * 60)
    assert serving.statistics.status(102.0)["errors"]["consecutive"] == 60
    serving.serve("+tt")
    assert serving.statistics.status(102.0)["errors"]["consecutive"] == 2


def test_a_request_says_nothing_of_the_connection_to_a_target() -> None:
    serving = Serving(both=True)
    serving.serve("+")
    assert serving.statistics.status(102.0)["connection"] == "idle"


def test_the_latency_is_that_of_requests_that_were_served() -> None:
    serving = Serving()
    serving.serve("+++t1")
    assert serving.statistics.status(102.0)["latency_ms"] == {"p50": 20.0, "p99": 30.0}


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_requests_that_are_not_served_have_a_line_of_their_own_which_is_a_warning(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """The others, refused callers among them, are only looked at where INFO is logged."""
    serving = Serving()
    with caplog.at_level(level):
        serving.serve("+10totxb++")
        serving.broker.clock.advance(1.0)
    lines = [
        (logging.INFO, "answered POST /hook with 200, run an id"),
        (logging.INFO, "answered POST /hook with 401 unauthorized, run an id"),
        (logging.WARNING, "answered POST /hook with 504 reply_timeout, run an id"),
        (logging.INFO, "answered POST /hook with 200, run an id (the last of 2)"),
        (logging.INFO, "answered POST /hook with 400 invalid_request, run an id"),
        (logging.WARNING, "answered POST /hook with 503 broker_unavailable, run an id (the last of 4)"),
    ]
    wanted = [
        (of, f"route R, event E: {line}".replace("event E:", "event Event:")) for of, line in lines if of >= level
    ]
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == wanted


def test_a_request_that_publishes_nothing_has_the_reason_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge.engine.outcome")
    Serving().serve("s")
    assert caplog.messages == ["route R, event Event: answered POST /hook with 200 duplicate, run an id"]


def test_a_preflight_that_is_refused_counts_as_a_caller_of_its_endpoint() -> None:
    hooks = port(event(), enable_cors=True, cors_origins=("https://shop.example",))
    asked = {"Access_Control_Request_Method": "POST"}
    assert hooks.ask("OPTIONS", "/hook", Origin="https://shop.example", **asked).status_code == 204
    assert hooks.broker.counted == []
    refusal = hooks.ask("OPTIONS", "/hook", Origin="https://evil.example", **asked)
    assert (refusal.status_code, error_code(refusal)) == (403, "origin_not_allowed")
    assert refusal.headers["vary"] == "Origin"
    assert hooks.broker.counted == [("Hooks", "origin_not_allowed")]


def test_a_message_that_is_too_large_to_be_an_answer_is_an_error_of_the_route_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rooms = port(
        event("GET", "/room", None, name="Read", source="room/+"),
        event(endpoint="/ask", destination="q", reply="room/{path.x}", name="Ask"),
        event(name="Hook"),
    )
    rooms.broker.changed("room/1", b"21")
    rooms.mode.see(Message("room/1", bytes((4 << 20) + 1), 0.0))
    assert rooms.ask("GET", "/room").json == {"room/1": 21}
    told = "dropped a message on room/1: the message has 4194305 bytes, max_message_bytes allows 4194304"
    assert caplog.messages == [f"route Hooks, event {name}: {told}" for name in ("Read", "Ask")]
    status = rooms.broker.statistics.statistics["Hooks"].status(0.0)
    assert (status["last_error"]["code"], status["errors"]["total"]) == ("payload_too_large", 2)


def test_refusals_are_never_folded_into_a_line_of_answers_of_another_class(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge.engine.outcome")
    serving = Serving()
    serving.serve("+1+1+0+x+o")
    assert [line.partition(": ")[2].partition(", run")[0] for line in caplog.messages] == [
        "answered POST /hook with 200", "answered POST /hook with 401 unauthorized",
        "answered POST /hook with 500 internal_error",
    ]  # fmt: skip
    caplog.clear()
    serving.broker.clock.advance(1.0)
    lines = [line.partition("with ")[2].replace(", run an id", "") for line in caplog.messages]
    assert lines == ["200 (the last of 4)", "400 invalid_request (the last of 2)", "503 overloaded"]
