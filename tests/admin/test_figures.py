"""What page, API, metrics, status, problems and runs say of one mix of failures and refusals is the same."""

import html
import json
import re
import urllib.request
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.support.admin_client import admin_of, client_route, refusing_with_reason, runs, server_route
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import recording
from tests.support.waiting import eventually

MESSAGES, FAILED, TOO_LARGE = 500, 50, 10
REQUESTS, REFUSED = 300, 9
"""Beyond ten wrong tokens within a minute the others are answered late."""


def ask(host: Host, *, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{host.http_port}/hook", b"{}", headers, method="POST")
    try:
        urllib.request.urlopen(request).close()
    except HTTPError as refused:
        refused.close()


def cell(page: str, name: str) -> int:
    (text,) = re.findall(rf'data-cell="{name}">([0-9]+)<', page)
    return int(text)


@pytest.mark.parametrize("processes", [0, 2])
def test_all_figures_of_messages_and_requests_agree(processes: int) -> None:
    guarded = server_route().replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "right" WITH SERVER_PORT')
    with recording() as target:
        target.answer = refusing_with_reason
        routes = client_route(target.url) + guarded
        with hosting(routes, admin_port=0, processes=processes, max_message_bytes=100) as host:
            admin, client = admin_of(host), host.client("done/#")
            for number in range(MESSAGES):
                bad = number % (MESSAGES // FAILED) == 0
                client.publish(f"orders/{number}", b"bad" if bad else b"good")
            for _ in range(TOO_LARGE):
                client.publish("orders/large", bytes(101))
            client.messages(MESSAGES + TOO_LARGE)
            for number in range(REQUESTS):
                ask(host, token="wrong" if number < REFUSED else "right")

            def messages() -> dict[str, Any]:
                return {one["name"]: one["messages"] for one in admin.get("/api/routes").json["routes"]}

            eventually(lambda: messages()["Intake"]["total"] == REQUESTS)
            orders, intake = messages()["Orders"], messages()["Intake"]
            assert (orders["total"], orders["succeeded"]) == (MESSAGES + TOO_LARGE, MESSAGES - FAILED)
            assert (orders["failed"], orders["refused"]) == (FAILED, TOO_LARGE)
            assert (intake["succeeded"], intake["failed"], intake["refused"]) == (REQUESTS - REFUSED, 0, REFUSED)

            labels = {"route": "Orders", "event": "Send"}
            assert admin.value("rest_bridge_calls_total", outcome="succeeded", **labels) == MESSAGES - FAILED
            assert admin.value("rest_bridge_calls_total", outcome="http_status", **labels) == FAILED
            assert admin.value("rest_bridge_refused_total", **labels) == TOO_LARGE
            of_intake = {"route": "Intake", "event": "Received"}
            assert admin.value("rest_bridge_requests_total", status="200", **of_intake) == REQUESTS - REFUSED
            assert admin.value("rest_bridge_requests_total", status="401", **of_intake) == REFUSED

            page = admin.get("/").text
            for name, figures in (("Orders", orders), ("Intake", intake)):
                own = page[page.index(f'data-route="{name}"') :].partition("</tbody>")[0]
                assert [cell(own, kind) for kind in ("succeeded", "failed", "refused")] == [
                    figures[kind] for kind in ("succeeded", "failed", "refused")
                ]
            problems = {one["code"]: one for one in admin.get("/api/problems").json["problems"]}
            assert {code: one["count"] for code, one in problems.items()} == {
                "http_status": FAILED, "payload_too_large": TOO_LARGE, "unauthorized": REFUSED,
            }  # fmt: skip
            for one in problems.values():
                assert f'{one["count"]} ×</span>' in page
                assert one["message"] in html.unescape(page)
            assert len(runs(admin, "?route=Orders&outcome=failed&limit=1000")) == FAILED
            assert len(runs(admin, "?route=Orders&outcome=refused&limit=1000")) == TOO_LARGE
            newest = admin.get(f"/api/runs/{problems['http_status']['run']}").json
            assert json.loads(newest["response"]["body"]) == {"reason": "no such customer"}
