"""What the client sends, byte for byte, and the settings that it refuses."""

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.model import HttpRequest, Method, RestApiConfig
from tests.http.clients import base_of, client_of, options_of
from tests.support.http_target import Peer, Target, echo, reply


def test_request_arrives_as_it_was_built() -> None:
    headers = (("Host", "elsewhere.test"), ("X-B", "1"), ("x-a", "grüß"), ("X-B", "2"), ("Content-Length", "3"))
    with Target(echo) as target, client_of(base_of(target)) as client:
        response = client.send(HttpRequest(Method.PUT, base_of(target) + "/a/../b%20c?d={e}", headers, b"\x00\xffz"))
    (seen,) = target.requests
    assert seen.line == "PUT /a/../b%20c?d={e} HTTP/1.1"
    assert seen.fields == headers
    assert seen.body == response.body == b"\x00\xffz"


def test_host_and_content_length_are_added_when_they_are_missing() -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        client.send(HttpRequest(Method.POST, base_of(target) + "/", (), b"abc"))
        client.send(HttpRequest(Method.GET, base_of(target)))
    first, second = target.requests
    assert first.fields == (("Host", f"127.0.0.1:{target.port}"), ("Content-Length", "3"))
    assert second.fields == (("Host", f"127.0.0.1:{target.port}"),)
    assert second.line == "GET / HTTP/1.1"


def test_what_a_request_line_cannot_hold_is_percent_encoded() -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        client.send(HttpRequest(Method.GET, base_of(target) + "/käse kuchen#top"))
    assert target.requests[0].line == "GET /k%C3%A4se%20kuchen HTTP/1.1"


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "a\rb"])
def test_line_break_in_a_header_is_never_sent(value: str) -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        with pytest.raises(ValueError, match="Invalid header value"):
            client.send(HttpRequest(Method.GET, base_of(target) + "/", (("X-A", value),)))
        assert not target.requests


@pytest.mark.parametrize("name", ["", "X A", "X:A", "X-A\r\nX-B", "Ä"])
def test_a_header_name_that_http_does_not_have_is_never_sent(name: str) -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        with pytest.raises(ValueError, match="Invalid header name"):
            client.send(HttpRequest(Method.GET, base_of(target) + "/", ((name, "1"),)))
        assert not target.requests


@pytest.mark.parametrize("path", ["/a\r\nX-Injected:1", "/a\x00", "/a\x7f", "/a\tb"])
def test_a_control_character_in_the_target_is_never_sent(path: str) -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        with pytest.raises(ValueError, match="Invalid method or target"):
            client.send(HttpRequest(Method.GET, base_of(target) + path))
        assert not target.requests


def test_another_server_than_the_route_names_is_refused() -> None:
    with Target(echo) as target, client_of(base_of(target)) as client:
        with pytest.raises(ValueError, match="only sends to"):
            client.send(HttpRequest(Method.GET, base_of(target).replace("127.0.0.1", "127.0.0.1.test") + "/"))
        assert not target.connections


def test_large_body_and_response_go_through_whole() -> None:
    body = bytes(range(256)) * 1_024
    with Target(echo) as target, client_of(base_of(target)) as client:
        assert client.send(HttpRequest(Method.POST, base_of(target) + "/", (), body)).body == body


def test_ipv6_address_is_reached_and_written_in_brackets() -> None:
    with Target(echo, host="::1") as target, client_of(f"http://[::1]:{target.port}") as client:
        assert client.send(HttpRequest(Method.GET, f"http://[::1]:{target.port}/x")).status == 200
    assert target.requests[0].values("Host") == [f"[::1]:{target.port}"]


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("http://user:secret@host", "USERNAME and PASSWORD"),
        ("http://host/path?query=1", "query"),
        ("http://host/#top", "query or a fragment"),
        ("ftp://host", "http and https"),
        ("host", "http and https"),
        ("http://", "no host"),
        ("http://ho st", "not a host name"),
        ("http://host:0", "port"),
        ("http://host:99999", "ort"),
        ("http://[::1", "not an address"),
        ("http://[::zz]", "not an address"),
        ("http://faß.test", "xn--"),
        (f"http://{'a' * 64}.test", "not a host name"),
    ],
)
def test_unusable_base_address_is_refused(base: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match="BASE_ADDRESS") as caught:
        options_of(RestApiConfig(base_address=base))
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_non_ascii_host_is_sent_as_its_a_label() -> None:
    with Target(echo) as target:
        base = f"http://KÄSE.test:{target.port}"
        with client_of(base, addresses={("xn--kse-qla.test", target.port): ("127.0.0.1",)}) as client:
            client.send(HttpRequest(Method.GET, f"http://xn--kse-qla.test:{target.port}/"))
    assert target.requests[0].values("Host") == [f"xn--kse-qla.test:{target.port}"]


def test_the_response_to_a_body_that_is_refused_half_way_is_read() -> None:
    """A server may answer 413 and stop reading: what it says is worth more than the broken pipe."""

    def script(peer: Peer) -> None:
        peer.sock.recv(100)
        peer.send(reply(b"too much", "413 Content Too Large", "Connection: close"))
        peer.server.stopping.wait()

    with Target(script) as target, client_of(base_of(target)) as client:
        response = client.send(HttpRequest(Method.POST, f"{base_of(target)}/", (), b"x" * 20_000_000))
    assert (response.status, response.body) == (413, b"too much")
