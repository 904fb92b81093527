"""Runs of the admin port: found by what is asked for, with message, request and response, and without any secret."""

import html
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import embedded_broker
from tests.support.admin_client import (
    Admin,
    admin_of,
    await_written,
    bridging,
    client_route,
    failed,
    refusing_with_reason,
    runs,
    server_route,
)
from tests.support.asking import ask
from tests.support.doors import Hosting, doors
from tests.support.gate import Gate
from tests.support.http_recorder import Answer, Recorder
from tests.support.http_target import Seen
from tests.support.waiting import eventually

SECRETS = ["hush-header-1", "hush-url-22", "hush-query-3", "hush-body-44", "hush-token-5", "hush-client-6"]
LABELS = {"route": "Orders", "event": "Send"}


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_runs_are_found_by_route_outcome_code_topic_and_age(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    with bridging(hosting, client_route(target.url) + server_route()) as (host, admin, client):

        def topics(query: str) -> list[str]:
            return [run["topic"] for run in runs(admin, query)]

        for number in range(5):
            client.publish(f"orders/{number}", b"bad" if number % 2 else b"good")
            client.message()
        name = ask(host.http_port, "/hook", b"{}").headers["X-Request-ID"]
        assert topics("?route=Orders") == [f"orders/{n}" for n in range(4, -1, -1)]
        assert topics("?outcome=failed") == topics("?code=http_status") == ["orders/3", "orders/1"]
        assert topics("?topic=orders/2") == ["orders/2"]
        assert [len(runs(admin, query)) for query in ("?limit=2", "?since=10m")] == [2, 6]
        assert runs(admin, "?since=2999-01-31T12:00:00Z") == runs(admin, "?route=Nowhere") == []
        (intake,) = runs(admin, "?route=Intake")
        assert (intake["id"], intake["path"], intake["outcome"]) == (name, "/hook", "succeeded")
        newest = runs(admin, "?route=Orders&limit=2")[1]
        whole = admin.run(newest["id"])
        assert {name: whole[name] for name in newest} == newest
        assert [(one["status"], one["code"]) for one in newest["tries"]] == [(422, "http_status")]


@pytest.mark.parametrize(
    "query",
    [
        *("outcome=bad", "limit=0", "limit=1001", "since=yesterday", "topic=a/%23/b", "rout=R", "limit=x"),
        pytest.param(f"limit=000001{'9' * 30}", id="a large limit"),
        pytest.param(f"limit=000001{'9' * 5000}", id="an endless limit"),
    ],
)
def test_a_question_that_is_none_is_refused_with_what_is_allowed(idle: Admin, query: str) -> None:
    answer = idle.get(f"/api/runs?{query}")
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_a_failure_shows_message_request_and_response(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        name = failed(client, "orders/7", b"bad \xc3\xbc")
        run = admin.run(name)
        assert (run["message"]["topic"], run["message"]["payload"]) == ("orders/7", "bad \u00fc")
        assert (run["message"]["size"], run["message"]["is_cut"], run["message"]["is_kept"]) == (6, False, True)
        assert (run["request"]["method"], run["request"]["url"]) == ("POST", f"{target.url}/new/7")
        assert run["request"]["body"] == "bad \u00fc"
        assert ["Content-Type", "application/json"] in run["request"]["headers"]
        assert (run["response"]["status"], run["response"]["body"]) == (422, '{"reason": "no such customer"}')
        page = admin.get(f"/runs/{name}")
        assert page.status == 200
        assert "no such customer" in page.text
        assert "form-action 'self'" in page.headers["Content-Security-Policy"]
        assert admin.get("/api/runs/nothing").status == admin.get("/runs/nothing").status == 404


def test_a_large_message_is_kept_whole_and_what_is_shown_of_large_bodies_is_cut_and_says_so(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = lambda _: (422, b"\xc3\xbc" * 20_000)
    with bridging(hosting, client_route(target.url), max_body_bytes="1MiB") as (_, admin, client):
        run = admin.run(failed(client, "orders/7", b"x" * 300_000))
        parts = [("message", "payload", 300_000), ("request", "body", 300_000), ("response", "body", 40_000)]
        for part, name, size in parts:
            assert (run[part]["size"], run[part]["is_cut"]) == (size, True)
            assert len(run[part][name].encode()) == 16_384
        assert run["response"]["body_encoding"] == "utf-8"
        assert run["message"]["is_kept"]


def secret_route(url: str, secrets: Path) -> str:
    for name, secret in zip(("H", "U", "Q", "B", "C"), [*SECRETS[:4], SECRETS[5]], strict=True):
        (secrets / name).write_text(secret)
    return f"""DEFINE ROUTE Orders WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
        WITH OAUTH2_TOKEN_URL "{url}/token" WITH OAUTH2_CLIENT_ID "me" WITH OAUTH2_CLIENT_SECRET GET SECRET "C"
    ADD EVENT Send WITH SOURCE_TOPIC "orders/+" WITH METHOD "POST"
        WITH ENDPOINT "/{{secret.U}}/new?key={{secret.Q}}&own={{value.json.password}}"
        WITH BODY '{{"secret": "{{secret.B}}"}}' WITH HEADERS ADD X-Text '{{secret.H}}'
        ADD X-Api-Key '{{value.json.password}}' WITH DESTINATION_TOPIC "done"
"""


def echoing(status: int) -> Callable[[Seen], Answer]:
    """Return a server that gives tokens, and answers what came with a status."""

    def echo(seen: Seen) -> Answer:
        if seen.path.startswith("/token"):
            return 200, json.dumps({"access_token": SECRETS[4], "token_type": "Bearer"}).encode()
        return status, json.dumps(
            {"path": seen.path, "headers": dict(seen.fields), "body": seen.body.decode()}
        ).encode()

    return echo


CARRIED = "hush-carried-7"
"""A password that a message carries."""
CARRYING = json.dumps({"password": CARRIED}).encode()


@pytest.mark.parametrize("capture", ["failures", "all"])
def test_no_secret_is_in_a_run_its_page_or_the_file(
    target: Recorder, tmp_path: Path, capture: str, hosting: Hosting
) -> None:
    target.answer = echoing(500 if capture == "failures" else 200)
    route = secret_route(target.url, tmp_path)
    settings = {"secrets_dir": str(tmp_path), "capture": capture, "failures": str(tmp_path / "failures.db")}
    with bridging(hosting, route, "done", **settings) as (_, admin, client):
        client.publish("orders/1", CARRYING)
        client.message()
        (run,) = runs(admin)
        whole = admin.run(run["id"])
        assert whole["response"] is not None
        assert whole["message"]["payload"] is not None
        assert ["Authorization", "Bearer ***"] in whole["request"]["headers"]
        own = f"/runs/{run['id']}"
        paths = ["/api/runs", f"/api{own}", own, "/", "/api/problems", "/routes/Orders", "/api/routes/Orders/calls"]
        for path in paths:
            text = admin.text(path)
            assert [secret for secret in (*SECRETS, CARRIED) if secret in text] == [], path
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("failures.db*"))
    assert kept
    assert [secret for secret in SECRETS if secret.encode() in kept] == []


@pytest.mark.parametrize("is_dead", [False, True], ids=["echoes", "dead"])
def test_no_secret_is_in_a_problem_or_the_page_of_a_run_that_is_tried_again(
    target: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_dead: bool
) -> None:
    caplog.set_level(logging.DEBUG, logger="amqtt_rest_bridge")
    target.answer = echoing(503)
    address, routes = "127.99.98.97", secret_route(target.url, tmp_path)
    if is_dead:
        (tmp_path / "A").write_text(address)
        routes = routes.replace(f'BASE_ADDRESS "{target.url}"', 'BASE_ADDRESS "http://" + GET SECRET "A" + ":9"')
    with bridging(embedded_broker.hosting, routes, secrets_dir=str(tmp_path)) as (_, admin, client):
        client.publish("orders/1", CARRYING)
        eventually(admin.problems)
        (problem,) = admin.problems()
        assert (problem["code"], problem["retrying"]) == ("connection_failed" if is_dead else "http_status", 1)
        assert ("***" in problem["message"], "***" in problem["target"]) == (is_dead, is_dead)
        shown = {path: admin.text(path) for path in ("/", "/api/problems", f"/runs/{problem['run']}", "/runs")}
    for name, text in (*shown.items(), ("log", caplog.text)):
        assert [secret for secret in (*SECRETS, CARRIED, address) if secret in text] == [], name


def test_with_a_file_runs_of_a_killed_bridge_process_are_kept_with_their_messages(
    target: Recorder, tmp_path: Path
) -> None:
    target.answer = refusing_with_reason
    settings: dict[str, Any] = {"admin_port": 0, "failures": str(tmp_path / "failures.db")}
    with embedded_broker.hosting(client_route(target.url), processes=1, **settings) as host:
        admin, client = admin_of(host), host.client("done/#")
        for number in range(3):
            failed(client, f"orders/{number}", b"bad")
        before = [admin.run(run["id"]) for run in runs(admin)]
        await_written(tmp_path / "failures.db", 3)
        host.kill_bridge()
        admin = admin_of(host)
        after = [admin.run(run["id"]) for run in runs(admin)]
        assert [one["response"]["body"] for one in after] == ['{"reason": "no such customer"}'] * 3
        for one in (*before, *after):
            del one["time"], one["tries"], one["took_ms"], one["waited_ms"]  # of two clocks, a moment apart
        assert before == after
        page = admin.text("/routes/Orders")
        assert page.count("<details data-run=") == page.count(html.escape(after[0]["error"]["hint"])) == 3
        assert "None." not in page


def test_without_capture_runs_are_known_and_nothing_of_them_is_kept(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    with bridging(hosting, client_route(target.url), capture="none") as (_, admin, client):
        run = admin.run(failed(client, "orders/7", b"bad"))
        assert (run["code"], run["message"]["payload"], run["message"]["is_kept"]) == ("http_status", None, False)
        assert (run["request"], run["response"]) == (None, None)


def test_problems_count_what_failed_alike_and_name_the_newest_run(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    dead = client_route("http://127.0.0.1:9", name="Dead", config="WITH RETRIES 0").replace("orders/+", "dead/+")
    guarded = server_route().replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "x" WITH SERVER_PORT')
    with bridging(hosting, client_route(target.url) + dead + guarded) as (host, admin, client):
        for topic in ("orders/0", "orders/1", "orders/2", "dead/1"):
            failed(client, topic, b"bad")
        for path in ("/hook", "/hok"):
            assert ask(host.http_port, path, b"{}").status >= 400
        eventually(lambda: len(admin.problems()) == 4)
        first, *others = [
            (one["count"], one["code"], one["status"], *one["routes"], bool(one["hint"])) for one in admin.problems()
        ]
        assert first == (3, "http_status", 422, "Orders", True)
        assert set(others) == {
            (1, "connection_failed", None, "Dead", True),
            (1, "unauthorized", 401, "Intake", True),
            (1, "not_found", 404, "Intake", True),
        }
        for problem in admin.problems():
            assert problem["code"] == "not_found" or admin.run(problem["run"])
        page = admin.text("/")
        assert page.index('id="problems"') < page.index("<table")
        assert "<p>The server answered 422" in page


def test_messages_that_are_tried_again_are_a_problem_and_in_no_other_figure(target: Recorder) -> None:
    gate, tried = Gate(), set[str]()
    second: Callable[[Seen], Answer] = gate.before(lambda seen: (200 if seen.path.endswith("/0") else 503, b""))

    def answer(seen: Seen) -> Answer:
        if seen.path in tried:
            return second(seen)
        tried.add(seen.path)
        return 503, b""

    target.answer, count = answer, 25
    routes = client_route(target.url, config="WITH RETRIES 1")
    with bridging(embedded_broker.hosting, routes) as (_, admin, client):
        for number in range(count):
            client.publish(f"orders/{number}", b"{}")

        def problem() -> dict[str, Any]:
            return next(iter(admin.problems()), {"count": 0})

        eventually(lambda: problem()["count"] == count)
        first = problem()
        assert (first["retrying"], first["code"], first["status"]) == (count, "http_status", 503)
        assert (first["target"], first["routes"]) == (target.url, ["Orders"])
        assert (first["message"], bool(first["hint"])) == ("the server answered 503 Service Unavailable", True)
        assert f"trying all {count} messages again" in admin.text("/")
        orders = admin.status("Orders")
        assert (orders["messages"]["failed"], orders["errors"]["total"]) == (0, 0)
        assert admin.value("rest_bridge_calls_total", outcome="http_status", **LABELS) is None
        assert runs(admin) == []
        page = admin.text(f"/runs/{first['run']}")
        assert ("another one follows" in page, 'id="tries"' in page) == (True, True)
        assert admin.get(f"/api/runs/{first['run']}").status == 404
        gate.open.set()
        client.messages(count)
        last = problem()
        assert (last["count"], last["retrying"], last["first"]) == (count - 1, 0, first["first"])
        assert admin.value("rest_bridge_calls_total", outcome="http_status", **LABELS) == count - 1
        assert admin.run(last["run"])["outcome"] == "failed"


def test_a_problem_leads_to_a_page_also_where_more_tries_have_failed_than_are_kept(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = lambda _: (503, b"")
    with bridging(hosting, client_route(target.url)) as (_, admin, client):
        client.publish("orders/first", b"{}")
        eventually(admin.problems)
        (problem,) = admin.problems()
        for number in range(30):
            client.publish(f"orders/{number}", b"{}")
        eventually(lambda: admin.problems()[0]["count"] == 31)
        assert "orders/<wbr>first" in admin.text(f"/runs/{problem['run']}")


def test_messages_of_a_batch_that_is_tried_again_count_each_and_name_their_batch(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge")
    gate, numbers = Gate(), itertools.count()
    later = gate.before(lambda _: (503, b""))
    target.answer = lambda seen: later(seen) if next(numbers) else (503, b"")
    batched = client_route(target.url, config="WITH RETRIES 1").replace("/{topic.2}", "")
    batched = batched.replace('"{payload}"', '"{batch}" WITH BATCH_SIZE 3')
    with bridging(embedded_broker.hosting, batched) as (_, admin, client):
        for number in range(3):
            client.publish(f"orders/{number}", b"{}")
        eventually(admin.problems)
        (problem,) = admin.problems()
        assert (problem["count"], problem["retrying"]) == (3, 3)
        assert admin.get(f"/runs/{problem['run']}").status == 200
        gate.open.set()
        client.messages(3)
        (problem,) = admin.problems()
        assert (problem["count"], problem["retrying"]) == (3, 0)
        assert {run["batch"] for run in runs(admin)} == {3}
        assert admin.text("/runs").count("batch of 3: 503 http_status") == 3
        target.answer = lambda _: (200, b"{}")
        for number in range(3):
            client.publish(f"orders/{number}", b"{}")
        eventually(lambda: "(batch of 3), message on orders/" in caplog.text)


@pytest.mark.parametrize("capture", ["all", "failures"])
def test_a_message_that_was_skipped_says_why_and_has_its_payload_with_capture_all(
    target: Recorder, hosting: Hosting, capture: str
) -> None:
    routes = client_route(target.url, event="WITH WHEN '{value.json.celsius} > 30'")
    with bridging(hosting, routes, capture=capture) as (_, admin, client):
        with admin.live() as events:
            events.begin(client, "orders/probe")
            client.publish("orders/1", b'{"celsius": "hot"}')
            eventually(lambda: runs(admin, "?topic=orders/1"))
            record = events.record()
        (run,) = runs(admin, "?topic=orders/1")
        reason = {"code": "when_unusable", "message": 'WHEN: {value.json.celsius} is "hot", not a number'}
        assert (run["outcome"], run["code"], run["reason"], record["reason"]) == ("skipped", None, reason, reason)
        assert "is &#34;hot&#34;, not a number" in admin.text(f"/runs/{run['id']}")
        for path in ("/routes/Orders", "/runs"):
            row = admin.text(path).partition(f'data-run="{run["id"]}"')[2].partition("</summary>")[0]
            assert "{value.json.celsius} is &#34;hot&#34;, not a number" in row, path
        message = admin.run(run["id"])["message"]
        assert (message and message["payload"]) == ('{"celsius": "hot"}' if capture == "all" else None)
        assert (admin.value("rest_bridge_skipped_total", reason="when_unusable", **LABELS) or 0) >= 1
        assert admin.status("Orders")["health"] in ("Green", "Yellow")
        (problem,) = admin.problems()
        assert (problem["code"], problem["target"]) == ("when_unusable", "route Orders, event Send")
        assert problem["message"] == f"event Send skips each message: {reason['message']}"
        assert "Skipped</a></th>" in (first := admin.text("/")) and 'colspan="13"' in first
        client.publish("orders/1", b'{"celsius": 31}')
        eventually(lambda: not admin.problems(), "one that fits ends it")


def test_a_message_whose_condition_is_false_counts_as_skipped_and_not_among_the_durations(
    target: Recorder, hosting: Hosting
) -> None:
    with bridging(hosting, client_route(target.url, event="WITH WHEN '{value.json.level} >= 3'")) as (_, admin, client):
        client.publish("orders/1", b'{"level": 1}')
        client.publish("orders/2", b'{"level": 3}')
        assert client.message()[0] == "done/2"
        admin.await_value(1, "rest_bridge_calls_total", outcome="skipped", **LABELS)
        admin.await_value(1, "rest_bridge_skipped_total", reason="when_false", **LABELS)
        admin.await_value(1, "rest_bridge_calls_total", outcome="succeeded", **LABELS)
        assert admin.value("rest_bridge_call_seconds_count", **LABELS) == 1
        calls = {call["topic"]: (call["kind"], call["url"], call["code"]) for call in admin.calls("Orders")}
        assert calls == {"orders/1": ("skipped", None, None), "orders/2": ("call", f"{target.url}/new/2", None)}
        assert "skipped" in admin.text("/routes/Orders")
