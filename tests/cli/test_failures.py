"""`rest-bridge failures` and `rest-bridge retry` against a real broker."""

import io
import json
import re
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support.admin_client import TOKEN, Admin, admin_with_token, client_route, outcome, refusing_with_reason
from tests.support.asking import ask
from tests.support.embedded_broker import Client, Host, hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import AUTHORITY, CERTIFICATES, Peer, Target, reply, server_tls
from tests.support.waiting import eventually

CLIENT = str(CERTIFICATES / "client.pem")
ASKING = """
    ADD EVENT Ask
        WITH SOURCE_TOPIC "ask"
        WITH METHOD "GET"
        WITH ENDPOINT "/answer"
        WITH DESTINATION_TOPIC "done/ask"
"""


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as recorder:
        recorder.answer = refusing_with_reason
        yield recorder


@pytest.fixture
def host(target: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", TOKEN)
    with hosting(client_route(target.url, more=ASKING), admin_port=0, admin_token=TOKEN) as host:
        yield host


@pytest.fixture
def client(host: Host) -> Client:
    return host.client("done/#")


@pytest.fixture
def admin(host: Host) -> Admin:
    return admin_with_token(host)


def fail(client: Client, topic: str) -> str:
    """Publish a message that fails, and return the id of its run."""
    client.publish(topic, b"bad\x1b[31m")
    return str(json.loads(client.message()[1])["id"])


def at(admin: Admin) -> list[str]:
    return ["--admin", f"http://127.0.0.1:{admin.port}"]


def test_failures_are_listed_the_newest_last_and_narrowed(
    client: Client, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [fail(client, f"orders/{number}") for number in range(3)]
    assert main(["failures", "--route", "Orders", "--code", "http_status", "--since", "10m", *at(admin)]) == 0
    shown, hint = capsys.readouterr()
    show, retry = (f"rest-bridge {command} ID {' '.join(at(admin))}" for command in ("failures show", "retry"))
    assert hint == f"hint: {show} prints one whole, {retry} sends it again\n"
    *lines, last = shown.splitlines()
    assert [line.split("  ")[1] for line in lines] == names
    reason = f"the server answered 422 {HTTPStatus(422).phrase}: no such customer"  # another one from Python 3.13 on
    assert lines[0].endswith(f"Orders/Send  orders/0  422 http_status  ({reason})")
    assert last == "3 failures"
    assert main(["failures", "--code", "timeout", "--route", "Orders", *at(admin)]) == 0
    assert capsys.readouterr() == ("0 failures\n", "")
    assert main(["failures", "--json", *at(admin)]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == names


def test_a_message_with_another_try_to_come_is_listed_as_retrying(
    target: Recorder, client: Client, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    target.answer = lambda _: (503, b"")
    client.publish("orders/7", b"x")

    def listed() -> str:
        assert main(["failures", *at(admin)]) == 0
        return capsys.readouterr().out

    eventually(lambda: listed().endswith("0 failures, 1 message still retrying\n"))
    eventually(lambda: re.search(r"503 http_status  \(.*\)  after [2-9] tries  retrying\n", listed()))
    assert main(["status", *at(admin)]) == 0
    assert "RETRYING" in capsys.readouterr().out
    name = listed().split("  ")[1]
    assert main(["failures", "show", name, *at(admin)]) == 1
    said = "This message is still being retried. It can be shown and sent again once it has ended\n"
    assert capsys.readouterr().err.endswith(said)
    assert main(["retry", name, *at(admin)]) == 1
    said = f"{name} not sent again: it is still being retried; it can be sent again once it has ended\n"
    assert capsys.readouterr().err == said


def test_one_failure_is_shown_with_message_request_and_response(
    client: Client, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    name = fail(client, "orders/7")
    assert main(["failures", "show", name, *at(admin)]) == 0
    shown = capsys.readouterr().out
    for text in ("# message on orders/7", "bad\\x1b[31m", "/new/7", "# response: 422", "no such customer", "hint: "):
        assert text in shown
    assert "\x1b" not in shown
    assert main(["failures", "show", name, "--json", *at(admin)]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == name
    assert main(["failures", "show", "nothing", *at(admin)]) == 1
    said = capsys.readouterr().err
    assert "There is no run with this id" in said
    assert said.endswith("; rest-bridge failures lists those that are kept\n")


def test_a_request_without_a_body_is_shown_as_one(
    target: Recorder, client: Client, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    target.answer = lambda _: (422, b"")
    assert main(["failures", "show", fail(client, "ask"), *at(admin)]) == 0
    request = capsys.readouterr().out.partition("# request: GET ")[2].partition("# response: ")[0]
    assert request.endswith("\n(no body)\n\n")


def test_a_failure_is_retried_by_its_id(
    target: Recorder, client: Client, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    name = fail(client, "orders/7")
    target.answer = lambda _: (200, b"{}")
    assert main(["retry", name, *at(admin)]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert last == "1 message sent again"
    again = first.removeprefix(f"{name} sent again as ")
    eventually(lambda: outcome(admin, again) == "succeeded")
    assert main(["failures", *at(admin)]) == 0
    (shown, last), hint = (text.splitlines() for text in capsys.readouterr())
    assert shown.endswith(f"sent again as {again}  (succeeded)")
    assert (last, hint) == ("1 failure, all sent again and succeeded", [])
    client.message()
    target.answer = refusing_with_reason
    fail(client, "orders/8")
    assert main(["failures", *at(admin)]) == 0
    printed, hinted = capsys.readouterr()
    assert printed.endswith("\n2 failures, 1 sent again and succeeded\n") and hinted.startswith("hint: ")
    assert main(["retry", "nothing", *at(admin)]) == 1
    assert "nothing not sent again: no failure of a message is kept with this id" in capsys.readouterr().err


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
    target: Recorder, client: Client, proxy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, certificate = fail(client, "orders/7"), ["--cert-file", CLIENT, "--key-file", CLIENT]
    target.answer = lambda _: (200, b"{}")
    files = ["--ca-file", AUTHORITY, *certificate]
    assert main(["failures", *proxy, *files]) == 0
    assert name in capsys.readouterr().out
    assert main(["retry", name, *proxy, *files]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 message sent again"
    client.message()


@pytest.mark.parametrize("command", [["failures"], ["retry", "x"], ["trace"]])
def test_a_certificate_that_is_refused_is_said_with_what_to_do(
    proxy: list[str], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = ["--cert-file", CLIENT, "--key-file", CLIENT]
    assert main([*command, *proxy, *certificate]) == 1
    refused = capsys.readouterr().err
    assert "its certificate is refused: " in refused
    assert "; --ca-file names the authorities to trust" in refused
    assert main([*command, *proxy, "--ca-file", AUTHORITY]) == 1
    assert "; does it speak TLS, and ask for --cert-file?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(
            ["--admin", "http://a.test", "--ca-file", AUTHORITY],
            "--ca-file needs TLS: write --admin https://...",
            id="plain",
        ),
        pytest.param(["--admin", "https://a.test", "--cert-file", CLIENT], "--cert-file and --key-file", id="no key"),
        pytest.param(["--admin", "https://a.test", "--ca-file", "no.pem"], "(--ca-file no.pem)", id="no file"),
    ],
)
def test_files_that_cannot_be_used_are_named_by_their_option(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["failures"], ["retry", "x"], ["trace"]):
        assert main([*command, *options]) == 2
        assert said in capsys.readouterr().err


def test_all_failures_of_a_route_are_retried_after_a_question(
    target: Recorder, client: Client, admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [fail(client, f"orders/{number}") for number in range(3)]
    target.answer = lambda _: (200, b"{}")
    target.take_all()
    monkeypatch.setattr("typer.confirm", lambda question: question != "Send 3 messages again?")
    assert main(["retry", "--route", "Orders", *at(admin)]) == 1
    assert [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()] == names
    assert target.take_all() == []
    assert main(["retry", "--route", "Orders", "--code", "http_status", "--yes", *at(admin)]) == 0
    client.messages(3)
    assert {one.path for one in target.take_all()} == {"/new/0", "/new/1", "/new/2"}
    assert main(["retry", "--route", "Orders", *at(admin)]) == 0
    said = "nothing is sent again: each kept failure of route Orders was sent again before, or there is none\n"
    assert capsys.readouterr().out.endswith(said)


def test_what_was_sent_again_with_success_is_sent_once_more_only_after_a_question(
    target: Recorder, client: Client, admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fail(client, "orders/7")
    target.answer = lambda _: (200, b"{}")
    assert main(["retry", name, *at(admin)]) == 0
    client.message()
    eventually(lambda: admin.get(f"/api/runs/{name}").json["retry_outcome"] == "succeeded")
    target.take_all()
    capsys.readouterr()
    question = "Sent again before, and succeeded. Send 1 message once more?"
    monkeypatch.setattr("typer.confirm", lambda asked: asked != question)
    assert main(["retry", name, *at(admin)]) == 1
    assert capsys.readouterr().out.endswith("  (succeeded)\n")
    assert target.take_all() == []
    assert main(["retry", name, "--yes", *at(admin)]) == 0
    client.message()
    assert len(target.take_all()) == 1


def test_a_route_that_is_not_there_is_named_with_the_one_that_was_meant(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["failures"], ["retry"], ["retry", "--yes"]):
        assert main([*command, "--route", "Ordres", *at(admin)]) == 1
        shown = capsys.readouterr()
        assert shown.err == f"rest-bridge {command[0]}: there is no route Ordres; did you mean Orders?\n"
        assert not shown.out


def test_a_question_without_an_answer_sends_nothing(
    client: Client, admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(client, "orders/7")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["retry", "--route", "Orders", *at(admin)]) == 1
    shown = capsys.readouterr()
    assert "sent again" not in shown.out
    assert shown.err == "\nno answer, so nothing is sent (--yes: does not ask)\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["failures"],
        ["trace"],
        ["retry", "x"],
        ["retry"],
        ["retry", "x", "--route", "R"],
        ["retry", "x", "--code", "c"],
        ["failures", "show"],
        ["failures", "x"],
    ],
)
def test_a_command_that_is_used_wrongly_says_how(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


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
def test_an_age_or_a_code_that_is_none_says_what_is_allowed(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["failures"], ["failures", "show", "x"], ["retry", "x"]])
@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (200, b"<html>", "200 OK, no content type, from recorder"),
        (200, b"{}", "200 OK, no content type, from recorder"),
        (200, b"[]", "200 OK, no content type, from recorder"),
        (404, b"", "404 Not Found, no content type, from recorder"),
        (404, b'{"error": {"message": "No endpoint has this path", "hint": "Compare"}}', "404 Not Found"),
        (500, b"oops\x1b[31m", "500 Internal Server Error"),
    ],
)
def test_another_kind_of_server_is_named_by_what_it_answers(
    target: Recorder, command: list[str], status: int, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target.answer = lambda _: (status, content)
    assert main([*command, "--admin", target.url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rest-bridge {command[0]}: {target.url}: this is not the admin port of a bridge: ")
    assert said.partition(", from")[0] in line


def test_a_wrong_token_and_a_bridge_that_is_away_are_reported(
    admin: Admin, unused_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", "wrong")
    for command in (["failures"], ["retry", "x"]):
        assert main([*command, *at(admin)]) == 1
        assert "set REST_BRIDGE_ADMIN_TOKEN" in capsys.readouterr().err
        assert main([*command, "--admin", f"http://127.0.0.1:{unused_port}"]) == 1
        assert "is admin_port set, and the bridge up?" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a b", "\u00e9", "\udcff", "x?y", ".."])
def test_an_id_or_a_name_of_any_letters_is_asked_for_as_it_is(
    text: str, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["failures", "show", text, *at(admin)]) == 1
    assert "There is no run with this id" in capsys.readouterr().err
    for command in ("failures", "trace"):
        assert main([command, "--route", text, *at(admin)]) == 1
        assert "there is no route" in capsys.readouterr().err


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN}\u20ac", f"{TOKEN}\udcff"])
@pytest.mark.parametrize("command", [["failures"], ["retry", "x"], ["trace"]])
def test_a_token_that_cannot_be_sent_is_said_and_not_shown(
    command: list[str], token: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", token)
    assert main([*command, *at(admin)]) == 1
    shown = capsys.readouterr().err
    assert "REST_BRIDGE_ADMIN_TOKEN has a line break" in shown
    assert TOKEN not in shown


def test_open_failures_of_all_routes_are_listed_and_retried_and_status_leads_to_them(
    target: Recorder, client: Client, admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [fail(client, f"orders/{number}") for number in range(2)]
    waiting = "2 kept failures wait for a retry: rest-bridge failures --open"
    for option, said in ((at(admin), f"{waiting} {' '.join(at(admin))}"), ([], waiting)):
        monkeypatch.setenv("REST_BRIDGE_ADMIN", at(admin)[1])
        assert main(["status", *option]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == said
    target.answer = lambda _: (200, b"{}")
    assert main(["retry", names[0]]) == 0
    client.message()
    capsys.readouterr()
    assert main(["failures", "--open", *at(admin)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1:2] for line in listed] == [[names[1]], []]
    assert listed[-1] == "1 open failure"
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda question: not asked.append(question))  # type: ignore[func-returns-value]
    assert main(["retry", "--all", "--code", "http_status"]) == 0
    client.message()
    assert (asked, capsys.readouterr().out.splitlines()[-1]) == (
        ["Send 1 message of 1 route again?"],
        "1 message sent again",
    )
    assert main(["retry", "--all"]) == 0
    assert "each kept failure of all routes was sent again before" in capsys.readouterr().out
