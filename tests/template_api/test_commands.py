"""The command line: import, list, publish, hide, draft, and its help."""

import contextlib
import io
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from template_api.cli import main
from template_api.library import TemplateLibrary
from tests.support.forked import TEMPLATE_API, Forked
from tests.support.library_store import template


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A .jsonl file of two templates; the environment names the database."""
    monkeypatch.setenv("TEMPLATE_API_DATABASE_URL", f"sqlite:///{tmp_path / 'library.db'}")
    file = tmp_path / "library.jsonl"
    templates = [
        template("one", title="First\x1b[31m", difficulty="beginner", published_at="2026-01-02"),
        template("two", status="draft"),
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in templates))
    return file


def test_import_prints_a_summary_and_ends_with_0(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(library)]) == 0
    assert capsys.readouterr().out == "2 added, 0 changed, 0 unchanged, 0 failed\n"
    assert main(["import", "--quiet", str(library)]) == 0
    assert capsys.readouterr().out == ""


def test_import_reports_what_is_wrong_and_ends_with_1(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library.write_text(library.read_text() + '{"slug": "three"}\n')
    assert main(["import", "--prune", str(library)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "2 added, 0 changed, 0 unchanged, 1 failed\n"
    assert printed.err == (
        f"{library}:3: error: title is required\ntemplate-api: nothing was pruned, because a template failed\n"
    )


def test_several_paths_are_one_import(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(template("three")) + "\n")
    assert main(["import", str(library), str(other)]) == 0
    assert capsys.readouterr().out == "3 added, 0 changed, 0 unchanged, 0 failed\n"
    assert main(["import", "--prune", str(other), str(library)]) == 0
    assert capsys.readouterr().out == "0 added, 0 changed, 3 unchanged, 0 failed\n"
    assert main(["import", "--prune", str(other)]) == 0
    assert capsys.readouterr().out == "0 added, 0 changed, 1 unchanged, 0 failed, 2 hidden\n"
    assert main(["import", str(other), str(other)]) == 1, "a template comes twice"


def test_a_dry_run_reports_and_changes_nothing(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "--dry-run", str(library)]) == 0
    summary = "2 added, 0 changed, 0 unchanged, 0 failed; nothing was changed (dry run)\n"
    assert capsys.readouterr().out == f"added: one, two\n{summary}"
    assert [file.name for file in tmp_path.iterdir()] == ["library.jsonl"]
    main(["import", "--quiet", str(library)])
    main(["list", "--json"])
    before = capsys.readouterr().out
    library.write_text(
        "".join(json.dumps(template(slug, title="New", tags=["x"])) + "\n" for slug in ("one", "three", "four"))
    )
    assert main(["import", "--dry-run", "--prune", str(library)]) == 0
    expected = "2 added, 1 changed, 0 unchanged, 0 failed, 1 hidden"
    named = "added: three, four\nchanged: one\nhidden: two\n"
    assert capsys.readouterr().out == f"{named}{expected}; nothing was changed (dry run)\n"
    main(["list", "--json"])
    assert capsys.readouterr().out == before
    assert main(["import", "--prune", str(library)]) == 0
    assert capsys.readouterr().out == f"{expected}\n"


def test_a_dry_run_upgrades_no_database(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "--quiet", str(library)])
    with contextlib.closing(sqlite3.connect(tmp_path / "library.db")) as database:
        with database:
            database.execute("UPDATE library SET schema_version = 2")
            database.execute("DROP TABLE template_facets")
        assert main(["import", "--dry-run", str(library)]) == 0
        assert "0 added, 0 changed, 2 unchanged, 0 failed" in capsys.readouterr().out
        assert database.execute("SELECT schema_version FROM library").fetchone() == (2,)


def test_the_report_of_an_import_is_json_on_request(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library.write_text(library.read_text() + '{"slug": "three"}\n{"slug": "four", "title": "T", "tag": []}\n')
    assert main(["import", "--json", "--prune", str(library)]) == 1
    report = json.loads(capsys.readouterr().out)
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


def test_import_of_nothing_ends_with_one_line_and_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"template-api: {tmp_path}/none: there is no such file or folder\n"


def test_list_shows_every_state_and_no_control_characters(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "--quiet", str(library)])
    assert main(["list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["published", "2026-01-02", "beginner", "one", "First\\x1b[31m"]
    assert second.split()[:3] == ["draft", "-", "-"]
    assert main(["list", "--status", "draft", "--json"]) == 0
    [listed] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (listed["slug"], listed["status"], listed["published_at"]) == ("two", "draft", None)


def test_states_are_changed_one_after_the_other(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "--quiet", str(library)])
    assert main(["publish", "one", "two"]) == 0
    assert capsys.readouterr().out == "one: already published\ntwo: now published\n"
    assert main(["hide", "one", "none", "two"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "one: now hidden\ntwo: now hidden\n"
    where = f"database sqlite:///{library.with_name('library.db')}"
    assert printed.err.startswith(f"template-api: {where} holds no template with the id or slug 'none'")
    assert main(["hide", "onee"]) == 1
    assert capsys.readouterr().err.endswith("with the id or slug 'onee'; did you mean 'one'?\n")
    assert main(["draft", "one"]) == 0
    main(["list", "--status", "draft"])
    assert "one" in capsys.readouterr().out


def test_templates_are_deleted_after_a_yes(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", "--quiet", str(library)])
    assert main(["delete", "one"]) == 1
    assert "--yes deletes without a question" in capsys.readouterr().err
    assert main(["delete", "one", "none", "--yes"]) == 1
    out, err = capsys.readouterr()
    assert out == "one: deleted\n"
    assert "'none'" in err
    main(["list"])
    assert " one " not in capsys.readouterr().out


def test_an_empty_library_is_said_to_be_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    TemplateLibrary(f"sqlite:///{tmp_path}/empty.db").close()
    assert main(["list", "--database-url", f"sqlite:///{tmp_path}/empty.db"]) == 0
    said = "template-api: the library is empty; fill it with template-api import PATH\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("arguments", [["list"], ["publish", "one"], ["hide", "one"], ["draft", "one"]])
def test_a_command_on_no_library_makes_none_and_says_what_to_do(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--database-url", "sqlite:///none.db"]) == 1
    assert capsys.readouterr().err == (
        f"template-api: there is no library: none.db does not exist (working directory {tmp_path}); fill one with "
        "template-api import PATH, or name another with --database-url\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["serve"], ["import"], ["publish"], ["hide"], ["draft"], ["list"]])
def test_every_help_says_what_the_command_does(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: template-api" in text
    assert len(text) > 400


def test_the_help_of_serve_names_every_setting_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("--host", "--port", "--database-url", "--library", "--base-url", "--access-log", "TEMPLATE_API_PORT"):
        assert word in text
    assert "64 KiB" in text
    assert "--link-fd" not in text


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["publish"], ["import"], ["serve", "--log-level", "LOUD"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: template-api" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        pytest.param(["--port", "x"], {}, "'--port' (env var: 'TEMPLATE_API_PORT')", id="no number"),
        pytest.param(["--port", "65536"], {}, "65535", id="port out of range"),
        pytest.param(["--threads", "0"], {}, "Invalid value for '--threads'", id="threads"),
        pytest.param([], {"TEMPLATE_API_PORT": "eighty"}, "(env var: 'TEMPLATE_API_PORT')", id="variable"),
    ],
)
def test_a_wrong_number_is_named_with_its_option_and_variable(
    arguments: list[str],
    environment: dict[str, str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_the_command_survives_a_reader_that_goes_away(library: Path) -> None:
    templates = "".join(f'{{"slug": "t{number}", "title": "{"x" * 400}"}}\n' for number in range(300))
    library.write_text(templates)
    main(["import", "--quiet", str(library)])
    process = Forked(TEMPLATE_API, ["list"], Path.cwd())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process.stderr as told:
        assert told.read() == ""
    assert process.wait(60) == 1


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("template-api ")


def test_ctrl_c_during_an_import_ends_with_one_line(
    library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("template_api.library.import_templates", interrupt)
    assert main(["import", str(library)]) == 130
    assert capsys.readouterr().err == "template-api: interrupted\n"
