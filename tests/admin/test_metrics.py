"""What a page of /metrics costs: the number of its samples, and that they are the writer's own but for their making."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from amqtt_rest_bridge.admin import metrics
from amqtt_rest_bridge.admin.numbers import Numbers
from amqtt_rest_bridge.link.admin_frames import (
    BUCKETS,
    BrokerNumbers,
    Durations,
    EventCounts,
    GroupNumbers,
    RouteNumbers,
)

BROKER = BrokerNumbers(0, 0, [])


def numbers(*names: str) -> Numbers:
    took, waited = Durations([2] * (len(BUCKETS) + 1), 1.5), Durations([14], 0.25)
    events = {"Send": EventCounts({"succeeded": 12, "timeout": 2}, took, waited)}
    routes = [RouteNumbers(name, "Green", events, 12, 2, 0, 3, 4, 5, 6, None, None) for name in names]
    return Numbers(0.0, {route.name: route for route in routes}, BROKER)


def lines(*names: str) -> list[str]:
    return [line for line in metrics.exposition(numbers(*names)).decode().splitlines() if not line.startswith("#")]


def test_a_route_with_one_busy_event_is_nineteen_samples() -> None:
    assert len(lines("A", "B")) - len(lines("A")) == 19


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
    group = GroupNumbers([True, False], unacknowledged=3, redelivered=4, reconnects=5, lease_changes=6, route_sets=2)
    text = metrics.exposition(Numbers(0.0, {}, BrokerNumbers(0, 0, [], group=group))).decode()
    assert [line for line in text.splitlines() if not line.startswith("#")][-7:] == [
        'rest_bridge_slot_held{slot="0"} 1.0',
        'rest_bridge_slot_held{slot="1"} 0.0',
        "rest_bridge_unacknowledged 3.0",
        "rest_bridge_redelivered_total 4.0",
        "rest_bridge_reconnects_total 5.0",
        "rest_bridge_lease_changes_total 6.0",
        "rest_bridge_route_sets 2.0",
    ]
