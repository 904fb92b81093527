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
from template_api.ranking import Document, KeptIndex, Ranking, SearchIndex

PUMP = Document("pump", "Pump control", "", "", "Starts the pump.", "", changed=2)
VALVE = Document("valve", "Valve control", "", "", "Opens the valve.", "", changed=3)
METER = Document("meter", "Flow meter", "", "", "Reads the flow.", "", changed=4)


def found(ranking: Ranking, text: str) -> set[str]:
    return {hit.key for hit in ranking.search(text, 10).hits}


@pytest.fixture(params=["memory", "disk"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SearchIndex]:
    """An index of three documents."""
    index = SearchIndex(None if request.param == "memory" else tmp_path / "index")
    for document in (PUMP, VALVE, METER):
        index.put(document)
    index.commit("first")
    yield index


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
    assert found(index.ranking, "pump meter") == {"pump", "meter"}
    index.put(replace(VALVE, content="Faucet."))
    index.commit("third")
    assert found(index.ranking, "faucet") == {"valve"}


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
def kept(tmp_path: Path) -> Path:
    """The folder of a kept index with three documents that no process has open."""
    kept = KeptIndex(tmp_path / "kept")
    assert kept.lock()
    index = kept.begin()
    for document in (PUMP, VALVE, METER):
        index.put(document)
    index.commit("first")
    kept.use(index)
    kept.close()
    return tmp_path / "kept"


@pytest.fixture
def folder(kept: Path) -> Path:
    """The folder of the index in use."""
    return kept / (kept / "current").read_text()


def current(kept: KeptIndex) -> SearchIndex:
    """Return the index in use, which is there."""
    index = kept.current()
    assert index is not None
    return index


def test_an_index_is_opened_as_it_was_left(kept: Path) -> None:
    ranking = current(KeptIndex(kept)).ranking
    assert ranking.state == "first"
    assert found(ranking, "contrl x") == {"pump", "valve"}


def test_one_writes_and_others_see_it_when_they_look(kept: Path) -> None:
    writing, reading = KeptIndex(kept), KeptIndex(kept)
    assert writing.lock()
    assert not reading.lock()
    before = current(reading).ranking
    current(writing).put(Document("fan", "Ventilator", "", "", "", ""))
    current(writing).commit("second")
    assert found(before, "ventilator") == set()
    assert found(current(reading).ranking, "ventilator x") == {"fan"}
    writing.close()
    assert reading.lock()
    reading.close()


def test_a_new_index_is_built_beside_the_one_in_use_and_takes_its_place_at_once(kept: Path) -> None:
    writing, reading = KeptIndex(kept), KeptIndex(kept)
    assert writing.lock()
    before = current(reading)
    new = writing.begin()
    new.put(replace(PUMP, title="Ventilator"))
    new.commit("second")
    assert current(reading) is before
    assert current(writing).ranking.state == "first"
    writing.use(new)
    assert current(writing) is new
    assert current(reading).ranking.state == "second"
    assert found(before.ranking, "meter") == {"meter"}, "one that is open is searched all the same"
    assert {path.name for path in kept.iterdir()} == {"lock", "current", (kept / "current").read_text()}
    writing.close()


def test_what_a_killed_process_was_building_is_deleted(kept: Path) -> None:
    killed = KeptIndex(kept)
    assert killed.lock()
    killed.begin().put(PUMP)
    assert len(list(kept.iterdir())) == 4
    killed.close()
    (kept / "meta.json").touch()
    (kept / "current.new").touch()
    again = KeptIndex(kept)
    assert again.lock()
    assert len(list(kept.iterdir())) == 3
    assert current(again).ranking.state == "first"
    again.close()


@pytest.mark.parametrize("name", [b"", b"\xff", b"nothing", b"../x", b"lock"])
def test_a_damaged_name_of_the_index_in_use_means_that_there_is_none(kept: Path, name: bytes) -> None:
    (kept / "current").write_bytes(name)
    assert KeptIndex(kept).current() is None
    assert KeptIndex(kept).current() is None


def test_a_reader_that_finds_the_index_damaged_has_the_writer_build_another_one(
    kept: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writing, reading = KeptIndex(kept), KeptIndex(kept)
    assert writing.lock()
    assert writing.current() is not None
    damaged = folder / "damaged"
    damaged.write_bytes(b"?")
    damaged.replace(largest(folder))  # a file that is mapped and cut off ends its process with SIGBUS
    assert reading.current() is None
    assert caplog.text.count("it is rebuilt") == 1
    assert writing.current() is None
    writing.close()


KILLED = """
import os, sys
from pathlib import Path
from template_api.ranking import Document, KeptIndex
kept = KeptIndex(Path(sys.argv[1]))
assert kept.lock()
index = kept.current()
for number in range(100_000):
    index.put(Document(str(number), "new words", "", "", "more of them " * 50, ""))
    if number == 30:
        index.commit("second")
    if number == int(sys.argv[2]):
        print("now", flush=True)
"""


@pytest.mark.parametrize("number", [20, 200])
def test_a_process_that_is_killed_leaves_its_last_commit_and_not_its_lock(kept: Path, number: int) -> None:
    command = [sys.executable, "-c", KILLED, str(kept), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    again = KeptIndex(kept)
    assert again.lock()
    index = current(again)
    assert index.ranking.state == ("first" if number < 30 else "second")
    assert index.ranking.fingerprint()[0] == (3 if number < 30 else 34)
    index.put(Document("fan", "Ventilator", "", "", "", ""))
    index.commit("third")
    assert found(index.ranking, "ventilator") == {"fan"}
    again.close()


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


def test_a_deleted_folder_is_noticed(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    writing, reading = KeptIndex(kept), KeptIndex(kept)
    assert writing.lock()
    before = current(reading)
    kept.rename(kept.with_name("elsewhere"))
    assert writing.lock(), "in another folder"
    assert caplog.text.count("was deleted; it is rebuilt") == 1
    assert writing.current() is None
    assert reading.current() is None
    assert found(before.ranking, "pump") == {"pump"}, "what was open is searched all the same"
    writing.close()
