"""The numbers as Prometheus reads them (text exposition format 0.0.4). Pure, but for what /proc tells of processes.

`prometheus_client` writes the text. Its registries are for counters of the same process; these come from another one,
so a collector yields them as bare samples. The limit is a page of 1,000 routes, all with calls, within 80 ms, and a
sample costs 2.3 to 3.9 us: so samples are structs, what messages waited has no buckets, and the 54 lines of a histogram
are written here, which takes 0.3 us each.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from platform import python_version
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from amqtt_rest_bridge.admin.figures import BridgeNumbers, GroupNumbers, Numbers, RouteNumbers
from amqtt_rest_bridge.admin.recorder import BUCKETS, Durations, EventCounts
from amqtt_rest_bridge.lot.model import HEALTHS
from amqtt_rest_bridge.system import own_version

_BUILD: Final = {"version": own_version(), "python": python_version()}
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
METRICS: Final = {
    "rest_bridge_calls_total": ("counter", "Calls of client mode that ended, by outcome: succeeded or a failure code."),
    "rest_bridge_call_seconds": ("histogram", "Seconds that the requests of a call took; of calls that sent any."),
    "rest_bridge_wait_seconds": ("summary", "Seconds that a message waited: for a worker, a turn, the next try."),
    "rest_bridge_refused_total": ("counter", "Messages that were not taken: no room, or too large."),
    "rest_bridge_skipped_total": (
        "counter",
        "Messages and requests that were skipped: when_false, when_unusable, unchanged, duplicate.",
    ),
    "rest_bridge_requests_total": ("counter", "Requests of server mode, by the status of the answer."),
    "rest_bridge_request_seconds": (
        "histogram",
        "Seconds from a request of server mode to its answer; without callers that were refused.",
    ),
    "rest_bridge_unmatched_requests_total": ("counter", "Requests of server mode that led to no endpoint, by port."),
    "rest_bridge_retries_total": ("counter", "Tries after the first."),
    "rest_bridge_health": ("gauge", "Health of the route: 0 Green, 1 Yellow, 2 Red."),
    "rest_bridge_queued": ("gauge", "Messages that wait: for a worker, for their next try, or for room."),
    "rest_bridge_held_bytes": ("gauge", "Payloads of messages that wait or are in flight."),
    "rest_bridge_in_flight": ("gauge", "Calls that a worker runs."),
    "rest_bridge_breaker_open": ("gauge", "1 while the BREAKER of the route is open, else 0."),
    "rest_bridge_stream_readers": ("gauge", "Callers who read a stream (STREAM) of the route now."),
    "rest_bridge_spool_messages": ("gauge", "Messages of a lossless route on disk."),
    "rest_bridge_spool_refusing": ("gauge", "1 from a message that the spool refused to the next it keeps, else 0."),
    "rest_bridge_restarts_total": ("counter", "Bridge processes that had to be started again."),
    "rest_bridge_dropped_total": (
        "counter",
        "Messages that were dropped while the bridge was away, since too many waited.",
    ),
    "rest_bridge_reload_errors": ("gauge", "Errors of the last reload; 0 when it succeeded."),
    "rest_bridge_build_info": ("gauge", "1, with the version of the bridge and that of Python."),
    "rest_bridge_ready": ("gauge", "1 when /readyz answers 200, else 0."),
    "rest_bridge_slot_held": ("gauge", "1 where this worker holds the slot of its group, else 0."),
    "rest_bridge_unacknowledged": ("gauge", "Messages that have come to this worker and have not ended."),
    "rest_bridge_redelivered_total": ("counter", "Messages that the broker has sent to this worker again."),
    "rest_bridge_reconnects_total": ("counter", "Connections to the broker after one that was lost."),
    "rest_bridge_lease_changes_total": ("counter", "Slots that this worker has taken or given up."),
    "rest_bridge_route_sets": ("gauge", "Living workers of the group with the route set of this hash."),
}
"""Every metric with its type and help, but `process_...`; labels are in the samples below."""
_OPTIONAL: Final = [(name, Any, default) for name, default in Sample._field_defaults.items()]
_BOUNDS: Final = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
_Sample: Final[Any] = msgspec.defstruct("_Sample", [*Sample._fields[:3], *_OPTIONAL], gc=False)
"""The fields of a Sample, which the writer reads, in a struct: a named tuple takes 0.4 us more to make."""


def exposition(numbers: Numbers) -> bytes:
    """Return all metrics as one text."""
    registry = CollectorRegistry()
    registry.register(_Samples(numbers))
    registry.register(_Processes(numbers.bridge.pids))
    return generate_latest(registry) + _histograms(numbers).encode()


class _Samples(Collector):
    """Every metric with its samples, but histograms."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._metrics = {
            name: Metric(name.removesuffix("_total"), meaning, kind)
            for name, (kind, meaning) in METRICS.items()
            if kind != "histogram"
        }

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry of one collector has no names to keep apart."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics in the order of `METRICS`."""
        for route in self._numbers.routes.values():
            self._add_route(route)
        self._add_bridge(self._numbers.bridge)
        yield from self._metrics.values()

    def _add_route(self, route: RouteNumbers) -> None:
        labels = {"route": route.name}
        for event, counts in route.events.items():
            self._add_event({"route": route.name, "event": event}, counts)
        self._add("rest_bridge_retries_total", labels, route.retried)
        self._add("rest_bridge_health", labels, HEALTHS[::-1].index(route.health))
        self._add("rest_bridge_queued", labels, route.queued)
        self._add("rest_bridge_held_bytes", labels, route.held_bytes)
        self._add("rest_bridge_in_flight", labels, route.in_flight)
        if route.breaker is not None:
            self._add("rest_bridge_breaker_open", labels, route.breaker == "open")
        if route.readers is not None:
            self._add("rest_bridge_stream_readers", labels, route.readers)
        if route.spooled is not None:
            self._add("rest_bridge_spool_messages", labels, route.spooled)

    def _add_event(self, labels: dict[str, str], counts: EventCounts) -> None:
        for outcome, count in counts.outcomes.items():
            self._add("rest_bridge_calls_total", {**labels, "outcome": outcome}, count)
        for status, count in counts.statuses.items():
            self._add("rest_bridge_requests_total", {**labels, "status": status}, count)
        for reason, count in counts.skipped.items():
            self._add("rest_bridge_skipped_total", {**labels, "reason": reason}, count)
        self._add("rest_bridge_refused_total", labels, counts.refused)
        if counts.outcomes:
            samples = self._metrics["rest_bridge_wait_seconds"].samples
            samples.append(_Sample("rest_bridge_wait_seconds_sum", labels, counts.waited.seconds))
            samples.append(_Sample("rest_bridge_wait_seconds_count", labels, sum(counts.waited.buckets)))

    def _add_bridge(self, bridge: BridgeNumbers) -> None:
        self._add("rest_bridge_spool_refusing", {}, bridge.spool_refusing)
        self._add("rest_bridge_restarts_total", {}, bridge.restarts)
        self._add("rest_bridge_dropped_total", {}, bridge.dropped)
        self._add("rest_bridge_reload_errors", {}, bridge.reload_errors)
        self._add("rest_bridge_build_info", _BUILD, 1)
        self._add("rest_bridge_ready", {}, not bridge.reasons)
        for port, count in bridge.unmatched.items():
            self._add("rest_bridge_unmatched_requests_total", {"port": str(port)}, count)
        if bridge.group is not None:
            self._add_group(bridge.group)

    def _add_group(self, group: GroupNumbers) -> None:
        for slot, is_held in enumerate(group.held):
            self._add("rest_bridge_slot_held", {"slot": str(slot)}, is_held)
        self._add("rest_bridge_unacknowledged", {}, group.unacknowledged)
        self._add("rest_bridge_redelivered_total", {}, group.redelivered)
        self._add("rest_bridge_reconnects_total", {}, group.reconnects)
        self._add("rest_bridge_lease_changes_total", {}, group.lease_changes)
        for routes, workers in group.route_sets.items():
            self._add("rest_bridge_route_sets", {"hash": routes}, workers)

    def _add(self, name: str, labels: dict[str, str], value: float) -> None:
        self._metrics[name].samples.append(_Sample(name, labels, value))


class _Processes(Collector):
    """What /proc tells of the bridge's processes, a few of them; nothing where there is none."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids

    def describe(self) -> Iterable[Metric]:
        """Return nothing, as above."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all processes, each sample with the label `process`."""
        found: dict[str, Metric] = {}
        for name, pid in self._pids.items():
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                kept = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                kept.samples += [_Sample(one.name, {"process": name}, one.value) for one in metric.samples]
        yield from found.values()


def _histograms(numbers: Numbers) -> str:
    lines: list[str] = []
    counts = _Texts()
    for name in ("rest_bridge_call_seconds", "rest_bridge_request_seconds"):
        kind, meaning = METRICS[name]
        lines.append(f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n")
        for route in numbers.routes.values():
            for event, own in route.events.items():
                of_calls = name == "rest_bridge_call_seconds"
                if own.outcomes if of_calls else own.statuses and not own.outcomes:
                    lines += _histogram(name, _escaped(route.name), _escaped(event), own.took, counts)
    return "".join(lines)


class _Texts(dict[int, str]):
    """Counts as they are written, each made once: most of those of a histogram are the same."""

    def __missing__(self, count: int) -> str:
        text = self[count] = _text(count)
        return text


def _histogram(name: str, route: str, event: str, durations: Durations, texts: _Texts) -> list[str]:
    head, middle = f'{name}_bucket{{event="{event}",le="', f'",route="{route}"}} '
    counts = list(accumulate(durations.buckets))
    lines = [f"{head}{bound}{middle}{texts[count]}\n" for bound, count in zip(_BOUNDS, counts, strict=True)]
    labels = f'{{event="{event}",route="{route}"}}'
    lines.append(f"{name}_sum{labels} {_text(durations.seconds)}\n")
    lines.append(f"{name}_count{labels} {texts[counts[-1]]}\n")
    return lines


def _text(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
