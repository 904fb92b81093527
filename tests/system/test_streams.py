"""Streams of a running bridge: curl, HTTP/1.0, a browser, a reader that reads nothing, a reload, a stop."""

import contextlib
import json
import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.admin_client import admin_of
from tests.support.asking import ask
from tests.support.browser import Page
from tests.support.doors import DOORS, Client, Host, Hosting, doors
from tests.support.waiting import eventually

ROUTE = """DEFINE ROUTE Live WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0' WITH ENABLE_CORS "true"
    ADD EVENT One WITH METHOD "GET" WITH ENDPOINT "/rooms/{room}/live" WITH SOURCE_TOPIC "home/{path.room}/t"
        WITH STREAM "true"
    ADD EVENT All WITH METHOD "GET" WITH ENDPOINT "/live" WITH SOURCE_TOPIC "home/+/t" WITH STREAM "true"
    ADD EVENT Now WITH METHOD "GET" WITH ENDPOINT "/rooms" WITH SOURCE_TOPIC "home/+/t"
"""
PLAIN = """DEFINE ROUTE Plain WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT Now WITH METHOD "GET" WITH ENDPOINT "/plain" WITH SOURCE_TOPIC "plain"
"""


@pytest.fixture(scope="module", params=DOORS)
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    hosting: Hosting = request.param
    with hosting(ROUTE) as host:
        yield host


@pytest.fixture(scope="module")
def client(host: Host) -> Client:
    return host.client()


def events_of(lines: Iterator[bytes], count: int) -> list[str]:
    """Return the data of so many events, each of one line."""
    data = (line.decode().strip().removeprefix("data: ") for line in lines if line.startswith(b"data: "))
    return [next(data) for _ in range(count)]


@contextlib.contextmanager
def curl(host: Host, path: str, *options: str) -> Iterator[Iterator[bytes]]:
    command = ["curl", "-sN", "--max-time", "50", *options, f"http://127.0.0.1:{host.http_port}{path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield iter(process.stdout)
        finally:
            process.terminate()


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_curl_sees_each_value_as_it_comes(host: Host, client: Client, version: str) -> None:
    client.publish("home/hall/t", b"1")
    eventually(lambda: b"hall" in ask(host.http_port, "/rooms").body)
    with curl(host, "/rooms/hall/live", version) as one, curl(host, "/live", version) as every:
        assert events_of(one, 1) == ["1"]
        assert json.loads(events_of(every, 1)[0])["home/hall/t"] == 1
        for payload in (b"2", b'{"x": 3}'):
            client.publish("home/hall/t", payload)
            assert events_of(one, 1) == [payload.decode()]
            assert json.loads(events_of(every, 1)[0]) == {"home/hall/t": json.loads(payload)}


def test_a_reader_that_reads_nothing_costs_no_other_one_its_values(host: Host, client: Client) -> None:
    client.publish("home/bath/t", b"first")
    eventually(lambda: b"first" in ask(host.http_port, "/rooms").body)
    with socket.create_connection(("127.0.0.1", host.http_port)) as deaf, curl(host, "/rooms/bath/live") as lines:
        deaf.sendall(b"GET /rooms/bath/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert events_of(lines, 1) == ["first"]
        for number in range(40):
            client.publish("home/bath/t", str(number).encode() * 100_000)
            assert events_of(lines, 1) == [str(number) * 100_000]


def test_a_browser_follows_a_stream(host: Host, client: Client, browser: Page) -> None:
    with browser.elsewhere() as page:
        page.open(f"http://localhost:{host.http_port}/rooms")  # of another origin than the stream
        page.evaluate(
            "window.seen = []; window.source = new EventSource("
            f"'http://127.0.0.1:{host.http_port}/rooms/lab/live'); source.onmessage = (e) => seen.push(e.data); 1"
        )
        page.wait("source.readyState === 1")
        for number in range(3):
            client.publish("home/lab/t", b"%d" % number)
            page.wait(f"seen.at(-1) === '{number}'")
        assert page.evaluate("seen.join()") == "0,1,2"


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_readers_are_seen_in_status_metrics_and_page_until_they_leave(hosting: Hosting) -> None:
    with hosting(ROUTE + PLAIN, admin_port=0) as host, contextlib.ExitStack() as streams:
        admin = admin_of(host)
        host.client().publish("home/hall/t", b"1", retain=True)

        def shown() -> tuple[bytes, ...]:
            return tuple(re.findall(rb"rest_bridge_stream_readers.*?(\{.*)", admin.get("/metrics").body))

        def status(route: str) -> dict[str, object]:
            found: dict[str, object] = next(
                one for one in admin.get("/api/routes").json["routes"] if one["name"] == route
            )
            return found

        assert shown() == (b'{route="Live"} 0.0',)
        for path in ("/live", "/live", "/rooms/hall/live"):
            events_of(streams.enter_context(curl(host, path)), 1)
        eventually(lambda: shown() == (b'{route="Live"} 3.0',), "a reader is not counted")
        one = streams.enter_context(contextlib.ExitStack())
        events_of(one.enter_context(curl(host, "/live")), 1)
        eventually(lambda: status("Live")["readers"] == 4)
        assert '<dd data-cell="readers">4</dd>' in admin.get("/routes/Live").text
        assert status("Plain")["readers"] is None
        one.close()
        eventually(lambda: status("Live")["readers"] == 3, "a reader that has left is counted")


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_a_stop_ends_streams_and_is_not_delayed_by_them(hosting: Hosting) -> None:
    with hosting(ROUTE) as host:
        host.client().publish("home/hall/t", b"1", retain=True)
        stream = curl(host, "/rooms/hall/live")
        lines = stream.__enter__()
        assert events_of(lines, 1) == ["1"]
    assert list(lines) == [b"\n"]
    stream.__exit__(None, None, None)
