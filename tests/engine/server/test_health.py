"""Health of server mode, by the last requests: those that the route could not serve, and callers that are refused."""

import logging

import pytest

from amqtt_rest_bridge.engine.needs import Outcome, RequestRun
from amqtt_rest_bridge.engine.server.endpoint import outcome_of
from amqtt_rest_bridge.engine.statistics import RouteError, RouteStatistics
from amqtt_rest_bridge.http.exchange import Refusal, Request, Response
from amqtt_rest_bridge.lot.model import Message, Route
from tests.support.answering import FakeBroker, port
from tests.support.server_mode import event, route

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


def test_the_latency_is_that_of_requests_that_were_served_which_say_nothing_of_the_connection_to_a_target() -> None:
    serving = Serving(both=True)
    serving.serve("+++t1")
    status = serving.statistics.status(102.0)
    assert (status["latency_ms"], status["connection"]) == ({"p50": 20.0, "p99": 30.0}, "idle")


FAILED = ["WARNING 504 reply_timeout", "WARNING 503 broker_unavailable (and 3 more like it)"]


@pytest.mark.parametrize(
    ("level", "answers", "lines"),
    [
        pytest.param(logging.INFO, "s", ["INFO 200 duplicate"], id="the reason of what publishes nothing"),
        pytest.param(logging.INFO, "+1", ["INFO 200", "INFO 401 unauthorized"], id="a refused caller"),
        pytest.param(logging.INFO, "to++txb", [FAILED[0], "INFO 200", FAILED[1], "INFO 200"], id="what is not served"),
        pytest.param(logging.WARNING, "+10to++txb", FAILED, id="that alone, if only warnings are logged"),
        pytest.param(
            logging.INFO, "+1+0", ["INFO 200", "INFO 401 unauthorized", "INFO 200", "INFO 400 invalid_request"],
            id="refusals apart from answers of another class",
        ),
    ],
)  # fmt: skip
def test_requests_that_are_not_served_have_a_line_of_their_own_which_is_a_warning(
    caplog: pytest.LogCaptureFixture, level: int, answers: str, lines: list[str]
) -> None:
    caplog.set_level(level, logger="amqtt_rest_bridge.engine.outcome")
    serving = Serving()
    serving.serve(answers)
    serving.broker.clock.advance(1.0)
    begin = "route R, event Event: answered POST /hook with "
    found = [f"{one.levelname} {one.getMessage().removeprefix(begin)}" for one in caplog.records]
    assert all(", run an id" in line for line in found)
    assert [line.replace(", run an id", "") for line in found] == lines


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
