"""What `rest-bridge check --format` prints; the schema of SARIF is that of OASIS, without its descriptions."""

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.cli import fault_formats
from amqtt_rest_bridge.errors import Fault, FaultCode, Position, Severity
from tests.support.forked import REST_BRIDGE, run
from tests.support.route_text import BASIC
from tests.support.terminal import Terminal

HERE = Path(__file__).parent
WRONG = BASIC.replace('METHOD "POST"', 'METHOD "PSOT"') + "        WITH REQUEST_TIMOUT 3\n"


def fault(message: str = "wrong", hint: str | None = None, **more: Any) -> Fault:
    given: dict[str, Any] = {"path": "a.lot", "position": Position(1, 6), "end": Position(1, 9)} | more
    return Fault(given.pop("path"), given.pop("position"), Severity.ERROR, message, hint, **given)


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what `check` prints of two files and a notebook with faults, in a form."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b#.lot").write_text("DEFINE MODEL X\n" + WRONG)
    cells = [{"language": "lot", "value": WRONG.replace("ROUTE R", "ROUTE S")}]
    (tmp_path / "n.lotnb").write_text(json.dumps(cells))

    def run(*options: str) -> str:
        assert main(["check", ".", *options]) == 1
        output = capsys.readouterr()
        assert output.err == ""
        return output.out

    return run


def test_json_holds_code_end_and_replacement(printed: Any) -> None:
    objects = json.loads(printed("--json"))
    assert objects == json.loads(printed("--format", "json"))
    assert [objects[0][name] for name in ("severity", "code", "hint")] == ["notice", "skipped", None]
    assert objects[1] == {
        "path": "a b#.lot",
        "uri": "a%20b%23.lot",
        "line": 8,
        "column": 21,
        "end_line": 8,
        "end_column": 27,
        "severity": "error",
        "code": "invalid-value",
        "message": 'METHOD must be GET, POST, PUT, DELETE or PATCH, not "PSOT"',
        "hint": "did you mean POST?",
        "replacement": '"POST"',
    }


def test_sarif_is_what_its_schema_says(printed: Any) -> None:
    log = json.loads(printed("--format", "sarif"))
    schema = json.loads((HERE / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(log, schema)
    (run,) = log["runs"]
    for result in run["results"]:
        rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule == {"id": result["ruleId"], "shortDescription": {"text": FaultCode(result["ruleId"]).meaning}}
    skipped, method, *_, of_cell = run["results"]
    assert (skipped["level"], method["level"]) == ("note", "error")
    location = method["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "a%20b%23.lot"
    assert location["region"] == {"startLine": 8, "startColumn": 21, "endLine": 8, "endColumn": 27}
    (change,) = method["fixes"][0]["artifactChanges"]
    assert change["replacements"][0] == {"deletedRegion": location["region"], "insertedContent": {"text": '"POST"'}}
    assert of_cell["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "n.lotnb"
    assert of_cell["message"]["text"].startswith("cell 1, line ")
    assert "fixes" not in of_cell


def test_github_gets_one_annotation_a_line(printed: Any) -> None:
    first, second, *others = printed("--format", "github").splitlines()
    assert first.startswith("::notice file=a b#.lot,line=1,endLine=1,col=1,endColumn=15,title=skipped::DEFINE MODEL X ")
    assert second.startswith("::error file=a b#.lot,line=8,endLine=8,col=21,endColumn=27,title=invalid-value::METHOD ")
    assert second.endswith(' not "PSOT"%0Ahint: did you mean POST?')
    assert all(re.match(r"::(error|warning|notice) file=[^:,]+,line=\d+,", line) for line in others)
    assert others[-1].startswith("::error file=n.lotnb,line=1,endLine=1,col=1,endColumn=1,")


def test_no_text_ends_an_annotation_or_begins_another_one() -> None:
    line = fault_formats.github_of(fault("50% a\r\n::error::b", path="a,b:c%\n.lot"))
    assert line == (
        "::error file=a%2Cb%3Ac%25%0A.lot,line=1,endLine=1,col=6,endColumn=9,title=configuration::"
        "50%25 a%0D%0A::error::b"
    )


@pytest.mark.parametrize(
    ("text", "place", "end", "columns", "excerpt"),
    [
        pytest.param("WITH ABC 1", 6, 9, 80, ["  WITH ABC 1", "       ^^^"], id="word"),
        pytest.param("\tWITH ABC", 7, 10, 80, ["      WITH ABC", "           ^^^"], id="tab"),
        pytest.param("日本 ABC", 4, 7, 80, ["  日本 ABC", "       ^^^"], id="wide"),
        pytest.param("e\u0301 ABC", 4, 7, 80, ["  e\u0301 ABC", "    ^^^"], id="combining"),
        pytest.param("WITH 日本 1", 6, 8, 80, ["  WITH 日本 1", "       ^^^^"], id="wide marked"),
        pytest.param("a\x1b[2Jb ABC", 8, 11, 80, ["  a\ufffd[2Jb ABC", "         ^^^"], id="control"),
        pytest.param("WITH ABC 1", 6, 6, 80, ["  WITH ABC 1", "       ^"], id="no end"),
        pytest.param(f"{'x' * 90}A{'y' * 90}", 91, 92, 30, [f"  {'x' * 10}A{'y' * 17}", f"{' ' * 12}^"], id="cut"),
        pytest.param('WITH PASSWORD "abc', 15, 19, 80, [], id="secret"),
        pytest.param("ADD X-Api-Key abc {", 19, 20, 80, [], id="credential"),
        pytest.param("", 1, 1, 80, [], id="empty"),
        pytest.param("x" * 4_000, 1, 2, 5, ["  xxx", "  ^"], id="4,000 characters"),
        pytest.param("x" * 4_001, 1, 2, 5, [], id="more than 4,000 characters"),
    ],
)
def test_an_excerpt_has_carets_below_what_is_wrong(
    text: str, place: int, end: int, columns: int, excerpt: list[str]
) -> None:
    one = fault(hint="write X", position=Position(2, place), end=Position(2, end))
    first, *lines, hint = fault_formats.text_of(one, {"a.lot": f"one\n{text}\nthree"}, columns).split("\n")
    assert lines == excerpt
    assert (first, hint) == (f"a.lot:2:{place}: error: wrong", "hint: write X")


def test_an_excerpt_of_several_lines_marks_the_first_to_its_end() -> None:
    one = fault(position=Position(1, 3), end=Position(2, 2))
    assert fault_formats.text_of(one, {"a.lot": "a bcd\ne"}, 80).split("\n")[1:] == ["  a bcd", "    ^^^"]


@pytest.mark.parametrize(
    ("name", "path", "uri", "file"),
    [
        pytest.param(
            b"\xff%,:\n.lot", "\\udcff%,:\n.lot", "%FF%25%2C%3A%0A.lot", "\\udcff%25%2C%3A%0A.lot", id="bytes"
        ),
        pytest.param(b"a\\udcff.lot", "a\\udcff.lot", "a%5Cudcff.lot", "a\\udcff.lot", id="backslash"),
        pytest.param(
            "\u00e4\u2028.lot".encode(), *("\u00e4\u2028.lot", "%C3%A4%E2%80%A8.lot"), "\u00e4\u2028.lot", id="wide"
        ),
    ],
)
def test_what_names_a_file_is_utf_8_and_names_no_other(
    name: bytes, path: str, uri: str, file: str, tmp_path: Path
) -> None:
    (tmp_path / os.fsdecode(name)).write_text(WRONG)

    def printed(form: str) -> str:
        ended = run(REST_BRIDGE, ["check", os.fsdecode(name), "--format", form], tmp_path)
        assert (ended.returncode, ended.stderr) == (1, "")
        return ended.stdout

    found = json.loads(printed("json"))[0]
    assert (found["path"], found["uri"]) == (path, uri)
    result = json.loads(printed("sarif"))["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
    assert printed("github").startswith(f"::error file={file},line=")


def test_excerpts_are_on_a_terminal_only(printed: Any, tmp_path: Path) -> None:
    assert "^" not in printed()
    terminal = Terminal("check", "n.lotnb", cwd=tmp_path)
    terminal.expect(r'METHOD "PSOT"\s+\^{6}\s+hint: did you mean POST\?')
    assert terminal.end() == 1


def test_every_code_has_a_meaning() -> None:
    assert all(code.meaning for code in FaultCode)
