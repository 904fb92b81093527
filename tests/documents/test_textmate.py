"""The TextMate grammar says of each part of a route what the language reads it as."""

import re
from typing import Any

import pytest

from amqtt_rest_bridge.lot.settings_table import PARAMETERS
from tests.documents.textmate import FILE, grammar, written
from tests.support.documents import ROOT

REPOSITORY = grammar()["repository"]


def test_the_grammar_is_made_from_the_tables() -> None:
    assert FILE.read_text(encoding="utf-8") == written(), "python -m tests.documents.textmate"


def scopes(line: str) -> dict[str, str]:
    """Return the scope of each part of a line, by the first pattern that matches at each place."""
    found: dict[str, str] = {}
    rules: list[dict[str, Any]] = [
        rule for name in ("comments", "statements", "values") for rule in REPOSITORY[name]["patterns"]
    ]
    at = 0
    while at < len(line):
        matches = [(rule, re.compile(rule.get("match") or rule["begin"]).search(line, at)) for rule in rules]
        rule, match = min(
            ((rule, match) for rule, match in matches if match), key=lambda one: one[1].start(), default=({}, None)
        )
        if match is None:
            break
        end = match.end()
        if "begin" in rule:
            closed = re.compile(rule["end"]).search(line, end)
            end = closed.end() if closed else len(line)
        for number, capture in rule.get("captures", {}).items():
            found[match[int(number)]] = capture["name"]
        if "name" in rule:
            found[line[match.start() : end]] = rule["name"]
        at = max(end, at + 1)
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "DEFINE ROUTE My-1 WITH TYPE REST_API // x",
            {"DEFINE": "keyword.control.lot", "My-1": "entity.name.type.lot", "// x": "comment.line.lot"},
        ),
        ("    add event Open", {"add": "keyword.control.lot", "Open": "entity.name.function.lot"}),
        ("    ADD ROUTE_CONFIG", {"ROUTE_CONFIG": "storage.type.lot"}),
        ('    WITH METHOD "POST"', {"METHOD": "support.variable.lot", '"POST"': "string.quoted.double.lot"}),
        ("    WITH METOD 1", {"METOD": "invalid.illegal.lot", "1": "constant.numeric.lot"}),
        ("    WITH SOURCE_TOPICS x", {"SOURCE_TOPICS": "invalid.illegal.lot"}),
        ("    WITH EVERY 15 MINUTES", {"15 MINUTES": "constant.numeric.lot"}),
        (
            '        ADD X-Key GET SECRET "k"',
            {"X-Key": "entity.other.attribute-name.lot", "SECRET": "support.function.lot"},
        ),
    ],
)
def test_the_parts_of_a_line_have_their_scopes(line: str, expected: dict[str, str]) -> None:
    found = scopes(line)
    assert expected.items() <= found.items(), found


def test_no_statement_of_the_shipped_routes_is_marked_as_wrong() -> None:
    known = {name for rows in PARAMETERS.values() for name in rows}
    for line in (ROOT / "conf/routes/demo.lot").read_text(encoding="utf-8").splitlines():
        assert "invalid.illegal.lot" not in scopes(line).values(), line
    for name in known:
        assert scopes(f"WITH {name} 1")[name] == "support.variable.lot"


@pytest.mark.parametrize(
    "text", ["{payload}", "{value.json.a.0}", "{topic.2}", "{payload|none}", "{env.X}", "{response.json.id}", "{value}"]
)
def test_placeholders_are_marked_in_strings(text: str) -> None:
    (rule,) = REPOSITORY["placeholders"]["patterns"]
    assert re.fullmatch(rule["match"], text)
    assert not re.fullmatch(rule["match"], text.replace("{", "{x"))
