import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqtt_rest_bridge.topics import TopicIndex, check_topic_filter, check_topic_name, filter_matches, matcher_of

# MQTT 3.1.1 sections 4.7.1 and 4.7.2, its own examples first.
MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("#", "sport/tennis"),
    ("#", "/"),
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/+", "sport/"),
    ("+", "sport"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+/tennis/#", "sport/tennis"),
    ("$SYS/#", "$SYS/"),
    ("$SYS/#", "$SYS"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ("a/b", "a/b"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("+/#", "a"),
    ("a/$b/+", "a/$b/c"),
]
DIFFERS = [
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("#", "$SYS/monitor"),
    ("+/monitor/Clients", "$SYS/monitor/Clients"),
    ("+", "$SYS"),
    ("+/#", "$SYS/x"),
    ("a/b", "a/B"),
    ("a/b", "a/b/"),
    ("a/b/#", "a"),
    ("a/#", "ab"),
    ("a/+/c", "a/b"),
    ("sport", "sport/"),
]


@pytest.mark.parametrize(
    ("topic_filter", "topic", "found"), [*((*one, (1,)) for one in MATCHES), *((*one, ()) for one in DIFFERS)]
)
def test_a_filter_matches_its_topics_and_no_other(topic_filter: str, topic: str, found: tuple[int, ...]) -> None:
    assert filter_matches(topic_filter, topic) == bool(found)
    assert TopicIndex([(topic_filter, 1)])[topic] == found


def test_index_finds_what_a_scan_finds_in_the_order_of_insertion() -> None:
    filters = [*dict.fromkeys(topic_filter for topic_filter, _ in MATCHES + DIFFERS)] * 2
    index = TopicIndex((topic_filter, number) for number, topic_filter in enumerate(filters))
    for _, topic in MATCHES + DIFFERS:
        scanned = tuple(number for number, topic_filter in enumerate(filters) if filter_matches(topic_filter, topic))
        assert index[topic] == scanned


def test_index_bears_a_topic_of_very_many_levels() -> None:
    index = TopicIndex([("+/+/x", 1), ("#", 2), ("a/#", 3)])
    assert index["a/" * 32_000] == (2, 3)


def test_an_index_remembers_what_it_found_for_a_bounded_number_of_short_topics() -> None:
    index = TopicIndex([("a/#", 1), ("a/7", 2)])
    for _ in range(2):
        for number in range(3000):
            assert index[f"a/{number}"] == ((1, 2) if number == 7 else (1,))
            assert index[f"b/{number}"] == ()
            assert index[f"a/{number}/{'x' * 300}"] == (1,)
    assert 0 < len(index) <= 1024
    assert max(map(len, index)) <= 256


@pytest.mark.parametrize("text", ["a", "/", "a/b/c", "$SYS/x", "grün/🌍", " ", "x" * 65_535])
def test_topic_name_is_accepted(text: str) -> None:
    assert check_topic_name(text) is None
    assert check_topic_filter(text) is None


@pytest.mark.parametrize("text", ["#", "+", "a/+/b", "+/+", "a/#", "/+/#"])
def test_topic_filter_is_accepted_but_names_no_topic(text: str) -> None:
    assert check_topic_filter(text) is None
    assert "wildcard" in str(check_topic_name(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("a\0b", "holds a control character", id="NUL"),
        pytest.param("a\nb", "holds a control character", id="line break"),
        pytest.param("a\x85b", "holds a control character", id="C1 control"),
        pytest.param("a/\ufdd0", "holds a noncharacter of Unicode", id="noncharacter"),
        pytest.param("a/\uffff", "holds a noncharacter of Unicode", id="last of a plane"),
        pytest.param("\U0010fffe", "holds a noncharacter of Unicode", id="noncharacter of the last plane"),
        pytest.param("\udce9", "has no UTF-8 form", id="surrogate"),
        pytest.param("é" * 32_768, "is 65536 bytes long; at most 65535 are allowed", id="too long"),
    ],
)
def test_text_is_neither_name_nor_filter(text: str, reason: str) -> None:
    assert check_topic_name(text) == reason
    assert check_topic_filter(text) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a/#/b", "has a # that is not alone in the last level"),
        ("a#", "has a # that is not alone in the last level"),
        ("##", "has a # that is not alone in the last level"),
        ("a+", "has a + that does not fill its level alone"),
        ("a/b+/c", "has a + that does not fill its level alone"),
    ],
)
def test_misplaced_wildcard_is_refused(text: str, reason: str) -> None:
    assert check_topic_filter(text) == reason


@given(
    st.lists(st.sampled_from(["a", "", "+", ".", "$SYS", "b\n"]), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.sampled_from(["a", "", "x", "$SYS", "b\n"]), min_size=1, max_size=4),
)
def test_a_matcher_says_what_filter_matches_says(levels: list[str], has_rest: bool, names: list[str]) -> None:
    for one in (levels, ["#"]) if has_rest else (levels,):
        topic_filter = "/".join([*one, "#"] if has_rest and one != ["#"] else one)
        name = "/".join(names)
        assert bool(matcher_of(topic_filter)(name)) == filter_matches(topic_filter, name)
