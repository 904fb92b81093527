"""Ports whose certificate is gone when the bridge starts again: they alone are not served, until it is back."""

import http.client
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin_client import admin_of
from tests.support.commands import accepts
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import recording
from tests.support.http_target import CERTIFICATES
from tests.support.waiting import SECONDS, eventually

SERVER = """
DEFINE ROUTE Hooks WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "hook"
"""
CLIENT = """
DEFINE ROUTE Calls WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"
"""


def status(host: Host, route: str) -> dict[str, Any]:
    routes = admin_of(host).get("/api/routes").json["routes"]
    (found,) = (one for one in routes if one["name"] == route)
    assert isinstance(found, dict)
    return found


def health(host: Host) -> tuple[str, str]:
    return status(host, "Calls")["health"], status(host, "Hooks")["health"]


def post(port: int) -> int:
    trusting = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
    connection = http.client.HTTPSConnection("localhost", port, timeout=SECONDS, context=trusting)
    try:
        connection.request("POST", "/hook", b"posted")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_certificate_that_is_gone_at_a_restart_costs_its_ports_alone_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, away = tmp_path / "server.pem", tmp_path / "away.pem"
    path.write_bytes((CERTIFICATES / "server.pem").read_bytes())
    files: dict[str, Any] = {"server_certfile": str(path), "server_keyfile": str(path)}
    files |= {"processes": 1, "admin_port": 0}
    with recording() as target, hosting(SERVER + CLIENT.format(url=target.url), **files) as host:
        client, port = host.client("out", "hook"), host.http_port
        assert post(port) == 200
        assert client.message() == ("hook", b"posted")
        path.rename(away)
        host.kill_bridge()
        client.publish("in/1", b"client mode goes on")
        assert client.message()[0] == "out"
        assert health(host) == ("Green", "Red")
        error = status(host, "Hooks")["last_error"]
        assert error["code"] == "internal_error"
        assert f"SERVER_PORT 0 is not served: server_certfile {path}" in error["message"]
        assert f"SERVER_PORT 0 is not served: server_certfile {path}" in caplog.text
        away.rename(path)
        eventually(lambda: accepts(port), "the port is not served again, without a restart")
        assert post(port) == 200
        assert client.message() == ("hook", b"posted")
        eventually(lambda: health(host) == ("Green", "Green"), "the port is served, and its route is still Red")
