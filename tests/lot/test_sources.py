import json
import os
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.sources import read


def paths(folder: Path, *names: str | Path) -> list[str]:
    return [os.path.relpath(source.path, folder) for source in read([folder / name for name in names])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("b.lot", "a.lot", "deep/er/c.lot", "deep/n.lotnb", "notes.txt", ".hidden.lot", ".git/x.lot", "d.lot/e.lot")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[]" if name.endswith("nb") else f"// {name}")
    return tmp_path


def test_folder_is_searched_at_any_depth_in_sorted_order(folder: Path) -> None:
    cell = {"kind": 2, "language": "lot", "value": "x"}
    (folder / "deep/n.lotnb").write_text(json.dumps([{"kind": 1}, cell, cell]))
    found = ["a.lot", "b.lot", "d.lot/e.lot", "deep/er/c.lot", "deep/n.lotnb#2", "deep/n.lotnb#3"]
    assert paths(folder, ".") == found


def test_suffixes_count_in_any_case(folder: Path) -> None:
    cell = {"kind": 2, "language": "lot", "value": "x"}
    (folder / "deep/B.Lotnb").write_text(json.dumps([cell]))
    (folder / "Z.LOT").write_text("// Z")
    assert paths(folder, ".") == ["Z.LOT", "a.lot", "b.lot", "d.lot/e.lot", "deep/B.Lotnb#1", "deep/er/c.lot"]
    assert paths(folder, "deep/B.Lotnb", "Z.LOT") == ["deep/B.Lotnb#1", "Z.LOT"]


@pytest.mark.parametrize("content", [b"", b" \r\n\t", b"\xef\xbb\xbf", b"[]"], ids=["nothing", "space", "mark", "[]"])
def test_empty_notebook_has_no_cells(folder: Path, content: bytes) -> None:
    (folder / "n.lotnb").write_bytes(content)
    assert read([folder / "n.lotnb"]) == ()


def test_file_named_twice_is_read_once(folder: Path) -> None:
    (folder / "link.lot").symlink_to(folder / "a.lot")
    assert paths(folder, "b.lot", "a.lot", "b.lot", "link.lot", "deep/../a.lot") == ["b.lot", "a.lot"]


def test_file_is_read_whatever_it_is_called(folder: Path) -> None:
    assert paths(folder, "notes.txt", ".hidden.lot") == ["notes.txt", ".hidden.lot"]


def test_folder_without_route_files_is_warned_of(folder: Path) -> None:
    (folder / "empty").mkdir()
    (source,) = read([folder / "empty"])
    assert [str(fault) for fault in source.faults] == [
        f"{folder}/empty:1:1: warning: this folder holds no *.lot or *.lotnb file"
    ]


def test_all_paths_that_cannot_be_read_are_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read([folder / "a.lot", folder / "none.lot", folder / "nor-this"])
    assert str(raised.value) == (
        f"cannot read {folder}/none.lot: No such file or directory; "
        f"cannot read {folder}/nor-this: No such file or directory"
    )


@pytest.mark.parametrize(
    ("path", "target", "reason"),
    [
        pytest.param("none.lot", None, r"No such file or directory \(working directory: .*\)", id="missing"),
        pytest.param("a" * 300, None, "File name too long", id="too long"),
        pytest.param("a\0b", None, "embedded null byte", id="NUL"),
        pytest.param("loop.lot", "loop.lot", "Too many levels of symbolic links", id="link in a circle"),
        pytest.param("far.lot", "a" * 300, "File name too long", id="link that cannot be followed"),
        pytest.param(
            "lost.lot", "gone.lot", r"No such file or directory; it is a link to gone\.lot .*", id="link to nowhere"
        ),
    ],
)
def test_a_path_that_cannot_be_read_is_named_with_the_reason(
    path: str, target: str | None, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if target is not None:
        Path(path).symlink_to(target)
    with pytest.raises(ConfigurationError, match=f"^cannot read .*: {reason}$"):
        read([path])


def test_a_link_in_a_circle_is_not_a_route_file_of_its_folder_and_one_that_cannot_be_followed_is(folder: Path) -> None:
    (folder / "loop.lot").symlink_to("loop.lot")
    assert "loop.lot" not in paths(folder, ".")
    (folder / "far.lot").symlink_to("a" * 300)
    with pytest.raises(ConfigurationError, match=f"^cannot read {folder}/far.lot: File name too long$"):
        read([folder])


def test_folder_in_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def refuse(path: str) -> object:
        if path == str(folder / "deep"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ConfigurationError, match=f"^cannot read {folder}/deep: Permission denied$"):
        read([folder])


def test_cell_with_half_a_surrogate_pair_is_a_fault_at_its_place(folder: Path) -> None:
    cell = {"kind": 2, "language": "lot", "value": "DEFINE\n \ud800"}
    (folder / "n.lotnb").write_text(json.dumps([cell]))
    (source,) = read([folder / "n.lotnb"])
    assert source.text == ""
    assert str(source.faults[0]).startswith(f"{folder}/n.lotnb#1:2:2: error: the cell holds half a surrogate pair")


def test_file_of_more_than_sixteen_megabytes_is_a_fault(folder: Path) -> None:
    os.truncate(folder / "a.lot", 16 * 2**20 + 1)
    (source,) = read([folder / "a.lot"])
    assert source.faults[0].message == "the file is larger than 16 MiB"


def test_byte_order_mark_is_not_part_of_the_text(folder: Path) -> None:
    (folder / "a.lot").write_bytes(b"\xef\xbb\xbfDEFINE")
    assert read([folder / "a.lot"])[0].text == "DEFINE"


def test_relative_path_stays_as_it_was_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert [source.path for source in read(["deep", "a.lot"])] == ["deep/er/c.lot", "a.lot"]


def test_notebook_nested_too_deep_is_a_fault(folder: Path) -> None:
    (folder / "n.lotnb").write_text("[" * 200_000)  # Python 3.13 reads 5,000
    (source,) = read([folder / "n.lotnb"])
    assert str(source.faults[0]) == f"{folder}/n.lotnb:1:1: error: the notebook is not JSON that can be read"
