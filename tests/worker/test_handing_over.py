"""Slots change hands, sessions have backlogs, targets are dead: nothing is lost, doubled or out of order."""

import random
import signal
import threading
from collections import Counter, defaultdict

import pytest

from tests.support.gate import Gate
from tests.support.http_target import Peer, Target, echo, reply
from tests.support.waiting import eventually
from tests.worker.relay import Relay
from tests.worker.workers import (
    LOSSLESS,
    TOPICS,
    Group,
    check,
    check_keys,
    client_route,
    hanging,
    in_order,
    ordered_topic,
    publish_all,
    slowly,
    wait_for_calls,
)

pytestmark = pytest.mark.mosquitto


@pytest.mark.parametrize("waiting", [300, pytest.param(3000, marks=pytest.mark.long)])
def test_a_start_depends_on_no_target_however_many_messages_wait_for_a_dead_one(
    group: Group, target: Target, waiting: int
) -> None:
    """Capacity 10, more than that waiting: ready, the healthy route works, and so does one that a reload adds."""
    with Target(hanging) as dead:
        routes = client_route("Dead", dead.port, "dead/#", config=f"{LOSSLESS} WITH OVERLOAD_CAPACITY 10")
        routes += client_route("Well", target.port, "well/#", config=LOSSLESS)
        group.routes(routes)
        group.start(slots=4).ready().stop()
        publish_all(group.client, lambda number: f"dead/{number}", range(waiting))
        publish_all(group.client, lambda number: f"well/{number}", range(50))
        worker = group.start(slots=4).ready()
        assert sorted(int(payload) for _, payload in group.client.collect(50)) == list(range(50))
        group.routes(routes, client_route("Added", target.port, "dead/+", config=LOSSLESS))
        worker.send(signal.SIGHUP)
        worker.line("routes reloaded")

        def gets_some() -> bool:
            group.client.publish("dead/new", b"new")
            return not group.client.messages.empty()

        eventually(gets_some, "the route that was added gets nothing", pause_seconds=0.1)
        assert len(dead.requests) <= 4 + 10


@pytest.mark.parametrize("config", [pytest.param("", id="balanced"), pytest.param(LOSSLESS, id="lossless")])
@pytest.mark.parametrize("waiting", [500, pytest.param(60_000, marks=pytest.mark.long)])
def test_a_backlog_is_worked_off_in_order_and_each_message_is_called_once(
    group: Group, target: Target, config: str, waiting: int
) -> None:
    """With a dead target beside it; more wait than Receive Maximum and capacity are, of all slots together."""
    with Target(hanging) as dead:
        capacity = "WITH OVERLOAD_CAPACITY 100"
        group.routes(
            in_order(target, config=f"{config} {capacity}".strip()),
            client_route("Dead", dead.port, "dead/#", config=f"{LOSSLESS} {capacity}"),
        )
        group.start(slots=4).ready().stop()
        publish_all(group.client, ordered_topic, range(waiting))
        publish_all(group.client, lambda number: f"dead/{number}", range(waiting))
        group.start(slots=4).ready()
        wait_for_calls(target, waiting, 30 + waiting / 100)
        check(target, waiting)


@pytest.mark.parametrize("count", [360, pytest.param(10_000, marks=pytest.mark.long)])
def test_workers_that_come_and_go_and_a_rolling_restart_lose_double_and_disorder_nothing(
    group: Group, count: int
) -> None:
    """1 -> 4 -> 1 workers under load, then each is replaced."""
    with Target(slowly(0.005)) as target:
        group.routes(in_order(target, timeout=5))
        workers = [group.start(0, slots=4).ready()]
        publisher = group.broker.client("publisher")
        pause = threading.Event()

        def publish() -> None:
            for number in range(count):
                publisher.publish(ordered_topic(number), b"%d" % number, wait=number % 50 == 49)
                if number % (count // 180) == 0:
                    pause.wait(0.05)

        publishing = threading.Thread(target=publish)
        publishing.start()
        workers += [group.start(slot, slots=4).ready() for slot in (1, 2, 3)]
        for _ in range(3):
            workers.pop(0).stop()
        for slot in (1, 2, 3):
            workers.append(group.start(slot, slots=4).ready())
            workers.pop(0).stop()
        publishing.join()
        wait_for_calls(target, count, 120)
        check(target, count)


@pytest.mark.parametrize("kills", [1, pytest.param(30, marks=pytest.mark.long)])
def test_workers_killed_at_random_lose_and_disorder_nothing_and_send_one_key_a_message(
    group: Group, kills: int
) -> None:
    """What a killed worker had not acknowledged is called again, from there on in order, so that the newest is last."""
    chance, count = random.Random(3), 60 * (kills + 1)
    with Target(slowly(0.005)) as target:
        group.routes(in_order(target, timeout=1))
        workers = [group.start(slot, slots=4).ready() for slot in (0, 1)]
        for kill in range(kills + 1):
            publish_all(group.client, ordered_topic, range(60 * kill, 60 * (kill + 1)))
            if kill < kills:
                slot = chance.randrange(2)
                workers[slot].kill()
                workers[slot] = group.start(slot, slots=4).ready()
        wait_for_calls(target, count, 120)
        for worker in workers:
            worker.stop()
        called: dict[int, list[int]] = defaultdict(list)
        for seen in target.requests:
            called[int(seen.body) % TOPICS].append(int(seen.body))
        for numbers in called.values():
            first, last = list(dict.fromkeys(numbers)), list(dict.fromkeys(reversed(numbers)))
            assert first == sorted(first) and last == sorted(last, reverse=True)
        assert {number for numbers in called.values() for number in numbers} == set(range(count))
        check_keys(target)


def test_no_event_of_a_message_is_called_twice_where_another_one_of_it_waits_at_a_hand_over(group: Group) -> None:
    """Calls of one event end at once, those of the other one queue behind slow ones."""

    def two_paces(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            if seen.path == "/slow":
                peer.server.stopping.wait(0.05)
            peer.send(reply(seen.body))

    count = 200
    with Target(two_paces) as target:
        route = in_order(target, config="")
        _, event, rest = route.partition("    ADD EVENT Call")
        slow = (event + rest).replace("EVENT Call", "EVENT Slow").replace('ENDPOINT "/"', 'ENDPOINT "/slow"')
        group.routes(route, slow)
        first = group.start(0).ready()
        publish_all(group.client, ordered_topic, range(count))
        eventually(lambda: target.requests, "nothing is called")
        second = group.start(1).ready()
        eventually(lambda: len({(seen.path, seen.body) for seen in list(target.requests)}) == 2 * count)
        first.stop()
        second.stop()
        called = Counter((seen.path, seen.body) for seen in target.requests)
        assert set(called.values()) == {1}, called.most_common(3)


def test_a_reload_in_the_middle_of_a_hand_over_loses_doubles_and_disorders_nothing(group: Group) -> None:
    """The holder waits for calls that run, with its slot's next holder there, when both read a route more."""
    gate = Gate()
    with Target(gate.before(echo)) as target, Target(echo) as added:
        group.routes(in_order(target))
        first = group.start(0).ready()
        publish_all(group.client, ordered_topic, range(100))
        eventually(lambda: target.connections >= TOPICS, "nothing is called")
        second = group.start(1)
        first.wrote("slot 1 of group plant is handed over")
        group.routes(in_order(target), client_route("Added", added.port, "in/#", config=LOSSLESS))
        for worker in (first, second):
            worker.send(signal.SIGHUP)
            worker.wrote("routes reloaded")
        assert not second.has_written("is taken here")
        publish_all(group.client, ordered_topic, range(100, 200))
        gate.open.set()
        second.wrote("slot 1 of group plant is taken here")
        for worker in (first, second):
            worker.wrote("ready:")
        publish_all(group.client, ordered_topic, range(200, 300))
        wait_for_calls(target, 300)
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
        assert f"with {before.count('is taken here') - gone} of 4 slots" in worker.lines[ready]


def test_a_planned_stop_has_others_take_over_within_two_seconds(group: Group, target: Target) -> None:
    """What is published after the stop is called by the other; `adopt_seconds` is 30."""
    group.routes(in_order(target))
    first, second = group.start(0).ready(), group.start(1).ready()
    before = sum("is taken here" in line for line in second.lines)
    late = threading.Timer(2, second.kill)  # after which nothing is taken over
    late.start()
    first.send(signal.SIGTERM)
    eventually(lambda: sum("is taken here" in line for line in second.lines) > before)
    late.cancel()
    publish_all(group.client, ordered_topic, range(40))
    wait_for_calls(target, 40)
    first.ended()
    check(target, 40)


def test_a_worker_whose_records_do_not_come_back_leaves_its_slots(group: Group) -> None:
    """Its connection for records is open and carries nothing; its sessions are reachable. Two would share a slot."""
    with Target(slowly(0.005)) as target, Relay(group.broker.port) as relay:
        group.routes(in_order(target, config=f"{LOSSLESS} WITH OVERLOAD_CAPACITY 50", timeout=2))
        cut = group.start(0, adopt_seconds=2, broker=relay.url).ready()
        other = group.start(1, adopt_seconds=2).ready()
        other.wrote("slot 1 of group plant is taken here")
        relay.stall(f"plant-{cut.id()}".encode())
        for first in range(0, 400, 50):
            publish_all(group.client, ordered_topic, range(first, first + 50))
            threading.Event().wait(0.7)
        wait_for_calls(target, 400, 60)
        cut.wrote("left to others", "was taken by another")
        other.wrote("slot 0 of group plant has lost its worker")
        assert not other.has_written("lost its connection")
        first_calls = list(dict.fromkeys(int(seen.body) for seen in target.requests))  # results could not be published
        for topic in range(TOPICS):
            numbers = [number for number in first_calls if number % TOPICS == topic]
            assert numbers == sorted(numbers)
        check_keys(target)
        assert len(target.requests) - 400 <= 50  # what the route held, whose results could not be published
        relay.resume()
        other.wrote("is handed over")  # its share comes back to the first, which has claimed nothing meanwhile
        assert not other.has_written("was taken by another worker")
