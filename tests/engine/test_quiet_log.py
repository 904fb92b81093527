"""Log lines about calls: the first at once, then one a second with the number of calls."""

import logging

import pytest

from amqtt_rest_bridge.engine import outcome
from amqtt_rest_bridge.engine.outcome import QuietLog
from amqtt_rest_bridge.lot.model import RunIds
from tests.engine.host import Rigs, VirtualClock, text

NAME = ("R", "E")


class Quiet(QuietLog):
    """A log whose time passes when a test says so."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        super().__init__(RunIds("00000000-0000-4000-8000-"), self.clock)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Quiet:
    caplog.set_level(logging.INFO, logger=outcome.__name__)
    return Quiet()


def test_the_first_call_is_logged_at_once_and_the_others_of_its_second_as_one_line(
    quiet: Quiet, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 40):
        quiet.note(logging.INFO, NAME, "call %d", number, topic="in/a", run=7)
    of = "message on in/a, run 00000000-0000-4000-8000-000000000007"
    assert caplog.messages == [f"route R, event E: call 1, {of}"]
    assert quiet.clock.pass_to(1)
    assert caplog.messages[1:] == [f"route R, event E: call 39, {of} (and 37 more like it)"]
    assert quiet.clock.pass_to(2)
    assert not quiet.clock.pass_to(10)  # the event is forgotten
    quiet.note(logging.INFO, NAME, "one more")
    assert caplog.messages[2:] == ["route R, event E: one more"]


def test_events_levels_and_kinds_are_counted_apart(quiet: Quiet, caplog: pytest.LogCaptureFixture) -> None:
    quiet.note(logging.INFO, NAME, "went well")
    quiet.note(logging.WARNING, NAME, "was refused")
    quiet.note(logging.INFO, NAME, "is retried", kind="retry")
    quiet.note(logging.INFO, ("R", "Other"), "went well")
    assert caplog.messages == [
        "route R, event E: went well", "route R, event E: was refused", "route R, event E: is retried",
        "route R, event Other: went well",
    ]  # fmt: skip


def test_what_is_only_counted_is_written_before_the_end(quiet: Quiet, caplog: pytest.LogCaptureFixture) -> None:
    quiet.note(logging.INFO, NAME, "first")
    quiet.note(logging.INFO, NAME, "second")
    quiet.flush()
    quiet.flush()
    assert caplog.messages == ["route R, event E: first", "route R, event E: second"]


def test_a_level_that_is_off_costs_no_timer(quiet: Quiet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger=outcome.__name__)
    quiet.note(logging.INFO, NAME, "went well")
    assert not quiet.clock.pass_to(10)
    assert caplog.messages == []


def test_a_line_of_a_call_has_its_server_and_times_and_neither_path_nor_secrets(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=outcome.__name__)
    address = "http://key-1234.example.com:8443/base"
    config = 'WITH PASSWORD "key-1234" WITH USERNAME "me"'
    rig = rigs(text(config=config).replace("http://server.test", address))
    rig.offer(b"the payload")
    rig.advance(2)
    rig.reply(201, elapsed=1.5)
    assert caplog.messages == [
        "route R, event E: POST http://***.example.com:8443 answered 201 in 1500 ms, waited 500 ms, message on in/a, "
        "run 00000000-0000-4000-8000-000000000001"
    ]
