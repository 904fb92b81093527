"""Log lines about calls: the first at once, then one a second with the number of calls."""

import logging
from collections.abc import Callable

import pytest

from amqtt_rest_bridge.model import ClientEvent, Method, RestApiConfig, Route, RunIds
from amqtt_rest_bridge.placeholders import Mode, Place, parse
from amqtt_rest_bridge.routing import outcomes as quiet_log
from amqtt_rest_bridge.routing.outcomes import QuietLog, described
from amqtt_rest_bridge.times import LineLimit
from tests.support.clock import Clock

NAME = ("R", "E")
RUNS = RunIds("00000000-0000-4000-8000-")


class Seconds:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def later(self, _seconds: float, function: Callable[[], None]) -> None:
        self.due.append(function)

    def pass_one(self) -> None:
        due, self.due = self.due, []
        for function in due:
            function()


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger=quiet_log.__name__)

    def take() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return take


def test_the_first_call_is_logged_at_once_and_the_others_of_its_second_as_one_line(
    seconds: Seconds, lines: Callable[[], list[str]]
) -> None:
    quiet = QuietLog(RUNS, seconds.later)
    quiet.note(logging.INFO, NAME, "call %d", 1)
    assert lines() == ["route R, event E: call 1"]
    for number in range(2, 40):
        quiet.note(logging.INFO, NAME, "call %d", number)
    assert lines() == []
    seconds.pass_one()
    assert lines() == ["route R, event E: call 39 (the last of 38)"]


def test_an_event_is_forgotten_a_second_after_its_last_line(seconds: Seconds, lines: Callable[[], list[str]]) -> None:
    quiet = QuietLog(RUNS, seconds.later)
    quiet.note(logging.INFO, NAME, "first")
    seconds.pass_one()
    assert seconds.due == []
    quiet.note(logging.INFO, NAME, "second")
    assert lines() == ["route R, event E: first", "route R, event E: second"]


def test_events_levels_and_classes_of_status_are_counted_apart(
    seconds: Seconds, lines: Callable[[], list[str]]
) -> None:
    quiet = QuietLog(RUNS, seconds.later)
    quiet.note(logging.INFO, NAME, "went well")
    quiet.note(logging.WARNING, NAME, "was refused")
    quiet.note(logging.INFO, ("R", "Other"), "went well", count=7)
    for status in (204, 401, 204):
        quiet.note(logging.INFO, NAME, "answered %d", status, status_class=status // 100)
    assert lines() == [
        "route R, event E: went well",
        "route R, event E: was refused",
        "route R, event Other: went well (the last of 7)",
        "route R, event E: answered 204",
        "route R, event E: answered 401",
    ]
    seconds.pass_one()
    assert lines() == ["route R, event E: answered 204"]


def test_what_is_only_counted_is_written_before_the_end(seconds: Seconds, lines: Callable[[], list[str]]) -> None:
    quiet = QuietLog(RUNS, seconds.later)
    quiet.note(logging.INFO, NAME, "first")
    quiet.note(logging.INFO, NAME, "second")
    quiet.flush()
    quiet.flush()
    assert lines() == ["route R, event E: first", "route R, event E: second"]


def test_a_level_that_is_off_costs_no_timer(seconds: Seconds, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=quiet_log.__name__)
    QuietLog(RUNS, seconds.later).note(logging.INFO, NAME, "went well")
    assert (seconds.due, caplog.records) == ([], [])


def test_a_request_is_described_without_its_path_and_without_secrets() -> None:
    config = RestApiConfig("https://key-1234.example.com:8443/base/t0p-s3cret")
    event = ClientEvent("E", "in", Method.POST, parse("/x", Place.ENDPOINT, Mode.CLIENT))
    route = Route("R", config, (event,), secrets=frozenset({"key-1234"}))
    assert described(route, event) == "POST https://***.example.com:8443"


def test_a_limit_writes_the_first_line_at_once_and_counts_the_others_until_the_next_is_due() -> None:
    clock = Clock(1000.0)
    limit = LineLimit(60.0, clock)
    assert [limit.count() for _ in range(3)] == [1, 0, 0]
    clock.advance(59.9)
    assert limit.count() == 0
    clock.advance(0.1)
    assert [limit.count(), limit.count()] == [4, 0]
