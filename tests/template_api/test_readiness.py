"""What operators ask of a process, over real sockets: whether it lives, answers searches, and which found nothing."""

import http.client
import json
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.support.asking import ask
from tests.support.library_store import Store, template
from tests.support.served_api import Served

Serve = Callable[..., Any]
NAMING = ("x-ignored-parameters", "x-search-corrected")


def metrics(served: Served) -> dict[str, int]:
    answer = ask(served.port, "/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", answer.body.decode(), re.MULTILINE)}


def test_searches_that_find_nothing_are_counted_and_logged_when_asked(serve: Serve, sqlite_store: Store) -> None:
    sqlite_store.bring(template("pump", title="Pump control"))
    with serve("--database-url", sqlite_store.url, "--log-empty-searches") as api:
        for path in ("/api/search?q=Thermometer", "/api/search?q=Thermometer", "/api/search?q=pump", "/api/templates"):
            api.get(path)
        api.get("/api/search?q=a%0A%5B2026%5D+forged%1b[31m+line%E2%80%AE")
        api.get("/api/search?q=key+sk9f8a7s6d5f4g3h2j1+me@example.org+" + "x" * 40)
        api.get("/api/search?q=" + "x+" * 95 + "sk9f8a7s6d5f4g3h2j1")
        body = json.dumps({"query": "sms"}).encode()
        api.ask("POST", "/api/search", body, {"Content-Type": "application/json"})
        assert metrics(api) == {
            "template_api_searches_total": 7,
            "template_api_empty_searches_total": 6,
            "template_api_ready": 1,
        }
        log = api.log
    lines = [line.partition("without a result: ")[2] for line in log.read_text().splitlines() if "without a" in line]
    assert lines[:2] == ['"Thermometer"'] * 2
    assert lines[2] == '"a\\n[2026] forged\\u001b[31m line\\u202e"'
    assert lines[3:] == ['"key *** *** ***"', f'"{"x " * 95}***"', '"sms"']


def raw(api: Served, request: bytes) -> tuple[int, list[tuple[str, str]]]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=30)
    with closing(connection):
        connection.connect()
        connection.sock.sendall(request)
        answer = http.client.HTTPResponse(connection.sock)
        answer.begin()
        answer.read()
        return answer.status, answer.getheaders()


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(b"%0d%0aX-Forged:%20yes=1", id="line break in a name"),
        pytest.param(b"a,b%22%3b=1&%2c=2&%e2%80%ae=3", id="separators and direction marks"),
        pytest.param(b"%ff%fe%ed%a0%80=1&%00=2", id="bytes that are not UTF-8"),
        pytest.param(b"&".join(b"p%d=1" % n for n in range(6000)), id="thousands of names"),
        pytest.param(b"x" * 30000 + b"=1", id="a long name"),
        pytest.param(b"q=recieve%0d%0aX-Forged:+yes+webhok%2c=", id="corrected words"),
        pytest.param(b"q=" + b"webhok" * 500, id="long words"),
    ],
)
def test_no_parameter_changes_the_shape_of_a_header(api: Served, query: bytes) -> None:
    begin = query if query.startswith(b"q=") else b"q=webhok&" + query
    status, headers = raw(api, b"GET /api/search?%s HTTP/1.1\r\nHost: x\r\n\r\n" % begin)
    assert status == 200
    names = [name.lower() for name, _ in headers]
    named = {name: value for name, (_, value) in zip(names, headers, strict=True) if name in NAMING}
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[A-Za-z0-9%=., _~-]+", value) and len(value) <= 4200 for value in named.values())
    assert "x-forged" not in names
    assert ("x-ignored-parameters" in named) == (not query.startswith(b"q="))
