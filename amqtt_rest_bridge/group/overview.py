"""A group of workers as its retained notices describe it (`GroupNotices`), and warnings if its workers differ. Pure.

`rest-bridge status --group` shows the first: which workers live, which slots they hold, and one status for each route.
Any client may publish on these topics, so a payload that is not a notice is ignored.

A worker is away if its presence was removed by its will, or has expired, while another notice of it is still retained.
A planned stop removes all notices of a worker. The broker drops a presence that is not renewed. So the worker of a
presence that comes now lives, even if the clocks of the two machines differ.

A worker itself warns of other route sets and slots in its group (`Warnings`).
"""

import contextlib
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from amqtt_rest_bridge.group.leases import (
    MOST_WORKERS,
    GroupView,
    Lease,
    Presence,
    lease_topic,
    parse,
    presence_topic,
    worker_status_topic,
    workers_by,
)
from amqtt_rest_bridge.lot.model import Route, severity_of
from amqtt_rest_bridge.times import rfc3339
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

Status = dict[str, Any]

AWAY: Final = "away"
"""The health of a route whose workers are all away."""
_LATE_SECONDS: Final = 5.0  # by which a notice may be late, or clocks may differ
_HEARD_SECONDS: Final = 30.0  # for so long a worker lives after a notice, whatever its clock says: as `adopt_seconds`
_LOG_SECONDS: Final = 1.0  # between two lines about one thing: notices may be forged
_MOST_SHOWN: Final = 8  # in one line: values, and workers of each value
_ADDED: Final = ("messages", "errors")  # objects in a status of a route: their numbers are added over workers
_LARGEST: Final = ("latency_ms", "wait_ms")  # of these the largest number counts


def notice_filters(group: str) -> list[str]:
    """Return the topic filters of all notices of a group."""
    return [worker_status_topic(group, "+", "+"), lease_topic(group, "+"), presence_topic(group, "+")]


@dataclass(frozen=True, slots=True)
class GroupSlot:
    """A slot: its holder, and since when; None if the slot is free. `away_since` is set if the holder is away."""

    slot: int
    worker: str | None
    since: str | None
    away_since: str | None


@dataclass(frozen=True, slots=True)
class GroupWorker:
    """A worker: the version of its software, the hash of its route set, and since when it runs or is away."""

    worker: str
    version: str | None
    routes: str | None
    since: str | None
    away_since: str | None


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group: its slots and workers in order, and the status of each route over the living workers."""

    group: str
    slots: Sequence[GroupSlot]
    workers: Sequence[GroupWorker]
    routes: Sequence[Status]

    @property
    def route_sets(self) -> Mapping[str, Sequence[str]]:
        """Return the living workers by the hash of their route set."""
        return workers_by({one.worker: one.routes for one in self.workers if one.away_since is None})

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return asdict(self) | {"route_sets": {routes: list(workers) for routes, workers in self.route_sets.items()}}


class GroupNotices:
    """The notices of a group that have come; times are epoch seconds."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._leases: dict[int, Lease] = {}
        self._presences: dict[str, Presence] = {}
        self._heard: dict[str, float] = {}  # when a presence came last
        self._gone: dict[str, float] = {}  # when one was removed
        self._statuses: dict[str, dict[str, Status]] = {}  # by worker and route

    def receive(self, topic: str, payload: bytes, status: Status | None, now: float) -> None:
        """Take a notice. `status` is the decoded payload of the status of a route, else None."""
        match topic.split("/")[2:]:
            case [slot, "lease"] if slot.isascii() and slot.isdigit() and len(slot) < 5:
                if (lease := parse(payload, Lease)) is not None:
                    self._leases[int(slot)] = lease
            case ["workers", worker, "presence"]:
                presence = parse(payload, Presence)
                if presence is not None:
                    self._presences[worker] = presence
                    self._gone.pop(worker, None)
                    self._heard[worker] = now
                elif not payload and self._presences.pop(worker, None) is not None:
                    self._gone[worker] = now
            case ["workers", worker, "routes", route, "status"]:
                if status is not None:
                    self._statuses.setdefault(worker, {})[route] = status
                elif not payload:
                    self._statuses.get(worker, {}).pop(route, None)

    def overview(self, now: float) -> GroupOverview:
        """Return the group as it is now."""
        known = {lease.worker for lease in self._leases.values() if lease.worker}
        known |= {worker for worker, statuses in self._statuses.items() if statuses} | self._presences.keys()
        away = {worker: since for worker in known if (since := self._away_since(worker, now)) is not None}
        slots = [
            GroupSlot(number, lease.worker, _time_text(lease.since), _time_text(away.get(lease.worker)))
            if lease.worker
            else GroupSlot(number, None, None, None)
            for number, lease in sorted(self._leases.items())
        ]
        workers: list[GroupWorker] = []
        for worker in sorted(known):
            presence, away_since = self._presences.get(worker), _time_text(away.get(worker))
            if presence is None:
                workers.append(GroupWorker(worker, None, None, None, away_since))
            else:
                started = _time_text(presence.since)
                workers.append(GroupWorker(worker, presence.version, presence.routes, started, away_since))
        return GroupOverview(self._group, slots, workers, self._merged_statuses(away))

    def _merged_statuses(self, away: Mapping[str, float]) -> list[Status]:
        """Return one status for each route: over its living workers, or if all are `away`, over all of them."""
        routes: list[Status] = []
        for route in sorted({route for statuses in self._statuses.values() for route in statuses}, key=str.lower):
            by_worker = {worker: statuses[route] for worker, statuses in self._statuses.items() if route in statuses}
            living = {worker: status for worker, status in by_worker.items() if worker not in away}
            merged = merge((living or by_worker).values()) | {"workers": sorted(living)}
            if not living:
                merged |= {"health": AWAY, "away_since": _time_text(max(away[worker] for worker in by_worker))}
            routes.append(merged)
        return routes

    def _away_since(self, worker: str, now: float) -> float | None:
        """Return since when a worker is away, None if it lives.

        1. It has a presence: it is away since the presence has expired.
        2. Its presence was removed: since then.
        3. Its presence was never received: since its last status, or if it has none, since it took a slot.
        """
        presence = self._presences.get(worker)
        if presence is None:
            known = self._gone.get(worker) or max(map(_time, self._statuses.get(worker, {}).values()), default=0.0)
            return known or max((one.since for one in self._leases.values() if one.worker == worker), default=0.0)
        until = max(presence.until, self._heard.get(worker, 0.0) + _HEARD_SECONDS)
        return None if now <= until + _LATE_SECONDS else until


def merge(statuses: Iterable[Status]) -> Status:
    """Return one status for a route on several workers.

    Health and connection are the worst ones, counts are sums, and latencies are those of the slowest worker. The last
    error is the newest one; the time is that of the oldest status.
    """
    ordered = sorted(statuses, key=lambda status: severity_of(status.get("health")))
    merged = dict(ordered[0])
    for name in _ADDED:
        merged[name] = {member: sum(numbers) for member, numbers in _numbers(ordered, name).items()}
    for name in _LARGEST:
        merged[name] = {member: max(numbers) for member, numbers in _numbers(ordered, name).items()}
    if any(status.get("connection") == "failing" for status in ordered):
        merged["connection"] = "failing"
    errors = [error for status in ordered if isinstance(error := status.get("last_error"), dict)]
    merged["last_error"] = max(errors, key=lambda error: str(error.get("time")), default=None)
    merged["timestamp"] = min(ordered, key=_time).get("timestamp")
    return merged


def _numbers(statuses: Iterable[Status], name: str) -> dict[str, list[float]]:
    """Return the numbers that several statuses have in an object such as `errors`, by the names of the numbers."""
    found: dict[str, list[float]] = {}
    for status in statuses:
        members = status.get(name)
        for member, value in members.items() if isinstance(members, dict) else ():
            if isinstance(value, int | float):
                found.setdefault(member, []).append(value)
    return found


def _time(status: Status) -> float:
    with contextlib.suppress(TypeError, ValueError):
        return datetime.fromisoformat(str(status.get("timestamp"))).timestamp()
    return 0.0


def _time_text(time: float | None) -> str | None:
    try:
        return None if time is None else rfc3339(time)
    except (OverflowError, ValueError, OSError):  # a notice may hold any number
        return None


def event_name(route: str, event: str) -> str:
    """Return the name of an event in notices; neither part can hold a slash."""
    return f"{route}/{event}"


def scheduled_events(routes: Iterable[Route]) -> tuple[str, ...]:
    """Return the names of the events with EVERY; `GroupView.leader` says which worker runs one."""
    return tuple(
        event_name(route.name, event.name)
        for route in routes
        for event in route.client_events
        if event.every is not None
    )


class Warnings:
    """Logs that workers of a group differ, and that they agree again: each change once, at most one line a second."""

    def __init__(self, group: str, slots: int) -> None:
        self._group = group
        self._slots = slots
        self._logged: dict[str, tuple[float, str]] = {}  # by subject: the last line, and when it was logged

    def check(self, view: GroupView, surplus_slots: Collection[int], now: float) -> None:
        """Compare the workers as they are now. `surplus_slots` are those of `Leases`."""
        self._compare("route sets", "routes", view.route_sets, now)
        self._compare("slots", "slots", view.slot_counts, now)
        if surplus_slots and len(view.slot_counts) < 2:
            last = max(surplus_slots)
            kept = f"the broker may keep sessions of slots up to {last} of group {self._group}, which has slots:"
            todo = 'their messages reach no worker: see "More or fewer slots" in group/README.md'
            self._log_change("slots beyond", f"{kept} {self._slots}; {todo}", "", now)
        if len(view.workers) >= MOST_WORKERS:
            text = f"group {self._group} has {MOST_WORKERS} workers or more, and knows no others: who may publish "
            self._log_change("workers", f"{text}bridge/{self._group}/#?", "", now)

    def _compare(self, subject: str, noun: str, by_value: Mapping[str, Sequence[str]], now: float) -> None:
        """Warn if workers have several values of a subject, and log when all have the same again."""
        text = ""
        if len(by_value) > 1:
            shown = {
                loggable(value): _first_of([*map(loggable, workers)], ", ")
                for value, workers in sorted(by_value.items())
            }
            text = f"{subject} differ: {_first_of([f'{value} on {workers}' for value, workers in shown.items()], '; ')}"
        self._log_change(subject, text, f"all workers of group {self._group} have the same {noun}", now)

    def _log_change(self, subject: str, text: str, else_text: str, now: float) -> None:
        """Log what is wrong with a subject (`text`), or `else_text` once `text` is empty, unless it was logged last."""
        when, before = self._logged.get(subject, (-math.inf, ""))
        if text != before and now - when >= _LOG_SECONDS:
            self._logged[subject] = now, text
            if text:
                log.warning("%s", text)
            else:
                log.info("%s", else_text)


def _first_of(texts: Sequence[str], separator: str) -> str:
    """Return the first eight texts in one line, and how many more there are."""
    more = [f"{len(texts) - _MOST_SHOWN} more"] if len(texts) > _MOST_SHOWN else []
    return separator.join([*texts[:_MOST_SHOWN], *more])
