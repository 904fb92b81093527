"""Order where processors are scarce: the broker and its bridge process are stopped and continued at random."""

import contextlib
import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import rig
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.http_target import Peer, Target, reply
from tests.support.publishing import Listener
from tests.support.waiting import eventually

TOPICS = 5
ROUTES = ("Ordered", "Lossless", "Paced", "Plain")
SETTINGS = {
    "Ordered": ('WITH ORDERED "true"', ""),
    "Lossless": ('WITH ORDERED "true"', 'WITH OVERLOAD_POLICY "lossless"'),
    "Paced": ('WITH ORDERED "true"', 'WITH RATE_LIMIT "500/s"'),
    "Plain": ("", ""),
}

Books = dict[tuple[str, str], list[int]]
"""Numbers of messages in the order in which they came, by route and last level of the topic."""


def route(name: str, port: int) -> str:
    event, config = SETTINGS[name]
    return f"""
        DEFINE ROUTE {name} WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
            ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY '1000000' {config}
            ADD EVENT E WITH SOURCE_TOPIC "in/{name}/+" WITH METHOD "PUT" WITH ENDPOINT "/{name}/{{topic.3}}"
                WITH BODY "{{payload}}" WITH DESTINATION_TOPIC "out/{name}/{{topic.3}}" {event}
    """


class Subscriber(Listener):
    """Takes results down as they come."""

    def __init__(self, port: int, qos: int) -> None:
        self.results: Books = defaultdict(list)
        self.others: list[bytes] = []
        super().__init__(port, "out/#", qos=qos, client_id=f"subscriber-{qos}", note=self._take_down)

    @property
    def count(self) -> int:
        return sum(map(len, self.results.values())) + len(self.others)

    def _take_down(self, topic: str, payload: bytes) -> None:
        _, name, last = topic.split("/")
        if payload.isdigit():
            self.results[name, last].append(int(payload))
        else:
            self.others.append(payload)


@contextlib.contextmanager
def stopping_at_random(broker: BrokerProcess, chance: random.Random) -> Iterator[None]:
    """Stop and continue some of the processes of a broker until the block ends."""
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(chance.expovariate(5)):
            processes = [broker.pid, *rig.children(broker.pid)]
            victims = chance.sample(processes, chance.randint(1, len(processes)))
            for pid in victims:
                os.kill(pid, signal.SIGSTOP)
            over.wait(chance.expovariate(5))
            for pid in victims:
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_messages_of_a_topic_keep_their_order_and_none_is_missing(tmp_path: Path, count: int) -> None:
    """Also of an event without ORDERED where one worker runs it."""
    arrived: Books = defaultdict(list)
    books = threading.Lock()

    def script(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            _, name, last = seen.path.split("/")
            with books:
                arrived[name, last].append(int(seen.body))
            peer.send(reply(seen.body))

    with Target(script) as target:
        settings: dict[str, Any] = {"processes": 1, "workers": 1, "spool": str(tmp_path / "spool.db")}
        broker = BrokerProcess(tmp_path, "".join(route(name, target.port) for name in ROUTES), **settings)
        broker.start()
        try:
            subscribers = [Subscriber(broker.port, qos) for qos in (0, 1)]
            sender = Wire(broker.port, "sender")
            with stopping_at_random(broker, random.Random(count + 1)):
                for number in range(count):
                    for name in ROUTES:
                        sender.send(publish_packet(f"in/{name}/{number % TOPICS}", b"%d" % number))
                wanted = count * len(ROUTES)
                eventually(lambda: all(one.count >= wanted for one in subscribers), "a result is missing", 600)
            sender.close()
            for subscriber in subscribers:
                subscriber.close()
        finally:
            broker.close()
    expected = {(name, str(last)): list(range(last, count, TOPICS)) for name in ROUTES for last in range(TOPICS)}
    for found in (arrived, *(one.results for one in subscribers)):
        assert found == expected
