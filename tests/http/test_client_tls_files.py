"""Files that a route names for TLS: read once, looked at for each connection; a bad one costs its route alone."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode
from amqtt_rest_bridge.http.client import ClientOptions, HttpClient
from amqtt_rest_bridge.http.origin import Origin
from amqtt_rest_bridge.http.tls import TlsOptions, TlsSettings, check_files
from amqtt_rest_bridge.lot.model import RestApiConfig
from tests.http.clients import client_of, failure_of, options_of
from tests.support.http_target import AUTHORITY, CERTIFICATES, Target, closing, echo, reply, server_tls

CLIENT = str(CERTIFICATES / "client.pem")


def own(name: str) -> str:
    return str(CERTIFICATES / name)


@pytest.mark.parametrize(
    ("ca_file", "client_cert_file", "client_key_file", "said"),
    [
        pytest.param("missing.pem", None, None, "CA_FILE: missing.pem", id="no such CA_FILE"),
        pytest.param(__file__, None, None, "CA_FILE", id="CA_FILE without certificates"),
        pytest.param(None, "missing.pem", None, "CLIENT_CERT_FILE: missing.pem", id="no such CLIENT_CERT_FILE"),
        pytest.param(None, AUTHORITY, None, "CLIENT_CERT_FILE", id="no key"),
        pytest.param(None, CLIENT, "missing.key", "CLIENT_KEY_FILE: missing.key", id="no such key"),
        pytest.param(None, CLIENT, own("server.pem"), "CLIENT_CERT_FILE", id="another certificate's key"),
        pytest.param(None, CLIENT, own("encrypted_client.key"), "passphrase", id="encrypted key"),
        pytest.param(None, None, CLIENT, "CLIENT_KEY_FILE is set without CLIENT_CERT_FILE", id="key alone"),
    ],
)
def test_unusable_tls_file_is_found_by_a_check_and_fails_the_call_that_needs_it(
    ca_file: str | None, client_cert_file: str | None, client_key_file: str | None, said: str
) -> None:
    files = {"ca_file": ca_file, "client_cert_file": client_cert_file, "client_key_file": client_key_file}
    config = RestApiConfig(base_address="https://localhost", **files)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        check_files(options_of(config).tls)
    assert said in str(caught.value)
    failure = failure_of(config)
    assert (failure.code, failure.unsent) == (FailureCode.TLS_FAILED, False)
    assert said in failure.message


@pytest.mark.parametrize("before", [None, "no certificate"], ids=["gone", "without certificates"])
def test_a_file_that_is_back_is_used_for_the_next_call(tmp_path: Path, before: str | None) -> None:
    file = tmp_path / "ca.pem"
    if before is not None:
        file.write_text(before)
    with Target(echo, tls=server_tls()) as target, client_of(RestApiConfig(target.url, ca_file=str(file))) as client:
        for _ in range(2):
            with pytest.raises(CallError, match=f"CA_FILE: {file} cannot be used"):
                client.ask()
        file.write_bytes(Path(AUTHORITY).read_bytes())
        assert client.ask().status == 200


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
    for read in (check_files, lambda one: TlsSettings(one).current()):
        with pytest.raises(ConfigurationError, match=rf"{setting.upper()}: {path} cannot be used \(it is {kind}, "):
            read(options)


def test_a_file_that_goes_while_it_is_in_use_stays_in_use_until_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(AUTHORITY).read_bytes())
    server = Target(closing(reply(b"ok")), tls=server_tls())
    with server as target, client_of(RestApiConfig(target.url, ca_file=str(file))) as client:
        assert client.ask().body == b"ok"
        file.unlink()
        assert client.ask().body == b"ok"
        file.write_bytes((CERTIFICATES / "self_signed.pem").read_bytes())
        with pytest.raises(CallError, match="is refused"):
            client.ask()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files from which OpenSSL has read authorities."""
    files: list[str] = []
    load = ssl.SSLContext.load_verify_locations

    def counted(context: ssl.SSLContext, cafile: str) -> None:
        files.append(cafile)
        load(context, cafile)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    return files


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, read: list[str]) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(AUTHORITY).read_bytes())
    settings = TlsSettings(TlsOptions(ca_file=str(file)))
    before = settings.current()
    assert settings.current() is before
    assert len(read) == 1
    file.write_bytes(Path(AUTHORITY).read_bytes() * 2)
    assert settings.current() != before
    assert len(read) == 2


def test_a_file_that_holds_the_wrong_thing_is_read_once_until_it_changes(tmp_path: Path, read: list[str]) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    settings = TlsSettings(TlsOptions(ca_file=str(file)))
    for _ in range(10):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            settings.current()
    assert len(read) == 1


def test_making_clients_reads_no_files(read: list[str]) -> None:
    """A thousand routes could not afford it each."""
    for number in range(100):
        HttpClient(ClientOptions(Origin("https", f"h{number}.test", 443), tls=TlsOptions(ca_file=AUTHORITY)))
    assert not read
