"""How the sender gets to a server: TLS with its certificates, proxies, redirects."""

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from amqtt_rest_bridge.bridge import client_results, http_failures
from amqtt_rest_bridge.bridge.http_origin import Origin
from amqtt_rest_bridge.bridge.http_proxies import find_proxy
from amqtt_rest_bridge.bridge.http_resolver import Resolver
from amqtt_rest_bridge.bridge.http_sender import HttpSender
from amqtt_rest_bridge.errors import CallFailed, ConfigurationError, FailureCode
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, RestApiConfig
from tests.bridge.http_target import (
    AUTHORITY,
    CERTIFICATES,
    ConnectProxy,
    Peer,
    Script,
    Target,
    answering,
    closing,
    echo,
    reply,
    server_tls,
    silent,
)

CLIENT = str(CERTIFICATES / "client.pem")


@contextmanager
def sender_of(config: RestApiConfig, environment: dict[str, str] | None = None) -> Iterator[HttpSender]:
    resolver = Resolver(lambda host, port: ["127.0.0.1"])
    sender = HttpSender(
        replace(config, request_timeout=5), max_response_bytes=1_000, environment=environment or {}, resolver=resolver
    )
    yield sender
    sender.close()


def get(config: RestApiConfig, path: str = "/", environment: dict[str, str] | None = None) -> HttpResponse:
    with sender_of(config, environment) as sender:
        return sender.send(HttpRequest(Method.GET, f"{config.base_address}{path}"))


def failure_of(config: RestApiConfig, environment: dict[str, str] | None = None) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        get(config, environment=environment)
    assert caught.value.hint
    return caught.value


# TLS.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_certificate_of_a_known_authority_is_accepted_for_its_names(host: str) -> None:
    with Target(echo, tls=server_tls()) as target:
        config = RestApiConfig(base_address=f"https://{host}:{target.port}", ca_file=AUTHORITY)
        with sender_of(config) as sender:
            for _ in range(3):
                body = b"x" * 900
                assert sender.send(HttpRequest(Method.POST, f"{config.base_address}/", (), body)).body == body
        assert target.connections == 1


def test_certificate_is_accepted_for_an_ipv6_address() -> None:
    with Target(echo, tls=server_tls(), host="::1") as target:
        assert get(RestApiConfig(base_address=f"https://[::1]:{target.port}", ca_file=AUTHORITY)).status == 200


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
        failure = failure_of(RestApiConfig(base_address=f"https://{host}:{target.port}", ca_file=ca_file))
        assert not target.requests
    assert failure.code is FailureCode.TLS_FAILED
    assert said in failure.message
    assert hint in failure.hint


@pytest.mark.parametrize("certificate", ["self_signed", "expired", "other_host"])
def test_ignore_cert_errors_accepts_any_certificate(certificate: str) -> None:
    with Target(echo, tls=server_tls(certificate)) as target:
        config = RestApiConfig(base_address=f"https://localhost:{target.port}", ignore_cert_errors=True)
        assert get(config).status == 200
        assert get(replace(config, ca_file=AUTHORITY)).status == 200


def test_self_signed_certificate_is_accepted_as_ca_file() -> None:
    with Target(echo, tls=server_tls("self_signed")) as target:
        ca_file = str(CERTIFICATES / "self_signed.pem")
        assert get(RestApiConfig(base_address=f"https://localhost:{target.port}", ca_file=ca_file)).status == 200


def test_client_certificate_is_shown() -> None:
    with Target(echo, tls=server_tls(client_authority=AUTHORITY)) as target:
        config = RestApiConfig(base_address=f"https://localhost:{target.port}", ca_file=AUTHORITY)
        assert get(replace(config, client_cert_file=CLIENT)).status == 200
        assert get(replace(config, client_cert_file=CLIENT, client_key_file=CLIENT)).status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_missing_client_certificate_is_a_tls_failure(version: ssl.TLSVersion) -> None:
    context = server_tls(client_authority=AUTHORITY)
    context.maximum_version = version
    with Target(echo, tls=context) as target:
        failure = failure_of(RestApiConfig(base_address=f"https://localhost:{target.port}", ca_file=AUTHORITY))
    assert failure.code is FailureCode.TLS_FAILED
    assert "CLIENT_CERT_FILE" in failure.hint


def test_server_without_a_common_tls_version_is_a_tls_failure() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    context.set_ciphers("DHE-RSA-AES128-SHA")  # nothing that this certificate could do
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Target(echo, tls=context) as target:
        failure = failure_of(RestApiConfig(base_address=f"https://localhost:{target.port}", ca_file=AUTHORITY))
    assert (failure.code, failure.unsent) == (FailureCode.TLS_FAILED, False)


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("UNSUPPORTED_PROTOCOL", "TLS 1.2"),
        ("TLSV1_ALERT_UNKNOWN_CA", "CLIENT_CERT_FILE"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "cipher"),
        ("WRONG_VERSION_NUMBER", "http://"),
        ("SOMETHING_NEW", "USE_SSL"),
    ],
)
def test_reasons_of_openssl_become_hints(reason: str, hint: str) -> None:
    error = ssl.SSLError(1, "")
    error.reason = reason
    failure = http_failures.tls_failed("https://host.test", error)
    assert (failure.code, failure.unsent) == (FailureCode.TLS_FAILED, False)
    assert hint in failure.hint


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


@pytest.mark.parametrize(
    ("script", "said", "unsent"),
    [
        pytest.param(
            says(b"HTTP/1.0 400 Bad Request\r\n\r\n"), "does not speak TLS", False, id="answers in plain text"
        ),
        pytest.param(hangs_up, "closed the connection during the TLS handshake", True, id="hangs up"),
        pytest.param(resets, "closed the connection during the TLS handshake", True, id="resets"),
    ],
)
def test_tls_to_a_plain_port_fails_with_a_hint(script: Script, said: str, unsent: bool) -> None:
    with Target(script) as target:
        failure = failure_of(RestApiConfig(base_address=f"https://localhost:{target.port}"))
    assert (failure.code, failure.unsent) == (FailureCode.TLS_FAILED, unsent)
    assert said in failure.message
    assert "USE_SSL" in failure.hint


def test_plain_request_to_a_tls_port_fails_with_a_hint() -> None:
    with Target(echo, tls=server_tls()) as target:
        failure = failure_of(RestApiConfig(base_address=f"http://localhost:{target.port}"))
    assert failure.code is FailureCode.CONNECTION_FAILED
    assert "USE_SSL" in failure.hint


def test_server_that_answers_plain_requests_on_its_tls_port_gets_the_same_hint() -> None:
    refusal = b"<h1>400</h1>The plain HTTP request was sent to HTTPS port"
    with Target(closing(reply(refusal, "400 Bad Request"))) as target:
        request = HttpRequest(Method.GET, f"http://127.0.0.1:{target.port}/")
        response = get(RestApiConfig(base_address=f"http://127.0.0.1:{target.port}"))
    failure = client_results.failure_of(request, response)
    assert failure is not None
    assert "USE_SSL" in failure.hint


def test_handshake_that_takes_too_long_is_a_timeout_with_nothing_sent() -> None:
    with Target(silent) as target:
        config = RestApiConfig(base_address=f"https://localhost:{target.port}", request_timeout=1)
        sender = HttpSender(config, max_response_bytes=1, environment={})
        with pytest.raises(CallFailed) as caught:
            sender.send(HttpRequest(Method.POST, f"{config.base_address}/"))
    assert (caught.value.code, caught.value.unsent) == (FailureCode.TIMEOUT, True)


def test_kept_tls_connection_that_was_closed_is_replaced() -> None:
    with Target(closing(reply(b"ok")), tls=server_tls()) as target:
        config = RestApiConfig(base_address=f"https://localhost:{target.port}", ca_file=AUTHORITY)
        with sender_of(config) as sender:
            for _ in range(3):
                assert sender.send(HttpRequest(Method.GET, f"{config.base_address}/")).body == b"ok"
        assert target.connections == 3


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
def test_unusable_tls_file_is_found_when_the_sender_is_made(settings: dict[str, str], said: str) -> None:
    config = RestApiConfig(base_address="https://localhost", **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        HttpSender(config, max_response_bytes=1, environment={})
    assert said in str(caught.value)


def test_senders_do_not_read_the_systems_authorities_before_they_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 20 ms and more, which a thousand routes cannot afford each."""
    loads: list[ssl.SSLContext] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", loads.append)
    for number in range(100):
        HttpSender(RestApiConfig(base_address=f"https://h{number}.test"), max_response_bytes=1, environment={})
    assert not loads


# Proxies.


def origin(text: str) -> Origin:
    scheme, _, rest = text.partition("://")
    host, _, port = rest.rpartition(":")
    return Origin(scheme, host, int(port))


@pytest.mark.parametrize(
    ("target", "no_proxy", "through"),
    [
        ("http://target.test:80", "", True),
        ("http://target.test:80", "other.test, target.test", False),
        ("http://a.target.test:80", "target.test", False),
        ("http://a.target.test:80", ".target.test", False),
        ("http://a.target.test:80", "*.target.test", False),
        ("http://mytarget.test:80", "target.test", True),
        ("http://target.test:80", "TARGET.test", False),
        ("http://target.test:80", "target.test:80", False),
        ("http://target.test:80", "target.test:81", True),
        ("http://target.test:80", "*", False),
        ("http://target.test:80", ",,", True),
        ("http://10.1.2.3:80", "10.0.0.0/8", False),
        ("http://11.1.2.3:80", "10.0.0.0/8", True),
        ("http://10.1.2.3:80", "10.1.2.3", False),
        ("http://10.1.2.3:80", "10.1.2.3:80", False),
        ("http://10.1.2.3:80", "nonsense/8", True),
        ("http://target.test:80", "10.0.0.0/8", True),
        ("http://fd00::1:80", "[fd00::1]:80", False),
        ("http://fd00::1:80", "fd00::/8", False),
        ("http://fd00::1:80", "fd00::1", False),
        ("http://127.0.0.1:80", "", False),
        ("http://::1:80", "", False),
        ("http://localhost:80", "", False),
        ("http://api.localhost:80", "", False),
    ],
)
def test_no_proxy_names_what_is_reached_directly(target: str, no_proxy: str, through: bool) -> None:
    environment = {"HTTP_PROXY": "http://proxy.test:3128", "NO_PROXY": no_proxy}
    assert (find_proxy(origin(target), environment) is not None) is through


def test_proxy_is_chosen_by_the_scheme_and_lower_case_wins() -> None:
    environment = {"HTTP_PROXY": "http://a.test:1", "http_proxy": "b.test:2", "HTTPS_PROXY": "http://u%40:p@c.test"}
    plain = find_proxy(Origin("http", "x.test", 80), environment)
    secure = find_proxy(Origin("https", "x.test", 443), environment)
    assert plain is not None
    assert plain.origin == Origin("http", "b.test", 2)
    assert plain.authorization is None
    assert secure is not None
    assert secure.origin == Origin("http", "c.test", 80)
    assert secure.authorization == "Basic " + base64.b64encode(b"u@:p").decode()
    assert str(secure.authorization) not in repr(secure)


@pytest.mark.parametrize(
    "proxy", ["socks5://u:secret@proxy.test:1", "https://u:secret@proxy.test", "http://", "http://a b"]
)
def test_unusable_proxy_is_found_when_the_sender_is_made(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match="HTTP_PROXY") as caught:
        HttpSender(RestApiConfig(base_address="http://x.test"), max_response_bytes=1, environment={"HTTP_PROXY": proxy})
    assert "secret" not in str(caught.value)


def test_plain_request_goes_to_its_proxy_with_the_whole_url() -> None:
    with ConnectProxy(0) as proxy:
        environment = {"HTTP_PROXY": f"http://user:word@127.0.0.1:{proxy.port}"}
        config = RestApiConfig(base_address="http://target.test/base")
        with sender_of(config, environment) as sender:
            for _ in range(2):
                response = sender.send(HttpRequest(Method.GET, "http://target.test/base/x?y"))
    assert response.body == b"by the proxy"
    assert proxy.connections == 1
    assert proxy.requests[0].line == "GET http://target.test/base/x?y HTTP/1.1"
    assert proxy.requests[0].values("Host") == ["target.test"]
    assert proxy.requests[0].values("Proxy-Authorization") == ["Basic " + base64.b64encode(b"user:word").decode()]


def test_tls_goes_through_a_tunnel_and_the_proxy_sees_nothing_of_it() -> None:
    with Target(echo, tls=server_tls()) as target, ConnectProxy(target.port) as proxy:
        environment = {"https_proxy": f"http://user:word@127.0.0.1:{proxy.port}"}
        config = RestApiConfig(base_address="https://target.test", ca_file=AUTHORITY)
        with sender_of(config, environment) as sender:
            for _ in range(2):
                assert sender.send(HttpRequest(Method.POST, "https://target.test/x", (), b"body")).body == b"body"
    assert [seen.line for seen in proxy.requests] == ["CONNECT target.test:443 HTTP/1.1"]
    assert proxy.requests[0].values("Proxy-Authorization") == ["Basic " + base64.b64encode(b"user:word").decode()]
    assert [seen.line for seen in target.requests] == ["POST /x HTTP/1.1"] * 2
    assert not target.requests[0].values("Proxy-Authorization")


@pytest.mark.parametrize("host", ["target.test", "[fd00::1]"])
@pytest.mark.parametrize("port", [443, 4430, 8443])
def test_tunnel_is_asked_for_by_host_and_port(host: str, port: int) -> None:
    with ConnectProxy(0, refuse=reply(b"", "403 Forbidden")) as proxy:
        environment = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"}
        failure_of(RestApiConfig(base_address=f"https://{host}:{port}"), environment)
    assert proxy.requests[0].line == f"CONNECT {host}:{port} HTTP/1.1"
    assert proxy.requests[0].values("Host") == [f"{host}:{port}"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(reply(b"", "407 Proxy Authentication Required"), "407 Proxy Authentication Required", id="407"),
        pytest.param(b"what?\r\n\r\n", "not HTTP", id="no HTTP"),
        pytest.param(b"", "no connection", id="closed"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nmore", "more than", id="speaks first in the tunnel"),
    ],
)
def test_proxy_that_opens_no_tunnel_is_named(answer: bytes, said: str) -> None:
    with ConnectProxy(0, refuse=answer) as proxy:
        environment = {"HTTPS_PROXY": f"http://user:word@127.0.0.1:{proxy.port}"}
        failure = failure_of(RestApiConfig(base_address="https://target.test"), environment)
        assert f"proxy 127.0.0.1:{proxy.port}" in failure.message
    assert (failure.code, failure.unsent) == (FailureCode.CONNECTION_FAILED, True)
    assert said in failure.message
    assert "word" not in failure.message + failure.hint


# Redirects.


def pages(**answers: bytes) -> Script:
    """Serve pages by the last part of their path."""

    def script(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            peer.send(answers[seen.line.split()[1].rpartition("/")[2].partition("?")[0]])

    return script


def to(location: str, status: str = "302 Found") -> bytes:
    return reply(b"moved", status, f"Location: {location}")


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirect_of_a_get_is_followed_on_the_same_server_with_its_headers(status: str) -> None:
    with Target(pages(a=to("../x/b?q=1 2", status), b=reply(b"there"))) as target:
        base = f"http://127.0.0.1:{target.port}"
        with sender_of(RestApiConfig(base_address=base)) as sender:
            response = sender.send(HttpRequest(Method.GET, base + "/y/a", (("Authorization", "Basic abc"),)))
    assert (response.status, response.body) == (200, b"there")
    assert [seen.line for seen in target.requests] == ["GET /y/a HTTP/1.1", "GET /x/b?q=1%202 HTTP/1.1"]
    assert target.requests[1].values("Authorization") == ["Basic abc"]
    assert target.connections == 1


def test_five_redirects_are_followed_and_the_sixth_is_refused() -> None:
    five = {f"p{number}": to(f"p{number + 1}") for number in range(5)}
    with Target(pages(**five, p5=reply(b"there"))) as target:
        assert get(RestApiConfig(base_address=f"http://127.0.0.1:{target.port}"), "/p0").body == b"there"
    with Target(pages(a=to("a"))) as target:
        request = HttpRequest(Method.GET, f"http://127.0.0.1:{target.port}/a")
        response = get(RestApiConfig(base_address=f"http://127.0.0.1:{target.port}"), "/a")
        assert len(target.requests) == 6
    failure = client_results.failure_of(request, response)
    assert failure is not None
    assert failure.code is FailureCode.REDIRECT_REFUSED
    assert "circle" in failure.hint


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:1/",
        "http://localhost:{port}/",
        "https://127.0.0.1:{port}/",
        "http://u:p@127.0.0.1:{port}/",
        "ftp://x/",
    ],
)
def test_redirect_elsewhere_is_not_followed(location: str) -> None:
    with Target(answering(reply())) as other, Target(pages(a=to(location.format(port=0)))) as target:
        there = location.format(port=target.port)
        target._script = pages(a=to(there))
        base = f"http://127.0.0.1:{target.port}"
        response = get(RestApiConfig(base_address=base), "/a")
        assert len(target.requests) == 1
        assert not other.connections
    failure = client_results.failure_of(HttpRequest(Method.GET, base + "/a"), response)
    assert failure is not None
    assert (failure.code, response.status) == (FailureCode.REDIRECT_REFUSED, 302)


@pytest.mark.parametrize("method", [Method.POST, Method.PUT, Method.DELETE, Method.PATCH])
def test_redirect_of_another_method_is_not_followed(method: Method) -> None:
    with Target(pages(a=to("b"), b=reply())) as target:
        base = f"http://127.0.0.1:{target.port}"
        with sender_of(RestApiConfig(base_address=base)) as sender:
            response = sender.send(HttpRequest(method, base + "/a"))
        assert len(target.requests) == 1
    failure = client_results.failure_of(HttpRequest(method, base + "/a"), response)
    assert failure is not None
    assert failure.code is FailureCode.REDIRECT_REFUSED
    assert f"{method} is not redirected" in failure.message


def test_redirect_from_http_on_80_to_https_on_443_is_followed() -> None:
    """Both ports are the tests' own here: proxies lead there, because 80 and 443 are not for tests to take."""
    with (
        Target(answering(reply(b"secure")), tls=server_tls()) as secure,
        ConnectProxy(secure.port) as tunnel,
        Target(answering(to("https://target.test/there"))) as plain,
    ):
        environment = {
            "HTTP_PROXY": f"http://127.0.0.1:{plain.port}",
            "HTTPS_PROXY": f"http://127.0.0.1:{tunnel.port}",
        }
        config = RestApiConfig(base_address="http://target.test", ca_file=AUTHORITY)
        with sender_of(config, environment) as sender:
            for _ in range(2):
                assert sender.send(HttpRequest(Method.GET, "http://target.test/here")).body == b"secure"
    assert [seen.line for seen in secure.requests] == ["GET /there HTTP/1.1"] * 2
    assert secure.requests[0].values("Host") == ["target.test"]


def test_certificates_are_beside_their_script() -> None:
    assert (Path(CERTIFICATES) / "make.sh").is_file()
