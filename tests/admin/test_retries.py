"""Retries: the message of a failure goes through its event again, for those that may, as a new run."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge import bridge
from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.times import rfc3339
from tests.support.admin_client import (
    TOKEN,
    admin_of,
    admin_with_token,
    client_route,
    outcome,
    post,
    refusing_with_reason,
    runs,
)
from tests.support.doors import DOORS, PLUGINS, WORKER, Hosting, doors
from tests.support.embedded_broker import hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder
from tests.support.waiting import SECONDS, eventually


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_a_retry_sends_the_message_through_its_event_alone_as_a_new_run(target: Recorder, hosting: Hosting) -> None:
    other = client_route(target.url, name="Other").replace("/new/", "/other/")
    target.answer = refusing_with_reason
    with hosting(client_route(target.url) + other, admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"bad")
        client.messages(2)
        (failed,) = runs(admin, "?route=Orders")
        target.answer = lambda _: (200, b"{}")
        target.take_all()
        status, started = post(admin, f"/api/runs/{failed['id']}/retry")
        assert (status, started["retry_of"]) == (202, failed["id"])
        client.message()
        eventually(lambda: outcome(admin, started["id"]) == "succeeded")
        assert [(one.path, one.body) for one in target.take_all()] == [("/new/7", b"bad")]
        newest, oldest = runs(admin, "?route=Orders")
        assert (newest["id"], newest["retry_of"], newest["outcome"]) == (started["id"], failed["id"], "succeeded")
        assert oldest["retried_as"] == started["id"]
        assert runs(admin, "?route=Orders&outcome=failed") == [oldest]


@pytest.mark.parametrize("hosting", DOORS)
def test_many_failures_are_retried_at_once_and_those_sent_again_are_not_sent_twice(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        for number in range(30):
            client.publish(f"orders/{number}", b"1")
        client.messages(30)
        target.answer = lambda _: (200, b"{}")
        status, answer = post(admin, "/api/failures/retry", b'{"route": "Orders", "code": "http_status"}')
        assert (status, len(answer["started"]), answer["refused"]) == (202, 30, [])
        client.messages(30)
        labels = {"route": "Orders", "event": "Send", "outcome": "succeeded"}
        eventually(lambda: admin.value("rest_bridge_calls_total", **labels) == 30)
        status, answer = post(admin, "/api/failures/retry", b'{"route": "Orders"}')
        assert (status, answer) == (202, {"started": [], "refused": []})


@pytest.mark.parametrize("hosting", DOORS)
def test_a_problem_whose_messages_were_all_sent_again_with_success_is_resolved_and_its_route_green(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = lambda _: (422, b'{"detail": "unit is required"}')
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        for number in range(3):
            client.publish(f"orders/{number}", b"1")
        client.messages(3)
        names = [run["id"] for run in runs(admin)]
        (problem,) = admin.get("/api/problems").json["problems"]
        assert problem["message"].endswith(": unit is required")
        _, first = post(admin, f"/api/runs/{names[0]}/retry")
        client.message()
        eventually(lambda: outcome(admin, first["id"]) == "failed")
        gate = Gate()
        target.answer = gate.before(lambda _: (200, b"{}"))
        for name in (first["id"], *names[1:]):
            assert post(admin, f"/api/runs/{name}/retry")[0] == 202
        assert {run["retry_outcome"] for run in runs(admin, "?outcome=failed")} == {"retrying", "failed"}
        gate.open.set()
        client.messages(3)
        eventually(lambda: admin.get("/api/problems").json["problems"][0]["state"] == "resolved")
        (problem,) = admin.get("/api/problems").json["problems"]
        assert (problem["count"], problem["sent_again"], problem["retrying"]) == (4, 4, 0)
        (route,) = admin.get("/api/routes").json["routes"]
        assert (route["health"], route["messages"]["failed"]) == ("Green", 4)
        assert {run["retry_outcome"] for run in runs(admin, "?outcome=failed")} == {"succeeded"}
        assert "Resolved: all 4 messages were sent again and succeeded." in admin.get("/").text
        assert admin.get("/runs").text.count("sent again: succeeded") == 4
        hint = 'class="hint"'
        assert all(hint not in admin.get(path).text for path in ("/", f"/runs/{names[0]}", "/routes/Orders"))
        assert re.search("Last error <time.*</time>, which has passed: ", admin.get("/routes/Orders").text)
        target.answer = lambda _: (500, b"")
        client.publish("orders/4", b"1")
        client.message()
        eventually(lambda: len(admin.get("/api/problems").json["problems"]) == 2)
        assert admin.get("/routes/Orders").text.count(hint) == admin.get("/").text.count(hint) == 1
        found = [(one["status"], one["state"]) for one in admin.get("/api/problems").json["problems"]]
        assert found == [(500, "open"), (422, "resolved")]
        assert re.findall(r'data-state="(open|resolved)"', admin.get("/").text) == ["open", "resolved"]


@pytest.mark.parametrize("hosting", DOORS)
def test_what_is_still_tried_again_is_in_the_runs_and_in_the_status(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (503, b"")
    with hosting(client_route(target.url), admin_port=0) as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/1", b"1")
        eventually(lambda: runs(admin, "?outcome=retrying"))
        (run,) = runs(admin, "?outcome=retrying")
        assert (run["topic"], run["outcome"], run["code"]) == ("orders/1", "retrying", "http_status")
        assert (runs(admin), runs(admin, "?outcome=retrying&route=Other")) == ([], [])
        (route,) = admin.get("/api/routes").json["routes"]
        assert route["messages"]["retrying"] == 1
        target.answer = lambda _: (200, b"")
        client.message()
        assert runs(admin, "?outcome=retrying") == []


@pytest.mark.parametrize("hosting", DOORS)
def test_a_retry_that_has_not_ended_is_not_begun_once_more(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"1")
        name = json.loads(client.message()[1])["id"]
        gate = Gate()
        target.answer = gate.before(target.answer)
        assert post(admin, f"/api/runs/{name}/retry")[0] == 202
        status, answer = post(admin, f"/api/runs/{name}/retry")
        assert (status, answer["error"]["code"]) == (409, "cannot_retry")
        assert "has not ended" in answer["error"]["message"]
        assert answer["error"]["hint"].startswith("Wait until that has ended")
        gate.open.set()
        client.message()
        eventually(lambda: post(admin, f"/api/runs/{name}/retry")[0] == 202)


@pytest.mark.parametrize("hosting", DOORS)
def test_a_retry_needs_the_token_a_post_and_the_same_origin(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"1")
        path = f"/api/runs/{json.loads(client.message()[1])['id']}/retry"
        own = f"http://127.0.0.1:{admin.port}"
        assert admin.get(path).status == 405
        assert post(admin, path, Authorization="Bearer wrong-wrong-wrong-wrong")[0] == 401
        assert post(admin, path, Origin="http://evil.example")[0] == 403
        assert post(admin, path, Origin="null")[0] == 403
        assert post(admin, path, Origin="http://[")[0] == 403
        assert post(admin, path, Origin=own, Sec_Fetch_Site="cross-site")[0] == 403
        assert post(admin, path.replace("/api", ""), Origin="http://evil.example")[0] == 403
        assert post(admin, "/api/failures/retry", b'{"route": "Orders"}', Origin="http://evil.example")[0] == 403
        target.take_all()
        assert post(admin, path, Origin=own, Sec_Fetch_Site="same-origin")[0] == 202
        client.message()
        assert len(target.take_all()) == 1


@pytest.mark.parametrize("hosting", DOORS)
def test_without_a_token_nothing_is_retried(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0) as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/7", b"1")
        name = json.loads(client.message()[1])["id"]
        for path in (f"/api/runs/{name}/retry", f"/runs/{name}/retry", "/api/failures/retry"):
            status, answer = post(admin, path, b'{"route": "Orders"}')
            assert (status, answer["error"]["code"]) == (403, "no_admin_token")
        assert '/retry"' not in admin.get(f"/runs/{name}").text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (json.dumps({"ids": ["x"] * 100_000}).encode(), 413),
        (json.dumps({"ids": ["x"] * 1_001}).encode(), 400),
        (b"{}", 400),
        (b"[]", 400),
        (b'{"rout": "Orders"}', 400),
        (b'{"ids": ["x"], "route": "Orders"}', 400),
        (b"\xff", 400),
        (b'{"ids": ["nothing"]}', 202),
    ],
)
def test_a_body_that_names_no_retry_is_refused(target: Recorder, body: bytes, status: int) -> None:
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        found, answer = post(admin_with_token(host), "/api/failures/retry", body)
        assert found == status
        if status == 202:
            assert [one["code"] for one in answer["refused"]] == ["not_kept"]


@pytest.mark.parametrize("hosting", DOORS)
def test_a_failure_of_a_route_that_is_gone_is_not_retried_and_says_why(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN, reload_seconds=0.02) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"1")
        name = json.loads(client.message()[1])["id"]
        host.path.write_text(client_route(target.url, name="New"))
        eventually(lambda: admin.value("rest_bridge_queued", route="New") == 0)
        status, answer = post(admin, f"/api/runs/{name}/retry")
        assert (status, answer["error"]["message"]) == (409, "Route Orders has no event Send any more")
        status, answer = post(admin, "/api/failures/retry", b'{"route": "Orders"}')
        assert (status, answer["refused"][0]["code"]) == (202, "route_gone")
        assert admin.get(f"/runs/{name}").status == 200


@pytest.mark.parametrize("hosting", DOORS)
def test_the_form_of_the_page_retries_and_leads_back(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"1")
        name = json.loads(client.message()[1])["id"]
        assert f'action="/runs/{name}/retry"' in admin.get(f"/runs/{name}").text
        assert post(admin, f"/runs/{name}/retry", Origin=f"http://127.0.0.1:{admin.port}") == (303, f"/runs/{name}")
        again = json.loads(client.message()[1])["id"]
        page = admin.get(f"/runs/{name}").text
        assert f'Sent again as <a href="/runs/{again}">' in page


def test_a_retry_of_a_lossless_route_has_a_key_of_its_own_and_is_tried_until_it_succeeds(
    target: Recorder, tmp_path: Path
) -> None:
    route = client_route(target.url, more='ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"')
    target.answer = lambda _: (422, b"")
    with hosting(route, admin_port=0, admin_token=TOKEN, spool=str(tmp_path / "spool.db")) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"1")
        name = json.loads(client.message()[1])["id"]
        assert target.request().headers["idempotency-key"] == name
        target.answer = lambda _: (503, b"")
        status, started = post(admin, f"/api/runs/{name}/retry")
        assert status == 202
        assert target.request().headers["idempotency-key"] == started["id"] != name
        assert target.request().headers["idempotency-key"] == started["id"]
        target.answer = lambda _: (200, b"{}")
        client.message()
        eventually(lambda: outcome(admin, started["id"]) == "succeeded")
        assert admin.value("rest_bridge_spool_messages", route="Orders") == 0


@pytest.mark.parametrize("hosting", DOORS)
def test_retries_keep_to_the_rate_of_their_route(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        for number in range(8):
            client.publish(f"orders/{number}", b"1")
        client.messages(8)
        limited = client_route(target.url, more='ADD ROUTE_CONFIG WITH RATE_LIMIT "5/s"')
        host.path.write_text(limited)
        host.reload()
        target.take_all()
        began = time.monotonic()
        status, answer = post(admin, "/api/failures/retry", b'{"route": "Orders"}')
        assert (status, len(answer["started"])) == (202, 8)
        client.messages(8)
        assert time.monotonic() - began > 0.5  # the first ones at once, the others at 5 a second


@pytest.mark.parametrize("hosting", DOORS)
def test_a_retry_that_a_stop_has_cut_off_can_be_begun_again_after_the_start(
    target: Recorder, tmp_path: Path, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "_GRACE_SECONDS", 0.1)
    target.answer, gate = (lambda _: (422, b"")), Gate()
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "failures": str(tmp_path / "failures.db")}
    with hosting(client_route(target.url), **settings) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"1")
        name = json.loads(client.message()[1])["id"]
        target.answer = gate.before(lambda _: (200, b"{}"))
        assert post(admin, f"/api/runs/{name}/retry")[0] == 202
        gate.entered.get(timeout=SECONDS)
    gate.open.set()
    target.answer = lambda _: (200, b"{}")
    with hosting(client_route(target.url), **settings) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        assert admin.get(f"/api/runs/{name}").json["retried_as"] is None
        status, answer = post(admin, "/api/failures/retry", b'{"route": "Orders"}')
        assert (status, [one["retry_of"] for one in answer["started"]]) == (202, [name])
        client.message()
    with hosting(client_route(target.url), **settings) as host:
        admin = admin_with_token(host)
        assert admin.get(f"/api/runs/{name}").json["retried_as"] == answer["started"][0]["id"]


@pytest.mark.parametrize(
    ("hosting", "is_lossless"),
    [
        pytest.param(PLUGINS[0].values[0], False, id="plugin"),
        pytest.param(PLUGINS[1].values[0], False, id="plugin, a process"),
        pytest.param(PLUGINS[0].values[0], True, id="plugin, lossless"),
        pytest.param(WORKER.values[0], False, id="worker", marks=WORKER.marks),
    ],
)
def test_the_timestamp_of_a_message_that_is_retried_or_replayed_is_that_of_the_original(
    target: Recorder, tmp_path: Path, hosting: Hosting, is_lossless: bool
) -> None:
    target.answer = lambda _: (422, b"")
    routes = client_route(
        target.url, event='WITH FAILURE_PAYLOAD "true" WITH HEADERS ADD X-Time "{timestamp}"',
        more='ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"' if is_lossless else "",
    )  # fmt: skip
    settings = {"spool": str(tmp_path / "spool.db")} if is_lossless else {}
    with hosting(routes, admin_port=0, admin_token=TOKEN, status_seconds=30, **settings) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        client.publish("orders/7", b"1")
        failure = json.loads(client.message()[1])
        first = target.request().headers["x-time"]
        assert first == failure["timestamp"]
        eventually(lambda: rfc3339(time.time()) != first)
        assert post(admin, f"/api/runs/{failure['id']}/retry")[0] == 202
        assert target.request().headers["x-time"] == first
        client.message()
        file = tmp_path / "failures.jsonl"
        file.write_text(json.dumps(failure | {"timestamp": "2026-01-31T12:00:00.250Z"}))
        assert main(["replay", "--from", str(file), "--yes", "--broker", host.mqtt_url, "--rate", "1000/s"]) == 0
        assert target.request().headers["x-time"] == "2026-01-31T12:00:00.250Z"
        client.message()
        (route,) = admin.get("/api/routes").json["routes"]
        waited = [run["waited_ms"] for run in runs(admin)]
        assert (route["messages"]["failed"], max(waited) < 60_000) == (3, True)


@pytest.mark.parametrize("hosting", DOORS)
def test_a_replay_ends_the_problem_of_its_messages_as_a_retry_does(
    target: Recorder,
    tmp_path: Path,
    hosting: Hosting,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target.answer = lambda _: (422, b"")
    file, once = tmp_path / "failures.jsonl", ("--yes", "--rate", "1000/s")
    routes = client_route(target.url, event='WITH FAILURE_PAYLOAD "true"')
    with hosting(routes, admin_port=0, status_seconds=30) as host:
        admin, client = admin_of(host), host.client("done/#")
        for number in range(2):
            client.publish(f"orders/{number}", b"1")
        file.write_text("\n".join(client.message()[1].decode() for _ in range(2)))
        names = {json.loads(line)["id"] for line in file.read_text().splitlines()}
        assert main(["replay", "--from", str(file), *once, "--broker", host.mqtt_url]) == 0
        client.messages(2)
        assert {run["retry_of"] for run in runs(admin, "?outcome=failed")[:2]} == names, "they failed again"
        target.answer = lambda _: (200, b"{}")
        assert main(["replay", "--from", str(file), *once, "--broker", host.mqtt_url]) == 0
        client.messages(2)
        eventually(lambda: admin.get("/api/problems").json["problems"][0]["state"] == "resolved")
        failed = runs(admin, "?outcome=failed")
        assert (len(failed), {run["retry_outcome"] for run in failed}) == (4, {"succeeded"})
        (route,) = admin.get("/api/routes").json["routes"]
        assert route["health"] == "Green"
        known = ("--admin", f"http://127.0.0.1:{admin.port}")
        capsys.readouterr()
        assert main(["replay", "--from", str(file), *once, *known, "--broker", host.mqtt_url]) == 0
        assert capsys.readouterr() == ("      2 left out: sent again before, and succeeded\n", "")
        assert main(["replay", "--from", str(file), *once, "--broker", host.mqtt_url]) == 0
        client.messages(2)
        (newest, *_) = runs(admin)
        assert (newest["outcome"], newest["retry_of"]) == ("succeeded", None), "nothing was left to mend"
    assert "Invalid protocol" not in caplog.text, "amqtt was asked for MQTT 5"


@pytest.mark.parametrize("hosting", DOORS)
def test_failures_from_before_a_restart_count_as_if_there_had_been_none_and_wait_on_the_first_page(
    target: Recorder, tmp_path: Path, hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    target.answer = lambda _: (422, b"")
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "failures": str(tmp_path / "failures.db")}
    with hosting(client_route(target.url), **settings) as host:
        client = host.client("done/#")
        for number in range(3):
            client.publish(f"orders/{number}", b"1")
        client.messages(3)
    target.answer = lambda _: (200, b"{}")
    with hosting(client_route(target.url), **settings) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        assert "3 kept failure(s) wait for a retry (Orders: 3): rest-bridge failures --open" in caplog.text
        (route,), (problem,) = admin.get("/api/routes").json["routes"], admin.get("/api/problems").json["problems"]
        assert (route["health"], route["health_reason"]) == (
            "Yellow",
            "messages failed: 3 of the last 3, 3 before the start",
        )
        assert (route["open_failures"], route["messages"]["failed"], route["last_error"]["code"]) == (
            3,
            0,
            "http_status",
        )
        assert (problem["count"], problem["state"], problem["routes"]) == (3, "open", ["Orders"])
        assert '<a href="/runs?outcome=open">3 kept failures</a> wait for a retry' in admin.get("/").text
        assert len(runs(admin, "?outcome=open&route=Orders")) == 3
        assert post(admin, "/api/failures/retry", b'{"all": true}')[0] == 202
        client.messages(3)
        eventually(lambda: admin.get("/api/problems").json["problems"][0]["state"] == "resolved")
        (route,) = admin.get("/api/routes").json["routes"]
        assert (route["health"], route["open_failures"], runs(admin, "?outcome=open")) == ("Green", 0, [])
        assert "wait for a retry" not in admin.get("/").text
