"""What a search finds by the list of synonyms, and what it says of it."""

import pytest

from template_api.ranking import Ranking, Synonyms
from template_api.records import SynonymRule, Word
from template_api.sources.synonyms import shipped_synonyms
from tests.template_api.ranking.indexed import document, indexed


def rule(*words: str, meant: tuple[str, ...] = ()) -> SynonymRule:
    return SynonymRule(words, meant or words)


RULES = [
    rule("weather", "Wetter", "météo", "previsão do tempo"),
    rule("phone", "Handy", "mobile phone"),
    rule("fault", "Störung", "failure"),
    rule("machine learning", "ML", "neural network"),
    rule("thermometer", meant=("temperature",)),
    rule("relay", "Relais"),
    rule("turn on", "switch on", "einschalten", meant=("switch",)),
    rule("sign in", "Anmeldung", "login"),
    rule("to-do", "task"),
    rule("Suche", "search"),
    rule("forecast", "Vorhersage", "limiting"),
]
CONTENTS = {
    "weather": "weather of tomorrow",
    "better": "better results",
    "phone": "push to a phone",
    "hand": "by hand",
    "fault": "fault of a machine",
    "learning": "machine learning here",
    "ml": "ml models",
    "temperature": "temperature",
    "replay": "replay of messages",
    "switch": "switch it, such as it is",
    "sign": "a signed document",
    "turn": "in turn",
    "search": "search here",
    "login": "login page",
    "task": "task list",
    "price": "price of a thing, de",
}


@pytest.fixture(scope="module")
def library() -> Ranking:
    return indexed(document(key, "", "", "", text, "") for key, text in CONTENTS.items()).with_synonyms(Synonyms(RULES))


def keys(ranking: Ranking, text: str) -> list[str]:
    return [hit.template for hit in ranking.search(text, 10).found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Wetter", ["weather"], id="not corrected to a word that is near"),
        pytest.param("Handy", ["phone"], id="nor to one with a letter less"),
        pytest.param("meteo", ["weather"], id="without its accents"),
        pytest.param("previsao do tempo", ["weather"], id="several words, one of them a stop word in English"),
        pytest.param("Störung", ["fault"], id="an umlaut"),
        pytest.param("Störungen x", ["fault"], id="a plural of German, two letters longer"),
        pytest.param("stoerung", ["fault"], id="an umlaut in two letters"),
        pytest.param("Störnug", ["fault"], id="misspelt"),
        pytest.param("thermometers", ["temperature"], id="the plural of an entry"),
        pytest.param("neural network", ["learning", "ml"], id="several words for several, all of which must be there"),
        pytest.param("machine learning", ["learning", "ml", "fault"], id="the words themselves too"),
        pytest.param("temperature", ["temperature"], id="one way only"),
        pytest.param("relais", [], id="a known word without anything here is not corrected"),
        pytest.param("turn on", ["turn", "switch"], id="a stop word that makes another meaning"),
        pytest.param("turn", ["turn"], id="which the word without it does not have"),
        pytest.param("Anmeldung", ["login"], id="and does not lead to all that has the other word"),
        pytest.param("a to do x", ["task"], id="a phrase of stop words"),
        pytest.param("Wettersuche x", ["weather", "search"], id="a compound, both parts in the list"),
        pytest.param("Wettersuchen x", ["weather", "search"], id="its plural"),
        pytest.param("Suchwetter x", ["weather", "search"], id="a first part that has lost its e"),
        pytest.param("Handyphone x", ["phone"], id="a part that the library has"),
        pytest.param("Suche", ["search"], id="a word with the stem of a stop word"),
        pytest.param("Wetter de x", ["weather"], id="a stop word of another language beside its words"),
        pytest.param("price de", ["price"], id="which counts beside known words"),
    ],
)
def test_a_word_finds_what_means_the_same(library: Ranking, text: str, expected: list[str]) -> None:
    assert sorted(keys(library, text)) == sorted(expected)


def test_a_synonym_is_named_as_one(library: Ranking) -> None:
    found = library.search("Wetter", 10)
    assert found.found[0].matched == (Word("wetter", "weather", is_synonym=True),)
    assert found.corrected == (Word("wetter", "weather", is_synonym=True),)
    assert library.search("relais", 10).ignored == ("relais",)


def test_a_word_that_the_library_has_comes_before_its_synonyms_and_is_not_changed() -> None:
    documents = [document(word, "", "", "", word, "") for word in ("failure", "fault")]
    found = indexed(documents).with_synonyms(Synonyms(RULES)).search("fault", 10)
    assert [hit.template for hit in found.found] == ["fault", "failure"]
    assert found.found[1].matched == (Word("fault", "failure", is_synonym=True),)
    assert found.corrected == ()


def test_the_shipped_list_has_each_phrase_once_in_a_group_and_hundreds_of_groups() -> None:
    rules = shipped_synonyms()
    assert len(rules) >= 300
    for each in rules:
        assert len({word.casefold() for word in each.words}) == len(each.words), each.words
        assert all(word == word.strip() and word for word in (*each.words, *each.meant))


def test_of_synonyms_with_one_stem_the_first_of_its_group_is_shown() -> None:
    ranking = indexed([document("d", "", "", "", "alarm at night", "")])
    ranking = ranking.with_synonyms(Synonyms([rule("alert", "alarm", "Warnung", "alarme")]))
    [found] = ranking.search("alert", 5).found
    assert found.matched == (Word("alert", "alarm", is_synonym=True),)
