"""The index on disk: what a commit makes visible, what a kill leaves, who may write, what damage is noticed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from template_api.errors import DamagedIndexError
from template_api.ranking import Document, Ranking, SearchIndex

PUMP = Document("pump", "Pump control", "", "", "Starts the pump.", "", changed=2)
VALVE = Document("valve", "Valve control", "", "", "Opens the valve.", "", changed=3)
METER = Document("meter", "Flow meter", "", "", "Reads the flow.", "", changed=4)


def found(ranking: Ranking, text: str) -> set[str]:
    return {hit.key for hit in ranking.search(text, 10).hits}


@pytest.fixture(params=["memory", "disk"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SearchIndex]:
    """An index of three documents."""
    index = SearchIndex(None if request.param == "memory" else tmp_path / "index")
    assert index.lock()
    for document in (PUMP, VALVE, METER):
        index.put(document)
    index.commit("first")
    yield index
    index.close()


def test_what_is_put_counts_from_the_commit_on(index: SearchIndex) -> None:
    before = index.ranking
    index.put(Document("fan", "Fan control", "", "", "Turns the fan.", ""))
    assert found(index.ranking, "fan") == set()
    index.commit("second")
    assert found(index.ranking, "control") == {"fan", "pump", "valve"}
    assert found(before, "control") == {"pump", "valve"}, "a ranking stays as it was"


def test_a_document_that_is_put_again_is_found_by_its_new_words_alone(index: SearchIndex) -> None:
    index.put(replace(VALVE, title="Tap control", content="Opens the tap."))
    index.commit("second")
    assert found(index.ranking, "tap") == {"valve"}
    assert found(index.ranking, "valve x") == set()


def test_a_document_that_is_removed_is_gone_and_may_come_back(index: SearchIndex) -> None:
    index.remove("valve")
    index.commit("second")
    assert found(index.ranking, "control") == {"pump"}
    assert index.ranking.keys() == {"pump", "meter"}
    index.put(replace(VALVE, content="Faucet."))
    index.commit("third")
    assert found(index.ranking, "faucet") == {"valve"}


def test_all_documents_are_removed_at_once(index: SearchIndex) -> None:
    index.clear()
    index.put(PUMP)
    index.commit("second")
    assert index.ranking.keys() == {"pump"}
    assert found(index.ranking, "meter") == set()


def test_new_words_are_corrected_and_completed(index: SearchIndex) -> None:
    index.put(Document("fan", "Ventilator", "", "", "", ""))
    index.commit("second")
    assert found(index.ranking, "ventlator x") == {"fan"}
    assert found(index.ranking, "venti") == {"fan"}


def test_the_state_is_committed_with_the_documents(index: SearchIndex) -> None:
    assert index.ranking.state == "first"
    index.put(replace(PUMP, changed=9))
    index.commit("second")
    assert index.ranking.state == "second"
    assert index.ranking.fingerprint() == (3, 9 + 3 + 4)
    assert found(index.ranking, "first second state") == set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an index with three documents that no process has open."""
    index = SearchIndex(tmp_path / "index")
    assert index.lock()
    for document in (PUMP, VALVE, METER):
        index.put(document)
    index.commit("first")
    index.close()
    return tmp_path / "index"


def test_an_index_is_opened_as_it_was_left(folder: Path) -> None:
    ranking = SearchIndex(folder).ranking
    assert ranking.state == "first"
    assert found(ranking, "contrl x") == {"pump", "valve"}


def test_one_writes_and_others_see_it_when_they_look(folder: Path) -> None:
    writing, reading = SearchIndex(folder), SearchIndex(folder)
    assert writing.lock()
    assert not reading.lock()
    writing.put(Document("fan", "Ventilator", "", "", "", ""))
    writing.commit("second")
    assert found(reading.ranking, "ventilator") == set()
    reading.reload()
    assert found(reading.ranking, "ventlator x") == {"fan"}
    writing.close()
    assert reading.lock()
    reading.close()


KILLED = """
import os, sys
from pathlib import Path
from template_api.ranking import Document, SearchIndex
index = SearchIndex(Path(sys.argv[1]))
assert index.lock()
for number in range(100_000):
    index.put(Document(str(number), "new words", "", "", "more of them " * 50, ""))
    if number == 30:
        index.commit("second")
    if number == int(sys.argv[2]):
        print("now", flush=True)
"""


@pytest.mark.parametrize("number", [20, 200])
def test_a_process_that_is_killed_leaves_its_last_commit_and_not_its_lock(folder: Path, number: int) -> None:
    command = [sys.executable, "-c", KILLED, str(folder), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    index = SearchIndex(folder)
    assert index.ranking.state == ("first" if number < 30 else "second")
    assert len(index.ranking.keys()) == (3 if number < 30 else 34)
    assert index.lock()
    index.put(Document("fan", "Ventilator", "", "", "", ""))
    index.commit("third")
    assert found(index.ranking, "ventilator") == {"fan"}
    index.close()


def largest(folder: Path) -> Path:
    return max(folder.glob("*.store"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("suffix", ["term", "idx", "store", "fast", "fieldnorm"])
@pytest.mark.parametrize("damage", ["overwritten", "cut off", "empty", "missing"])
def test_a_damaged_file_is_noticed(folder: Path, suffix: str, damage: str) -> None:
    for file in folder.glob(f"*.{suffix}"):
        content = file.read_bytes()
        changed = {"overwritten": b"?" + content[1:], "cut off": content[: len(content) // 2], "empty": b""}
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(changed[damage])
    with pytest.raises(DamagedIndexError, match="cannot be used"):
        SearchIndex(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff" * 100])
def test_a_damaged_list_of_files_is_noticed(folder: Path, content: bytes) -> None:
    (folder / "meta.json").write_bytes(content)
    with pytest.raises(DamagedIndexError, match="cannot be used"):
        SearchIndex(folder)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DamagedIndexError, match="cannot be used"):
        SearchIndex(tmp_path / "file" / "index")


def test_a_deleted_folder_is_noticed(folder: Path) -> None:
    index = SearchIndex(folder)
    assert index.is_intact()
    folder.rename(folder.with_name("elsewhere"))
    assert not index.is_intact()
    SearchIndex(folder)
    assert not index.is_intact(), "it is another folder"
    assert found(index.ranking, "pump") == {"pump"}, "what was open is searched all the same"
