"""The two records of a group that every worker sees, both retained. What does not read as one is none.

- `bridge/<group>/workers/<id>/presence`: a worker lives. Published when it connects and at every third of
  `adopt_seconds`; its will, and a planned stop, remove it. The broker drops one that is silent for as long.
- `bridge/<group>/<slot>/lease`: who holds a slot. Each change of hands has a higher `term`, so that a record which
  comes late, or twice, changes nothing; of two claims with one term the broker's order decides.
"""

import json
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

_MOST_TERM: Final = 1 << 53
_NAME: Final = r"^[^+#/\0]*\Z"


def lease_topic(group: str, slot: int | str) -> str:
    """Return the topic of a slot's lease; of all slots with `+`."""
    return f"bridge/{group}/{slot}/lease"


def presence_topic(group: str, worker: str) -> str:
    """Return the topic of a worker's presence; of all workers with `+`."""
    return f"bridge/{group}/workers/{worker}/presence"


def worker_status_topic(group: str, worker: str, route: str) -> str:
    """Return the topic of a route's status on a worker."""
    return f"bridge/{group}/workers/{worker}/routes/{route}/status"


class _Record(Struct, frozen=True):
    @property
    def payload(self) -> bytes:
        """Return the record as it is published."""
        return json.dumps(asdict(self)).encode()


class Presence(_Record, frozen=True):
    """The record of a living worker; times are epoch seconds, `slot` is the one that it prefers.

    `routes` is the hash of its route set, `version` that of its software. `every` names its events with EVERY. One that
    `leaves` keeps its slots until it has handed them over, and is given none. `slots` is how many the group has for it:
    it opens none beyond them.
    """

    worker: Annotated[str, Meta(min_length=1, max_length=128, pattern=_NAME)]
    until: float
    routes: str
    version: str
    since: float
    slots: Annotated[int, Meta(ge=1)]
    slot: int | None
    every: tuple[str, ...]
    leaves: bool


class Lease(_Record, frozen=True):
    """The record of a slot: its holder since `since`, "" when it was released. Times are epoch seconds.

    `term` counts changes of hands. `waits`: the holder before ended without handing it over, so that calls which it
    began may still run.
    """

    worker: Annotated[str, Meta(max_length=128, pattern=_NAME)]
    until: float
    routes: str
    version: str
    term: Annotated[int, Meta(gt=0, lt=_MOST_TERM)]
    since: float
    waits: bool = False


R = TypeVar("R", Presence, Lease)


def parse(payload: bytes, kind: type[R]) -> R | None:
    """Return the record of this kind that a payload holds, None if it holds none."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
