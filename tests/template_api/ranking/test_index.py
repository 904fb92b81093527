"""The index in memory: what a commit makes visible, and what it drops."""

from template_api.ranking import Ranking, SearchIndex
from tests.template_api.ranking.indexed import document

PUMP = document("pump", "Pump control", "", "", "Starts the pump.", "")
VALVE = document("valve", "Valve control", "", "", "Opens the valve.", "")


def found(ranking: Ranking, text: str) -> set[str]:
    return {hit.template for hit in ranking.search(text, 10).found}


def test_what_is_put_counts_from_the_commit_on_and_a_ranking_stays_as_it_was() -> None:
    index = SearchIndex()
    for each in (PUMP, VALVE):
        index.put(each)
    index.commit()
    before = index.ranking
    index.put(document("fan", "Ventilator control", "", "", "Turns the fan.", ""))
    assert found(index.ranking, "fan") == set()
    index.commit()
    assert found(index.ranking, "control") == {"fan", "pump", "valve"}
    assert found(before, "control") == {"pump", "valve"}
    assert found(index.ranking, "ventlator x") == found(index.ranking, "venti") == {"fan"}, "new words are known"
