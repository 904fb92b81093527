"""What a bridge process is sent, and what waits in the broker process until it can be started soon."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from amqtt_rest_bridge.model import Message, Route
from amqtt_rest_bridge.processes.bridge_calls import READ_AHEAD_BYTES, ReadAhead
from amqtt_rest_bridge.routing.calls import Call, CallPlace
from tests.support.dispatching import Rig, route

LARGE = 4 << 20
WORKERS = 3


@functools.cache
def _payload(size: int) -> bytes:
    """Return a payload that all messages of its size share, as 200 large ones would fill the memory."""
    return b"x" * size


class Process:
    """A bridge process that is sent calls, by their numbers."""

    def __init__(self) -> None:
        self.rig = Rig(max_message_bytes=1 << 30)
        self.backlog = 0
        self.sent: list[int] = []
        self.soon: list[Callable[[], None]] = []
        self.ahead = ReadAhead(
            WORKERS,
            lambda: self.backlog,
            lambda call: self.sent.append(call.id),
            self.rig.dispatcher.renew,
            self.soon.append,
        )

    def calls(self, *messages: tuple[str, int]) -> list[Call]:
        """Enter calls for messages of topics and sizes."""
        self.rig.bridge.calls.clear()
        for topic, size in messages:
            self.rig.dispatcher.offer(Message(topic, _payload(size), 0.0))
        calls = list(self.rig.bridge.calls)
        self.sent += [call.id for call in calls if self.ahead.enter(call)]
        return calls

    def end(self, call: Call) -> None:
        self.ahead.ended(call)
        self.rig.end(call)

    def iterate(self) -> int:
        """Run what is due in the next iteration of the loop; return how many failures it published."""
        soon, self.soon[:] = list(self.soon), []
        before = len(self.rig.queue.publications)
        for action in soon:
            action()
        return len(self.rig.queue.publications) - before

    def newly_sent(self) -> list[int]:
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def process() -> Process:
    process = Process()
    ordered = route(name="O", source="o/+")
    ordered = replace(ordered, client_events=(replace(ordered.client_events[0], ordered=True),))
    process.rig.use(*(huge(one) for one in (route(source="in/#"), route(name="S", source="s/#"), ordered)))
    return process


def huge(of: Route) -> Route:
    return replace(of, route_config=replace(of.route_config, overload_bytes=1 << 40))


def test_large_calls_are_sent_as_far_as_there_are_workers_and_some_ahead(process: Process) -> None:
    calls = process.calls(*[("in/1", LARGE)] * 8)
    assert process.newly_sent() == [1, 2, 3, 4]  # a second one ahead, with what it takes itself, is over the bound
    process.end(calls[0])
    process.end(calls[1])
    assert process.newly_sent() == [5, 6]
    for call in calls[2:]:
        process.end(call)
    assert process.newly_sent() == [7, 8]
    assert process.calls(("in/1", LARGE))[0].place is CallPlace.ACTIVE


def test_small_calls_are_sent_at_once(process: Process) -> None:
    calls = process.calls(*[("in/1", 100)] * 10_000)
    assert process.newly_sent() == [call.id for call in calls]
    assert all(call.place is not CallPlace.HELD for call in calls)


def test_no_route_waits_for_the_bytes_of_another_one(process: Process) -> None:
    process.calls(*[("in/1", LARGE)] * 8)
    process.newly_sent()
    others = process.calls(*[("s/1", LARGE)] * 5)
    assert process.newly_sent() == [call.id for call in others[:WORKERS]]
    process.end(others[1])
    assert process.newly_sent() == [others[3].id]


def test_calls_that_wait_for_a_try_or_a_turn_are_not_in_flight(process: Process) -> None:
    calls = process.calls(*[("in/1", LARGE)] * 8)
    for call in calls[:2]:
        process.ahead.waits(call)
    assert process.newly_sent() == [1, 2, 3, 4, 5, 6]
    for call in calls[:2]:
        process.ahead.resumes(call)
        process.ahead.resumes(call)
    for call in calls[:5]:
        process.end(call)
    assert process.newly_sent() == [7, 8]
    for call in calls[5:]:
        process.end(call)
    assert process.calls(("in/1", LARGE))[0].place is CallPlace.ACTIVE


def test_a_call_whose_payload_was_let_go_is_sent_again_before_those_that_wait_and_by_no_other_definition(
    process: Process,
) -> None:
    calls = process.calls(*[("in/1", LARGE)] * 9)
    calls[0].let_go = True
    process.ahead.waits(calls[0])
    assert process.newly_sent() == [1, 2, 3, 4, 5]
    process.rig.use()
    process.ahead.returns(calls[0])
    assert process.newly_sent() == []
    process.rig.use(huge(route()))
    process.end(calls[1])
    process.end(calls[2])
    assert process.newly_sent() == [1, 6]
    assert not calls[0].let_go


def test_behind_the_first_of_an_ordered_topic_nothing_is_in_flight_and_no_other_topic_waits(process: Process) -> None:
    first = process.calls(*[("o/1", LARGE)] * 6)
    assert [call.id for call in first[:2]] == process.newly_sent()  # one, and one ahead
    others = process.calls(("o/2", LARGE), ("o/3", LARGE), ("o/4", LARGE))
    assert [call.id for call in others[:2]] == process.newly_sent()
    for call in first:
        process.end(call)
    assert [one for one in process.newly_sent() if one != others[2].id] == [call.id for call in first[2:]]


def test_calls_of_one_topic_are_sent_in_order_whatever_their_sizes(process: Process) -> None:
    sizes = [LARGE, LARGE, LARGE, 10, LARGE, 10, 10]
    calls = process.calls(*(("o/1", size) for size in sizes))
    for call in calls:
        process.end(call)
    assert process.newly_sent() == [call.id for call in calls]


def test_large_calls_wait_while_the_bridge_process_does_not_read(process: Process) -> None:
    process.backlog = 5 << 20
    large, small = *process.calls(("in/1", LARGE)), *process.calls(("s/1", 100))
    assert process.newly_sent() == [small.id]
    process.ahead.link_has_room()
    assert process.newly_sent() == []
    process.backlog = 1 << 20
    process.ahead.link_has_room()
    assert process.newly_sent() == [large.id]


def test_what_waits_follows_a_reload_and_ends_where_its_event_is_gone(process: Process) -> None:
    calls = process.calls(*[("in/1", LARGE)] * 8)
    process.rig.use(huge(route("/changed")))
    process.end(calls[0])
    assert process.newly_sent()[4:] == [5]
    assert [call.listening.event.endpoint.source for call in calls[3:6]] == ["/x", "/changed", "/changed"]
    process.rig.use()
    process.end(calls[1])
    assert process.newly_sent() == []
    assert len(process.rig.queue.publications) == 3
    for call in calls[2:5]:
        process.end(call)
    assert process.rig.held.held == 0


@pytest.mark.parametrize("topic", ["in/1", "o/1"])
def test_a_removed_event_ends_what_waits_a_few_at_a_time(process: Process, topic: str) -> None:
    calls = process.calls(*[(topic, LARGE)] * 200)
    process.rig.use()
    sent = [call for call in calls if call.place is not CallPlace.HELD]
    for call in sent:
        process.end(call)
    ended = [len(process.rig.queue.publications)]
    while process.soon:
        ended.append(process.iterate())
    assert max(ended) < 40
    assert sum(ended) == 200 - len(sent)
    assert process.rig.held.held == 0


def test_what_a_removed_event_left_goes_no_further_than_its_bridge_process(process: Process) -> None:
    calls = process.calls(*[("in/1", LARGE)] * 100)
    process.rig.use()
    process.end(calls[0])
    process.ahead.stop()
    assert process.iterate() == 0


def test_after_the_stop_nothing_more_is_sent(process: Process) -> None:
    calls = process.calls(*[("in/1", LARGE)] * 8)
    process.newly_sent()
    process.ahead.stop()
    process.end(calls[0])
    assert process.newly_sent() == []


def test_a_bridge_process_never_has_more_ahead_than_the_bound(process: Process) -> None:
    """Ends and arrivals in many orders: the bytes beyond what is in flight stay bounded, and all calls are sent."""
    open_calls: list[Call] = []
    for step in _steps(2000):
        if step % 3:
            topics = (f"in/{step % 4}", f"o/{step % 5}", f"s/{step % 2}")
            open_calls += process.calls(*((topic, step * 2000) for topic in topics))
        else:
            _end_one(process, open_calls, step)
        ahead = [call for call in open_calls if call.place in (CallPlace.AHEAD, CallPlace.BEHIND)]
        assert sum(len(call.message.payload) for call in ahead) <= READ_AHEAD_BYTES
        if len(open_calls) > 60:
            break
    while open_calls:
        _end_one(process, open_calls, 0)
    assert process.rig.held.held == 0


def _end_one(process: Process, open_calls: list[Call], number: int) -> None:
    runnable = [call for call in open_calls if call.place in (CallPlace.ACTIVE, CallPlace.AHEAD)]
    if runnable:
        process.end(call := runnable[number % len(runnable)])
        open_calls.remove(call)
    assert bool(runnable) or not open_calls


def _steps(count: int) -> Iterator[int]:
    """Return numbers below 1,000 without a pattern, the same each time."""
    number = 1
    for _ in range(count):
        number = number * 48_271 % 2_147_483_647
        yield number % 1000
