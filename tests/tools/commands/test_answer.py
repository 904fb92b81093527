"""Answers as bytes: the text and the envelope, and the word that no failure holds."""

import json
from typing import Any

import pytest

from amqtt_rest_bridge.errors import Fault, Position, Severity
from amqtt_rest_bridge.lot.reference import template
from amqtt_rest_bridge.tools.commands.command import (
    CommandAnswer,
    failure_answer,
    parse_command,
    refusal_answer,
    write_answer,
)
from tests.support.route_text import load_text

ADD = "-addRoute DEFINE ROUTE X WITH TYPE REST_API"


def text(answer: CommandAnswer) -> str:
    return write_answer(parse_command(ADD.encode()), answer).decode()


def envelope(answer: CommandAnswer) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(write_answer(parse_command(f"{ADD} -requestId a".encode()), answer))
    return written


def fault(message: str, line: int, column: int, hint: str | None = None) -> Fault:
    return Fault("live/X.lot", Position(line, column), Severity.ERROR, message, hint)


def test_a_text_has_the_first_fault_with_its_place_and_the_others_as_suggestions() -> None:
    answer = refusal_answer([fault("no (1,2) here", 2, 3, "did you mean Y?"), fault("bad", 3, 1)], "a\nbcd\ne")
    assert text(answer) == "Parsing error: no (1, 2) here (2,3)\nSuggestions: did you mean Y?\nalso: bad (3,1)"


def test_an_envelope_has_all_faults_with_source_lines_and_suggestions() -> None:
    assert envelope(
        refusal_answer([fault("no", 2, 3, "did you mean Y?"), fault("bad", 1, 1)], "a\r\nbcd\r\n", "X ")
    ) == {
        "success": False,
        "command": "AddRoute",
        "requestId": "a",
        "message": "Parsing error: no (2,3)",
        "entityType": None,
        "entityName": None,
        "data": {},
        "errors": [
            {"message": "no", "line": 2, "column": 3, "sourceLines": ["bcd"], "suggestions": ["did you mean Y?"]},
            {"message": "bad", "line": 1, "column": 3, "sourceLines": ["a"], "suggestions": []},
        ],
    }


def test_lines_count_from_what_follows_the_command() -> None:
    (one, two) = envelope(refusal_answer([fault("no", 1, 1), fault("bad", 2, 1)], "a\nb", "X\n "))["errors"]
    assert (one["line"], one["column"], two["line"], two["column"]) == (2, 2, 3, 1)


def test_a_text_has_twenty_faults_at_most() -> None:
    lines = text(refusal_answer([fault(f"no {number}", 1, 1) for number in range(200)], "a")).splitlines()
    assert (len(lines), lines[-1]) == (21, "180 more are not listed")


NAMED_SO = CommandAnswer("Route 'my_Success' not found.", False, "my_Success")


@pytest.mark.parametrize(
    "answer",
    [
        NAMED_SO,
        failure_answer(parse_command(b"-addSuccess"), "SUCCESS", "success"),
        refusal_answer([fault("unknown setting ON_SUCCESS", 1, 1, "did you mean success?")], "WITH ON_SUCCESS"),
    ],
)
def test_no_failure_holds_the_word_success(answer: CommandAnswer) -> None:
    for payload in (ADD, f"{ADD} -requestId success-1"):
        assert b"success" not in write_answer(parse_command(payload.encode()), answer).lower()


def test_an_envelope_without_the_word_says_the_same() -> None:
    members = envelope(NAMED_SO)
    assert (members["success"], members["entityName"]) == (False, "my_Success")
    assert members["message"] == members["errors"][0]["message"] == "Route 'my_Success' not found."


def test_a_failure_names_its_subject_and_holds_the_word_error() -> None:
    assert text(failure_answer(parse_command(b"-addModel M"), "M", "why")) == "Error: -addModel M failed: why"


def test_the_template_of_a_route_is_sound() -> None:
    assert [str(one) for one in load_text(template()).faults] == []
