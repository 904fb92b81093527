"""BATCH_SIZE and BREAKER in a worker: a message is acknowledged after its batch, and a stop or kill loses none."""

import json

import pytest

from tests.support.http_recorder import recording
from tests.support.http_target import Seen
from tests.support.waiting import eventually
from tests.worker.workers import Group

pytestmark = pytest.mark.mosquitto
ROUTE = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "{policy}" WITH BREAKER "2 per 30s"
    ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{batch}}"
        WITH BATCH_SIZE 20 WITH BATCH_SECONDS {seconds} WITH DESTINATION_TOPIC "results/R"
"""


def publish(group: Group, numbers: range) -> None:
    for number in numbers:
        group.client.publish(f"in/{number % 3}", b"%d" % number)


@pytest.mark.parametrize("policy", ["balanced", "lossless"])
def test_messages_are_acknowledged_after_their_batch_whether_the_worker_is_stopped_or_killed(
    group: Group, policy: str
) -> None:
    sent: list[int] = []

    def answer(seen: Seen) -> tuple[int, bytes]:
        sent.extend(json.loads(seen.body))
        assert ("Idempotency-Key" in seen.headers) == (policy == "lossless")
        return 200, b""

    with recording() as target:
        target.answer = answer
        group.routes(ROUTE.format(url=target.url, policy=policy, seconds=3600))
        worker = group.start(0).ready()
        publish(group, range(45))
        group.client.collect(2)
        assert len(sent) == 40
        worker.kill()
        worker = group.start(0).ready()
        publish(group, range(45, 50))
        worker.stop()
        group.routes(ROUTE.format(url=target.url, policy=policy, seconds=1))
        group.start(0).ready()
        eventually(lambda: set(sent) == set(range(50)), "a message is lost")


def test_the_status_of_a_worker_says_that_a_breaker_is_open(group: Group) -> None:
    with recording() as target:
        target.answer = lambda _: (503, b"")
        group.routes(ROUTE.format(url=target.url, policy="lossless", seconds=1))
        worker = group.start(0).ready()
        publish(group, range(40))
        worker.wrote("route R: the breaker is open: the target failed 2 times within 30 s")
