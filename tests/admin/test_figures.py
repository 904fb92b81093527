"""What page, API, metrics, status, problems and runs say of one mix of failures and refusals is the same."""

import contextlib
import html
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from amqtt_rest_bridge.admin import app
from tests.support import asking, embedded_broker
from tests.support.admin_client import Admin, admin_of, client_route, refusing_with_reason, runs, server_route
from tests.support.doors import Client, Host, Hosting
from tests.support.http_recorder import Answer, recording
from tests.support.http_target import Seen
from tests.support.waiting import SECONDS, eventually

MESSAGES, FAILED, TOO_LARGE = 150, 30, 5
DOWN, BUSY = 6, 8
"""Of those that fail, such as are tried again, and of the others such as succeed with the second try."""
REQUESTS, REFUSED, WRONG, UNANSWERED, SKIPPED = 90, 20, 9, 5, 4
"""Beyond ten wrong tokens within a minute the others are answered late; the other callers send an encoded body."""


GUARDED: Final = (
    server_route().replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "right" WITH REQUEST_TIMEOUT 1 WITH SERVER_PORT')
    + """    ADD EVENT Asked WITH METHOD "POST" WITH ENDPOINT "/ask" WITH DESTINATION_TOPIC "asked"
        WITH REPLY_TOPIC "a/{request_id}" WITH WHEN '{header.X-Left|no} != "out"'
"""
)
"""A route of server mode whose second event gets no reply."""


def ask(host: Host, *, token: str = "right", path: str = "/hook", **fields: str) -> None:
    asking.ask(host.http_port, path, b"{}", Authorization=f"Bearer {token}", **fields)


def answering() -> Callable[[Seen], Answer]:
    """Return a server that refuses what is bad, and is busy at what is down, and at first at what is busy."""
    tried = set[str]()

    def answer(seen: Seen) -> Answer:
        is_first = seen.path not in tried
        tried.add(seen.path)
        is_down = seen.body == b"down" or (seen.body == b"busy" and is_first)
        return (503, b"") if is_down else refusing_with_reason(seen)

    return answer


def publish_all(client: Client) -> None:
    """Publish every message, and wait for its result or failure."""
    bad, down, good = [b"bad"] * (FAILED - DOWN), [b"down"] * DOWN, [b"good"] * (MESSAGES - FAILED - BUSY)
    for number, payload in enumerate(bad + down + good + [b"busy"] * BUSY):
        client.publish(f"orders/{number}", payload)
    for _ in range(TOO_LARGE):
        client.publish("orders/large", bytes(101))
    client.messages(MESSAGES + TOO_LARGE)


def ask_all(host: Host) -> None:
    """Send every request, and wait for its answer."""
    for number in range(REQUESTS - UNANSWERED - SKIPPED):
        if number < WRONG:
            ask(host, token="wrong")
        elif number < REFUSED:
            ask(host, Content_Encoding="gzip")
        else:
            ask(host)
    with ThreadPoolExecutor(UNANSWERED) as pool:
        list(pool.map(lambda _: ask(host, path="/ask"), range(UNANSWERED)))
    for _ in range(SKIPPED):
        ask(host, path="/ask", X_Left="out")


def series(admin: Admin, route: str) -> dict[str, int]:
    """Return what the history has counted of a route."""
    found = admin.get(f"/api/history?route={route}&range=24h").json["series"]
    return {kind: sum(values) for kind, values in found.items()}


def published(host: Host) -> dict[str, Any]:
    """Return the figures of both routes in their next status messages, by the name of the route."""
    client = host.client(host.status_filter)
    client.messages(2)  # retained: those before
    return {topic.split("/")[-2]: json.loads(payload)["messages"] for topic, payload in client.messages(2)}


def cell(page: str, name: str) -> int:
    (text,) = re.findall(rf'data-cell="{name}">([0-9]+)<', page)
    return int(text)


def test_all_figures_of_messages_and_requests_agree(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SAMPLE_SECONDS", 0.1)
    with recording() as target:
        target.answer = answering()
        routes = client_route(target.url, config="WITH RETRIES 1", event="WITH RETRY_ON 503") + GUARDED
        settings: dict[str, Any] = {"max_message_bytes": 100, "status_seconds": 1}
        with hosting(routes, admin_port=0, **settings) as host:
            admin, client = admin_of(host), host.client("done/#")
            eventually(lambda: admin.get("/api/history?route=Orders&range=24h").json["series"]["succeeded"])
            publish_all(client)
            ask_all(host)

            eventually(lambda: admin.status("Intake")["messages"]["total"] == REQUESTS)
            succeeded = REQUESTS - REFUSED - UNANSWERED - SKIPPED
            orders, intake = (admin.status(name)["messages"] for name in ("Orders", "Intake"))
            assert (orders["total"], orders["succeeded"]) == (MESSAGES + TOO_LARGE, MESSAGES - FAILED)
            assert (orders["failed"], orders["refused"], orders["retried"]) == (FAILED, TOO_LARGE, DOWN + BUSY)
            assert [intake[kind] for kind in ("succeeded", "failed", "refused", "skipped")] == [
                succeeded, UNANSWERED, REFUSED, SKIPPED,
            ]  # fmt: skip

            labels = {"route": "Orders", "event": "Send"}
            assert admin.value("rest_bridge_calls_total", outcome="succeeded", **labels) == MESSAGES - FAILED
            assert admin.value("rest_bridge_calls_total", outcome="http_status", **labels) == FAILED
            assert admin.value("rest_bridge_refused_total", **labels) == TOO_LARGE
            assert admin.value("rest_bridge_retries_total", route="Orders") == DOWN + BUSY
            of_intake = {"route": "Intake", "event": "Received"}
            asked = {"route": "Intake", "event": "Asked"}
            assert admin.value("rest_bridge_requests_total", status="200", **of_intake) == succeeded
            assert admin.value("rest_bridge_requests_total", status="401", **of_intake) == WRONG
            assert admin.value("rest_bridge_requests_total", status="415", **of_intake) == REFUSED - WRONG
            assert admin.value("rest_bridge_requests_total", status="504", **asked) == UNANSWERED
            assert admin.value("rest_bridge_requests_total", status="200", **asked) == SKIPPED
            assert admin.value("rest_bridge_request_seconds_count", **of_intake) == succeeded
            assert admin.value("rest_bridge_request_seconds_count", **asked) == UNANSWERED

            page = admin.text("/")
            for name, figures in (("Orders", orders), ("Intake", intake)):
                own = page[page.index(f'data-route="{name}"') :].partition("</tbody>")[0]
                assert [cell(own, kind) for kind in ("succeeded", "failed", "refused")] == [
                    figures[kind] for kind in ("succeeded", "failed", "refused")
                ]
            problems = {(one["code"], one["status"]): one for one in admin.problems()}
            assert {kind: one["count"] for kind, one in problems.items()} == {
                ("http_status", 422): FAILED - DOWN, ("http_status", 503): DOWN, ("payload_too_large", None): TOO_LARGE,
                ("unauthorized", 401): WRONG, ("unsupported_media_type", 415): REFUSED - WRONG,
                ("reply_timeout", 504): UNANSWERED,
            }  # fmt: skip
            for one in problems.values():
                assert one["retrying"] == 0
                assert f"{one['count']} ×</span>" in page
                assert one["message"][1:] in html.unescape(page)
            assert len(runs(admin, "?route=Orders&outcome=failed&limit=1000")) == FAILED
            assert len(runs(admin, "?route=Orders&outcome=refused&limit=1000")) == TOO_LARGE
            assert len(runs(admin, "?route=Intake&outcome=failed&limit=1000")) == UNANSWERED
            assert len(runs(admin, "?route=Intake&outcome=skipped&limit=1000")) == SKIPPED
            assert published(host) == {"Orders": orders, "Intake": intake}
            for name, figures in (("Orders", orders), ("Intake", intake)):
                wanted = {"succeeded": figures["succeeded"], "failed": figures["failed"] + figures["refused"]}
                eventually(lambda name=name, wanted=wanted: series(admin, name) == wanted)  # type: ignore[misc]
            newest = admin.run(problems["http_status", 422]["run"])
            assert json.loads(newest["response"]["body"]) == {"reason": "no such customer"}


def test_the_first_answer_after_a_start_has_all_routes(unused_port: int) -> None:
    routes = "".join(server_route(f"R{number:03}").replace("/hook", f"/hook{number}") for number in range(100))

    def first() -> str:
        found: list[str] = []

        def has_answered() -> bool:
            with contextlib.suppress(ConnectionRefusedError):  # it does not listen yet
                found.append(Admin(unused_port).get("/metrics").text)
            return bool(found)

        eventually(has_answered)
        return found[0]

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(first)
        with embedded_broker.hosting(routes, admin_port=unused_port, processes=1):
            assert asking.result(SECONDS).count("rest_bridge_health{") == 100
