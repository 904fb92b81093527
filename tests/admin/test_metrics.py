"""What a page of /metrics holds: the number of its samples, and that its text is as prometheus_client writes it."""

import os
from collections.abc import Callable, Iterable
from math import exp, log
from statistics import NormalDist

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import amqtt_rest_bridge
from amqtt_rest_bridge.admin import metrics
from amqtt_rest_bridge.admin.figures import BridgeNumbers, GroupNumbers, Numbers, RouteNumbers
from amqtt_rest_bridge.admin.recorder import BUCKETS, Durations, EventCounts

BROKER = BridgeNumbers(0, 0, [])


def numbers(*names: str) -> Numbers:
    took = Durations([2] * (len(BUCKETS) + 1), 1.5)
    events = {"Send": EventCounts({"succeeded": 12, "timeout": 2}, took, waits=14, waited_seconds=0.25)}
    routes = [RouteNumbers(name, "Green", events, 12, 2, 0, 3, 4, 5, 6, None, None, None, 0, None) for name in names]
    return Numbers({route.name: route for route in routes}, BROKER)


def lines(*names: str) -> list[str]:
    return [line for line in metrics.exposition(numbers(*names)).decode().splitlines() if not line.startswith("#")]


def test_a_route_with_one_busy_event_is_ten_samples_and_a_histogram() -> None:
    assert len(lines("A", "B")) - len(lines("A")) == 10 + len(BUCKETS) + 3


def quantile(share: float, durations: Durations) -> float:
    """Compute a quantile as Prometheus does, which takes durations of one bucket for evenly spread."""
    rank, before = share * sum(durations.buckets), 0
    for number, count in enumerate(durations.buckets[:-1]):
        if before + count >= rank:
            low: float = BUCKETS[number - 1] if number else 0.0
            return low + (BUCKETS[number] - low) * (rank - before) / count
        before += count
    return 36.0


def spread(middle: float, width: float) -> list[float]:
    """Return durations whose logarithms are normally distributed, all from 1 ms to 30 s."""
    normal = NormalDist(log(middle), width)
    return [min(30.0, max(0.001, exp(normal.inv_cdf((number + 0.5) / 1000)))) for number in range(1000)]


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda middle: [middle] * 1000, id="all the same"),
        pytest.param(lambda middle: spread(middle, 0.1), id="nearly the same"),
        pytest.param(lambda middle: spread(middle, 1.0), id="spread over decades"),
        pytest.param(lambda middle: [*spread(middle, 0.2)[:950], *[min(30.0, 20 * middle)] * 50], id="a slow tail"),
    ],
)
@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.long)])
def test_p50_and_p99_are_right_within_a_quarter_from_a_millisecond_to_thirty_seconds(
    shape: Callable[[float], list[float]], count: int
) -> None:
    for number in range(count):
        took = Durations([0] * (len(BUCKETS) + 1))
        values = sorted(shape(0.001 * 30_000 ** (number / (count - 1))))
        for value in values:
            took.add(value)
        for share in (0.5, 0.99):
            right = values[int(share * 1000) - 1]
            assert 0.75 <= quantile(share, took) / right <= 1.25 + 1e-9, (number, share)


def test_versions_and_processes_are_there() -> None:
    broker = BridgeNumbers(0, 0, [], pids={"main": os.getpid(), "bridge-0": os.getppid(), "bridge-1": 1 << 22})
    text = metrics.exposition(Numbers({}, broker)).decode()
    found = {
        (sample.name, sample.labels.get("process")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    build = found["rest_bridge_build_info", None]
    assert (build.labels["version"], build.value) == (amqtt_rest_bridge.__version__, 1)
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert found[name, "main"].value > 0
        assert (name, "bridge-0") in found
        assert (name, "bridge-1") not in found  # it has ended


class Parsed(Collector):
    """What prometheus_client reads of a text, for it to write again."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def collect(self) -> Iterable[Metric]:
        return text_string_to_metric_families(self._text.decode())


def test_the_text_is_that_of_the_writers_own_samples() -> None:
    routes = numbers("A", 'B "quoted" \\ \n \u00e9')
    text = metrics.exposition(routes)
    assert b'rest_bridge_wait_seconds_sum{event="Send",route="A"} 0.25' in text
    registry = CollectorRegistry()
    registry.register(Parsed(text))
    assert generate_latest(registry) == text


def test_what_a_worker_counts_of_its_group_is_there_and_beside_amqtt_is_not() -> None:
    assert not [line for line in lines("A") if "slot" in line or "route_sets" in line]
    group = GroupNumbers(
        [True, False], unacknowledged=3, redelivered=4, reconnects=5, lease_changes=6,
        route_sets={"0a1b": 2, "2c3d": 1},
    )  # fmt: skip
    text = metrics.exposition(Numbers({}, BridgeNumbers(0, 0, [], group=group))).decode()
    assert [line for line in text.splitlines() if not line.startswith("#")][-8:] == [
        'rest_bridge_slot_held{slot="0"} 1.0',
        'rest_bridge_slot_held{slot="1"} 0.0',
        "rest_bridge_unacknowledged 3.0",
        "rest_bridge_redelivered_total 4.0",
        "rest_bridge_reconnects_total 5.0",
        "rest_bridge_lease_changes_total 6.0",
        'rest_bridge_route_sets{hash="0a1b"} 2.0',
        'rest_bridge_route_sets{hash="2c3d"} 1.0',
    ]
