"""`template-api serve` byte for byte: what the server itself refuses, hosts, targets, connections that stay open."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.served_api import Served
Serve = Callable[..., "AbstractContextManager[Served]"]


@pytest.fixture(scope="module")
def api(serve_in: Serve, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Served]":
    """One process for the tests that only ask."""
    folder = tmp_path_factory.mktemp("served")
    library = folder / "library.jsonl"
    library.write_text('{"slug": "one", "title": "Receive a webhook"}')
    url = f"sqlite:///{folder / 'library.db'}"
    with serve_in(folder, "--database-url", url, "--library", str(library)) as served:
        yield served


def exchange(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are, and read until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1073741824\r\n\r\n",
            413, "payload_too_large", id="a gigabyte announced and never sent",
        ),
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
            b"Content-Length: 1073741824\r\n\r\n",
            413, "payload_too_large", id="a gigabyte announced with Expect",
        ),
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n11000\r\n" + b"x" * 0x11000,
            413, "payload_too_large", id="chunks without end",
        ),
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            413, "payload_too_large", id="a chunk announced and never sent",
        ),
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            400, "invalid_request", id="length beside transfer coding",
        ),
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            400, "invalid_request", id="negative length",
        ),
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
            501, "not_implemented", id="another transfer coding",
        ),
        pytest.param(b"POST /api/search HTTP/1.1\r\n\r\n", 400, "invalid_request", id="no Host"),
        pytest.param(
            b"POST /api/search HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
            400, "invalid_request", id="a length of 5000 digits",
        ),
    ],
)  # fmt: skip
def test_the_server_itself_refuses_a_search_in_the_form_of_post(
    api: "Served", request_bytes: bytes, status: int, code: str
) -> None:
    answered, headers, body = exchange(api.port, request_bytes)
    document = json.loads(body)
    assert (answered, document["code"]) == (status, code)
    assert isinstance(document["error"], str)
    assert headers["content-type"] == "application/json"
    assert headers["access-control-allow-origin"] == "*"
    assert len(headers["x-request-id"]) == 36


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 65536, 431, "headers_too_large", id="endless header"),
        pytest.param(b"nonsense\r\n\r\n", 400, "invalid_request", id="no HTTP"),
        pytest.param(b"GET /api/templates HTTP/1.1\r\nbad header\r\n\r\n", 400, "invalid_request", id="bad header"),
        pytest.param(b"GET /health HTTP/1.1\r\n\r\n", 400, "invalid_request", id="no Host"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n", 400, "invalid_request", id="two Hosts"),
        pytest.param(b"GET /health HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", 400, "invalid_request", id="two in 1.0"),
        pytest.param(b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n", 400, "invalid_request", id="HTTP/9.9"),
        pytest.param(b"GET /health\r\n\r\n", 400, "invalid_request", id="HTTP/0.9"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", 400, "invalid_request", id="folded"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost:\r\n\tx\r\n\r\n", 400, "invalid_request", id="folded Host"),
        pytest.param(b"GET http://[x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request", id="address"),
        pytest.param(
            b"GET /health HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "invalid_request", id="chunked in 1.0"
        ),
        pytest.param(b"BREW /api/search HTTP/1.0\r\n\r\n", 405, "method_not_allowed", id="unknown method"),
        pytest.param(b"GET //evil.example/ HTTP/1.0\r\n\r\n", 404, "not_found", id="two slashes"),
    ],
)
def test_the_server_itself_refuses_in_the_form_of_the_specification(
    api: "Served", request_bytes: bytes, status: int, code: str
) -> None:
    answered, _, body = exchange(api.port, request_bytes)
    assert (answered, json.loads(body)["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "host",
    [
        b"a b",
        b"a,b",
        b"bob@x",
        b"bob:pw@x",
        b"x/y",
        b"x?y",
        b"x#y",
        b"x:80:80",
        b"x:y",
        b"[::1",
        b"x\\y",
        b"\xc3\xa9",
        b"<x>",
    ],
)
def test_a_host_that_is_not_a_host_is_refused(api: "Served", host: bytes) -> None:
    answered, _, body = exchange(api.port, b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert (answered, json.loads(body)["error"]["code"]) == (400, "invalid_request")
    assert host not in body


@pytest.mark.parametrize("target", [b"http://other.test/health", b"http://x:1/health", b"https://[::1]:9/health"])
def test_an_absolute_target_counts_and_a_host_that_disagrees_does_not(api: "Served", target: bytes) -> None:
    # RFC 9112 section 3.2.2: an origin server ignores Host then.
    asked = b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answered, _, body = exchange(api.port, asked)
    assert answered == 200
    assert b"other.test" not in body


@pytest.mark.parametrize("target", [b"http://bob@x/health", b"http://bob:pw@x/health", b"https://@[::1]:9/health"])
def test_an_absolute_target_with_a_user_name_is_refused(api: "Served", target: bytes) -> None:
    # RFC 9110 section 4.2.4: it obscures the host, and a password would reach logs.
    answered, _, body = exchange(api.port, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (answered, json.loads(body)["error"]["code"]) == (400, "invalid_request")
    assert b"bob" not in body
    assert "bob" not in api.log.read_text()


def test_one_host_may_be_empty(api: "Served") -> None:
    for host in (b"", b"x:", b"[::1]:8000", b"caf%C3%A9", b" x "):
        asked = b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
        assert exchange(api.port, asked)[0] == 200


def test_a_refused_head_has_no_body(api: "Served") -> None:
    answered, headers, body = exchange(api.port, b"HEAD / HTTP/1.1\r\nbad header\r\n\r\n")
    assert (answered, body) == (400, b"")
    assert int(headers["content-length"]) > 0


def test_a_body_of_64_kib_passes_the_server(api: "Served") -> None:
    body = json.dumps({"query": "webhook", "x": ""})
    body = body[:-2] + "y" * (65536 - len(body)) + body[-2:]
    answered = api.ask("POST", "/api/search", body.encode(), {"Content-Type": "application/json"})
    assert answered.status == 200
    assert api.ask("POST", "/api/search", body.encode() + b" ", {"Content-Type": "application/json"}).status == 413


def test_a_connection_stays_open_after_an_answer_without_body(api: "Served") -> None:
    etag = api.get("/api/templates").headers["etag"].encode()
    asked = b"GET /api/templates HTTP/1.1\r\nHost: x\r\nIf-None-Match: " + etag + b"\r\n\r\n"
    preflight = b"OPTIONS /api/search HTTP/1.1\r\nHost: x\r\n\r\n"
    ending = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    _, _, rest = exchange(api.port, asked + preflight + asked + ending)
    statuses = [line.split()[1] for line in rest.splitlines() if line.startswith(b"HTTP/1.1")]
    assert statuses == [b"204", b"304", b"200"]


def test_a_connection_is_closed_after_an_answer_without_body_when_asked(api: "Served") -> None:
    status, headers, _ = exchange(api.port, b"OPTIONS /api/search HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (status, headers["connection"]) == (204, "close")
