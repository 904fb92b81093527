"""`synonyms.yaml` in the folder of a library: imported with its templates, and searched like the shipped list."""

from pathlib import Path

import pytest

from template_api.library import Report, import_templates
from template_api.sources.reading import Reading
from template_api.sources.synonyms import read_synonyms
from tests.support.library_store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "library" / "valve").mkdir(parents=True)
    (tmp_path / "library" / "valve" / "template.yaml").write_text("title: Open the sluice")
    return tmp_path / "library"


def imported(store: Store, folder: Path, *, prune: bool = False, dry_run: bool = False) -> tuple[Report, list[str]]:
    seen: list[Reading] = []
    report = import_templates(store.url, folder, prune=prune, dry_run=dry_run, observe=seen.append)
    return report, [str(fault) for reading in seen for fault in reading.faults]


def found(store: Store, text: str) -> list[str]:
    return [each["slug"] for each in store.client().get(f"/api/search?q={text}").json["results"]]


def test_words_of_the_list_find_templates(sqlite_store: Store, folder: Path) -> None:
    (folder / "synonyms.yaml").write_text("- [sluice, Schleuse]\n- lockgate, weir => sluice\n")
    report, faults = imported(sqlite_store, folder)
    assert (str(report), faults) == ("2 added, 0 changed, 0 unchanged, 0 failed", [])
    assert found(sqlite_store, "schleuse") == found(sqlite_store, "weir") == ["valve"]


def test_a_changed_list_is_searched_without_a_restart(store: Store, folder: Path) -> None:
    imported(store, folder)
    client = store.client()
    assert client.get("/api/search?q=schleuse").json["results"] == []
    (folder / "synonyms.yaml").write_text("- sluice, Schleuse\n")
    imported(store, folder)
    [result] = client.get("/api/search?q=schleuse").json["results"]
    assert result["matched"] == [{"typed": "schleuse", "found": "sluice", "synonym": True}]
    assert str(imported(store, folder)[0]) == "0 added, 0 changed, 2 unchanged, 0 failed"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param("- sluice", "a group needs two words at least", id="one word"),
        pytest.param("- {a: b}", "an entry is a list of words such as [relay, Relais], or a => b", id="a mapping"),
        pytest.param("- [[a], b]", "an entry is a list of words", id="a list in a list"),
        pytest.param("- a => b => c", "'b => c' is not one to 6 words", id="two arrows"),
        pytest.param("- a =>", "'' is not one to 6 words", id="nothing meant"),
        pytest.param("- a, !!", "'!!' is not one to 6 words", id="no letter"),
        pytest.param("- a b c d e f g, h", "is not one to 6 words", id="too many words"),
    ],
)
def test_a_bad_entry_is_reported_with_its_line_and_the_others_are_used(
    sqlite_store: Store, folder: Path, line: str, reason: str
) -> None:
    (folder / "synonyms.yaml").write_text(f"# ours\n- weir, sluice\n{line}\n- gate, sluice\n")
    report, [fault] = imported(sqlite_store, folder)
    assert fault.startswith(f"{folder}/synonyms.yaml:3: ")
    assert reason in fault
    assert str(report) == "1 added, 0 changed, 0 unchanged, 1 failed"
    assert found(sqlite_store, "weir") == found(sqlite_store, "gate") == ["valve"]


@pytest.mark.parametrize("text", ["a: [b", "sluice: weir\n", "- !!python/name:os.system a\n", "\udcff"])
def test_a_list_that_cannot_be_read_leaves_the_one_before(sqlite_store: Store, folder: Path, text: str) -> None:
    file = folder / "synonyms.yaml"
    file.write_text("- weir, sluice\n")
    imported(sqlite_store, folder)
    file.write_text(text, errors="surrogateescape")
    report, [fault] = imported(sqlite_store, folder)
    assert fault.startswith(f"{file}:")
    assert str(report) == "0 added, 0 changed, 1 unchanged, 1 failed"
    assert found(sqlite_store, "weir") == ["valve"]


def test_a_list_that_is_gone_stays_until_an_import_that_prunes(store: Store, folder: Path) -> None:
    (folder / "synonyms.yaml").write_text("- weir, sluice\n")
    imported(store, folder)
    (folder / "synonyms.yaml").unlink()
    imported(store, folder)
    assert found(store, "weir") == ["valve"]
    imported(store, folder, prune=True)
    assert found(store, "weir") == []


def test_a_dry_run_says_so_and_changes_nothing(sqlite_store: Store, folder: Path) -> None:
    imported(sqlite_store, folder)
    (folder / "synonyms.yaml").write_text("- weir, sluice\n")
    assert str(imported(sqlite_store, folder, dry_run=True)[0]) == "1 added, 0 changed, 1 unchanged, 0 failed"
    assert found(sqlite_store, "weir") == []


@pytest.mark.parametrize("times", [10_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_an_entry_that_aliases_repeat_is_read_once(tmp_path: Path, times: int) -> None:
    words = ",".join(f"word{number}" for number in range(2_000))
    (tmp_path / "synonyms.yaml").write_text(f"- &list [{words}]\n- &text '{words}'\n" + "- *list\n- *text\n" * times)
    read = read_synonyms([tmp_path])
    assert read is not None
    assert [len(rule.words) for rule in read[0]] == [2_000, 2_000]
