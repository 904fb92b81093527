"""Ports whose certificate is gone when a bridge process starts again: they alone are not served, until it is back."""

import http.client
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import recording
from tests.support.http_target import CERTIFICATES
from tests.support.spawning import Spawning
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
    return host.plugin.service.statistics[route].status(0.0)


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


def kill(host: Host) -> None:
    (bridge,) = host.bridges
    os.kill(bridge.pid, signal.SIGKILL)
    eventually(lambda: not bridge.ready, "the broker does not notice")


def test_a_certificate_that_is_gone_at_a_restart_costs_its_ports_alone_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, away = tmp_path / "server.pem", tmp_path / "away.pem"
    path.write_bytes((CERTIFICATES / "server.pem").read_bytes())
    files: dict[str, Any] = {"server_certfile": str(path), "server_keyfile": str(path)}
    with recording() as target, hosting(SERVER + CLIENT.format(url=target.url), processes=1, **files) as host:
        client, port = host.client("out", "hook"), host.http_port
        assert post(port) == 200
        assert client.message() == ("hook", b"posted")
        path.rename(away)
        kill(host)
        client.publish("in/1", b"client mode goes on")
        assert client.message()[0] == "out"
        assert health(host) == ("Green", "Red")
        (error,) = [status(host, "Hooks")["last_error"]]
        assert error["code"] == "internal_error"
        assert f"SERVER_PORT 0 is not served: server_certfile {path}" in error["message"]
        assert f"SERVER_PORT 0 is not served: server_certfile {path}" in caplog.text
        away.rename(path)
        assert post(port) == 200  # without a restart: the connection waited
        assert client.message() == ("hook", b"posted")
        eventually(lambda: health(host) == ("Green", "Green"), "the port is served, and its route is still Red")


def test_a_bridge_process_that_starts_with_the_certificate_serves_what_the_one_before_could_not(
    tmp_path: Path,
) -> None:
    path, away = tmp_path / "server.pem", tmp_path / "away.pem"
    path.write_bytes((CERTIFICATES / "server.pem").read_bytes())
    files: dict[str, Any] = {"server_certfile": str(path), "server_keyfile": str(path)}
    with hosting(SERVER, processes=1, **files, **Spawning().options) as host:
        path.rename(away)
        kill(host)
        eventually(lambda: status(host, "Hooks")["health"] == "Red", "not told")
        away.rename(path)
        kill(host)
        assert post(host.http_port) == 200
        eventually(lambda: status(host, "Hooks")["health"] == "Green", "still Red")
