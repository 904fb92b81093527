"""A worker keeps failures and sends them again, as the plugin does."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.http_recorder import recording
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import LOSSLESS, Group, client_route

TOKEN = "a-token-of-24-characters"


def ask(port: int, path: str, body: bytes | None = None) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)) as response:
        return json.loads(response.read())


def test_a_failure_of_a_worker_is_kept_over_a_restart_and_sent_again(
    group: Group, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "failures": str(tmp_path / "failures.db")}
    with recording() as target:
        target.answer = lambda _: (422, b"no")
        group.routes(client_route("Lossless", target.port, "in", config=LOSSLESS))
        worker = group.start(**settings)
        admin = int(worker.line("status page and metrics").rpartition(":")[2])
        worker.ready()
        mosquitto.client().publish("in", b"x")
        eventually(lambda: len(ask(admin, "/api/runs")["runs"]) == 1)
        (failed,) = ask(admin, "/api/runs")["runs"]
        worker.stop()
        worker = group.start(**settings)
        admin = int(worker.line("status page and metrics").rpartition(":")[2])
        worker.ready()
        target.answer = lambda _: (200, b"yes")
        first = target.request().headers["idempotency-key"]
        started = ask(admin, f"/api/runs/{failed['id']}/retry", b"")
        again = target.request()
        assert (again.body, again.headers["idempotency-key"] != first) == (b"x", True)
        # A run is answered for once it has ended.
        eventually(lambda: started["id"] in [run["id"] for run in ask(admin, "/api/runs")["runs"]])
        retried = ask(admin, f"/api/runs/{started['id']}")
        assert (retried["outcome"], retried["retry_of"]) == ("succeeded", failed["id"])
