"""Whatever is killed, no message that the broker has acknowledged is lost, on any route."""

import json
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.http_target import Peer, Target, reply
from tests.support.waiting import eventually
from tests.worker.mosquitto import Client, Mosquitto
from tests.worker.workers import LOSSLESS, Group, Worker, client_route

pytestmark = pytest.mark.mosquitto

ROUTES = ("Balanced", "Lossless", "InOrder")
SIZES = [300, pytest.param(6000, marks=pytest.mark.long)]
CALL_SECONDS = 0.02


def slowly(peer: Peer) -> None:
    """Answer each request with its body, after 20 ms."""
    while (seen := peer.request()) is not None:
        peer.server.stopping.wait(CALL_SECONDS)
        peer.send(reply(seen.body))


class Ledger:
    """What was published on each route, and what came of it."""

    def __init__(self, publisher: Client, watcher: Client) -> None:
        self._publisher = publisher
        self._watcher = watcher.subscribe("results/#")
        self.failures = 0
        self._left: dict[str, set[int]] = {name: set() for name in ROUTES}
        self._next = 0

    def publish(self, count: int) -> None:
        """Publish so many messages, to the routes in turn, and wait until the broker has them."""
        infos = []
        for number in range(self._next, self._next + count):
            name = ROUTES[number % len(ROUTES)]
            self._left[name].add(number)
            infos.append(self._publisher.publish(f"in/{name}/{number}", b"%d" % number, wait=False))
        self._next += count
        for info in infos:
            info.wait_for_publish(60)
            assert info.is_published()

    def settle(self) -> None:
        """Wait until something has come of every message."""
        while any(self._left.values()):
            topic, payload = self._watcher.next(60)
            name = topic.removeprefix("results/")
            if payload.isdigit():
                self._left[name].discard(int(payload))
            else:
                self.failures += 1
                self._left[name].discard(int(json.loads(payload)["source_topic"].rpartition("/")[2]))


@contextmanager
def running(group: Group, mosquitto: Mosquitto) -> Iterator[tuple[Target, Ledger, list[Worker]]]:
    """Two workers that serve a balanced, a lossless, and a lossless ORDERED route, which waits 2 s at a take-over."""
    with Target(slowly) as target:
        ordered = 'WITH ORDERED "true"'
        group.routes(
            client_route("Balanced", target.port, "in/Balanced/+")
            + client_route("Lossless", target.port, "in/Lossless/+", config=LOSSLESS)
            + client_route("InOrder", target.port, "in/InOrder/+", config=LOSSLESS, event=ordered, timeout=2)
        )
        workers = [group.start(slot) for slot in (0, 1)]
        for worker in workers:
            worker.ready()
        yield target, Ledger(mosquitto.client("publisher"), mosquitto.client("watcher")), workers


def check_keys(target: Target) -> None:
    """Each lossless message was always sent with one key, and every other message with another."""
    keys: dict[bytes, set[str]] = defaultdict(set)
    for seen in target.requests:
        if values := seen.values("idempotency-key"):
            keys[seen.body].add(values[0])
    assert keys and all(len(some) == 1 for some in keys.values())
    assert len(set.union(*keys.values())) == len(keys)


@pytest.mark.parametrize("size", SIZES)
def test_workers_killed_at_random_lose_nothing(group: Group, mosquitto: Mosquitto, size: int) -> None:
    kills, chance = (2 if size < 1000 else 8), random.Random(7)
    with running(group, mosquitto) as (target, ledger, workers):
        for _ in range(kills):
            publishing = threading.Thread(target=ledger.publish, args=(size // kills,))
            publishing.start()
            threading.Event().wait(chance.random())
            slot = chance.randrange(2)
            workers[slot].kill()
            workers[slot] = group.start(slot)
            publishing.join()
            workers[slot].ready()
        ledger.settle()
        assert ledger.failures == 0
        check_keys(target)


def kill_both(group: Group, mosquitto: Mosquitto, workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for slot, worker in enumerate(workers):
        worker.end()
        group.start(slot).ready()


def kill_broker(group: Group, mosquitto: Mosquitto, workers: list[Worker]) -> None:
    """Kill it once it has written everything: what it acknowledges later, it loses itself."""
    for worker in workers:
        worker.send(signal.SIGSTOP)
    mosquitto.client().publish("nothing", b"")  # what the workers have sent was read before
    mosquitto.save()
    mosquitto.kill()
    for worker in workers:
        worker.send(signal.SIGCONT)
    mosquitto.start()
    for worker in workers:  # mosquitto 2.0.11 does not write shared subscriptions: they start again
        for _ in range(len(ROUTES) + 1):
            worker.line("is connected again")


@pytest.mark.parametrize(
    "kill", [pytest.param(kill_both, id="both workers at once"), pytest.param(kill_broker, id="the broker")]
)
@pytest.mark.parametrize("size", SIZES)
def test_other_kills_lose_nothing(
    group: Group, mosquitto: Mosquitto, kill: Callable[[Group, Mosquitto, list[Worker]], None], size: int
) -> None:
    with running(group, mosquitto) as (target, ledger, workers):
        ledger.publish(size)
        eventually(lambda: len(target.requests) > 50, "nothing is sent")
        kill(group, mosquitto, workers)
        ledger.publish(size // 10)
        ledger.settle()
        assert ledger.failures == 0
        check_keys(target)


@pytest.mark.parametrize("size", [150, pytest.param(3000, marks=pytest.mark.long)])
def test_what_a_worker_held_that_never_comes_back_arrives_within_adopt_seconds_and_ten(
    group: Group, mosquitto: Mosquitto, size: int
) -> None:
    with Target(slowly) as target:
        group.routes("".join(client_route(name, target.port, f"in/{name}/+", config=LOSSLESS) for name in ROUTES))
        workers = [group.start(slot, adopt_seconds=1).ready() for slot in (0, 1)]
        ledger = Ledger(mosquitto.client("publisher"), mosquitto.client("watcher"))
        ledger.publish(size)
        workers[1].kill()
        ledger.publish(size)
        late = threading.Timer(1 + 10, mosquitto.kill)  # after which nothing arrives
        late.start()
        ledger.settle()
        late.cancel()
        check_keys(target)
