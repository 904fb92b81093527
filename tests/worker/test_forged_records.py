"""Records of a group that anyone may publish where the broker has no ACL: what is kept and logged has bounds."""

import json

import pytest

from tests.support.http_target import Target
from tests.support.waiting import eventually
from tests.worker.workers import LOSSLESS, Group, client_route

pytestmark = pytest.mark.mosquitto


@pytest.mark.parametrize(("count", "most"), [(600, 64), pytest.param(30_000, 1024, marks=pytest.mark.long)])
def test_a_flood_of_forged_records_leaves_a_short_log_and_a_worker_that_works(
    group: Group, target: Target, count: int, most: int
) -> None:
    """So many presences have to come within `adopt_seconds`, also on a machine that others keep busy."""
    group.routes(client_route("Echo", target.port, "in", config=LOSSLESS))
    bound = {f"amqtt_rest_bridge.group.{module}.MOST_WORKERS": most for module in ("leases", "overview")}
    worker = group.start(slots=2, adopt_seconds=3, constants=bound).ready()
    presence = {"until": 0.0, "version": "1", "since": 0.0, "slot": 0, "every": [], "leaves": False, "slots": 2}
    lease = {"worker": "nobody", "until": 0.0, "routes": "", "version": "1", "since": 0.0, "waits": True}
    for number in range(count):
        forged = presence | {"worker": f"w{number}", "routes": f"hash\n{number}"}
        group.client.publish(f"bridge/plant/workers/w{number}/presence", json.dumps(forged).encode(), wait=False)
        text = json.dumps(lease | {"term": 10 + number}).encode()
        info = group.client.publish(f"bridge/plant/{number % 4}/lease", text, wait=False)
        if number % 100 == 0:
            info.wait_for_publish(60)
    worker.wrote(f"{most} workers or more")
    worker.wrote("slots up to 3")

    def works() -> bool:
        group.client.publish("in", b"x")
        return not group.client.messages.empty()

    eventually(works, "it takes nothing any more", pause_seconds=0.2)
    worker.stop()
    assert sum(map(len, worker.lines)) < 10_000
