"""Log lines about calls: the first at once, then one a second with the number of calls."""

import logging
from collections.abc import Callable

import pytest

from amqtt_rest_bridge.engine import outcome
from amqtt_rest_bridge.engine.outcome import QuietLog
from amqtt_rest_bridge.lot.model import RunIds
from tests.engine.host import Rig, VirtualClock, text

NAME = ("R", "E")
RUNS = RunIds("00000000-0000-4000-8000-")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger=outcome.__name__)

    def take() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return take


def test_the_first_call_is_logged_at_once_and_the_others_of_its_second_as_one_line(
    lines: Callable[[], list[str]],
) -> None:
    clock = VirtualClock()
    quiet = QuietLog(RUNS, clock)
    quiet.note(logging.INFO, NAME, "call %d", 1)
    assert lines() == ["route R, event E: call 1"]
    for number in range(2, 40):
        quiet.note(logging.INFO, NAME, "call %d", number, topic="in/a", run=7)
    assert lines() == []
    assert clock.pass_to(1)
    of = "message on in/a, run 00000000-0000-4000-8000-000000000007"
    assert lines() == [f"route R, event E: call 39, {of} (the last of 38)"]


def test_an_event_is_forgotten_a_second_after_its_last_line(lines: Callable[[], list[str]]) -> None:
    clock = VirtualClock()
    quiet = QuietLog(RUNS, clock)
    quiet.note(logging.INFO, NAME, "first")
    assert clock.pass_to(1)
    assert not clock.pass_to(10)
    quiet.note(logging.INFO, NAME, "second")
    assert lines() == ["route R, event E: first", "route R, event E: second"]


def test_events_levels_and_kinds_are_counted_apart(lines: Callable[[], list[str]]) -> None:
    quiet = QuietLog(RUNS, VirtualClock())
    quiet.note(logging.INFO, NAME, "went well")
    quiet.note(logging.WARNING, NAME, "was refused")
    quiet.note(logging.INFO, NAME, "is retried", kind="retry")
    quiet.note(logging.INFO, ("R", "Other"), "went well")
    assert lines() == [
        "route R, event E: went well",
        "route R, event E: was refused",
        "route R, event E: is retried",
        "route R, event Other: went well",
    ]


def test_what_is_only_counted_is_written_before_the_end(lines: Callable[[], list[str]]) -> None:
    quiet = QuietLog(RUNS, VirtualClock())
    quiet.note(logging.INFO, NAME, "first")
    quiet.note(logging.INFO, NAME, "second")
    quiet.flush()
    quiet.flush()
    assert lines() == ["route R, event E: first", "route R, event E: second"]


def test_a_level_that_is_off_costs_no_timer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=outcome.__name__)
    clock = VirtualClock()
    QuietLog(RUNS, clock).note(logging.INFO, NAME, "went well")
    assert not clock.pass_to(10)
    assert caplog.records == []


def test_a_line_of_a_call_has_its_server_and_times_and_neither_path_nor_secrets(
    rigs: Callable[..., Rig], lines: Callable[[], list[str]]
) -> None:
    address = "http://key-1234.example.com:8443/base"
    config = 'WITH PASSWORD "key-1234" WITH USERNAME "me"'
    rig = rigs(text(config=config).replace("http://server.test", address))
    rig.offer(b"the payload")
    rig.advance(2)
    rig.reply(201, elapsed=1.5)
    assert lines() == [
        "route R, event E: POST http://***.example.com:8443 answered 201 in 1500 ms, waited 500 ms, message on in/a, "
        "run 00000000-0000-4000-8000-000000000001"
    ]
