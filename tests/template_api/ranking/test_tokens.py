import pytest

from template_api.ranking.tokens import MAX_WORD_LENGTH, STOP_WORDS, stem, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("MQTT Bridge", ["mqtt", "bridge"], id="case"),
        pytest.param("Café naïve RÉSUMÉ", ["cafe", "naive", "resume"], id="accents"),
        pytest.param("cafe\u0301", ["cafe"], id="accent as a mark of its own"),
        pytest.param("Łódź Ærø Straße", ["lodz", "aero", "strasse"], id="letters that are not accented ones"),
        pytest.param("ＷＩＦＩ ﬁlter", ["wifi", "filter"], id="width and ligatures"),
        pytest.param("rest_api/v2.html", ["rest", "api", "v2", "html"], id="underscores and punctuation part words"),
        pytest.param("größe_in_cm", ["grosse", "in", "cm"], id="underscores part other words too"),
        pytest.param("温度センサー", ["温度", "度セ", "セン", "ンサ", "サー"], id="pairs of CJK characters"),
        pytest.param("図", ["図"], id="a single CJK character"),
        pytest.param("mqtt温度 2", ["mqtt", "温度", "2"], id="scripts side by side"),
        pytest.param("हिन्दी भाषा", ["हिन्दी", "भाषा"], id="vowel signs do not part words"),
        pytest.param("مَرْحَبًا", ["مرحبا"], id="Arabic vowel signs"),
        pytest.param("👩‍👩‍👧 iot ™\x00\ud800x", ["iot", "x"], id="emoji, controls, lone surrogates"),
        pytest.param("", [], id="nothing"),
        pytest.param("?! —", [], id="no letters"),
    ],
)
def test_text_is_split_into_folded_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_a_word_too_long_to_type_is_cut() -> None:
    assert words("x" * 500 + " y") == ["x" * MAX_WORD_LENGTH, "y"]
    assert words("é" * 500) == ["e" * MAX_WORD_LENGTH]


def test_stop_words_are_words_as_they_come_out_of_a_text() -> None:
    assert words(" ".join(sorted(STOP_WORDS))) == sorted(STOP_WORDS)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("ponies", "poni"), ("relational", "relat"), ("is", "is"), ("esp32s", "esp32s"), ("größes", "größes")],
)
def test_a_word_is_stemmed_as_porter_describes(word: str, expected: str) -> None:
    assert stem(word) == expected
