"""The dispatcher alone: what it dispatches, counts and publishes, whatever becomes of bridges and routes meanwhile."""

import pytest

from amqtt_rest_bridge.link.frames import CallResult
from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.routing.calls import MOST_WAITING
from tests.support.dispatching import Rig, route


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_call_that_is_lost_between_two_tries_waits_no_more(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.dispatcher.waiting(call, 1)
    assert rig.statistics.admission.waiting == 1
    rig.dispatcher.lost(call)
    assert (rig.statistics.admission.outstanding, rig.statistics.admission.waiting) == (0, 0)
    messages = rig.statistics.status(0.0)["messages"]
    assert (messages["failed"], messages["queued"], messages["in_flight"]) == (1, 0, 0)


def test_a_call_that_is_dispatched_again_between_two_tries_waits_no_more(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.dispatcher.waiting(call, 1)
    rig.dispatcher.replay(call)
    assert (rig.statistics.admission.outstanding, rig.statistics.admission.waiting) == (1, 0)
    rig.end(call)
    assert rig.statistics.admission.outstanding == 0


def test_a_call_whose_route_is_reloaded_while_it_waits_is_counted_to_its_end(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.dispatcher.waiting(call, 1)
    rig.use(route("/changed"))
    rig.dispatcher.waiting(call, -1)
    assert (rig.statistics.admission.outstanding, rig.statistics.admission.waiting) == (1, 0)
    rig.end(call)
    assert (rig.statistics.admission.outstanding, rig.statistics.admission.waiting) == (0, 0)


def test_a_call_is_dispatched_again_by_the_present_definition_of_its_event(rig: Rig) -> None:
    (call,) = rig.offer()
    number = call.listening.number
    rig.use(route("/changed"))
    rig.dispatcher.replay(call)
    (same,) = rig.bridge.calls[1:]
    assert same is call
    assert call.listening.number != number
    assert call.listening.event.endpoint.source == "/changed"


def test_a_route_that_was_gone_meanwhile_is_not_credited_with_calls_it_never_had(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.use()
    rig.use(route())
    rig.dispatcher.replay(call)
    rig.end(call)
    assert rig.statistics.admission.outstanding == 0


def test_a_call_whose_event_is_gone_ends_with_a_failure(rig: Rig) -> None:
    (call,) = rig.offer()
    rig.use()
    rig.dispatcher.replay(call)
    assert b"bridge_restarted" in rig.queue.publications[0].payload


def test_however_many_calls_a_bridge_process_held_each_gets_its_failure_and_the_log_a_line(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for call in rig.offer(MOST_WAITING + 5):
        rig.dispatcher.lost(call)
    assert len(rig.queue.publications) == MOST_WAITING + 5
    assert [record.getMessage() for record in caplog.records] == [
        "route R, event E: bridge_restarted, message on in/1, run 00000000-0000-4000-8000-000000000001"
    ]


def test_the_health_of_a_route_that_is_gone_is_not_told(rig: Rig) -> None:
    one, other = rig.offer(2)
    rig.dispatcher.lost(one)
    assert [statistics.health for statistics in rig.changes] == ["Yellow"]
    rig.use()
    rig.dispatcher.done(other, CallResult(other.id, 500, "http_status", "500", 0.0, 0.1, None), lambda _: None)
    rig.dispatcher.lost(other)
    assert len(rig.changes) == 1


def test_read_events_keep_what_they_saw_when_retained_messages_are_looked_at_again(rig: Rig) -> None:
    rig.use(reads=("seen", "new"))
    rig.dispatcher.offer(Message("seen", b"latest", 0.0))
    for topic in ("seen", "new"):
        rig.dispatcher.remember(topic, b"retained", only_new=True)
    assert rig.newest() == {"seen": b"latest", "new": b"retained"}


def test_a_message_taken_before_a_reload_goes_to_the_event_as_it_is_after_it(rig: Rig) -> None:
    before = rig.dispatcher.table.by_name.get(("R", "E"))
    assert before is not None
    before.statistics.admission.take(0)
    rig.use(route("/changed"))
    rig.dispatcher.dispatch_stored(before, Message("in/1", b"", 0.0), 0, "key")
    after = rig.dispatcher.table.by_name.get(("R", "E"))
    assert [call.listening for call in rig.bridge.calls] == [after]
