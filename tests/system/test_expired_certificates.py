"""Certificates that have expired: who says so, and that all goes on once there is a new one."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.bridge.reloading import server_route
from tests.support import lossless
from tests.support.commands import Workplace
from tests.support.embedded_broker import hosting
from tests.support.http_target import AUTHORITY, CERTIFICATES, Target, echo, server_tls

EXPIRED = "certificate has expired"
TELL = "; it needs a new one; check this machine's clock too"


def secure(route: str, name: str, topic: str) -> str:
    """Return a route of its own name and topic that calls by TLS."""
    config = f'WITH CA_FILE "{AUTHORITY}" WITH ENABLE_CLIENT'
    route = route.replace("http://127.0.0.1", "https://localhost").replace("WITH ENABLE_CLIENT", config)
    return route.replace("ROUTE L ", f"ROUTE {name} ").replace('"in/#"', f'"{topic}"')


def test_a_target_whose_certificate_has_expired_gets_what_waits_once_it_has_a_new_one(tmp_path: Path) -> None:
    with Target(echo, tls=server_tls("expired")) as target:
        kept = secure(lossless.route(target.port), "Kept", "kept")
        tried = secure(lossless.route(target.port), "Tried", "tried").replace('"lossless"', '"balanced"')
        with hosting(kept + tried, spool=str(tmp_path / "spool.db")) as host:
            client = host.client("out")
            client.publish("tried", b"1")
            error = json.loads(client.message()[1])["error"]
            assert error["code"] == "tls_failed"
            assert error["message"].endswith(f"is refused: {EXPIRED}")
            assert error["hint"] == "The server needs a new certificate; check this machine's clock too."
            client.publish("kept", b"2")
            target.close()
            with Target(echo, tls=server_tls(), port=target.port):
                client.publish("tried", b"3")
                assert sorted(client.messages(2)) == [("out", b"2"), ("out", b"3")]


def test_a_certificate_of_server_mode_that_has_expired_is_a_warning_until_there_is_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = tmp_path / "server.pem"
    shutil.copy(CERTIFICATES / "expired.pem", certificate)
    files: dict[str, Any] = {"server_certfile": str(certificate), "server_keyfile": str(certificate)}
    told = f"callers refuse server_certfile {certificate}: {EXPIRED}; put a new one in its place"
    with caplog.at_level(logging.WARNING), hosting(server_route("/a"), **files) as host:
        assert caplog.messages == [told]
        shutil.copy(CERTIFICATES / "server.pem", certificate)
        lossless.load(host, server_route("/b"))
        assert caplog.messages == [told]


def test_check_warns_of_a_certificate_of_server_mode_that_has_expired(tmp_path: Path) -> None:
    place, file = Workplace(tmp_path), CERTIFICATES / "expired.pem"
    place.configure(("processes: 0", f"processes: 0, server_certfile: {file}, server_keyfile: {file}"))
    ended = place.run("serve", "-c", "broker.yaml", "--check")
    assert ended.stdout.splitlines() == [
        f"callers refuse server_certfile {file}: {EXPIRED}; put a new one in its place", "ok",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "option", "scheme"),
    [
        pytest.param(["status"], "--broker", "mqtts", id="broker"),
        pytest.param(["failures"], "--admin", "https", id="admin port"),
    ],
)
def test_a_command_says_that_a_certificate_has_expired(
    command: list[str], option: str, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Target(echo, tls=server_tls("expired")) as target:
        assert main([*command, option, f"{scheme}://localhost:{target.port}", "--ca-file", AUTHORITY]) == 1
    assert f"its certificate is refused: {EXPIRED}{TELL}" in capsys.readouterr().err
