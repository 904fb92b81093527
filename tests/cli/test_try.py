"""`rest-bridge try`: the request that a message would send, sent or not, with every credential masked."""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.cli.conftest import Printed, Run
from tests.cli.echoing_server import converse
from tests.support.http_target import Target
from tests.support.ports import free_port
from tests.support.route_text import BASIC, write_secrets

ROUTE = """\
DEFINE ROUTE Weather WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "http://127.0.0.1:{port}/v1"
        WITH ENABLE_CLIENT "true"
        WITH USERNAME "operator"
        WITH PASSWORD "pass word"
    ADD EVENT Ask
        WITH SOURCE_TOPIC "weather/+/ask"
        WITH METHOD "POST"
        WITH ENDPOINT "/{path}/{{topic.2}}?key={{secret.api-key}}"
        WITH BODY '{{"city": "{{payload}}", "key": {{secret.api-key}}}}'
        WITH DESTINATION_TOPIC "weather/{{topic.2}}/answer"
        WITH ERROR_TOPIC "weather/errors"
        WITH HEADERS
            ADD X-Token "abc"
            ADD X-Topic "{{topic}}"
    ADD EVENT Other
        WITH SOURCE_TOPIC "other/#"
        WITH METHOD "GET"
        WITH ENDPOINT "/{{value.json.a}}"
"""
ASK = ("--topic", "weather/x/ask")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Target(converse) as target:
        yield target.port


class Attempt:
    """Tries a message on the routes of a folder, in which `a.lot` is written first."""

    def __init__(self, folder: Path, run: Run) -> None:
        self._folder = folder
        self._run = run

    def __call__(self, *arguments: str, port: int = 1, path: str = "x", route: str = ROUTE, status: int = 0) -> Printed:
        (self._folder / "a.lot").write_text(route.format(port=port, path=path))
        files = sorted(file.name for file in self._folder.glob("*.lot"))
        return self._run("try", *files, "--secrets-dir", "secrets", *arguments, status=status)


@pytest.fixture
def attempt(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    write_secrets(folder / "secrets")
    return Attempt(folder, run)


def test_request_is_shown_exactly_with_credentials_masked(attempt: Attempt) -> None:
    output = attempt("--topic", "weather/a b/ask", "--payload", 'Ulm "west"')
    assert output.err == ""
    assert output.out.splitlines() == [
        "# route Weather, event Ask (a.lot:1)",
        "POST http://127.0.0.1:1/v1/x/a%20b?key=***",
        "Host: 127.0.0.1:1",
        f"User-Agent: amqtt-rest-bridge/{version('amqtt-rest-bridge')}",
        "Accept-Encoding: gzip, deflate",
        "X-Token: ***",
        "X-Topic: weather/a b/ask",
        "Content-Type: application/json",
        "Authorization: Basic ***",
        "Content-Length: 38",
        "",
        '{"city": "Ulm \\"west\\"", "key": "***"}',
        "",
        "# nothing was sent; the response would go to weather/a b/answer",
        "",
    ]


def test_user_properties_are_those_of_the_message(attempt: Attempt) -> None:
    shown = attempt(*ASK, "--property", "site: north", path="{property.site}").out
    assert "POST http://127.0.0.1:1/v1/north/x?key=***" in shown
    assert "--property 'site' has no colon" in attempt(*ASK, "--property", "site", status=2).err


def test_call_that_cannot_be_made_says_why_and_gives_1(attempt: Attempt) -> None:
    assert attempt("--topic", "other/x", "--payload", '{"b": 1}', status=1).out.splitlines() == [
        "# route Weather, event Other (a.lot:1)",
        "# fails with placeholder_unresolved: {value.json.a} has no value: the payload has no field a",
        "# hint: Send that field, or correct the name in the route; names are case-sensitive.",
        "# the failure would go to no topic",
        "",
    ]


LACKING = """\
DEFINE ROUTE Lacking WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "http://127.0.0.1:1"
        WITH ENABLE_CLIENT "true"
        WITH ENABLE_SERVER "true"
        WITH AUTHORIZATION "Bearer " + GET SECRET "not-there"
    ADD EVENT E
        WITH SOURCE_TOPIC "lacking"
        WITH METHOD "GET"
        WITH ENDPOINT "/"
    ADD EVENT S
        WITH METHOD "POST"
        WITH ENDPOINT "/lacking"
        WITH DESTINATION_TOPIC "lacked"
"""


def test_a_secret_that_only_another_route_lacks_is_named_and_hinders_nothing(folder: Path, attempt: Attempt) -> None:
    (folder / "b.lot").write_text(LACKING)
    for topic, status, shown in (("weather/a/ask", 0, "# route Weather, event Ask"), ("lacking", 1, ""), ("x", 1, "")):
        output = attempt("--topic", topic, status=status)
        assert output.out.startswith(shown) and bool(output.out) == bool(shown)
        assert "b.lot:6:40: error: " in output.err and "not-there" in output.err
    assert attempt("--request", "POST /lacking", status=1).out == ""
    text = LACKING.replace("Lacking", "Whole").replace('WITH AUTHORIZATION "Bearer " + GET SECRET "not-there"', "")
    (folder / "c.lot").write_text(text.replace("/lacking", "/whole"))
    assert attempt("--request", "POST /whole").out.startswith("# route Whole, event S: ")


def test_idempotency_key_of_a_lossless_route_is_sent_as_it_is_shown(attempt: Attempt, port: int) -> None:
    added = '    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"\n    ADD EVENT Ask\n'
    lossless = ROUTE.replace("    ADD EVENT Ask\n", added)
    assert "\nIdempotency-Key: <a UUID, the same for every try>\n" in attempt(*ASK, route=lossless).out
    output = attempt(*ASK, "--send", route=lossless, port=port).out
    sent = re.search(r"^Idempotency-Key: ([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$", output, re.MULTILINE)
    assert sent is not None
    assert f"\nX-Seen: {sent[1]}\n" in output


def test_secrets_in_topics_are_masked(attempt: Attempt) -> None:
    route = ROUTE.replace('"weather/{{topic.2}}/answer"', '"to/{{secret.api-key}}"')
    shown = attempt(*ASK, route=route).out
    assert shown.endswith("# nothing was sent; the response would go to to/***\n\n")


def test_topic_that_triggers_nothing_names_those_that_do(attempt: Attempt) -> None:
    assert attempt("--topic", "nowhere", status=1).out == (
        "a message on nowhere triggers no client event; the routes listen on: other/#, weather/+/ask\n"
    )
    for topic, near in (("wether/x/ask", "weather/+/ask"), ("othr/a/b", "other/#")):
        assert f"; the nearest SOURCE_TOPIC is {near}; the routes" in attempt("--topic", topic, status=1).out


def test_a_request_that_leads_to_no_endpoint_is_not_logged(attempt: Attempt, caplog: pytest.LogCaptureFixture) -> None:
    assert attempt("--request", "GET /", status=1).out.startswith("404 Not Found\n")
    assert caplog.messages == []


def test_faulty_route_files_give_1_and_their_faults_and_warnings_do_not(folder: Path, attempt: Attempt) -> None:
    (folder / "b.lot").write_text("DEFINE ROUTE N WITH TYPE REST_API ADD REST_API_CONFIG\nDEFINE ACTION x")
    output = attempt(*ASK)
    assert "warning: route N does nothing" in output.err
    assert "notice" not in output.err
    (folder / "b.lot").write_text("DEFINE ROUTE")
    output = attempt(*ASK, status=1)
    assert output.out == ""
    assert output.err.startswith("b.lot:1:1: error: DEFINE ROUTE cannot be read")


@pytest.mark.parametrize("topic", ["a/#", "", "a\tb"])
def test_topic_that_is_not_a_topic_name_gives_2(attempt: Attempt, topic: str) -> None:
    assert attempt("--topic", topic, status=2).err.startswith("rest-bridge try: --topic ")


def test_payload_comes_from_a_file_byte_for_byte(folder: Path, attempt: Attempt) -> None:
    (folder / "p").write_bytes(b"Ulm\xff")
    assert "the payload is not UTF-8 text" in attempt(*ASK, "--payload-file", "p", status=1).out
    attempt(*ASK, "--payload-file", "none", status=2)


def test_send_sends_the_request_and_shows_the_response(attempt: Attempt, port: int) -> None:
    lines = attempt(*ASK, "--payload", "Ulm", "--send", port=port).out.splitlines()
    assert "200 OK" in lines
    assert "Set-Cookie: ***" in lines
    assert 'you sent "{"city": "Ulm", "key": "***"}"' in lines
    assert "\ufffd[31mred" in lines
    assert lines[-2].endswith("ms; the broker would publish this to weather/x/answer")


def test_send_masks_credentials_in_every_form_in_which_a_server_sends_them_back(
    folder: Path, attempt: Attempt, port: int
) -> None:
    (folder / "secrets" / "api-key").write_text('a/b+"cé>?~ü' * 2)
    shown = attempt(*ASK, "--payload", "Ulm", "--send", port=port, path="echo").out
    first, *response = shown.partition("200 OK")[2].splitlines()
    lines = [line for line in response if line.startswith("[")]
    assert len(lines) == 60
    assert [line for line in lines if "***" not in line] == []
    # What is left of a line are its brackets and what stood beside the secret.
    assert [line for line in lines if len(line.replace("***", "")) > len('[{"a": "Basic "}]')] == []
    assert [line for line in response if line.startswith("X-")] == [
        "X-Echo: ***",
        "X-Raw: ***",
        'X-Folded: "***" and ***',
    ]
    assert first.strip() == '*** *** "***"'


@pytest.mark.parametrize(
    ("path", "status", "shown"),
    [
        pytest.param("binary", 0, ["(94 bytes that are not text)"], id="bytes"),
        pytest.param("binary-utf-16", 0, ["(92 bytes that are not text)"], id="UTF-16"),
        pytest.param(
            "missing", 1,
            ["404 Not Found", "# fails with http_status: ", "# the failure would go to weather/errors"], id="404",
        ),
    ],
)  # fmt: skip
def test_send_shows_what_is_not_text_by_its_number_of_bytes_and_names_a_failure(
    attempt: Attempt, port: int, path: str, status: int, shown: list[str]
) -> None:
    output = attempt(*ASK, "--send", port=port, path=path, status=status).out
    assert [part for part in shown if part not in output] == []


def test_a_failure_goes_to_the_topic_that_the_broker_would_publish_it_to(attempt: Attempt, port: int) -> None:
    plain = ROUTE.replace('        WITH ERROR_TOPIC "weather/errors"\n', "")
    mapped = plain.replace("/answer", "/{{response.status}}")
    closed = free_port()
    for route, of, path, shown in (
        (plain, closed, "x", "# fails with connection_failed: "),
        (plain, closed, "x", "# the failure would go to weather/x/answer\n"),
        (mapped, closed, "x", "# the failure would go to no topic\n"),
        (mapped, port, "missing", "# the failure would go to weather/x/404\n"),
    ):
        assert shown in attempt(*ASK, "--send", route=route, port=of, path=path, status=1).out


def test_a_result_goes_to_the_topic_that_the_response_fills(attempt: Attempt, port: int) -> None:
    mapped = ROUTE.replace("/answer", "/{{response.status}}")
    shown = attempt(*ASK, route=mapped).out
    assert "the response would go to weather/{topic.2}/{response.status}\n" in shown

    def sent(settings: str) -> str:
        route = mapped.replace("WITH METHOD", f"{settings} WITH METHOD", 1)
        return attempt(*ASK, "--send", route=route, port=port).out.partition("the broker would publish this to ")[2]

    assert sent("").startswith("weather/x/200\n")
    assert sent('WITH QOS "1" WITH RETAIN "true"').startswith("weather/x/200, retained, with QoS 1 at most\n")
    enveloped = sent('WITH RESPONSE_FORMAT "envelope"')
    assert json.loads(enveloped.removeprefix("weather/x/200\n# as:\n"))["status"] == 200


def test_a_file_whose_name_is_not_utf_8_is_shown_in_any_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.lot")
    path.write_text(BASIC)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8", errors="strict"))
    assert main(["try", str(path), "--topic", "in"]) == 0
    sys.stdout.flush()
    assert "a\\udcff.lot:1)" in written.getvalue().decode()
