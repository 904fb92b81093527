"""The files for workers in production: every path, option, variable and probe in them is real, and Mosquitto's work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from amqtt_rest_bridge.__main__ import main as rest_bridge
from amqtt_rest_bridge.lot.model import RestApiConfig
from amqtt_rest_bridge.settings import WorkerSettings, variable_of
from tests.support import forked
from tests.support.documents import ROOT, blocks, page
from tests.support.http_target import Target, echo
from tests.support.waiting import eventually
from tests.worker import mosquitto
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import Group, Worker, client_route

FILES: Final = ROOT / "conf" / "worker"
UNIT: Final = "rest-bridge-worker@.service"
GUIDE: Final = "conf/worker/README.md"
CERTIFICATES: Final = ROOT / "tests/support/certificates"
PROGRAM: Final = "/opt/rest-bridge/bin/rest-bridge"
VARIABLES: Final = {variable_of(one) for one in fields(WorkerSettings)} | {"REST_BRIDGE_BROKER_PASSWORD"}
GRACE: Final = 10
"""Seconds that a stop takes at most."""

DOCUMENTS: Final[list[dict[str, Any]]] = list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()))


def one(kind: str, name: str = "rest-bridge-worker") -> dict[str, Any]:
    (found,) = (each for each in DOCUMENTS if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


POD: Final[dict[str, Any]] = one("Deployment")["spec"]["template"]["spec"]
WORKER: Final[dict[str, Any]] = POD["containers"][0]


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[list[str], str], None]:
    """What checks a command `worker -c FILE ...`, with this text for the file and the routes of the manifests."""
    routes = tmp_path / "routes"
    routes.mkdir()
    for name, text in one("ConfigMap", "rest-bridge-routes")["data"].items():
        (routes / name).write_text(text)
    (tmp_path / "broker-password").write_text("s3cret")

    def check(arguments: list[str], configuration: str) -> None:
        (tmp_path / "worker.yaml").write_text(
            configuration.replace("/etc/rest-bridge/routes", str(routes)).replace(
                "/etc/rest-bridge/secrets", str(tmp_path)
            )
        )
        assert arguments[:3] == ["worker", "-c", "/etc/rest-bridge/worker.yaml"]
        arguments = ["worker", "-c", str(tmp_path / "worker.yaml"), *arguments[3:]]
        assert rest_bridge([*arguments, *([] if "--check" in arguments else ["--check"])]) == 0, capsys.readouterr()

    return check


def guide_configuration() -> str:
    (configuration,) = (block for block in blocks(page("conf/several-machines.md"), "yaml") if "slots" in block)
    return configuration


def commands(unit: str) -> list[list[str]]:
    lines = re.findall(r"^Exec\w+=(.+)$", unit, re.MULTILINE)
    return [shlex.split(line) for line in lines if line.startswith(PROGRAM)]


def test_the_commands_and_variables_of_the_unit_are_real(
    checked: Callable[[list[str], str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = (FILES / UNIT).read_text()
    (written,) = re.findall(r"^Environment=(.+)$", unit, re.MULTILINE)
    variables = dict(each.split("=") for each in written.split())
    assert variables.keys() <= VARIABLES
    assert f"LoadCredential={variables['REST_BRIDGE_PASSWORD_SECRET']}:" in unit
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("%d", str(tmp_path)))
    configuration = guide_configuration().replace("/etc/rest-bridge/ca.pem", str(CERTIFICATES / "authority.pem"))
    for command in commands(unit):
        checked([part.replace("%i", "1") for part in command[1:]], configuration)
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) > GRACE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT
    unit.write_text((FILES / UNIT).read_text().replace(PROGRAM, sys.executable))
    instance = str(unit).replace("@.", "@1.")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", instance], capture_output=True, text=True, timeout=60, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_image_runs_a_worker_from_the_wheel_as_kubernetes_names_it(
    checked: Callable[[list[str], str], None],
) -> None:
    lines = (FILES / "Containerfile").read_text().splitlines()
    said = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    entry, arguments = json.loads(said["ENTRYPOINT"]), json.loads(said["CMD"])
    assert entry == [PROGRAM, "worker"]
    assert arguments == WORKER["args"]
    assert int(said["USER"].split(":")[0]) == POD["securityContext"]["runAsUser"]
    assert said["EXPOSE"].split() == [str(port["containerPort"]) for port in WORKER["ports"]]
    assert any(line.endswith(f"{PROGRAM.removesuffix('/bin/rest-bridge')}") and " -m venv " in line for line in lines)
    setup = (ROOT / "setup.cfg").read_text()
    assert "COPY dist/amqtt_rest_bridge-*.whl /wheels/" in lines
    assert "name = amqtt-rest-bridge" in setup and "\nfast =" in setup


def test_the_manifests_configure_a_worker_that_starts(
    checked: Callable[[list[str], str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets, configuration = one("Secret")["stringData"], one("ConfigMap")["data"]["worker.yaml"]
    for variable in WORKER["env"]:
        assert variable["name"] in VARIABLES
        monkeypatch.setenv(variable["name"], secrets[variable["valueFrom"]["secretKeyRef"]["key"]])
    checked(["worker", *WORKER["args"]], configuration)
    settings = yaml.safe_load(configuration)
    assert settings["password_secret"] in secrets
    mounted = {each["mountPath"]: each["name"] for each in WORKER["volumeMounts"]}
    assert {"/etc/rest-bridge/worker.yaml", settings["routes"], settings["secrets_dir"]} <= mounted.keys()
    assert set(mounted.values()) == {each["name"] for each in POD["volumes"]}
    assert one("Deployment")["spec"]["replicas"] <= settings["slots"]


def test_a_pod_has_the_time_and_the_ports_that_its_probes_need() -> None:
    settings = yaml.safe_load(one("ConfigMap")["data"]["worker.yaml"])
    ports = {port["name"]: port["containerPort"] for port in WORKER["ports"]}
    assert ports == {"http": RestApiConfig().server_port, "admin": settings["admin_port"]}
    (_, sleep) = WORKER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["terminationGracePeriodSeconds"] > int(sleep) + GRACE
    for probe in ("startupProbe", "livenessProbe"):
        assert WORKER[probe]["httpGet"] == {"path": "/healthz", "port": "admin"}
    (port,) = one("Service")["spec"]["ports"]
    assert port["targetPort"] in ports
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (one("Service")["spec"]["selector"], one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]):
        assert selector == labels


@pytest.mark.mosquitto
def test_the_readiness_probe_sees_whether_a_worker_has_its_broker(tmp_path: Path, unused_port: int) -> None:
    token = "0123456789abcdef"  # of the test
    _, option, script = WORKER["readinessProbe"]["exec"]["command"]
    script = script.replace(
        f":{yaml.safe_load(one('ConfigMap')['data']['worker.yaml'])['admin_port']}/", f":{unused_port}/"
    )

    def status(given: str) -> int:
        environment = {**os.environ, "REST_BRIDGE_ADMIN_TOKEN": given}
        return subprocess.run(
            [sys.executable, option, script], env=environment, capture_output=True, timeout=30, check=False
        ).returncode

    with Mosquitto(tmp_path) as broker, Group(tmp_path, broker) as group:
        group.routes(client_route("R", 1, "in"))
        worker = group.start(admin_port=unused_port, admin_token=token).ready()
        assert status(token) == 0
        assert status("wrong") == 1
        broker.kill()
        worker.line("connection")
        assert status(token) == 1
        broker.start()


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed")
def test_a_group_works_beside_mosquitto_as_the_guide_sets_it_up_and_others_stay_out(tmp_path: Path) -> None:
    """TLS, passwords and ACL as they are written; only paths, port and address are those of the test."""
    configuration = (FILES / "mosquitto.conf").read_text()
    passwords, acl = tmp_path / "passwords", tmp_path / "acl"
    for shown, own in (
        ("listener 8883\n", "listener {port} 127.0.0.1\n"),
        ("/etc/mosquitto/certs/server.pem", str(CERTIFICATES / "server.pem")),
        ("/etc/mosquitto/certs/server.key", str(CERTIFICATES / "server.pem")),
        ("/etc/mosquitto/rest-bridge.passwords", str(passwords)),
        ("/etc/mosquitto/rest-bridge.acl", str(acl)),
    ):
        assert configuration.count(shown) == 1
        configuration = configuration.replace(shown, own)
    acl.write_text((FILES / "mosquitto.acl").read_text())
    passwords.touch()
    for user in ("bridge", "device"):
        subprocess.run(["mosquitto_passwd", "-b", str(passwords), user, f"of-{user}"], check=True, timeout=30)
    own = "\nuser {user}\npersistence_location {folder}/\nlog_type all\n"
    with Mosquitto(tmp_path, configuration=configuration + own) as broker, Target(echo) as target:
        (tmp_path / "broker-password").write_text("of-bridge\n")
        with Group(tmp_path, broker) as group:
            group.routes(client_route("R", target.port, "sensors/#", config='WITH OVERLOAD_POLICY "lossless"'))
            written = {
                "broker": f"mqtts://bridge@localhost:{broker.port}", "password_secret": "broker-password",
                "secrets_dir": str(tmp_path), "ca_file": str(CERTIFICATES / "authority.pem"),
                "routes": str(tmp_path / "routes"),
            }  # fmt: skip
            (tmp_path / "worker.yaml").write_text(json.dumps(yaml.safe_load(guide_configuration()) | written))
            command = ["worker", "-c", "worker.yaml"]
            probed = forked.run(forked.REST_BRIDGE, [*command, "--probe"], tmp_path)
            lacking = [line for line in probed.stdout.splitlines() if line.lstrip().startswith("NO ")]
            # Mosquitto 2.0.11 sends more than Receive Maximum now and then, mended in 2.0.13: no matter of its files.
            assert [line for line in lacking if "Receive Maximum" not in line] == [], probed.stdout
            assert "yes  topics of the group" in probed.stdout
            for _ in range(2):
                group.workers.append(Worker(forked.Forked(forked.REST_BRIDGE, command, tmp_path)))
                group.workers[-1].ready()
            login: dict[str, Any] = {"login": ("device", "of-device"), "authority": str(CERTIFICATES / "authority.pem")}
            device = broker.client(**login)
            device.subscribe("results/#", "bridge/#")
            device.publish("sensors/device/1", b"21.5")
            assert device.next() == ("results/R", b"21.5")
            records = "bridge/plant/0/lease", "bridge/plant/workers/x/presence"
            for forbidden in ("sensors/other/1", "results/R", *records):
                forger = broker.client(**login)  # Mosquitto 2.0.11 ends the connection of one that is denied
                forger.publish(forbidden, b"forged", retain=True, qos=0, wait=False)
                denied = re.compile(rf"Denied PUBLISH .*'{forbidden}'")
                eventually(lambda: denied.search(broker.log) is not None, f"{forbidden} is allowed")  # noqa: B023
            device.publish("sensors/device/1", bytes(4 << 20))  # max_message_bytes
            assert json.loads(device.next()[1])["error"]["message"].startswith("the request body has 4194304 bytes")
            broker.client("large", **login).publish("sensors/device/1", bytes(5 << 20), wait=False)
            eventually(lambda: "Client large disconnected due to oversize packet" in broker.log, "it is allowed")
            device.publish("sensors/device/1", b"last")
            assert device.next() == ("results/R", b"last")
            assert [seen.body for seen in target.requests] == [b"21.5", b"last"]
            for worker in group.workers:
                worker.stop()


def test_the_user_of_the_guide_is_the_one_of_the_acl_and_of_the_other_brokers() -> None:
    text = page(GUIDE)
    topics = re.findall(r"^topic \w+ (\S+)$", (FILES / "mosquitto.acl").read_text(), re.MULTILINE)
    for name in ("emqx-acl.conf", "hivemq-credentials.xml"):
        written = (FILES / name).read_text()
        assert "bridge" in written
        assert [topic for topic in topics if topic not in written] == []
    assert mosquitto.PROGRAM is None or "mosquitto_passwd" in text
