"""Files and commands of conf/production.md, and the files of conf/service, written and run as they are."""

import asyncio
import configparser
import contextlib
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml
from amqtt.client import MQTTClient

from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Spool
from tests.support.commands import SERVER_ROUTE, Workplace
from tests.support.documents import ROOT, blocks, page, section

GUIDE: Final = page("conf/production.md")
USERS: Final = ("sensor", "dashboard", "monitor")
REFUSED: Final = 0x80  # MQTT 3.1.1 section 3.9.3


def block(title: str, language: str) -> str:
    """Return the one fenced block of a language in a section."""
    (found,) = blocks(section(GUIDE, title), language)
    return found


def run(command: str, folder: Path, given: str = "") -> None:
    """Run a shell command that reads a pipe; it has nothing to warn of."""
    command = command.replace("/opt/rest-bridge/bin/python", sys.executable).replace("/etc/rest-bridge/", "conf/")
    words = ["sh", "-ec", command]
    ended = subprocess.run(
        words, cwd=folder, input=given, text=True, check=True, start_new_session=True, stderr=subprocess.PIPE
    )
    assert ended.stderr == ""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A folder with the users and the configuration that the guide shows."""
    place = Workplace(tmp_path_factory.mktemp("operating"))
    (place.folder / "conf/routes").mkdir(parents=True)
    (place.folder / "conf/routes/intake.lot").write_text(SERVER_ROUTE)
    for user in USERS:
        run(block("Users", "sh").replace("sensor", user), place.folder, f"pass of {user}\n")
    permissions = block("Who may do what", "yaml").replace("/etc/rest-bridge/", "conf/")
    listeners = {"listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}}}
    place.write("broker.yaml", yaml.safe_dump(listeners) + permissions)
    return place


async def connected(port: int, user: str, password: str) -> MQTTClient:
    client = MQTTClient(config={"auto_reconnect": False})
    await client.connect(f"mqtt://{user}:{password.replace(' ', '%20')}@127.0.0.1:{port}")
    return client


async def publish_and_subscribe(port: int) -> tuple[list[int], tuple[str, bytes]]:
    """Do what the sensor may and may not; return its SUBACK's codes and what reaches the dashboard first."""
    sensor, dashboard = [await connected(port, user, f"pass of {user}") for user in USERS[:2]]
    await dashboard.subscribe([("plant/#", 1)])
    codes = await sensor.subscribe([("plant/+/command", 1), ("#", 1)])
    await sensor.publish("plant/1/command", b"forged", qos=1)
    await sensor.publish("plant/1/reading", b"21", qos=1)
    message = await dashboard.deliver_message(timeout_duration=10)
    assert message is not None
    await sensor.disconnect()
    await dashboard.disconnect()
    return list(codes or []), (message.topic, bytes(message.data))


def test_users_may_do_what_the_lists_name_and_nothing_else(place: Workplace) -> None:
    with place.serving() as running:
        port = running.port
        assert asyncio.run(publish_and_subscribe(port)) == ([1, REFUSED], ("plant/1/reading", b"21"))
        status, guessed = [
            place.run("status", "--broker", f"mqtt://monitor:{password}@127.0.0.1:{port}", "--json")
            for password in ("pass%20of%20monitor", "guessed")
        ]
        assert (status.returncode, '"name": "Intake"' in status.stdout) == (0, True)
        assert (guessed.returncode, guessed.stdout) == (1, "")
        running.send(signal.SIGTERM)
        assert running.end() == 0
    assert any("not allowed to publish to TOPIC plant/1/command" in line for line in running.lines)


def test_the_health_check_of_the_image_asks_the_broker_beside_it(place: Workplace, tmp_path: Path) -> None:
    (check,) = re.findall(r"HEALTHCHECK .*CMD (\[.*\])", (ROOT / "conf/service/Containerfile").read_text())
    program, *words = json.loads(check)
    assert program == "rest-bridge"
    alone = Workplace(tmp_path)
    alone.configure()
    with alone.serving() as running:
        port = running.port
        words = [word.replace("127.0.0.1", f"127.0.0.1:{port}") for word in words]
        assert place.run(*words).returncode == 0
        running.send(signal.SIGTERM)
        assert running.end() == 0
    assert place.run(*words).returncode == 1


def test_the_file_of_users_holds_no_passwords(place: Workplace) -> None:
    lines = (place.folder / "conf/users").read_text().splitlines()
    assert [line.partition(":$argon2id$")[0] for line in lines] == list(USERS)
    assert "pass of" not in "".join(lines)


def test_a_key_for_subscriptions_that_this_amqtt_has_not_is_refused(place: Workplace) -> None:
    text = (place.folder / "broker.yaml").read_text().replace("acl: #", "subscribe_acl: #")
    place.write("other.yaml", text)
    ended = place.run("serve", "-c", "other.yaml", "--check")
    assert (ended.returncode, "subscribe_acl" in ended.stdout) == (1, True)


def test_the_listener_with_tls_is_one_that_amqtt_takes(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    pem = ROOT / "tests/support/certificates/server.pem"
    text = block("MQTT over TLS", "yaml").replace("/etc/rest-bridge/server.pem", str(pem))
    text = text.replace("/etc/rest-bridge/server.key", str(pem)).replace(":1883", ":0").replace("0.0.0.0:8883", ":0")
    place.configure(("listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:0\n", text))
    with place.serving() as running:
        running.line("(tls)")
        running.send(signal.SIGTERM)
        assert running.end() == 0


@pytest.mark.parametrize("in_use", [True, False])
def test_a_copy_of_a_spool_has_its_messages_also_while_it_is_in_use(tmp_path: Path, in_use: bool) -> None:
    spool = Spool(tmp_path / "spool.db")
    key = spool.keep("R", "E", Message("in", b"payload", 1.0), 0, None)
    if not in_use:
        spool.close()
    run(
        block("Backup", "sh")
        .replace("/var/lib/rest-bridge/template-library", "spool")
        .replace("template-library", "spool"),
        tmp_path,
    )
    with contextlib.closing(sqlite3.connect(tmp_path / "spool.backup.db")) as copy:
        assert copy.execute("SELECT key, payload FROM calls").fetchall() == [(key, b"payload")]
    if in_use:
        spool.close()


def test_a_backup_of_what_is_not_there_fails_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run(block("Backup", "sh"), tmp_path)
    assert not (tmp_path / "template-library.db").exists()


def test_the_licence_is_that_of_the_package() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    assert f"\n## {metadata['metadata']['version']} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit_of_the_broker(tmp_path: Path) -> None:
    unit = tmp_path / "rest-bridge.service"
    text = (ROOT / "conf/service" / unit.name).read_text()
    unit.write_text(text.replace("/opt/rest-bridge/bin/rest-bridge", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_file(tmp_path: Path) -> None:
    pem = str(ROOT / "tests/support/certificates/server.pem")
    text = re.sub(r"/etc/letsencrypt/\S+\.pem", pem, (ROOT / "conf/service/nginx.conf").read_text())
    whole = f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off; {text} }}"
    (tmp_path / "nginx.conf").write_text(whole)
    command = ["nginx", "-t", "-q", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).returncode == 0
