"""Coreflux's own tools, exchange by exchange, against a broker with real sockets."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from amqtt_rest_bridge.system import own_version
from tests.support.embedded_broker import Host
from tests.support.http_recorder import recording
from tests.support.waiting import eventually
from tests.tools.commands.tools import FILE_ROUTE, Tool, cell_ends, definition, serving

ROUTES = "$SYS/Coreflux/Routes"


@pytest.fixture
def host(served: tuple[Host, Path]) -> Iterator[Host]:
    """A broker whose commands have added nothing yet."""
    yield served[0]
    with closing(Tool(served[0])) as tool:
        assert tool.command("-removeAllRoutes") == "removed all routes successfully"


@pytest.fixture
def editor(host: Host) -> Iterator[Tool]:
    with closing(Tool(host)) as tool:
        yield tool


def run_cell(tool: Tool, name: str, code: str) -> list[str]:
    """Run a cell as the notebook extension does; return the answers that it acted on."""
    answers = []
    for step, command in (("remove", f"-removeRoute {name}"), ("add", f"-addRoute {code}")):
        answers.append(tool.command(command))
        end = cell_ends(answers[-1], step, name)
        assert end is not None, f"the cell waits for ever: {answers[-1]}"
        if end != "add":
            break
    return [*answers, str(end)]


def test_a_cell_runs_and_runs_again(editor: Tool) -> None:
    added = "Route 'Cell' added successfully."
    assert run_cell(editor, "Cell", definition("Cell")) == ["Route 'Cell' not found.", added, "added"]
    changed = definition("Cell", "in2")
    assert run_cell(editor, "Cell", changed) == ["Route 'Cell' removed successfully.", added, "added"]


def test_a_route_of_a_cell_is_called(host: Host, editor: Tool) -> None:
    with recording() as target:
        text = definition("Called").replace("http://127.0.0.1:1", target.url)
        assert run_cell(editor, "Called", text)[-1] == "added"
        client = host.client("in/out")
        client.publish("in/in", b"payload")
        assert client.message() == ("in/out", b"payload")


def test_a_cell_with_a_fault_ends_with_its_place(editor: Tool) -> None:
    answers = run_cell(editor, "Cell", definition("Cell").replace("ENDPOINT", "ENDPIONT"))
    assert answers[1:] == [
        "Parsing error: unknown setting ENDPIONT (8,14)\nSuggestions: did you mean ENDPOINT?",
        "failed",
    ]


@pytest.mark.parametrize("kind", ["MODEL", "ACTION", "RULE"])
def test_cells_of_other_kinds_end_with_a_sentence(editor: Tool, kind: str) -> None:
    answer = editor.command(f"-remove{kind.title()} Other")
    assert cell_ends(answer, "remove", "Other") == "failed"
    assert "this broker runs routes of type REST_API only" in answer
    assert cell_ends(editor.command(f"-add{kind.title()} DEFINE {kind} Other"), "add", "Other") == "failed"


def test_update_broker_sends_the_name_before_the_definition(editor: Tool) -> None:
    editor.add("Updated", f"Updated {definition('Updated')}")


def test_the_tree_has_the_text_of_a_cell_last_also_after_its_status(host: Host, editor: Tool) -> None:
    code = definition("InTree") + "\n// a comment   "
    assert run_cell(editor, "InTree", code)[-1] == "added"
    with closing(Tool(host, "editor", f"{ROUTES}/#", "$SYS/Coreflux/Version")) as tree:
        # The version is sent when all of the first filter has been acknowledged.
        assert tree.read("$SYS/Coreflux/Version").decode() == own_version()
        shown = {"/".join(topic.split("/")[:4]): payload for topic, payload in tree.seen}  # whatever is below a route
        assert f"{ROUTES}/InTree/status" in dict(tree.seen)
        assert shown[f"{ROUTES}/InTree"] == code.encode()
        assert shown[f"{ROUTES}/FromFile"].decode().split() == FILE_ROUTE.split()
        status = json.loads(dict(tree.seen)[f"{ROUTES}/FromFile/status"])
        assert (status["name"], status["health"]) == ("FromFile", "Green")


def test_a_removed_route_leaves_nothing_retained(host: Host, editor: Tool) -> None:
    editor.add("Gone")
    editor.remove("Gone")
    eventually(lambda: not [topic for topic in host.broker.retained_messages if "/Gone" in topic], "it is retained")


def test_the_editor_plugin_adds_a_route_behind_whose_last_comment_the_request_id_is(editor: Tool) -> None:
    code = f"// what it is for\n{definition('Plugin')}\n-- the end"
    assert editor.call(f"-addRoute {code}") == {
        "success": True,
        "command": "AddRoute",
        "requestId": "cursor-1a2b3c4d",
        "message": "Route 'Plugin' added successfully.",
        "entityType": "Route",
        "entityName": "Plugin",
        "data": {},
        "errors": [],
    }
    assert run_cell(editor, "Plugin", code)[0] == "Route 'Plugin' removed successfully."


def test_the_editor_plugin_receives_every_fault(editor: Tool) -> None:
    code = definition("Plugin").replace("METHOD", "METHODE").replace("BASE_ADDRESS", "BASE_ADRESS")
    errors = editor.call(f"-addRoute {code}")["errors"]
    places = {(one["line"], one["column"], *one["sourceLines"], *one["suggestions"]) for one in errors}
    assert (4, 14, '        WITH BASE_ADRESS "http://127.0.0.1:1"', "did you mean BASE_ADDRESS?") in places
    assert (7, 14, '        WITH METHODE "POST"', "did you mean METHOD?") in places


def test_the_overview_of_the_editor_plugin_is_complete(editor: Tool) -> None:
    routes = editor.call("-listRoutes")
    assert (routes["success"], routes["command"]) == (True, "ListRoutes")
    assert routes["data"] == [{"name": "FromFile", "type": "REST_API", "connection": "idle", "health": "Green"}]
    assert editor.call("-connectionStatus")["data"][0]["connection"] == "idle"
    assert editor.call("-listProjects")["data"] == []
    assert editor.call("-getPendingStatus")["message"].startswith("Nothing waits")


def test_reports_of_routes(editor: Tool, served: tuple[Host, Path]) -> None:
    editor.add("Seen", definition("Seen") + '\n        WITH HEADERS\n            ADD "X-A" GET ENV "HOME"')
    assert editor.call("--list-entities")["data"] == [
        {"name": "FromFile", "type": "Route", "origin": f"{served[1]}/routes.lot:1:1"},
        {"name": "Seen", "type": "Route", "origin": "adhoc"},
    ]
    assert editor.call("-listTemplates")["data"] == ["REST_API"]
    assert editor.call("-routeCode rest_api")["data"].startswith("DEFINE ROUTE RouteName WITH TYPE REST_API")
    assert editor.call("-listEnv")["data"] == [{"name": "HOME"}]
    assert editor.call("-listSecrets")["data"] == []
    assert editor.call("-checkRouteConnection Seen")["data"]["connection"] == "idle"
    report = editor.call("-lotDiagnostic route Seen")["data"]
    assert report["place"] == f"{served[1]}/live/Seen.lot:1:1"
    assert (report["faults"], report["status"]["health"]) == ([], "Green")
    assert not editor.call("-lotDiagnostic action Seen")["success"]
    assert "Route 'None' not found." in editor.command("-checkRouteConnection None")


def test_a_route_of_another_file_is_not_touched_and_named_with_its_place(
    editor: Tool, served: tuple[Host, Path]
) -> None:
    place = f"{served[1]}/routes.lot:1:1"
    answer = editor.command("-removeRoute FromFile")
    assert (f"it is defined in {place}" in answer, cell_ends(answer, "remove", "FromFile")) == (True, "failed")
    (error,) = editor.call(f"-addRoute {definition('FromFile')}")["errors"]
    assert error["message"] == "there are two routes FromFile"
    assert error["suggestions"] == [f"the first is in {place}"]


def test_the_word_success_is_in_no_failure_though_a_name_holds_it(editor: Tool) -> None:
    faulty = definition("success").replace("ENDPOINT", "ON_SUCCESS")
    for command in ("-removeRoute success", "-removeRoute success -requestId success", f"-addRoute {faulty}"):
        assert "success" not in editor.command(command).lower()
    editor.add("success")


def test_a_folder_inside_that_of_the_routes_is_read_once(threads: None, tmp_path: Path) -> None:
    with serving(tmp_path, routes=".") as host, closing(Tool(host)) as tool:
        tool.add("Inner")
        assert tool.call("-listEntities")["data"][0] == {"name": "Inner", "type": "Route", "origin": "adhoc"}
        tool.remove("Inner")


def test_an_answer_comes_within_the_time_of_the_tools(editor: Tool) -> None:
    began = time.monotonic()
    editor.add("Timed")
    assert time.monotonic() - began < 15
