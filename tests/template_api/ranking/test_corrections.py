import random
from dataclasses import replace

import pytest

from template_api.ranking import Ranking, SearchIndex, Synonyms
from template_api.ranking.meaning import MOST_CORRECTED
from template_api.ranking.tokens import STOP_WORDS, stem
from template_api.ranking.vocabulary import SHORTEST_DOUBTED
from template_api.records import Page, SynonymRule, Word
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
    return [hit.template for hit in ranking.search(text, 10).found]


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
        pytest.param("xyzzyplugh webhook", ["webhook"], id="nothing near beside another"),
        pytest.param("broken", ["broken"], id="a known word however near another one is"),
        pytest.param("brokers", ["broker"], id="a known form likewise"),
        pytest.param("brokes x", ["broken", "broker"], id="equally near to several"),
        pytest.param("fromt x", ["front"], id="a known word as near as a stop word"),
        pytest.param("board supervis", ["esp32", "esp8266", "scada"], id="the last word cut off"),
        pytest.param("supervis board", ["esp32", "esp8266"], id="a word before the last cut off"),
        pytest.param("th", ["temperature"], id="two letters of the last word"),
        pytest.param("temperatu", ["temperature"], id="cut off before misspelt"),
        pytest.param("panel esp", ["esp32", "esp8266", "front"], id="letters before digits"),
    ],
)
def test_a_word_the_library_lacks_is_read_as_what_was_meant(library: Ranking, text: str, expected: list[str]) -> None:
    assert sorted(keys(library, text)) == expected


@pytest.mark.parametrize(
    ("contents", "text", "expected"),
    [
        pytest.param("into the wards|other", "intowards x", "", id="words are not parted into stop words"),
        pytest.param("lamp|camp|demp", "damp x", "camp|demp|lamp", id="a first letter is an edit like another"),
        pytest.param("barometer|tarameder", "tarometer x", "barometer", id="one first letter before two edits"),
        *(
            pytest.param("mqtt|data|json|topic", slip, meant, id=f"a short last word: {slip}")
            for slip, meant in (("qmtt", "mqtt"), ("adta", "data"), ("jsno", "json"), ("opic", "topic"))
        ),
        pytest.param("field|fielder|file|topic", "topic fiel", "field|fielder|file|topic", id="cut off or misspelt"),
        pytest.param("field|fielder|file|topic", "fiel topic", "field|file|topic", id="only the last is cut off"),
        pytest.param("temperament|tenperats", "temperam", "temperament", id="no two edits beside completions"),
        pytest.param("temperament|tenperats", "temperat", "tenperats", id="two edits where nothing begins so"),
        pytest.param("data|bass|database", "databass x", "database", id="one edit rather than two run together"),
        pytest.param("lamps|lampa|lampb|lampc|lampd", "lampx y", "lampa|lampb|lampc", id="at most three"),
    ],
)
def test_of_the_words_of_a_library_those_are_meant(contents: str, text: str, expected: str) -> None:
    library = indexed(document(each, "", "", "", each, "") for each in contents.split("|"))
    assert "|".join(sorted(keys(library, text))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("bridges webhok", ["bridges", "webhook"], id="the word as typed is before a correction"),
        pytest.param("webhok bridges", ["bridges", "webhook"], id="in any order"),
        pytest.param("web hook bridges", ["bridges", "webhook"], id="and before one torn apart"),
        pytest.param("webhok bridges webhok", ["webhook", "bridges"], id="a word misspelt twice counts twice"),
    ],
)
def test_a_correction_counts_a_little_less(text: str, expected: list[str]) -> None:
    assert (
        keys(indexed(document(word, "", "", "", f"{word} text", "") for word in ("webhook", "bridges")), text)
        == expected
    )


def test_a_correction_names_the_word_as_typed_and_as_found(library: Ranking) -> None:
    for text, matched in (
        ("webhok x", [Word("webhok", "webhook")]),
        ("timeseries x", [Word("timeseries", "time"), Word("timeseries", "series")]),
        ("web hook x", [Word("web hook", "webhook")]),
        ("betwen panel", [Word("panel", "panel")]),
    ):
        (hit,) = library.search(text, 10).found
        assert hit.matched == tuple(matched)
    found = library.search("webhok timeseries whicch xyzzyplugh pump", 10)
    assert found.corrected == (Word("webhok", "webhook"), Word("timeseries", "time series"))
    assert found.ignored == ("whicch", "xyzzyplugh")


def test_words_run_together_are_parted_where_both_are_common() -> None:
    contents = ["thermo stat"] + ["therm ostat"] * 5 + ["thermos"] * 9
    library = indexed(document(str(number), "", "", "", content, "") for number, content in enumerate(contents))
    hits = library.search("thermostat x", 20).found
    assert {match.found for hit in hits for match in hit.matched} == {"therm", "ostat"}


def test_the_commonest_of_equally_near_words_replace_an_unknown_one() -> None:
    contents = ["lampa"] + [f"lamp{letter}" for letter in "zyx"] * 2
    library = indexed(document(str(number), "", "", "", content, "") for number, content in enumerate(contents))
    found = {match.found for hit in library.search("lampq x1", 10).found for match in hit.matched}
    assert found == {"lampx", "lampy", "lampz"}


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


def test_an_exact_search_changes_no_word_and_has_no_synonyms(library: Ranking) -> None:
    assert library.search("webhok", 10, exact=True) == Page(ignored=("webhok",))
    assert library.search("web hook", 10, exact=True).total == 0
    synonyms = Synonyms([SynonymRule(("Wetter", "webhook"), ("Wetter", "webhook"))])
    assert library.with_synonyms(synonyms).search("Wetter", 10, exact=True).total == 0
    assert [hit.template for hit in library.search("webhook supervis", 10, exact=True).found] == ["webhook"]


def test_words_that_replace_one_share_the_rarity_of_the_commonest_and_the_best_counts() -> None:
    common = [document(f"common{number}", "", "", "", "lampa", "") for number in range(8)]
    library = indexed(
        [*common, document("rare", "", "", "", "lampb", ""), document("both", "", "", "", "lampa lampb", "")]
    )
    scores = {hit.template: hit.score for hit in library.search("lampx y", 10).found}
    assert scores["rare"] == scores["common0"]
    assert scores["both"] < scores["rare"], "the text is longer, and a second word for the same adds nothing"


def test_only_so_many_unknown_words_are_corrected() -> None:
    words = [f"{'abcdefghijklmnopqrstuvwxyz'[number % 26]}{'qvxzjkw'[number // 26] * 3}lamp" for number in range(50)]
    library = indexed(document(word, "", "", "", word, "") for word in words)
    misspelt = " ".join(word.replace("lamp", "lmap") for word in words)
    assert len(library.search(misspelt, 100).found) == MOST_CORRECTED


def test_a_word_typed_right_and_wrong_counts_as_typed_right(library: Ranking) -> None:
    (wrong,) = library.search("webhok webhok x", 10).found
    for text in ("webhook webhok x", "webhok webhook x"):
        (hit,) = library.search(text, 10).found
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
    assert len(ranked.found) == 11
