"""`rest-bridge failures` and `rest-bridge retry` against a real broker."""

import io
import json
import re
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from amqtt_rest_bridge.cli import retry
from amqtt_rest_bridge.cli.admin_client import AdminError
from tests.cli.conftest import Run
from tests.support.admin_client import (
    TOKEN,
    Admin,
    admin_with_token,
    client_route,
    failed,
    outcome,
    refusing_with_reason,
    runs,
)
from tests.support.asking import ask
from tests.support.embedded_broker import Client, Host, hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import AUTHORITY, CERTIFICATES, Peer, Target, reply, server_tls
from tests.support.waiting import eventually

CLIENT = str(CERTIFICATES / "client.pem")
CERTIFICATE = ("--cert-file", CLIENT, "--key-file", CLIENT)
ASKING = """
    ADD EVENT Ask
        WITH SOURCE_TOPIC "ask"
        WITH METHOD "GET"
        WITH ENDPOINT "/answer"
        WITH DESTINATION_TOPIC "done/ask"
"""
COMMANDS = (["failures"], ["retry", "x"], ["trace"])
"""Those that ask the admin port, each with as few arguments as may be."""


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as recorder:
        recorder.answer = refusing_with_reason
        yield recorder


@pytest.fixture
def host(target: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A bridge whose admin port and its token are in the environment."""
    with hosting(client_route(target.url, more=ASKING), admin_port=0, admin_token=TOKEN) as host:
        monkeypatch.setenv("REST_BRIDGE_ADMIN", f"http://127.0.0.1:{host.admin_port}")
        monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", TOKEN)
        yield host


@pytest.fixture
def client(host: Host) -> Client:
    return host.client("done/#")


@pytest.fixture
def admin(host: Host) -> Admin:
    return admin_with_token(host)


@pytest.fixture
def mended(target: Recorder, client: Client) -> list[str]:
    """The ids of three failures, whose server has no reason to refuse them any more."""
    names = [fail(client, f"orders/{number}") for number in range(3)]
    target.answer = lambda _: (200, b"{}")
    target.take_all()
    return names


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that are asked; each is answered with no."""
    questions: list[str] = []

    def answer_no(question: str) -> bool:
        questions.append(question)
        return False

    monkeypatch.setattr("typer.confirm", answer_no)
    return questions


def fail(client: Client, topic: str = "orders/7") -> str:
    """Publish a message that fails, and return the id of its run."""
    return failed(client, topic, b"bad\x1b[31m")


def ids(listed: str) -> list[str]:
    """Return the ids of the failures that a command has listed."""
    return [columns[1] for line in listed.splitlines() if len(columns := line.split("  ")) > 1]


def test_failures_are_listed_the_newest_last_and_narrowed(client: Client, admin: Admin, run: Run) -> None:
    names = [fail(client, f"orders/{number}") for number in range(3)]
    at = f"--admin http://127.0.0.1:{admin.port}"
    shown, hint = run("failures", "--route", "Orders", "--code", "http_status", "--since", "10m", *at.split())
    show, retry = (f"rest-bridge {command} ID {at}" for command in ("failures show", "retry"))
    assert hint == f"hint: {show} prints one whole, {retry} sends it again\n"
    first, *_, last = shown.splitlines()
    assert ids(shown) == names
    reason = f"the server answered 422 {HTTPStatus(422).phrase}: no such customer"  # another one from Python 3.13 on
    assert first.endswith(f"Orders/Send  orders/0  422 http_status  ({reason})")
    assert last == "3 failures"
    assert run("failures", "--code", "timeout", "--route", "Orders") == ("0 failures\n", "")
    assert [one["id"] for one in json.loads(run("failures", "--json").out)] == names


def test_failures_that_newer_ones_push_out_are_counted_and_their_run_has_no_button(
    target: Recorder, client: Client, admin: Admin, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    target.answer = lambda seen: (404 if seen.path.endswith("/first") else 401, b"")
    first = fail(client, "orders/first")
    for _ in range(109):
        client.publish("orders/7", b"")
    client.messages(109)
    found = {one["status"]: (one["count"], one["waiting"], one["pushed_out"], one["run"]) for one in admin.problems()}
    newest = found[401][-1]
    assert (found, admin.run(first)) == ({404: (1, 0, 1, None), 401: (109, 100, 9, newest)}, {})
    page = admin.text("/")
    assert "1 is not kept any more: a route keeps its last 100 at most" in page
    assert "9 are not kept any more" in page
    assert (page.count(">Newest run</a>"), f"/runs/{newest}" in page) == (1, True)
    said = "100 failures; 10 are not kept any more: a route keeps its last 100 at most"
    assert run("failures", "--route", "Orders").out.splitlines()[-1] == said
    assert run("failures", "--since", "10m").out.splitlines()[-1] == "100 failures"
    assert caplog.text.count("route Orders: its oldest open failures are not kept any more") == 1


def test_a_message_with_another_try_to_come_is_listed_as_retrying(target: Recorder, client: Client, run: Run) -> None:
    target.answer = lambda _: (503, b"")
    client.publish("orders/7", b"x")
    eventually(lambda: run("failures").out.endswith("0 failures, 1 message still retrying\n"))
    eventually(lambda: re.search(r"503 http_status  \(.*\)  after [2-9] tries  retrying\n", run("failures").out))
    assert "RETRYING" in run("status").out
    (name,) = ids(run("failures").out)
    said = "This message is still being retried. It can be shown and sent again once it has ended\n"
    assert run("failures", "show", name, status=1).err.endswith(said)
    said = f"{name} not sent again: it is still being retried; it can be sent again once it has ended\n"
    assert run("retry", name, status=1).err == said


def test_one_failure_is_shown_with_message_request_and_response(target: Recorder, client: Client, run: Run) -> None:
    name = fail(client)
    shown = run("failures", "show", name).out
    for text in ("# message on orders/7", "bad\\x1b[31m", "/new/7", "# response: 422", "no such customer", "hint: "):
        assert text in shown
    assert "\x1b" not in shown
    assert json.loads(run("failures", "show", name, "--json").out)["id"] == name
    said = run("failures", "show", "nothing", status=1).err
    assert "There is no run with this id" in said
    assert said.endswith("; rest-bridge failures lists those that are kept\n")
    target.answer = lambda _: (422, b"")
    request = run("failures", "show", fail(client, "ask")).out.partition("# request: GET ")[2]
    assert request.partition("# response: ")[0].endswith("\n(no body)\n\n")


def test_a_failure_is_retried_by_its_id(target: Recorder, client: Client, admin: Admin, run: Run) -> None:
    name = fail(client)
    target.answer = lambda _: (200, b"{}")
    first, last = run("retry", name).out.splitlines()
    assert last == "1 message sent again: 1 succeeded"
    again = first.removeprefix(f"{name} sent again as ")
    eventually(lambda: outcome(admin, again) == "succeeded")
    (shown, last), hint = (text.splitlines() for text in run("failures"))
    assert shown.endswith(f"sent again as {again}  (succeeded)")
    assert (last, hint) == ("1 failure, all sent again and succeeded", [])
    client.message()
    target.answer = refusing_with_reason
    fail(client, "orders/8")
    printed, hinted = run("failures")
    assert printed.endswith("\n2 failures, 1 sent again and succeeded\n") and hinted.startswith("hint: ")
    said = "nothing not sent again: no failure of a message is kept with this id"
    assert said in run("retry", "nothing", status=1).err


def test_a_retry_says_how_many_failed_again(target: Recorder, client: Client, admin: Admin, run: Run) -> None:
    for topic in ("orders/7", "orders/8"):
        fail(client, topic)
    target.answer = lambda seen: (200 if seen.path == "/new/7" else 422, b"{}")
    shown, hint = run("retry", "--all", "--yes", status=1)
    assert shown.splitlines()[-1] == "2 messages sent again: 1 succeeded, 1 failed again"
    assert hint == "hint: rest-bridge failures --open lists what failed again\n"


def test_what_was_sent_again_is_listed_though_the_bridge_goes_away_then(
    target: Recorder, client: Client, admin: Admin, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fail(client)
    target.answer = lambda _: (200, b"{}")

    def gone(*_: object) -> None:
        raise AdminError("the bridge is gone")

    monkeypatch.setattr(retry, "_await_ends", gone)
    shown, said = run("retry", name, status=1)
    assert shown.startswith(f"{name} sent again as ") and "the bridge is gone" in said
    eventually(lambda: admin.run(name)["retry_outcome"] == "succeeded")


@pytest.fixture
def proxy(admin: Admin) -> Iterator[list[str]]:
    """Run a proxy with TLS, which asks for a certificate, before the admin port; yield the options that name it."""

    def pass_on(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            authorization = {"Authorization": seen.headers["Authorization"]}
            answer = ask(admin.port, seen.path, seen.body or None, method=seen.method, **authorization)
            peer.send(reply(answer.body, f"{answer.status} {HTTPStatus(answer.status).phrase}"))

    with Target(pass_on, tls=server_tls(client_authority=AUTHORITY)) as target:
        yield ["--admin", f"https://localhost:{target.port}"]


def test_failures_are_listed_and_retried_through_a_proxy_with_tls(
    mended: list[str], client: Client, proxy: list[str], run: Run
) -> None:
    options = [*proxy, "--ca-file", AUTHORITY, *CERTIFICATE]
    assert ids(run("failures", *options).out) == mended
    assert run("retry", mended[0], *options).out.splitlines()[-1] == "1 message sent again: 1 succeeded"
    client.message()


def test_a_certificate_that_is_refused_is_said_with_what_to_do(proxy: list[str], run: Run) -> None:
    for command in COMMANDS:
        refused = run(*command, *proxy, *CERTIFICATE, status=1).err
        assert "its certificate is refused: " in refused
        assert "; --ca-file names the authorities to trust" in refused
        refused = run(*command, *proxy, "--ca-file", AUTHORITY, status=1).err
        assert "; does it speak TLS, and ask for --cert-file?" in refused


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        pytest.param(
            "http://a.test", ["--ca-file", AUTHORITY], "--ca-file needs TLS: write --admin https://", id="plain"
        ),
        pytest.param("https://a.test", ["--cert-file", CLIENT], "--cert-file and --key-file", id="no key"),
        pytest.param("https://a.test", ["--ca-file", "no.pem"], "(--ca-file no.pem)", id="no file"),
    ],
)
def test_files_that_cannot_be_used_are_named_by_their_option(
    address: str, options: list[str], said: str, run: Run
) -> None:
    for command in COMMANDS:
        assert said in run(*command, "--admin", address, *options, status=2).err


def test_all_failures_of_a_route_are_retried_after_a_question(
    target: Recorder, client: Client, mended: list[str], asked: list[str], run: Run
) -> None:
    assert ids(run("retry", "--route", "Orders", status=1).out) == mended
    assert (asked, target.take_all()) == (["Send 3 messages again?"], [])
    run("retry", "--route", "Orders", "--code", "http_status", "--yes")
    client.messages(3)
    assert {one.path for one in target.take_all()} == {"/new/0", "/new/1", "/new/2"}
    said = "nothing is sent again: each kept failure of route Orders was sent again before, or there is none\n"
    assert run("retry", "--route", "Orders").out.endswith(said)


def test_what_was_sent_again_with_success_is_sent_once_more_only_after_a_question(
    target: Recorder, client: Client, admin: Admin, mended: list[str], asked: list[str], run: Run
) -> None:
    run("retry", mended[0])
    client.message()
    eventually(lambda: admin.run(mended[0])["retry_outcome"] == "succeeded")
    target.take_all()
    assert run("retry", mended[0], status=1).out.endswith("  (succeeded)\n")
    assert asked == ["Sent again before, and succeeded. Send 1 message once more?"]
    assert target.take_all() == []
    run("retry", mended[0], "--yes")
    client.message()
    assert len(target.take_all()) == 1


def test_open_failures_of_all_routes_are_listed_and_retried_and_status_leads_to_them(
    client: Client, admin: Admin, mended: list[str], asked: list[str], run: Run
) -> None:
    waiting, at = "3 kept failures wait for a retry: rest-bridge failures --open", f"http://127.0.0.1:{admin.port}"
    assert run("status").out.splitlines()[-1] == waiting
    assert run("status", "--admin", at).out.splitlines()[-1] == f"{waiting} --admin {at}"
    for name in mended[:2]:
        run("retry", name)
    client.messages(2)
    listed = run("failures", "--open").out
    assert (ids(listed), listed.splitlines()[-1]) == (mended[2:], "1 open failure")
    run("retry", "--all", "--code", "http_status", status=1)
    assert asked == ["Send 1 message of 1 route again?"]
    assert (
        run("retry", "--all", "--code", "http_status", "--yes").out.splitlines()[-1]
        == "1 message sent again: 1 succeeded"
    )
    client.message()
    assert "each kept failure of all routes was sent again before" in run("retry", "--all").out


def test_a_failure_that_is_not_needed_is_dropped_and_counts_no_more(
    client: Client, admin: Admin, mended: list[str], asked: list[str], target: Recorder, run: Run
) -> None:
    target.answer = refusing_with_reason
    assert run("retry", mended[0], status=1).out.endswith("1 failed again\n")
    (again,) = (one["id"] for one in runs(admin, "?outcome=open") if one["retry_of"] == mended[0])
    run("failures", "drop", again, status=1)
    assert asked == ["Drop 1 failure? What is dropped cannot be sent again."]
    assert run("failures", "drop", again, mended[1], "--yes").out == "2 failures dropped\n"
    assert ids(run("failures").out) == [mended[2]], "all runs of a message go"
    (problem,) = admin.problems()
    route = admin.status("Orders")
    reason = "messages failed: 1 of the last 3"
    assert (problem["count"], route["open_failures"], route["health_reason"]) == (1, 1, reason)
    shown = run("failures", "drop", again, "--yes", status=1)
    assert shown == ("0 failures dropped\n", f"{again} not dropped: no failure that waits is kept with this id\n")


def test_a_route_that_is_not_there_is_named_with_the_one_that_was_meant(admin: Admin, run: Run) -> None:
    for command in (["failures"], ["retry"], ["retry", "--yes"]):
        shown = run(*command, "--route", "Ordres", status=1)
        assert shown == ("", f"rest-bridge {command[0]}: there is no route Ordres; did you mean Orders?\n")


def test_a_question_without_an_answer_does_nothing(client: Client, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(client)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    shown = run("retry", "--route", "Orders", status=1)
    assert "sent again" not in shown.out
    assert shown.err == "\nno answer, so nothing is sent (--yes: does not ask)\n"
    (name,) = ids(run("failures").out)
    assert "\nno answer, so nothing is dropped" in run("failures", "drop", name, status=1).err


@pytest.mark.parametrize(
    "arguments",
    [
        *COMMANDS, ["retry"], ["retry", "x", "--route", "R"], ["retry", "x", "--code", "c"],
        ["failures", "show"], ["failures", "x"], ["failures", "drop"], ["failures", "drop", "x", "--open"],
    ],
)  # fmt: skip
def test_a_command_that_is_used_wrongly_says_how(arguments: list[str], run: Run) -> None:
    assert run(*arguments, status=2).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["failures", "--since", "10"], "--since is an age such as 10m or 2h, or a time such as 2026-01-31T12:00:00Z"),
        (["failures", "--since", "-1m"], "--since is an age such as 10m or 2h"),
        (["failures", "--code", "http_staus"], "there is no code http_staus; did you mean http_status?"),
        (["failures", "--code", "reply_timout"], "did you mean reply_timeout?"),
        (["failures", "--code", "x\x1b[31m"], r"there is no code x\x1b[31m; the codes are bridge_restarted, "),
        (["retry", "--route", "R", "--code", "conection_failed"], "did you mean connection_failed?"),
    ],
)
def test_an_age_or_a_code_that_is_none_says_what_is_allowed(arguments: list[str], said: str, run: Run) -> None:
    assert said in run(*arguments, status=2).err


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (200, b"<html>", "200 OK, no content type"),
        (200, b"{}", "200 OK, no content type"),
        (200, b"[]", "200 OK, no content type"),
        (404, b"", "404 Not Found, no content type"),
        (404, b'{"error": {"message": "No endpoint has this path", "hint": "Compare"}}', "404 Not Found"),
        (500, b"oops\x1b[31m", "500 Internal Server Error"),
    ],
)
def test_another_kind_of_server_is_named_by_what_it_answers(
    target: Recorder, status: int, content: bytes, said: str, run: Run
) -> None:
    target.answer = lambda _: (status, content)
    for command in (["failures"], ["failures", "show", "x"], ["retry", "x"]):
        (line,) = run(*command, "--admin", target.url, status=1).err.splitlines()
        assert line.startswith(f"rest-bridge {command[0]}: {target.url}: this is not the admin port of a bridge: ")
        assert said in line


def test_a_token_that_is_wrong_or_cannot_be_sent_and_a_bridge_that_is_away_are_reported(
    admin: Admin, unused_port: int, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    for command in COMMANDS:
        monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", "wrong")
        assert "set REST_BRIDGE_ADMIN_TOKEN" in run(*command, status=1).err
        away = f"http://127.0.0.1:{unused_port}"
        assert "is admin_port set, and the bridge up?" in run(*command, "--admin", away, status=1).err
        for token in (f"{TOKEN}\n", f"{TOKEN}\u20ac", f"{TOKEN}\udcff"):
            monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", token)
            shown = run(*command, status=1).err
            assert "REST_BRIDGE_ADMIN_TOKEN has a line break" in shown
            assert TOKEN not in shown


def test_an_id_or_a_name_of_any_letters_is_asked_for_as_it_is(admin: Admin, run: Run) -> None:
    for text in ("a b", "\u00e9", "\udcff", "x?y", ".."):
        assert "There is no run with this id" in run("failures", "show", text, status=1).err
        for command in ("failures", "trace"):
            assert "there is no route" in run(command, "--route", text, status=1).err
