"""The history of a route: an hour in steps of ten seconds, a day of a minute, a week of five, in bounded memory."""

from typing import Any, cast

from amqtt_rest_bridge.admin.history import RANGES, History, step_seconds
from amqtt_rest_bridge.admin.numbers import Numbers
from tests.support.admin_client import admin_of, server_route
from tests.support.embedded_broker import hosting

WEEK = 7 * 24 * 360  # samples


class Counted:
    """The numbers of one route, as far as its history reads them."""

    def __init__(self, succeeded: int, failed: int, refused: int = 0) -> None:
        self.succeeded = succeeded
        self.failed = failed
        self.refused = refused


def counted(succeeded: int, failed: int, refused: int = 0, name: str = "R") -> Numbers:
    return Numbers(0.0, {name: cast(Any, Counted(succeeded, failed, refused))}, cast(Any, None))


def test_each_range_has_all_that_was_counted_within_it() -> None:
    history = History()
    for number in range(WEEK + 1000):
        history.add(counted(number * 2, number, number))
    for span in RANGES:
        values = history.of("R", span)
        assert len(values) == RANGES[span][1]
        samples = step_seconds(span) // 10
        assert {(one.succeeded, one.failed) for one in values[:-1]} == {(2 * samples, 2 * samples)}
    assert [RANGES[span][1] * step_seconds(span) for span in RANGES] == [600, 3600, 86_400, 604_800]
    kept = [values for one in history._values["R"] for values in (one.succeeded, one.failed)]
    assert sum(len(values) * values.itemsize for values in kept) <= 32_768


def test_a_counter_that_starts_again_and_a_route_that_is_gone_leave_no_trace() -> None:
    history = History()
    for succeeded in (5, 7, 0, 3):
        history.add(counted(succeeded, 0))
    assert [one.succeeded for one in history.of("R")] == [2, 0, 3]
    assert history.rate("R") == 0.3
    history.add(counted(1, 1, name="Other"))
    assert (history.of("R"), history.rate("R"), history.rate("Other")) == ([], None, None)


def test_it_is_asked_for_by_route_and_range() -> None:
    with hosting(server_route(), admin_port=0) as host:
        admin = admin_of(host)
        answer = admin.get("/api/history?route=Intake&range=24h").json
        assert (answer["step_seconds"], set(answer["series"])) == (60, {"succeeded", "failed"})
        assert admin.get("/api/history?route=Intake").json["step_seconds"] == 10
        assert admin.get("/api/history?route=Nowhere").status == 404
        assert admin.get("/api/history?route=Intake&range=1y").status == 400
