"""What keeps a worker from starting: one line that says why, and exit status 1."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.cli.worker import broker_address
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.ports import bound_socket
from amqtt_rest_bridge.settings import Coreflux, WorkerSettings
from tests.support import forked
from tests.support.commands import taken_port
from tests.support.embedded_broker import plain_broker
from tests.support.http_target import AUTHORITY, CERTIFICATES, Peer, Target
from tests.worker.mosquitto import Mosquitto
from tests.worker.test_rolling_http import server_route
from tests.worker.workers import Group, client_route

NO_SHARED = bytes.fromhex("2005 0000 022A 00")
NO_IDENTIFIERS = bytes.fromhex("2005 0000 0229 00")
NOT_AUTHORIZED = bytes.fromhex("2003 0087 00")
ONLY_3_1_1 = bytes.fromhex("2002 0001")


def run(
    folder: Path, *arguments: str, constants: dict[str, float] | None = None, **settings: Any
) -> "subprocess.CompletedProcess[str]":
    configuration = {"broker": "mqtt://127.0.0.1:1", "group": "plant", "routes": str(folder), **settings}
    path = folder / "worker.yaml"
    path.write_text(json.dumps(configuration))
    return forked.run(forked.REST_BRIDGE, ["worker", "-c", str(path), *arguments], folder, constants=constants)


def reason_of(ended: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line, without the place that may begin it; there is no stack trace before it."""
    assert ended.returncode == 1 and "Traceback" not in ended.stderr + ended.stdout, ended.stderr
    return (ended.stderr + ended.stdout).splitlines()[-1].removeprefix("rest-bridge: error: ")


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        pytest.param({"slots": 2, "slot": 2}, "the setting slot is 2; with slots: 2 it is 0 to 1", id="slot"),
        pytest.param({"group": "a/b"}, "the setting group must be a name", id="group"),
        pytest.param({"group": ""}, "the setting group must be a name", id="no group"),
        pytest.param({"broker": "http://x"}, "the setting broker must be mqtt://", id="address"),
        pytest.param({"broker": "mqtt://me:secret@x"}, "the setting broker holds a password", id="password"),
        pytest.param({"ca_file": "ca.pem"}, "ca_file needs TLS: write broker: mqtts://", id="TLS file"),
        pytest.param({"broker": "mqtts://x", "cert_file": "x"}, "cert_file and key_file belong together", id="pair"),
        pytest.param({"broker": "mqtts://x", "ca_file": "gone"}, "the TLS files cannot be used (ca_file", id="gone"),
        pytest.param({"password_secret": "gone"}, "/run/secrets/gone: No such file or directory", id="secret"),
        pytest.param({"coreflux": Coreflux([], "live")}, "the setting coreflux needs users", id="coreflux"),
        pytest.param({"workers": 0}, "the setting workers is 0; allowed is 1 to 1024", id="a setting of the plugin"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_used(tmp_path: Path, settings: dict[str, Any], wrong: str) -> None:
    given = {"broker": "mqtt://127.0.0.1:1", "group": "plant", "routes": str(tmp_path), **settings}
    found = WorkerSettings(**given)
    messages = [message for _, message in [*found.setting_faults(), *broker_address(found)[1]]]
    assert wrong in messages[0]
    assert "secret@" not in str(messages)


def test_a_password_that_mqtt_cannot_write_is_found_by_the_check_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = WorkerSettings(group="plant", routes=str(tmp_path))
    for password in ("secret\udcff", "secret" * 20_000):
        monkeypatch.setenv("REST_BRIDGE_BROKER_PASSWORD", password)
        address, ((names, message),) = broker_address(settings)
        assert (address, names) == (None, ("password_secret",))
        assert message == "the broker's password is not UTF-8, or longer than MQTT can write"


def test_a_faulty_file_is_one_line_with_its_place(tmp_path: Path) -> None:
    line = reason_of(run(tmp_path, slots="2", spool="s.db", slotz=1))
    assert line.startswith(f"{tmp_path}/worker.yaml:1:")
    assert line.endswith("unknown setting slotz (did you mean slots?); 2 more, see --check")
    assert reason_of(run(tmp_path, slot=4)).endswith("the setting slot is 4; with slots: 4 it is 0 to 3")


def test_a_brokers_file_is_named_with_the_command_that_runs_it(tmp_path: Path) -> None:
    path, line = tmp_path / "worker.yaml", reason_of(run(tmp_path, plugins={}))
    assert line.endswith(f"{path} is the configuration of a broker: it runs with rest-bridge serve -c {path}")


def test_routes_of_an_option_that_are_not_there_are_named_with_the_option(tmp_path: Path) -> None:
    ended = run(tmp_path, "--check", "--routes", "nowhere")
    assert "worker.yaml:1:1: error: cannot read nowhere: No such file" in ended.stdout
    assert ended.stdout.endswith("hint: it is set by --routes or REST_BRIDGE_ROUTES\n")


def test_check_lists_all_faults_of_the_settings_with_their_places(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {
        "slotz": 1, "slots": "2", "spool": "s.db", "slot": 4, "broker": "http://x", "password_secret": "gone"
    }  # fmt: skip
    ended = run(tmp_path, "--check", "--adopt-seconds", "0", **wrong)
    assert ended.returncode == 1
    text = (tmp_path / "worker.yaml").read_text()
    faults = [line for line in ended.stdout.splitlines() if line.startswith(f"{tmp_path}/worker.yaml:")]
    for name, fault in {
        "slotz": "unknown setting slotz",
        "slots": "slots must be a whole number, not text",
        "spool": "a worker has no spool",
        "slot": "the setting slot is 4; with slots: 4 it is 0 to 3",
        "broker": "the setting broker must be mqtt://[USER@]HOST[:PORT], or mqtts:// for TLS",
        "password_secret": "cannot read the setting password_secret",
    }.items():
        place = text.index(f'"{name}"') + 1
        assert any(line.startswith(f"{tmp_path}/worker.yaml:1:{place}: error: {fault}") for line in faults), fault
    assert f"{tmp_path}/worker.yaml:1:1: error: the setting adopt_seconds is 0.0; allowed is 1 to 86400" in faults
    assert len(faults) == 7


def test_a_worker_tells_replies_apart_without_a_topic_for_each(tmp_path: Path) -> None:
    (tmp_path / "a.lot").write_text("""
DEFINE ROUTE Ask WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0"
    ADD EVENT A WITH METHOD "POST" WITH ENDPOINT "/a" WITH DESTINATION_TOPIC "a" WITH REPLY_TOPIC "b"
""")
    assert run(tmp_path, "--check").stdout.splitlines() == ["ok"]


@pytest.mark.parametrize(
    ("connack", "wrong"),
    [
        pytest.param(NO_SHARED, "does not support shared subscriptions", id="no shared subscriptions"),
        pytest.param(NO_IDENTIFIERS, "does not support subscription identifiers", id="no subscription identifiers"),
        pytest.param(ONLY_3_1_1, "does not support MQTT 5", id="MQTT 3.1.1 alone"),
        pytest.param(NOT_AUTHORIZED, "refuses the client: Not authorized; check user name", id="not authorized"),
        pytest.param(b"", "closed the connection without an answer to CONNECT", id="no answer"),
    ],
)
def test_a_broker_that_cannot_be_used(tmp_path: Path, connack: bytes, wrong: str) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1024)
        peer.send(connack)

    with Target(script) as broker:
        assert wrong in reason_of(run(tmp_path, broker=f"mqtt://127.0.0.1:{broker.port}"))


def test_a_worker_says_that_amqtt_lacks_mqtt_5(tmp_path: Path) -> None:
    patience = {"amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS": 0.5}  # it answers nothing
    with plain_broker() as broker:
        line = reason_of(run(tmp_path, broker=f"mqtt://127.0.0.1:{broker.mqtt_port}", constants=patience))
    assert "it lacks MQTT 5, which a worker needs; amqtt speaks MQTT 3.1.1: load the routes there with the" in line


@pytest.mark.mosquitto
def test_a_second_worker_on_a_machine_needs_another_admin_port(group: Group, unused_port: int) -> None:
    group.routes(client_route("Echo", 9, "in"))
    group.start(0, admin_port=unused_port).ready()
    second = group.start(1, admin_port=unused_port)
    second.line(
        f"cannot listen on 127.0.0.1 port {unused_port} (admin_port): Address already in use; "
        f"set admin_port to another port, or end the program that has it: ss -ltnp 'sport = :{unused_port}'"
    )
    assert second.end() == 1


def test_a_broker_that_cannot_be_reached(tmp_path: Path, unused_port: int) -> None:
    ended = run(tmp_path, broker=f"mqtt://127.0.0.1:{unused_port}")
    assert "not acknowledged" not in ended.stderr
    line = reason_of(ended)
    assert line == f"cannot reach the broker mqtt://127.0.0.1:{unused_port}: Connection refused; is the broker running?"


@pytest.mark.mosquitto
def test_a_port_that_is_taken(tmp_path: Path, mosquitto: Mosquitto) -> None:
    with taken_port() as port:
        (tmp_path / "a.lot").write_text(server_route(port))
        line = reason_of(run(tmp_path, broker=mosquitto.url))
        assert line.startswith(f"cannot listen on 127.0.0.1 port {port} (SERVER_PORT): Address already in use")


@pytest.mark.parametrize("host", ["host\udcff", "a\0b", "a..example", "a" * 70 + ".example"])
def test_a_host_that_cannot_be_one(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^cannot listen on .* port 0 \(SERVER_PORT\): ."):
        bound_socket(host, 0, "SERVER_PORT")


TLS = f"""\
listener {{port}} 127.0.0.1
allow_anonymous false
password_file {{folder}}/passwords
cafile {AUTHORITY}
certfile {CERTIFICATES}/server.pem
keyfile {CERTIFICATES}/server.pem
require_certificate true
user {{user}}
"""


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A mosquitto with TLS, and a user `bridge` with the password `s3cret`."""
    broker = Mosquitto(tmp_path_factory.mktemp("tls"), configuration=TLS)
    passwords = broker.folder / "passwords"
    passwords.touch()
    subprocess.run(["mosquitto_passwd", "-b", str(passwords), "bridge", "s3cret"], check=True)
    with broker:
        yield broker


@pytest.mark.mosquitto
@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        pytest.param({}, None, id="right"),
        pytest.param({"ca_file": None}, "its certificate is refused: self-signed certificate", id="unknown authority"),
        pytest.param({"password_secret": None}, "refuses the client: Not authorized", id="no password"),
    ],
)
def test_tls_certificate_and_password(
    tmp_path: Path, change: dict[str, None], wrong: str | None, tls_broker: Mosquitto
) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    settings: dict[str, Any] = {
        "broker": f"mqtts://bridge@localhost:{tls_broker.port}", "ca_file": AUTHORITY, "secrets_dir": str(tmp_path),
        "cert_file": str(CERTIFICATES / "client.pem"), "key_file": str(CERTIFICATES / "client.pem"),
        "password_secret": "password", **change,
    }  # fmt: skip
    with Group(tmp_path, tls_broker) as group:
        group.routes(client_route("Echo", 9, "in"))
        worker = group.start(**settings)
        if wrong is None:
            worker.ready()
            worker.stop()
        else:
            worker.line(wrong)
            assert worker.end() == 1
        assert "s3cret" not in "".join(worker.lines)


@pytest.mark.mosquitto
def test_status_and_replay_use_tls_files_and_the_password_of_the_environment(
    tmp_path: Path, tls_broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REST_BRIDGE_BROKER_PASSWORD", "s3cret")
    failure = {"source_topic": "in", "payload": "x", "payload_encoding": "utf-8"}
    (tmp_path / "failures.jsonl").write_text(json.dumps(failure))
    client = str(CERTIFICATES / "client.pem")
    address = ["--broker", f"mqtts://bridge@localhost:{tls_broker.port}", "--ca-file", AUTHORITY]
    own = ["--cert-file", client, "--key-file", client]

    def ended(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return forked.run(forked.REST_BRIDGE, [*arguments], tmp_path)

    assert (ended("status", "--json", *address, *own).stdout) == "[]\n"
    replayed = ended("replay", "--from", "failures.jsonl", "--yes", *address, *own)
    assert (replayed.returncode, replayed.stdout) == (0, "      1 on in\npublished 1 message(s)\n")
    for arguments, wrong in (
        ((*address[:2], *own), "its certificate is refused: "),
        ((*address, "--cert-file", client), "--cert-file and --key-file belong together: give both, or none"),
        ((*address, "--cert-file", "gone", "--key-file", client), "the TLS files cannot be used (--ca-file "),
        (("--broker", "mqtt://localhost", "--ca-file", AUTHORITY), "--ca-file needs TLS: write --broker mqtts://"),
    ):
        refused = ended("status", *arguments)
        assert refused.returncode in (1, 2)
        assert wrong in refused.stderr
        assert "s3cret" not in refused.stderr
    monkeypatch.setenv("REST_BRIDGE_BROKER_PASSWORD", "wrong")
    assert "not authorized" in ended("status", *address, *own).stderr


def test_a_worker_holds_neither_the_parser_nor_what_only_the_plugin_needs() -> None:
    """Routes are loaded in a process that ends."""
    imported = "amqtt_rest_bridge.cli.worker, amqtt_rest_bridge.cli.configuration, amqtt_rest_bridge.bridge"
    program = f"import sys, {imported}; print(*sorted({{module.partition('.')[0] for module in sys.modules}}))"
    ended = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert not {"amqtt", "jinja2", "prometheus_client", "regex", "tatsu", "urllib3", "waitress"} & {
        *ended.stdout.split()
    }
