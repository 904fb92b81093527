"""The files of an editor: what is wrong with them is what `check` says, however their texts came to be."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqtt_rest_bridge.errors import FaultCode, Severity
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.parsed_texts import ParsedText, parse_text
from amqtt_rest_bridge.lot.sources import SUFFIXES, sources_of
from amqtt_rest_bridge.tools.editor.project import MAX_TEXT, Finding, Project
from tests.lot.test_fuzz import mutations
from tests.support.route_text import BASIC, CASES, ENVIRONMENT, write_secrets

FILES = {
    path.name: path.read_bytes().decode("utf-8-sig", "replace")
    for kind in ("valid", "invalid")
    for path in sorted((CASES / kind).iterdir())
    if path.suffix in SUFFIXES
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(ENVIRONMENT, write_secrets(tmp_path_factory.mktemp("secrets")))


def put(project: Project, text: str, path: str = "/a.lot") -> list[Finding]:
    """Change the text of a file, and return what is wrong with it."""
    project.put(path, text)
    return project.findings([path])[path]


def check_project(project: Project, environment: Environment, path: str, text: str) -> None:
    """Change the text of a file, and compare what is wrong with what `check` says."""
    findings = put(project, text, path)
    sources = list(sources_of(path, text.encode("utf-8", "replace")))
    assert [(one.severity, one.message, one.replacement) for one in findings] == [
        (
            Severity.NOTICE if one.code is FaultCode.UNAVAILABLE else one.severity,
            f"{one.message}\nhint: {one.hint}" if one.hint else one.message,
            one.replacement,
        )
        for one in load(sources, environment).faults
    ]
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for finding in findings:
        assert finding.start <= finding.end
        assert finding.end.line < len(lines)


@pytest.mark.parametrize("number", [pytest.param(6, id="some"), pytest.param(40, id="all", marks=pytest.mark.long)])
def test_what_is_shown_is_what_check_says(
    number: int, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES)
    texts = list(FILES.items())
    random.Random(27).shuffle(texts)
    for name, text in texts[:number]:
        check_project(Project(environment), environment, f"/{name}", text)
    routes = [text for name, text in texts if name.endswith(".lot") and "ROUTE" in text][:number]
    project = Project(environment)
    check_project(project, environment, "/all.lot", "\n".join(routes))
    check_project(project, environment, "/all.lot", "\n".join([*routes[number // 2 :], *routes[: number // 2]]))


EDITS = ["", "\n", '"', "'", "/*", "*/", "\nDEFINE ROUTE S WITH TYPE REST_API\n", "//", "DEFINE", "*/*", " ", "\u00e9"]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_text_that_is_typed_is_read_as_one_that_is_opened(environment: Environment, data: st.DataObject) -> None:
    text = "\n".join(BASIC.replace("ROUTE R", f"ROUTE {name}") for name in "RST")
    project = Project(environment)
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 9)))
        text = text[:start] + data.draw(st.sampled_from(EDITS)) + text[end:]
        check_project(project, environment, "/a.lot", text)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=mutations())
def test_a_damaged_file_is_shown_as_check_says(environment: Environment, case: tuple[str, bytes]) -> None:
    name, content = case
    check_project(Project(environment), environment, f"/{name}", content.decode("utf-8", "replace").lstrip("\ufeff"))


def test_only_the_part_that_has_changed_is_read_again(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = [BASIC.replace("ROUTE R", f"ROUTE R{number}") for number in range(9)]
    project = Project(environment)
    project.put("/a.lot", "".join(routes))
    read: list[str] = []

    def noted(text: str) -> ParsedText:
        read.append(text)
        return parse_text(text)

    monkeypatch.setattr("amqtt_rest_bridge.tools.editor.project.parse_text", noted)
    text = "// moved\n" + "".join(routes).replace("ROUTE R4", "ROUTE Changed")
    project.put("/a.lot", text)
    assert read == ["// moved\n", routes[4].replace("ROUTE R4", "ROUTE Changed")]
    steps = project.put_in_steps("/a.lot", text.replace("POST", "PUT"))
    assert [next(steps) for _ in range(4)] == [None] * 4
    steps.close()  # another key is pressed
    assert project.files["/a.lot"].text == text
    read.clear()
    project.put("/a.lot", text.replace("POST", "PUT"))
    assert len(read) == 9 - 4


def test_routes_of_one_folder_are_compared_and_places_are_in_the_right_file(environment: Environment) -> None:
    project = Project(environment)
    for path in ("/a/one.lot", "/a/two.lot", "/b/three.lot"):
        project.put(path, "// first\n" + BASIC)
    found = project.findings(["/a/one.lot", "/a/two.lot", "/b/three.lot"])
    assert {path: [one.message for one in findings] for path, findings in found.items()} == {
        "/a/one.lot": [],
        "/a/two.lot": ["there are two routes R\nhint: the first is in /a/one.lot:2:1"],
        "/b/three.lot": [],
    }
    assert found["/a/two.lot"][0].start == (1, 0)
    project.remove("/a/one.lot")
    assert project.findings(["/a/two.lot"]) == {"/a/two.lot": []}


def test_faults_of_a_notebook_are_in_its_json(environment: Environment) -> None:
    text = json.dumps([{"language": "lot", "value": BASIC.replace("METHOD", "METOD")}])
    (finding,) = put(Project(environment), text, "/a.lotnb")
    assert (finding.start.line, text[finding.start.column : finding.end.column]) == (0, "METOD")


def path_has_question(name: str) -> bool:
    said = (CASES / "invalid" / name).with_suffix(".txt")
    return said.exists() and "did you mean" in said.read_text()


@pytest.mark.parametrize("step", [pytest.param(6, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)])
def test_every_replacement_mends_its_fault(
    step: int, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES)
    mended: set[tuple[str, str]] = set()
    for name in [name for name in FILES if name.endswith(".lot") and path_has_question(name)][::step]:
        text, project = FILES[name], Project(environment)
        before = put(project, text)
        file = project.files["/a.lot"]
        for finding in before:
            if finding.replacement is None or (finding.code, finding.replacement) in mended:
                continue
            start, end = (file.lines.offset(*place) for place in (finding.start, finding.end))
            after = put(project, text[:start] + finding.replacement + text[end:])
            assert (finding.start, finding.message) not in [(one.start, one.message) for one in after], (name, finding)
            mended.add((finding.code, finding.replacement))
    assert len(mended) > 25 / step


def test_a_large_file_is_not_read_and_half_a_surrogate_pair_is_text(environment: Environment) -> None:
    project = Project(environment)
    (finding,) = put(project, BASIC + " " * MAX_TEXT)
    assert (finding.severity, "use rest-bridge check" in finding.message) == (Severity.WARNING, True)
    assert put(project, BASIC + "// \ud83d") == []


def test_a_secret_that_this_machine_lacks_is_a_remark(tmp_path: Path) -> None:
    project = Project(Environment({}, tmp_path))
    (finding,) = put(project, BASIC.replace("http:", "https:") + '        WITH BODY GET SECRET "later"\n')
    assert finding.severity is Severity.NOTICE
    (tmp_path / "later").write_text("{}")
    project.reload(["/a.lot"])
    assert project.findings(["/a.lot"])["/a.lot"] == []
