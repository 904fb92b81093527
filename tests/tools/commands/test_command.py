"""Payloads to commands: names, request ids, definitions; whatever comes."""

import pytest

from amqtt_rest_bridge.tools.commands.command import MAX_BYTES, parse_command, read_definition, subject_of

TEXT = "DEFINE ROUTE X WITH TYPE REST_API\n    ADD REST_API_CONFIG"


@pytest.mark.parametrize(
    ("payload", "name", "arguments", "request_id"),
    [
        pytest.param(b"-listRoutes", "ListRoutes", "", None, id="as the tools write it"),
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
        pytest.param(b"-addRoute " + b"x" * MAX_BYTES, "a command has at most 256 KiB", id="too long"),
    ],
)
def test_what_cannot_be_a_command_says_why_and_keeps_its_request_id(payload: bytes, fault: str) -> None:
    command = parse_command(payload + b" -requestId a")
    assert command.fault is not None
    assert command.fault.startswith(fault)
    assert (command.request_id, len(command.arguments) < 100) == ("a", True)


@pytest.mark.parametrize(
    ("arguments", "name", "text", "before"),
    [
        pytest.param(TEXT, "X", TEXT, "", id="a cell"),
        pytest.param(f"X {TEXT}", "X", TEXT, "X ", id="update broker"),
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
    ("arguments", "fault"),
    [
        pytest.param("", "write -addRoute and the whole definition", id="nothing"),
        pytest.param("X", "write -addRoute and the whole definition", id="a name"),
        pytest.param("ROUTE X WITH TYPE REST_API", "write -addRoute and the whole definition", id="bare"),
        pytest.param(f"Y {TEXT}", "-addRoute names Y, and the definition X", id="another name"),
        pytest.param("DEFINE ROUTE .x WITH", "such a route has a name of at most 200 characters", id="hidden"),
        pytest.param("DEFINE ROUTE .. WITH", "such a route has a name of at most 200 characters", id="a folder"),
        pytest.param("DEFINE ROUTE " + "x" * 201, "such a route has a name of at most 200 characters", id="long"),
        pytest.param("/*" * 100_000, "write -addRoute and the whole definition", id="comments that never end"),
    ],
)
def test_what_cannot_be_a_definition_says_why(arguments: str, fault: str) -> None:
    assert (read_definition(arguments).fault or "").startswith(fault)


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [("X", "X"), ('DEFINE MODEL "M" WITH', "M"), ("", ""), ("a\x00b c", "a\\x00b"), ("x" * 300, "x" * 57 + "...")],
)
def test_an_answer_names_what_a_command_is_about(arguments: str, subject: str) -> None:
    assert subject_of(arguments) == subject
