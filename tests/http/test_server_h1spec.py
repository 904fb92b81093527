"""The 33 cases of h1spec (github.com/uNetworking/h1spec), against an endpoint that answers with its request's body."""

import pytest

from amqtt_rest_bridge.http.exchange import Request, Response
from tests.support.http_ports import Raw, RunningServer, get, serving

WHOLE = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"GET / HTTP/1.1\r\nHost: example.com\r\n"
POST = b"POST / HTTP/1.1\r\nHost: example.com\r\n"


class Echo:
    def answer(self, request: Request) -> Response:
        return Response("200 OK", body=request.body)


@pytest.fixture
def server(make_loop: None) -> object:
    with serving(Echo()) as running:
        yield running


@pytest.mark.parametrize(
    "fragment",
    [
        b"G", b"GET ", b"GET /hello", b"GET /hello ", b"GET /hello HTTP", b"GET /hello HTTP/1.1",
        b"GET /hello HTTP/1.1\r", b"GET /hello HTTP/1.1\r\n", b"GET /hello HTTP/1.1\r\nHos",
        b"GET /hello HTTP/1.1\r\nHost:", b"GET /hello HTTP/1.1\r\nHost: ", b"GET /hello HTTP/1.1\r\nHost: localhost",
        b"GET /hello HTTP/1.1\r\nHost: localhost\r", b"GET /hello HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r",
    ],
)  # fmt: skip
def test_a_fragment_is_waited_for(server: RunningServer, fragment: bytes) -> None:
    with Raw(server.bound_port) as raw, Raw(server.bound_port) as other:
        raw.send(fragment)
        assert other.ask(get("/"), "GET").status == 200
        assert not raw.is_readable()
        assert raw.ask(WHOLE[len(fragment) :], "GET").status == 200


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        pytest.param(b"GET / \r\n\r\n", 400, None, id="no version"),
        pytest.param(HEAD + b"Expect: 100-continue\r\n\r\n", 200, b"", id="Expect without a body"),
        pytest.param(HEAD + b"\r\n", 200, b"", id="valid GET"),
        pytest.param(b"GET / HTTP/1.1\r\nhoSt:\texample.com\r\nempty:\r\n\r\n", 200, b"", id="valid, with edge cases"),
        pytest.param(HEAD + b"X-Invalid[]: test\r\n\r\n", 400, None, id="invalid characters in a name"),
        pytest.param(b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 400, None, id="no Host"),
        pytest.param(HEAD + b"Host: example.org\r\n\r\n", 400, None, id="two Hosts"),
        pytest.param(HEAD + b"Content-Length: -123456789123456789123456789\r\n\r\n", 400, None, id="overflow"),
        pytest.param(HEAD + b"Content-Length: -1234\r\n\r\n", 400, None, id="negative length"),
        pytest.param(HEAD + b"Content-Length: abc\r\n\r\n", 400, None, id="no number"),
        pytest.param(HEAD + b"X-Empty-Header: \r\n\r\n", 200, b"", id="empty value"),
        pytest.param(HEAD + b"X-Bad-Control-Char: test\x07\r\n\r\n", 400, None, id="control character"),
        pytest.param(b"GET / HTTP/9.9\r\nHost: example.com\r\n\r\n", 400, None, id="invalid version"),
        pytest.param(b"Extra line" + HEAD + b"\r\n", 400, None, id="invalid prefix"),
        pytest.param(HEAD + b"\rSome-Header: Test\r\n\r\n", 400, None, id="invalid line ending"),
        pytest.param(POST + b"Content-Length: 5\r\n\r\nhello", 200, b"hello", id="valid POST"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\nc\r\nHellO world1\r\n0\r\n\r\n", 200, b"HellO world1",
                     id="chunks"),
        pytest.param(POST + b"content-LengtH: 5\r\nTransFer-Encoding: chunked\r\n\r\nc\r\nHellO world1\r\n0\r\n\r\n",
                     400, None, id="length and chunks"),
    ],
)  # fmt: skip
def test_a_request_is_answered(server: RunningServer, request_bytes: bytes, status: int, body: bytes | None) -> None:
    with Raw(server.bound_port) as raw:
        answer = raw.ask(request_bytes)
    assert answer.status == status
    assert body is None or answer.body == body
