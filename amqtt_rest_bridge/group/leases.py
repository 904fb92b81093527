"""Who holds the slots of a group, as one worker sees it: notices come in, intents come out. Pure: it sends nothing.

`group.sessions` passes the notices of all workers in; `group.member` asks for intents twice a second and carries them
out. A notice is a retained message that all workers of the group receive. Other payloads on these topics are ignored.

- `bridge/<group>/workers/<id>/presence`: a worker lives. Published when it connects and at every third of
  `adopt_seconds`. Its will and a planned stop remove it; the broker drops it if it is not repeated in `adopt_seconds`.
- `bridge/<group>/<slot>/lease`: who holds a slot. Each change of hands has a higher `term`, so a lease that comes late
  or twice changes nothing. If two workers claim a slot with the same term, the claim that the broker sends first wins.
  Any other worker believes the lease that comes last, since the holder repeats its lease.

A worker is gone when its presence was removed, or has been silent for `adopt_seconds`. Each worker counts that silence
by its own monotonic clock, since the clocks of machines differ and jump. `until` in a notice is only shown to people.

All workers compute the same shares: `shares` depends only on which workers live and which slots they hold, and moves as
few slots as even shares need. A slot changes hands in two ways:

- Its holder hands it over, with a lease that names the next holder.
- If no living worker holds it, the worker whose share it is claims it, and holds it once the broker has sent the claim
  back.

Until all workers have received the new lease, two of them may believe that they hold the slot. Both then connect with
the same client ids, which are those of the slot, so the broker serves only the one that has connected last.

`KnownWorkers` says who lives, `Leases` who holds which slot, and `shares` who is to hold it.
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

_TERM_LIMIT: Final = 1 << 53
_NAME: Final = r"^[^+#/\0]*\Z"

_HEARTBEATS: Final = 3  # presences that a worker publishes within `adopt_seconds`
GONE_SECONDS: Final = 3.0
"""For so long a worker whose presence was removed keeps its slots: it may connect again."""
_REPEAT_SECONDS: Final = 2.0  # a claim or grant that has not come back after so long is published again
_PAUSE_SECONDS: Final = 2.0  # between two calls of `intents`: after a longer pause this worker itself was suspended
_UNHEARD_PART: Final = 1 / 6  # of `adopt_seconds`: a worker whose notices have not come back for so long claims nothing
MOST_WORKERS: Final = 1024
"""The most workers of a group that are known. There may be more notices: any client may forge them."""


def lease_topic(group: str, slot: int | str) -> str:
    """Return the topic of a slot's lease; of all slots with `+`."""
    return f"bridge/{group}/{slot}/lease"


def presence_topic(group: str, worker: str) -> str:
    """Return the topic of a worker's presence; of all workers with `+`."""
    return f"bridge/{group}/workers/{worker}/presence"


def worker_status_topic(group: str, worker: str, route: str) -> str:
    """Return the topic of a route's status on a worker."""
    return f"bridge/{group}/workers/{worker}/routes/{route}/status"


class _Content(Struct, frozen=True):
    @property
    def payload(self) -> bytes:
        """Return the payload of the notice."""
        return json.dumps(asdict(self)).encode()


class Presence(_Content, frozen=True):
    """What a living worker announces. Times are epoch seconds.

    `routes` is the hash of its route set, `version` that of its software. `slots` is its setting: it opens only slots
    below this number. `slot` is the slot that it prefers. `every` names its events with EVERY. A worker that `leaves`
    gets no more slots, and keeps those that it has until it has handed them over.
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


class Lease(_Content, frozen=True):
    """Which `worker` holds a slot ("": none), and since when. Times are epoch seconds.

    `term` counts changes of hands. `waits` says that the new holder has to wait, since calls of the last one may still
    run: it crashed, or did not wait for their end.
    """

    worker: Annotated[str, Meta(max_length=128, pattern=_NAME)]
    until: float
    routes: str
    version: str
    term: Annotated[int, Meta(gt=0, lt=_TERM_LIMIT)]
    since: float
    waits: bool = False


C = TypeVar("C", Presence, Lease)


def parse(payload: bytes, kind: type[C]) -> C | None:
    """Return the presence or lease that a payload holds, None for any other payload."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Notice:
    """Intent: publish a notice, retained; the broker drops it after `seconds`, 0 for never."""

    topic: str
    payload: bytes
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class HandOver:
    """Intent: stop serving a slot, then call `Leases.grant`, which gives the slot to the worker whose share it is."""

    slot: int


Intent = Notice | HandOver


@dataclass(frozen=True)
class GroupView:
    """A group as one worker sees it: `workers` are those that live, itself included, by id."""

    worker: str
    workers: Mapping[str, Presence]

    def leader(self, event: str) -> str | None:
        """Return the worker that runs an event with EVERY: the lowest id of those that have it, None if none has."""
        return min((worker for worker, presence in self.workers.items() if event in presence.every), default=None)

    @cached_property
    def route_sets(self) -> Mapping[str, tuple[str, ...]]:
        """Return the ids of living workers by the hash of their route set."""
        return workers_by({worker: presence.routes for worker, presence in self.workers.items()})

    @property
    def slot_counts(self) -> Mapping[str, tuple[str, ...]]:
        """Return the ids of living workers by their setting `slots`."""
        return workers_by({worker: str(presence.slots) for worker, presence in self.workers.items()})


def workers_by(values: Mapping[str, str | None]) -> Mapping[str, tuple[str, ...]]:
    """Return the ids of workers by their value; workers with the value None are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for worker, value in values.items():
        if value is not None:
            found[value] = (*found.get(value, ()), worker)
    return found


@dataclass(slots=True)
class _KnownWorker:
    """A worker whose presence has come. Times are of this process's monotonic clock."""

    presence: Presence
    heard: float  # when the presence came last
    gone_at: float | None = None  # when it was removed
    is_confirmed: bool = True  # the presence has come on the present connection


class KnownWorkers:
    """The workers of a group as one of them knows them, itself included. `now` is monotonic seconds.

    Args:
        group: The group.
        own: The presence of this worker.
        adopt_seconds: A worker that is silent for so long counts as gone.
    """

    def __init__(self, group: str, own: Presence, adopt_seconds: float) -> None:
        self.own_presence = own
        """The presence of this worker. `notice` sets its `until`."""
        self.safe_until = -math.inf
        """Until this time no other worker counts this one as gone, so none claims its slots."""
        self._group = group
        self._adopt_seconds = adopt_seconds
        self._known: dict[str, _KnownWorker] = {}
        self._connected: float | None = None  # since when
        self._silence_seconds = math.inf  # if the broker hears nothing for so long, it publishes this worker's will
        self._next_presence = 0.0  # when this worker publishes its presence again
        self._unheard_since: float | None = None  # since when the last published presence has not come back
        self._last_look = 0.0  # when `exclude_pause` was called last

    def connection_changed(self, now: float) -> None:
        """Note that the connection has ended, or that a new one begins to receive retained notices."""
        self._connected = self._unheard_since = None
        # The will may have removed this worker's presence now.
        self.safe_until = min(self.safe_until, now + min(GONE_SECONDS, self._adopt_seconds))
        for known in self._known.values():
            known.is_confirmed = False

    def connected(self, now: float, silence_seconds: float) -> None:
        """Note that all retained notices have come, and forget the workers without one: they have left meanwhile."""
        self._silence_seconds = silence_seconds
        self._connected = self._next_presence = self._last_look = now
        self._known = {worker: known for worker, known in self._known.items() if known.is_confirmed}

    def receive(self, worker: str, payload: bytes, now: float) -> None:
        """Take the presence of a worker, or an empty payload, which removes it."""
        is_own, known, presence = worker == self.own_presence.worker, self._known.get(worker), parse(payload, Presence)
        has_room = known is not None or is_own or len(self._known) < MOST_WORKERS
        if presence is not None and presence.worker == worker and has_room:
            self._known[worker] = _KnownWorker(presence, now)
            if is_own and self._unheard_since is not None:
                self.safe_until = self._unheard_since + min(self._adopt_seconds, self._silence_seconds)
                self._unheard_since = None
        elif not payload and known is not None and known.gone_at is None:
            known.gone_at = now
        if not payload and is_own:
            self._next_presence = now  # it was removed by the will of an earlier connection, or by another client

    def use_routes(self, routes: str, every: tuple[str, ...] = ()) -> None:
        """Use another route set: its hash and the names of its events with EVERY are published at once."""
        self.own_presence, self._next_presence = replace(self.own_presence, routes=routes, every=every), -math.inf

    def renew(self, now: float, clock: float) -> Notice | None:
        """Return this worker's presence if it is time to publish it again, else None. Forget workers long gone."""
        if now < self._next_presence:
            return None
        self._next_presence = now + min(self._adopt_seconds / _HEARTBEATS, self._silence_seconds / 2)
        self._unheard_since = now if self._unheard_since is None else self._unheard_since
        long_ago = now - 2 * self._adopt_seconds
        self._known = {worker: one for worker, one in self._known.items() if (one.gone_at or one.heard) > long_ago}
        return self.notice(clock)

    def notice(self, clock: float) -> Notice:
        """Return this worker's presence as it is published, with the time after which the broker drops it."""
        presence = replace(self.own_presence, until=clock + self._adopt_seconds)
        seconds = math.ceil(self._adopt_seconds)
        return Notice(presence_topic(self._group, self.own_presence.worker), presence.payload, seconds)

    def exclude_pause(self, now: float) -> None:
        """If this worker was suspended since the last call, do not count that time as silence of the other workers."""
        if now - self._last_look > _PAUSE_SECONDS:
            for known in self._known.values():
                known.heard += now - self._last_look if known.heard <= self._last_look else 0.0
        self._last_look = now

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection on which all retained notices have come."""
        return self._connected is not None

    def unheard_seconds(self, now: float) -> float:
        """Return for how long this worker has published its presence without receiving it back; 0 if it came back."""
        return 0.0 if self._unheard_since is None else now - self._unheard_since

    def is_heard(self, now: float) -> bool:
        """Return whether this worker's own notices come back to it.

        If they do not, its connection carries nothing, and the other workers will soon take its slots.
        """
        return self.unheard_seconds(now) < max(self._adopt_seconds / 2, 1.0)

    def is_cut_off(self, now: float) -> bool:
        """Return whether this worker's notices have not come back for so long that it has to end its connection."""
        return self.unheard_seconds(now) >= max(self._adopt_seconds, self._silence_seconds)

    def candidates(self, now: float) -> dict[str, Presence]:
        """Return the workers that can be given slots, by id: they live, and do not leave."""
        living = {worker: known.presence for worker, known in self._known.items() if self._is_alive(known, now)}
        living[self.own_presence.worker] = self.own_presence
        return {worker: presence for worker, presence in living.items() if not presence.leaves}

    def may_hold(self, worker: str, now: float) -> bool:
        """Return whether a worker keeps its slots: it lives, or its presence was removed just now."""
        if worker in ("", self.own_presence.worker):
            return worker != ""
        known = self._known.get(worker)
        if known is not None and known.gone_at is None:
            return self._is_alive(known, now)
        # A worker that is not known had gone by the time when this one connected.
        gone_at = (self._connected or now) if known is None else known.gone_at
        return gone_at is not None and now - gone_at < min(GONE_SECONDS, self._adopt_seconds)

    def presence_of(self, worker: str) -> Presence | None:
        """Return the last presence of a worker, None if it is not known."""
        if worker == self.own_presence.worker:
            return self.own_presence
        return None if (known := self._known.get(worker)) is None else known.presence

    def _is_alive(self, known: _KnownWorker, now: float) -> bool:
        """Return whether a worker's presence has come within `adopt_seconds` and was not removed."""
        return known.gone_at is None and now - known.heard < self._adopt_seconds


@dataclass(slots=True)
class _Slot:
    """What is known of a slot, and what this worker has published about it.

    A grant (this worker hands the slot over) is the `lease` at once. A claim (this worker takes the slot) becomes the
    `lease` once the broker has sent it back. Both are published again until they, or a later lease, have come back.
    """

    lease: Lease | None = None  # the last one; its holder may be away
    is_confirmed: bool = False  # a lease has come on the present connection
    must_repeat: bool = False  # the lease has to be published again: the broker may retain an older one
    awaits_grant: bool = False  # the lease is a grant of this worker that has not come back
    claim: Lease | None = None  # of this worker, until it has come back
    published_at: float = 0.0  # when the lease or the claim was published last
    free_since: float | None = None  # None while a living worker holds the slot

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
        self.workers = KnownWorkers(
            group, Presence(worker, 0.0, "", version, clock, slots, prefers, (), leaves=False), adopt_seconds
        )
        """Who lives."""
        self.changes = 0
        """How many times a slot has come to this worker, or has gone."""
        self.surplus_slots: set[int] = set()
        """Slots beyond those of the group that still have leases, from a time when the group had more slots."""
        self._group = group
        self._adopt_seconds = adopt_seconds
        self._slots = [_Slot() for _ in range(slots)]

    # Notices come in.

    def connection_changed(self, now: float) -> None:
        """Note that the connection has ended, or that a new one begins to receive retained notices."""
        self.workers.connection_changed(now)
        for slot in self._slots:
            slot.is_confirmed = False

    def connected(self, now: float, silence_seconds: float = math.inf) -> None:
        """Note that all retained notices have come.

        If the broker hears nothing of this worker for `silence_seconds`, it publishes the worker's will.
        """
        self.workers.connected(now, silence_seconds)
        for slot in self._slots:
            # If the broker has lost a lease, every worker that knows it publishes it again. It is not enough that the
            # holder does: it does not know the lease if the slot was handed over to it while it was away.
            slot.must_repeat |= not slot.is_confirmed
            slot.free_since = slot.claim = None

    def receive(self, topic: str, payload: bytes, now: float, *, retained: bool) -> None:
        """Take a notice, which may be old if it is retained. Other payloads are ignored."""
        match topic.split("/"):
            case [_, _, "workers", worker, "presence"]:
                self.workers.receive(worker, payload, now)
            case [_, _, slot, "lease"] if slot.isascii() and slot.isdigit() and len(slot) < 5:
                if (lease := parse(payload, Lease)) is None:
                    return
                if int(slot) < len(self._slots):
                    self._receive_lease(self._slots[int(slot)], lease, retained=retained)
                else:
                    self.surplus_slots.add(int(slot))

    def _receive_lease(self, slot: _Slot, lease: Lease, *, retained: bool) -> None:
        """Take a lease that the broker has sent, this worker's own ones included.

        1. It has a higher term: the slot has changed hands.
        2. It is the known lease again: only its times are new.
        3. It is older than the known one, or has the same term and another holder: the comments say what is done.
        """
        known, slot.is_confirmed = slot.lease, True
        if known is None or lease.term >= known.term:
            slot.awaits_grant = False
        if slot.claim is not None and lease.term >= slot.claim.term:
            slot.claim = None
        if known is None or lease.term > known.term:
            slot.lease, slot.must_repeat = lease, False
            self.changes += (lease.worker == self.worker) != (known is not None and known.worker == self.worker)
        elif (lease.term, lease.worker) == (known.term, known.worker):
            slot.lease = lease
        elif known.worker == self.worker:
            # The broker does not have this worker's lease, or has another one with the same term: publish it again.
            # The same term may have two holders, since the brokers of a cluster may order two claims differently.
            # Then the worker with the higher id raises the term of its lease, at once: a grant that it publishes
            # meanwhile has a higher term still.
            is_raised = lease.term == known.term and self.worker > lease.worker and not retained
            slot.lease, slot.must_repeat = replace(known, term=known.term + int(is_raised)), True
        elif lease.term == known.term and lease.worker != self.worker:
            # Two other workers have claimed the slot with one term. The one that holds it repeats its lease, and the
            # other one may never have received its claim: the lease that comes last is right in the end.
            slot.lease, slot.must_repeat = lease, False
        elif retained and lease.term < known.term:
            slot.must_repeat = True  # the broker has lost the known lease

    # What this worker has to do.

    def intents(self, now: float, clock: float) -> list[Intent]:
        """Return what this worker has to do now; an empty list without a connection, and after `stop`.

        1. Publish its presence, and with it the leases of its slots, three times within `adopt_seconds`.
        2. Publish a lease again that the broker may not have.
        3. Hand over a slot that is the share of another worker.
        4. Claim a slot that no living worker holds, if it is this worker's share.
        """
        if not self.workers.is_connected or self.workers.own_presence.leaves:
            return []
        self.workers.exclude_pause(now)
        intents: list[Intent] = []
        if (presence := self.workers.renew(now, clock)) is not None:
            intents.append(presence)
            for slot in self._slots:
                slot.must_repeat |= slot.holder == self.worker
        # While this worker receives nothing, all others seem silent: it would claim slots that they hold.
        may_claim = self.workers.unheard_seconds(now) < self._adopt_seconds * _UNHEARD_PART
        holders, shares_of = self._holders(now), self._shares(now)
        for number, slot in enumerate(self._slots):
            is_late = now - slot.published_at >= _REPEAT_SECONDS
            if slot.lease is not None and (slot.must_repeat or (slot.awaits_grant and is_late)):
                slot.must_repeat, slot.published_at = False, now
                intents.append(self._notice(number, slot.lease, clock))
            is_share = shares_of[number] == self.worker
            if holders[number] == self.worker and not is_share:
                intents.append(HandOver(number))
            if holders[number] is not None or not may_claim:
                slot.free_since = None
            elif self._should_claim(slot, now, is_share=is_share) and (slot.claim is None or is_late):
                has_crashed = slot.holder not in ("", self.worker)
                slot.claim = self._next_lease(slot, self.worker, clock, waits=has_crashed)
                slot.awaits_grant, slot.published_at = False, now
                intents.append(self._notice(number, slot.claim, clock))
        return intents

    def _should_claim(self, slot: _Slot, now: float, *, is_share: bool) -> bool:
        """Return whether this worker claims a free slot: it is its share, or has been free for `adopt_seconds`."""
        if slot.free_since is None:
            slot.free_since = now
        return is_share or now - slot.free_since >= self._adopt_seconds

    def grant(self, number: int, now: float, clock: float, *, waits: bool = False) -> Notice | None:
        """Hand over a slot that this worker no longer serves; return the notice, None if it no longer holds the slot.

        The notice names the worker whose share the slot is, which may be this worker again. It names none if this
        worker stops and no other one lives. `waits` says that requests of the slot still run.
        """
        slot = self._slots[number]
        if slot.holder != self.worker:
            return None
        next_holder = self._shares(now)[number] or ""
        slot.lease = self._next_lease(slot, next_holder, clock, waits=waits)
        slot.claim, slot.awaits_grant, slot.published_at = None, True, now
        self.changes += next_holder != self.worker
        return self._notice(number, slot.lease, clock)

    def stop(self, clock: float) -> Notice:
        """Take no more slots, so that `grant` gives the held ones to other workers; return the notice that says so."""
        self.workers.own_presence = replace(self.workers.own_presence, leaves=True)
        return self.workers.notice(clock)

    def farewell(self) -> Notice:
        """Return the notice of a planned stop. It is also the will of the connection."""
        return Notice(presence_topic(self._group, self.worker), b"")

    def _next_lease(self, slot: _Slot, worker: str, clock: float, *, waits: bool) -> Lease:
        """Return the lease that gives a slot to a worker now, or to none if `worker` is ""."""
        presence = self.workers.presence_of(worker) or self.workers.own_presence
        until = clock + self._adopt_seconds if worker else clock
        return Lease(worker, until, presence.routes, presence.version, slot.next_term, clock, waits)

    def _notice(self, slot: int, lease: Lease, clock: float) -> Notice:
        """Return the notice of a lease; a lease of this worker gets its present times and routes."""
        if lease.worker == self.worker:
            until, own = clock + self._adopt_seconds, self.workers.own_presence
            lease = replace(lease, until=until, routes=own.routes, version=own.version)
        return Notice(lease_topic(self._group, slot), lease.payload)

    # Who holds which slot, and who should hold it.

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
        living = self.workers.candidates(now) | {self.worker: self.workers.own_presence}
        return GroupView(self.worker, dict(sorted(living.items())))

    def lacks_share(self, now: float) -> bool:
        """Return whether this worker holds less than its share."""
        return self.held < {slot for slot, worker in self._shares(now).items() if worker == self.worker}

    def _holders(self, now: float) -> dict[int, str | None]:
        """Return the living holder of each slot, None if the slot is free or its holder cannot open it."""
        return {
            number: slot.holder
            if number < self._open_slots(slot.holder) and self.workers.may_hold(slot.holder, now)
            else None
            for number, slot in enumerate(self._slots)
        }

    def _open_slots(self, worker: str) -> int:
        """Return how many slots, from the first one on, a worker can open by its own setting."""
        presence, most = self.workers.presence_of(worker), len(self._slots)
        return most if presence is None else min(presence.slots, most)

    def _shares(self, now: float) -> dict[int, str | None]:
        """Return the worker whose share each slot is; see `shares`.

        If workers have different settings, the slots that all of them open are shared among all. The further slots are
        shared among the workers that open them.
        """
        holders, found, begin = self._holders(now), dict[int, str | None](), 0
        living = {worker: presence.slot for worker, presence in self.workers.candidates(now).items()}
        if self.workers.own_presence.leaves:
            holders = {slot: None if holder == self.worker else holder for slot, holder in holders.items()}
        for end in sorted({len(self._slots), *map(self._open_slots, living)}):
            able = {worker: prefers for worker, prefers in living.items() if self._open_slots(worker) >= end}
            found |= shares(able, {slot: holders[slot] for slot in range(begin, end)})
            begin = end
        return found


def shares(living: Mapping[str, int | None], holders: Mapping[int, str | None]) -> dict[int, str | None]:
    """Return the worker whose share each slot is: even shares, and as few moves as they need.

    Args:
        living: The workers that can be given slots, each with the slot that it prefers, None without.
        holders: The holder of each slot, None for a free one. A holder that is not in `living` keeps its slots.

    1. Each worker keeps slots up to its share. It keeps the slot that it prefers, and rather gives away those that
       other workers prefer.
    2. A worker that has too few is given the slot that it prefers, if that slot is free now.
    3. Then it is given the other free slots.
    """
    if not living:
        return dict(holders)
    wanted: dict[int, str | None] = {slot: holder for slot, holder in holders.items() if holder not in living}
    free = [slot for slot, holder in holders.items() if holder is None]
    held = {worker: [slot for slot, holder in holders.items() if holder == worker] for worker in sorted(living)}
    size, rest = divmod(len(free) + sum(map(len, held.values())), len(living))  # slots of each worker, and what is left
    order = sorted(held, key=lambda worker: (-len(held[worker]), worker))  # the first ones get a slot of the rest
    quota = {worker: size + (number < rest) for number, worker in enumerate(order)}
    demand = Counter(living[worker] for worker in living if len(held[worker]) < quota[worker])
    for worker, slots in held.items():
        slots.sort(key=lambda slot: (slot != living[worker], demand[slot], slot))  # called with this `worker` only
        free += slots[quota[worker] :]
        wanted |= dict.fromkeys(slots[: quota[worker]], worker)
    left = {worker: quota[worker] - len(held[worker]) for worker in order}  # how many slots it lacks
    for worker in order:
        preferred = living[worker]
        if preferred is not None and preferred in free and left[worker] > 0:
            free.remove(preferred)
            wanted[preferred] = worker
            left[worker] -= 1
    for worker in order:
        for _ in range(left[worker]):
            wanted[free.pop(0)] = worker
    return wanted
