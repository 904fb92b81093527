"""Several workers of one group: shares, adoption, takeover, and what a reload or a broker that was away costs."""

import signal

import pytest

from tests.support.http_target import Target, echo
from tests.support.waiting import eventually
from tests.worker.workers import LOSSLESS, ORDERED, Group, client_route, publish_all, slowly

pytestmark = pytest.mark.mosquitto

POLL = """
DEFINE ROUTE Poll WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
    ADD EVENT Ask WITH EVERY "1s" WITH METHOD "GET" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "results/Poll"
"""


def publish(group: Group, topic: str, numbers: range) -> None:
    publish_all(group.client, lambda number: f"{topic}/{number}", numbers)


def check_results(group: Group, numbers: range) -> None:
    """The next results are of these numbers."""
    assert sorted(int(payload) for _, payload in group.client.collect(len(numbers))) == list(numbers)


def test_workers_share_the_messages_and_each_is_sent_once(group: Group) -> None:
    """Each worker has a server of its own, which shows what it took."""
    with Target(echo) as low, Target(echo) as high:
        for slot, target in enumerate((low, high)):
            path = group.folder / f"slot-{slot}.lot"
            path.write_text(client_route("Echo", target.port, "in/#"))
            group.start(slot, routes=str(path)).ready()
        publish(group, "in", range(200))
        check_results(group, range(200))
        assert low.requests and high.requests
        assert len(low.requests) + len(high.requests) == 200


def test_slots_of_a_killed_worker_are_taken_and_handed_to_the_next_one(group: Group, target: Target) -> None:
    """Its share of ORDERED topics arrives, and what the broker keeps for it; nothing is left for another one."""
    group.routes(
        client_route("Safe", target.port, "safe/#", config=LOSSLESS),
        client_route("InOrder", target.port, "ordered/#", event=ORDERED, timeout=1),
    )
    first, second = group.start(0).ready(), group.start(1).ready()
    second.kill()
    publish(group, "safe", range(40))
    publish(group, "ordered", range(40, 80))
    check_results(group, range(80))
    first.wrote("slot 1 of group plant has lost its worker and is taken here; ORDERED events wait for 1 s")
    publish(group, "ordered", range(80, 120))
    check_results(group, range(80, 120))
    third = group.start(1).ready()
    first.wrote("slot 1 of group plant is handed over")
    third.wrote("slot 1 of group plant is taken here")
    publish(group, "safe", range(120, 140))
    publish(group, "ordered", range(140, 160))
    check_results(group, range(120, 160))
    assert sorted({int(seen.body) for seen in target.requests}) == list(range(160))


def test_an_interval_is_run_by_one_worker_and_by_the_next_one_when_it_is_gone(group: Group, target: Target) -> None:
    group.routes(POLL.format(port=target.port))
    workers = [group.start(slot, adopt_seconds=1).ready() for slot in (0, 1)]
    leader, other = sorted(workers, key=lambda worker: worker.id())

    def wait_for_runs(more: int) -> None:
        runs = len(target.requests)
        eventually(lambda: len(target.requests) >= runs + more, "no worker runs it")

    before = sum("answered" in line for line in other.lines)
    wait_for_runs(3)
    assert sum("answered" in line for line in other.lines) <= before + 1  # it was under way
    leader.kill()
    wait_for_runs(2)


def test_workers_that_prefer_one_slot_share_all_the_same(group: Group, target: Target) -> None:
    group.routes(client_route("Safe", target.port, "in/#", config=LOSSLESS))
    first, second = group.start(0).ready(), group.start(0).ready()
    second.wrote("of group plant is taken here")
    publish(group, "in", range(20))
    check_results(group, range(20))
    first.stop()
    second.stop()


def test_a_reload_subscribes_what_is_new_and_gives_up_what_is_gone(group: Group, target: Target) -> None:
    group.routes(client_route("Echo", target.port, "old/#"))
    worker = group.start(0, slots=1).ready()
    group.routes(client_route("Echo", target.port, "new/#"), client_route("Safe", target.port, "safe", config=LOSSLESS))
    worker.send(signal.SIGHUP)
    worker.line("routes reloaded")
    eventually(lambda: "$share/plant:Echo/old/#" in group.broker.log, "nothing was unsubscribed")
    group.client.publish("old/1", b"old")
    group.client.publish("new/1", b"new")
    assert group.client.next() == ("results/Echo", b"new")

    def is_subscribed() -> bool:  # by a session of its own, which no line names
        group.client.publish("safe", b"safe")
        return not group.client.messages.empty()

    eventually(is_subscribed, "the lossless route has no subscription", pause_seconds=0.1)
    assert group.client.next() == ("results/Safe", b"safe")


def test_no_message_is_lost_by_reloads_that_change_filters(group: Group, target: Target) -> None:
    group.routes(client_route("Echo", target.port, "in/+"))
    worker = group.start(0, slots=1).ready()
    for turn, topic in enumerate(["in/#", "in/+", "in/+/#", "in/+"]):
        group.routes(client_route("Echo", target.port, topic, config=LOSSLESS if turn % 2 else ""))
        worker.send(signal.SIGHUP)
        for number in range(100 * turn, 100 * turn + 100):
            group.client.publish(f"in/{number}", b"%d" % number, wait=False)
        worker.line("routes reloaded")
    left = set(range(400))
    while left:
        topic, payload = group.client.next()
        left -= {int(payload)} if topic == "results/Echo" else set()


@pytest.mark.parametrize("config", [pytest.param("", id="balanced"), pytest.param(LOSSLESS, id="lossless")])
def test_a_broker_that_was_away_costs_no_message_and_calls_go_on_meanwhile(group: Group, config: str) -> None:
    """What is under way when the connection is lost is not sent again, although the broker sends it again."""
    with Target(slowly(0.5)) as target:
        group.routes(client_route("Slow", target.port, "in/#", config=config))
        worker = group.start(0, slots=1).ready()
        publish(group, "in", range(20))
        eventually(lambda: len(target.requests) == 20, "not all were sent")
        group.broker.save()
        group.broker.kill()
        worker.line("lost its connection")
        group.broker.start()
        check_results(group, range(20))
        worker.wrote("plant-0:Slow is connected again")  # mosquitto 2.0.11 does not write shared subscriptions
        publish(group, "in", range(20, 21))
        check_results(group, range(20, 21))
        assert len(target.requests) == 21
