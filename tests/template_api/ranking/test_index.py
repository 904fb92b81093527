"""The index in memory: what a commit makes visible, and what it drops."""

import pytest

from template_api.ranking import Ranking, SearchIndex
from tests.template_api.ranking.indexed import document

PUMP = document("pump", "Pump control", "", "", "Starts the pump.", "")
VALVE = document("valve", "Valve control", "", "", "Opens the valve.", "")
METER = document("meter", "Flow meter", "", "", "Reads the flow.", "")


def found(ranking: Ranking, text: str) -> set[str]:
    return {hit.template for hit in ranking.search(text, 10).found}


@pytest.fixture
def index() -> SearchIndex:
    """An index of three documents."""
    index = SearchIndex()
    for each in (PUMP, VALVE, METER):
        index.put(each)
    index.commit()
    return index


def test_what_is_put_counts_from_the_commit_on(index: SearchIndex) -> None:
    before = index.ranking
    index.put(document("fan", "Fan control", "", "", "Turns the fan.", ""))
    assert found(index.ranking, "fan") == set()
    index.commit()
    assert found(index.ranking, "control") == {"fan", "pump", "valve"}
    assert found(before, "control") == {"pump", "valve"}, "a ranking stays as it was"


def test_a_document_that_is_put_again_is_found_by_its_new_words_alone(index: SearchIndex) -> None:
    index.put(document("valve", "Tap control", "", "", "Opens the tap.", ""))
    index.commit()
    assert found(index.ranking, "tap") == {"valve"}
    assert found(index.ranking, "valve x") == set()


def test_new_words_are_corrected_and_completed(index: SearchIndex) -> None:
    index.put(document("fan", "Ventilator", "", "", "", ""))
    index.commit()
    assert found(index.ranking, "ventlator x") == {"fan"}
    assert found(index.ranking, "venti") == {"fan"}
