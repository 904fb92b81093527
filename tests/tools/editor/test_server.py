"""`rest-bridge lsp` as an editor sees it: a process of its own, JSON-RPC over its standard input and output."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support.lsp_client import LspClient, applied
from tests.support.route_text import BASIC

WRONG = """\
// \U0001f600 of the plant
DEFINE ROUTE Alerts WITH TYPE REST_API
    ADD REST_API_CONFG
        WITH BASE_ADDRESS "http://127.0.0.1"
        WITH ENABLE_CLIENT "true" /* \U0001f600 */ WITH REQUEST_TIMOUT '10'
    ADD EVENT Open
        WITH SOURCE_TOPIC "plant/+/alert"
        WITH METHOD "PSOT"
        WITH ENDPOINT "tickets?line={topic.2}"
        WITH BODY '{"\U0001f600": {value.jsn.level}}'
"""
OTHER = BASIC.replace("ROUTE R", "ROUTE Next").replace('"in"', '"tickets/#"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "next.lot").write_text(OTHER)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[LspClient]:
    client = LspClient(folder)
    yield client
    assert client.end() == 0


@pytest.fixture
def uri(client: LspClient, folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    uri = (folder / "a.lot").as_uri()
    yield uri
    client.close(uri)
    client.notified.clear()


def test_the_editor_is_asked_to_watch_route_files(client: LspClient) -> None:
    client.at("hover", "file:///nowhere.lot", 0, 0)
    (asked,) = client.asked
    (files,) = asked["params"]["registrations"]
    assert files["method"] == "workspace/didChangeWatchedFiles"
    assert files["registerOptions"]["watchers"] == [{"globPattern": "**/*.{lot,lotnb}"}]


def test_every_did_you_mean_has_a_fix_and_with_all_of_them_check_passes(
    client: LspClient, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, found = WRONG, client.open(uri, WRONG)
    fixed = []
    while asked := [one for one in found if "did you mean" in one["message"]]:
        assert asked[0]["codeDescription"]["href"].endswith(f"/lot/README.md#{asked[0]['code']}")
        (fix,) = client.fixes(uri, asked[0])
        assert fix["diagnostics"] == asked[:1]
        fixed.append(fix["title"])
        text = applied(text, fix["edit"]["changes"][uri])
        client.change(uri, len(fixed) + 1, text)
        found = client.diagnostics(uri, len(fixed) + 1)
    assert fixed == ["Write REST_API_CONFIG", "Write REQUEST_TIMEOUT", 'Write "POST"', "Write {value.json.level}"]
    assert found == []
    (tmp_path / "a.lot").write_text(text)
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 usable route, no faults\n"


def test_an_editor_is_helped_with_what_is_written(client: LspClient, uri: str) -> None:
    text = BASIC + '        WITH BODY "\U0001f600{payload}" + GET ENV "NOT_THERE"\n        WITH \n'
    client.open(uri, text)
    names = {item["label"]: item for item in client.at("completion", uri, 9, 13)}
    assert "DESTINATION_TOPIC" in names
    assert "METHOD" not in names
    edit = names["DESTINATION_TOPIC"]["textEdit"]
    assert edit["range"]["start"] == edit["range"]["end"] == {"line": 9, "character": 13}
    assert "the payload of the message" in client.at("hover", uri, 8, 24)["contents"]["value"]
    assert client.at("hover", uri, 8, 24)["range"]["start"] == {"line": 8, "character": 21}
    assert "method of the request" in client.at("hover", uri, 6, 15)["contents"]["value"]
    (route,) = client.ask("documentSymbol", uri)
    assert (route["name"], [one["name"] for one in route["children"]]) == ("R", ["REST_API_CONFIG", "E"])
    assert client.formatting(uri) == []


def test_a_topic_leads_to_a_file_that_is_not_open(client: LspClient, uri: str, folder: Path) -> None:
    client.open(uri, BASIC + '        WITH DESTINATION_TOPIC "tickets/opened"\n')
    (found,) = client.at("definition", uri, 8, 40)
    assert found["uri"] == (folder / "next.lot").as_uri()
    assert found["range"] == {"start": {"line": 5, "character": 26}, "end": {"line": 5, "character": 37}}
    (folder / "next.lot").unlink()
    changes = [{"uri": (folder / "next.lot").as_uri(), "type": 3}]
    client.notify("workspace/didChangeWatchedFiles", {"changes": changes})
    while client.at("definition", uri, 8, 40):
        pass
    (folder / "next.lot").write_text(OTHER)
    client.notify("workspace/didChangeWatchedFiles", {"changes": changes})


def test_a_text_is_formatted_unless_it_has_an_error(client: LspClient, uri: str) -> None:
    flat = " ".join(BASIC.split())
    client.open(uri, flat)
    assert applied(flat, client.formatting(uri)) == BASIC
    client.change(uri, 2, flat.replace("METHOD", "METOD"))
    assert client.formatting(uri) == []


def test_an_event_is_tried_as_it_is_in_the_editor_without_code_of_the_working_directory(
    client: LspClient, uri: str, folder: Path
) -> None:
    (folder / "typer.py").write_text("raise SystemExit('foreign code')")
    client.open(uri, BASIC.replace("http:", "https:") + '        WITH HEADERS ADD Authorization "Bearer t0p-s3cret"\n')
    (lens,) = client.ask("codeLens", uri)
    assert lens["command"]["command"] == "rest-bridge.try"
    shown = client.try_event(*lens["command"]["arguments"])
    assert shown.startswith("# route R, event E (a.lot:1)\nPOST https://api.example.com/x\n")
    assert "t0p-s3cret" not in shown
    assert any(message["method"] == "window/showMessage" for message in client.notified)
    assert client.try_event("file:///nowhere.lot", {}) is None
    (folder / "typer.py").unlink()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        pytest.param({"topic": "a\0b"}, r"try: topic cannot be in a message: 'a\x00b'", id="NUL"),
        pytest.param({"topic": "\ud83d"}, "try: topic cannot be in a message: ", id="half a character"),
        pytest.param({"topic": 7}, "try: topic cannot be in a message: 7", id="number"),
        pytest.param({"topic": "x" * (1 << 18)}, "try: Argument list too long", id="length"),
        pytest.param({"topic": "a/+"}, "rest-bridge try: ", id="wildcard"),
        pytest.param({"topic": "--help"}, "a message on --help triggers no client event", id="option"),
    ],
)
def test_what_cannot_be_tried_is_said(client: LspClient, uri: str, options: dict[str, Any], shown: str) -> None:
    client.open(uri, BASIC)
    answer = client.try_event(uri, options)
    assert shown in answer and "Traceback" not in answer


def test_a_file_whose_name_is_not_utf_8_is_the_file_of_the_workspace(tmp_path: Path) -> None:
    """With a server of its own: one that others share would find the file's route in theirs."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.lot"))
    path.write_text(BASIC + '        WITH DESTINATION_TOPIC "tickets/opened"\n')
    (tmp_path / "next.lot").write_text(OTHER)
    client = LspClient(tmp_path)
    assert client.open(path.as_uri(), path.read_text()) == []
    uri = (tmp_path / "next.lot").as_uri()
    client.open(uri, OTHER)
    client.close(path.as_uri())
    while not (found := client.at("definition", uri, 5, 30)):
        pass
    assert found[0]["uri"] == path.as_uri() and path.as_uri().endswith("/%FF.lot")
    assert client.end() == 0


def test_a_notebook_is_read_as_its_json_and_by_its_cells(client: LspClient, folder: Path) -> None:
    uri, wrong = (folder / "a.lotnb").as_uri(), BASIC.replace("METHOD", "METOD")
    text = json.dumps([{"language": "markdown", "value": "x"}, {"language": "lot", "value": f"// \u00e9\n{wrong}"}])
    (one,) = client.open(uri, text)
    (fix,) = client.fixes(uri, one)
    assert text[one["range"]["start"]["character"] : one["range"]["end"]["character"]] == "METOD"
    client.change(uri, 2, applied(text, fix["edit"]["changes"][uri]))
    assert client.diagnostics(uri, 2) == []
    client.close(uri)

    cells = [f"vscode-notebook-cell:{uri[5:]}#W{number}" for number in range(2)]
    items = [{"uri": cell, "languageId": "lot", "version": 1, "text": wrong} for cell in cells]
    listed = [{"kind": 2, "document": cell} for cell in cells]
    document = {"uri": uri, "notebookType": "lot-notebook", "version": 1, "cells": listed}
    client.notify("notebookDocument/didOpen", {"notebookDocument": document, "cellTextDocuments": items})
    assert [found["code"] for found in client.diagnostics(cells[0], 1)] == ["unknown-setting"]
    assert {found["code"] for found in client.diagnostics(cells[1], 1)} == {"unknown-setting", "duplicate"}
    place = {"start": {"line": 6, "character": 13}, "end": {"line": 6, "character": 18}}
    typed = {"document": {"uri": cells[0], "version": 2}, "changes": [{"range": place, "text": "METHOD"}]}
    removed = {"array": {"start": 1, "deleteCount": 1}, "didClose": [{"uri": cells[1]}]}
    change = {"cells": {"structure": removed, "textContent": [typed]}}
    client.notify("notebookDocument/didChange", {"notebookDocument": {"uri": uri, "version": 2}, "change": change})
    assert client.diagnostics(cells[0], 2) == []
    assert "method of the request" in client.at("hover", cells[0], 6, 15)["contents"]["value"]
    closed = {"notebookDocument": {"uri": uri}, "cellTextDocuments": [{"uri": cells[0]}]}
    client.notify("notebookDocument/didClose", closed)


HOSTILE = [
    pytest.param("\x00\ud83d\u2028\r" * 100, id="characters"),
    pytest.param("DEFINE ROUTE " * 1_000, id="definitions"),
    pytest.param('WITH X "' * 5_000, id="quotes"),
    pytest.param("\nDEFINE ROUTE A WITH TYPE REST_API\nADD X" * 600, id="faults"),
    pytest.param("x" * (2 << 20), id="2 MiB"),
    pytest.param("", id="nothing"),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_makes_the_server_fail(client: LspClient, uri: str, text: str) -> None:
    client.open(uri, text)
    for method in ("completion", "hover", "definition"):
        for place in ((0, 0), (0, len(text)), (99_999, 5)):
            client.at(method, uri, *place)
    for method in ("documentSymbol", "codeLens"):
        client.ask(method, uri)
    client.formatting(uri)
    assert [one for one in client.notified if one["method"] != "textDocument/publishDiagnostics"] == []


def test_files_outside_of_the_workspace_and_unknown_ones_are_answered(client: LspClient) -> None:
    assert client.open("untitled:Untitled-1", BASIC) == []
    assert client.at("hover", "untitled:Untitled-1", 6, 15) is not None
    assert client.at("hover", "file:///nowhere.lot", 0, 0) is None
    client.change("file:///nowhere.lot", 2, "x")
    assert client.ask("codeLens", "file:///nowhere.lot") is None
    assert [one for one in client.notified if one["method"] != "textDocument/publishDiagnostics"] == []


def test_without_a_workspace_a_text_is_read_and_columns_count_what_the_editor_asks_for() -> None:
    client = LspClient(None, general={"positionEncodings": ["utf-8", "utf-16"]})
    assert client.capabilities["positionEncoding"] == "utf-8"
    (found,) = client.open("untitled:a", BASIC.replace("WITH METHOD", "/* \U0001f600 */ WITH METOD"))
    assert found["range"]["start"]["character"] == 8 + len("/* \U0001f600 */ WITH ".encode())
    assert client.end() == 0


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["lsp"]) == 2
    assert capsys.readouterr().err == (
        "rest-bridge lsp: pygls is not installed: pip install 'amqtt-rest-bridge[lsp]'\n"
    )
