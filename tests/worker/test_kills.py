"""Whatever is killed, no message that the broker has acknowledged is lost, on any route."""

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.http_target import Target
from tests.support.waiting import eventually
from tests.worker.mosquitto import Client, Mosquitto
from tests.worker.workers import LOSSLESS, ORDERED, Group, Worker, check_keys, client_route, publish_all, slowly

pytestmark = pytest.mark.mosquitto

ROUTES = ("Balanced", "Lossless", "InOrder")
SIZES = pytest.mark.parametrize("size", [300, pytest.param(6000, marks=pytest.mark.long)])


class Ledger:
    """What was published, to the routes in turn, and what came of it."""

    def __init__(self, broker: Mosquitto) -> None:
        self._publisher: Client = broker.client("publisher")
        self._watcher: Client = broker.client("watcher").subscribe("results/#")
        self._left: set[tuple[str, int]] = set()
        self._next = 0
        self.failures = 0

    def publish(self, count: int) -> None:
        """Publish so many messages, and wait until the broker has them."""
        numbers = range(self._next, self._next + count)
        self._next += count
        self._left |= {(ROUTES[number % 3], number) for number in numbers}
        publish_all(self._publisher, lambda number: f"in/{ROUTES[number % 3]}/{number}", numbers)

    def settle(self) -> None:
        """Wait until something has come of every message."""
        while self._left:
            topic, payload = self._watcher.next(60)
            self.failures += not payload.isdigit()
            number = payload if payload.isdigit() else json.loads(payload)["source_topic"].rpartition("/")[2]
            self._left.discard((topic.removeprefix("results/"), int(number)))


@contextmanager
def running(group: Group) -> Iterator[tuple[Target, Ledger, list[Worker]]]:
    """Two workers that serve a balanced, a lossless, and a lossless ORDERED route, which waits 2 s at a take-over.

    In the end something has come of every message, and no call has failed.
    """
    with Target(slowly(0.02)) as target:
        group.routes(
            client_route("Balanced", target.port, "in/Balanced/+"),
            client_route("Lossless", target.port, "in/Lossless/+", config=LOSSLESS),
            client_route("InOrder", target.port, "in/InOrder/+", config=LOSSLESS, event=ORDERED, timeout=2),
        )
        workers = [group.start(slot) for slot in (0, 1)]
        for worker in workers:
            worker.ready()
        ledger = Ledger(group.broker)
        yield target, ledger, workers
        ledger.settle()
        assert ledger.failures == 0
        check_keys(target)


@SIZES
def test_workers_killed_at_random_lose_nothing(group: Group, size: int) -> None:
    kills, chance = (2 if size < 1000 else 8), random.Random(7)
    with running(group) as (_, ledger, workers):
        for _ in range(kills):
            publishing = threading.Thread(target=ledger.publish, args=(size // kills,))
            publishing.start()
            threading.Event().wait(chance.random())
            slot = chance.randrange(2)
            workers[slot].kill()
            workers[slot] = group.start(slot)
            publishing.join()
            workers[slot].ready()


def kill_both(group: Group, workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for slot, worker in enumerate(workers):
        worker.end()
        group.start(slot).ready()


def kill_broker(group: Group, workers: list[Worker]) -> None:
    """Kill it once it has written everything: what it acknowledges later, it loses itself."""
    for worker in workers:
        worker.send(signal.SIGSTOP)
    group.broker.client().publish("nothing", b"")  # what the workers have sent was read before
    group.broker.save()
    group.broker.kill()
    for worker in workers:
        worker.send(signal.SIGCONT)
    group.broker.start()
    for worker in workers:  # mosquitto 2.0.11 does not write shared subscriptions: they start again
        for _ in range(len(ROUTES) + 1):
            worker.line("is connected again")


@pytest.mark.parametrize(
    "kill", [pytest.param(kill_both, id="both workers at once"), pytest.param(kill_broker, id="the broker")]
)
@SIZES
def test_other_kills_lose_nothing(group: Group, kill: Callable[[Group, list[Worker]], None], size: int) -> None:
    with running(group) as (target, ledger, workers):
        ledger.publish(size)
        eventually(lambda: len(target.requests) > 50, "nothing is sent")
        kill(group, workers)
        ledger.publish(size // 10)


@pytest.mark.parametrize("size", [150, pytest.param(3000, marks=pytest.mark.long)])
def test_what_a_worker_held_that_never_comes_back_arrives_within_adopt_seconds_and_ten(group: Group, size: int) -> None:
    with Target(slowly(0.02)) as target:
        group.routes(*(client_route(name, target.port, f"in/{name}/+", config=LOSSLESS) for name in ROUTES))
        workers = [group.start(slot, adopt_seconds=1).ready() for slot in (0, 1)]
        ledger = Ledger(group.broker)
        ledger.publish(size)
        workers[1].kill()
        ledger.publish(size)
        late = threading.Timer(1 + 10, group.broker.kill)  # after which nothing arrives
        late.start()
        ledger.settle()
        late.cancel()
        check_keys(target)
