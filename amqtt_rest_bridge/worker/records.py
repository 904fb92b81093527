"""The two records of a group that every worker sees, both retained. What does not read as one is none.

- `bridge/<group>/workers/<id>/presence`: a worker lives. Published when it connects and at every third of
  `adopt_seconds`; its will, and a planned stop, remove it. The broker drops one that is silent for as long.
- `bridge/<group>/<slot>/lease`: who holds a slot. Each change of hands has a higher `term`, so that a record which
  comes late, or twice, changes nothing; of two claims with one term the broker's order decides.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

_MOST_TERM: Final = 1 << 53


def lease_topic(group: str, slot: int | str) -> str:
    """Return the topic of a slot's lease; of all slots with `+`."""
    return f"bridge/{group}/{slot}/lease"


def presence_topic(group: str, worker: str) -> str:
    """Return the topic of a worker's presence; of all workers with `+`."""
    return f"bridge/{group}/workers/{worker}/presence"


def worker_status_topic(group: str, worker: str, route: str) -> str:
    """Return the topic of a route's status on a worker."""
    return f"bridge/{group}/workers/{worker}/routes/{route}/status"


@dataclass(frozen=True, slots=True)
class Presence:
    """The record of a living worker; times are epoch seconds, `slot` is the one that it prefers.

    `routes` is the hash of its route set, `version` that of its software. `every` names its events with EVERY. One that
    `leaves` keeps its slots until it has handed them over, and is given none. `slots` is how many the group has for it:
    it opens none beyond them.
    """

    worker: str
    until: float
    routes: str
    version: str
    since: float
    slots: int
    slot: int | None = None
    every: tuple[str, ...] = ()
    leaves: bool = False

    @property
    def payload(self) -> bytes:
        """Return the record as it is published."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Lease:
    """The record of a slot: its holder since `since`, "" when it was released. Times are epoch seconds.

    `term` counts changes of hands. `waits`: the holder before ended without handing it over, so that calls which it
    began may still run.
    """

    worker: str
    until: float
    routes: str
    version: str
    term: int
    since: float
    waits: bool = False

    @property
    def payload(self) -> bytes:
        """Return the record as it is published."""
        return json.dumps(asdict(self)).encode()


def parse_presence(payload: bytes) -> Presence | None:
    """Return the presence that a payload holds, None if it holds none."""
    try:
        members = json.loads(payload)
        slot = members["slot"]
        return Presence(
            _name(members["worker"]), float(members["until"]), str(members["routes"]), str(members["version"]),
            float(members["since"]), max(1, int(members["slots"])), None if slot is None else int(slot),
            tuple(map(str, members["every"])), members["leaves"] is True,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def parse_lease(payload: bytes) -> Lease | None:
    """Return the lease that a payload holds, None if it holds none."""
    try:
        members = json.loads(payload)
        term = int(members["term"])
        if not 0 < term < _MOST_TERM:
            return None
        return Lease(
            _name(members["worker"], empty=True), float(members["until"]), str(members["routes"]),
            str(members["version"]), term, float(members["since"]), members.get("waits") is True,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _name(value: Any, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty) or len(value) > 128 or set(value) & set("+#/\0"):
        raise ValueError("not the id of a worker")
    return value
