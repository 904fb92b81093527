"""The HTTP server over real sockets: requests, answers, connections, and what has to wait."""

import contextlib
import json
import re
import threading
import uuid

import pytest

from amqtt_rest_bridge.http.exchange import Request, Response
from amqtt_rest_bridge.http.server import PortLimits
from tests.support.http_ports import Raw, Served, error_code_of, get, post, served, serving
from tests.support.server_mode import event, payload, route


def test_a_request_is_published_and_answered(hooks: Served) -> None:
    answer = hooks.ask(post("/hook?x=1", b"\x00\xff"))
    assert (answer.status, json.loads(answer.body)) == (200, {"status": "published", "topic": "hook/received"})
    assert hooks.bodies == [b"\x00\xff"]
    assert uuid.UUID(answer.headers["X-Request-ID"]).version == 4
    assert answer.headers["Content-Type"] == "application/json"
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", answer.headers["Date"])
    assert "Server" not in answer.headers  # the caller need not know


@pytest.mark.parametrize("etag_of_first", [True, False])
def test_answers_without_a_body_keep_the_connection_too(raw: Raw, etag_of_first: bool) -> None:
    tag = raw.ask(get("/last"), "GET").headers["ETag"] if etag_of_first else '"x"'
    answers = [
        raw.ask(get("/last", f"If-None-Match: {tag}"), "GET"),
        raw.ask(get("/last", method="HEAD"), "HEAD"),
        raw.ask(get("/last", method="OPTIONS"), "OPTIONS"),
        raw.ask(get("/last"), "GET"),
    ]
    assert [answer.status for answer in answers] == [304 if etag_of_first else 200, 200, 204, 200]
    assert answers[1].headers["Content-Length"] == "4"
    assert "Content-Length" not in answers[2].headers
    assert answers[3].body == b"21.5"


def test_options_of_the_port_as_a_whole_names_every_method(raw: Raw) -> None:
    answer = raw.ask(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", "OPTIONS")
    assert (answer.status, answer.headers["Allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, POST, PUT")


def test_pipelined_requests_are_answered_in_order(hooks: Served, raw: Raw) -> None:
    raw.send(b"".join([post(body=b"1"), get("/last"), get("/none"), post(body=b"2"), get("/last")]))
    assert [raw.answer().status for _ in range(5)] == [200, 200, 404, 200, 200]
    assert hooks.bodies == [b"1", b"2"]


def test_requests_behind_one_that_waits_are_answered_after_it(hooks: Served) -> None:
    with hooks.connect() as raw:
        raw.send(post("/ask") + post("/hook", b"1"))
        reply = hooks.waiting()
        raw.send(get("/last"))  # comes while the first one waits
        with hooks.connect() as other:
            assert other.ask(get("/last"), "GET").status == 200
        assert hooks.bodies == [b"x"]
        reply.arrive(b"reply")
        assert [raw.answer().body for _ in range(3)][::2] == [b"reply", b"21.5"]
        assert hooks.bodies == [b"x", b"1"]


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        pytest.param("1.1", None, True, id="1.1 keeps"),
        pytest.param("1.1", "close", False, id="1.1 close"),
        pytest.param("1.1", "TE, Close", False, id="1.1 close in a list"),
        pytest.param("1.0", None, False, id="1.0 closes"),
        pytest.param("1.0", "Keep-Alive", True, id="1.0 keep-alive"),
    ],
)
def test_the_caller_says_whether_the_connection_is_kept(
    raw: Raw, version: str, connection: str | None, kept: bool
) -> None:
    lines = [f"GET /last HTTP/{version}", "Host: localhost", *([f"Connection: {connection}"] if connection else [])]
    request = "\r\n".join([*lines, "", ""]).encode()
    answer = raw.ask(request, "GET")
    assert answer.status == 200
    assert answer.version == (11 if version == "1.1" else 10)
    if kept:
        assert raw.ask(request, "GET").status == 200
    else:
        assert answer.headers["Connection"] == "close"
        assert raw.is_closed_by_peer()


def test_chunks_are_put_together(hooks: Served, raw: Raw) -> None:
    chunked = b"POST /hook HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert raw.ask(chunked + b"3\r\nabc\r\n2;note=x\r\nde\r\n0\r\nTrailer: x\r\n\r\n").status == 200
    assert raw.ask(chunked + b"0\r\n\r\n").status == 200
    assert raw.ask(chunked + b"2\r\nab\r\n" * 500 + b"0\r\n\r\n").status == 200  # as long as it may be
    assert hooks.bodies == [b"abcde", b"{}", b"ab" * 500]


def test_expect_100_continue_is_answered_100(hooks: Served, raw: Raw) -> None:
    raw.send(b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert raw.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert raw.ask(b"abc").status == 200
    assert hooks.bodies == [b"abc"]


def test_a_caller_that_asks_with_too_much_is_refused_at_once() -> None:
    with served(max_body_bytes=10) as hooks, hooks.connect() as raw:
        raw.send(b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n")
        assert raw.answer().status == 413
        assert hooks.bodies == []


@pytest.mark.parametrize(
    ("head", "body"),
    [
        pytest.param(b"hoSt:\tlocalhost\r\nempty:\r\nX-Empty: \r\ncontent-LengtH: 3\r\n", b"abc", id="odd letters"),
        pytest.param(b"Host: localhost\r\nExpect: 100-continue\r\n", b"", id="Expect without a body"),
    ],
)
def test_what_http_allows_is_read(hooks: Served, raw: Raw, head: bytes, body: bytes) -> None:
    answer = raw.ask(b"POST /hook HTTP/1.1\r\n" + head + b"\r\n" + body)
    assert (answer.status, hooks.bodies) == (200, [body or b"{}"])


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
)
def test_an_upgrade_is_not_taken_and_the_body_is_read(hooks: Served, raw: Raw, framing: bytes) -> None:
    """Some clients offer HTTP/2 with their first request (RFC 9110 section 7.8)."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    for _ in range(2):
        assert raw.ask(b"POST /hook HTTP/1.1\r\nHost: x\r\n" + offer + framing).status == 200
    assert hooks.bodies == [b"abc"] * 2


@pytest.mark.parametrize("method", ["BREW", "PATCH", "M-SEARCH", "CONNECT"])
def test_a_method_that_no_endpoint_takes_is_answered_like_others(raw: Raw, method: str) -> None:
    answer = raw.ask(get("/hook", method=method))
    assert (answer.status, error_code_of(answer)) == (405, "method_not_allowed")
    assert raw.ask(post()).status == 200  # the connection lives on


def test_a_path_may_come_as_it_is_and_names_with_underscores_are_their_own() -> None:
    text = payload('["{path.x}", "{header.a_b}", "{header.a-b}"]')
    with served(route(event(endpoint="/{x}", sends=text))) as hooks:
        request = "POST /caf\u00e9 HTTP/1.1\r\nHost: x\r\nA_B: 1\r\nA-B: 2\r\n\r\n".encode()
        assert hooks.ask(request).status == 200
        assert json.loads(hooks.bodies[0]) == ["caf\u00e9", "1", "2"]


def test_routes_are_replaced_for_the_next_request_and_one_that_waits_keeps_its_own(hooks: Served) -> None:
    with hooks.connect() as raw, hooks.connect() as other:
        raw.send(post("/ask"))
        reply = hooks.waiting()
        hooks.use(route(event(endpoint="/new")))
        assert [other.ask(post()).status, other.ask(post("/new", b"2")).status] == [404, 200]
        reply.arrive(b"reply")
        assert raw.answer().body == b"reply"
        assert hooks.bodies == [b"x", b"2"]


def test_64_waiting_requests_hold_no_thread_and_delay_no_other_endpoint(hooks: Served) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as callers:
        waiting = [callers.enter_context(hooks.connect()).send(post("/ask")) for _ in range(64)]
        replies = [hooks.waiting() for _ in range(64)]
        assert threading.active_count() == threads
        with hooks.connect() as raw:
            for _ in range(20):
                assert [raw.ask(post()).status, raw.ask(get("/last"), "GET").status] == [200, 200]
        for reply in replies:
            reply.arrive(reply.topic.encode())
        for answer in [raw.answer() for raw in waiting]:  # each has the reply to its own id
            assert (answer.status, answer.body.decode()) == (200, f"answers/{answer.headers['X-Request-ID']}")


def test_more_waiting_requests_than_allowed_are_answered_at_once() -> None:
    with served(limits=PortLimits(waiting=1)) as hooks, hooks.connect() as first:
        first.send(post("/ask"))
        reply = hooks.waiting()
        second = hooks.ask(post("/ask"))
        assert (second.status, error_code_of(second)) == (503, "overloaded")
        assert second.headers["Retry-After"] == "1"
        assert hooks.broker.counted == [("Hooks", "overloaded")]
        reply.arrive(b"reply")
        assert first.answer().status == 200


def test_a_caller_may_close_its_side_after_its_request(raw: Raw) -> None:
    raw.send(post())
    raw.sock.shutdown(1)
    assert raw.answer().status == 200
    assert raw.is_closed_by_peer()


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: x", "a\nb", "\u2713"])
def test_a_header_that_would_break_the_answer_is_never_sent(value: str, caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        def answer(self, _request: Request) -> Response:
            return Response("200 OK", (("X-Bad", value),), b"x")

    with serving(Bad()) as server, Raw(server.bound_port) as raw:
        answer = raw.ask(post())
        assert (answer.status, error_code_of(answer)) == (500, "internal_error")
        assert "Set-Cookie" not in answer.headers
        assert answer.headers["X-Request-ID"] in caplog.text
        assert raw.ask(post()).status == 500  # the connection lives on


def test_an_application_that_fails_while_waiting_is_answered_too(hooks: Served, raw: Raw) -> None:
    hooks.broker.outcomes.append(ZeroDivisionError())
    answer = raw.ask(post("/ask"))
    assert (answer.status, error_code_of(answer)) == (500, "internal_error")
    assert hooks.broker.counted == [("Hooks", "internal_error")]
    assert raw.ask(post()).status == 200
