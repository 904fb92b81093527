"""Which slots of the group have a worker, by a retained record of each slot. Pure but for the clock.

A worker publishes its record on `bridge/<group>/<slot>/online` when it connects, and again at every third of
`adopt_seconds`; its will, and its end, say that it is gone. So a slot is away when its record says so, or when it has
been silent for `adopt_seconds`: a broker that was restarted without its workers has no will to publish. The lowest
slot that has a worker adopts those that are away for `adopt_seconds`. Taking over the client id is the fence: the last
to connect has the session, and gives it up when the slot's own worker is heard of.
"""

import json
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

_BEATS: Final = 3  # records within `adopt_seconds`


class Membership:
    """The slots of a group as one worker sees them.

    Args:
        group: The group ...
        slot: ... this worker's slot ...
        slots: ... and how many there are.
        adopt_seconds: After how long a slot that is away is adopted.
        monotonic: The clock, in seconds.
        clock: Unix seconds.
    """

    def __init__(
        self,
        group: str,
        slot: int,
        slots: int,
        adopt_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.beat_seconds = adopt_seconds / _BEATS
        """How often the record is published."""
        self._group = group
        self._slot = slot
        self._slots = slots
        self._adopt_seconds = adopt_seconds
        self._monotonic = monotonic
        self._instance = uuid.uuid4().hex
        self._since = clock()
        self._online: dict[int, bool] = {}
        self._heard: dict[int, float] = {}
        self.reset()

    @property
    def topic(self) -> str:
        """Return the topic of this worker's record."""
        return online_topic(self._group, self._slot)

    def record(self, *, online: bool) -> bytes:
        """Return this worker's record."""
        return json.dumps({"online": online, "instance": self._instance, "since": self._since}).encode()

    def reset(self) -> None:
        """Count from now on how long others have been silent: this worker was away itself."""
        now = self._monotonic()
        self._heard = dict.fromkeys(range(self._slots), now)

    def received(self, topic: str, payload: bytes, *, retained: bool) -> str | None:
        """Take a record; a retained one may be older than its worker's end.

        Returns "taken" when another worker has this slot, "repeat" when this worker's record has to be published again,
        otherwise None.
        """
        name = topic.removeprefix(f"bridge/{self._group}/").removesuffix("/online")
        slot = int(name) if name.isascii() and name.isdigit() and len(name) < 5 else -1
        record = _parsed(payload)
        if record is None or not 0 <= slot < self._slots:
            return None
        if slot != self._slot:
            online = record["online"]
            if (online and not retained) or online != self._online.get(slot):
                self._heard[slot] = self._monotonic()
            self._online[slot] = online
            return None
        if record["instance"] == self._instance or retained:
            return None
        is_newer = (record["since"], record["instance"]) > (self._since, self._instance)
        return "taken" if record["online"] and is_newer else "repeat"

    def is_away(self, slot: int) -> bool:
        """Return whether a slot of the group has had no worker for `adopt_seconds`."""
        return self._monotonic() - self._heard[slot] >= self._adopt_seconds

    def has_worker(self, slot: int) -> bool:
        """Return whether a slot has a worker, as far as is known."""
        return slot == self._slot or (self._online.get(slot, False) and not self.is_away(slot))

    @property
    def workers(self) -> int:
        """Return how many slots have a worker, as far as is known."""
        return sum(self.has_worker(slot) for slot in range(self._slots))

    def has_lower(self) -> bool:
        """Return whether a lower slot has a worker."""
        return any(self.has_worker(slot) for slot in range(self._slot))

    def to_adopt(self) -> list[int]:
        """Return the slots whose sessions this worker has to open."""
        if self.has_lower():
            return []
        return [slot for slot in range(self._slots) if slot != self._slot and self.is_away(slot)]

    def connection_lost(self, slot: int) -> None:
        """Note that the session of an adopted slot was taken by another worker: leave it alone for a while."""
        self._heard[slot] = self._monotonic()


def online_topic(group: str, slot: int | str) -> str:
    """Return the topic of a slot's record; of all slots with `+`."""
    return f"bridge/{group}/{slot}/online"


def status_topic(group: str, slot: int | str, route: str) -> str:
    """Return the topic of a route's status."""
    return f"bridge/{group}/{slot}/routes/{route}/status"


def _parsed(payload: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(payload)
        return {
            "online": bool(record["online"]), "instance": str(record["instance"]), "since": float(record["since"]),
        }  # fmt: skip
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
