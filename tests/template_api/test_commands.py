"""The command line: import, list, publish, hide, draft, and its help."""

import contextlib
import io
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from template_api.cli import main
from template_api.library import TemplateLibrary
from tests.support.forked import TEMPLATE_API, Forked
from tests.support.library_store import template
from tests.template_api.library.imports import write_lines

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its exit status, output and errors."""

    def ran(*arguments: object) -> tuple[int, str, str]:
        status = main([str(each) for each in arguments])
        return (status, *capsys.readouterr())

    return ran


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A .jsonl file of two templates; the environment names the database."""
    monkeypatch.setenv("TEMPLATE_API_DATABASE_URL", f"sqlite:///{tmp_path / 'library.db'}")
    one = template("one", title="First\x1b[31m", difficulty="beginner", published_at="2026-01-02")
    return write_lines(tmp_path / "library.jsonl", one, template("two", status="draft"))


@pytest.fixture
def imported(library: Path) -> Path:
    """The file, once it is imported."""
    assert main(["import", "--quiet", str(library)]) == 0
    return library


def test_import_prints_a_summary_and_ends_with_0(library: Path, run: Run) -> None:
    assert run("import", library) == (0, "2 added, 0 changed, 0 unchanged, 0 failed\n", "")
    assert run("import", "--quiet", library) == (0, "", "")


def test_import_reports_what_is_wrong_and_ends_with_1(library: Path, run: Run) -> None:
    library.write_text(library.read_text() + '{"slug": "three"}\n')
    wrong = f"{library}:3: error: title is required\ntemplate-api: nothing was pruned, because a template failed\n"
    assert run("import", "--prune", library) == (1, "2 added, 0 changed, 0 unchanged, 1 failed\n", wrong)


def test_several_paths_are_one_import(library: Path, tmp_path: Path, run: Run) -> None:
    other = write_lines(tmp_path / "other.jsonl", template("three"))
    assert run("import", library, other)[:2] == (0, "3 added, 0 changed, 0 unchanged, 0 failed\n")
    assert run("import", "--prune", other, library)[:2] == (0, "0 added, 0 changed, 3 unchanged, 0 failed\n")
    assert run("import", "--prune", other)[:2] == (0, "0 added, 0 changed, 1 unchanged, 0 failed, 2 hidden\n")
    assert run("import", other, other)[0] == 1, "a template comes twice"
    reason = f"template-api: {tmp_path}/none: there is no such file or folder\n"
    assert run("import", tmp_path / "none") == (1, "", reason)


def test_a_dry_run_reports_and_changes_nothing(library: Path, tmp_path: Path, run: Run) -> None:
    summary = "2 added, 0 changed, 0 unchanged, 0 failed; nothing was changed (dry run)\n"
    assert run("import", "--dry-run", library)[:2] == (0, f"added: one, two\n{summary}")
    assert [file.name for file in tmp_path.iterdir()] == ["library.jsonl"]
    run("import", "--quiet", library)
    before = run("list", "--json")
    write_lines(library, *(template(slug, title="New", tags=["x"]) for slug in ("one", "three", "four")))
    expected = "2 added, 1 changed, 0 unchanged, 0 failed, 1 hidden"
    named = "added: three, four\nchanged: one\nhidden: two\n"
    dry = f"{named}{expected}; nothing was changed (dry run)\n"
    assert run("import", "--dry-run", "--prune", library)[:2] == (0, dry)
    assert run("list", "--json") == before
    assert run("import", "--prune", library)[:2] == (0, f"{expected}\n")


def test_a_dry_run_upgrades_no_database(imported: Path, tmp_path: Path, run: Run) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "library.db")) as database:
        with database:
            database.execute("UPDATE library SET schema_version = 2")
            database.execute("DROP TABLE template_facets")
        status, printed, _ = run("import", "--dry-run", imported)
        assert (status, printed.partition(";")[0]) == (0, "0 added, 0 changed, 2 unchanged, 0 failed")
        assert database.execute("SELECT schema_version FROM library").fetchone() == (2,)


def test_the_report_of_an_import_is_json_on_request(library: Path, run: Run) -> None:
    library.write_text(library.read_text() + '{"slug": "three"}\n{"slug": "four", "title": "T", "tag": []}\n')
    status, printed, _ = run("import", "--json", "--prune", library)
    report = json.loads(printed)
    assert status == 1
    [warning] = report.pop("warnings")
    assert "tag" in warning
    [fault] = report.pop("faults")
    assert fault["where"] == f"{library}:3"
    assert "title" in fault["reason"]
    counts = {"added": 3, "changed": 0, "unchanged": 0, "failed": 1, "hidden": 0}
    templates = {"added": ["one", "two", "four"], "changed": [], "hidden": []}
    assert report == {**counts, "pruned": False, "dry_run": False, "templates": templates}


def test_progress_is_a_bar_on_a_terminal_and_what_is_wrong_is_printed(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    library.write_text('{"slug": "good", "title": "T", "tag": 1}\n{"slug": "wrong"}\n')
    screens = []
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        assert main(["import", str(library)]) == 1
        screens.append(stream.getvalue())
    assert "importing" in screens[0]
    assert "100%" in screens[0]
    assert "\x1b" not in screens[1]
    assert "importing" not in screens[1]
    for screen in screens:
        assert f"{library}:2: error: title is required" in screen
        assert f"{library}:1: warning: unknown key 'tag'" in screen


def test_list_shows_every_state_and_no_control_characters(imported: Path, run: Run) -> None:
    first, second = run("list")[1].splitlines()
    assert first.split() == ["published", "2026-01-02", "beginner", "one", "First\\x1b[31m"]
    assert second.split()[:3] == ["draft", "-", "-"]
    [listed] = [json.loads(line) for line in run("list", "--status", "draft", "--json")[1].splitlines()]
    assert (listed["slug"], listed["status"], listed["published_at"]) == ("two", "draft", None)


def test_states_are_changed_one_after_the_other(imported: Path, run: Run) -> None:
    assert run("publish", "one", "two") == (0, "one: already published\ntwo: now published\n", "")
    status, printed, wrong = run("hide", "one", "none", "two")
    assert (status, printed) == (1, "one: now hidden\ntwo: now hidden\n")
    where = f"database sqlite:///{imported.with_name('library.db')}"
    assert wrong.startswith(f"template-api: {where} holds no template with the id or slug 'none'")
    assert run("hide", "onee")[2].endswith("with the id or slug 'onee'; did you mean 'one'?\n")
    assert run("draft", "one")[0] == 0
    assert "one" in run("list", "--status", "draft")[1]


def test_templates_are_deleted_after_a_yes(imported: Path, run: Run) -> None:
    status, _, wrong = run("delete", "one")
    assert (status, "--yes deletes without a question" in wrong) == (1, True)
    status, printed, wrong = run("delete", "one", "none", "--yes")
    assert (status, printed, "'none'" in wrong) == (1, "one: deleted\n", True)
    assert " one " not in run("list")[1]


def test_an_empty_library_is_said_to_be_one(run: Run, tmp_path: Path) -> None:
    TemplateLibrary(f"sqlite:///{tmp_path}/empty.db").close()
    said = "template-api: the library is empty; fill it with template-api import PATH\n"
    assert run("list", "--database-url", f"sqlite:///{tmp_path}/empty.db") == (0, "", said)


@pytest.mark.parametrize("arguments", [["list"], ["publish", "one"], ["hide", "one"], ["draft", "one"]])
def test_a_command_on_no_library_makes_none_and_says_what_to_do(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    said = (
        f"template-api: there is no library: none.db does not exist (working directory {tmp_path}); fill one with "
        "template-api import PATH, or name another with --database-url\n"
    )
    assert run(*arguments, "--database-url", "sqlite:///none.db") == (1, "", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *(([command], []) for command in ("import", "publish", "hide", "draft", "list")),
        ([], ["template-api serve"]),
        (["serve"], ["--host", "--database-url", "--base-url", "--access-log", "TEMPLATE_API_PORT", "64 KiB"]),
    ],
)
def test_every_help_says_what_the_command_does(command: list[str], words: list[str], run: Run) -> None:
    status, text, _ = run(*command, "--help")
    assert (status, "Usage: template-api" in text) == (0, True)
    assert len(text) > 400
    assert [word for word in words if word not in text] == []
    assert "--link-fd" not in text
    assert run("--version")[1].startswith("template-api ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        *((wrong, "Usage: template-api") for wrong in ([], ["unknown"], ["publish"], ["import"])),
        pytest.param(["serve", "--log-level", "LOUD"], "Usage: template-api", id="log level"),
        pytest.param(["serve", "--port", "x"], "'--port' (env var: 'TEMPLATE_API_PORT')", id="no number"),
        pytest.param(["serve", "--port", "65536"], "65535", id="port out of range"),
        pytest.param(["serve", "--threads", "0"], "Invalid value for '--threads'", id="threads"),
        pytest.param(["serve"], "(env var: 'TEMPLATE_API_PORT')", id="variable"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], reason: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    if arguments == ["serve"]:
        monkeypatch.setenv("TEMPLATE_API_PORT", "eighty")
    status, _, wrong = run(*arguments)
    assert (status, reason in wrong) == (2, True)


def test_the_command_survives_a_reader_that_goes_away(library: Path) -> None:
    write_lines(library, *(template(f"t{number}", title="x" * 400) for number in range(300)))
    main(["import", "--quiet", str(library)])
    process = Forked(TEMPLATE_API, ["list"], Path.cwd())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process.stderr as told:
        assert told.read() == ""
    assert process.wait(60) == 1


def test_ctrl_c_during_an_import_ends_with_one_line(library: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("template_api.library.import_templates", interrupt)
    assert run("import", library) == (130, "", "template-api: interrupted\n")
