"""What the client sends, byte for byte, and the settings that it refuses."""

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.model import HttpRequest, Method, Pairs, RestApiConfig
from tests.http.clients import client_of, options_of
from tests.support.http_target import Peer, Target, echo, reply


def test_request_arrives_as_it_was_built() -> None:
    headers = (("Host", "elsewhere.test"), ("X-B", "1"), ("x-a", "grüß"), ("X-B", "2"), ("Content-Length", "3"))
    with Target(echo) as target, client_of(target) as client:
        response = client.ask(Method.PUT, "/a/../b%20c?d={e}", headers, b"\x00\xffz")
    (seen,) = target.requests
    assert seen.line == "PUT /a/../b%20c?d={e} HTTP/1.1"
    assert seen.fields == headers
    assert seen.body == response.body == b"\x00\xffz"


def test_host_and_content_length_are_added_and_what_a_request_line_cannot_hold_is_percent_encoded() -> None:
    with Target(echo) as target, client_of(target) as client:
        client.ask(Method.POST, "/", (), b"abc")
        client.ask(path="")
        client.ask(path="/käse kuchen#top")
    host = ("Host", f"127.0.0.1:{target.port}")
    assert [seen.fields for seen in target.requests] == [(host, ("Content-Length", "3")), (host,), (host,)]
    assert [seen.line for seen in target.requests][1:] == ["GET / HTTP/1.1", "GET /k%C3%A4se%20kuchen HTTP/1.1"]


@pytest.mark.parametrize(
    ("url", "headers", "said"),
    [
        *(("{url}/", (("X-A", value),), "Invalid header value") for value in ("a\r\nX-Injected: 1", "a\nb", "a\rb")),
        *(("{url}/", ((name, "1"),), "Invalid header name") for name in ("", "X A", "X:A", "X-A\r\nX-B", "Ä")),
        *(("{url}/a" + end, (), "Invalid method or target") for end in ("\r\nX-Injected:1", "\x00", "\x7f", "\tb")),
        ("http://127.0.0.1.test:{port}/", (), "only sends to"),
    ],
)
def test_what_would_change_the_shape_of_a_request_or_its_server_is_never_sent(
    url: str, headers: Pairs, said: str
) -> None:
    with Target(echo) as target, client_of(target) as client:
        with pytest.raises(ValueError, match=said):
            client.send(HttpRequest(Method.GET, url.format(url=target.url, port=target.port), headers))
        assert not target.connections


def test_large_body_and_response_go_through_whole() -> None:
    body = bytes(range(256)) * 1_024
    with Target(echo) as target, client_of(target) as client:
        assert client.ask(Method.POST, "/", (), body).body == body


def test_ipv6_address_is_reached_and_written_in_brackets() -> None:
    with Target(echo, host="::1") as target, client_of(target) as client:
        assert client.ask(path="/x").status == 200
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
        addresses = {("xn--kse-qla.test", target.port): ("127.0.0.1",)}
        with client_of(f"http://KÄSE.test:{target.port}", addresses=addresses) as client:
            client.send(HttpRequest(Method.GET, f"http://xn--kse-qla.test:{target.port}/"))
    assert target.requests[0].values("Host") == [f"xn--kse-qla.test:{target.port}"]


def test_the_response_to_a_body_that_is_refused_half_way_is_read() -> None:
    """A server may answer 413 and stop reading: what it says is worth more than the broken pipe."""

    def script(peer: Peer) -> None:
        peer.sock.recv(100)
        peer.send(reply(b"too much", "413 Content Too Large", "Connection: close"))
        peer.server.stopping.wait()

    with Target(script) as target, client_of(target) as client:
        response = client.ask(Method.POST, "/", (), b"x" * 20_000_000)
    assert (response.status, response.body) == (413, b"too much")
