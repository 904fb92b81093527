"""Which requests go through a proxy, and how."""

import base64

import pytest

from amqtt_rest_bridge.errors import ConfigurationError, FailureCode
from amqtt_rest_bridge.http.client import ClientOptions, HttpClient
from amqtt_rest_bridge.http.origin import Origin, find_proxy
from amqtt_rest_bridge.lot.model import Method, RestApiConfig
from tests.http.clients import client_of, failure_of
from tests.support.http_target import AUTHORITY, ConnectProxy, Target, echo, reply, server_tls


@pytest.mark.parametrize(
    ("host", "no_proxy", "through"),
    [
        ("target.test", "", True),
        ("target.test", "other.test, target.test", False),
        ("a.target.test", "target.test", False),
        ("a.target.test", ".target.test", False),
        ("a.target.test", "*.target.test", False),
        ("mytarget.test", "target.test", True),
        ("target.test", "TARGET.test", False),
        ("target.test", "target.test:80", False),
        ("target.test", "target.test:81", True),
        ("target.test", "*", False),
        ("target.test", ",,", True),
        ("10.1.2.3", "10.0.0.0/8", False),
        ("11.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.3", False),
        ("10.1.2.3", "10.1.2.3:80", False),
        ("10.1.2.3", "nonsense/8", True),
        ("target.test", "10.0.0.0/8", True),
        ("fd00::1", "[fd00::1]:80", False),
        ("fd00::1", "fd00::/8", False),
        ("fd00::1", "fd00::1", False),
        *((host, "", False) for host in ("127.0.0.1", "::1", "localhost", "api.localhost")),
    ],
)
def test_no_proxy_names_what_is_reached_directly(host: str, no_proxy: str, through: bool) -> None:
    environment = {"HTTP_PROXY": "http://proxy.test:3128", "NO_PROXY": no_proxy}
    assert (find_proxy(Origin("http", host, 80), environment) is not None) is through


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
def test_unusable_proxy_is_found_when_the_client_is_made(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match="HTTP_PROXY") as caught:
        HttpClient(ClientOptions(Origin("http", "x.test", 80), environment={"HTTP_PROXY": proxy}))
    assert "secret" not in str(caught.value)


LOGIN = "Basic " + base64.b64encode(b"user:word").decode()
SECURE = RestApiConfig(base_address="https://target.test", ca_file=AUTHORITY)


def through(proxy: Target) -> dict[str, str]:
    address = f"http://user:word@127.0.0.1:{proxy.port}"
    return {"HTTP_PROXY": address, "https_proxy": address}


def test_plain_request_goes_to_its_proxy_with_the_whole_url() -> None:
    with ConnectProxy(0) as proxy, client_of("http://target.test/base", environment=through(proxy)) as client:
        assert [client.ask(path="/x?y").body for _ in range(2)] == [b"by the proxy"] * 2
    assert proxy.connections == 1
    assert proxy.requests[0].line == "GET http://target.test/base/x?y HTTP/1.1"
    assert proxy.requests[0].values("Host") == ["target.test"]
    assert proxy.requests[0].values("Proxy-Authorization") == [LOGIN]


@pytest.mark.parametrize("field", ["X: y", "Transfer-Encoding: identity", "Content-Length:", "Content-Length: 1"])
def test_tls_goes_through_a_tunnel_whose_length_is_ignored_and_the_proxy_sees_nothing_of_it(field: str) -> None:
    """RFC 9110 section 9.3.6: the answer to CONNECT has no content, whatever it says."""
    head = f"HTTP/1.1 200 Connection established\r\n{field}\r\n\r\n".encode()
    with (
        Target(echo, tls=server_tls()) as target,
        ConnectProxy(target.port, established=head) as proxy,
        client_of(SECURE, environment=through(proxy)) as client,
    ):
        assert [client.ask(Method.POST, "/x", (), b"body").body for _ in range(2)] == [b"body"] * 2
    assert [seen.line for seen in proxy.requests] == ["CONNECT target.test:443 HTTP/1.1"]
    assert proxy.requests[0].values("Proxy-Authorization") == [LOGIN]
    assert [seen.line for seen in target.requests] == ["POST /x HTTP/1.1"] * 2
    assert not target.requests[0].values("Proxy-Authorization")


@pytest.mark.parametrize("host", ["target.test", "[fd00::1]"])
@pytest.mark.parametrize("port", [443, 4430, 8443])
def test_tunnel_is_asked_for_by_host_and_port(host: str, port: int) -> None:
    with ConnectProxy(0, refuse=reply(b"", "403 Forbidden")) as proxy:
        failure_of(f"https://{host}:{port}", environment=through(proxy))
    assert proxy.requests[0].line == f"CONNECT {host}:{port} HTTP/1.1"
    assert proxy.requests[0].values("Host") == [f"{host}:{port}"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(reply(b"", "407 Proxy Authentication Required"), "407 Proxy Authentication Required", id="407"),
        pytest.param(b"what?\r\n\r\n", "not HTTP", id="no HTTP"),
        pytest.param(b"", "no connection", id="closed"),
    ],
)
def test_proxy_that_opens_no_tunnel_is_named(answer: bytes, said: str) -> None:
    with ConnectProxy(0, refuse=answer) as proxy:
        failure = failure_of(SECURE, environment=through(proxy))
        assert f"proxy 127.0.0.1:{proxy.port}" in failure.message
    assert (failure.code, failure.unsent) == (FailureCode.CONNECTION_FAILED, True)
    assert said in failure.message
    assert "word" not in failure.message + failure.hint
