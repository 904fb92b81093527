"""A worker keeps failures and sends them again, as the plugin does."""

from pathlib import Path
from typing import Any

from tests.support.admin_client import TOKEN, Admin
from tests.support.http_recorder import recording
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import LOSSLESS, Group, Worker, client_route


def admin_of(worker: Worker) -> Admin:
    admin = Admin(int(worker.line("status page and metrics").rpartition(":")[2]), {"Authorization": f"Bearer {TOKEN}"})
    worker.ready()
    return admin


def test_a_failure_of_a_worker_is_kept_over_a_restart_and_sent_again(
    group: Group, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "failures": str(tmp_path / "failures.db")}
    with recording() as target:
        target.answer = lambda _: (422, b"no")
        group.routes(client_route("Lossless", target.port, "in", config=LOSSLESS))
        worker = group.start(**settings)
        admin = admin_of(worker)
        mosquitto.client().publish("in", b"x")
        eventually(lambda: len(admin.get("/api/runs").json["runs"]) == 1)
        (failed,) = admin.get("/api/runs").json["runs"]
        worker.stop()
        worker = group.start(**settings)
        admin = admin_of(worker)
        target.answer = lambda _: (200, b"yes")
        first = target.request().headers["idempotency-key"]
        started = admin.get(f"/api/runs/{failed['id']}/retry", method="POST").json
        again = target.request()
        assert (again.body, again.headers["idempotency-key"] != first) == (b"x", True)
        # A run is answered for once it has ended.
        eventually(lambda: started["id"] in [run["id"] for run in admin.get("/api/runs").json["runs"]])
        retried = admin.get(f"/api/runs/{started['id']}").json
        assert (retried["outcome"], retried["retry_of"]) == ("succeeded", failed["id"])
