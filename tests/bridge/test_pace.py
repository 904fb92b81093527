"""RATE_LIMIT and RETRY_ON: how often the server is asked, and that a call that waits for its turn holds no worker."""

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from amqtt_rest_bridge.bridge.client.pace import Pace
from amqtt_rest_bridge.bridge.timers import Timers
from tests.bridge.host import hosting
from tests.bridge.recorder import Recorder, recording

ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
        ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY '100' {route}
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out" {event}
"""


class FakeTimers(Timers):
    """Timers whose time is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self._actions: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._actions.append((self.now + seconds, action))

    def run_until(self, now: float) -> None:
        while due := sorted((entry for entry in self._actions if entry[0] <= now), key=lambda entry: entry[0]):
            self._actions.remove(due[0])
            self.now = due[0][0]
            due[0][1]()
        self.now = now


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


def test_what_enters_starts_in_its_order_at_an_even_pace() -> None:
    timers = FakeTimers()
    pace, started = Pace(timers, lambda: timers.now), list[tuple[float, int]]()
    pace.change(0.5)
    for number in range(3):
        pace.enter(lambda number=number: started.append((timers.now, number)))  # type: ignore[misc]
    timers.run_until(10.0)
    pace.enter(lambda: started.append((timers.now, 3)))
    timers.run_until(20.0)
    assert started == [(0.0, 0), (0.5, 1), (1.0, 2), (10.0, 3)]


def test_a_changed_limit_holds_at_once_for_what_waits() -> None:
    timers = FakeTimers()
    pace, started = Pace(timers, lambda: timers.now), list[float]()
    pace.change(3600.0)
    for _ in range(3):
        pace.enter(lambda: started.append(timers.now))
    timers.run_until(5.0)
    pace.change(1.0)
    timers.run_until(6.5)
    pace.change(0.0)
    timers.run_until(7.0)
    assert started == [0.0, 5.0, 6.0]


@pytest.mark.parametrize("processes", [0, 2])
def test_the_server_sees_no_more_requests_than_the_limit(target: Recorder, processes: int) -> None:
    times: list[float] = []

    def answer(_: object) -> tuple[int, bytes]:
        times.append(time.monotonic())
        return 200, b""

    target.answer = answer
    text = ROUTE.format(url=target.url, route='WITH RATE_LIMIT "20/s"', event="")
    with hosting(text, processes=processes, workers=2) as host:
        client = host.client("out")
        for _ in range(20):
            client.publish("in", b"1")
        client.messages(2)
        status = host.plugin.service.statistics["R"].status(0.0)["messages"]
        assert (status["in_flight"] <= 2, status["retried"]) == (True, 0), "what waits for its turn is queued"
        client.messages(18)
    assert times[-1] - times[0] >= 19 / 20 - 0.05
    assert all(later - earlier >= 0.9 for earlier, later in zip(times, times[19:], strict=False))


def test_other_statuses_are_retried_for_any_method_where_the_event_says_so(target: Recorder) -> None:
    answers = itertools.chain([(500, b""), (404, b"")], itertools.repeat((200, b"well")))
    target.answer = lambda _: next(answers)
    with hosting(ROUTE.format(url=target.url, route="", event='WITH RETRY_ON "404, 500-501"')) as host:
        client = host.client("out")
        client.publish("in", b"1")
        assert client.message() == ("out", b"well")
        assert host.plugin.service.statistics["R"].retried == 2
