"""The leases of a group: simulated workers behind a broker that is late, loses and stops, and the rules of sharing."""

import itertools
import json
from collections import Counter, deque
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from amqtt_rest_bridge.group.leases import (
    GONE_SECONDS,
    MOST_WORKERS,
    HandOver,
    Lease,
    Leases,
    Notice,
    Presence,
    lease_topic,
    parse,
    presence_topic,
    shares,
)

SLOTS = 4
ADOPT = 30.0
TICK = 0.5
DRAIN = 5.0


class Node:
    """A worker: what is on its way to it, and since when it hands slots over."""

    def __init__(self, name: str, prefers: int | None, skew: float, clock: float, slots: int) -> None:
        self.name = name
        self.slots = slots
        self.skew = skew
        self.leases = Leases(
            "plant", slots, name, prefers=prefers, adopt_seconds=ADOPT, version="1", clock=clock + skew
        )
        self.inbox: deque[tuple[str, bytes, bool]] = deque()
        self.online = self.paused = False
        self.serving: set[int] = set()
        self.draining: dict[int, float] = {}
        self.moved = 0


class Group:
    """Workers, a broker with retained records, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.nodes: dict[str, Node] = {}
        self.retained: dict[str, bytes] = {}
        self.numbers = 0

    def start(self, prefers: int | None = None, skew: float = 0.0, slots: int = SLOTS) -> Node:
        self.numbers += 1
        name = f"{self.numbers * 7 % 10}-{self.numbers}"
        node = self.nodes[name] = Node(name, prefers, skew, self.now, slots)
        self.connect(node)
        return node

    def connect(self, node: Node) -> None:
        node.online = True
        node.inbox = deque((topic, payload, True) for topic, payload in self.retained.items())
        node.leases.connection_changed(self.now)
        node.inbox.append(("", b"", False))  # the end of what is retained

    def cut(self, node: Node) -> None:
        """End a connection: the broker publishes the will."""
        if node.online:
            node.online = False
            node.inbox.clear()
            node.leases.connection_changed(self.now)
            self.publish(node.leases.farewell())

    def publish(self, record: Notice) -> None:
        if record.payload:
            self.retained[record.topic] = record.payload
        else:
            self.retained.pop(record.topic, None)
        for node in self.nodes.values():
            if node.online:
                node.inbox.append((record.topic, record.payload, False))

    def crash(self, node: Node, *, will: bool) -> None:
        del self.nodes[node.name]
        if will:
            self.publish(node.leases.farewell())

    def stop(self, node: Node) -> None:
        self.deliver(node)
        self.publish(node.leases.stop(self.now + node.skew))
        self.tick(seconds=0)
        for slot in sorted(node.leases.held):
            if (record := node.leases.grant(slot, self.now, self.now + node.skew)) is not None:
                self.publish(record)
        del self.nodes[node.name]
        self.publish(node.leases.farewell())

    def deliver(self, node: Node, most: int = 1000) -> None:
        while node.inbox and most:
            most -= 1
            topic, payload, retained = node.inbox.popleft()
            if topic:
                node.leases.receive(topic, payload, self.now, retained=retained)
            else:
                node.leases.connected(self.now)

    def tick(self, late: tuple[str, ...] = (), seconds: float = TICK) -> None:
        self.now += seconds
        for node in list(self.nodes.values()):
            if node.paused or not node.online:
                continue
            self.deliver(node, 1 if node.name in late else 1000)
            for intent in node.leases.intents(self.now, self.now + node.skew):
                if isinstance(intent, Notice):
                    self.publish(intent)
                else:
                    node.draining.setdefault(intent.slot, self.now)
            for slot, since in list(node.draining.items()):
                if self.now - since >= DRAIN:
                    del node.draining[slot]
                    if (record := node.leases.grant(slot, self.now, self.now + node.skew)) is not None:
                        self.publish(record)
            held = set(node.leases.held)
            node.moved += len(held ^ node.serving)
            node.serving = held

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK)):
            self.tick()

    @property
    def held(self) -> dict[str, list[int]]:
        return {node.name: sorted(node.leases.held) for node in self.nodes.values()}

    def check_settled(self) -> None:
        """Every slot has one holder that opens it, shares are even, all see the same, and nothing moves any more."""
        held, counts = self.held, sorted({node.slots for node in self.nodes.values()})
        assert sorted(slot for slots in held.values() for slot in slots) == list(range(counts[-1])), held
        assert all(slot < self.nodes[name].slots for name, slots in held.items() for slot in slots)
        for first, most in pairwise([0, *counts]):
            able = [name for name, node in self.nodes.items() if node.slots >= most]
            sizes = [sum(first <= slot < most for slot in held[name]) for name in able]
            assert max(sizes) - min(sizes) <= 1, held
        before = {node.name: node.moved for node in self.nodes.values()}
        self.run(2 * ADOPT)
        assert {node.name: node.moved for node in self.nodes.values()} == before
        holders = {slot: name for name, slots in held.items() for slot in slots}
        for node in self.nodes.values():
            assert list(node.leases.view(self.now).workers) == sorted(self.nodes)
            assert all(node.leases.by_slot[slot].worker == holders[slot] for slot in range(node.slots))


def settled(count: int, seconds: float = 60) -> tuple[Group, list[Node]]:
    """Return a group whose workers have had time to share the slots."""
    group = Group()
    nodes = [group.start() for _ in range(count)]
    group.run(seconds)
    return group, nodes


def changed(record: bytes, **fields: object) -> bytes:
    return json.dumps(json.loads(record) | fields).encode()


class Simulation(RuleBasedStateMachine):
    """Workers that start, stop, crash, pause and lose their connections, with records that come late."""

    @initialize()
    def begin(self) -> None:
        self.group = Group()
        self.group.start()

    def some(self, number: int) -> Node:
        nodes = list(self.group.nodes.values())
        return nodes[number % len(nodes)]

    @rule(prefers=st.none() | st.integers(0, SLOTS - 1), skew=st.floats(-1e6, 1e6), slots=st.sampled_from([4, 4, 2, 3]))
    def start(self, prefers: int | None, skew: float, slots: int) -> None:
        if len(self.group.nodes) < 6:
            self.group.start(prefers, skew, slots)

    @rule(number=st.integers(0, 9), will=st.booleans())
    def crash(self, number: int, will: bool) -> None:
        if len(self.group.nodes) > 1:
            self.group.crash(self.some(number), will=will)

    @rule(number=st.integers(0, 9))
    def stop(self, number: int) -> None:
        node = self.some(number)
        if len(self.group.nodes) > 1 and node.online and not node.paused:
            self.group.stop(node)

    @rule(number=st.integers(0, 9))
    def pause(self, number: int) -> None:
        self.some(number).paused = True

    @rule(number=st.integers(0, 9))
    def resume(self, number: int) -> None:
        self.some(number).paused = False

    @rule(number=st.integers(0, 9))
    def cut(self, number: int) -> None:
        self.group.cut(self.some(number))

    @rule(number=st.integers(0, 9))
    def connect(self, number: int) -> None:
        if not (node := self.some(number)).online:
            self.group.connect(node)

    @rule()
    def forget(self) -> None:
        """Restart the broker without its database: it loses what it retains."""
        for node in self.group.nodes.values():
            self.group.cut(node)
        self.group.retained.clear()

    @rule(topic=st.sampled_from([lease_topic("plant", 1), lease_topic("plant", 99), presence_topic("plant", "x")]),
          payload=st.sampled_from([b"", b"[]", b"{}", b"\xff", b'{"worker": "x", "term": -1}']))  # fmt: skip
    def forge(self, topic: str, payload: bytes) -> None:
        self.group.publish(Notice(topic, payload))

    @rule(late=st.lists(st.integers(0, 9), max_size=3), ticks=st.integers(1, 30))
    def run(self, late: list[int], ticks: int) -> None:
        for _ in range(ticks):
            self.group.tick(tuple(self.some(number).name for number in late))

    @rule()
    def settle(self) -> None:
        """All that live go on: then every slot is held within `adopt_seconds` and what handing over takes."""
        for node in self.group.nodes.values():
            node.paused = False
            if not node.online:
                self.group.connect(node)
        self.group.run(ADOPT + ADOPT / 3 + 4 * DRAIN + 2 * GONE_SECONDS)
        self.group.check_settled()

    @invariant()
    def nothing_is_forgotten_or_piles_up(self) -> None:
        if hasattr(self, "group"):
            assert all(len(node.leases.by_slot) <= SLOTS for node in self.group.nodes.values())

    def teardown(self) -> None:
        if hasattr(self, "group"):
            self.settle()


TestSimulation = Simulation.TestCase
TestSimulation.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@given(
    living=st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(0, 7), max_size=6),
    holders=st.dictionaries(st.integers(0, 7), st.none() | st.sampled_from("abcdefg"), max_size=8),
)
def test_shares_are_even_complete_and_move_no_slot_without_need(
    living: dict[str, int | None], holders: dict[int, str | None]
) -> None:
    wanted = shares(living, holders)
    assert wanted.keys() == holders.keys()
    counts = Counter(dict.fromkeys(living, 0))
    counts.update(worker for slot, worker in wanted.items() if worker in living)
    if living:
        assert all(worker is not None for worker in wanted.values())
        assert max(counts.values()) - min(counts.values()) <= 1
        assert shares(living, wanted) == wanted  # nothing moves twice
        before = Counter(holder for holder in holders.values() if holder in living)
        moved = sum(holders[slot] != wanted[slot] for slot in holders if holders[slot] in living)
        assert moved == sum(max(0, before[worker] - counts[worker]) for worker in living)
    assert all(wanted[slot] == holder for slot, holder in holders.items() if holder is not None and not living)


def test_a_preferred_slot_is_given_first_and_given_away_last() -> None:
    held_by_a = dict.fromkeys(range(4), "a")
    assert shares({"a": 0, "b": None}, held_by_a) == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert shares({"a": None, "b": 0}, held_by_a) == {0: "b", 1: "a", 2: "a", 3: "b"}
    assert shares({"a": None, "b": 1}, {0: "a", 1: None}) == {0: "a", 1: "b"}
    assert shares({"a": None, "b": 0}, {0: "a", 1: "b"}) == {0: "a", 1: "b"}  # it lives, and shares are even


def test_a_slot_is_granted_to_no_worker_that_does_not_open_it() -> None:
    group = Group()
    small, large = group.start(slots=2), group.start(slots=4)
    group.run(60)
    assert [len(small.leases.held & {0, 1}), len(large.leases.held & {0, 1})] == [1, 1]
    assert large.leases.held > {2, 3}
    group.check_settled()
    lease = group.retained[lease_topic("plant", 3)]
    granted = changed(lease, worker=small.name, term=json.loads(lease)["term"] + 1)
    group.publish(Notice(lease_topic("plant", 3), granted))  # as a version before did
    group.run(5)
    group.check_settled()


def test_a_planned_stop_hands_all_slots_to_those_that_live_at_once() -> None:
    group, (first, second) = settled(2)
    group.stop(first)
    group.tick()
    assert group.held == {second.name: [0, 1, 2, 3]}
    assert not any(lease.waits for lease in second.leases.by_slot.values())


def test_slots_are_taken_three_seconds_after_a_will_and_adopt_seconds_after_the_last_record() -> None:
    for will, seconds in ((True, GONE_SECONDS), (False, ADOPT)):
        group, (first, second) = settled(2)
        crashed = group.now
        group.crash(first, will=will)
        while len(second.leases.held) < SLOTS:
            group.tick()
        assert group.now - crashed <= seconds + 3 * TICK
        assert [lease.waits for lease in second.leases.by_slot.values()].count(True) == 2


def test_a_record_behind_the_known_one_is_replaced_at_the_broker() -> None:
    group, (node,) = settled(1, 5)
    topic = lease_topic("plant", 2)
    group.publish(Notice(topic, changed(group.retained[topic], worker="other", term=1)))
    group.tick()
    group.tick()
    kept = parse(group.retained[topic], Lease)
    assert kept is not None and kept.worker == node.name
    assert sorted(node.leases.held) == [0, 1, 2, 3]


def test_a_slot_that_was_handed_over_before_the_broker_lost_its_records_reaches_its_holder() -> None:
    group, (first, second) = settled(2)
    group.start(slots=2)  # with which 0 and 1 are shared, so that each of the others gets one of 2 and 3
    first.paused = True  # does not read what follows
    while len(second.leases.held) > 1:
        group.tick()
    group.tick()  # the grant comes back to the one that gave
    group.retained.clear()
    for node in group.nodes.values():
        group.cut(node)
        group.connect(node)
    first.paused = False
    group.run(60)
    group.check_settled()


def test_a_slot_that_two_workers_took_by_one_term_is_handed_over_to_one_that_all_agree_on() -> None:
    group = Group()
    first = group.start()
    group.publish(Notice(lease_topic("plant", 1), b""))  # one more record to read
    second = group.start()
    group.start()
    group.tick(late=(first.name, second.name))
    for _ in range(17):  # the first one takes the next term, and hands over before that record comes back to it
        group.tick(late=(first.name,))
    group.run(60)
    group.check_settled()


def test_a_claim_that_the_broker_forgot_before_its_sender_had_it_leaves_no_wrong_holder_with_those_who_had_it() -> None:
    group = Group()
    sender, other = group.start(), group.start()
    group.tick()  # the sender claims all slots, and the other one receives that
    for node in (sender, other):
        group.cut(node)
    group.retained.clear()
    third = group.start()
    group.run(5)
    assert third.name < sender.name  # else it raises the term
    assert {lease.worker for lease in other.leases.by_slot.values()} == {sender.name}
    assert {lease.term for lease in third.leases.by_slot.values()} == {1}
    for node in (sender, other):
        group.connect(node)
    group.run(60)
    group.check_settled()


@pytest.mark.parametrize(
    "payload",
    [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"worker": "a/b"}', b'{"term": 1}'],
)
def test_a_payload_that_is_not_a_record_is_none(payload: bytes) -> None:
    assert parse(payload, Lease) is None and parse(payload, Presence) is None


def test_intents_are_none_before_all_retained_records_have_come() -> None:
    leases = Leases("plant", 1, "a", prefers=None, adopt_seconds=ADOPT, version="1", clock=0)
    assert leases.intents(0, 0) == []
    leases.connection_changed(0)
    assert leases.intents(1, 1) == [] and not any(isinstance(one, HandOver) for one in leases.intents(2, 2))
    leases.connected(3)
    assert len(leases.intents(3, 3)) == 2  # the presence, and a claim


def test_a_worker_is_not_heard_while_its_presence_does_not_come_back() -> None:
    group, (node,) = settled(1, 2 * ADOPT)
    workers = node.leases.workers
    assert workers.is_heard(group.now)
    announced = next(second for second in itertools.count(group.now) if node.leases.intents(second, 0.0))
    late = announced + ADOPT / 2
    assert workers.is_heard(late - 1) and not workers.is_heard(late)
    group.deliver(node)
    assert not workers.is_heard(late)
    group.connect(node)
    assert workers.is_heard(late)


def test_a_worker_whose_records_do_not_come_back_claims_nothing_of_those_that_it_does_not_hear() -> None:
    """The claim would reach the others later, and take from them what they hold and serve."""
    group, (first, second) = settled(2)
    for _ in range(int(3 * ADOPT / TICK)):
        group.now += TICK
        intents = first.leases.intents(group.now, group.now)
        published = [one.topic for one in intents if isinstance(one, Notice)]
        assert not {lease_topic("plant", slot) for slot in second.leases.held} & set(published)
    assert sorted(first.leases.view(group.now).workers) == [first.name]


def test_a_connection_by_which_no_record_comes_is_given_up_later_than_the_broker_would_have_noticed() -> None:
    group = Group()
    node = group.start()
    group.deliver(node)
    node.leases.connected(group.now, 22.5)
    assert node.leases.intents(group.now, group.now)
    late, workers = group.now + ADOPT, node.leases.workers
    assert not workers.is_cut_off(late - 1) and workers.is_cut_off(late)
    node.leases.connection_changed(late)
    assert not workers.is_cut_off(late + ADOPT)


def test_of_forged_records_so_many_are_kept_and_a_worker_hears_itself_all_the_same() -> None:
    group = Group()
    node = group.start()
    for number in range(2 * MOST_WORKERS):
        forged = changed(node.leases.stop(0).payload, worker=f"w{number}", leaves=False)
        node.leases.receive(presence_topic("plant", f"w{number}"), forged, 1000, retained=False)
    assert len(node.leases.view(1000).workers) == MOST_WORKERS + 1
    lease = Lease("other", 0.0, "", "1", 5, 0.0).payload
    for slot in (3, 4, 9999, 10_000):
        node.leases.receive(lease_topic("plant", slot), lease, 1000, retained=True)
    assert node.leases.surplus_slots == {4, 9999}


@pytest.mark.parametrize("silence", [22.5, 3 * ADOPT])
def test_ordered_events_are_called_until_others_may_take_the_slots_and_no_longer(silence: float) -> None:
    group = Group()
    node = group.start()
    group.deliver(node)
    node.leases.connected(group.now, silence)
    for _ in range(200):
        group.tick()
        group.deliver(node)
        assert group.now < node.leases.workers.safe_until <= group.now + min(ADOPT, silence)
    node.paused, until = True, node.leases.workers.safe_until
    other = group.start()
    while not other.leases.held:
        group.tick()
    assert group.now >= until
    node.leases.connection_changed(until - 10)
    assert node.leases.workers.safe_until == until - 10 + GONE_SECONDS
