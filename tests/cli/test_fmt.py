"""`rest-bridge fmt`: what it writes, what it leaves alone, what it says."""

import json
import os
from pathlib import Path

import pytest

from amqtt_rest_bridge.tools.editor.places import cells_of
from tests.cli.conftest import Run
from tests.support.route_text import BASIC

FLAT = " ".join(BASIC.split()) + "\n"


def test_files_are_laid_out_and_named(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(FLAT)
    (folder / "b.lot").write_text(BASIC)
    assert run("fmt", ".").out == "formatted a.lot\n1 file formatted, 1 unchanged\n"
    assert (folder / "a.lot").read_text() == BASIC == (folder / "b.lot").read_text()
    assert run("fmt", "--check", ".").out == "0 files would be formatted, 2 unchanged\n"


def test_check_writes_nothing_and_exits_1(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(FLAT)
    assert (
        run("fmt", "--check", "a.lot", status=1).out == "would format a.lot\n1 file would be formatted, 0 unchanged\n"
    )
    assert (folder / "a.lot").read_text() == FLAT


def test_a_file_with_an_error_is_left_as_it_is_and_the_error_reported(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(wrong := FLAT.replace("METHOD", "METOD"))
    (folder / "b.lot").write_bytes(b"\xff")
    (folder / "c.lot").write_text(FLAT)
    (folder / "empty").mkdir()
    assert run("fmt", "a.lot", "b.lot", "c.lot", "empty", status=1).out.splitlines() == [
        "formatted c.lot",
        f"a.lot:1:{wrong.index('METOD') + 1}: error: unknown setting METOD",
        "hint: did you mean METHOD?",
        "b.lot:1:1: error: the file is not UTF-8 text",
        "hint: save it as UTF-8",
        "empty:1:1: warning: this folder holds no *.lot or *.lotnb file",
        "1 file formatted, 0 unchanged, 2 errors",
    ]
    assert (folder / "a.lot").read_text() == wrong


def test_what_is_laid_out_is_portable(folder: Path, run: Run) -> None:
    more = "with body get env 'HOME' with headers add Event-Name 'E'"
    (folder / "a.lot").write_text(f"\t{FLAT.lower().rstrip()} {more}\n")
    assert "not portable" in run("check", "--portable", "a.lot").out
    run("fmt", "a.lot")
    said = run("check", "--portable", "a.lot").out
    assert "not portable" not in said
    assert "capitals" not in said


def test_a_missing_secret_keeps_no_file_from_being_laid_out(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(FLAT.rstrip() + ' WITH BODY GET SECRET "nowhere"')
    run("fmt", "a.lot")
    assert (folder / "a.lot").read_text() == f'{BASIC}        WITH BODY GET SECRET "nowhere"\n'


def test_of_a_notebook_only_the_cells_of_the_language_change(folder: Path, run: Run) -> None:
    written = (
        '{ "cells" : [ {"kind":1, "language":"markdown","value":"# \\u00e9 define  route"},\n'
        '  {"language": "LOT", "value": %s, "other": [1e400, {}] , "kind" : 2}, {"language":"text","value":7}, 3\n]}'
    )
    (folder / "a.lotnb").write_text(written % json.dumps(FLAT.strip() + " // \u00e9\U0001f600"))
    run("fmt", "a.lotnb")
    expected = json.dumps(BASIC.rstrip() + " // \u00e9\U0001f600")
    assert (folder / "a.lotnb").read_text() == written % expected
    run("fmt", "--check", "a.lotnb")


def test_places_in_a_cell_are_places_in_its_json() -> None:
    text = json.dumps([{"language": "lot", "value": 'a\n"\U0001f600\u00e9/x'}]).replace("/", "\\/")
    (cell,) = cells_of(text)
    for index, char in enumerate(cell.text):
        offset = cell.offset(index)
        assert json.loads(f'"{text[offset : cell.offset(index + 1)]}"') == char
        assert cell.index(offset) == index
    assert cell.offset(len(cell.text)) == text.rindex('"')
    assert (cell.index(0), cell.index(len(text))) == (None, None)


def test_mode_links_line_breaks_and_byte_order_marks_are_kept(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_bytes(b"\xef\xbb\xbf" + FLAT.replace(" ADD", "\r\nADD").encode())
    (folder / "a.lot").chmod(0o640)
    (folder / "link.lot").symlink_to("a.lot")
    run("fmt", "link.lot")
    assert (folder / "link.lot").is_symlink()
    assert (folder / "a.lot").read_bytes() == b"\xef\xbb\xbf" + BASIC.replace("\n", "\r\n").encode()
    assert (folder / "a.lot").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in folder.iterdir()) == ["a.lot", "link.lot"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_stays_theirs(folder: Path, run: Run) -> None:
    (folder / "a.lot").write_text(FLAT)
    os.chown(folder / "a.lot", 12345, 23456)
    run("fmt", "a.lot")
    after = (folder / "a.lot").stat()
    assert (after.st_uid, after.st_gid) == (12345, 23456)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        pytest.param(
            OSError(28, "No space left on device"), 2, "cannot write a.lot: No space left on device\n", id="full"
        ),
        pytest.param(KeyboardInterrupt(), 130, "", id="Ctrl-C"),
    ],
)
def test_a_file_that_cannot_be_written_stays_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, run: Run, error: BaseException, status: int, said: str
) -> None:
    def fail(_: int) -> None:
        raise error

    (folder / "a.lot").write_text(FLAT)
    monkeypatch.setattr("os.fsync", fail)
    assert said in run("fmt", "a.lot", status=status).err
    assert (folder / "a.lot").read_text() == FLAT
    assert [path.name for path in folder.iterdir()] == ["a.lot"]


def test_a_file_that_is_saved_meanwhile_is_not_overwritten(
    folder: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (folder / "a.lot").write_text(FLAT)
    monkeypatch.setattr("os.fsync", lambda _: (folder / "a.lot").write_text("// saved"))
    assert run("fmt", "a.lot", status=2).err == "rest-bridge fmt: a.lot was changed meanwhile: it is left as it is\n"
    assert (folder / "a.lot").read_text() == "// saved"
