"""A worker keeps failures and sends them again, as the plugin does."""

from tests.support.admin_client import TOKEN, Admin
from tests.support.http_recorder import recording
from tests.support.waiting import eventually
from tests.worker.workers import LOSSLESS, Group, client_route


def test_a_failure_of_a_worker_is_kept_over_a_restart_and_sent_again(group: Group) -> None:
    def start() -> Admin:
        failures = str(group.folder / "failures.db")
        worker = group.start(admin_port=0, admin_token=TOKEN, failures=failures).ready()
        return Admin(worker.admin_port(), {"Authorization": f"Bearer {TOKEN}"})

    with recording() as target:
        target.answer = lambda _: (422, b"no")
        group.routes(client_route("Lossless", target.port, "in", config=LOSSLESS))
        admin = start()
        group.client.publish("in", b"x")
        eventually(lambda: len(admin.get("/api/runs").json["runs"]) == 1)
        (failed,) = admin.get("/api/runs").json["runs"]
        group.workers[0].stop()
        admin = start()
        target.answer = lambda _: (200, b"yes")
        first = target.request().headers["idempotency-key"]
        started = admin.get(f"/api/runs/{failed['id']}/retry", method="POST").json
        again = target.request()
        assert (again.body, again.headers["idempotency-key"] != first) == (b"x", True)
        # A run is answered for once it has ended.
        eventually(lambda: started["id"] in [run["id"] for run in admin.get("/api/runs").json["runs"]])
        retried = admin.get(f"/api/runs/{started['id']}").json
        assert (retried["outcome"], retried["retry_of"]) == ("succeeded", failed["id"])
