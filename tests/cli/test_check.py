"""`rest-bridge check`: what it reports, where, and how it ends."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from amqtt_rest_bridge.lot.grammar import parsing
from tests.cli.conftest import Run
from tests.support.route_text import BASIC, write_secrets


def test_good_files_give_0_and_a_summary(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(BASIC)
    for options in ((), ("--strict",)):
        assert run("check", *options, "a.lot").out == "1 usable route, no faults\n"


def test_files_without_faults_load_nothing_that_only_faults_or_other_commands_need(folder: Path) -> None:
    (folder / "a.lot").write_text(BASIC + """WITH WHEN '{value.json.a} > 1' WITH BODY '{"b": {value.json.b}}'""")
    (folder / "b.lot").write_text(BASIC.replace("ROUTE R", "ROUTE S"))
    program = (
        "import sys\nothers = set(sys.modules)  # what a measurement of coverage loads\n"
        "import amqtt_rest_bridge.__main__ as command, tatsu\n"
        "tatsu.compile = tatsu.tool.compile = None  # the parser is part of the package\n"
        "assert command.main(['check', 'a.lot', 'b.lot']) == 0\n"
        "print(*sorted(set(sys.modules) - others))"
    )
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    loaded = set(run.stdout.splitlines()[-1].split())
    needless = {"amqtt", "asyncio", "falcon", "jinja2", "jsonschema", "regex", "multiprocessing", "prometheus_client"}
    needless |= {"pydantic"}  # of typer, for options
    needless |= {"rapidfuzz", "requests", "rich", "sqlite3", "sqlmodel", "ssl", "urllib3", "waitress", "yaml"}
    assert loaded & needless == set()
    loaded -= {"amqtt_rest_bridge.processes", "amqtt_rest_bridge.interrupts"}  # Ctrl-C while these load
    ours = {name.split(".")[1] for name in loaded if name.startswith("amqtt_rest_bridge.")}
    floors = {"catalogue", "errors", "masking", "model", "placeholders", "sizes", "times"}
    floors |= {"addresses", "schemas", "spelling", "system", "topics"}
    assert ours - floors == {"__main__", "cli", "lot"}


def test_portable_adds_warnings_in_their_places(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(BASIC.replace("WITH METHOD", "with METOD"))
    assert run("check", "--portable", "a.lot", status=1).out.splitlines()[-5:] == [
        "a.lot:7:9: warning: with is not in capitals",
        "hint: did you mean WITH?",
        "a.lot:7:14: error: unknown setting METOD",
        "hint: did you mean METHOD?",
        "0 usable routes, 1 error, 1 warning",
    ]


def test_errors_exit_1_and_are_on_standard_output(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(BASIC.replace("METHOD", "METOD"))
    text = BASIC.replace("POST", "GET").replace("ROUTE R", "ROUTE S")
    (folder / "b.lot").write_text(f"DEFINE MODEL X\n{text}WITH BODY '{{}}'")
    output = run("check", ".", status=1)
    assert output.err == ""
    assert output.out.splitlines() == [
        "a.lot:7:14: error: unknown setting METOD",
        "hint: did you mean METHOD?",
        "b.lot:1:1: notice: DEFINE MODEL X is skipped: only routes are read here",
        "b.lot:10:11: warning: a GET with a BODY: many servers refuse or ignore it",
        "hint: write POST, or leave BODY out",
        "1 usable route, 1 error, 1 warning, 1 notice",
    ]


def test_the_name_of_a_file_cannot_forge_a_line(folder: Path, run: Run) -> None:
    (folder / "a\nb.lot:1:1: error: \x1b[31mforged.lot").write_text(BASIC.replace("METHOD", "METOD"))
    first, *others = run("check", ".", status=1).out.splitlines()
    assert first.startswith("a\\nb.lot:1:1: error: \\x1b[31mforged.lot:7:14: error: ")
    assert not [line for line in others if "forged" in line]
    assert "cannot read x\\ny: " in run("check", "x\ny", status=2).err


LOSSLESS = BASIC.replace("    ADD EVENT", '    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"\n    ADD EVENT')
KEPT = 'WITH FAILURE_PAYLOAD "true" '
LOST = "warning: without the setting failures, messages that fail for good are lost: event E of lossless route R has no"
TLS = """\
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH USE_SSL "true"
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "out"
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(LOSSLESS, LOST, id="no failure is kept"),
        pytest.param(LOSSLESS + 'WITH ERROR_TOPIC "failed"', LOST, id="without its message"),
        pytest.param(LOSSLESS + KEPT, LOST, id="without a topic"),
        pytest.param(LOSSLESS + KEPT + 'WITH ERROR_TOPIC "failed"', "", id="kept on ERROR_TOPIC"),
        pytest.param(LOSSLESS + KEPT + 'WITH DESTINATION_TOPIC "out"', "", id="kept on DESTINATION_TOPIC"),
        pytest.param(TLS, 'notice: route R has USE_SSL "true" and server events, which need', id="no certificate"),
    ],
)
def test_what_a_route_needs_of_the_settings_is_said(text: str, said: str, folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(text)
    first = run("check", "a.lot").out.splitlines()[0]
    assert first.startswith(f"a.lot:1:1: {said}") if said else first == "1 usable route, no faults"


CREDENTIALS = """\
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "https://a.test"
        WITH AUTHORIZATION "Bearer eyJhbGciOi"
    ADD EVENT E
        WITH SOURCE_TOPIC "in"
        WITH METHOD "POST"
        WITH ENDPOINT "/parcels?keyword=x&api_key=abc&token={secret.t}&sig={topic.1}"
        WITH HEADERS
            ADD X-API-Key "k1"
            ADD X-Token "{value.json.token}"
        WITH SIGNATURE_SECRET "pw"
"""


def test_literal_credentials_are_warnings_with_strict_only(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(CREDENTIALS)
    (folder / "t").write_text("s3cret")
    assert run("check", "--secrets-dir", ".", "a.lot").out == "1 usable route, no faults\n"
    why, into = "is written in the route file, where others can read it", "and the credential into the file"
    assert run("check", "--strict", "--secrets-dir", ".", "a.lot", status=1).out.splitlines() == [
        f"a.lot:3:28: warning: AUTHORIZATION {why}",
        f'hint: write "Bearer " + GET SECRET "api-token", {into} "api-token" in secrets_dir',
        f"a.lot:7:43: warning: the parameter api_key of ENDPOINT {why}",
        f'hint: write api_key={{secret.api-key}}, {into} "api-key" in secrets_dir',
        f"a.lot:9:27: warning: the header X-API-Key {why}",
        f'hint: write GET SECRET "x-api-key", {into} "x-api-key" in secrets_dir',
        f"a.lot:11:31: warning: SIGNATURE_SECRET {why}",
        f'hint: write GET SECRET "webhook-secret", {into} "webhook-secret" in secrets_dir',
        "1 usable route, 4 warnings",
    ]


def test_the_default_of_a_variable_is_a_literal_credential_in_an_address_too(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(CREDENTIALS.replace("{secret.t}", "{env.NOT_SET|abc}"))
    assert "the parameter token of ENDPOINT" in run("check", "--strict", "a.lot", status=1).out


def test_a_literal_credential_after_many_question_marks_is_found_at_once(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(
        CREDENTIALS.replace("/parcels", f"/{'?' * 100_000}token=abc&").replace("{secret.t}", "{payload}")
    )
    assert "the parameter token of ENDPOINT" in run("check", "--strict", "a.lot", status=1).out


def test_path_that_cannot_be_read_gives_2(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(BASIC)
    output = run("check", "a.lot", "none.lot", status=2)
    assert output.out == ""
    reason = f"cannot read none.lot: No such file or directory (working directory: {folder})"
    assert output.err == f"rest-bridge check: {reason}\n"


@pytest.mark.parametrize("text", ["", "// nothing\n", "DEFINE MODEL X\n"])
def test_paths_without_a_route_are_warned_of_and_with_strict_exit_1(text: str, folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(text)
    (folder / "n.lotnb").write_text("")
    output = run("check", "a.lot", "n.lotnb").out
    assert "a.lot:1:1: warning: there is no route of type REST_API here\n" in output
    assert "0 usable routes, 1 warning" in output
    assert run("check", "--strict", "a.lot", "n.lotnb", status=1).out == output


def test_a_type_that_is_almost_ours_is_one_fault(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(BASIC.replace("REST_API\n", "RESTAPI\n"))
    output = run("check", "--strict", "a.lot", status=1).out
    assert "its type is RESTAPI\n" in output and output.endswith("\n0 usable routes, 1 warning\n")


def test_route_without_define_gives_1_where_there_is_no_other(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(BASIC.removeprefix("DEFINE "))
    assert "a.lot:1:1: error: ROUTE R is skipped: DEFINE is missing before it\n" in run("check", "a.lot", status=1).out
    (folder / "b.lot").write_text(BASIC)
    assert "a.lot:1:1: warning: ROUTE R is skipped: DEFINE is missing before it\n" in run("check", ".").out


def test_version_is_printed(run: Run) -> None:
    assert run("--version").out == f"amqtt-rest-bridge {version('amqtt-rest-bridge')}\n"


@pytest.mark.parametrize("arguments", [[], ["check"], ["check", "--no-such", "x"], ["chek", "x"]])
def test_wrong_usage_gives_2(arguments: list[str], run: Run) -> None:
    assert "Usage: rest-bridge" in run(*arguments, status=2).err


@pytest.mark.parametrize("name", ["serve", "try"])
def test_the_list_of_commands_is_the_same_whichever_command_follows_help(name: str, run: Run) -> None:
    assert run("--help", name).out == run("--help").out


def test_secrets_dir_and_environment_are_used(folder: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    write_secrets(folder / "secrets")
    (folder / "a.lot").write_text(BASIC.replace('"in"', 'GET ENV "CHECKED_TOPIC" + GET SECRET "api-key"'))
    run("check", "a.lot", "--secrets-dir", "secrets", status=1)
    monkeypatch.setenv("CHECKED_TOPIC", "x/")
    run("check", "a.lot", "--secrets-dir", "secrets")
    run("check", "a.lot", status=1)


@pytest.mark.parametrize("command", [[], ["check"], ["try"], ["serve"], ["status"], ["failures"], ["retry"]])
def test_help_is_worth_reading(command: list[str], run: Run) -> None:
    text = run(*command, "--help").out
    wanted = ["exit status:", "examples:", f"rest-bridge {command[0]} "] if command else ["check", "try", "*.lot"]
    assert all(word in text for word in wanted)
    assert max(len(line) for line in text.splitlines()) <= 120


def test_reader_that_has_seen_enough_is_not_a_fault(folder: Path) -> None:
    (folder / "a.lot").write_text(BASIC + "WITH NOTHING '1'\n" * 500)
    program = [sys.executable, "-m", "amqtt_rest_bridge", "check", "a.lot"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run(program, cwd=folder, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")


def test_at_most_200_faults_are_listed_errors_first_and_the_others_are_counted(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text("DEFINE MODEL X\n" * 150 + BASIC + "        WITH METOD 1\n" * 260)
    lines = [line for line in run("check", "a.lot", status=1).out.splitlines() if not line.startswith("hint: ")]
    assert [line.split(" ")[1] for line in lines[:-2]] == ["error:"] * 200
    assert lines[-2:] == ["... and 60 errors, 150 notices more", "0 usable routes, 260 errors, 150 notices"]
    output = run("check", "--json", "a.lot", status=1)
    assert len(json.loads(output.out)) == 200
    assert output.err == "... and 60 errors, 150 notices more\n"


@pytest.mark.parametrize("part", [pytest.param(0.1, id="a tenth"), pytest.param(1, id="all", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("        WITH METOD 1\n", id="unknown settings"),
        pytest.param('        WITH METHOD "GET"\n', id="one setting again and again"),
        pytest.param('        and "so" on\n', id="text with strings"),
        pytest.param("        ADD EVENTS\n", id="unknown blocks"),
        pytest.param("        /* \n", id="comments that are never closed"),
        pytest.param("DEFINE ROUTE R WITH TYPE REST_API\n", id="routes of one line"),
    ],
)
def test_a_notebook_of_8_mb_with_one_faulty_line_repeated_is_read_in_part_only(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, line: str, part: float
) -> None:
    for most in ("MOST_UNREADABLE", "_MOST_STATEMENTS"):
        monkeypatch.setattr(parsing, most, int(part * getattr(parsing, most)))
    cells = [{"kind": 2, "language": "lot", "value": BASIC + line * int(part * 8_000_000 / len(line))}]
    (folder / "a.lotnb").write_text(json.dumps(cells))
    first = "a.lotnb#1:1:1: error: too much of this text cannot be read: it is read up to line "
    assert run("check", "a.lotnb", status=1).out.startswith(first)


def test_text_outside_of_definitions_with_comments_that_are_never_closed_is_skipped(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text("/* closed */ // a */ b\n" + "see /*\n" * 200_000 + BASIC)
    assert run("check", "a.lot").out.splitlines() == [
        "a.lot:2:1: notice: text outside of a definition is skipped", "1 usable route, 1 notice"
    ]  # fmt: skip
