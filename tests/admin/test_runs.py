"""Runs of the admin port: found by what is asked for, with message, request and response, and without any secret."""

import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin_client import (
    Admin,
    admin_of,
    await_written,
    client_route,
    refusing_with_reason,
    runs,
    server_route,
)
from tests.support.asking import ask
from tests.support.doors import DOORS, Hosting, doors
from tests.support.embedded_broker import hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Answer, Recorder
from tests.support.http_target import Seen
from tests.support.waiting import eventually

SECRETS = ["hush-header-1", "hush-url-22", "hush-query-3", "hush-body-44", "hush-token-5", "hush-client-6"]


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_runs_are_found_by_route_outcome_code_topic_and_age(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    with hosting(client_route(target.url) + server_route(), admin_port=0) as host:
        admin, client = admin_of(host), host.client("done/#")
        for number in range(5):
            client.publish(f"orders/{number}", b"bad" if number % 2 else b"good")
            client.message()
        name = ask(host.http_port, "/hook", b"{}").headers["X-Request-ID"]
        assert [run["topic"] for run in runs(admin, "?route=Orders")] == [f"orders/{n}" for n in range(4, -1, -1)]
        assert {run["topic"] for run in runs(admin, "?outcome=failed")} == {"orders/1", "orders/3"}
        assert {run["topic"] for run in runs(admin, "?code=http_status")} == {"orders/1", "orders/3"}
        assert [run["topic"] for run in runs(admin, "?topic=orders/2")] == ["orders/2"]
        assert len(runs(admin, "?limit=2")) == 2
        assert len(runs(admin, "?since=10m")) == 6
        assert runs(admin, "?since=2999-01-31T12:00:00Z") == []
        (intake,) = runs(admin, "?route=Intake")
        assert (intake["id"], intake["path"], intake["outcome"]) == (name, "/hook", "succeeded")
        assert runs(admin, "?route=Nowhere") == []
        newest = runs(admin, "?route=Orders&limit=2")[1]
        whole = admin.get(f"/api/runs/{newest['id']}").json
        assert {name: whole[name] for name in newest} == newest
        assert [(one["status"], one["code"]) for one in newest["tries"]] == [(422, "http_status")]


@pytest.mark.parametrize(
    "query",
    [
        "?outcome=bad",
        "?limit=0",
        "?limit=1001",
        "?since=yesterday",
        "?topic=a/%23/b",
        "?rout=R",
        "?limit=x",
        f"?limit=000001{'9' * 30}",
        f"?limit=000001{'9' * 5000}",
    ],
)
def test_a_question_that_is_none_is_refused_with_what_is_allowed(idle: Admin, query: str) -> None:
    answer = idle.get(f"/api/runs{query}")
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_a_failure_shows_message_request_and_response(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    with hosting(client_route(target.url), admin_port=0) as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/7", b"bad \xc3\xbc")
        failure = json.loads(client.message()[1])
        run = admin.get(f"/api/runs/{failure['id']}").json
        assert (run["message"]["topic"], run["message"]["payload"]) == ("orders/7", "bad \u00fc")
        assert (run["message"]["size"], run["message"]["is_cut"], run["message"]["is_kept"]) == (6, False, True)
        assert (run["request"]["method"], run["request"]["url"]) == ("POST", f"{target.url}/new/7")
        assert run["request"]["body"] == "bad \u00fc"
        assert ["Content-Type", "application/json"] in run["request"]["headers"]
        assert (run["response"]["status"], run["response"]["body"]) == (422, '{"reason": "no such customer"}')
        page = admin.get(f"/runs/{failure['id']}")
        assert page.status == 200
        assert "no such customer" in page.text
        assert "form-action 'self'" in page.headers["Content-Security-Policy"]
        assert admin.get("/api/runs/nothing").status == admin.get("/runs/nothing").status == 404


@pytest.mark.parametrize("hosting", DOORS)
def test_what_is_shown_of_a_large_body_is_cut_and_says_so(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"\xc3\xbc" * 20_000)
    with hosting(client_route(target.url), admin_port=0) as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/7", b"x" * 100_000)
        run = admin.get(f"/api/runs/{json.loads(client.message()[1])['id']}").json
        parts = [("message", "payload", 100_000), ("request", "body", 100_000), ("response", "body", 40_000)]
        for part, name, size in parts:
            assert (run[part]["size"], run[part]["is_cut"]) == (size, True)
            assert len(run[part][name].encode()) <= 16_384
        assert run["response"]["body_encoding"] == "utf-8"


@pytest.mark.parametrize("hosting", DOORS)
def test_a_large_message_is_kept_whole_and_its_beginning_is_shown(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, max_body_bytes="1MiB") as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/7", b"y" * 300_000)
        message = admin.get(f"/api/runs/{json.loads(client.message()[1])['id']}").json["message"]
        assert (message["size"], message["payload"], message["is_kept"]) == (300_000, "y" * 16_384, True)


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


@pytest.mark.parametrize("capture", ["failures", "all"])
@pytest.mark.parametrize("hosting", DOORS)
def test_no_secret_is_in_a_run_its_page_or_the_file(
    target: Recorder, tmp_path: Path, capture: str, hosting: Hosting
) -> None:
    def echo(seen: Seen) -> tuple[int, bytes]:
        if seen.path.startswith("/token"):
            return 200, json.dumps({"access_token": SECRETS[4], "token_type": "Bearer"}).encode()
        echoed = {"path": seen.path, "headers": dict(seen.fields), "body": seen.body.decode()}
        return 500 if capture == "failures" else 200, json.dumps(echoed).encode()

    target.answer = echo
    route, file = secret_route(target.url, tmp_path), tmp_path / "failures.db"
    carried = "hush-carried-7"
    secrets, kept_in = str(tmp_path), str(file)
    with hosting(route, admin_port=0, secrets_dir=secrets, capture=capture, failures=kept_in) as host:
        admin, client = admin_of(host), host.client("done")
        client.publish("orders/1", json.dumps({"password": carried}).encode())
        client.message()
        (run,) = runs(admin)
        whole = admin.get(f"/api/runs/{run['id']}")
        assert whole.json["request"] is not None
        assert whole.json["response"] is not None
        assert whole.json["message"]["payload"] is not None
        assert ["Authorization", "Bearer ***"] in whole.json["request"]["headers"]
        own = f"/runs/{run['id']}"
        paths = ["/api/runs", f"/api{own}", own, "/", "/api/problems", "/routes/Orders", "/api/routes/Orders/calls"]
        for path in paths:
            text = admin.get(path).text
            assert [secret for secret in (*SECRETS, carried) if secret in text] == [], path
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("failures.db*"))
    assert kept
    assert [secret for secret in SECRETS if secret.encode() in kept] == []


def test_with_a_file_runs_of_a_killed_bridge_process_are_kept_with_their_messages(
    target: Recorder, tmp_path: Path
) -> None:
    target.answer = refusing_with_reason
    settings: dict[str, Any] = {"admin_port": 0, "failures": str(tmp_path / "failures.db")}
    with hosting(client_route(target.url), processes=1, **settings) as host:
        admin, client = admin_of(host), host.client("done/#")
        for number in range(3):
            client.publish(f"orders/{number}", b"bad")
            client.message()
        before = [admin.get(f"/api/runs/{run['id']}").json for run in runs(admin)]
        await_written(tmp_path / "failures.db", 3)
        host.kill_bridge()
        admin = admin_of(host)
        after = [admin.get(f"/api/runs/{run['id']}").json for run in runs(admin)]
        assert [one["response"]["body"] for one in after] == ['{"reason": "no such customer"}'] * 3
        for one in (*before, *after):
            del one["time"], one["tries"], one["took_ms"], one["waited_ms"]  # of two clocks, a moment apart
        assert before == after


@pytest.mark.parametrize("hosting", DOORS)
def test_without_capture_runs_are_known_and_nothing_of_them_is_kept(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    with hosting(client_route(target.url), admin_port=0, capture="none") as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/7", b"bad")
        client.message()
        (run,) = runs(admin)
        whole = admin.get(f"/api/runs/{run['id']}").json
        assert (whole["code"], whole["message"]["payload"], whole["message"]["is_kept"]) == ("http_status", None, False)
        assert (whole["request"], whole["response"]) == (None, None)


@pytest.mark.parametrize("hosting", DOORS)
def test_problems_count_what_failed_alike_and_name_the_newest_run(target: Recorder, hosting: Hosting) -> None:
    target.answer = refusing_with_reason
    dead = client_route("http://127.0.0.1:9", name="Dead", config="WITH RETRIES 0").replace("orders/+", "dead/+")
    routes = client_route(target.url) + dead
    guarded = server_route().replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "x" WITH SERVER_PORT')
    with hosting(routes + guarded, admin_port=0) as host:
        admin, client = admin_of(host), host.client("done/#")
        for number in range(3):
            client.publish(f"orders/{number}", b"bad")
        client.publish("dead/1", b"1")
        client.messages(4)
        for path in ("/hook", "/hok"):
            assert ask(host.http_port, path, b"{}").status >= 400

        def found() -> list[tuple[Any, ...]]:
            problems = admin.get("/api/problems").json["problems"]
            return [(one["count"], one["code"], one["status"], *one["routes"]) for one in problems]

        eventually(lambda: len(found()) == 4)
        assert found()[0] == (3, "http_status", 422, "Orders")
        assert set(found()[1:]) == {
            (1, "connection_failed", None, "Dead"),
            (1, "unauthorized", 401, "Intake"),
            (1, "not_found", 404, "Intake"),
        }
        for problem in admin.get("/api/problems").json["problems"]:
            assert problem["hint"]
            assert problem["code"] == "not_found" or admin.get(f"/api/runs/{problem['run']}").status == 200
        page = admin.get("/").text
        assert page.index('id="problems"') < page.index("<table")
        assert "<p>The server answered 422" in page


def test_a_problem_of_calls_that_are_tried_until_they_succeed_has_the_status(target: Recorder, tmp_path: Path) -> None:
    target.answer = lambda _: (503, b"")
    lossless = client_route(target.url) + '\n    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"\n'
    with hosting(lossless, admin_port=0, spool=str(tmp_path / "spool.db")) as host:
        admin, client = admin_of(host), host.client("done/#")
        client.publish("orders/7", b"1")
        eventually(lambda: admin.get("/api/problems").json["problems"])
        (problem,) = admin.get("/api/problems").json["problems"]
    assert (problem["code"], problem["status"]) == ("http_status", 503)
    assert (problem["count"], problem["retrying"]) == (1, 1)


@pytest.mark.parametrize("hosting", doors(0))
def test_messages_that_are_tried_again_are_a_problem_and_in_no_other_figure(target: Recorder, hosting: Hosting) -> None:
    gate, tried = Gate(), set[str]()
    second: Callable[[Seen], Answer] = gate.before(lambda seen: (200 if seen.path.endswith("/0") else 503, b""))

    def answer(seen: Seen) -> Answer:
        if seen.path in tried:
            return second(seen)
        tried.add(seen.path)
        return 503, b""

    target.answer = answer
    routes = client_route(target.url, config="WITH RETRIES 1")
    with hosting(routes, admin_port=0) as host:
        admin, client, count = admin_of(host), host.client("done/#"), 25
        for number in range(count):
            client.publish(f"orders/{number}", b"{}")

        def problem() -> dict[str, Any]:
            found = admin.get("/api/problems").json["problems"]
            return found[0] if found else {"count": 0}

        eventually(lambda: problem()["count"] == count)
        first = problem()
        assert (first["retrying"], first["code"], first["status"]) == (count, "http_status", 503)
        assert (first["target"], first["routes"]) == (target.url, ["Orders"])
        assert (first["message"], bool(first["hint"])) == ("the server answered 503 Service Unavailable", True)
        assert f"trying all {count} messages again" in admin.get("/").text
        (orders,) = admin.get("/api/routes").json["routes"]
        assert (orders["messages"]["failed"], orders["errors"]["total"]) == (0, 0)
        assert admin.value("rest_bridge_calls_total", route="Orders", event="Send", outcome="http_status") is None
        assert runs(admin) == []
        page = admin.get(f"/runs/{first['run']}")
        assert (page.status, "another one follows" in page.text, 'id="tries"' in page.text) == (200, True, True)
        assert admin.get(f"/api/runs/{first['run']}").status == 404
        gate.open.set()
        client.messages(count)
        last = problem()
        assert (last["count"], last["retrying"], last["first"]) == (count - 1, 0, first["first"])
        assert admin.value("rest_bridge_calls_total", route="Orders", event="Send", outcome="http_status") == count - 1
        assert admin.get(f"/api/runs/{last['run']}").json["outcome"] == "failed"


@pytest.mark.parametrize("hosting", DOORS)
def test_a_problem_leads_to_a_page_also_where_more_tries_have_failed_than_are_kept(
    target: Recorder, hosting: Hosting
) -> None:
    target.answer = lambda _: (503, b"")
    with hosting(client_route(target.url), admin_port=0) as host:
        admin, client = admin_of(host), host.client()
        client.publish("orders/first", b"{}")
        eventually(lambda: admin.get("/api/problems").json["problems"])
        (problem,) = admin.get("/api/problems").json["problems"]
        for number in range(30):
            client.publish(f"orders/{number}", b"{}")
        eventually(lambda: admin.get("/api/problems").json["problems"][0]["count"] == 31)
        page = admin.get(f"/runs/{problem['run']}")
        assert page.status == 200
        assert "orders/<wbr>first" in page.text


def test_messages_of_a_batch_that_is_tried_again_count_each(target: Recorder) -> None:
    gate, numbers = Gate(), itertools.count()
    later = gate.before(lambda _: (503, b""))
    target.answer = lambda seen: later(seen) if next(numbers) else (503, b"")
    batched = (
        client_route(target.url, config="WITH RETRIES 1")
        .replace('"/new/{topic.2}"', '"/new"')
        .replace('"done/{topic.2}"', '"done"')
    )
    batched = batched.replace('"{payload}"', '"{batch}" WITH BATCH_SIZE 3')
    with hosting(batched, admin_port=0) as host:
        admin, client = admin_of(host), host.client("done")
        for number in range(3):
            client.publish(f"orders/{number}", b"{}")
        eventually(lambda: admin.get("/api/problems").json["problems"])
        (problem,) = admin.get("/api/problems").json["problems"]
        assert (problem["count"], problem["retrying"]) == (3, 3)
        assert admin.get(f"/runs/{problem['run']}").status == 200
        gate.open.set()
        client.messages(3)
        (problem,) = admin.get("/api/problems").json["problems"]
        assert (problem["count"], problem["retrying"]) == (3, 0)


@pytest.mark.parametrize("is_dead", [False, True], ids=["echoes", "dead"])
def test_no_secret_is_in_a_problem_or_the_page_of_a_run_that_is_tried_again(
    target: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_dead: bool
) -> None:
    def echo(seen: Seen) -> Answer:
        if seen.path.startswith("/token"):
            return 200, json.dumps({"access_token": SECRETS[4], "token_type": "Bearer"}).encode()
        return 503, json.dumps({"path": seen.path, "headers": dict(seen.fields), "body": seen.body.decode()}).encode()

    caplog.set_level(logging.DEBUG, logger="amqtt_rest_bridge")
    target.answer = echo
    carried, address, routes = "hush-carried-7", "127.99.98.97", secret_route(target.url, tmp_path)
    if is_dead:
        (tmp_path / "A").write_text(address)
        routes = routes.replace(f'BASE_ADDRESS "{target.url}"', 'BASE_ADDRESS "http://" + GET SECRET "A" + ":9"')
    with hosting(routes, admin_port=0, secrets_dir=str(tmp_path)) as host:
        admin, client = admin_of(host), host.client()
        client.publish("orders/1", json.dumps({"password": carried}).encode())
        eventually(lambda: admin.get("/api/problems").json["problems"])
        (problem,) = admin.get("/api/problems").json["problems"]
        assert (problem["code"], problem["retrying"]) == ("connection_failed" if is_dead else "http_status", 1)
        assert ("***" in problem["message"], "***" in problem["target"]) == (is_dead, is_dead)
        shown = {path: admin.get(path).text for path in ("/", "/api/problems", f"/runs/{problem['run']}", "/runs")}
    for name, text in (*shown.items(), ("log", caplog.text)):
        assert [secret for secret in (*SECRETS, carried, address) if secret in text] == [], name


@pytest.mark.parametrize("hosting", DOORS)
@pytest.mark.parametrize("capture", ["all", "failures"])
def test_a_message_that_was_skipped_says_why_and_has_its_payload_with_capture_all(
    target: Recorder, hosting: Hosting, capture: str
) -> None:
    routes = client_route(target.url, event="WITH WHEN '{value.json.celsius} > 30'")
    with hosting(routes, admin_port=0, capture=capture) as host:
        admin, client = admin_of(host), host.client()
        with admin.live() as events:
            events.begin(client, "orders/probe")
            client.publish("orders/1", b'{"celsius": "hot"}')
            eventually(lambda: runs(admin, "?topic=orders/1"))
            record = events.record()
        (run,) = runs(admin, "?topic=orders/1")
        reason = {"code": "when_unusable", "message": 'WHEN: {value.json.celsius} is "hot", not a number'}
        assert (run["outcome"], run["code"], run["reason"], record["reason"]) == ("skipped", None, reason, reason)
        whole, page = admin.get(f"/api/runs/{run['id']}").json, admin.get(f"/runs/{run['id']}").text
        assert "is &#34;hot&#34;, not a number" in page
        for path in ("/routes/Orders", "/runs"):
            row = admin.get(path).text.partition(f'data-run="{run["id"]}"')[2].partition("</summary>")[0]
            assert "{value.json.celsius} is &#34;hot&#34;, not a number" in row, path
        assert (whole["message"] and whole["message"]["payload"]) == (
            '{"celsius": "hot"}' if capture == "all" else None
        )
        labels = {"route": "Orders", "event": "Send", "reason": "when_unusable"}
        assert (admin.value("rest_bridge_skipped_total", **labels) or 0) >= 1
        (status,) = admin.get("/api/routes").json["routes"]
        assert status["health"] in ("Green", "Yellow")
