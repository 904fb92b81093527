from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from template_api.ranking import Document, Ranking
from template_api.records import Found, Sort, Word
from tests.template_api.ranking.indexed import document, indexed


def made(
    key: str, title: str = "", *, labels: str = "", short: str = "", content: str = "", cells: str = ""
) -> Document:
    return document(key, title, labels, short, content, cells)


def keys(ranking: Ranking, text: str, limit: int = 10) -> list[str]:
    return [hit.template for hit in ranking.search(text, limit).found]


FILLER = [made(f"filler{number}", f"Other matter {number}", content="nothing to see") for number in range(5)]
STATION = made("station", "Weather station", labels="sensors", content="Reads the temperature every minute.")
GATEWAY = made("gateway", "Modbus gateway", labels="industrial", content="Polls holding registers of a PLC.")
LIBRARY = [*FILLER, STATION, GATEWAY]


@pytest.fixture(scope="module")
def library() -> Ranking:
    return indexed(LIBRARY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("GATEWAY", "gateway", id="case"),
        pytest.param("gatewäy", "gateway", id="accents"),
        pytest.param("polling register", "gateway", id="other forms of the words"),
        pytest.param("sensor", "station", id="labels"),
        pytest.param("temperature", "station", id="content"),
    ],
)
def test_a_template_is_found_by_words_of_its_texts(library: Ranking, text: str, expected: str) -> None:
    assert keys(library, text) == [expected]


def test_templates_with_any_of_the_words_are_found_and_with_more_of_them_are_first(library: Ranking) -> None:
    assert keys(library, "temperature gateway PLC") == ["gateway", "station"]


@pytest.mark.parametrize(
    "better_first",
    [
        pytest.param(("title", "labels"), id="title before labels"),
        pytest.param(("labels", "short"), id="labels before short description"),
        pytest.param(("short", "content"), id="short description before content"),
        pytest.param(("content", "cells"), id="content before cells"),
    ],
)
def test_a_word_weighs_by_its_field(better_first: tuple[str, str]) -> None:
    better, worse = better_first
    documents = [
        made("worse", **{"title": "some words", "content": "more words", worse: "some needle words"}),
        made("better", **{"title": "some words", "content": "more words", better: "some needle words"}),
    ]
    assert keys(indexed([*documents, *FILLER]), "needle") == ["better", "worse"]


def test_a_description_that_is_the_beginning_of_the_content_counts_once() -> None:
    content = "A needle in a haystack is hard to find. The rest is hay."
    excerpt = made("a", "x", short="A needle in a haystack…", content=content)
    without = made("b", "x", content=content)
    first, second = indexed([excerpt, without, *FILLER]).search("needle", 10).found
    assert first.score == second.score


def test_of_two_texts_with_a_word_the_shorter_is_first() -> None:
    long = made("long", content="needle " + "straw and hay in the field " * 20)
    short = made("short", content="needle in hay")
    assert keys(indexed([long, short, *FILLER]), "needle") == ["short", "long"]


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    common = [made(f"common{number}", content="common thing here") for number in range(20)]
    ranking = indexed([*common, made("rare", content="scarce thing here")])
    assert keys(ranking, "common scarce")[0] == "rare"


def test_a_word_said_twice_in_the_query_counts_twice() -> None:
    pair = [made("a", content="alpha text"), made("b", content="omega text")]
    ranking = indexed([*pair, *FILLER])
    assert keys(ranking, "alpha omega omega") == ["b", "a"]
    assert keys(ranking, "alpha alpha omega") == ["a", "b"]
    assert keys(ranking, "alpha alphas omega") == ["a", "b"]


def test_of_equal_texts_the_one_whose_title_says_just_the_query_is_first() -> None:
    longer = made("longer", "pump control panel room", content="text")
    exact = made("exact", "pump control", content="text panel room panel room panel room")
    assert keys(indexed([longer, exact, *FILLER]), "pump control") == ["exact", "longer"]


def test_a_title_with_the_word_as_asked_is_before_one_with_another_form() -> None:
    ranking = indexed([made("pumps", "pumps"), made("pump", "pump"), *FILLER])
    assert keys(ranking, "pump") == ["pump", "pumps"]
    assert keys(ranking, "pumps") == ["pumps", "pump"]


def test_stop_words_are_dropped_beside_other_words(library: Ranking) -> None:
    assert keys(library, "what is the gateway to") == ["gateway"]


def test_a_query_of_stop_words_searches_them() -> None:
    ranking = indexed([*LIBRARY, made("who", "The Who")])
    assert keys(ranking, "who") == ["who"]
    assert keys(ranking, "the who")[0] == "who"


def test_of_equally_good_templates_the_newest_is_first_then_the_one_with_the_lowest_key() -> None:
    dates = {"c": "2026-01-03", "b": "2026-01-01", "a": "2026-01-01", "d": "2026-01-02"}
    same = [replace(made(key, "Same title", content="same text"), published_at=day) for key, day in dates.items()]
    assert keys(indexed(same), "same") == ["c", "d", "a", "b"]


def test_the_newest_of_so_many_equals_that_not_all_are_compared_at_first_is_found() -> None:
    same = [replace(made(f"{n:04}", "Same"), published_at=f"20{n % 90 + 10}-01-01") for n in range(1000)]
    newest = [f"{n:04}" for n in range(89, 1000, 90)]
    assert keys(indexed(same), "same", 11) == newest


def test_words_of_cjk_scripts_are_found_by_parts() -> None:
    ranking = indexed([made("ja", "温度センサーの監視"), made("zh", "湿度传感器"), *FILLER])
    assert keys(ranking, "センサー") == ["ja"]
    assert keys(ranking, "传感器") == ["zh"]
    assert keys(ranking, "温") == ["ja"]


def test_a_limit_beyond_what_titles_reorder_still_returns_all_in_order_of_score() -> None:
    ranking = indexed(made(f"{number:03}", content="needle " + "hay " * number) for number in range(100))
    hits = ranking.search("needle", 100).found
    assert [hit.template for hit in hits] == [f"{number:03}" for number in range(100)]


def test_a_filter_finds_its_matches_among_many_better_ones() -> None:
    contents = ["pump common"] * 800 + ["valve common"] * 800 + ["common"] * 10
    library = indexed(
        document(str(number), "", "", "", content, "", facets=("tag:rare",) if content == "common" else ("tag:other",))
        for number, content in enumerate(contents)
    )
    ranked = library.search("pump valve common", 30, 0, [["tag:rare"]])
    assert {hit.template for hit in ranked.found} == {str(number) for number in range(1600, 1610)}
    assert ranked.total == 10


def test_a_template_passes_a_filter_with_one_of_its_facets_and_has_to_pass_all_filters() -> None:
    facets = {"a": ("tag:1", "level:x"), "b": ("tag:2", "level:x"), "c": ("tag:1", "level:y"), "d": ()}
    library = indexed(document(key, "pump", "", "", "", "", facets=each) for key, each in facets.items())

    def passing(*filters: list[str]) -> set[str]:
        return {hit.template for hit in library.search("pump", 10, 0, filters).found}

    assert passing() == {"a", "b", "c", "d"}
    assert passing(["tag:1", "tag:2"]) == {"a", "b", "c"}
    assert passing(["tag:1", "tag:2"], ["level:x"]) == {"a", "b"}
    assert passing(["tag:unknown"]) == set()
    assert passing([f"tag:{number}" for number in range(1, 2000)]) == {"a", "b", "c"}
    assert passing(["x" * 70_000]) == set()


def test_a_filter_changes_no_score(library: Ranking) -> None:
    documents = [made(f"{n}", "pump" if n % 2 else "pump valve") for n in range(6)]
    ranking = indexed(replace(each, facets=("a",)) for each in documents)
    assert ranking.search("pump", 10, 0, [["a"]]) == ranking.search("pump", 10)


def test_a_template_with_next_to_nothing_of_a_long_question_scores_more_than_0() -> None:
    rare = " ".join(f"rare{number}" for number in range(2000))
    ranking = indexed([made("rare", content=rare), *(made(f"{n}", content="alpha") for n in range(1000))])
    assert all(0 < hit.score <= 1 for hit in ranking.search(f"alpha {rare}", 30).found)


def test_a_text_that_says_nothing_but_the_query_comes_near_the_best_possible_score() -> None:
    perfect = made("perfect", "pump", labels="pump " * 50, content="pump " * 50)
    (hit,) = indexed([perfect, *FILLER]).search("pump", 10).found
    assert hit.score > 0.95


def test_a_hit_says_which_words_it_has(library: Ranking) -> None:
    gateway, station = library.search("gatewy Polling temperature", 10).found
    assert gateway.matched == (Word("gatewy", "gateway"), Word("polling", "polling"))
    assert station.matched == (Word("temperature", "temperature"),)
    assert 1 >= gateway.score > station.score > 0


def test_threads_get_the_answers_that_one_thread_gets(library: Ranking) -> None:
    texts = ["gatewy", "temperature gateway", "sensor", "matter", "weather stations", "the"] * 50

    def ask(text: str) -> tuple[Found[str], ...]:
        return library.search(text, 5).found

    alone = [ask(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, texts)) == alone


def test_a_suggestion_names_what_was_read_otherwise() -> None:
    titles = ["Receive webhooks", "Call Home Assistant", "Ask a host"]
    keys, read = indexed(made(title, title) for title in titles).suggest("recieve we", 8)
    assert (keys[0], read) == ("Receive webhooks", (Word("recieve", "receive"),))


def test_what_only_shares_words_that_hardly_count_is_left_out() -> None:
    common = [made(f"common{n}", f"Request number {n}", content="request", labels="a") for n in range(30)]
    weather = made("weather", "Weather request", content="weather request")
    long = made("long", "Diary", content="weather " + "entry " * 2000)
    library = indexed([*common, weather, long])
    ranked = library.search("weather request", 40)
    assert [hit.template for hit in ranked.found] == ["weather", "long"], "all rare words count, however little"
    assert ranked.total == 2
    for sort in Sort:
        assert library.search("weather request", 40, sort=sort).total == 2
    assert library.search("request", 40).total == 31


def test_facets_are_those_of_the_results() -> None:
    documents = [replace(made(f"common{n}", "Request", content="request"), facets=("tag:common",)) for n in range(30)]
    documents.append(replace(made("weather", "Weather", content="weather request"), facets=("tag:rare",)))
    assert indexed(documents).facets("weather request") == {"tag:rare": 1}
