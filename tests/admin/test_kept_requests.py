"""Requests of server mode that could not be served are kept with their messages, and these are published again."""

import hmac
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support import asking, doors
from tests.support.admin_client import TOKEN, Admin, admin_with_token, await_written, outcome, post, runs
from tests.support.doors import DOORS, Hosting
from tests.support.embedded_broker import hosting
from tests.support.waiting import eventually

ASKS = """DEFINE ROUTE Asks WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0" WITH REQUEST_TIMEOUT 1
    ADD EVENT Ask WITH METHOD "POST" WITH ENDPOINT "/ask/{name}" WITH DESTINATION_TOPIC "asked/{path.name}"
        WITH REPLY_TOPIC "answers/{request_id}" WITH WHEN '{query.left} != "1"'
    ADD EVENT Newest WITH METHOD "GET" WITH ENDPOINT "/newest" WITH SOURCE_TOPIC "newest"
"""
"""A route whose requests nothing replies to."""


def ask(
    host: doors.Host, path: str = "/ask/7?left=0", body: bytes | None = b'{"n": 1}', **headers: str
) -> tuple[int, str]:
    """Ask, and return the status with the id of the request."""
    answer = asking.ask(host.http_port, path, body, **headers)
    return answer.status, answer.headers["X-Request-ID"]


def kept(admin: Admin, name: str) -> dict[str, Any]:
    """Wait until a request is kept, and return its run."""
    eventually(lambda: admin.get(f"/api/runs/{name}").json.get("response") is not None)
    run = admin.get(f"/api/runs/{name}").json
    assert isinstance(run, dict)
    return run


@pytest.mark.parametrize("hosting", doors.doors(0, 1))
def test_a_request_without_a_reply_shows_message_request_and_response(hosting: Hosting) -> None:
    with hosting(ASKS, admin_port=0, admin_token=TOKEN) as host:
        admin = admin_with_token(host)
        status, name = ask(host, User_Agent="me")
        run = kept(admin, name)
        assert (status, run["outcome"], run["code"], run["status"]) == (504, "failed", "reply_timeout", 504)
        assert (run["method"], run["path"], run["topic"], run["event"]) == ("POST", "/ask/7", "asked/7", "Ask")
        assert (run["message"]["topic"], run["message"]["payload"], run["message"]["is_kept"]) == (
            "asked/7", '{"n": 1}', True,
        )  # fmt: skip
        assert (run["request"]["method"], run["request"]["url"], run["request"]["body"]) == (
            "POST", "/ask/7", '{"n": 1}',
        )  # fmt: skip
        assert ["user-agent", "me"] in run["request"]["headers"]
        assert json.loads(run["response"]["body"])["error"]["code"] == "reply_timeout"
        assert run["took_ms"] >= 1000
        assert runs(admin, "?outcome=failed&route=Asks") == [{name: run[name] for name in runs(admin)[0]}]
        assert admin.get(f"/runs/{name}").status == 200


@pytest.mark.parametrize("hosting", doors.doors(0))
def test_a_retry_publishes_its_message_again_as_a_new_run(hosting: Hosting) -> None:
    with hosting(ASKS, admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("asked/#")
        _, name = ask(host)
        kept(admin, name)
        assert client.message() == ("asked/7", b'{"n": 1}')
        status, started = post(admin, f"/api/runs/{name}/retry")
        assert (status, started["retry_of"]) == (202, name)
        assert client.message() == ("asked/7", b'{"n": 1}')
        eventually(lambda: outcome(admin, started["id"]) == "succeeded")
        newest, oldest = runs(admin, "?route=Asks")
        assert (newest["id"], newest["retry_of"], newest["path"]) == (started["id"], name, "/ask/7")
        assert (oldest["id"], oldest["retried_as"]) == (name, started["id"])
        assert admin.get(f"/api/runs/{started['id']}").json["message"]["payload"] == '{"n": 1}'
        labels = {"route": "Asks", "event": "Ask"}
        admin.await_value(1, "rest_bridge_requests_total", status="504", **labels)
        admin.await_value(1, "rest_bridge_requests_total", status="200", **labels)
        (route,) = admin.get("/api/routes").json["routes"]
        assert (route["messages"]["succeeded"], route["messages"]["failed"]) == (1, 1)
        status, answer = post(admin, "/api/failures/retry", b'{"route": "Asks", "code": "reply_timeout"}')
        assert (status, answer) == (202, {"started": [], "refused": []})


@pytest.mark.parametrize("hosting", DOORS)
def test_two_retries_at_once_of_all_requests_alike_publish_each_message_once(hosting: Hosting) -> None:
    with hosting(ASKS, admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("asked/#")
        with ThreadPoolExecutor(20) as pool:
            names = [name for _, name in pool.map(lambda number: ask(host, f"/ask/{number}?left=0"), range(20))]
        for name in names:
            kept(admin, name)
        client.messages(20)
        body = b'{"route": "Asks", "code": "reply_timeout"}'
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: post(admin, "/api/failures/retry", body), range(2)))
        assert [status for status, _ in answers] == [202, 202]
        assert sum(len(answer["started"]) for _, answer in answers) == 20
        assert sorted(client.messages(20)) == sorted((f"asked/{number}", b'{"n": 1}') for number in range(20))
        client.publish("asked/end", b"")
        assert client.message() == ("asked/end", b"")


@pytest.mark.parametrize("hosting", DOORS)
def test_what_is_its_callers_fault_or_left_out_is_a_run_that_is_not_kept(hosting: Hosting) -> None:
    with hosting(ASKS, admin_port=0, admin_token=TOKEN) as host:
        admin = admin_with_token(host)
        skipped, refused, empty = ask(host, "/ask/7?left=1"), ask(host, "/ask/7?left=%FF"), ask(host, "/newest", None)
        assert (skipped[0], refused[0], empty[0]) == (200, 400, 404)
        for (_, name), wanted in ((skipped, "skipped"), (refused, "refused"), (empty, "refused")):
            run = admin.get(f"/api/runs/{name}").json
            assert (run["outcome"], run["message"], run["request"]) == (wanted, None, None)
            assert run["path"] in ("/ask/7", "/newest")
            status, answer = post(admin, f"/api/runs/{name}/retry")
            assert (status, answer["error"]["code"]) == (404, "not_found")


def test_what_is_kept_of_requests_survives_their_bridge_process(tmp_path: Path) -> None:
    file = tmp_path / "failures.db"
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "failures": str(file), "processes": 1}
    with hosting(ASKS, **settings) as host:
        _, name = ask(host)
        before = kept(admin_with_token(host), name)
        await_written(file, 1)
        host.kill_bridge()
        assert kept(admin_with_token(host), name) == before
    with hosting(ASKS, **settings) as host:
        admin, client = admin_with_token(host), host.client("asked/#")
        assert kept(admin, name) == before
        assert post(admin, f"/api/runs/{name}/retry")[0] == 202
        assert client.message() == ("asked/7", b'{"n": 1}')


@pytest.mark.parametrize("hosting", doors.doors(1))
def test_of_many_requests_the_last_hundred_are_kept(hosting: Hosting) -> None:
    with hosting(ASKS, admin_port=0, admin_token=TOKEN) as host:
        admin = admin_with_token(host)
        with ThreadPoolExecutor(150) as pool:
            list(pool.map(lambda number: ask(host, f"/ask/{number}?left=0"), range(150)))
        _, name = ask(host)
        kept(admin, name)
        assert len(runs(admin, "?route=Asks&outcome=failed&limit=1000")) == 100
        admin.await_value(151, "rest_bridge_requests_total", route="Asks", event="Ask", status="504")


@pytest.mark.parametrize(("capture", "count"), [("failures", 0), ("all", 1), ("none", 0)])
@pytest.mark.parametrize("hosting", DOORS)
def test_requests_that_were_served_are_kept_only_with_capture_all(capture: str, count: int, hosting: Hosting) -> None:
    served = ASKS.replace('WITH REPLY_TOPIC "answers/{request_id}"', "")
    with hosting(served, admin_port=0, admin_token=TOKEN, capture=capture) as host:
        admin = admin_with_token(host)
        _, name = ask(host)
        if count:
            assert json.loads(kept(admin, name)["response"]["body"]) == {"status": "published", "topic": "asked/7"}
        assert (admin.get(f"/api/runs/{name}").json["request"] is not None) == bool(count)
        assert post(admin, f"/api/runs/{name}/retry")[0] == 404


@pytest.mark.parametrize("hosting", DOORS)
def test_a_request_whose_event_is_gone_is_not_published_again_and_says_why(hosting: Hosting) -> None:
    with hosting(ASKS, admin_port=0, admin_token=TOKEN, reload_seconds=0.02) as host:
        admin = admin_with_token(host)
        _, name = ask(host)
        kept(admin, name)
        host.path.write_text(ASKS.replace("EVENT Ask", "EVENT Other"))
        gone = "Route Asks has no event Ask any more"
        eventually(lambda: post(admin, f"/api/runs/{name}/retry")[1].get("error", {}).get("message") == gone)


SECRETS: Final = ["hush-token-1", "hush-signing-22"]
"""Of the route: what callers send, and what they sign with."""


def signed(body: bytes) -> str:
    return hmac.digest(SECRETS[1].encode(), body, "sha256").hex()


@pytest.mark.parametrize("capture", ["failures", "all"])
@pytest.mark.parametrize("header", ["X-Hub-Signature-256", "X-Digest"])
@pytest.mark.parametrize("hosting", DOORS)
def test_no_secret_of_a_request_is_in_a_run_its_page_or_the_file(
    tmp_path: Path, capture: str, header: str, hosting: Hosting
) -> None:
    for name, secret in zip(("T", "S"), SECRETS, strict=True):
        (tmp_path / name).write_text(secret)
    asks = ASKS.replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN GET SECRET "T" WITH SERVER_PORT')
    extra = f'WITH SIGNATURE_SECRET GET SECRET "S" WITH SIGNATURE_HEADER "{header}" WITH WHEN'
    asks, file = asks.replace("WITH WHEN", extra), tmp_path / "failures.db"
    if capture == "all":
        asks = asks.replace('WITH REPLY_TOPIC "answers/{request_id}"', "WITH RESPONSE '{payload} {query.api_key}'")
    settings: dict[str, Any] = {"capture": capture, "failures": str(file), "secrets_dir": str(tmp_path)}
    carried = ["hush-query-33", "hush-cookie-4", "hush-header-5"]
    body = json.dumps({"echoed": f"Bearer {SECRETS[0]}", "own": carried}).encode()
    carried.append(signed(body))
    with hosting(asks, admin_port=0, admin_token=TOKEN, **settings) as host:
        admin, client = admin_with_token(host), host.client("asked/#")
        given = {"Authorization": f"Bearer {SECRETS[0]}", "Cookie": f"id={carried[1]}", "X-Api-Key": carried[2]}
        path = f"/ask/7?left=0&api_key={carried[0]}"
        status, name = ask(host, path, body, **given, **{header: f"sha256={carried[3]}"})
        assert status == (200 if capture == "all" else 504)
        ids = [kept(admin, name)["id"]]
        if capture == "failures":
            client.message()
            ids.append(post(admin, f"/api/runs/{name}/retry")[1]["id"])
            assert client.message() == ("asked/7", body)
            eventually(lambda: (admin.get(f"/api/runs/{ids[1]}").json.get("message") or {}).get("payload") is not None)
        paths = ["/api/runs", "/", "/api/problems", "/routes/Asks", "/api/routes/Asks/calls"]
        paths += [f"{prefix}/runs/{one}" for one in ids for prefix in ("", "/api")]
        for path in paths:
            text = admin.get(path).text
            assert [secret for secret in (*SECRETS, *carried) if secret in text] == [], path
        assert ["authorization", "Bearer ***"] in kept(admin, name)["request"]["headers"]
    content = b"".join(path.read_bytes() for path in tmp_path.glob("failures.db*")).replace(body, b"")  # the message
    assert name.encode() in content
    assert [secret for secret in (*SECRETS, *carried) if secret.encode() in content] == []


@pytest.mark.parametrize("hosting", DOORS)
def test_commands_and_the_page_of_its_run_retry_a_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hosting: Hosting
) -> None:
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", TOKEN)
    with hosting(ASKS, admin_port=0, admin_token=TOKEN) as host:
        admin, client = admin_with_token(host), host.client("asked/#")
        _, name = ask(host)
        kept(admin, name)
        client.message()
        ask(host, "/newest", None)  # its caller's fault, and not kept
        at = ["--admin", f"http://127.0.0.1:{admin.port}"]
        assert main(["failures", *at]) == 0
        line, count = capsys.readouterr().out.splitlines()
        assert f"{name}  Asks/Ask  asked/7  504 reply_timeout" in line
        assert count == "1 failure"
        assert main(["retry", "--route", "Asks", "--code", "reply_timeout", "--yes", *at]) == 0
        assert "1 message sent again" in capsys.readouterr().out
        assert client.message() == ("asked/7", b'{"n": 1}')
        assert f'action="/runs/{name}/retry"' in admin.get(f"/runs/{name}").text
        own = f"http://127.0.0.1:{admin.port}"
        assert post(admin, f"/runs/{name}/retry", Origin=own)[0] == 303
        assert client.message() == ("asked/7", b'{"n": 1}')
