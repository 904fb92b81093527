"""Several workers of one group: shares, adoption, takeover, and what a reload or a broker that was away costs."""

import signal
import time
from zlib import crc32

import pytest

from tests.support.http_target import Peer, Target, echo, reply
from tests.support.waiting import eventually
from tests.worker.mosquitto import Client, Mosquitto
from tests.worker.workers import LOSSLESS, Group, Worker, client_route

pytestmark = pytest.mark.mosquitto


def publish_all(client: Client, topic: str, numbers: range) -> None:
    infos = [client.publish(topic.format(number), b"%d" % number, wait=False) for number in numbers]
    for info in infos:
        info.wait_for_publish(30)


def numbers_of(client: Client, count: int) -> list[int]:
    return sorted(int(payload) for _, payload in client.collect(count))


def start_two(group: Group, *routes: str) -> list[Worker]:
    """Start a worker with each of two definitions of a route, by whose servers the slots can be told."""
    workers = []
    for slot, text in enumerate(routes):
        path = group.folder / f"slot-{slot}.lot"
        path.write_text(text)
        workers.append(group.start(slot, routes=str(path)).ready())
    return workers


def test_workers_share_the_messages_and_each_is_sent_once(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as low, Target(echo) as high:
        start_two(group, *(client_route("Echo", target.port, "in/#") for target in (low, high)))
        client = mosquitto.client().subscribe("results/#")
        publish_all(client, "in/{}", range(200))
        assert numbers_of(client, 200) == list(range(200))
        assert low.requests and high.requests
        assert len(low.requests) + len(high.requests) == 200


def test_messages_of_one_topic_of_an_ordered_event_go_to_one_worker_in_order(
    group: Group, mosquitto: Mosquitto
) -> None:
    with Target(echo) as target:
        group.routes(client_route("InOrder", target.port, "in/#", event='WITH ORDERED "true"'))
        workers = [group.start(slot).ready() for slot in (0, 1)]
        client = mosquitto.client().subscribe("results/#")
        for number in range(100):
            client.publish(f"in/{number % 7}", b"%d" % number, wait=False)
        assert numbers_of(client, 100) == list(range(100))
        assert len(target.requests) == 100
        by_topic: dict[str, list[int]] = {}
        for seen in target.requests:
            by_topic.setdefault(seen.values("x-topic")[0], []).append(int(seen.body))
        assert all(numbers == sorted(numbers) for numbers in by_topic.values())
        assert len({crc32(topic.encode()) % 2 for topic in by_topic}) == 2  # both slots had some
        assert all(worker.stop() == 0 for worker in workers)


def test_slots_of_a_killed_worker_are_taken_and_handed_to_the_next_one(group: Group, mosquitto: Mosquitto) -> None:
    """Its share of ORDERED topics arrives, and what the broker keeps for it; nothing is left for another one."""
    with Target(echo) as target:
        ordered = client_route("InOrder", target.port, "ordered/#", event='WITH ORDERED "true"', timeout=1)
        group.routes(client_route("Safe", target.port, "safe/#", config=LOSSLESS) + ordered)
        first, second = group.start(0).ready(), group.start(1).ready()
        client = mosquitto.client().subscribe("results/#")
        second.kill()
        publish_all(client, "safe/{}", range(40))
        publish_all(client, "ordered/{}", range(40, 80))
        assert numbers_of(client, 80) == list(range(80))
        first.wrote("slot 1 of group plant has lost its worker and is taken here; ORDERED events wait for 1 s")
        publish_all(client, "ordered/{}", range(80, 120))
        assert numbers_of(client, 40) == list(range(80, 120))
        third = group.start(1).ready()
        first.wrote("slot 1 of group plant is handed over")
        third.wrote("slot 1 of group plant is taken here")
        publish_all(client, "safe/{}", range(120, 140))
        publish_all(client, "ordered/{}", range(140, 160))
        assert numbers_of(client, 40) == list(range(120, 160))
        assert sorted({int(seen.body) for seen in target.requests}) == list(range(160))


POLL = """
DEFINE ROUTE Poll WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
    ADD EVENT Ask WITH EVERY "1s" WITH METHOD "GET" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "results/Poll"
"""


def test_workers_share_the_rate_of_a_route_and_the_last_one_has_it_all(group: Group, mosquitto: Mosquitto) -> None:
    arrived: list[float] = []

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            arrived.append(time.monotonic())
            peer.send(reply(b""))

    with Target(script) as target:
        group.routes(client_route("Paced", target.port, "in", config='WITH RATE_LIMIT "20/s"'))
        first, second = (group.start(slot, adopt_seconds=1).ready() for slot in (0, 1))
        for worker in (first, second):
            eventually(lambda worker=worker: "RATE_LIMIT is shared by 2 workers" in "".join(worker.lines))  # type: ignore[misc]
        client = mosquitto.client().subscribe("results/#")
        began = time.monotonic()
        for _ in range(40):
            client.publish("in", b"1", wait=False)
        client.collect(40)
        assert arrived[-1] - began >= (40 / 2 - 1) / 10
        assert second.stop() == 0
        first.line("each RATE_LIMIT is shared by 1 worker")


def test_an_interval_is_run_by_one_worker_and_by_the_next_one_when_it_is_gone(group: Group) -> None:
    with Target(echo) as target:
        group.routes(POLL.format(port=target.port))
        workers = [group.start(slot, adopt_seconds=1).ready() for slot in (0, 1)]
        leader = min(workers, key=lambda worker: worker.id())
        other = next(worker for worker in workers if worker is not leader)
        before = sum("answered" in line for line in other.lines)
        runs = len(target.requests)
        eventually(lambda: len(target.requests) >= runs + 3, "no worker runs it")
        assert sum("answered" in line for line in other.lines) <= before + 1  # it was under way
        leader.kill()
        before = len(target.requests)
        eventually(lambda: len(target.requests) >= before + 2, "the next worker does not run it")


def test_workers_that_prefer_one_slot_share_all_the_same(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        group.routes(client_route("Safe", target.port, "in/#", config=LOSSLESS))
        first, second = group.start(0).ready(), group.start(0).ready()
        second.wrote("of group plant is taken here")
        client = mosquitto.client().subscribe("results/#")
        publish_all(client, "in/{}", range(20))
        assert numbers_of(client, 20) == list(range(20))
        assert [worker.stop() for worker in (first, second)] == [0, 0]


def test_a_reload_subscribes_what_is_new_and_gives_up_what_is_gone(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        group.routes(client_route("Echo", target.port, "old/#"))
        worker = group.start(0, slots=1).ready()
        client = mosquitto.client().subscribe("results/#")
        group.routes(
            client_route("Echo", target.port, "new/#") + client_route("Safe", target.port, "safe", config=LOSSLESS)
        )
        worker.send(signal.SIGHUP)
        worker.line("routes reloaded")
        eventually(lambda: "$share/plant:Echo/old/#" in mosquitto.log, "nothing was unsubscribed")
        client.publish("old/1", b"old")
        client.publish("new/1", b"new")
        assert client.next() == ("results/Echo", b"new")

        def is_subscribed() -> bool:  # by a session of its own, which no line tells
            client.publish("safe", b"safe")
            return not client.messages.empty()

        eventually(is_subscribed, "the lossless route has no subscription", pause_seconds=0.1)
        assert client.next() == ("results/Safe", b"safe")


def test_no_message_is_lost_by_reloads_that_change_filters(group: Group, mosquitto: Mosquitto) -> None:
    with Target(echo) as target:
        group.routes(client_route("Echo", target.port, "in/+"))
        worker = group.start(0, slots=1).ready()
        client = mosquitto.client().subscribe("results/#")
        topics = ["in/#", "in/+", "in/+/#", "in/+"]
        for turn, topic in enumerate(topics):
            group.routes(client_route("Echo", target.port, topic, config=LOSSLESS if turn % 2 else ""))
            worker.send(signal.SIGHUP)
            for number in range(100):
                client.publish(f"in/{number}", b"%d" % (100 * turn + number), wait=False)
            worker.line("routes reloaded")
        wanted = set(range(400))
        seen: set[int] = set()
        while seen != wanted:
            topic, payload = client.next()
            if topic == "results/Echo":
                seen.add(int(payload))


@pytest.mark.parametrize("config", [pytest.param("", id="balanced"), pytest.param(LOSSLESS, id="lossless")])
def test_a_broker_that_was_away_costs_no_message_and_calls_go_on_meanwhile(
    group: Group, mosquitto: Mosquitto, config: str
) -> None:
    """What is under way when the connection is lost is not sent again, although the broker sends it again."""

    def late(peer: Peer) -> None:
        while peer.request() is not None:
            peer.server.stopping.wait(0.5)
            peer.send(reply(b"done"))

    with Target(late) as target:
        group.routes(client_route("Slow", target.port, "in/#", config=config))
        worker = group.start(0, slots=1).ready()
        client = mosquitto.client("watcher").subscribe("results/#")
        publish_all(client, "in/{}", range(20))
        eventually(lambda: len(target.requests) == 20, "not all were sent")
        mosquitto.save()
        mosquitto.kill()
        worker.line("lost its connection")
        mosquitto.start()
        assert client.collect(20) == [("results/Slow", b"done")] * 20
        worker.wrote("plant-0:Slow is connected again")  # mosquitto 2.0.11 does not write shared subscriptions
        client.publish("in/last", b"x")
        assert client.next()[1] == b"done"
        assert len(target.requests) == 21
