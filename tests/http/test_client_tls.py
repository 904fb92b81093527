"""How the client speaks TLS, and what it says when that does not come about."""

import ssl
from dataclasses import replace

import pytest

from amqtt_rest_bridge.engine import failures
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.lot.model import HttpRequest, Method, RestApiConfig
from tests.http.clients import client_of, failure_of, get
from tests.support.http_target import (
    AUTHORITY,
    CERTIFICATES,
    Peer,
    Script,
    Target,
    closing,
    echo,
    reply,
    server_tls,
    silent,
)  # fmt: skip

CLIENT = str(CERTIFICATES / "client.pem")
VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


def config(target: Target, ca_file: str | None = AUTHORITY, host: str = "localhost") -> RestApiConfig:
    return RestApiConfig(base_address=f"https://{host}:{target.port}", ca_file=ca_file)


@pytest.mark.parametrize(("host", "listens"), [("127.0.0.1", None), ("localhost", None), ("[::1]", "::1")])
def test_certificate_of_a_known_authority_is_accepted_for_its_names(host: str, listens: str | None) -> None:
    with Target(echo, tls=server_tls(), host=listens or "127.0.0.1") as target:
        with client_of(config(target, host=host)) as client:
            for _ in range(3):
                assert client.ask(Method.POST, "/", (), b"x" * 900).body == b"x" * 900
        assert target.connections == 1


@pytest.mark.parametrize(
    ("certificate", "ca_file", "host", "said", "hint"),
    [
        pytest.param("server", None, "localhost", "unable to get", "CA_FILE", id="unknown authority"),
        pytest.param("self_signed", AUTHORITY, "localhost", "self", "CA_FILE", id="self-signed"),
        pytest.param("expired", AUTHORITY, "localhost", "expired", "new certificate", id="expired"),
        pytest.param("other_host", AUTHORITY, "localhost", "not valid for", "BASE_ADDRESS", id="another host's"),
        pytest.param("other_host", AUTHORITY, "127.0.0.1", "not valid for", "BASE_ADDRESS", id="another address's"),
    ],
)
def test_certificate_is_refused(certificate: str, ca_file: str | None, host: str, said: str, hint: str) -> None:
    with Target(echo, tls=server_tls(certificate)) as target:
        failure = failure_of(config(target, ca_file, host))
        assert not target.requests
    assert failure.code is FailureCode.TLS_FAILED
    assert said in failure.message
    assert hint in failure.hint


@pytest.mark.parametrize("certificate", ["self_signed", "expired", "other_host"])
def test_ignore_cert_errors_accepts_any_certificate(certificate: str) -> None:
    with Target(echo, tls=server_tls(certificate)) as target:
        for ca_file in (None, AUTHORITY):
            assert get(replace(config(target, ca_file), ignore_cert_errors=True)).status == 200


def test_self_signed_certificate_is_accepted_as_ca_file() -> None:
    with Target(echo, tls=server_tls("self_signed")) as target:
        assert get(config(target, str(CERTIFICATES / "self_signed.pem"))).status == 200


def test_client_certificate_is_shown() -> None:
    with Target(echo, tls=server_tls(client_authority=AUTHORITY)) as target:
        for key in (None, CLIENT):
            assert get(replace(config(target), client_cert_file=CLIENT, client_key_file=key)).status == 200


@VERSIONS
def test_missing_client_certificate_is_a_failure_that_names_the_setting(version: ssl.TLSVersion) -> None:
    """With TLS 1.3 the server refuses after the handshake: its reset may come before its reason is read."""
    context = server_tls(client_authority=AUTHORITY)
    context.maximum_version = version
    with Target(echo, tls=context) as target:
        failure = failure_of(config(target))
    if version is ssl.TLSVersion.TLSv1_2:
        assert failure.code is FailureCode.TLS_FAILED
    assert failure.code in (FailureCode.TLS_FAILED, FailureCode.CONNECTION_FAILED)
    assert "CLIENT_CERT_FILE" in failure.hint


def test_server_without_a_common_tls_version_is_a_tls_failure() -> None:
    context = server_tls()
    context.set_ciphers("DHE-RSA-AES128-SHA")  # nothing that this certificate could do
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Target(echo, tls=context) as target:
        failure = failure_of(config(target))
    assert (failure.code, failure.unsent) == (FailureCode.TLS_FAILED, False)


def says(data: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.sock.recv(100)
        peer.send(data)
        peer.wait()

    return script


def hangs_up(peer: Peer) -> None:
    peer.sock.recv(10_000)


def resets(peer: Peer) -> None:
    peer.sock.recv(10)
    peer.reset()


CLOSED = "closed the connection during the TLS handshake"


@pytest.mark.parametrize(
    ("script", "said", "unsent"),
    [
        pytest.param(says(b"HTTP/1.0 400 Bad Request\r\n\r\n"), "does not speak TLS", False, id="answers in plain"),
        pytest.param(hangs_up, CLOSED, True, id="hangs up"),
        pytest.param(resets, CLOSED, True, id="resets"),
    ],
)
def test_tls_to_a_plain_port_fails_with_a_hint(script: Script, said: str, unsent: bool) -> None:
    with Target(script) as target:
        failure = failure_of(config(target, None))
    assert (failure.code, failure.unsent) == (FailureCode.TLS_FAILED, unsent)
    assert said in failure.message
    assert "USE_SSL" in failure.hint


def test_plain_request_to_a_tls_port_fails_with_a_hint() -> None:
    with Target(echo, tls=server_tls()) as target:
        failure = failure_of(f"http://localhost:{target.port}")
    assert failure.code is FailureCode.CONNECTION_FAILED
    assert "USE_SSL" in failure.hint


def test_server_that_answers_plain_requests_on_its_tls_port_gets_the_same_hint() -> None:
    refusal = b"<h1>400</h1>The plain HTTP request was sent to HTTPS port"
    with Target(closing(reply(refusal, "400 Bad Request"))) as target:
        failure = failures.failure_of(HttpRequest(Method.GET, f"{target.url}/"), get(target))
    assert failure is not None
    assert "USE_SSL" in failure.hint


def test_handshake_that_takes_too_long_is_a_timeout_with_nothing_sent() -> None:
    with Target(silent) as target:
        failure = failure_of(config(target), seconds=1)
    assert (failure.code, failure.unsent) == (FailureCode.TIMEOUT, True)


def test_kept_tls_connection_that_was_closed_is_replaced() -> None:
    with Target(closing(reply(b"ok")), tls=server_tls()) as target, client_of(config(target)) as client:
        for _ in range(3):
            assert client.ask().body == b"ok"
            client.run(0.1)  # the server closes the connection meanwhile
        assert target.connections == 3


def ending(head: bytes, *, with_close_notify: bool) -> Script:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + head + b"\r\n4\r\nbody\r\n0\r\n\r\n")
        if with_close_notify:
            assert isinstance(peer.sock, ssl.SSLSocket)
            peer.sock.unwrap()

    return script


@VERSIONS
def test_a_body_that_ends_with_its_connection_is_complete_only_behind_close_notify(version: ssl.TLSVersion) -> None:
    """RFC 9112 section 9.8: a machine on the way could cut a response short."""
    context = server_tls()
    context.maximum_version = version
    with Target(ending(b"", with_close_notify=True), tls=context) as target:
        assert get(config(target)).body == b"4\r\nbody\r\n0\r\n\r\n"
    with Target(ending(b"", with_close_notify=False), tls=context) as target:
        failure = failure_of(config(target))
    assert (failure.code, failure.unsent) == (FailureCode.CONNECTION_FAILED, False)
    assert "while reading the response's body, without TLS's close_notify" in failure.message


@pytest.mark.parametrize(
    ("head", "body"),
    [
        pytest.param(b"Content-Length: 3\r\n", b"4\r\n", id="its length"),
        pytest.param(b"Transfer-Encoding: chunked\r\n", b"body", id="its last chunk"),
    ],
)
def test_a_body_that_says_its_own_end_is_complete_without_close_notify(head: bytes, body: bytes) -> None:
    with Target(ending(head, with_close_notify=False), tls=server_tls()) as target:
        assert get(config(target)).body == body
