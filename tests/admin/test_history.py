"""The history of a route: an hour in steps of ten seconds, a day of a minute, a week of five, in bounded memory."""

from collections.abc import Sequence
from random import Random
from typing import Any, cast

from amqtt_rest_bridge.admin.figures import Numbers
from amqtt_rest_bridge.admin.history import RANGES, History, step_seconds
from amqtt_rest_bridge.admin.recorder import BUCKETS, Durations, EventCounts
from tests.support.admin_client import Admin

WEEK = 7 * 24 * 360  # samples


class Counted:
    """The numbers of one route, as far as its history reads them."""

    def __init__(self, succeeded: int, failed: int, refused: int = 0, took: Sequence[float] = ()) -> None:
        self.succeeded = succeeded
        self.failed = failed
        self.refused = refused
        durations = Durations([0] * (len(BUCKETS) + 1))
        for seconds in took:
            durations.add(seconds)
        self.events = {name: EventCounts({}, durations) for name in ("Send", "Received")}


def counted(succeeded: int, failed: int, refused: int = 0, name: str = "R", took: Sequence[float] = ()) -> Numbers:
    return Numbers({name: cast(Any, Counted(succeeded, failed, refused, took))}, cast(Any, None))


def test_each_range_has_all_that_was_counted_within_it() -> None:
    history = History()
    for number in range(WEEK + 1000):
        history.add(counted(number * 2, number, number))
    for span in RANGES:
        values = history.samples("R", span)
        assert len(values) == RANGES[span][1]
        samples = step_seconds(span) // 10
        assert {(one.succeeded, one.failed) for one in values[:-1]} == {(2 * samples, 2 * samples)}
    assert [RANGES[span][1] * step_seconds(span) for span in RANGES] == [600, 3600, 86_400, 604_800]
    kept = [values for one in history._routes["R"].values for values in (one.succeeded, one.failed)]
    latencies = history._routes["R"].latencies
    assert sum(len(values) * values.itemsize for values in kept) + len(latencies) <= 32_768
    assert (len(history.latencies("R", "1h")), history.latencies("R", "24h")) == (360, [])


def test_latencies_are_those_of_each_sample_and_right_within_a_quarter() -> None:
    history, took, random = History(), list[float](), Random(7)
    for seconds in (0.004, 0.3, 12.0):
        history.add(counted(0, 0, took=took))
        took += [seconds * random.uniform(0.9, 1.1) for _ in range(98)] + [seconds * 2] * 2
    for _ in range(2):
        history.add(counted(0, 0, took=took))
    history.add(counted(0, 0))  # they have started again
    *found, unanswered, again = history.latencies("R")
    assert (unanswered, again) == (None, None)
    for seconds, one in zip((0.004, 0.3, 12.0), found, strict=True):
        assert one is not None
        assert abs(one.p50 / 1000 / seconds - 1) < 0.25
        assert abs(one.p99 / 1000 / (2 * seconds) - 1) < 0.25


def test_a_counter_that_starts_again_and_a_route_that_is_gone_leave_no_trace() -> None:
    history = History()
    for succeeded in (5, 7, 0, 3):
        history.add(counted(succeeded, 0))
    assert [one.succeeded for one in history.samples("R")] == [2, 0, 3]
    assert history.rate("R") == 5 / 30
    for _ in range(6):
        history.add(counted(3, 0))
    assert history.rate("R") == 0, "it is that of the last minute"
    history.add(counted(1, 1, name="Other"))
    assert (history.samples("R"), history.rate("R"), history.rate("Other")) == ([], None, None)


def test_it_is_asked_for_by_route_and_range(idle: Admin) -> None:
    answer = idle.get("/api/history?route=Intake&range=24h").json
    assert (answer["step_seconds"], set(answer["series"])) == (60, {"succeeded", "failed"})
    assert idle.get("/api/history?route=Intake").json["step_seconds"] == 10
    assert idle.get("/api/history?route=Nowhere").status == 404
    assert idle.get("/api/history?route=Intake&range=1y").status == 400
