"""JSON as lines that fold, on the pages of runs."""

import json
import time

import pytest

from amqtt_rest_bridge.admin.run_page import json_lines


def written(text: str) -> str:
    """Put the lines together again."""
    parts: list[str] = []
    ends: list[str] = []
    for line in json_lines(text):
        if line.kind == "close":
            parts.append(ends.pop())
            continue
        if parts and parts[-1] not in ("{", "["):
            parts.append(",")
        if ends and ends[-1] == "}":
            parts.append(f"{line.name}:")
        parts.append(line.text[0] if line.kind == "open" else line.text)
        if line.kind == "open":
            ends.append({"{": "}", "[": "]"}[line.text[0]])
    return "".join(parts)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"a":1.10,"a":1E+2,"b":12345678901234567890123,"c":-0}', id="numbers and names as written"),
        pytest.param('{"b":[],"a":{},"c":[null,true,false,"ü\\n\\"<b>"],"":{"x":[[1]]}}', id="every kind"),
        pytest.param('[{"a":1},{"a":2}]', id="array"),
    ],
)
def test_nothing_of_a_text_is_lost_or_changed(text: str) -> None:
    assert written(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "plain", "17", '"text"', "{}", "[]", '{"a": ', "\ufeff{}", "[" * 20_000 + "]" * 20_000,
        "[" * 40 + "1" + "]" * 40, json.dumps(list(range(5000))),
    ],
)  # fmt: skip
def test_a_text_that_has_no_json_or_too_much_of_it_has_no_lines(text: str) -> None:
    begin = time.process_time()
    assert json_lines(text) == []
    assert time.process_time() - begin < 2


def test_what_is_long_is_folded_and_what_is_short_is_seen() -> None:
    lines = json_lines(json.dumps({"short": {"a": 1}, "long": [{"a": number} for number in range(30)]}))
    opened = {line.name: line.is_open for line in lines if line.kind == "open"}
    assert (opened[""], opened['"short"'], opened['"long"'], opened["29"]) == (True, True, False, True)
    assert [line.text for line in lines if line.name == '"long"'] == ["[ 30 items ]"]
