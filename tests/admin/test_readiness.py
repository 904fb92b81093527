"""/readyz of a running broker: 503 with each reason while something is wrong, 200 when it has passed."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import embedded_broker
from tests.support.admin_client import Admin, admin_of, client_route, server_route
from tests.support.doors import Hosting
from tests.support.full_disk import full_disk, tidy
from tests.support.http_recorder import Recorder
from tests.support.http_target import CERTIFICATES
from tests.support.waiting import eventually


def reasons(admin: Admin) -> list[str]:
    """Return what keeps the bridge from being ready; the status page shows the same."""
    answer = admin.get("/readyz")
    assert answer.status == (503 if answer.json["reasons"] else 200)
    assert answer.json["ready"] is (answer.status == 200)
    found = answer.json["reasons"]
    assert isinstance(found, list)
    return found


def test_a_spool_that_refuses_makes_its_routes_red_and_the_bridge_unready_until_it_keeps_again(
    target: Recorder, tmp_path: Path
) -> None:
    lossless = client_route(target.url, more='ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"')
    with embedded_broker.hosting(lossless, admin_port=0, processes=1, spool=str(tmp_path / "spool.db")) as host:
        admin, client = admin_of(host), host.client("done/#")

        def refusing_and_health() -> tuple[float | None, float | None]:
            health = admin.value("rest_bridge_health", route="Orders")
            return admin.value("rest_bridge_spool_refusing"), health

        assert (reasons(admin), refusing_and_health()) == ([], (0, 0))
        with full_disk():
            client.publish("orders/1", b"1" * 10_000)
            assert b"could not be written to the spool" in client.message()[1]
            eventually(lambda: reasons(admin))  # the bridge hears of the spool once a second
            (reason,) = reasons(admin)
            assert reason.startswith("the spool refuses messages, ")
            assert reason in admin.text("/")
            assert admin.value("rest_bridge_ready") == 0
        host.wait(tidy(host))  # the disk has room again, and the spool knows it
        assert (reasons(admin), refusing_and_health()) == ([reason], (1, 2))
        status = admin.status("Orders")
        assert (status["health"], status["last_error"]["message"]) == ("Red", reason)
        client.publish("orders/2", b"2")
        assert client.message() == ("done/2", b"2")
        eventually(lambda: reasons(admin) == [])
        assert refusing_and_health() == (0, 1)


def test_a_port_that_is_not_served_is_a_reason_until_it_is_served(tmp_path: Path) -> None:
    path, away = tmp_path / "server.pem", tmp_path / "away.pem"
    path.write_bytes((CERTIFICATES / "server.pem").read_bytes())
    files: dict[str, Any] = {"server_certfile": str(path), "server_keyfile": str(path)}
    with embedded_broker.hosting(server_route(), admin_port=0, processes=1, **files) as host:
        assert reasons(admin_of(host)) == []
        path.rename(away)
        host.kill_bridge()
        admin = admin_of(host)
        eventually(lambda: any(f"SERVER_PORT 0 is not served: server_certfile {path}" in one for one in reasons(admin)))
        assert admin.get("/healthz").status == 200
        away.rename(path)
        eventually(lambda: reasons(admin) == [])


@pytest.mark.parametrize("count", [1, 3])
def test_route_files_with_errors_are_a_reason_that_names_the_place_as_text(hosting: Hosting, count: int) -> None:
    with hosting(server_route(), admin_port=0, reload_seconds=0.02) as host:
        admin, path = admin_of(host), host.path
        hostile = '    ADD REST_API_CONFIG WITH "<img src=x onerror=alert(1)>" "1"\n'
        path.write_text("".join(f"DEFINE ROUTE R{number} WITH TYPE REST_API\n{hostile}" for number in range(count)))
        eventually(lambda: reasons(admin) != [])
        (reason,) = reasons(admin)
        assert reason.startswith(f"the last reload failed, the routes before it are in use: {path}:2:")
        assert (admin.value("rest_bridge_reload_errors") or 0) >= count
        page = admin.text("/")
        assert '<h2 id="trouble">Not ready</h2>' in page
        assert "<img" not in page
        path.write_text(server_route())
        eventually(lambda: reasons(admin) == [])
        assert admin.value("rest_bridge_reload_errors") == 0
