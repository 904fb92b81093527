"""Who holds the slots of a group: what workers announce comes in, intents come out. Pure: nothing is sent here.

Each worker publishes two kinds of retained notices, which all workers of the group receive. Other payloads on these
topics are ignored.

- `bridge/<group>/workers/<id>/presence`: a worker lives. Published when it connects and at every third of
  `adopt_seconds`; its will, and a planned stop, remove it. The broker drops one that is silent for as long.
- `bridge/<group>/<slot>/lease`: who holds a slot. Each change of hands has a higher `term`, so that a lease which
  comes late, or twice, changes nothing; of two claims with one term the broker's order decides.

A worker is gone when its presence was removed, or has been silent for `adopt_seconds`. Each worker counts that silence
by its own monotonic clock, since the clocks of machines differ and jump. `until` in a notice is only shown to people.

All workers compute the same shares: `shares` depends only on which workers live and which slots they hold, and moves as
few slots as even shares need. A holder hands a slot over by a lease that names the next one; a slot without a living
holder is claimed by the worker whose share it is, and held once the broker has sent the claim back. Until all have
received the new lease, two workers may believe that they hold the slot. Both connect with the client ids of the slot,
so the broker serves only the later one.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

_MOST_TERM: Final = 1 << 53
_NAME: Final = r"^[^+#/\0]*\Z"

_BEATS: Final = 3  # notices within `adopt_seconds`
GONE_SECONDS: Final = 3.0
"""A worker whose presence was removed may connect again within this time; then its slots are free."""
_CLAIM_SECONDS: Final = 2.0  # until a claim that has not come back is published again
_PAUSE_SECONDS: Final = 2.0  # between two calls of `intents`: after a longer pause this worker itself was suspended
_ECHO_PART: Final = 1 / 6  # of `adopt_seconds`: a worker whose own notice has not come back for so long claims nothing
MOST_WORKERS: Final = 1024
"""How many workers of a group are known, at most: anyone may forge notices where the broker does not forbid it."""


def lease_topic(group: str, slot: int | str) -> str:
    """Return the topic of a slot's lease; of all slots with `+`."""
    return f"bridge/{group}/{slot}/lease"


def presence_topic(group: str, worker: str) -> str:
    """Return the topic of a worker's presence; of all workers with `+`."""
    return f"bridge/{group}/workers/{worker}/presence"


def worker_status_topic(group: str, worker: str, route: str) -> str:
    """Return the topic of a route's status on a worker."""
    return f"bridge/{group}/workers/{worker}/routes/{route}/status"


class _Notice(Struct, frozen=True):
    @property
    def payload(self) -> bytes:
        """Return the notice as it is published."""
        return json.dumps(asdict(self)).encode()


class Presence(_Notice, frozen=True):
    """The notice of a living worker; times are epoch seconds, `slot` is the one that it prefers.

    `routes` is the hash of its route set, `version` that of its software. `every` names its events with EVERY. A worker
    that `leaves` gets no more slots, and keeps its own until it has handed them over. `slots` is its setting: it opens
    no slot beyond them.
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


class Lease(_Notice, frozen=True):
    """The notice of a slot: which `worker` holds it ("": none), and since when. Times are epoch seconds.

    `term` counts changes of hands. `waits` says that calls of the last holder may still run, since it crashed or did
    not wait for their end.
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
    """Return the notice of this kind that a payload holds, None if it holds none."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


@dataclass(frozen=True)
class GroupView:
    """A group as one worker sees it: `workers` are those that live, itself included, by id."""

    worker: str
    workers: Mapping[str, Presence]

    def leader(self, event: str) -> str | None:
        """Return the lowest id of a living worker whose routes have an event with EVERY, None where none has it."""
        return min((worker for worker, presence in self.workers.items() if event in presence.every), default=None)

    @cached_property
    def route_sets(self) -> Mapping[str, tuple[str, ...]]:
        """Return the ids of living workers by the hash of their route set."""
        return workers_by({worker: presence.routes for worker, presence in self.workers.items()})

    @property
    def slot_counts(self) -> Mapping[str, tuple[str, ...]]:
        """Return the ids of living workers by how many slots the group has for them."""
        return workers_by({worker: str(presence.slots) for worker, presence in self.workers.items()})


def workers_by(values: Mapping[str, str | None]) -> Mapping[str, tuple[str, ...]]:
    """Return the workers by their values, without those that have none."""
    found: dict[str, tuple[str, ...]] = {}
    for worker, value in values.items():
        if value is not None:
            found[value] = (*found.get(value, ()), worker)
    return found


@dataclass(frozen=True, slots=True)
class Notice:
    """Intent: publish a notice, retained."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class HandOver:
    """Intent: stop serving a slot, then call `Leases.grant`, which gives it to the worker whose share it is then."""

    slot: int


Intent = Notice | HandOver


@dataclass(slots=True)
class _KnownWorker:
    """What is known of a worker: its presence, and by the clock of this process when it was last heard and removed.

    `is_heard` says whether the presence has come since the connection of this process began.
    """

    presence: Presence
    heard: float
    gone_at: float | None = None
    is_heard: bool = True


@dataclass(slots=True)
class _Slot:
    """What is known of a slot.

    A slot with a living holder is held; `free_since` is None. Any other slot is free, `free_since` this worker noticed.
    `pending` is the claim or grant that this worker has published at `pending_since`. It is published again until it,
    or a later lease, has come back. A grant becomes `lease` at once, a claim only when it has come back.
    """

    lease: Lease | None = None  # the last one that has come; its holder may be away
    is_heard: bool = False  # a lease has come since this worker's connection began
    is_due: bool = False  # the lease is to be published again: the broker may retain an older one
    free_since: float | None = None
    pending: Lease | None = None
    pending_since: float = 0.0

    @property
    def holder(self) -> str:
        """Return the worker that the last lease names, "" without one."""
        return "" if self.lease is None else self.lease.worker

    @property
    def next_term(self) -> int:
        """Return the term of the next change of hands."""
        return 1 if self.lease is None else self.lease.term + 1


class Leases:
    """The leases of a group as one worker sees them. `now` is monotonic seconds, `clock` is epoch seconds.

    Args:
        group, slots: The group, and how many slots it has.
        worker, prefers: The id of this worker, and the slot that it prefers, None without.
        adopt_seconds: A worker that is silent for so long counts as gone.
        version, clock: The version of the software, and the time of the start.
    """

    def __init__(
        self, group: str, slots: int, worker: str, *, prefers: int | None, adopt_seconds: float, version: str,
        clock: float,
    ) -> None:  # fmt: skip
        self.worker = worker
        self.changes = 0
        """How many times a slot has come to this worker, or has gone."""
        self.surplus_slots: set[int] = set()
        """Slots beyond those of the group that still have leases, from a time when the group had more slots."""
        self.ordered_until = -math.inf
        """Until this time no other worker counts this one as gone, so none claims its slots."""
        self._group = group
        self._adopt_seconds = adopt_seconds
        self._own = Presence(worker, 0.0, "", version, clock, slots, prefers, (), leaves=False)
        self._workers: dict[str, _KnownWorker] = {}
        self._slots = [_Slot() for _ in range(slots)]
        self._connected: float | None = None  # since when
        self._silence = math.inf  # of this worker, in seconds, after which the broker publishes its will
        self._next_presence = 0.0  # when this worker publishes its presence again
        self._echo_since: float | None = None  # since when the last published presence has not come back
        self._last_look = 0.0  # when `intents` was called last

    def use_routes(self, routes: str, every: tuple[str, ...] = ()) -> None:
        """Publish another hash of the route set, and the names of its events with EVERY, from now on."""
        self._own, self._next_presence = replace(self._own, routes=routes, every=every), -math.inf

    # Notices come in.

    def connecting(self, now: float) -> None:
        """Note that the connection has ended, or that a new one begins to receive retained notices."""
        self._connected = self._echo_since = None
        self.ordered_until = min(self.ordered_until, now + min(GONE_SECONDS, self._adopt_seconds))
        for known in self._workers.values():
            known.is_heard = False
        for slot in self._slots:
            slot.is_heard = False

    def connected(self, now: float, silence: float = math.inf) -> None:
        """Note that all retained notices have come. Those that are missing were removed while this worker was away."""
        self._silence = silence
        self._connected = self._next_presence = self._last_look = now
        self._workers = {worker: known for worker, known in self._workers.items() if known.is_heard}
        for slot in self._slots:
            # If the broker has lost a lease, every worker that knows it publishes it again. The holder alone would not
            # do: it may not know the lease, if the slot was handed over to it while it was away.
            slot.is_due |= not slot.is_heard
            slot.free_since = None
            if slot.pending is not slot.lease:  # a claim
                slot.pending = None

    def received(self, topic: str, payload: bytes, now: float, *, retained: bool) -> None:
        """Take a notice, which may be old if it is retained. Other payloads are ignored."""
        match topic.split("/"):
            case [_, _, "workers", worker, "presence"]:
                self._take_presence(worker, payload, now)
            case [_, _, slot, "lease"] if slot.isascii() and slot.isdigit() and len(slot) < 5:
                if (lease := parse(payload, Lease)) is None:
                    return
                if int(slot) < len(self._slots):
                    self._take_lease(self._slots[int(slot)], lease, retained=retained)
                else:
                    self.surplus_slots.add(int(slot))

    def _take_presence(self, worker: str, payload: bytes, now: float) -> None:
        known = self._workers.get(worker)
        presence = parse(payload, Presence)
        is_one_too_many = known is None and worker != self.worker and len(self._workers) >= MOST_WORKERS
        if presence is not None and presence.worker == worker and not is_one_too_many:
            self._workers[worker] = _KnownWorker(presence, now)
            if worker == self.worker and self._echo_since is not None:
                self.ordered_until = self._echo_since + min(self._adopt_seconds, self._silence)
                self._echo_since = None
        elif not payload and known is not None and known.gone_at is None:
            known.gone_at = now
        if not payload and worker == self.worker:
            self._next_presence = now  # it was removed by the will of an earlier connection, or by another client

    def _take_lease(self, slot: _Slot, lease: Lease, *, retained: bool) -> None:
        known, mine, slot.is_heard = slot.lease, self.worker, True
        if known is None or lease.term > known.term:
            slot.lease, slot.is_due = lease, False
            self.changes += (lease.worker == mine) != (known is not None and known.worker == mine)
        elif (lease.term, lease.worker) == (known.term, known.worker):
            slot.lease = lease
        elif known.worker == mine:
            # The broker retains a lease with an older term than this worker's, or with the same term: publish this
            # worker's lease again. With the same term both workers may believe that they hold the slot, since the
            # brokers of a cluster may order two claims differently. Then the worker with the higher id takes the next
            # term. It uses that term at once: a grant that it publishes meanwhile gets a higher one, so that no term
            # has two holders.
            again = lease.term == known.term and mine > lease.worker and not retained
            slot.lease, slot.is_due = replace(known, term=known.term + again), True
        elif retained and lease.term < known.term:
            slot.is_due = True
        if slot.pending is not None and lease.term >= slot.pending.term:
            slot.pending = None

    # What this worker has to do.

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection on which all retained notices have come."""
        return self._connected is not None

    def is_heard(self, now: float) -> bool:
        """Return whether this worker's own notices come back to it.

        If they do not, its connection carries nothing, and the other workers will soon take its slots.
        """
        return self._echo_since is None or now - self._echo_since < max(self._adopt_seconds / 2, 1.0)

    def is_cut_off(self, now: float) -> bool:
        """Return whether this worker's notices have failed to come back for so long that it ends its connection."""
        return self._echo_since is not None and now - self._echo_since >= max(self._adopt_seconds, self._silence)

    @property
    def by_slot(self) -> Mapping[int, Lease]:
        """Return the last lease of each slot that has one. The holder may be away."""
        return {number: slot.lease for number, slot in enumerate(self._slots) if slot.lease is not None}

    @property
    def held(self) -> frozenset[int]:
        """Return the slots that this worker holds."""
        return frozenset(number for number, slot in enumerate(self._slots) if slot.holder == self.worker)

    def view(self, now: float) -> GroupView:
        """Return the group as it is known now."""
        living = self._others(now) | {self.worker: self._own}
        return GroupView(self.worker, dict(sorted(living.items())))

    def lacks_share(self, now: float) -> bool:
        """Return whether this worker holds less than its share."""
        return self.held < {slot for slot, worker in self._shares(now).items() if worker == self.worker}

    def intents(self, now: float, clock: float) -> list[Intent]:
        """Return what this worker has to do now, an empty list without a connection."""
        if self._connected is None or self._own.leaves:
            return []
        if (
            now - self._last_look > _PAUSE_SECONDS
        ):  # this worker was suspended: do not count the pause as silence of others
            for known in self._workers.values():
                known.heard += now - self._last_look if known.heard <= self._last_look else 0.0
        self._last_look = now
        hears_itself = self._echo_since is None or now - self._echo_since < self._adopt_seconds * _ECHO_PART
        intents: list[Intent] = [self._renew(now, clock)] if now >= self._next_presence else []
        holders, wanted = self._holders(now), self._shares(now)
        for number, slot in enumerate(self._slots):
            is_late = slot.pending is not None and now - slot.pending_since >= _CLAIM_SECONDS
            if slot.lease is not None and (slot.is_due or (is_late and slot.pending is slot.lease)):
                slot.is_due, slot.pending_since = False, now
                intents.append(self._publish(number, slot.lease, clock))
            if holders[number] == self.worker != wanted[number]:
                intents.append(HandOver(number))
            # While this worker receives nothing, all others seem silent: it would claim slots that they hold.
            if holders[number] is not None or not hears_itself:
                slot.free_since = None
                continue
            slot.free_since = now if slot.free_since is None else slot.free_since
            # A slot that its worker has left unclaimed for so long may be claimed by any worker.
            is_mine = wanted[number] == self.worker or now - slot.free_since >= self._adopt_seconds
            if is_mine and (slot.pending is None or is_late):
                has_crashed = slot.holder not in ("", self.worker)
                slot.pending_since = now
                slot.pending = self._lease(self.worker, slot.next_term, clock, waits=has_crashed)
                intents.append(self._publish(number, slot.pending, clock))
        return intents

    def _renew(self, now: float, clock: float) -> Notice:
        """Return this worker's presence, mark its leases to be published again, forget workers that are long gone."""
        self._next_presence = now + min(self._adopt_seconds / _BEATS, self._silence / 2)
        self._echo_since = now if self._echo_since is None else self._echo_since
        for slot in self._slots:
            slot.is_due |= slot.holder == self.worker
        long_ago = now - 2 * self._adopt_seconds
        self._workers = {worker: one for worker, one in self._workers.items() if (one.gone_at or one.heard) > long_ago}
        return self._presence(clock)

    def grant(self, number: int, now: float, clock: float, *, waits: bool = False) -> Notice | None:
        """Hand over a slot that this worker no longer serves; return the notice, None if it no longer holds the slot.

        The notice names the living worker whose share the slot is, which may be this worker again. It names none if
        this worker stops and no other one lives. `waits` says that requests of the slot still run.
        """
        slot = self._slots[number]
        if slot.holder != self.worker:
            return None
        to = self._shares(now)[number] or ""
        slot.lease = slot.pending = self._lease(to, slot.next_term, clock, waits=waits)
        slot.pending_since = now
        self.changes += to != self.worker
        return self._publish(number, slot.lease, clock)

    def stop(self, clock: float) -> Notice:
        """Take no more slots, so that `grant` gives the held ones to other workers; return the notice that says so."""
        self._own = replace(self._own, leaves=True)
        return self._presence(clock)

    def farewell(self) -> Notice:
        """Return the notice of a planned stop. It is also the will of the connection."""
        return Notice(presence_topic(self._group, self.worker), b"")

    def _presence(self, clock: float) -> Notice:
        presence = replace(self._own, until=clock + self._adopt_seconds)
        return Notice(presence_topic(self._group, self.worker), presence.payload)

    def _lease(self, worker: str, term: int, clock: float, *, waits: bool) -> Lease:
        """Return the lease of a slot that changes hands now; with `worker` "" it is free."""
        known = self._workers.get(worker)
        presence = self._own if known is None else known.presence
        until = clock + self._adopt_seconds if worker else clock
        return Lease(worker, until, presence.routes, presence.version, term, clock, waits)

    def _publish(self, slot: int, lease: Lease, clock: float) -> Notice:
        if lease.worker == self.worker:
            until = clock + self._adopt_seconds
            lease = replace(lease, until=until, routes=self._own.routes, version=self._own.version)
        return Notice(lease_topic(self._group, slot), lease.payload)

    # Who may hold what.

    def _is_alive(self, known: _KnownWorker, now: float) -> bool:
        return known.gone_at is None and now - known.heard < self._adopt_seconds

    def _others(self, now: float) -> dict[str, Presence]:
        """Return the other workers that can be given slots, by id."""
        return {
            worker: known.presence
            for worker, known in self._workers.items()
            if worker != self.worker and self._is_alive(known, now) and not known.presence.leaves
        }

    def _holders(self, now: float) -> dict[int, str | None]:
        """Return the holder of each slot; None where the slot is free."""
        return {
            number: slot.holder if number < self._open_slots(slot.holder) and self._may_hold(slot.holder, now) else None
            for number, slot in enumerate(self._slots)
        }

    def _open_slots(self, worker: str) -> int:
        """Return how many of the slots, counted from 0, a worker can open by its own setting."""
        known = self._workers.get(worker)
        most = len(self._slots)
        return most if known is None or worker == self.worker else min(known.presence.slots, most)

    def _may_hold(self, worker: str, now: float) -> bool:
        if worker in ("", self.worker):
            return worker != ""
        known = self._workers.get(worker)
        if known is None or known.gone_at is not None:
            gone_at = self._connected or now if known is None or known.gone_at is None else known.gone_at
            return now - gone_at < min(GONE_SECONDS, self._adopt_seconds)
        return self._is_alive(known, now)

    def _shares(self, now: float) -> dict[int, str | None]:
        """Return which worker each slot belongs to; see `shares`."""
        holders, found, first = self._holders(now), dict[int, str | None](), 0
        living = {worker: presence.slot for worker, presence in self._others(now).items()}
        if self._own.leaves:
            holders = {slot: None if holder == self.worker else holder for slot, holder in holders.items()}
        else:
            living[self.worker] = self._own.slot
        for most in sorted(
            {len(self._slots), *map(self._open_slots, living)}
        ):  # in steps, so that workers with different settings agree on the slots that all open
            able = {worker: prefers for worker, prefers in living.items() if self._open_slots(worker) >= most}
            found |= shares(able, {slot: holders[slot] for slot in range(first, most)})
            first = most
        return found


def shares(living: Mapping[str, int | None], holders: Mapping[int, str | None]) -> dict[int, str | None]:
    """Return which worker each slot belongs to: even shares, and as few moves as they need.

    Args:
        living: The workers that can be given slots: the slot that each prefers, None without.
        holders: The holder of each slot, None for a free one. One that is not in `living` keeps what it holds.

    A holder gives away the slot that it prefers last, and a worker is given the slot that it prefers first. A living
    worker loses a slot that another one prefers only if even shares take a slot from it anyway.
    """
    wanted: dict[int, str | None] = {slot: holder for slot, holder in holders.items() if holder not in living}
    held: dict[str, list[int]] = {worker: [] for worker in living}
    for slot, holder in sorted(holders.items()):
        if holder in held:
            held[holder].append(slot)
    free = [slot for slot, holder in holders.items() if holder is None]
    if not living:
        return dict.fromkeys(holders) | {slot: holder for slot, holder in holders.items() if holder is not None}
    size, more = divmod(len(free) + sum(map(len, held.values())), len(living))
    order = sorted(living, key=lambda worker: (-len(held[worker]), worker))
    quota = {worker: size + (number < more) for number, worker in enumerate(order)}
    needing = Counter(living[worker] for worker in living if len(held[worker]) < quota[worker])
    for worker, slots in held.items():
        slots.sort(key=lambda slot: (slot != living[worker], needing[slot], slot))  # used at once
        free += slots[quota[worker] :]
        wanted |= dict.fromkeys(slots[: quota[worker]], worker)
    left = {worker: quota[worker] - len(held[worker]) for worker in order}
    for worker in order:
        if living[worker] in free and left[worker] > 0:
            free.remove(living[worker])  # type: ignore[arg-type]  # it is in there
            wanted[living[worker]] = worker  # type: ignore[index]
            left[worker] -= 1
    for worker in order:
        for _ in range(left[worker]):
            wanted[free.pop(0)] = worker
    return wanted
