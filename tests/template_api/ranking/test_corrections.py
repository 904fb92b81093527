import random
from dataclasses import replace

import pytest

from template_api.ranking import Ranked, Ranking, SearchIndex
from template_api.ranking.meaning import MOST_CORRECTED
from template_api.ranking.tokens import STOP_WORDS, stem
from template_api.ranking.vocabulary import SHORTEST_DOUBTED
from template_api.records import Word
from tests.benchmarks.ranking import Texts, documents
from tests.template_api.ranking.indexed import document, indexed

CONTENTS = {
    "pump": "pump pumping controller",
    "temperature": "temperature temperatures thermometer",
    "timeseries": "time series database",
    "webhook": "webhook receiver",
    "scada": "supervision of industrial plants",
    "esp32": "esp32 board",
    "esp8266": "esp8266 board",
    "front": "front panel",
    "broker": "broker brokers",
    "broken": "broken sensor",
}


@pytest.fixture(scope="module")
def library() -> Ranking:
    return indexed(document(key, "", "", "", content, "") for key, content in CONTENTS.items())


def keys(ranking: Ranking, text: str) -> list[str]:
    return [hit.key for hit in ranking.search(text, 10).hits]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("pmup", ["pump"], id="two letters swapped"),
        pytest.param("pmp x", ["pump"], id="a letter missing of four"),
        pytest.param("pmu x", [], id="three letters are too few for anything else"),
        pytest.param("pumpp x", ["pump"], id="a letter too many"),
        pytest.param("termometer x", ["temperature"], id="a letter missing"),
        pytest.param("controllar x", ["pump"], id="a wrong letter"),
        pytest.param("tenperatire x", ["temperature"], id="two edits from eight letters"),
        pytest.param("webhuuk x", [], id="two edits are too many for seven letters"),
        pytest.param("sebhook x", ["webhook"], id="a wrong first letter"),
        pytest.param("dump x", ["pump"], id="a wrong first letter of a short word"),
        pytest.param("upmp x", ["pump"], id="the first two letters swapped"),
        pytest.param("ront x", ["front"], id="the first letter missing"),
        pytest.param("efront x", ["front"], id="a letter before the first"),
        pytest.param("hwich front", ["front"], id="a stop word with a wrong first letter is dropped"),
        pytest.param("ump x", ["pump"], id="the first letter missing of four"),
        pytest.param("xontrollet x", [], id="a wrong first letter and another one are too many"),
        pytest.param("timeseries x", ["timeseries"], id="two words run together"),
        pytest.param("web hook x", ["webhook"], id="one word torn apart"),
        pytest.param("x web hook", ["webhook"], id="one word torn apart at the end"),
        pytest.param("esp23 x", [], id="digits are never corrected"),
        pytest.param("ezp32 x", ["esp32"], id="letters beside digits are"),
        pytest.param("2069 x", [], id="a number is not corrected"),
        pytest.param("xyzzyplugh", [], id="nothing near"),
    ],
)
def test_a_word_the_library_lacks_is_read_as_what_was_meant(library: Ranking, text: str, expected: list[str]) -> None:
    assert keys(library, text) == expected


def test_a_correction_names_the_word_as_typed_and_as_found(library: Ranking) -> None:
    (hit,) = library.search("webhok x", 10).hits
    assert hit.matched == (Word("webhok", "webhook"),)
    (hit,) = library.search("timeseries x", 10).hits
    assert hit.matched == (Word("timeseries", "time"), Word("timeseries", "series"))
    (hit,) = library.search("web hook x", 10).hits
    assert hit.matched == (Word("web hook", "webhook"),)


def test_words_run_together_are_parted_where_both_are_common() -> None:
    contents = ["thermo stat"] + ["therm ostat"] * 5 + ["thermos"] * 9
    library = indexed(document(str(number), "", "", "", content, "") for number, content in enumerate(contents))
    hits = library.search("thermostat x", 20).hits
    assert {match.found for hit in hits for match in hit.matched} == {"therm", "ostat"}


def test_words_are_not_parted_into_stop_words() -> None:
    library = indexed([document("a", "", "", "", "into the wards", ""), document("b", "", "", "", "other", "")])
    assert keys(library, "intowards x") == []


def test_the_commonest_of_equally_near_words_replace_an_unknown_one() -> None:
    contents = ["lampa"] + [f"lamp{letter}" for letter in "zyx"] * 2
    library = indexed(document(str(number), "", "", "", content, "") for number, content in enumerate(contents))
    found = {match.found for hit in library.search("lampq x1", 10).hits for match in hit.matched}
    assert found == {"lampx", "lampy", "lampz"}


def test_a_wrong_first_letter_is_as_likely_as_another_edit() -> None:
    library = indexed(document(word, "", "", "", word, "") for word in ("lamp", "camp", "demp"))
    assert sorted(keys(library, "damp x")) == ["camp", "demp", "lamp"]


def test_a_wrong_first_letter_is_likelier_than_two_other_edits() -> None:
    library = indexed(document(word, "", "", "", word, "") for word in ("barometer", "tarameder"))
    assert keys(library, "tarometer x") == ["barometer"]


@pytest.mark.parametrize("slip", ["qmtt mqtt", "adta data", "jsno json", "opic topic"])
def test_a_short_last_word_with_a_slip_finds_what_was_meant(slip: str) -> None:
    library = indexed(document(word, "", "", "", word, "") for word in ("mqtt", "data", "json", "topic"))
    typed, meant = slip.split()
    assert keys(library, typed) == [meant]


def test_the_last_word_is_cut_off_or_misspelt() -> None:
    contents = ["field", "fielder", "file", "fill", "topic"]
    library = indexed(document(word, "", "", "", word, "") for word in contents)
    assert sorted(keys(library, "topic fiel")) == ["field", "fielder", "file", "fill", "topic"]
    assert sorted(keys(library, "fiel topic")) == ["field", "file", "fill", "topic"], "only the last may be cut off"


def test_words_two_edits_away_are_not_added_to_completions() -> None:
    library = indexed(document(word, "", "", "", word, "") for word in ("temperament", "tenperats"))
    assert keys(library, "temperam") == ["temperament"]
    assert keys(library, "temperat") == ["tenperats"], "where nothing begins so, two edits count"


def test_a_word_one_edit_away_is_meant_rather_than_two_run_together() -> None:
    library = indexed(document(word, "", "", "", word, "") for word in ("data", "bass", "database"))
    assert keys(library, "databass x") == ["database"]


def test_a_known_word_is_kept_however_near_another_one_is(library: Ranking) -> None:
    assert keys(library, "broken") == ["broken"]
    assert keys(library, "brokers") == ["broker"]


@pytest.mark.parametrize("text", ["recieve webhok", "recieve", "webhok", "homeassistant"])
def test_one_misspelt_template_takes_no_correction_away(text: str) -> None:
    right = [document(str(number), "", "", "", "receive webhook home assistant", "") for number in range(10)]
    misspelt = document("misspelt", "", "", "", "recieve webhok homeassistant", "")
    found = keys(indexed([*right, misspelt]), text)
    assert set(keys(indexed(right), text)) <= {*found, "9"}, "ten are asked for"
    assert "misspelt" in found


def test_a_rare_word_that_is_right_comes_before_the_commoner_one_near_it() -> None:
    common = [document(str(number), "", "", "", "turning machines", "") for number in range(10)]
    library = indexed([*common, document("rare", "", "", "", "tuning instruments", "")])
    assert keys(library, "tuning")[0] == "rare"
    assert keys(library, "turning") == keys(indexed(common), "turning")


def test_misspelt_words_of_templates_change_nothing_for_words_spelt_right() -> None:
    """250 of them in 100 of 1,000 templates, each in place of a word that is not asked for: no text becomes longer."""
    source = random.Random(3)
    made = list(documents(1000, 60))
    texts = Texts(seed=9)
    right = [word for word in texts.content_words[:800] if len(word) > SHORTEST_DOUBTED]
    queries = [texts.query(source.randint(1, 3), 0) for _ in range(200)]
    asked = {stem(word) for query in [*queries, *right] for word in query.split()}
    slips = [word[:2] + word[3] + word[2] + word[4:] for word in source.choices(right, k=250)]
    planted = list(made)
    for number, slip in enumerate(slips):
        at = number * 10 % 1000
        content = planted[at].content.split()
        spare = next(word for word in content if word not in {*STOP_WORDS, *slips} and stem(word) not in asked)
        content[content.index(spare)] = slip
        planted[at] = replace(planted[at], content=" ".join(content))
    unchanged, misspelt = (indexed(each.document() for each in several) for several in (made, planted))
    changed = [query for query in queries if keys(misspelt, query) != keys(unchanged, query)]
    assert len(changed) <= len(queries) / 100, changed
    found = [(set(keys(unchanged, slip)), set(keys(misspelt, slip))) for slip in slips[:100] if slip not in right]
    kept = sum(len(before & after) for before, after in found) / sum(len(before) for before, _ in found)
    assert kept > 0.75, "who misspells them as well finds what is meant"


def test_an_exact_search_changes_no_word(library: Ranking) -> None:
    assert library.search("webhok", 10, exact=True) == Ranked(ignored=("webhok",))
    assert library.search("web hook", 10, exact=True).total == 0
    assert [hit.key for hit in library.search("webhook supervis", 10, exact=True).hits] == ["webhook"]


def test_what_was_changed_and_what_was_ignored_is_named(library: Ranking) -> None:
    found = library.search("webhok timeseries whicch xyzzyplugh pump", 10)
    assert found.corrected == (Word("webhok", "webhook"), Word("timeseries", "time series"))
    assert found.ignored == ("whicch", "xyzzyplugh")


def test_a_word_equally_near_to_several_finds_them_all(library: Ranking) -> None:
    assert sorted(keys(library, "brokes x")) == ["broken", "broker"]


def test_at_most_three_words_replace_an_unknown_one() -> None:
    near = ["lamps", "lampa", "lampb", "lampc", "lampd"]
    library = indexed(document(word, "", "", "", word, "") for word in near)
    assert len(keys(library, "lampx y")) == 3


def test_words_that_replace_one_share_the_rarity_of_the_commonest_and_the_best_counts() -> None:
    common = [document(f"common{number}", "", "", "", "lampa", "") for number in range(8)]
    library = indexed(
        [*common, document("rare", "", "", "", "lampb", ""), document("both", "", "", "", "lampa lampb", "")]
    )
    scores = {hit.key: hit.score for hit in library.search("lampx y", 10).hits}
    assert scores["rare"] == scores["common0"]
    assert scores["both"] < scores["rare"], "the text is longer, and a second word for the same adds nothing"


def test_a_misspelt_stop_word_is_dropped(library: Ranking) -> None:
    assert keys(library, "whicch panel") == ["front"]
    (hit,) = library.search("betwen panel", 10).hits
    assert hit.matched == (Word("panel", "panel"),)


def test_a_known_word_as_near_as_a_stop_word_is_meant(library: Ranking) -> None:
    assert keys(library, "fromt x") == ["front"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("board supervis", ["scada", "esp32", "esp8266"], id="the beginning of a word"),
        pytest.param("th", ["temperature"], id="two letters"),
        pytest.param("temperatu", ["temperature"], id="before a correction"),
        pytest.param("panel esp", ["front", "esp32", "esp8266"], id="letters before digits"),
    ],
)
def test_the_last_word_may_be_cut_off(library: Ranking, text: str, expected: list[str]) -> None:
    assert sorted(keys(library, text)) == sorted(expected)


def test_a_word_before_the_last_may_not_be_cut_off(library: Ranking) -> None:
    assert keys(library, "supervis board") == ["esp32", "esp8266"]


def test_the_word_as_typed_is_before_its_correction() -> None:
    library = indexed(document(word, "", "", "", f"{word} text", "") for word in ("webhook", "bridges"))
    assert keys(library, "bridges webhok") == keys(library, "webhok bridges") == ["bridges", "webhook"]
    assert keys(library, "web hook bridges") == ["bridges", "webhook"]


def test_a_word_that_nothing_comes_near_is_ignored(library: Ranking) -> None:
    assert keys(library, "xyzzyplugh webhook") == ["webhook"]


def test_a_word_misspelt_twice_counts_twice() -> None:
    library = indexed(document(word, "", "", "", f"{word} text", "") for word in ("webhook", "bridges"))
    assert keys(library, "webhok bridges webhok") == ["webhook", "bridges"]


def test_only_so_many_unknown_words_are_corrected() -> None:
    words = [f"{'abcdefghijklmnopqrstuvwxyz'[number % 26]}{'qvxzjkw'[number // 26] * 3}lamp" for number in range(50)]
    library = indexed(document(word, "", "", "", word, "") for word in words)
    misspelt = " ".join(word.replace("lamp", "lmap") for word in words)
    assert len(library.search(misspelt, 100).hits) == MOST_CORRECTED


def test_a_word_typed_right_and_wrong_counts_as_typed_right(library: Ranking) -> None:
    (wrong,) = library.search("webhok webhok x", 10).hits
    for text in ("webhook webhok x", "webhok webhook x"):
        (hit,) = library.search(text, 10).hits
        assert hit.matched == (Word("webhook", "webhook"),)
        assert hit.score > wrong.score


def test_a_word_that_has_left_the_library_hides_no_known_one() -> None:
    index = SearchIndex()
    index.put(document("gone", "Transmitte", "", "", "", ""))
    index.commit()
    index.remove("gone")
    index.put(document("kept", "Transmits", "", "", "", ""))
    index.commit()
    assert keys(index.ranking, "transmittr x") == ["kept"]


def test_a_word_that_may_be_misspelt_in_the_library_is_named_as_it_is_searched() -> None:
    right = [document(str(number), "", "", "", "receive webhook", "") for number in range(10)]
    ranked = indexed([*right, document("misspelt", "", "", "", "webhok", "")]).search("webhok", 20)
    assert ranked.corrected == (Word("webhok", "webhook"),)
    assert len(ranked.hits) == 11
