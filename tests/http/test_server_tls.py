"""HTTPS: the same answers over TLS 1.2 and newer, certificates read again, broken handshakes."""

import contextlib
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.server import PortLimits
from amqtt_rest_bridge.http.server_tls import TlsFiles
from tests.support.http_ports import Raw, Served, certificate, get, post, served
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certificate(tmp_path_factory.mktemp("tls"))


def trusting(files: TlsFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files.certfile)


@pytest.fixture(scope="module")
def shared(make_loop: None, files: TlsFiles) -> Iterator[Served]:
    with served(tls=files) as hooks:
        yield hooks


@pytest.fixture
def raw(hooks: Served, files: TlsFiles) -> Iterator[Raw]:
    with hooks.connect(trusting(files)) as raw:
        yield raw


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_are_served_over_tls(hooks: Served, files: TlsFiles, version: ssl.TLSVersion) -> None:
    context = trusting(files)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with hooks.connect(context) as raw:
        for number in range(3):
            assert raw.ask(post(body=b"%d" % number)).status == 200
        assert hooks.bodies == [b"0", b"1", b"2"]
        assert isinstance(raw.sock, ssl.SSLSocket)
        assert raw.sock.selected_alpn_protocol() == "http/1.1"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_older_versions_are_refused(hooks: Served, raw: Raw, files: TlsFiles) -> None:
    context = trusting(files)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        hooks.connect(context)
    assert raw.ask(post()).status == 200


def test_large_bodies_and_answers_cross_tls_whole(files: TlsFiles) -> None:
    body = bytes(range(256)) * 1000
    with served(tls=files, max_body_bytes=len(body)) as hooks, hooks.connect(trusting(files)) as raw:
        hooks.broker.changed("last", body * 8)
        assert raw.ask(post(body=body)).status == 200
        assert raw.ask(get("/last"), "GET").body == body * 8
        assert hooks.bodies == [body]


def test_a_caller_that_has_ended_its_sending_gets_its_answer(hooks: Served, raw: Raw) -> None:
    raw.send(post("/ask"))
    reply = hooks.waiting()
    socket.socket.shutdown(raw.sock, socket.SHUT_WR)  # not that of ssl, which ends the reading too
    eventually(lambda: all(each.has_left for each in hooks.connections))
    reply.arrive(b"reply")
    assert raw.answer().body == b"reply"
    assert raw.is_closed_by_peer()


def test_requests_in_single_bytes_and_many_in_one_piece_are_served_in_order(hooks: Served, raw: Raw) -> None:
    for byte in post(body=b"first"):
        raw.send(bytes([byte]))
    raw.send(b"".join(post(body=b"%03d" % number) for number in range(500)))
    assert [raw.answer().status for _ in range(501)] == [200] * 501
    assert hooks.bodies == [b"first", *(b"%03d" % number for number in range(500))]


def test_a_caller_that_goes_on_sending_still_gets_the_refusal(raw: Raw) -> None:
    raw.send(b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(50):
        raw.send(b"x" * 20_000)
    assert raw.answer().status == 413
    assert raw.is_closed_by_peer()


def test_what_breaks_the_encryption_ends_the_connection_alone(hooks: Served, raw: Raw, files: TlsFiles) -> None:
    with hooks.connect(trusting(files)) as broken:
        assert broken.ask(post()).status == 200
        socket.socket.sendall(broken.sock, b"\x17\x03\x03\x00\x20" + bytes(32))
        with contextlib.suppress(ssl.SSLError, ConnectionResetError):
            assert broken.sock.recv(100) == b""
        assert raw.ask(post()).status == 200


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(post(), id="plain HTTP"),
        pytest.param(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", id="broken ClientHello"),
        pytest.param(b"\x00" * 100, id="noise"),
    ],
)
def test_what_is_not_a_handshake_ends_the_connection(hooks: Served, files: TlsFiles, data: bytes) -> None:
    with hooks.connect() as raw:
        raw.send(data)
        raw.read_to_the_end()  # a TLS alert may come, and a reset for what was not read
    with hooks.connect(trusting(files)) as good:
        assert good.ask(post()).status == 200


def test_a_caller_that_leaves_in_the_handshake_harms_no_other(hooks: Served, files: TlsFiles) -> None:
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", hooks.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset
        sock.close()
    with hooks.connect(trusting(files)) as good:
        assert good.ask(post()).status == 200


def test_certificate_files_are_read_again(tmp_path: Path) -> None:
    old = certificate(tmp_path)
    context = trusting(old)
    with served(tls=old) as hooks, hooks.connect(context) as before:
        new = certificate(tmp_path)  # the same paths
        hooks.server.reload_tls()
        assert before.ask(post()).status == 200  # connections live on
        with pytest.raises(ssl.SSLCertVerificationError):
            hooks.connect(context)
        with hooks.connect(trusting(new)) as after:
            assert after.ask(post()).status == 200


def test_files_that_became_unusable_leave_the_old_certificate_at_work(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    context = trusting(files)
    with served(tls=files) as hooks:
        Path(files.keyfile).write_text("no key", encoding="ascii")
        with pytest.raises(ConfigurationError, match="cannot be used"):
            hooks.server.reload_tls()
        with hooks.connect(context) as raw:
            assert raw.ask(post()).status == 200


def encrypt(files: TlsFiles) -> None:
    command = ["openssl", "pkey", "-in", files.keyfile, "-aes256", "-passout", "pass:x", "-out", f"{files.keyfile}.enc"]
    subprocess.run(command, check=True, capture_output=True)
    Path(files.keyfile).write_bytes(Path(f"{files.keyfile}.enc").read_bytes())


@pytest.mark.parametrize("what", ["missing", "a FIFO", "empty", "encrypted", "another's key"])
def test_unusable_files_are_a_configuration_error_that_names_them(tmp_path: Path, what: str) -> None:
    files = certificate(tmp_path)
    if what == "missing":
        Path(files.certfile).unlink()
    elif what == "a FIFO":
        Path(files.keyfile).unlink()
        os.mkfifo(files.keyfile)
    elif what == "empty":
        Path(files.keyfile).write_bytes(b"")
    elif what == "encrypted":
        encrypt(files)
    else:
        files = TlsFiles(files.certfile, certificate(tmp_path, "other").keyfile)
    with pytest.raises(ConfigurationError) as caught, served(tls=files):
        pass
    assert files.certfile in str(caught.value)
    assert files.keyfile in str(caught.value)


def test_a_tls_port_has_no_answer_for_one_connection_too_many(files: TlsFiles) -> None:
    with served(tls=files, limits=PortLimits(connections=1)) as hooks, Raw(hooks.port) as first:
        first.send(b"\x16\x03\x01")
        with Raw(hooks.port) as second:
            assert second.is_closed_by_peer()
