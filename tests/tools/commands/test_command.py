"""Payloads are parsed to commands and definitions, and answers written as bytes: a text, or the envelope."""

import json
from typing import Any

import pytest

from amqtt_rest_bridge.errors import Fault, Position, Severity
from amqtt_rest_bridge.lot.reference import template
from amqtt_rest_bridge.tools.commands.command import (
    CommandAnswer,
    failure_answer,
    parse_command,
    read_definition,
    refusal_answer,
    subject_of,
    write_answer,
)
from tests.support.route_text import load_text

TEXT = "DEFINE ROUTE X WITH TYPE REST_API\n    ADD REST_API_CONFIG"
ADD = "-addRoute DEFINE ROUTE X WITH TYPE REST_API"


@pytest.mark.parametrize(
    ("payload", "name", "arguments", "request_id"),
    [
        pytest.param(b"-LISTROUTES", "ListRoutes", "", None, id="any case"),
        pytest.param(b"--list-routes", "ListRoutes", "", None, id="kebab case"),
        pytest.param(b"  -removeRoute X\n", "RemoveRoute", "X\n", None, id="white space"),
        pytest.param(b"-listRoutes -requestId cursor-12", "ListRoutes", "", "cursor-12", id="request id"),
        pytest.param(b"-removeRoute X\n-REQUESTID a\n", "RemoveRoute", "X", "a", id="on a line of its own"),
        pytest.param(b"--remove-route X --request-id a", "RemoveRoute", "X", "a", id="kebab case with request id"),
        pytest.param(b"-addRoute A // why -requestId 7", "AddRoute", "A // why", "7", id="after a comment"),
        pytest.param(b"-removeRoute X-requestId a", "RemoveRoute", "X-requestId a", None, id="within a word"),
        pytest.param(b"-requestId a -listRoutes", "RequestId", "a -listRoutes", None, id="not the last words"),
        pytest.param(b"-addModel DEFINE MODEL M", "AddModel", "DEFINE MODEL M", None, id="one of others"),
        pytest.param(b"-listRoutes -requestId " + b"x" * 129, "ListRoutes", "-requestId " + "x" * 129, None, id="long"),
    ],
)
def test_a_payload_is_a_command(payload: bytes, name: str, arguments: str, request_id: str | None) -> None:
    command = parse_command(payload)
    assert (command.name, command.arguments, command.request_id) == (name, arguments, request_id)
    assert command.fault is None


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        pytest.param(b"", "a command begins with - and its name", id="nothing"),
        pytest.param(b"listRoutes", "a command begins with - and its name", id="no dash"),
        pytest.param(b"-" + b"a" * 65, "a command begins with - and its name", id="an endless name"),
        pytest.param(b"-addRoute \xff", "a command is UTF-8 text", id="not UTF-8"),
    ],
)
def test_what_cannot_be_a_command_says_why_and_keeps_its_request_id(payload: bytes, fault: str) -> None:
    command = parse_command(payload + b" -requestId a")
    assert (command.fault or "").startswith(fault)
    assert command.request_id == "a"


@pytest.mark.parametrize(
    ("arguments", "name", "text", "before"),
    [
        pytest.param(f"X\n  {TEXT}", "X", TEXT, "X\n  ", id="on the next line"),
        pytest.param(f"//\n-- 2\n/* 3 */ {TEXT}", "X", f"//\n-- 2\n/* 3 */ {TEXT}", "", id="comments"),
        pytest.param(f"X // why\n{TEXT}", "X", f"// why\n{TEXT}", "X ", id="a name and a comment"),
        pytest.param("define route x", "x", "define route x", "", id="lower case"),
        pytest.param("DEFINE ROUTE ../x", None, "DEFINE ROUTE ../x", "", id="no name"),
        pytest.param("DEFINE MODEL M", None, "DEFINE MODEL M", "", id="something else"),
    ],
)
def test_a_definition_is_found(arguments: str, name: str | None, text: str, before: str) -> None:
    definition = read_definition(arguments)
    assert (definition.name, definition.text, definition.before) == (name, text, before)
    assert definition.fault is None


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [("X", "X"), ('DEFINE MODEL "M" WITH', "M"), ("", ""), ("a\x00b c", "a\\x00b"), ("x" * 300, "x" * 57 + "...")],
)
def test_an_answer_names_what_a_command_is_about(arguments: str, subject: str) -> None:
    assert subject_of(arguments) == subject


def text(answer: CommandAnswer) -> str:
    return write_answer(parse_command(ADD.encode()), answer).decode()


def envelope(answer: CommandAnswer) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(write_answer(parse_command(f"{ADD} -requestId a".encode()), answer))
    return written


def fault(message: str, line: int, column: int, hint: str | None = None) -> Fault:
    return Fault("live/X.lot", Position(line, column), Severity.ERROR, message, hint)


def test_a_text_has_the_first_fault_with_its_place_and_up_to_nineteen_others_as_suggestions() -> None:
    first = fault("no (1,2) here", 2, 3, "did you mean Y?")
    answer = refusal_answer([first, fault("bad", 3, 1)], "a\nbcd\ne")
    assert text(answer) == "Parsing error: no (1, 2) here (2,3)\nSuggestions: did you mean Y?\nalso: bad (3,1)"
    lines = text(refusal_answer([first] * 200, "a")).splitlines()
    assert (len(lines), lines[-1]) == (22, "180 more are not listed")


def test_an_envelope_has_all_faults_at_their_places_behind_the_word_of_the_command() -> None:
    faults = [fault("no", 2, 3, "did you mean Y?"), fault("bad", 1, 1)]
    assert envelope(refusal_answer(faults, "a\r\nbcd\r\n", "X "))["errors"] == [
        {"message": "no", "line": 2, "column": 3, "sourceLines": ["bcd"], "suggestions": ["did you mean Y?"]},
        {"message": "bad", "line": 1, "column": 3, "sourceLines": ["a"], "suggestions": []},
    ]
    (one, two) = envelope(refusal_answer([fault("no", 1, 1), fault("bad", 2, 1)], "a\nb", "X\n "))["errors"]
    assert (one["line"], one["column"], two["line"], two["column"]) == (2, 2, 3, 1)


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


def test_the_template_of_a_route_is_sound() -> None:
    assert load_text(template()).faults == ()
