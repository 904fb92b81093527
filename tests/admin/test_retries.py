"""Retries: the message of a failure goes through its event again, for those that may, as a new run."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from amqtt_rest_bridge import bridge
from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.times import rfc3339
from tests.support import embedded_broker
from tests.support.admin_client import bridging, client_route, failed, outcome, post, refusing_with_reason, runs
from tests.support.doors import PLUGINS, WORKER, Hosting, doors
from tests.support.gate import Gate
from tests.support.http_recorder import Answer, Recorder
from tests.support.http_target import Seen
from tests.support.waiting import SECONDS, eventually

ALL_OF_THE_ROUTE: Final = b'{"route": "Orders"}'
LOSSLESS: Final = 'ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"'


def answering(status: int, body: bytes = b"{}") -> Callable[[Seen], Answer]:
    """Return a server that answers each request alike."""
    return lambda _: (status, body)


@pytest.fixture
def target(target: Recorder) -> Recorder:
    """A server that refuses each message until a test says something else."""
    target.answer = answering(422)
    return target


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_a_retry_sends_the_message_through_its_event_alone_as_a_new_run(target: Recorder, hosting: Hosting) -> None:
    other = client_route(target.url, name="Other").replace("/new/", "/other/")
    target.answer = refusing_with_reason
    with bridging(hosting, client_route(target.url) + other) as (_, admin, client):
        client.publish("orders/7", b"bad")
        client.messages(2)
        (first,) = runs(admin, "?route=Orders")
        target.answer = answering(200)
        target.take_all()
        status, started = post(admin, f"/api/runs/{first['id']}/retry")
        assert (status, started["retry_of"]) == (202, first["id"])
        client.message()
        eventually(lambda: outcome(admin, started["id"]) == "succeeded")
        assert [(one.path, one.body) for one in target.take_all()] == [("/new/7", b"bad")]
        newest, oldest = runs(admin, "?route=Orders")
        assert (newest["id"], newest["retry_of"], newest["outcome"]) == (started["id"], first["id"], "succeeded")
        assert oldest["retried_as"] == started["id"]
        assert runs(admin, "?route=Orders&outcome=failed") == [oldest]


def test_many_failures_are_retried_at_the_rate_of_their_route_and_those_sent_again_are_not_sent_twice(
    target: Recorder, hosting: Hosting
) -> None:
    with bridging(hosting, client_route(target.url)) as (host, admin, client):
        for number in range(8):
            failed(client, f"orders/{number}")
        target.answer = answering(200)
        host.path.write_text(client_route(target.url, more='ADD ROUTE_CONFIG WITH RATE_LIMIT "5/s"'))
        host.reload()
        began = time.monotonic()
        status, answer = post(admin, "/api/failures/retry", b'{"route": "Orders", "code": "http_status"}')
        assert (status, len(answer["started"]), answer["refused"]) == (202, 8, [])
        client.messages(8)
        assert time.monotonic() - began > 0.5  # the first ones at once, the others at 5 a second
        admin.await_value(8, "rest_bridge_calls_total", route="Orders", event="Send", outcome="succeeded")
        assert post(admin, "/api/failures/retry", ALL_OF_THE_ROUTE) == (202, {"started": [], "refused": []})


def test_the_page_counts_the_ends_of_more_retries_than_successes_are_kept(target: Recorder) -> None:
    with bridging(embedded_broker.hosting, client_route(target.url)) as (_, admin, client):
        for number in range(30):
            failed(client, f"orders/{number}")
        target.answer = answering(200)
        _, page = post(admin, "/retry", b"route=Orders&code=http_status")
        eventually(lambda: '30 sent again: <span class="outcome" data-outcome="succeeded">30 ' in admin.text(page))


def test_a_problem_whose_messages_were_all_sent_again_with_success_is_resolved_and_its_route_green(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = answering(422, b'{"detail": "unit is required"}')
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        names = [failed(client, f"orders/{number}") for number in range(3)]
        (problem,) = admin.problems()
        assert problem["message"].endswith(": unit is required")
        _, first = post(admin, f"/api/runs/{names[0]}/retry")
        client.message()
        eventually(lambda: outcome(admin, first["id"]) == "failed")
        assert [(one["count"], one["run"]) for one in admin.problems()] == [(3, first["id"])], "each message once"
        gate = Gate()
        target.answer = gate.before(answering(200))
        for name in (first["id"], *names[1:]):
            assert post(admin, f"/api/runs/{name}/retry")[0] == 202
        assert {run["retry_outcome"] for run in runs(admin, "?outcome=failed")} == {"retrying", "failed"}
        gate.open.set()
        client.messages(3)
        eventually(lambda: admin.problems()[0]["state"] == "resolved")
        (problem,) = admin.problems()
        assert (problem["count"], problem["sent_again"], problem["retrying"]) == (3, 3, 0)
        route = admin.status("Orders")
        assert (route["health"], route["messages"]["failed"]) == ("Green", 4)
        assert {run["retry_outcome"] for run in runs(admin, "?outcome=failed")} == {"succeeded"}
        assert "Resolved: all 3 messages were sent again and succeeded." in admin.text("/")
        assert admin.text("/runs").count("sent again: succeeded") == 4
        hint = 'class="hint"'
        assert all(hint not in admin.text(path) for path in ("/", f"/runs/{names[0]}", "/routes/Orders"))
        assert all("(it has passed)" in admin.text(path) for path in ("/", "/routes/Orders"))
        target.answer = answering(500)
        failed(client)
        eventually(lambda: len(admin.problems()) == 2)
        assert admin.text("/routes/Orders").count(hint) == admin.text("/").count(hint) == 1
        assert [(one["status"], one["state"]) for one in admin.problems()] == [(500, "open"), (422, "resolved")]
        assert re.findall(r'data-state="(open|resolved)"', admin.text("/")) == ["open", "resolved"]


def test_what_is_still_tried_again_is_in_the_runs_and_in_the_status(target: Recorder, hosting: Hosting) -> None:
    target.answer = answering(503)
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        client.publish("orders/1", b"1")
        eventually(lambda: runs(admin, "?outcome=retrying"))
        (run,) = runs(admin, "?outcome=retrying")
        assert (run["topic"], run["outcome"], run["code"]) == ("orders/1", "retrying", "http_status")
        assert (runs(admin), runs(admin, "?outcome=retrying&route=Other")) == ([], [])
        assert admin.status("Orders")["messages"]["retrying"] == 1
        target.answer = answering(200)
        client.message()
        assert runs(admin, "?outcome=retrying") == []


def test_a_retry_that_has_not_ended_is_not_begun_once_more(target: Recorder, hosting: Hosting) -> None:
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        path = f"/api/runs/{failed(client)}/retry"
        gate = Gate()
        target.answer = gate.before(target.answer)
        assert post(admin, path)[0] == 202
        status, answer = post(admin, path)
        assert (status, answer["error"]["code"]) == (409, "cannot_retry")
        assert "has not ended" in answer["error"]["message"]
        assert answer["error"]["hint"].startswith("Wait until that has ended")
        gate.open.set()
        client.message()
        eventually(lambda: post(admin, path)[0] == 202)


def test_a_retry_needs_the_token_a_post_and_the_same_origin(target: Recorder, hosting: Hosting) -> None:
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        name = failed(client)
        path, page = f"/api/runs/{name}/retry", f"/runs/{name}/retry"
        own = f"http://127.0.0.1:{admin.port}"
        assert admin.get(path).status == 405
        assert post(admin, path, Authorization="Bearer wrong-wrong-wrong-wrong")[0] == 401
        for origin in ("http://evil.example", "null", "http://["):
            assert post(admin, path, Origin=origin)[0] == 403
        assert post(admin, path, Origin=own, Sec_Fetch_Site="cross-site")[0] == 403
        assert post(admin, page, Origin="http://evil.example")[0] == 403
        assert post(admin, "/api/failures/retry", ALL_OF_THE_ROUTE, Origin="http://evil.example")[0] == 403
        target.take_all()
        assert post(admin, path, Origin=own, Sec_Fetch_Site="same-origin")[0] == 202
        client.message()
        assert len(target.take_all()) == 1
        eventually(lambda: admin.run(name)["retry_outcome"] == "failed")
        assert f'action="{page}"' in admin.text(f"/runs/{name}")
        eventually(lambda: post(admin, page, Origin=own) == (303, f"/runs/{name}"), "the one before has been released")
        again = json.loads(client.message()[1])["id"]
        assert f'Sent again as <a href="/runs/{again}">' in admin.text(f"/runs/{name}")


def test_without_a_token_nothing_is_retried(target: Recorder, hosting: Hosting) -> None:
    with bridging(hosting, client_route(target.url), admin_token=None) as (_, admin, client):
        name = failed(client)
        for path in (f"/api/runs/{name}/retry", f"/runs/{name}/retry", "/api/failures/retry"):
            status, answer = post(admin, path, ALL_OF_THE_ROUTE)
            assert (status, answer["error"]["code"]) == (403, "no_admin_token")
        assert '/retry"' not in admin.text(f"/runs/{name}")
        assert all("There is no Retry here without a token" in admin.text(path) for path in ("/", f"/runs/{name}"))


def test_a_drop_without_the_right_path_or_ids_is_refused_and_sends_nothing(target: Recorder) -> None:
    with bridging(embedded_broker.hosting, client_route(target.url)) as (_, admin, client):
        name = failed(client)
        assert post(admin, f"/api/runs/{name}/drop")[0] == 404
        for body in (b'{"all": true}', ALL_OF_THE_ROUTE):
            assert post(admin, "/api/failures/drop", body)[0] == 400
        assert (admin.run(name)["retried_as"], admin.status("Orders")["open_failures"]) == (None, 1)


def test_a_body_that_names_no_retry_is_refused(target: Recorder) -> None:
    with bridging(embedded_broker.hosting, client_route(target.url)) as (_, admin, _):
        for body, status in (
            (json.dumps({"ids": ["x"] * 100_000}).encode(), 413),
            (json.dumps({"ids": ["x"] * 1_001}).encode(), 400),
            *((body, 400) for body in (b"{}", b"[]", b'{"rout": "Orders"}', b'{"ids": ["x"], "route": "R"}', b"\xff")),
        ):
            assert post(admin, "/api/failures/retry", body)[0] == status, body[:40]
        status, answer = post(admin, "/api/failures/retry", b'{"ids": ["nothing"]}')
        assert (status, [one["code"] for one in answer["refused"]]) == (202, ["not_kept"])


def test_a_failure_of_a_route_that_is_gone_is_not_retried_and_says_why(target: Recorder, hosting: Hosting) -> None:
    with bridging(hosting, client_route(target.url), reload_seconds=0.02) as (host, admin, client):
        name = failed(client)
        host.path.write_text(client_route(target.url, name="New"))
        eventually(lambda: admin.value("rest_bridge_queued", route="New") == 0)
        status, answer = post(admin, f"/api/runs/{name}/retry")
        assert (status, answer["error"]["message"]) == (409, "Route Orders has no event Send any more")
        status, answer = post(admin, "/api/failures/retry", ALL_OF_THE_ROUTE)
        assert (status, answer["refused"][0]["code"]) == (202, "route_gone")
        assert "There is no Retry: its route has been removed." in admin.text(f"/runs/{name}")


def test_a_retry_of_a_lossless_route_has_a_key_of_its_own_and_is_tried_until_it_succeeds(
    target: Recorder, tmp_path: Path
) -> None:
    route, spool = client_route(target.url, more=LOSSLESS), str(tmp_path / "spool.db")
    with bridging(embedded_broker.hosting, route, spool=spool) as (_, admin, client):
        name = failed(client)
        assert target.request().headers["idempotency-key"] == name
        target.answer = answering(503)
        status, started = post(admin, f"/api/runs/{name}/retry")
        assert status == 202
        keys = [target.request().headers["idempotency-key"] for _ in range(2)]
        assert keys == [started["id"]] * 2 != [name] * 2
        target.answer = answering(200)
        client.message()
        eventually(lambda: outcome(admin, started["id"]) == "succeeded")
        assert admin.value("rest_bridge_spool_messages", route="Orders") == 0


def test_a_retry_that_a_stop_has_cut_off_can_be_begun_again_after_the_start(
    target: Recorder, tmp_path: Path, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "_GRACE_SECONDS", 0.1)
    gate, file = Gate(), str(tmp_path / "failures.db")
    with bridging(hosting, client_route(target.url), failures=file) as (_, admin, client):
        name = failed(client)
        target.answer = gate.before(answering(200))
        assert post(admin, f"/api/runs/{name}/retry")[0] == 202
        gate.entered.get(timeout=SECONDS)
    gate.open.set()
    target.answer = answering(200)
    with bridging(hosting, client_route(target.url), failures=file) as (_, admin, client):
        assert admin.run(name)["retried_as"] is None
        status, answer = post(admin, "/api/failures/retry", ALL_OF_THE_ROUTE)
        assert (status, [one["retry_of"] for one in answer["started"]]) == (202, [name])
        client.message()
    with bridging(hosting, client_route(target.url), failures=file) as (_, admin, _):
        assert admin.run(name)["retried_as"] == answer["started"][0]["id"]


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
    event = 'WITH FAILURE_PAYLOAD "true" WITH HEADERS ADD X-Time "{timestamp}"'
    routes = client_route(target.url, event=event, more=LOSSLESS if is_lossless else "")
    settings: dict[str, Any] = {"spool": str(tmp_path / "spool.db")} if is_lossless else {}
    with bridging(hosting, routes, status_seconds=30, **settings) as (host, admin, client):
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
        waited = [run["waited_ms"] for run in runs(admin)]
        assert (admin.status("Orders")["messages"]["failed"], max(waited) < 60_000) == (3, True)


def test_a_replay_ends_the_problem_of_its_messages_as_a_retry_does(
    target: Recorder, tmp_path: Path, hosting: Hosting, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "failures.jsonl"
    routes = client_route(target.url, event='WITH FAILURE_PAYLOAD "true"')
    with bridging(hosting, routes, admin_token=None, status_seconds=30) as (host, admin, client):

        def replay(*options: str) -> None:
            arguments = ["--from", str(file), "--yes", "--rate", "1000/s", "--broker", host.mqtt_url]
            assert main(["replay", *arguments, *options]) == 0

        for number in range(2):
            client.publish(f"orders/{number}", b"1")
        file.write_text("\n".join(client.message()[1].decode() for _ in range(2)))
        names = {json.loads(line)["id"] for line in file.read_text().splitlines()}
        replay()
        client.messages(2)
        assert {run["retry_of"] for run in runs(admin, "?outcome=failed")[:2]} == names, "they failed again"
        target.answer = answering(200)
        replay()
        client.messages(2)
        eventually(lambda: admin.problems()[0]["state"] == "resolved")
        found = runs(admin, "?outcome=failed")
        assert (len(found), {run["retry_outcome"] for run in found}) == (4, {"succeeded"})
        assert admin.status("Orders")["health"] == "Green"
        capsys.readouterr()
        replay("--admin", f"http://127.0.0.1:{admin.port}")
        assert capsys.readouterr() == ("      2 left out: sent again before, and succeeded\n", "")
        replay()
        client.messages(2)
        (newest, *_) = runs(admin)
        assert (newest["outcome"], newest["retry_of"]) == ("succeeded", None), "nothing was left to mend"
    assert "Invalid protocol" not in caplog.text, "amqtt was asked for MQTT 5"


def test_failures_from_before_a_restart_count_as_if_there_had_been_none_and_wait_on_the_first_page(
    target: Recorder, tmp_path: Path, hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    file = str(tmp_path / "failures.db")
    with bridging(hosting, client_route(target.url), failures=file) as (_, admin, client):
        (again, *_) = [failed(client, f"orders/{number}") for number in range(3)]
        target.answer = answering(404)
        post(admin, f"/api/runs/{again}/retry")
        client.message()
        eventually(lambda: {one["status"]: one["count"] for one in admin.problems()} == {422: 2, 404: 1})
    target.answer = answering(200)
    with bridging(hosting, client_route(target.url), failures=file) as (_, admin, client):
        assert "3 kept failure(s) wait for a retry (Orders: 3): rest-bridge failures --open" in caplog.text
        route, problems = admin.status("Orders"), admin.problems()
        reason = "messages failed: none since the start, before it 3 of the last 3"
        assert (route["health"], route["health_reason"]) == ("Yellow", reason)
        figures = (route["open_failures"], route["messages"]["failed"], route["last_error"]["code"])
        assert figures == (3, 0, "http_status")
        assert {(one["status"], one["count"], one["state"]) for one in problems} == {(422, 2, "open"), (404, 1, "open")}
        assert '<a href="/runs?outcome=open">3 kept failures</a> wait for a retry' in admin.text("/")
        assert len(runs(admin, "?outcome=open&route=Orders")) == 3
        assert post(admin, "/api/failures/retry", b'{"all": true}')[0] == 202
        client.messages(3)
        eventually(lambda: {one["state"] for one in admin.problems()} == {"resolved"})
        route = admin.status("Orders")
        assert (route["health"], route["open_failures"], runs(admin, "?outcome=open")) == ("Green", 0, [])
        assert "wait for a retry" not in admin.text("/")
