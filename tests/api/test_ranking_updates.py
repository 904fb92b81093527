from dataclasses import replace

import pytest

from template_api.ranking import Document, Ranking

PUMP = Document("pump", "Pump control", "", "", "Starts the pump.", "")
VALVE = Document("valve", "Valve control", "", "", "Opens the valve.", "")
METER = Document("meter", "Flow meter", "", "", "Reads the flow.", "")


@pytest.fixture
def ranking() -> Ranking:
    return Ranking([PUMP, VALVE, METER])


def found(ranking: Ranking, text: str, accept: frozenset[int] | None = None) -> dict[str, int]:
    return {hit.key: hit.position for hit in ranking.search(text, 10, accept).hits}


def test_a_new_document_is_found_at_its_position(ranking: Ranking) -> None:
    fan = Document("fan", "Fan control", "", "", "Turns the fan.", "")
    updated = ranking.updated([fan], ["fan", "pump", "valve", "meter"])
    assert found(updated, "fan") == {"fan": 0}
    assert found(updated, "control") == {"fan": 0, "pump": 1, "valve": 2}
    assert len(updated) == 4


def test_a_changed_document_is_found_by_its_new_words_only(ranking: Ranking) -> None:
    changed = replace(VALVE, title="Tap control", content="Opens the tap.")
    updated = ranking.updated([changed], ["pump", "valve", "meter"])
    assert found(updated, "tap") == {"valve": 1}
    assert found(updated, "valve") == {}


def test_a_document_left_out_of_the_order_is_gone(ranking: Ranking) -> None:
    updated = ranking.updated([], ["pump", "meter"])
    assert found(updated, "control") == {"pump": 0}
    assert found(updated, "flow") == {"meter": 1}
    assert updated.search("control", 10, accept={0, 1}).hits == updated.search("control", 10).hits
    assert len(updated) == 2


def test_a_filter_passes_positions_of_the_changed_library() -> None:
    pumps = [Document(f"pump{number}", "Pump", "", "", "", "") for number in range(100)]
    order = [pump.key for pump in pumps[1:]]
    updated = Ranking(pumps).updated([replace(PUMP, key="pump8", title="Pump", content="")], order)
    assert found(updated, "pump", frozenset({0, 7, 98})) == {"pump1": 0, "pump8": 7, "pump99": 98}


def test_a_new_order_breaks_ties(ranking: Ranking) -> None:
    twins = [replace(PUMP, key=key) for key in ("a", "b", "c")]
    assert list(found(Ranking(twins).updated([], ["c", "a", "b"]), "pump")) == ["c", "a", "b"]


def test_the_ranking_before_stays_as_it_was(ranking: Ranking) -> None:
    before = ranking.search("control flow", 10)
    ranking.updated([replace(PUMP, title="Changed")], ["pump"])
    assert ranking.search("control flow", 10) == before
    assert len(ranking) == 3


def test_updates_add_up(ranking: Ranking) -> None:
    first = ranking.updated([replace(PUMP, title="Compressor")], ["pump", "valve", "meter"])
    second = first.updated([replace(METER, title="Gauge")], ["meter", "valve", "pump"])
    third = second.updated([replace(PUMP, title="Turbine")], ["pump", "meter"])
    assert found(second, "compressor gauge") == {"pump": 2, "meter": 0}
    assert found(third, "compressor") == {}
    assert found(third, "turbine gauge valve") == {"pump": 0, "meter": 1}


def test_a_document_that_was_gone_may_come_back(ranking: Ranking) -> None:
    without = ranking.updated([], ["pump", "meter"])
    assert found(without.updated([], ["valve", "pump", "meter"]), "valve") == {"valve": 0}
    changed = ranking.updated([replace(VALVE, content="Tap.")], ["pump", "valve", "meter"])
    gone = changed.updated([], ["pump", "meter"])
    assert found(gone.updated([replace(VALVE, content="Faucet.")], ["valve"]), "faucet") == {"valve": 0}


def test_new_words_are_corrected_and_completed(ranking: Ranking) -> None:
    updated = ranking.updated([Document("fan", "Ventilator", "", "", "", "")], ["pump", "fan"])
    assert found(updated, "ventlator") == {"fan": 1}
    assert found(updated, "venti") == {"fan": 1}


def test_scores_are_those_of_a_ranking_built_anew_but_for_rarity() -> None:
    many = [Document(f"many{number}", f"Title {number}", "", "", "common words here", "") for number in range(300)]
    order = ["new", *(each.key for each in many)]
    new = Document("new", "Fresh title", "", "", "common words here and fresh ones", "")
    updated = Ranking(many).updated([new], order).search("fresh common title", 10).hits
    anew = Ranking([new, *many]).search("fresh common title", 10).hits
    assert [(hit.key, hit.position) for hit in updated] == [(hit.key, hit.position) for hit in anew]
    assert [hit.score for hit in updated] == pytest.approx([hit.score for hit in anew], rel=0.01)


def test_what_is_pending_is_counted(ranking: Ranking) -> None:
    assert ranking.pending == 0
    assert ranking.updated([], ["pump"]).pending == 2
    changed = ranking.updated([replace(PUMP, title="x")], ["pump", "valve", "meter"])
    assert changed.pending == 2, "one came, the one it replaces has gone"
    assert Ranking([]).updated([PUMP], ["pump"]).pending == 1


def test_a_key_that_is_not_known_is_refused(ranking: Ranking) -> None:
    with pytest.raises(ValueError, match="'fan' is in the order, but neither known nor changed"):
        ranking.updated([], ["pump", "fan"])
