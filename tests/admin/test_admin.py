"""The admin port of a running bridge: metrics, readiness, the last calls, the live stream."""

import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import amqtt_rest_bridge
from amqtt_rest_bridge.admin import app
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.server import PortLimits
from tests.support import embedded_broker
from tests.support.admin_client import TOKEN, Admin, admin_of, client_route, server_route
from tests.support.asking import ask
from tests.support.doors import PLUGINS, Host, Hosting, doors
from tests.support.http_recorder import Recorder
from tests.support.http_target import Seen
from tests.support.waiting import eventually

LABELS: Final = {"route": "Orders", "event": "Send"}


@pytest.fixture(params=doors(0, 1))
def running(request: pytest.FixtureRequest, target: Recorder) -> Iterator[Host]:
    with request.param(client_route(target.url) + server_route(), admin_port=0) as host:
        yield host


def test_calls_and_requests_are_counted_by_route_event_and_outcome(running: Host, target: Recorder) -> None:
    admin, client = admin_of(running), running.client("done/#")
    target.answer = lambda seen: (400 if seen.path.endswith("bad") else 200, b"{}")
    for _ in range(20):
        client.publish("orders/7", b"{}")
    client.publish("orders/bad", b"{}")
    client.messages(21)
    assert ask(running.http_port, "/hook?token=secret", b"{}").status == 200
    assert admin.value("rest_bridge_calls_total", outcome="succeeded", **LABELS) == 20
    assert admin.value("rest_bridge_calls_total", outcome="http_status", **LABELS) == 1
    assert admin.value("rest_bridge_call_seconds_count", **LABELS) == 21
    assert admin.value("rest_bridge_call_seconds_bucket", le="+Inf", **LABELS) == 21
    assert 0 < (admin.value("rest_bridge_call_seconds_sum", **LABELS) or 0) < 20
    admin.await_value(1, "rest_bridge_requests_total", route="Intake", event="Received", status="200")
    assert admin.value("rest_bridge_in_flight", route="Orders") == 0
    assert admin.value("rest_bridge_queued", route="Orders") == 0
    assert admin.value("rest_bridge_health", route="Orders") == 1
    assert admin.value("rest_bridge_restarts_total") == 0
    assert admin.value("rest_bridge_ready") == 1
    (call,) = admin.calls("Intake")
    assert (call["kind"], call["method"], call["url"], call["topic"]) == ("request", "POST", "/hook", "received")
    assert (call["status"], call["code"], call["event"]) == (200, None, "Received")
    routes = admin.get("/api/routes").json["routes"]
    assert [(route["name"], route["health"]) for route in routes] == [("Intake", "Green"), ("Orders", "Yellow")]
    assert {"connection", "errors", "messages", "last_error", "latency_ms", "uptime_s"} <= set(routes[0])


def test_the_last_calls_of_a_route_come_from_every_process_the_newest_first(running: Host, target: Recorder) -> None:
    admin, client = admin_of(running), running.client("done/#")
    target.answer = lambda seen: (404 if seen.path.endswith("/59") else 200, b"{}")
    for number in range(60):
        client.publish(f"orders/{number}", b"a payload")
        client.message()
    calls = admin.calls("Orders")
    assert [call["topic"] for call in calls] == [f"orders/{number}" for number in range(59, 9, -1)]
    newest = calls[0]
    assert newest.pop("ms") > 0
    assert newest.pop("waited_ms") >= 0
    assert newest.pop("time").endswith("Z")
    assert str(uuid.UUID(newest["id"])) == newest.pop("id")
    assert newest == {
        "kind": "call", "route": "Orders", "event": "Send", "topic": "orders/59", "method": "POST",
        "url": f"{target.url}/new/59", "status": 404, "code": "http_status", "tries": 1,
        "message": "the server answered 404 Not Found", "hint": "Check BASE_ADDRESS and ENDPOINT.", "reason": None,
    }  # fmt: skip
    assert (calls[1]["status"], calls[1]["code"]) == (200, None)
    assert "a payload" not in admin.text("/api/routes/Orders/calls")
    client.publish("orders/" + "x" * 3000, b"1")
    client.message()
    newest = admin.calls("Orders")[0]
    assert (len(newest["url"]), len(newest["topic"])) == (1000, 200)


@pytest.mark.parametrize("running", PLUGINS, indirect=True)  # a worker sees the messages of its subscriptions
def test_the_live_stream_has_every_message_matched_or_not(running: Host, target: Recorder) -> None:
    admin, client = admin_of(running), running.client("done/#", "received")
    with admin.live() as events:
        events.begin(running.client())
        client.publish("orders/1", b"1")
        client.message()
        client.publish("without/route", b"1")
        records = [events.record() for _ in range(3)]  # of two sessions, each in its order
        assert {(one["kind"], one["topic"], one["route"], one["status"]) for one in records} == {
            ("call", "orders/1", "Orders", 200),
            ("message", "done/1", None, None),
            ("message", "without/route", None, None),
        }


def test_the_live_stream_has_calls_and_requests_matched_or_not(running: Host, target: Recorder) -> None:
    admin, client = admin_of(running), running.client("received")
    with admin.live() as events:
        events.begin(running.client(), "orders/probe")
        client.publish("orders/1", b"1")
        for path in ("/hook", "/nowhere"):
            ask(running.http_port, path, b"{}")
        seen: dict[str, tuple[object, ...]] = {}
        while len(seen) < 3:
            one = events.record()
            if one["kind"] != "message":  # of a result
                seen[one["url"].removeprefix(target.url)] = one["kind"], one["route"], one["status"], one["code"]
        assert seen == {
            "/new/1": ("call", "Orders", 200, None),
            "/hook": ("request", "Intake", 200, None),
            "/nowhere": ("request", None, 404, "not_found"),
        }


def test_the_live_stream_can_be_narrowed_to_a_route_and_a_topic_filter(running: Host, target: Recorder) -> None:
    admin, client = admin_of(running), running.client("done/#")
    with admin.live("?route=Orders&topic=orders/%2B") as events:
        events.begin(running.client(), "orders/probe")
        client.publish("other/1", b"1")
        client.publish("orders/2", b"1")
        assert events.record()["topic"] == "orders/2"
    answer = admin.get("/api/live?topic=a/%23/b")
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request")


def test_counts_begin_again_with_the_bridge_process_and_what_it_held_counts_as_lost(target: Recorder) -> None:
    with embedded_broker.hosting(client_route(target.url), admin_port=0, processes=1) as host:
        client = host.client("done/#")
        client.publish("orders/1", b"1")
        client.message()

        def answer(_: Seen) -> tuple[int, bytes]:
            os.kill(host.child.pid or 0, signal.SIGKILL)
            return 200, b""

        target.answer = answer
        client.publish("orders/2", b"2")
        assert json.loads(client.message()[1])["error"]["code"] == "bridge_restarted"
        admin = admin_of(host)
        admin.await_value(1, "rest_bridge_restarts_total")
        assert admin.value("rest_bridge_calls_total", outcome="succeeded", **LABELS) in (None, 0)
        assert admin.value("rest_bridge_calls_total", outcome="bridge_restarted", **LABELS) == 1
        (call,) = admin.calls("Orders")
        assert (call["topic"], call["code"]) == ("orders/2", "bridge_restarted")


def test_refusals_retries_and_the_spool_are_counted(target: Recorder, tmp_path: Path) -> None:
    lossless = client_route(
        target.url, more='ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" WITH OVERLOAD_CAPACITY "2"'
    )
    target.answer = lambda _: (503, b"")
    with embedded_broker.hosting(lossless, admin_port=0, spool=str(tmp_path / "spool.db")) as host:
        admin, client = admin_of(host), host.client("done/#")
        for _ in range(3):
            client.publish("orders/1", b"1")
        assert json.loads(client.message()[1])["error"]["code"] == "overloaded"
        admin.await_value(1, "rest_bridge_refused_total", **LABELS)
        admin.await_value(2, "rest_bridge_spool_messages", route="Orders")
        eventually(lambda: (admin.value("rest_bridge_retries_total", route="Orders") or 0) >= 2)
        (refused,) = admin.calls("Orders")
        assert (refused["kind"], refused["code"], refused["url"]) == ("refused", "overloaded", None)


def test_secrets_of_all_routes_are_masked_in_paths_that_lead_to_no_endpoint(
    target: Recorder, tmp_path: Path, hosting: Hosting
) -> None:
    (tmp_path / "KEY").write_text("hush/hush-1")
    (tmp_path / "TOKEN").write_text("still-still-2")
    route = client_route(target.url).replace("/new/{topic.2}", "/new?key={secret.KEY}")
    route += server_route().replace("WITH ENABLE_SERVER", 'WITH SERVER_TOKEN GET SECRET "TOKEN" WITH ENABLE_SERVER')
    with hosting(route, admin_port=0, secrets_dir=str(tmp_path)) as host:
        admin = admin_of(host)
        with admin.live() as events:
            events.begin(host.client("done/#"), "orders/probe")
            paths = "still-still-2", "still%2Dstill-2", "hush%2fhush-1", "hush/hush-1?x=still-still-2", "a" * 3000
            for path in paths:
                assert ask(host.http_port, f"/no/{path}", b"{}").status == 404
            shown = [events.record()["url"] for _ in range(5)]
        assert shown == ["/no/***"] * 4 + ["/no/" + "a" * 996]
        eventually(lambda: [port["count"] for port in admin.get("/api/unmatched").json["ports"]] == [5])
        pages = admin.text("/api/unmatched") + admin.text("/")
        assert [secret for secret in ("hush", "still") if secret in pages] == []


def test_routes_of_a_reload_are_counted_and_those_that_are_gone_are_not(target: Recorder, hosting: Hosting) -> None:
    with hosting(client_route(target.url, name="Old"), admin_port=0, reload_seconds=0.02) as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/1", b"1")
        client.message()
        host.path.write_text(client_route(target.url, name="New"))
        eventually(lambda: admin.value("rest_bridge_queued", route="New") == 0)
        assert admin.value("rest_bridge_queued", route="Old") is None
        assert admin.get("/api/routes/Old/calls").status == 404

        def is_counted() -> bool:
            client.publish("orders/1", b"1")  # a worker subscribes for a new route a moment after its status is there
            return bool(admin.value("rest_bridge_calls_total", route="New", event="Send", outcome="succeeded"))

        eventually(is_counted)


def test_those_that_follow_see_what_comes_after_a_reload(target: Recorder, running: Host) -> None:
    client, admin = running.client(), admin_of(running)
    with admin.live("?route=New") as new, admin.live() as events:
        events.begin(client, "orders/probe")
        running.path.write_text(client_route(target.url) + client_route(target.url, name="New"))
        running.reload()
        new.begin(client, "orders/probe")
        for number in range(4):
            client.publish(f"orders/{number}", b"1")
            assert new.record()["topic"] == f"orders/{number}"


OBSERVING: Final = frozenset(map(str, Path(amqtt_rest_bridge.__file__).parent.glob("admin/*.py")))
"""The modules whose functions are for the admin port alone."""


@pytest.mark.parametrize("port", [pytest.param(None, id="off"), pytest.param(0, id="on")])
def test_without_admin_port_nothing_is_recorded_and_nothing_runs_for_it(target: Recorder, port: int | None) -> None:
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in OBSERVING:
            called[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"] += 1

    async def profile(wanted: Callable[..., None] | None) -> None:
        sys.setprofile(wanted)

    with embedded_broker.hosting(client_route(target.url) + server_route(), admin_port=port) as host:
        host.wait(profile(note))
        client = host.client("done/#")
        for _ in range(10):
            client.publish("orders/7", b"{}")
            client.publish("other/topic", b"{}")
            client.message()
            assert ask(host.http_port, "/hook", b"{}").status == 200
        host.wait(profile(None))
        assert (host.plugin.admin_port is None) is (port is None)
    if port is None:
        assert called == {}
    else:
        assert [called[f"recorder.py:{name}"] for name in ("note_call", "note_request")] == [10, 10]
        assert called["recorder.py:_keep_soon"] == 0  # a good answer is only counted


@pytest.mark.parametrize(("path", "other"), [("/api/live", "/api/changes"), ("/api/changes", "/api/live")])
def test_sixteen_of_a_kind_may_follow_and_one_more_is_refused_while_pages_still_load(
    target: Recorder, path: str, other: str, hosting: Hosting
) -> None:
    def can_follow() -> bool:
        try:
            with admin.live(path=path):
                return True
        except AssertionError:
            return False

    with hosting(client_route(target.url), admin_port=0) as host:
        admin = admin_of(host)
        with ExitStack() as stack:
            for _ in range(16):
                stack.enter_context(admin.live(path=path))
            refused = admin.get(path)
            assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
            assert refused.headers["Retry-After"] == "5"
            assert refused.json["error"]["message"] == "Too many follow already"
            assert "close the status pages in another browser" in refused.json["error"]["hint"]
            assert admin.get(path, method="HEAD").status == 200
            with admin.live(path=other), admin.live("?route=Orders", path=other):
                assert [admin.get(page).status for page in ("/", "/routes/Orders", "/metrics")] == [200] * 3
        eventually(can_follow)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"admin_host": "0.0.0.0"}, "set admin_token", id="open without a token"),
        pytest.param({"admin_host": "::"}, "set admin_token", id="open without a token, IPv6"),
        pytest.param({"admin_token": "short"}, "16 or more visible ASCII", id="a short token"),
        pytest.param({"admin_port": 65_536}, "allowed is 0 to 65535", id="no port"),
    ],
)
def test_settings_that_cannot_be_used_stop_the_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception) as raised, embedded_broker.hosting(server_route(), **{"admin_port": 0, **settings}):
        pass
    assert isinstance(raised.value.__cause__, ConfigurationError)
    assert message in str(raised.value.__cause__)


def test_an_open_port_asks_for_its_token_as_bearer_or_as_a_password(hosting: Hosting) -> None:
    with hosting(server_route(), admin_port=0, admin_host="0.0.0.0", admin_token=TOKEN) as host:
        admin = admin_of(host)
        assert admin.get("/healthz").status == 200
        for path in ("/", "/metrics", "/readyz", "/api/routes", "/api/live", "/site.css"):
            refused = admin.get(path)
            assert (refused.status, refused.json["error"]["code"]) == (401, "unauthorized")
            assert refused.headers["WWW-Authenticate"].startswith("Basic ")
        assert admin.get("/metrics", Authorization=f"Bearer {TOKEN}x").status == 401
        assert admin.get("/metrics", Authorization="Bearer é".encode().decode("latin-1")).status == 401
        assert admin.get("/metrics", Authorization=f"Bearer {TOKEN}", Host="any.example").status == 200
        basic = "Basic YW55Om" + "EtdG9rZW4tb2YtMjQtY2hhcmFjdGVycw=="
        assert admin.get("/metrics", Authorization=basic).status == 200


def test_with_too_many_answers_under_way_more_are_refused_and_health_checks_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "_LIMITS", PortLimits(waiting=0))
    with embedded_broker.hosting(server_route(), admin_port=0) as host:
        admin = admin_of(host)
        refused = admin.get("/metrics")
        assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
        assert (admin.get("/healthz").status, admin.get("/healthz").body) == (200, b"ok\n")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "[::2]", "@", ""])
def test_other_names_for_this_machine_are_refused_so_that_no_page_can_rebind_its_own(idle: Admin, host: str) -> None:
    assert idle.get("/metrics", Host=host).status in (400, 421)
    assert idle.get("/metrics", Host=f"localhost:{idle.port}").status == 200


def test_pages_of_other_sites_may_not_ask_but_links_may_lead_here(idle: Admin) -> None:
    assert idle.get("/api/live", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403
    assert idle.get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 403  # in a frame
    visit = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert idle.get("/", **visit).status == 200
    assert idle.get("/metrics", Sec_Fetch_Site="same-origin").status == 200


def test_only_questions_are_answered(idle: Admin) -> None:
    refused = idle.get("/metrics", method="POST")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
    assert [idle.get(path).status for path in ("/nowhere", "/api/nowhere")] == [404, 404]
    assert idle.get("/metrics", method="HEAD").body == b""
