"""Slots change hands, sessions have backlogs, targets are dead: nothing is lost, doubled or out of order."""

import random
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.support.gate import Gate
from tests.support.http_target import Peer, Target, echo, reply
from tests.support.waiting import eventually
from tests.worker.mosquitto import Client, Mosquitto
from tests.worker.relay import Relay
from tests.worker.workers import LOSSLESS, Group, Worker, client_route

pytestmark = pytest.mark.mosquitto

ORDERED = 'WITH ORDERED "true"'
TOPICS = 8


def hanging(peer: Peer) -> None:
    """Take a request and answer nothing."""
    if peer.request() is not None:
        peer.wait()


def slowly(peer: Peer) -> None:
    """Answer each request after 5 ms."""
    while (seen := peer.request()) is not None:
        peer.server.stopping.wait(0.005)
        peer.send(reply(seen.body))


def publish_all(client: Client, topic: Callable[[int], str], numbers: range) -> None:
    infos = []
    for number in numbers:
        infos.append(client.publish(topic(number), b"%d" % number, wait=False))
        if len(infos) % 500 == 0:
            infos[-1].wait_for_publish(60)
    for info in infos:
        info.wait_for_publish(60)


def ordered_topic(number: int) -> str:
    return f"in/{number % TOPICS}"


def check(target: Target, count: int, *, doubled: int = 0) -> None:
    """Each message was called once (but `doubled` of them), and those of a topic in their order."""
    called = [int(seen.body) for seen in target.requests]
    assert set(called) == set(range(count)), f"{count - len(set(called))} lost"
    assert len(called) - len(set(called)) <= doubled, Counter(called).most_common(5)
    by_topic: dict[int, list[int]] = defaultdict(list)
    for number in called:
        by_topic[number % TOPICS].append(number)
    steps = [pair for numbers in by_topic.values() for pair in pairwise(numbers) if pair[1] < pair[0]]
    assert steps == []


def are_called(target: Target, count: int) -> Callable[[], bool]:
    return lambda: len({seen.body for seen in list(target.requests)}) >= count


@pytest.mark.parametrize("waiting", [300, pytest.param(3000, marks=pytest.mark.long)])
def test_a_start_depends_on_no_target_however_many_messages_wait_for_a_dead_one(
    group: Group, mosquitto: Mosquitto, waiting: int
) -> None:
    """Capacity 10, more than that waiting: ready, the healthy route works, and so does one that a reload adds."""
    with Target(echo) as target, Target(hanging) as dead:
        small = f"{LOSSLESS} WITH OVERLOAD_CAPACITY 10"
        routes = client_route("Dead", dead.port, "dead/#", config=small) + client_route(
            "Well", target.port, "well/#", config=LOSSLESS
        )
        group.routes(routes)
        assert group.start(slots=4).ready().stop() == 0
        client = mosquitto.client().subscribe("results/#")
        publish_all(client, lambda number: f"dead/{number}", range(waiting))
        publish_all(client, lambda number: f"well/{number}", range(50))
        worker = group.start(slots=4).ready()
        assert sorted(int(payload) for _, payload in client.collect(50)) == list(range(50))
        group.routes(routes + client_route("Added", target.port, "dead/+", config=LOSSLESS))
        worker.send(signal.SIGHUP)
        worker.line("routes reloaded")
        client = mosquitto.client().subscribe("results/Added")

        def gets_some() -> bool:
            client.publish("dead/new", b"new")
            return not client.messages.empty()

        eventually(gets_some, "the route that was added gets nothing", pause_seconds=0.1)
        assert len(dead.requests) <= 4 + 10


@pytest.mark.parametrize("config", [pytest.param("", id="balanced"), pytest.param(LOSSLESS, id="lossless")])
@pytest.mark.parametrize("waiting", [500, pytest.param(60_000, marks=pytest.mark.long)])
def test_a_backlog_is_worked_off_in_order_and_each_message_is_called_once(
    group: Group, mosquitto: Mosquitto, config: str, waiting: int
) -> None:
    """With a dead target beside it; more wait than Receive Maximum and capacity are, of all slots together."""
    with Target(echo) as target, Target(hanging) as dead:
        capacity = "WITH OVERLOAD_CAPACITY 100"
        config = f"{config} {capacity}".strip()
        group.routes(
            client_route("Well", target.port, "in/+", config=config, event=ORDERED)
            + client_route("Dead", dead.port, "dead/#", config=f"{LOSSLESS} {capacity}")
        )
        assert group.start(slots=4).ready().stop() == 0
        client = mosquitto.client()
        publish_all(client, ordered_topic, range(waiting))
        publish_all(client, lambda number: f"dead/{number}", range(waiting))
        group.start(slots=4).ready()
        eventually(are_called(target, waiting), "not all were called", 30 + waiting / 100)
        check(target, waiting)


@pytest.mark.parametrize("count", [360, pytest.param(10_000, marks=pytest.mark.long)])
def test_workers_that_come_and_go_and_a_rolling_restart_lose_double_and_disorder_nothing(
    group: Group, mosquitto: Mosquitto, count: int
) -> None:
    """1 -> 4 -> 1 workers under load, then each is replaced."""
    with Target(slowly) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=5))
        workers: list[Worker] = [group.start(0, slots=4).ready()]
        publisher = mosquitto.client("publisher")
        steps = 9
        stopped = threading.Event()

        def publish() -> None:
            for number in range(count):
                publisher.publish(ordered_topic(number), b"%d" % number, wait=number % 50 == 49)
                if number % (count // (20 * steps) or 1) == 0:
                    stopped.wait(0.05)

        publishing = threading.Thread(target=publish)
        publishing.start()
        workers += [group.start(slot, slots=4).ready() for slot in (1, 2, 3)]
        for _ in range(3):
            assert workers.pop(0).stop() == 0
        for slot in (1, 2, 3):
            workers.append(group.start(slot, slots=4).ready())
            assert workers.pop(0).stop() == 0
        publishing.join()
        eventually(are_called(target, count), "not all were called", 120)
        check(target, count)


@pytest.mark.parametrize("kills", [1, pytest.param(30, marks=pytest.mark.long)])
def test_workers_killed_at_random_lose_and_disorder_nothing_and_send_one_key_a_message(
    group: Group, mosquitto: Mosquitto, kills: int
) -> None:
    """What a killed worker had not acknowledged is called again, from there on in order, so that the newest is last."""
    chance, count = random.Random(3), 60 * (kills + 1)
    with Target(slowly) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED, timeout=1))
        workers = [group.start(slot, slots=4).ready() for slot in (0, 1)]
        client = mosquitto.client("publisher")
        for kill in range(kills + 1):
            publish_all(client, ordered_topic, range(60 * kill, 60 * (kill + 1)))
            if kill < kills:
                slot = chance.randrange(2)
                workers[slot].kill()
                workers[slot] = group.start(slot, slots=4).ready()
        eventually(are_called(target, count), "not all were called", 120)
        assert [worker.stop() for worker in workers] == [0, 0]
        called: dict[int, list[int]] = defaultdict(list)
        keys: dict[bytes, set[str]] = defaultdict(set)
        for seen in target.requests:
            called[int(seen.body) % TOPICS].append(int(seen.body))
            keys[seen.body].add(seen.values("idempotency-key")[0])
        for numbers in called.values():
            first, last = list(dict.fromkeys(numbers)), list(dict.fromkeys(reversed(numbers)))
            assert first == sorted(first) and last == sorted(last, reverse=True)
        assert set(map(int, keys)) == set(range(count))
        assert all(len(some) == 1 for some in keys.values())
        print(f"{len(target.requests)} calls of {count} messages")


def test_no_event_of_a_message_is_called_twice_where_another_one_of_it_waits_at_a_hand_over(
    group: Group, mosquitto: Mosquitto
) -> None:
    """Calls of one event end at once, those of the other one queue behind slow ones."""

    def two_paces(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            if seen.path == "/slow":
                peer.server.stopping.wait(0.05)
            peer.send(reply(seen.body))

    count = 200
    with Target(two_paces) as target:
        route = client_route("Both", target.port, "in/+", event=ORDERED)
        _, event, rest = route.partition("    ADD EVENT Call")
        slow = (event + rest).replace("EVENT Call", "EVENT Slow").replace('ENDPOINT "/"', 'ENDPOINT "/slow"')
        group.routes(route + slow)
        first = group.start(0).ready()
        publish_all(mosquitto.client(), ordered_topic, range(count))
        eventually(lambda: target.requests, "nothing is called")
        second = group.start(1).ready()
        eventually(lambda: len({(seen.path, seen.body) for seen in list(target.requests)}) == 2 * count)
        assert [worker.stop() for worker in (first, second)] == [0, 0]
        called = Counter((seen.path, seen.body) for seen in target.requests)
        assert set(called.values()) == {1}, called.most_common(3)


def test_a_reload_in_the_middle_of_a_hand_over_loses_doubles_and_disorders_nothing(
    group: Group, mosquitto: Mosquitto
) -> None:
    """The holder waits for calls that run, with its slot's next holder there, when both read a route more."""
    gate = Gate()
    with Target(gate.before(echo)) as target, Target(echo) as added:
        in_order = client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED)
        group.routes(in_order)
        first = group.start(0).ready()
        client = mosquitto.client("publisher")
        publish_all(client, ordered_topic, range(100))
        eventually(lambda: target.connections >= TOPICS, "nothing is called")
        second = group.start(1)
        first.wrote("slot 1 of group plant is handed over")
        group.routes(in_order + client_route("Added", added.port, "in/#", config=LOSSLESS))
        for worker in (first, second):
            worker.send(signal.SIGHUP)
            worker.wrote("routes reloaded")
        assert not second.has_written("is taken here")
        publish_all(client, ordered_topic, range(100, 200))
        gate.open.set()
        second.wrote("slot 1 of group plant is taken here")
        eventually(lambda: all(worker.has_written("ready:") for worker in (first, second)))
        publish_all(client, ordered_topic, range(200, 300))
        eventually(are_called(target, 300), "not all were called")
        check(target, 300)
        eventually(lambda: {int(seen.body) for seen in list(added.requests)} >= set(range(200, 300)), "not all were")
        assert max(Counter(seen.body for seen in added.requests).values()) == 1


def test_ready_names_as_many_slots_as_are_served_by_then(group: Group) -> None:
    """Of workers that start at once, one hands slots over, often while it becomes ready."""
    group.routes(client_route("R", 1, "in/+"))
    workers = [group.start(slot, slots=4) for slot in range(4)]
    for worker in workers:
        worker.wrote("ready:")
        ready = next(number for number, line in enumerate(worker.lines) if "ready:" in line)
        before = "".join(worker.lines[:ready])
        gone = before.count("is handed over") + before.count("was taken by another worker")
        served = before.count("is taken here") - gone
        assert f"with {served} of 4 slots" in worker.lines[ready]


def test_a_fresh_group_with_one_of_four_slots_up_misses_no_message(group: Group, mosquitto: Mosquitto) -> None:
    """The first worker holds all slots, so every subscription exists from the beginning."""
    with Target(echo) as target:
        group.routes(client_route("InOrder", target.port, "in/+", event=ORDERED))
        group.start(3, slots=4).ready()
        publish_all(mosquitto.client(), ordered_topic, range(40))
        eventually(are_called(target, 40), "not all were called")
        check(target, 40)


def test_a_planned_stop_has_others_take_over_within_two_seconds(group: Group, mosquitto: Mosquitto) -> None:
    """What is published after the stop is called by the other; `adopt_seconds` is 30."""
    with Target(echo) as target:
        group.routes(client_route("InOrder", target.port, "in/+", config=LOSSLESS, event=ORDERED))
        first, second = group.start(0).ready(), group.start(1).ready()
        client = mosquitto.client()
        before = sum("is taken here" in line for line in second.lines)
        late = threading.Timer(2, second.kill)  # after which nothing is taken over
        late.start()
        first.send(signal.SIGTERM)
        eventually(lambda: sum("is taken here" in line for line in second.lines) > before)
        late.cancel()
        publish_all(client, ordered_topic, range(40))
        eventually(are_called(target, 40), "not all were called")
        assert first.end() == 0
        check(target, 40)


def test_a_worker_whose_records_do_not_come_back_leaves_its_slots(group: Group, mosquitto: Mosquitto) -> None:
    """Its connection for records is open and carries nothing; its sessions are reachable. Two would share a slot."""
    with Target(slowly) as target, Relay(mosquitto.port) as relay:
        room = f"{LOSSLESS} WITH OVERLOAD_CAPACITY 50"
        group.routes(client_route("InOrder", target.port, "in/+", config=room, event=ORDERED, timeout=2))
        cut = group.start(0, adopt_seconds=2, broker=relay.url).ready()
        other = group.start(1, adopt_seconds=2).ready()
        other.wrote("slot 1 of group plant is taken here")
        relay.stall(f"plant-{cut.id()}".encode())
        publisher = mosquitto.client("publisher")
        for first in range(0, 400, 50):
            publish_all(publisher, ordered_topic, range(first, first + 50))
            threading.Event().wait(0.7)
        eventually(are_called(target, 400), "messages are missing", 60)
        eventually(lambda: any("left to others" in line or "was taken by another" in line for line in cut.lines))
        other.wrote("slot 0 of group plant has lost its worker")
        assert not any("lost its connection" in line for line in other.lines)
        first_calls = list(dict.fromkeys(int(seen.body) for seen in target.requests))  # results could not be published
        for topic in range(TOPICS):
            numbers = [number for number in first_calls if number % TOPICS == topic]
            assert numbers == sorted(numbers)
        keys = {seen.body: seen.headers["Idempotency-Key"] for seen in target.requests}
        assert all(seen.headers["Idempotency-Key"] == keys[seen.body] for seen in target.requests)
        assert len(target.requests) - len(keys) <= 50  # what the route held, whose results could not be published
        relay.resume()
        other.wrote("is handed over")  # its share comes back to the first, which has claimed nothing meanwhile
        assert not other.has_written("was taken by another worker")
