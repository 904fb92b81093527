"""`rest-bridge test`, `try --request` and `replay`: routes tried without a broker, and failures published again."""

import json
import re
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import pytest

from amqtt_rest_bridge.cli.replay import read_failures
from amqtt_rest_bridge.cli.route_test_files import Case, SourceMessage
from amqtt_rest_bridge.lot.model import Publication
from tests.cli.conftest import Printed, Run
from tests.support.commands import SERVER_ROUTE
from tests.support.documents import FENCED, RECIPES, page
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import recording

LIBRARY = Path(__file__).parents[2] / "conf" / "library"
ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG
            WITH BASE_ADDRESS "http://api.example.com" WITH ENABLE_CLIENT "true" WITH ENABLE_SERVER "true"
        ADD EVENT E WITH SOURCE_TOPIC "in/+" WITH METHOD "POST" WITH ENDPOINT "/{topic.2}"
            WITH BODY '{"key": "{secret.key}", "level": {value.json.level}, "from": "{env.SITE}"}'
            WITH DESTINATION_TOPIC "out/{response.status}" WITH PAYLOAD '{response.json.id}'
            WITH WHEN '{value.json.level} > 1' WITH ERROR_TOPIC "wrong"
        ADD EVENT S WITH METHOD "POST" WITH ENDPOINT "/hook/{id}" WITH DESTINATION_TOPIC "hook/{path.id}"
            WITH RESPONSE '{"got": {body.json.n}}' WITH RETAIN "true" WITH QOS "1"
        ADD EVENT A WITH METHOD "POST" WITH ENDPOINT "/ask" WITH DESTINATION_TOPIC "ask"
            WITH REPLY_TOPIC "reply/{request_id}"
        ADD EVENT P WITH SOURCE_TOPIC "property" WITH METHOD "GET" WITH ENDPOINT "/{property.site}"
            WITH DESTINATION_TOPIC "site/{property.site}"
        ADD EVENT Q WITH METHOD "POST" WITH ENDPOINT "/ask-one" WITH DESTINATION_TOPIC "ask"
            WITH REPLY_TOPIC "reply"
"""
TESTS = """
environment: {SITE: plant}
secrets: {key: k3y-k3y}
tests:
  - name: a call
    message: {topic: in/a, payload: {level: 2}}
    response: {status: 201, body: {id: 7}}
    sends:
      - {method: POST, url: "http://api.example.com/a", body: {key: k3y-k3y, level: 2, from: plant}}
    publishes: [{topic: out/201, payload: 7}]
    skipped: false
  - name: a message that is skipped
    message: {topic: in/a, payload: {level: 1}}
    sends: []
    publishes: []
    skipped: true
  - name: a server that is gone
    message: {topic: in/a, payload: {level: 2}}
    response: {error: connection_failed}
    publishes: [{topic: wrong, failure: connection_failed}]
  - name: a request
    request: {method: POST, path: "/hook/7?x=1", body: {n: 1.50}}
    answers: {status: 200, headers: {Content-Type: application/json}, body: {got: 1.5}}
    publishes: [{topic: hook/7, payload_base64: eyJuIjoxLjV9, retain: true, qos: 1}]
  - name: a reply
    request: {path: /ask, body: "?"}
    reply: {answer: 42}
    answers: {status: 200, body: {answer: 42}}
  - name: a reply on a topic that requests share
    request: {path: /ask-one, body: "?", headers: {baggage: k=v}}
    reply: {answer: 42}
    answers: {status: 200, body: {answer: 42}}
    publishes: [{topic: ask, properties: {baggage: k=v}}]
  - name: user properties
    message: {topic: property, properties: {site: north, baggage: k=v}}
    response: {status: 200}
    sends: [{url: "http://api.example.com/north", headers: {baggage: k=v}}]
    publishes: [{topic: site/north, properties: {baggage: k=v}}]
  - name: no reply
    request: {path: /ask, body: "?"}
    answers: {status: 504}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.lot").write_text(ROUTE)
    (tmp_path / "r.test.yaml").write_text(TESTS)
    return tmp_path


def test_tests_that_hold_pass_and_the_name_of_one_is_a_line_whatever_it_holds(folder: Path, run: Run) -> None:
    named = TESTS.replace("- name: no reply\n", '- name: "\\ud800\\e[31m\\n"\n')
    (folder / "r.test.yaml").write_text(named)
    shown = run("test", str(folder), "--junit", str(folder / "report.xml")).out
    assert "r.test.yaml: \\ud800\\x1b[31m\\n\n" in shown
    assert shown.endswith("8 passed, 0 failed\n")


def test_a_failure_shows_expected_and_actual_side_by_side(folder: Path, run: Run) -> None:
    (folder / "r.test.yaml").write_text(TESTS.replace("level: 2, from", "level: 3, from"))
    output = run("test", str(folder / "r.test.yaml"), "--junit", str(folder / "report.xml"), status=1).out
    assert "FAIL" in output
    assert "sends[0].body" in output
    (line,) = (line for line in output.splitlines() if '"level": 3' in line)
    assert line.split(" ! ")[1].strip() == '"level": 2,'
    assert "k3y-k3y" not in output
    assert "7 passed, 1 failed" in output
    suite = ET.parse(folder / "report.xml").getroot()
    assert suite.attrib == {"name": "rest-bridge test", "tests": "8", "failures": "1"}
    failures = [case.attrib["name"] for case in suite if case.find("failure") is not None]
    assert failures == ["a call"]


@pytest.mark.parametrize(
    ("written", "expected", "shown"), [("retain: true", "retain: false", "false ! true"), ("qos: 1", "qos: 2", "2 ! 1")]
)
def test_a_failure_shows_values_as_the_test_file_has_them(
    folder: Path, run: Run, written: str, expected: str, shown: str
) -> None:
    (folder / "r.test.yaml").write_text(TESTS.replace(written, expected))
    (line,) = (line for line in run("test", str(folder), status=1).out.splitlines() if " ! " in line)
    assert line.split() == shown.split()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("skipped: false", "skipt: false", "skipt is not known here"),
        ("publishes: []", "publishes: {}", "must be a list"),
        ("tests:", "more: 5\ntests:", "r.test.yaml: more is not known here"),
        ("skipped: false", "messages: []", "messages is not known here; write message for the first one"),
        ("tests:", "tests: 5\nmore:", "tests: must be a list, not a whole number"),
        ("path: /ask, body", "path: /ask, boddy", "tests[4].request: boddy is not known here; did you mean body?"),
        ("message: {topic: in/a, payload: {level: 1}}", "message: 5", "tests[1].message: must be a mapping"),
        ("message: {topic: in/a, payload: {level: 1}}", "latest: 5", "tests[1]: needs either a message or a request"),
        ("environment: {SITE: plant}", "environment: [SITE]", "environment: must be a mapping, not a list"),
        ("tests:", "routes: 5\ntests:", "routes: must be text or a list, not a whole number"),
        ("status: 201", "status: abc", "tests[0].response.status: must be a whole number, not text"),
        ("status: 201", "headers: [a]", "tests[0].response.headers: must be a mapping, not a list"),
        ("status: 201", 'body_base64: "?"', "tests[0].response.body_base64: Invalid base64"),
        ("{error: connection_failed}", "{error: gone}", "tests[2].response.error: Invalid enum value 'gone'"),
        ("skipped: false", "skipped: maybe", "tests[0].skipped: must be a boolean, not text"),
        ("- name: a call", "- time: noon", "tests[0].time: Invalid RFC3339"),
        ("secrets: {key", "secrets: {../key", "cannot be the name of a secret"),
        ("- name: no reply", "- name: {{{", "r.test.yaml:39:13: this { is not closed"),
        pytest.param("- name: no reply", f"- name: {'[' * 1000}", "is nested too deeply", id="nested"),
    ],
)
def test_what_a_test_file_does_not_have_is_wrong_usage(
    folder: Path, run: Run, before: str, after: str, said: str
) -> None:
    (folder / "r.test.yaml").write_text(TESTS.replace(before, after, 1))
    assert said in run("test", str(folder), status=2).err


def test_a_time_without_a_zone_is_in_utc_wherever_the_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        given = [datetime(2026, 2, 1, 12), datetime(2026, 2, 1, 12, tzinfo=UTC)]  # noqa: DTZ001
        assert {Case(message=SourceMessage(topic="a"), time=one).now for one in given} == {1_769_947_200}
    time.tzset()


def test_dates_of_yaml_are_the_texts_that_json_has_for_them(folder: Path, run: Run) -> None:
    case = """
  - name: a day
    time: 2026-02-01T12:00:00Z
    message: {topic: in/a, payload: {level: 2, day: 2026-01-31}}
    response: {body: {id: 2026-01-31}}
    publishes: [{topic: out/200, payload: 2026-01-31}]
"""
    (folder / "r.test.yaml").write_text(TESTS + case)
    run("test", str(folder))


def test_paths_without_tests_are_wrong_usage_and_routes_with_errors_fail(folder: Path, run: Run) -> None:
    run("test", str(folder / "r.lot"), status=2)
    run("test", str(folder / "gone"), status=2)
    (folder / "r.lot").write_text(ROUTE.replace("ENABLE_CLIENT", "ENABLE_CLEINT"))
    assert "unknown setting ENABLE_CLEINT" in run("test", str(folder), status=1).out
    (folder / "r.test.yaml").unlink()
    run("test", str(folder), status=2)


OTHER = """
    DEFINE ROUTE Other WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://b.example.com" WITH ENABLE_CLIENT "true" WITH ENABLE_SERVER "true"
            WITH SERVER_TOKEN GET SECRET "token" WITH AUTHORIZATION "Bearer " + GET SECRET "key"
        ADD EVENT E WITH SOURCE_TOPIC "{env.PLACE|here}/+" WITH METHOD "GET" WITH ENDPOINT "/"
        ADD EVENT S WITH METHOD "POST" WITH ENDPOINT "/other" WITH DESTINATION_TOPIC "other"
"""


def test_a_test_needs_the_secrets_of_the_routes_that_it_triggers_alone(folder: Path, run: Run) -> None:
    (folder / "other.lot").write_text(OTHER)
    assert run("test", str(folder)).out.endswith("8 passed, 0 failed\n")
    path = folder / "other.test.yaml"
    path.write_text("tests: [{message: {topic: here/a}}, {request: {path: /other}}, {message: {topic: in/a}}]")
    shown = run("test", str(path), "--junit", str(folder / "report.xml"), status=1).out.splitlines()
    lot, r = folder / "other.lot", folder / "r.lot"
    assert shown[:7] == [
        f"FAIL {path}: test 1",
        f"  {lot}:4:31: error: the test file has no secret token",
        f"  hint: write a value for the test into {path}, as in secrets: {{token: abc}}",
        f"  {lot}:4:81: error: the test file has no secret key",
        f"  hint: write a value for the test into {path}, as in secrets: {{key: abc}}",
        f"  {r}:6:33: error: the test file has no secret key",
        f"  hint: write a value for the test into {path}, as in secrets: {{key: abc}}",
    ]
    assert shown.count("  for the reasons above") == 2
    assert not any("expected" in line for line in shown)  # what differs follows from these reasons
    assert shown[-1] == "0 passed, 3 failed"
    texts = [failure.text or "" for failure in ET.parse(folder / "report.xml").getroot().iter("failure")]
    assert [text.count("error: ") for text in texts] == [3, 3, 3]


def test_what_another_route_lacks_is_not_said_of_a_test_that_does_not_need_it(folder: Path, run: Run) -> None:
    (folder / "other.lot").write_text(OTHER)
    wrong = "[{message: {topic: in/a, payload: {level: 1}}, skipped: false}, {request: {path: /ask}, publishes: []}]"
    (folder / "wrong.test.yaml").write_text(f"{{environment: {{SITE: plant}}, secrets: {{key: k3y}}, tests: {wrong}}}")
    shown = run("test", str(folder / "wrong.test.yaml"), status=1).out
    assert shown.endswith("0 passed, 2 failed\n")
    assert "error: " not in shown and "reasons above" not in shown


@pytest.mark.parametrize("template", sorted(path.name for path in LIBRARY.iterdir() if path.is_dir()))
def test_each_template_of_the_library_has_tests_that_hold(template: str, run: Run) -> None:
    run("test", str(LIBRARY / template))


def test_the_recipes_hold(tmp_path: Path, run: Run) -> None:
    pairs = [(lot, test) for (_, lot), (_, test) in (FENCED.findall(page(name)) for name in RECIPES)]
    assert pairs
    together, secrets = tmp_path / "together", tmp_path / "secrets"
    together.mkdir()
    secrets.mkdir()
    for number, (lot, test) in enumerate(pairs):
        folder = tmp_path / str(number)
        folder.mkdir()
        (together / f"{number}.lot").write_text(lot)
        (together / f"{number}.test.yaml").write_text(test)
        (folder / "example.lot").write_text(lot)
        (folder / "example.test.yaml").write_text(test)
        for name in re.findall(r'GET SECRET "([^"]+)"', lot):
            (secrets / name).write_text("s3cret-s3cret")
        run("check", str(folder), "--secrets-dir", str(secrets))
        run("fmt", "--check", str(folder))
        run("test", str(folder))
    run("test", str(together))


def test_try_shows_which_credential_a_caller_lacks(tmp_path: Path, run: Run) -> None:
    (tmp_path / "r.lot").write_text("""
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_TOKEN "t0ken-t0ken"
        ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "a"
    """)
    shown = run("try", str(tmp_path), "--request", "POST /x", status=1).out
    assert 'WWW-Authenticate: Bearer realm="R"' in shown.splitlines()


def test_try_shows_the_answer_to_a_request_and_what_it_publishes(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE", "plant")
    (folder / "key").write_text("k3y-k3y")
    arguments = ["try", str(folder), "--secrets-dir", str(folder), "--request", "POST /hook/7?x=1"]
    lines = run(*arguments, "--header", "X-A: b", "--payload", '{"n": 5, "key": "k3y-k3y"}').out.splitlines()
    assert lines[:2] == ["# route R, event S: POST /hook/{id}", "200 OK"]
    assert '{"got": 5}' in lines
    assert lines[-2:] == ["# would be published on hook/7, retained, with QoS 1 at most:", '{"n": 5, "key": "***"}']
    assert "# nothing would be published" in run(*arguments, "--payload", "no JSON", status=1).out
    for wrong in (["--request", "/hook"], ["--request", "POST hook"], ["--request", "POST /x", "--header", "X"], []):
        run("try", str(folder), "--secrets-dir", str(folder), *wrong, status=2)
    run(*arguments, "--topic", "in/a", status=2)


CLOSED = "mqtt://127.0.0.1:1"
"""The address of no broker."""


def replay(run: Run, source: str | Path, *options: str, broker: str = CLOSED, status: int = 0) -> Printed:
    return run("replay", "--from", str(source), "--broker", broker, *options, status=status)


FAILING = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES '0'
        ADD EVENT E WITH SOURCE_TOPIC "in/+" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "failed" WITH FAILURE_PAYLOAD "true"
"""


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"source_topic": topic} for topic in (5, None, ["in"], "$SYS/a", "in/#", "", "a\0", "a\ud800", "x" * 65_536)],
        *[{"payload": payload} for payload in (5, None, ["a"], {"a": 1}, "\ud800")],
        *[{"payload_encoding": encoding} for encoding in ("base64", "utf-16", ["utf-8"], None)],
    ],
)
def test_what_is_not_a_message_is_counted_and_stops_nothing(wrong: dict[str, object]) -> None:
    kept = {"source_topic": "in", "payload": "a", "payload_encoding": "utf-8"}
    payloads = [json.dumps(one).encode() for one in ({**kept, **wrong}, kept)]
    found = read_failures(payloads)
    assert (found.publications, found.without_message + len(found.damaged)) == ([Publication("in", b"a")], 1)


def test_messages_of_failures_are_published_again(tmp_path: Path, run: Run) -> None:
    with recording() as target, hosting(FAILING.format(url=target.url)) as host:
        target.answer = lambda _: (500, b"")
        client = host.client("out", "failed")
        sent = [("in/a", b"text \xc3\xbc"), ("in/b", b"\x00\xff"), ("in/a", b"")]
        for topic, payload in sent:
            client.publish(topic, payload)
        failures = [payload for _, payload in client.messages(3)]
        encodings = {one["source_topic"]: one["payload_encoding"] for one in map(json.loads, failures)}
        assert encodings == {"in/a": "utf-8", "in/b": "base64"}
        read = read_failures(failures).publications
        assert sorted((one.topic, one.payload) for one in read) == sorted(sent)
        file = tmp_path / "failures.jsonl"
        file.write_bytes(b"\n".join([*failures, b"", b'{"no": "failure"}', b"[" * 3000]))
        target.answer = lambda seen: (200, seen.body)
        output = replay(run, file, "--rate", "100/s", "--yes", broker=host.mqtt_url, status=1).out
        assert sorted(client.messages(3)) == sorted(("out", payload) for _, payload in sent)
        assert "2 on in/a" in output
        assert "1 without a message" in output
        assert "1 cannot be read: damaged or cut off, line 6\n" in output
        assert output.endswith("published 3 message(s)\n")
        # amqtt sends it to whatever connects, as another client subscribes to it
        client.publish("failed", failures[1], retain=True)
        client.publish("kept", failures[0], retain=True)
        output = replay(run, "kept", "--seconds", "1", "--yes", broker=host.mqtt_url).out
        assert output.endswith("published 1 message(s)\n")
        assert "without" not in output


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        pytest.param(["test"], 2, "it is not a file or folder (working directory: /", id="test"),
        pytest.param(["replay", "--broker", "mqtt://127.0.0.1:1", "--from"], 1, "cannot connect to", id="replay"),
    ],
)
def test_a_name_that_no_file_can_have_costs_a_line(arguments: list[str], status: int, says: str, run: Run) -> None:
    assert says in run(*arguments, "x" * 300, status=status).err.splitlines()[-1]


def test_a_name_of_a_file_that_is_not_there_is_no_topic(tmp_path: Path, run: Run) -> None:
    for name in ("nofile.jsonl", "kept/nofile.jsonl", f"{tmp_path}/nofile.json"):
        assert f"cannot read {name}: No such file or directory" in replay(run, name, "--yes", status=2).err
    for topic in ("/failed", "alerts/failed", "/no-such-folder/failed"):
        assert "listening 5 s on that topic filter" in replay(run, topic, "--yes", status=1).err


def test_replay_asks_before_it_publishes(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "failures.jsonl"
    failure = {"source_topic": "in/a", "payload": "x", "payload_encoding": "utf-8"}
    file.write_text(json.dumps(failure))
    asked: list[str] = []

    def answer_no(text: str) -> bool:
        asked.append(text)
        return False

    monkeypatch.setattr("typer.confirm", answer_no)
    replay(run, file, status=1)
    assert asked == [f"Publish 1 message(s) to {CLOSED}?"]
    assert "cannot connect" in replay(run, file, "--yes", status=1).err
    file.write_text(json.dumps({**failure, "source_topic": "$schedule/R/E"}))
    run("replay", "--from", str(file))
    run("replay", "--from", "a/#/b", status=2)
    run("replay", "--from", str(file), "--rate", "5", status=2)


def test_failures_hold_no_payload_unless_the_event_says_so() -> None:
    with recording() as target, hosting(FAILING.format(url=target.url).replace("FAILURE_PAYLOAD", "RETAIN")) as host:
        target.answer = lambda _: (500, b"")
        client = host.client("failed")
        client.publish("in/a", b"x")
        assert "payload" not in json.loads(client.message()[1])


def test_lines_of_a_file_that_are_cut_off_or_damaged_are_named_and_the_exit_status_is_1(
    tmp_path: Path, run: Run
) -> None:
    whole = {"error": {"code": "timeout"}, "source_topic": "in", "payload": "a", "payload_encoding": "utf-8"}
    texts = [json.dumps(whole), json.dumps(whole | {"payload_encoding": "base64"})]
    lines = [texts[0], texts[0][:30], "", '{"error": {}}', texts[1]]
    file = tmp_path / "failures.jsonl"
    file.write_text("\n".join(lines[1:]))
    assert replay(run, file, status=1).out.splitlines() == [
        "      2 cannot be read: damaged or cut off, line 1, 4",
        "      1 without a message: not a failure, without FAILURE_PAYLOAD, or of a schedule",
    ]
    file.write_text("\n".join(lines))
    with hosting(SERVER_ROUTE) as host:
        client = host.client("in")
        shown = replay(run, file, "--yes", broker=host.mqtt_url, status=1).out
        assert client.message() == ("in", b"a")
    assert shown.splitlines()[0] == "      1 on in"


BATCHES = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://api.example.com" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{batch}" WITH BATCH_SIZE 3
        WITH WHEN '{payload.json} > 0' WITH BATCH_SPLIT "true" WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "wrong"
"""
BATCH_TESTS = """
tests:
  - name: one batch, and the beginning of the next
    message: {topic: in, payload: 1}
    batch: [{topic: in, payload: 2}, {topic: in, payload: 0}, {topic: in, payload: 3}, {topic: in, payload: 4}]
    responses: [{body: a}, {body: b}]
    sends: [{body: [1, 2, 3]}, {body: [4]}]
    publishes: [{topic: out, payload: a}, {topic: out, payload: b}]
    skipped: true
  - name: halves
    message: {topic: in, payload: 1}
    batch: [{topic: in, payload: 2}, {topic: in, payload: 3}]
    responses: [{status: 422}, {status: 422}, {body: first}, {status: 422}, {body: last}]
    sends: [{body: [1, 2, 3]}, {body: [1, 2]}, {body: [1]}, {body: [2]}, {body: [3]}]
    publishes: [{topic: out, payload: first}, {topic: wrong, failure: http_status}, {topic: out, payload: last}]
"""


def test_messages_of_a_test_are_batches_and_their_halves_and_one_alone_is_a_batch(tmp_path: Path, run: Run) -> None:
    (tmp_path / "r.lot").write_text(BATCHES)
    (tmp_path / "r.test.yaml").write_text(BATCH_TESTS)
    run("test", str(tmp_path))
    assert "\n[7]\n" in run("try", str(tmp_path), "--topic", "in", "--payload", "7").out
