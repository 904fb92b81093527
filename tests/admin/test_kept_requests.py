"""Requests of server mode that could not be served are kept with their messages, and these are published again."""

import hmac
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support import asking, doors, embedded_broker
from tests.support.admin_client import TOKEN, Admin, admin_with_token, await_written, bridging, outcome, post, runs
from tests.support.doors import Hosting
from tests.support.waiting import eventually

ASKS = """DEFINE ROUTE Asks WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0" WITH REQUEST_TIMEOUT 1
    ADD EVENT Ask WITH METHOD "POST" WITH ENDPOINT "/ask/{name}" WITH DESTINATION_TOPIC "asked/{path.name}"
        WITH REPLY_TOPIC "answers/{request_id}" WITH WHEN '{query.left} != "1"'
    ADD EVENT Newest WITH METHOD "GET" WITH ENDPOINT "/newest" WITH SOURCE_TOPIC "newest"
"""
"""A route whose requests nothing replies to."""
MESSAGE: Final = ("asked/7", b'{"n": 1}')
"""What a request publishes."""
ALL_ALIKE: Final = b'{"route": "Asks", "code": "reply_timeout"}'


def ask(
    host: doors.Host, path: str = "/ask/7?left=0", body: bytes | None = MESSAGE[1], **headers: str
) -> tuple[int, str]:
    """Ask, and return the status with the id of the request."""
    answer = asking.ask(host.http_port, path, body, **headers)
    return answer.status, answer.headers["X-Request-ID"]


def kept(admin: Admin, name: str) -> dict[str, Any]:
    """Wait until a request is kept, and return its run."""
    eventually(lambda: admin.run(name).get("response") is not None)
    return admin.run(name)


def ask_and_keep(host: doors.Host, admin: Admin) -> str:
    """Ask, wait until the request is kept, and return its id."""
    _, name = ask(host)
    kept(admin, name)
    return name


@pytest.mark.parametrize("hosting", doors.doors(0, 1))
def test_a_request_without_a_reply_shows_message_request_and_response(hosting: Hosting) -> None:
    with bridging(hosting, ASKS) as (host, admin, _):
        status, name = ask(host, User_Agent="me")
        run = kept(admin, name)
        assert (status, run["outcome"], run["code"], run["status"]) == (504, "failed", "reply_timeout", 504)
        assert (run["method"], run["path"], run["topic"], run["event"]) == ("POST", "/ask/7", "asked/7", "Ask")
        assert [run["message"][name] for name in ("topic", "payload", "is_kept")] == ["asked/7", '{"n": 1}', True]
        assert [run["request"][name] for name in ("method", "url", "body")] == ["POST", "/ask/7", '{"n": 1}']
        assert ["user-agent", "me"] in run["request"]["headers"]
        assert json.loads(run["response"]["body"])["error"]["code"] == "reply_timeout"
        assert run["took_ms"] >= 1000
        assert runs(admin, "?outcome=failed&route=Asks") == [{name: run[name] for name in runs(admin)[0]}]
        assert admin.get(f"/runs/{name}").status == 200


def test_a_retry_publishes_its_message_again_as_a_new_run() -> None:
    with bridging(embedded_broker.hosting, ASKS, "asked/#") as (host, admin, client):
        name = ask_and_keep(host, admin)
        assert client.message() == MESSAGE
        status, started = post(admin, f"/api/runs/{name}/retry")
        assert (status, started["retry_of"]) == (202, name)
        assert client.message() == MESSAGE
        eventually(lambda: outcome(admin, started["id"]) == "succeeded")
        newest, oldest = runs(admin, "?route=Asks")
        assert (newest["id"], newest["retry_of"], newest["path"]) == (started["id"], name, "/ask/7")
        assert (oldest["id"], oldest["retried_as"]) == (name, started["id"])
        assert admin.run(started["id"])["message"]["payload"] == '{"n": 1}'
        labels = {"route": "Asks", "event": "Ask"}
        admin.await_value(1, "rest_bridge_requests_total", status="504", **labels)
        admin.await_value(1, "rest_bridge_requests_total", status="200", **labels)
        messages = admin.status("Asks")["messages"]
        assert (messages["succeeded"], messages["failed"]) == (1, 1)
        assert post(admin, "/api/failures/retry", ALL_ALIKE) == (202, {"started": [], "refused": []})


def test_two_retries_at_once_of_all_requests_alike_publish_each_message_once(hosting: Hosting) -> None:
    with bridging(hosting, ASKS, "asked/#") as (host, admin, client):
        with ThreadPoolExecutor(20) as pool:
            names = [name for _, name in pool.map(lambda number: ask(host, f"/ask/{number}?left=0"), range(20))]
        for name in names:
            kept(admin, name)
        client.messages(20)
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: post(admin, "/api/failures/retry", ALL_ALIKE), range(2)))
        assert [status for status, _ in answers] == [202, 202]
        assert sum(len(answer["started"]) for _, answer in answers) == 20
        assert sorted(client.messages(20)) == sorted((f"asked/{number}", b'{"n": 1}') for number in range(20))
        client.publish("asked/end", b"")
        assert client.message() == ("asked/end", b"")


def test_what_is_its_callers_fault_or_left_out_is_a_run_that_is_not_kept(hosting: Hosting) -> None:
    with bridging(hosting, ASKS) as (host, admin, _):
        for path, body, status, wanted in (
            ("/ask/7?left=1", b"{}", 200, "skipped"),
            ("/ask/7?left=%FF", b"{}", 400, "refused"),
            ("/newest", None, 404, "refused"),
        ):
            answered, name = ask(host, path, body)
            run = admin.run(name)
            assert (answered, run["outcome"], run["message"], run["request"]) == (status, wanted, None, None)
            assert run["path"] == path.partition("?")[0]
            refused, answer = post(admin, f"/api/runs/{name}/retry")
            assert (refused, answer["error"]["code"]) == (404, "not_found")


def test_what_is_kept_of_requests_survives_their_bridge_process(tmp_path: Path) -> None:
    file = tmp_path / "failures.db"
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "failures": str(file), "processes": 1}
    with embedded_broker.hosting(ASKS, **settings) as host:
        _, name = ask(host)
        before = kept(admin_with_token(host), name)
        await_written(file, 1)
        host.kill_bridge()
        assert kept(admin_with_token(host), name) == before
    with bridging(embedded_broker.hosting, ASKS, "asked/#", **settings) as (_, admin, client):
        assert kept(admin, name) == before
        assert post(admin, f"/api/runs/{name}/retry")[0] == 202
        assert client.message() == MESSAGE


def test_of_many_requests_the_last_hundred_are_kept() -> None:
    with bridging(embedded_broker.hosting, ASKS, processes=1) as (host, admin, _):
        with ThreadPoolExecutor(150) as pool:
            list(pool.map(lambda number: ask(host, f"/ask/{number}?left=0"), range(150)))
        ask_and_keep(host, admin)
        assert len(runs(admin, "?route=Asks&outcome=failed&limit=1000")) == 100
        admin.await_value(151, "rest_bridge_requests_total", route="Asks", event="Ask", status="504")


@pytest.mark.parametrize(("capture", "is_kept"), [("failures", False), ("all", True), ("none", False)])
def test_requests_that_were_served_are_kept_only_with_capture_all(
    capture: str, is_kept: bool, hosting: Hosting
) -> None:
    served = ASKS.replace('WITH REPLY_TOPIC "answers/{request_id}"', "")
    with bridging(hosting, served, capture=capture) as (host, admin, _):
        _, name = ask(host)
        if is_kept:
            assert json.loads(kept(admin, name)["response"]["body"]) == {"status": "published", "topic": "asked/7"}
        assert (admin.run(name)["request"] is not None) is is_kept
        assert post(admin, f"/api/runs/{name}/retry")[0] == 404


def test_a_request_whose_event_is_gone_is_not_published_again_and_says_why(hosting: Hosting) -> None:
    with bridging(hosting, ASKS, reload_seconds=0.02) as (host, admin, _):
        name = ask_and_keep(host, admin)
        host.path.write_text(ASKS.replace("EVENT Ask", "EVENT Other"))
        gone = "Route Asks has no event Ask any more"
        eventually(lambda: post(admin, f"/api/runs/{name}/retry")[1].get("error", {}).get("message") == gone)


SECRETS: Final = ["hush-token-1", "hush-signing-22"]
"""Of the route: what callers send, and what they sign with."""


@pytest.mark.parametrize(("capture", "header"), [("failures", "X-Hub-Signature-256"), ("all", "X-Digest")])
def test_no_secret_of_a_request_is_in_a_run_its_page_or_the_file(
    tmp_path: Path, capture: str, header: str, hosting: Hosting
) -> None:
    for name, secret in zip(("T", "S"), SECRETS, strict=True):
        (tmp_path / name).write_text(secret)
    asks = ASKS.replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN GET SECRET "T" WITH SERVER_PORT')
    extra = f'WITH SIGNATURE_SECRET GET SECRET "S" WITH SIGNATURE_HEADER "{header}" WITH WHEN'
    asks = asks.replace("WITH WHEN", extra)
    if capture == "all":
        asks = asks.replace('WITH REPLY_TOPIC "answers/{request_id}"', "WITH RESPONSE '{payload} {query.api_key}'")
    settings = {"capture": capture, "failures": str(tmp_path / "failures.db"), "secrets_dir": str(tmp_path)}
    carried = ["hush-query-33", "hush-cookie-4", "hush-header-5"]
    body = json.dumps({"echoed": f"Bearer {SECRETS[0]}", "own": carried}).encode()
    carried.append(hmac.digest(SECRETS[1].encode(), body, "sha256").hex())
    with bridging(hosting, asks, "asked/#", **settings) as (host, admin, client):
        given = {"Authorization": f"Bearer {SECRETS[0]}", "Cookie": f"id={carried[1]}", "X-Api-Key": carried[2]}
        path = f"/ask/7?left=0&api_key={carried[0]}"
        status, name = ask(host, path, body, **given, **{header: f"sha256={carried[3]}"})
        assert status == (200 if capture == "all" else 504)
        ids = [kept(admin, name)["id"]]
        if capture == "failures":
            client.message()
            ids.append(post(admin, f"/api/runs/{name}/retry")[1]["id"])
            assert client.message() == ("asked/7", body)
            eventually(lambda: (admin.run(ids[1]).get("message") or {}).get("payload") is not None)
        paths = ["/api/runs", "/", "/api/problems", "/routes/Asks", "/api/routes/Asks/calls"]
        paths += [f"{prefix}/runs/{one}" for one in ids for prefix in ("", "/api")]
        for path in paths:
            text = admin.text(path)
            assert [secret for secret in (*SECRETS, *carried) if secret in text] == [], path
        assert ["authorization", "Bearer ***"] in kept(admin, name)["request"]["headers"]
    content = b"".join(path.read_bytes() for path in tmp_path.glob("failures.db*")).replace(body, b"")  # the message
    assert name.encode() in content
    assert [secret for secret in (*SECRETS, *carried) if secret.encode() in content] == []


def test_commands_and_the_page_of_its_run_retry_a_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hosting: Hosting
) -> None:
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", TOKEN)
    with bridging(hosting, ASKS, "asked/#") as (host, admin, client):
        name, own = ask_and_keep(host, admin), f"http://127.0.0.1:{admin.port}"
        client.message()
        ask(host, "/newest", None)  # its caller's fault, and not kept
        assert main(["failures", "--admin", own]) == 0
        line, count = capsys.readouterr().out.splitlines()
        assert f"{name}  Asks/Ask  asked/7  504 reply_timeout" in line
        assert count == "1 failure"
        assert main(["retry", "--route", "Asks", "--code", "reply_timeout", "--yes", "--admin", own]) == 0
        assert "1 message sent again" in capsys.readouterr().out
        assert client.message() == MESSAGE
        eventually(lambda: runs(admin, "?outcome=failed")[0]["retry_outcome"] == "succeeded")
        assert f'action="/runs/{name}/retry"' in admin.text(f"/runs/{name}")
        assert post(admin, f"/runs/{name}/retry", Origin=own)[0] == 303
        assert client.message() == MESSAGE
