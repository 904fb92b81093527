"""The figures as Prometheus reads them (text exposition format 0.0.4), for `/metrics`.

The lines are written here and not by `prometheus_client`, which takes four times as long: a page of 1,000 routes would
block the loop for 200 ms. `prometheus_client` writes the numbers, and reads what /proc has of processes.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from platform import python_version
from typing import Final

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from amqtt_rest_bridge.admin.figures import BridgeNumbers, Numbers, RouteNumbers
from amqtt_rest_bridge.admin.recorder import BUCKETS
from amqtt_rest_bridge.lot.model import HEALTHS
from amqtt_rest_bridge.system import own_version

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
_BOUNDS: Final = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")


def exposition(numbers: Numbers) -> bytes:
    """Return all metrics as one text."""
    page = _Page()
    for route in numbers.routes.values():
        page.add_route(route)
    page.add_bridge(numbers.bridge)
    processes = CollectorRegistry()
    processes.register(_Processes(numbers.bridge.pids))
    return "".join(page.lines()).encode() + generate_latest(processes)


class _Page:
    """The lines of each metric, in the order of `METRICS`."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {
            name: [f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"] for name, (kind, meaning) in METRICS.items()
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of all metrics."""
        for own in self._lines.values():
            yield from own

    def add_route(self, route: RouteNumbers) -> None:
        """Add what is known of a route."""
        of_route = {"route": route.name}
        for event, counts in route.events.items():
            of_event = {"event": event, **of_route}
            for outcome, count in counts.outcomes.items():
                self._add("rest_bridge_calls_total", count, {**of_event, "outcome": outcome})
            for status, count in counts.statuses.items():
                self._add("rest_bridge_requests_total", count, {**of_event, "status": status})
            for reason, count in counts.skipped.items():
                self._add("rest_bridge_skipped_total", count, {**of_event, "reason": reason})
            self._add("rest_bridge_refused_total", counts.refused, of_event)
            if counts.outcomes:
                self._add("rest_bridge_wait_seconds", counts.waited_seconds, of_event, "_sum")
                self._add("rest_bridge_wait_seconds", counts.waits, of_event, "_count")
            if counts.outcomes or counts.statuses:
                name = "rest_bridge_call_seconds" if counts.outcomes else "rest_bridge_request_seconds"
                head, middle = f'{name}_bucket{{event="{_escaped(event)}",le="', f'",route="{_escaped(route.name)}"}} '
                below = list(accumulate(counts.took.buckets))
                self._lines[name] += [
                    f"{head}{bound}{middle}{_number(count)}\n" for bound, count in zip(_BOUNDS, below, strict=True)
                ]
                self._add(name, counts.took.seconds, of_event, "_sum")
                self._add(name, below[-1], of_event, "_count")
        self._add("rest_bridge_retries_total", route.retried, of_route)
        self._add("rest_bridge_health", HEALTHS[::-1].index(route.health), of_route)
        self._add("rest_bridge_queued", route.queued, of_route)
        self._add("rest_bridge_held_bytes", route.held_bytes, of_route)
        self._add("rest_bridge_in_flight", route.in_flight, of_route)
        if route.breaker is not None:
            self._add("rest_bridge_breaker_open", route.breaker == "open", of_route)
        if route.readers is not None:
            self._add("rest_bridge_stream_readers", route.readers, of_route)
        if route.spooled is not None:
            self._add("rest_bridge_spool_messages", route.spooled, of_route)

    def add_bridge(self, bridge: BridgeNumbers) -> None:
        """Add what concerns no route."""
        self._add("rest_bridge_spool_refusing", bridge.spool_refusing)
        self._add("rest_bridge_restarts_total", bridge.restarts)
        self._add("rest_bridge_dropped_total", bridge.dropped)
        self._add("rest_bridge_reload_errors", bridge.reload_errors)
        self._add("rest_bridge_build_info", 1, {"python": python_version(), "version": own_version()})
        self._add("rest_bridge_ready", not bridge.reasons)
        for port, count in bridge.unmatched.items():
            self._add("rest_bridge_unmatched_requests_total", count, {"port": str(port)})
        if (group := bridge.group) is not None:
            for slot, is_held in enumerate(group.held):
                self._add("rest_bridge_slot_held", is_held, {"slot": str(slot)})
            self._add("rest_bridge_unacknowledged", group.unacknowledged)
            self._add("rest_bridge_redelivered_total", group.redelivered)
            self._add("rest_bridge_reconnects_total", group.reconnects)
            self._add("rest_bridge_lease_changes_total", group.lease_changes)
            for routes, workers in group.route_sets.items():
                self._add("rest_bridge_route_sets", workers, {"hash": routes})

    def _add(self, name: str, value: float, labels: Mapping[str, str] = {}, suffix: str = "") -> None:
        written = ",".join([f'{label}="{_escaped(labels[label])}"' for label in sorted(labels)])
        shown = f"{{{written}}}" if written else ""
        self._lines[name].append(f"{name}{suffix}{shown} {_number(value)}\n")


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class _Processes(Collector):
    """The metrics of the bridge's processes, from /proc; none on a machine without it."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry of one collector has no names to keep apart."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all processes, each sample with the label `process`."""
        found: dict[str, Metric] = {}
        for name, pid in self._pids.items():
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                kept = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    kept.add_sample(sample.name, {"process": name}, sample.value)
        yield from found.values()
