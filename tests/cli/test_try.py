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
        WITH SOURCE_TOPIC "other/{env}"
        WITH METHOD "GET"
        WITH ENDPOINT "/{{value.json.a}}"
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Target(converse) as target:
        yield target.port


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    write_secrets(tmp_path / "secrets")
    return tmp_path


def attempt(folder: Path, *arguments: str, port: int = 1, path: str = "x") -> int:
    (folder / "a.lot").write_text(ROUTE.format(port=port, path=path, env="#"))
    return main(["try", *sorted(file.name for file in folder.glob("*.lot")), "--secrets-dir", "secrets", *arguments])


def test_request_is_shown_exactly_with_credentials_masked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attempt(folder, "--topic", "weather/a b/ask", "--payload", 'Ulm "west"') == 0
    output = capsys.readouterr()
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


def test_user_properties_are_those_of_the_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--topic", "weather/a/ask", "--payload", "x", "--property")
    assert attempt(folder, *arguments, "site: north", path="{property.site}") == 0
    assert "POST http://127.0.0.1:1/v1/north/a?key=***" in capsys.readouterr().out
    assert attempt(folder, *arguments, "site") == 2
    assert "--property 'site' has no colon" in capsys.readouterr().err


def test_call_that_cannot_be_made_says_why_and_gives_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attempt(folder, "--topic", "other/x", "--payload", '{"b": 1}') == 1
    assert capsys.readouterr().out.splitlines() == [
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


def test_a_secret_that_only_another_route_lacks_is_named_and_hinders_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b.lot").write_text(LACKING)
    for topic, status, shown in (("weather/a/ask", 0, "# route Weather, event Ask"), ("lacking", 1, ""), ("x", 1, "")):
        assert attempt(folder, "--topic", topic) == status
        output = capsys.readouterr()
        assert output.out.startswith(shown) and bool(output.out) == bool(shown)
        assert "b.lot:6:40: error: " in output.err and "not-there" in output.err
    assert attempt(folder, "--request", "POST /lacking") == 1
    assert capsys.readouterr().out == ""
    text = LACKING.replace("Lacking", "Whole").replace('WITH AUTHORIZATION "Bearer " + GET SECRET "not-there"', "")
    (folder / "c.lot").write_text(text.replace("/lacking", "/whole"))
    assert attempt(folder, "--request", "POST /whole") == 0
    assert capsys.readouterr().out.startswith("# route Whole, event S: ")


LOSSLESS = '    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"\n    ADD EVENT Ask\n'


def lossless(folder: Path, port: int, *arguments: str) -> int:
    text = ROUTE.format(port=port, path="x", env="#").replace("    ADD EVENT Ask\n", LOSSLESS)
    (folder / "l.lot").write_text(text)
    return main(["try", "l.lot", "--secrets-dir", "secrets", "--topic", "weather/x/ask", *arguments])


def test_idempotency_key_of_a_lossless_route_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lossless(folder, 1) == 0
    assert "\nIdempotency-Key: <a UUID, the same for every try>\n" in capsys.readouterr().out


def test_idempotency_key_of_a_lossless_route_is_sent_as_it_is_shown(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lossless(folder, port, "--send") == 0
    output = capsys.readouterr().out
    sent = re.search(r"^Idempotency-Key: ([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$", output, re.MULTILINE)
    assert sent is not None
    assert f"\nX-Seen: {sent[1]}\n" in output


def test_secrets_in_topics_are_masked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ROUTE.format(port=1, path="x", env="#").replace('"weather/{topic.2}/answer"', '"to/{secret.api-key}"')
    (folder / "s.lot").write_text(text.replace("Weather", "Other"))
    assert main(["try", "s.lot", "--secrets-dir", "secrets", "--topic", "weather/x/ask"]) == 0
    assert capsys.readouterr().out.endswith("# nothing was sent; the response would go to to/***\n\n")


def test_topic_that_triggers_nothing_names_those_that_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attempt(folder, "--topic", "nowhere") == 1
    assert capsys.readouterr().out == (
        "a message on nowhere triggers no client event; the routes listen on: other/#, weather/+/ask\n"
    )


def test_faulty_route_files_give_1_and_their_faults(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b.lot").write_text("DEFINE ROUTE")
    assert attempt(folder, "--topic", "weather/x/ask") == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("b.lot:1:1: error: DEFINE ROUTE cannot be read")


def test_warnings_do_not_keep_from_trying(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b.lot").write_text("DEFINE ROUTE N WITH TYPE REST_API ADD REST_API_CONFIG\nDEFINE ACTION x")
    assert attempt(folder, "--topic", "weather/x/ask") == 0
    output = capsys.readouterr()
    assert "warning: route N does nothing" in output.err
    assert "notice" not in output.err


@pytest.mark.parametrize("topic", ["a/#", "", "a\tb"])
def test_topic_that_is_not_a_topic_name_gives_2(folder: Path, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert attempt(folder, "--topic", topic) == 2
    assert capsys.readouterr().err.startswith("rest-bridge try: --topic ")


def test_payload_comes_from_a_file_byte_for_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "p").write_bytes(b"Ulm\xff")
    assert attempt(folder, "--topic", "weather/x/ask", "--payload-file", "p") == 1
    assert "the payload is not UTF-8 text" in capsys.readouterr().out
    assert attempt(folder, "--topic", "weather/x/ask", "--payload-file", "none") == 2


def test_send_sends_the_request_and_shows_the_response(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(folder, "--topic", "weather/x/ask", "--payload", "Ulm", "--send", port=port) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "200 OK" in lines
    assert "Set-Cookie: ***" in lines
    assert 'you sent "{"city": "Ulm", "key": "***"}"' in lines
    assert "\ufffd[31mred" in lines
    assert lines[-2].endswith("ms; the broker would publish this to weather/x/answer")


def test_send_masks_credentials_in_every_form_in_which_a_server_sends_them_back(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "secrets" / "api-key").write_text('a/b+"cé>?~ü' * 2)
    assert attempt(folder, "--topic", "weather/x/ask", "--payload", "Ulm", "--send", port=port, path="echo") == 0
    response = capsys.readouterr().out.partition("200 OK")[2]
    lines = [line for line in response.splitlines() if line.startswith("[")]
    assert len(lines) == 60
    assert [line for line in lines if "***" not in line] == []
    # What is left of a line are its brackets and what stood beside the secret.
    assert [line for line in lines if len(line.replace("***", "")) > len('[{"a": "Basic "}]')] == []
    assert [line for line in response.splitlines() if line.startswith("X-")] == [
        "X-Echo: ***",
        "X-Raw: ***",
        'X-Folded: "***" and ***',
    ]
    assert response.splitlines()[0].strip() == '*** *** "***"'


@pytest.mark.parametrize(("path", "size"), [("binary", 94), ("binary-utf-16", 92)])
def test_send_shows_bytes_that_are_not_text_by_their_number(
    folder: Path, port: int, path: str, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(folder, "--topic", "weather/x/ask", "--send", port=port, path=path) == 0
    assert f"({size} bytes that are not text)" in capsys.readouterr().out


def test_status_of_400_and_above_gives_1_and_names_the_failure(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(folder, "--topic", "weather/x/ask", "--send", port=port, path="missing") == 1
    output = capsys.readouterr().out
    assert "404 Not Found" in output
    assert "# fails with http_status: " in output
    assert "# the failure would go to weather/errors" in output


def test_server_that_is_not_there_gives_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attempt(folder, "--topic", "weather/x/ask", "--send", port=free_port()) == 1
    assert "# fails with connection_failed: " in capsys.readouterr().out


def test_a_failure_goes_to_the_topic_that_the_broker_would_publish_it_to(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = free_port()
    plain = ROUTE.replace('        WITH ERROR_TOPIC "weather/errors"\n', "").replace("Weather", "Plain")
    arguments = ["try", "p.lot", "--secrets-dir", "secrets", "--topic", "weather/a/ask", "--send"]
    (folder / "p.lot").write_text(plain.format(port=closed, path="x", env="#"))
    assert main(arguments) == 1
    assert "# the failure would go to weather/a/answer\n" in capsys.readouterr().out
    mapped = plain.replace("/answer", "/{{response.status}}")
    (folder / "p.lot").write_text(mapped.format(port=closed, path="x", env="#"))
    assert main(arguments) == 1
    assert "# the failure would go to no topic\n" in capsys.readouterr().out
    (folder / "p.lot").write_text(mapped.format(port=port, path="missing", env="#"))
    assert main(arguments) == 1
    assert "# the failure would go to weather/a/404\n" in capsys.readouterr().out


def test_a_result_goes_to_the_topic_that_the_response_fills(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    mapped = ROUTE.replace("/answer", "/{{response.status}}").replace("Weather", "Mapped")
    (folder / "m.lot").write_text(mapped.format(port=port, path="x", env="#"))
    arguments = ["try", "m.lot", "--secrets-dir", "secrets", "--topic", "weather/a/ask"]
    assert main(arguments) == 0
    assert "the response would go to weather/{topic.2}/{response.status}\n" in capsys.readouterr().out
    assert main([*arguments, "--send"]) == 0
    assert "the broker would publish this to weather/a/200\n" in capsys.readouterr().out
    enveloped = mapped.replace("WITH METHOD", 'WITH RESPONSE_FORMAT "envelope" WITH METHOD', 1)
    (folder / "m.lot").write_text(enveloped.format(port=port, path="x", env="#"))
    assert main([*arguments, "--send"]) == 0
    shown = capsys.readouterr().out.partition("would publish this to weather/a/200\n# as:\n")[2]
    assert json.loads(shown)["status"] == 200
    delivered = mapped.replace("WITH METHOD", 'WITH QOS "1" WITH RETAIN "true" WITH METHOD', 1)
    (folder / "m.lot").write_text(delivered.format(port=port, path="x", env="#"))
    assert main([*arguments, "--send"]) == 0
    assert "would publish this to weather/a/200, retained, with QoS 1 at most\n" in capsys.readouterr().out


def test_a_file_whose_name_is_not_utf_8_is_shown_in_any_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.lot")
    path.write_text(BASIC)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8", errors="strict"))
    assert main(["try", str(path), "--topic", "in"]) == 0
    sys.stdout.flush()
    assert "a\\udcff.lot:1)" in written.getvalue().decode()
