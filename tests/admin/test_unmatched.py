"""Requests that lead to no endpoint: in the API, the metrics, the page and the log."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.admin_client import admin_of, server_route
from tests.support.doors import Host, Hosting, doors
from tests.support.http_ports import Raw, get, post
from tests.support.waiting import eventually


@pytest.fixture(scope="module", params=doors(0, 1))
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with request.param(server_route(), admin_port=0) as running:
        yield running


def unmatched_of(host: Host) -> dict[str, Any]:
    answer = admin_of(host).get("/api/unmatched")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert isinstance(answer.json, dict)
    return answer.json


def count_of(host: Host) -> int:
    return sum(port["count"] for port in unmatched_of(host)["ports"])


def test_requests_to_a_misspelt_path_are_in_the_api_the_metrics_the_page_and_the_log(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        with Raw(host.http_port) as raw:
            for _ in range(5):
                assert raw.ask(post("/hok?token=hush")).status == 404
            assert raw.ask(get("/hook"), "GET").status == 405
    eventually(lambda: count_of(host) == 24)
    shown = unmatched_of(host)
    assert shown["ports"] == [{"port": host.http_port, "count": 24}]
    first, second = shown["unmatched"]
    assert first.pop("first") <= first.pop("last")
    nearest = {"method": "POST", "path": "/hook", "route": "Intake", "event": "Received"}
    assert first == {
        "port": host.http_port, "method": "POST", "path": "/hok", "status": 404, "count": 20, "nearest": nearest,
    }  # fmt: skip
    assert (second["method"], second["path"], second["status"], second["count"]) == ("GET", "/hook", 405, 4)
    assert second["nearest"] == nearest
    admin = admin_of(host)
    assert admin.value("rest_bridge_unmatched_requests_total", port=str(host.http_port)) == 24
    page = admin.get("/").text
    assert "Requests that led to no endpoint" in page and "POST /<wbr>hok" in page and "hush" not in page
    eventually(lambda: [line for line in caplog.messages if line.startswith(f"port {host.http_port}: ")])


def test_a_bridge_that_stops_logs_what_it_has_only_counted(hosting: Hosting, caplog: pytest.LogCaptureFixture) -> None:
    with hosting(server_route()) as host, Raw(host.http_port) as raw:
        assert raw.ask(post("/hok")).status == 404
        eventually(lambda: [line for line in caplog.messages if "led to no endpoint" in line])
        for _ in range(7):
            assert raw.ask(post("/hok")).status == 404
    (line,) = [line for line in caplog.messages if "7 request(s) led to no endpoint" in line]
    assert "POST /hok (404, 7x, nearest: POST /hook of route Intake)" in line


def test_a_path_that_holds_markup_is_text_on_the_page(hosting: Hosting) -> None:
    with hosting(server_route(), admin_port=0) as running:
        with Raw(running.http_port) as raw:
            assert raw.ask(get("/<script>alert(1)</script>"), "GET").status == 404
        eventually(lambda: count_of(running) == 1)
        assert "<script>alert" not in admin_of(running).get("/").text
        assert "&lt;script&gt;alert(1)" in admin_of(running).get("/").text
