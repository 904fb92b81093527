"""Files that a route names for TLS: read once, looked at for each connection; a bad one costs its route alone."""

import json
import os
import signal
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from amqtt_rest_bridge.bridge.client.senders import client_options
from amqtt_rest_bridge.bridge.engine import Network
from amqtt_rest_bridge.bridge.main import check_routes
from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode
from amqtt_rest_bridge.http_client import TlsContexts, TlsOptions, check_files
from amqtt_rest_bridge.model import ClientEvent, HttpRequest, Method, RestApiConfig, Route
from amqtt_rest_bridge.placeholders import Mode, Place, parse
from amqtt_rest_bridge.settings import BridgeSettings
from tests.http_client.clients import client_by, failure_of
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import recording
from tests.support.http_target import AUTHORITY, CERTIFICATES, Target, closing, echo, reply, server_tls
from tests.support.waiting import eventually

CLIENT = str(CERTIFICATES / "client.pem")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"ca_file": "missing.pem"}, "CA_FILE: missing.pem", id="no such CA_FILE"),
        pytest.param({"ca_file": __file__}, "CA_FILE", id="CA_FILE without certificates"),
        pytest.param(
            {"client_cert_file": "missing.pem"}, "CLIENT_CERT_FILE: missing.pem", id="no such CLIENT_CERT_FILE"
        ),
        pytest.param({"client_cert_file": AUTHORITY}, "CLIENT_CERT_FILE", id="no key"),
        pytest.param(
            {"client_cert_file": CLIENT, "client_key_file": "missing.key"},
            "CLIENT_KEY_FILE: missing.key",
            id="no such key",
        ),
        pytest.param(
            {"client_cert_file": CLIENT, "client_key_file": str(CERTIFICATES / "server.pem")},
            "CLIENT_CERT_FILE",
            id="another certificate's key",
        ),
        pytest.param(
            {"client_cert_file": CLIENT, "client_key_file": str(CERTIFICATES / "encrypted_client.key")},
            "passphrase",
            id="encrypted key",
        ),
        pytest.param({"client_key_file": CLIENT}, "CLIENT_KEY_FILE is set without CLIENT_CERT_FILE", id="key alone"),
    ],
)
def test_unusable_tls_file_is_found_by_a_check_and_fails_the_call_that_needs_it(
    settings: dict[str, str], said: str
) -> None:
    config = RestApiConfig(base_address="https://localhost", **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        check_files(client_options(config, max_response_bytes=1, environment={}).tls)
    assert said in str(caught.value)
    failure = failure_of(config)
    assert (failure.code, failure.unsent) == (FailureCode.TLS_FAILED, False)
    assert said in failure.message


@pytest.mark.parametrize("before", [None, "no certificate"], ids=["gone", "without certificates"])
def test_a_file_that_is_back_is_used_for_the_next_call(tmp_path: Path, before: str | None) -> None:
    file = tmp_path / "ca.pem"
    if before is not None:
        file.write_text(before)
    with Target(echo, tls=server_tls()) as target:
        config = RestApiConfig(base_address=f"https://localhost:{target.port}", ca_file=str(file))
        with client_by(config) as client:
            for _ in range(2):
                with pytest.raises(CallError, match=f"CA_FILE: {file} cannot be used"):
                    client.send(HttpRequest(Method.GET, f"{config.base_address}/"))
            file.write_bytes(Path(AUTHORITY).read_bytes())
            assert client.send(HttpRequest(Method.GET, f"{config.base_address}/")).status == 200


@pytest.mark.parametrize("setting", ["ca_file", "client_cert_file", "client_key_file"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        pytest.param(os.mkfifo, "a FIFO", id="FIFO"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "a device", id="device"),
        pytest.param(Path.mkdir, "a folder", id="folder"),
    ],
)
def test_a_path_whose_reading_might_never_end_is_not_read(
    tmp_path: Path, setting: str, make: Callable[[Path], object], kind: str
) -> None:
    path = tmp_path / "tls.pem"
    make(path)
    options = TlsOptions(**{"client_cert_file": CLIENT, setting: str(path)})  # type: ignore[arg-type]
    for read in (check_files, TlsContexts().of):
        with pytest.raises(ConfigurationError, match=rf"{setting.upper()}: {path} cannot be used \(it is {kind}, "):
            read(options)


def test_a_file_that_goes_while_it_is_in_use_stays_in_use_until_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(AUTHORITY).read_bytes())
    with Target(closing(reply(b"ok")), tls=server_tls()) as target:
        config = RestApiConfig(base_address=f"https://localhost:{target.port}", ca_file=str(file))
        with client_by(config) as client:
            request = HttpRequest(Method.GET, f"{config.base_address}/")
            assert client.send(request).body == b"ok"
            file.unlink()
            assert client.send(request).body == b"ok"
            file.write_bytes((CERTIFICATES / "self_signed.pem").read_bytes())
            with pytest.raises(CallError, match="is refused"):
                client.send(request)


class Reads:
    """How often OpenSSL reads authorities from a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[str] = []
        load = ssl.SSLContext.load_verify_locations

        def counted(context: ssl.SSLContext, cafile: str) -> None:
            self.files.append(cafile)
            load(context, cafile)

        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)


def test_routes_with_the_same_files_share_a_context_and_a_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, file, contexts = Reads(monkeypatch), tmp_path / "ca.pem", TlsContexts()
    file.write_bytes(Path(AUTHORITY).read_bytes())
    options = TlsOptions(ca_file=str(file))
    made = [contexts.of(TlsOptions(ca_file=str(file))) for _ in range(100)]
    assert all(context is made[0] for context in made)
    assert contexts.of(replace(options, verify=False)) is not made[0]
    assert len(reads.files) == 2
    file.write_bytes(Path(AUTHORITY).read_bytes() * 2)
    assert contexts.of(options) is not made[0]
    assert len(reads.files) == 3


def test_a_file_that_holds_the_wrong_thing_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, file, contexts = Reads(monkeypatch), tmp_path / "ca.pem", TlsContexts()
    file.write_text("no certificate")
    for _ in range(10):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            contexts.of(TlsOptions(ca_file=str(file)))
    assert len(reads.files) == 1


def test_a_check_reads_each_set_of_files_once_and_making_clients_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    event = ClientEvent("E", "in", Method.GET, parse("/x", Place.ENDPOINT, Mode.CLIENT))
    config = RestApiConfig(base_address="https://h.test", enable_client=True, ca_file=AUTHORITY)
    routes = [Route(f"R{number}", config, client_events=(event,)) for number in range(200)]
    check_routes(routes, BridgeSettings())
    assert reads.files == [AUTHORITY]
    network = Network()
    for route in routes:
        network.sender(route.config, BridgeSettings()).close()
    assert reads.files == [AUTHORITY]


def route(name: str, base_address: str, ca_file: Path | None = None) -> str:
    files = "" if ca_file is None else f'WITH CA_FILE "{ca_file}"'
    return f"""DEFINE ROUTE {name} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{base_address}" WITH ENABLE_CLIENT "true" {files}
        ADD EVENT E
            WITH SOURCE_TOPIC "in/{name}" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out/{name}"
    """


def test_a_file_that_is_gone_when_the_bridge_process_starts_again_costs_its_route_alone(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(AUTHORITY).read_bytes())
    with recording() as plain, Target(echo, tls=server_tls()) as secure:
        routes = route("Plain", plain.url) + route("Secure", f"https://localhost:{secure.port}", file)
        with hosting(routes, processes=1, status_seconds=60) as host:
            client = host.client("out/+")
            status = host.client("$SYS/broker/routes/Secure/status")
            assert json.loads(status.message()[1])["health"] == "Green"
            client.publish("in/Secure", b"1")
            assert client.message() == ("out/Secure", b"1")
            file.unlink()
            (bridge,) = host.bridges
            os.kill(bridge.pid, signal.SIGKILL)
            eventually(lambda: not bridge.ready, "the broker does not notice")
            client.publish("in/Plain", b"2")
            assert client.message() == ("out/Plain", b"2")
            client.publish("in/Secure", b"3")
            error = json.loads(client.message()[1])["error"]
            assert error["code"] == "tls_failed"
            assert f"CA_FILE: {file} cannot be used" in error["message"]
            said = json.loads(status.message()[1])
            assert said["health"] != "Green"
            assert str(file) in said["last_error"]["message"]
            os.mkfifo(file)
            client.publish("in/Secure", b"5")
            assert "it is a FIFO" in json.loads(client.message()[1])["error"]["message"]
            file.unlink()
            file.write_bytes(Path(AUTHORITY).read_bytes())
            client.publish("in/Secure", b"4")
            assert client.message() == ("out/Secure", b"4")


def test_a_file_without_certificates_is_a_fault_at_the_first_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(Exception, match="Plugin init failed"), hosting(route("R", "https://localhost", file)):
        raise AssertionError("the broker has started")
    assert f"route R: CA_FILE: {file} cannot be used" in caplog.text
