"""The playground: what a definition would do is found without its surroundings, and costs no more than its bounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amqtt_rest_bridge.admin.guard import Guard
from amqtt_rest_bridge.http.exchange import Request
from amqtt_rest_bridge.site import playground
from amqtt_rest_bridge.site.playground import MOST_CHARACTERS, Exchange, Playground, Trial, TrialResult, trial_of
from amqtt_rest_bridge.tools.playground import run_trial
from tests.support.waiting import SECONDS

CLIENT = """DEFINE ROUTE Orders WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "http://a.test" {config}
    ADD EVENT Send WITH SOURCE_TOPIC "orders/+" WITH METHOD "POST" WITH ENDPOINT "/new/{{topic.2}}"
        WITH BODY "{{payload}}" WITH DESTINATION_TOPIC "done/{{topic.2}}" WITH ERROR_TOPIC "failed" {event}
"""
SERVER = """DEFINE ROUTE Intake WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "8080"
    ADD EVENT Received WITH METHOD "POST" WITH ENDPOINT "/hook/{id}" WITH DESTINATION_TOPIC "received/{path.id}"
"""
TOKEN = {"authorization": f"Bearer {'t' * 24}"}
FILES = CLIENT.format(config='WITH CA_FILE "/etc/hostname" WITH CLIENT_CERT_FILE "/no/such/file"', event="")
SCHEMA = CLIENT.format(config="", event='WITH SCHEMA_FILE "{file}"')


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a starved machine a trial may take long; what bounds it in a test is its processor time."""
    monkeypatch.setattr(playground, "WALL_SECONDS", 10 * SECONDS)


def client(config: str = "", event: str = "") -> str:
    return CLIENT.format(config=config, event=event)


def only(trial: Trial) -> Exchange:
    (found,) = run_trial(trial).exchanges
    return found


def test_a_message_without_a_topic_is_one_that_the_event_listens_to() -> None:
    found = only(Trial(client(), payload='{"id": 7}', response='{"ok": true}'))
    assert (found.route, found.event, found.topic) == ("Orders", "Send", "orders/x")
    assert found.request.startswith("POST http://a.test/new/x\n")
    assert found.request.endswith('\n\n{"id": 7}')
    assert found.published == 'done/x\n{"ok": true}'


def test_a_message_is_sent_by_the_events_that_listen_to_its_topic_and_else_they_are_named() -> None:
    assert only(Trial(client(), topic="orders/7")).request.startswith("POST http://a.test/new/7\n")
    found = run_trial(Trial(client(), topic="other"))
    assert (found.exchanges, found.note) == ([], "No event listens to this topic. The routes listen to: orders/+.")


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        pytest.param('WITH WHEN "{value.json.n} = 2"', "It is skipped: WHEN {value.json.n} = 2 is false", id="skipped"),
        pytest.param('WITH PAYLOAD "{response.json.x}"', "It fails with placeholder_unresolved: ", id="failed"),
    ],
)
def test_what_comes_of_a_message_that_publishes_no_answer_is_said(event: str, outcome: str) -> None:
    assert only(Trial(client(event=event), payload='{"n": 1}')).outcome.startswith(outcome)


def test_a_request_is_answered_and_what_it_publishes_is_shown() -> None:
    found = only(Trial(SERVER, payload="hello"))
    assert found.request == "POST /hook/x\n\nhello"
    assert found.outcome.startswith("It is answered with 200 OK\n")
    assert found.published == "received/x\nhello"
    other = only(Trial(SERVER, request="GET /hook/7\nX-A: b"))
    assert "It is answered with 405 " in other.outcome
    assert not Playground().run(Trial(SERVER, payload="hello")).trouble


def test_a_sample_request_without_its_signature_is_answered_401_and_the_cause_is_shown() -> None:
    signed = SERVER.replace("ADD EVENT Received", 'ADD EVENT Received WITH SIGNATURE_SECRET GET SECRET "shop"')
    answer = "It is answered with 401 Unauthorized\n"
    assert only(Trial(signed)).outcome.startswith(f"The sample request has no signature. {answer}")
    assert only(Trial(signed, request="POST /hook/7\nX-Hub-Signature-256: sha256=00")).outcome.startswith(answer)


def test_each_fault_has_its_place_and_its_line() -> None:
    (fault,) = run_trial(Trial(client(config='WITH RETRYS "3"'))).faults
    assert (fault.line, fault.severity, fault.message, fault.hint) == (
        2, "error", "unknown setting RETRYS", "did you mean RETRIES?",
    )  # fmt: skip
    assert fault.at == "RETRYS"


def test_the_drawing_has_what_leads_to_a_route_and_where_it_leads() -> None:
    (way,) = run_trial(Trial(client())).ways
    named = {name: [box["name"] for box in way[name]] for name in ("before", "after", "answers", "failures")}
    assert named == {
        "before": ["orders/+"], "after": ["http://a.test"], "answers": ["done/{topic.2}"], "failures": ["failed"],
    }  # fmt: skip


def test_variables_and_secrets_are_not_read_and_have_their_names_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hush-hush-1")
    monkeypatch.setenv("TRIES", "hush-hush-2")
    text = client('WITH AUTHORIZATION "Bearer " + GET SECRET "API_TOKEN" WITH RETRIES GET ENV "TRIES"')
    for found in (run_trial(Trial(text)), Playground().run(Trial(text))):
        assert "hush" not in str(found)
        assert "\nAuthorization: Bearer API_TOKEN\n" in found.exchanges[0].request
        assert [tuple(pair) for pair in found.substitutes] == [("API_TOKEN", "API_TOKEN"), ("TRIES", "1")]


OAUTH2 = 'WITH OAUTH2_TOKEN_URL "https://id.test/token" WITH OAUTH2_CLIENT_ID "a" WITH OAUTH2_CLIENT_SECRET "b"'
DIGEST = 'WITH AUTH_SCHEME "digest" WITH USERNAME "a" WITH PASSWORD "hush"'


@pytest.mark.parametrize(("config", "scheme"), [(OAUTH2, "Bearer"), (DIGEST, "Digest")], ids=["oauth2", "digest"])
def test_a_request_shows_the_credentials_that_are_added_when_it_is_sent(config: str, scheme: str) -> None:
    request = only(Trial(client(config))).request
    assert f"\nAuthorization: {scheme} (added when it is sent)" in request
    assert "hush" not in request


def test_files_are_not_looked_for_so_that_a_definition_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Playground().run(Trial(FILES))
    assert [fault.severity for fault in found.faults if fault.severity == "error"] == []
    assert found.routes == ["Orders"]
    (tmp_path / "of_the_project.json").write_text('{"const": "kept"}')
    monkeypatch.syspath_prepend(tmp_path)  # a folder that code comes from, as `python -m` has the working directory
    files = ("/no/such", "/etc/hostname", *(str(tmp_path / name) for name in ("of_the_project.json", "missing.json")))
    routes = (SCHEMA.replace("{file}", file).replace("Orders", f"R{number}") for number, file in enumerate(files))
    faults = Playground().run(Trial("".join(routes))).faults
    assert len(faults) == len(files)
    assert {fault.hint for fault in faults} == {None}
    (said,) = {fault.message.partition('": ')[2] for fault in faults}  # behind the name of the file
    assert "the playground reads no files; leave it out here" in said


def test_a_machine_without_time_is_not_the_fault_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playground, "WALL_SECONDS", 0.01)
    assert Playground().run(Trial(SERVER)).trouble.startswith("This machine has much to do")


def test_in_its_process_no_file_is_read_and_no_connection_made() -> None:
    code = (
        "from amqtt_rest_bridge.tools.playground import read_no_files\nread_no_files()\n"
        "import socket\n"
        "for what in (lambda: open('/etc/hostname'), lambda: socket.socket().connect(('127.0.0.1', 9))):\n"
        "    try:\n        what()\n    except PermissionError as error:\n        print(error.strerror)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.count("the playground reads no files") == 2


def test_a_definition_beyond_the_bound_is_refused_and_one_with_10000_faults_is_answered() -> None:
    assert "longer than 256 Ki characters" in Playground().run(Trial("x" * (MOST_CHARACTERS + 1))).trouble
    lines = "".join(f'    WITH UNKNOWN{number} "1"\n' for number in range(8_000))[: MOST_CHARACTERS - 200]
    text = f"DEFINE ROUTE A WITH TYPE REST_API\n    ADD REST_API_CONFIG\n{lines}"
    began = os.times()
    found = Playground().run(Trial(text))
    ended = os.times()
    used = ended.children_user + ended.children_system - began.children_user - began.children_system
    assert used < playground.CPU_SECONDS + 1
    assert found.trouble or len(found.faults) == 200


def test_one_more_than_may_run_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Playground(at_once=1)
    seen: list[TrialResult] = []

    def judged(trial: Trial) -> TrialResult:
        seen.append(busy.run(trial))
        return TrialResult()

    monkeypatch.setattr(playground, "_run_process", judged)
    assert not busy.run(Trial()).is_busy
    assert seen[0].is_busy
    busy.run(Trial())
    assert len(seen) == 2, "there is room again"


def test_a_process_that_ends_or_takes_too_long_leaves_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playground, "_MODULE", "no.such.module")
    assert "could not be judged" in Playground().run(Trial()).trouble


@pytest.mark.parametrize(
    ("token", "headers", "code"),
    [
        pytest.param(None, {}, None, id="a program of this machine"),
        pytest.param(None, {"origin": "http://127.0.0.1:9464", "sec-fetch-site": "same-origin"}, None, id="own page"),
        pytest.param(None, {"origin": "http://evil.test"}, "origin_not_allowed", id="another origin"),
        pytest.param(None, {"sec-fetch-site": "cross-site"}, "origin_not_allowed", id="another site"),
        pytest.param("t" * 24, {}, "unauthorized", id="no token"),
        pytest.param("t" * 24, TOKEN, None, id="token"),
        pytest.param("t" * 24, TOKEN | {"origin": "http://evil.test"}, "origin_not_allowed", id="token, no own page"),
    ],
)
def test_on_the_admin_port_it_is_for_those_who_may_see_its_pages(
    token: str | None, headers: dict[str, str], code: str | None
) -> None:
    request = Request("", "POST", "/playground", "", {"host": "127.0.0.1:9464", **headers}, b"")
    refusal = Guard(token).check(request, is_retry=False, is_trial=True)
    assert (refusal and refusal.code) == code


def test_a_form_is_read_whatever_it_holds() -> None:
    assert trial_of(b"definition=a%0D%0Ab&topic=x%2Fy&other=1") == Trial("a\nb", "x/y")
    assert trial_of(b"&".join(b"a=1" for _ in range(30))) == Trial()
    assert trial_of(b"\xff=%ff&payload=%ff") == Trial(payload="\ufffd")
