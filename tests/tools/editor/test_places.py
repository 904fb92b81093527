import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqtt_rest_bridge.tools.editor.places import EditorPlace, Lines

TEXTS = st.text(st.sampled_from("a\u00e9\u20ac\U0001f600\n\r\t\u2028\x0c"), max_size=12)


@settings(max_examples=100)
@given(text=TEXTS, units=st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_a_place_leads_back_to_its_offset(text: str, units: str) -> None:
    lines = Lines(text, units)
    for offset in range(len(text) + 1):
        inside_a_line_end = text[offset - 1 : offset + 1] == "\r\n"
        assert inside_a_line_end or lines.offset(*lines.place(offset)) == offset


@pytest.mark.parametrize(("units", "column"), [("utf-8", 7), ("utf-16", 4), ("utf-32", 3)])
def test_columns_count_the_units_of_the_editor(units: str, column: int) -> None:
    lines = Lines("x\na\U0001f600\u00e9b", units)
    assert lines.place(5) == EditorPlace(1, column)
    assert lines.offset(1, column) == 5


@pytest.mark.parametrize(
    ("place", "offset"), [((0, 99), 2), ((1, 99), 5), ((9, 0), 6), ((-1, 0), 0), ((0, -1), 0), ((2, 0), 6)]
)
def test_a_place_outside_is_the_nearest_inside(place: tuple[int, int], offset: int) -> None:
    assert Lines("ab\ncd\n").offset(*place) == offset
