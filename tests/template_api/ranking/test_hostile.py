"""Whatever is asked is answered, and at a cost like that of ordinary words."""

import random
from functools import cache
from itertools import accumulate
from time import thread_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from template_api.ranking import Ranking
from template_api.ranking.tokens import STOP_WORDS, words
from tests.template_api.ranking.indexed import document, indexed

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DEARER = 20  # times the CPU time of as many ordinary words; measured: 5 at most


def word(source: random.Random) -> str:
    return "".join(source.choices(LETTERS, k=source.randint(3, 10)))


class Library:
    """A library of made-up templates, and what a search of ordinary words costs in it."""

    def __init__(self, size: int) -> None:
        source = random.Random(5)
        vocabulary = sorted(STOP_WORDS) + [word(source) for _ in range(size * 5)]
        zipf = list(accumulate(1 / rank for rank in range(1, len(vocabulary) + 1)))

        def text(count: int) -> str:
            return " ".join(source.choices(vocabulary, cum_weights=zipf, k=count))

        self.ranking = indexed(
            document(str(number), text(5), text(3), text(10), text(60), text(20)) for number in range(size)
        )
        self.ordinary = self.cost(text(800)[:4000])

    def cost(self, text: str) -> float:
        """Search, and return the least CPU time of three searches, in seconds."""

        def once() -> float:
            began = thread_time()
            self.ranking.search(text, 30)
            return thread_time() - began

        return min(once() for _ in range(3))


@pytest.fixture(scope="module")
def small() -> Library:
    return Library(300)


HOSTILE = [
    pytest.param("a" * 4000, id="one letter"),
    pytest.param("a " * 2000, id="one letter, many words"),
    pytest.param(" ".join(word(random.Random(seed)) for seed in range(500)), id="unknown words"),
    pytest.param(" ".join(sorted(STOP_WORDS) * 4)[:4000], id="only stop words"),
    pytest.param("温度湿度" * 1000, id="CJK"),
    pytest.param("👩‍👩‍👧🏽🇩🇪" * 400, id="emoji"),
    pytest.param("e" + "\u0301" * 3999, id="combining accents"),
    pytest.param("مرحبا بالعالم " * 280, id="right to left"),
    pytest.param("\u202e\u200f" * 2000, id="direction marks"),
    pytest.param("".join(map(chr, range(32))) * 100, id="control characters"),
    pytest.param("\ud800\udfff pump " * 400, id="lone surrogates"),
    pytest.param("\ufdfa" * 4000, id="a character that folds to eighteen"),
    pytest.param("İ" * 4000, id="a letter whose lower case is two"),
    pytest.param("\" OR NEAR(a, b) * NOT - : ^ {} \\ ' ; DROP TABLE --" * 80, id="syntax of query languages"),
    pytest.param("é_" * 2000, id="accents and underscores"),
    pytest.param("𝕬" * 4000, id="mathematical letters"),
    pytest.param("हि" * 2000, id="vowel signs"),
    pytest.param("1 22 333 " * 440, id="numbers"),
]


def assert_answered_like_ordinary_words(library: Library, text: str) -> None:
    assert all(0 < hit.score <= 1 for hit in library.ranking.search(text, 30).found)
    assert library.cost(text) < DEARER * library.ordinary


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_costs_little_more_than_ordinary_words(small: Library, text: str) -> None:
    assert_answered_like_ordinary_words(small, text)


@pytest.fixture(scope="module")
def large() -> Library:
    return Library(10_000)


@pytest.mark.long
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_costs_little_more_than_ordinary_words_in_a_large_library(large: Library, text: str) -> None:
    assert_answered_like_ordinary_words(large, text)


@cache
def tiny() -> Ranking:
    return Library(50).ranking


@given(text=st.text(st.characters(codec=None), max_size=200))
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_answered(text: str) -> None:
    hits = tiny().search(text, 30).found
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("examples", [50, pytest.param(200, marks=pytest.mark.long)])
def test_any_text_can_be_indexed_and_found_again(examples: int) -> None:
    @given(text=st.text(st.characters(codec=None), max_size=200))
    @settings(deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    def holds(text: str) -> None:
        ranking = indexed([document("a", text, "", text, text, text), document("b", "other", "", "", "", "")])
        found = "a" in {hit.template for hit in ranking.search(text, 10).found}
        assert found == bool(words(text))

    holds()
