"""An editor: speaks the language server protocol with `rest-bridge lsp` over its standard input and output."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CAPABILITIES: Mapping[str, Any] = {
    "textDocument": {
        "synchronization": {"didSave": True},
        "publishDiagnostics": {"versionSupport": True, "codeDescriptionSupport": True},
        "codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix"]}}},
        "hover": {"contentFormat": ["markdown"]},
    },
    "notebookDocument": {"synchronization": {}},
    "workspace": {"workspaceFolders": True, "didChangeWatchedFiles": {"dynamicRegistration": True}},
}


class LspClient:
    """A language server that was started, and what it has sent."""

    def __init__(self, folder: Path | None, *, arguments: Sequence[str] = (), general: Mapping[str, Any] | None = None):
        command = [sys.executable, "-m", "amqtt_rest_bridge", "lsp", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        self.notified: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []  # requests of the server, which are agreed to
        self._number = 0
        folders = [{"uri": folder.as_uri(), "name": folder.name}] if folder is not None else None
        given = {"processId": None, "rootUri": None, "workspaceFolders": folders}
        capabilities = {**CAPABILITIES, "general": dict(general or {})}
        self.capabilities = self.request("initialize", {**given, "capabilities": capabilities})["capabilities"]
        self.notify("initialized", {})

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def request(self, method: str, params: Mapping[str, Any] | None) -> Any:
        """Send a request and return its result; what the server sends meanwhile is kept in `notified`."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self._number and "method" not in message:
                assert "error" not in message, message
                return message["result"]
            self.notified.append(message)

    def open(self, uri: str, text: str, language: str = "lot") -> list[dict[str, Any]]:
        """Open a document and return what is wrong with it."""
        self.notify(
            "textDocument/didOpen",
            {"textDocument": {"uri": uri, "languageId": language, "version": 1, "text": text}},
        )
        return self.diagnostics(uri, 1)

    def change(self, uri: str, version: int, text: str) -> None:
        """Change the whole text of a document."""
        document = {"uri": uri, "version": version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def diagnostics(self, uri: str, version: int | None) -> list[dict[str, Any]]:
        """Wait for what is wrong with a version of a document."""
        while True:
            for message in self.notified:
                params = message.get("params", {})
                is_wanted = message.get("method") == "textDocument/publishDiagnostics" and params["uri"] == uri
                if is_wanted and params.get("version") == version:
                    self.notified.remove(message)
                    found: list[dict[str, Any]] = params["diagnostics"]
                    return found
            self.notified.append(self._receive())

    def ask(self, method: str, uri: str, **params: Any) -> Any:
        """Ask about a document."""
        return self.request(f"textDocument/{method}", {"textDocument": {"uri": uri}, **params})

    def at(self, method: str, uri: str, line: int, character: int) -> Any:
        """Ask about a place of a document."""
        return self.ask(method, uri, position={"line": line, "character": character})

    def formatting(self, uri: str) -> Any:
        """Ask for the edits that lay a document out."""
        return self.ask("formatting", uri, options={"tabSize": 2, "insertSpaces": True})

    def try_event(self, *arguments: Any) -> Any:
        """Run the command of a code lens, and return what it shows."""
        return self.request("workspace/executeCommand", {"command": "rest-bridge.try", "arguments": [*arguments]})

    def close(self, uri: str) -> None:
        """Close a document."""
        self.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    def fixes(self, uri: str, diagnostic: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Ask for what mends a fault."""
        asked = {"range": diagnostic["range"], "context": {"diagnostics": [diagnostic]}}
        found: list[dict[str, Any]] = self.ask("codeAction", uri, **asked)
        return found

    def end(self) -> int:
        """End the server as an editor does, and return its exit status."""
        self.request("shutdown", None)
        self.notify("exit", {})
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        status = self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()
        return status

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        self.process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = 0
        while (line := self.process.stdout.readline().strip()) or not length:
            assert line, "the server has ended"
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message: dict[str, Any] = json.loads(self.process.stdout.read(length))
        if "id" in message and "method" in message:
            self.asked.append(message)
            self._send({"id": message["id"], "result": None})
            return self._receive()
        return message


def applied(text: str, edits: Sequence[Mapping[str, Any]]) -> str:
    """Return a text after edits, whose columns count UTF-16 code units."""
    for edit in sorted(edits, key=lambda one: tuple(one["range"]["start"].values()), reverse=True):
        start, end = (_offset(text, edit["range"][end]) for end in ("start", "end"))
        text = text[:start] + edit["newText"] + text[end:]
    return text


def _offset(text: str, place: Mapping[str, int]) -> int:
    lines = text.splitlines(keepends=True)
    line = lines[place["line"]] if place["line"] < len(lines) else ""
    inside = len(line.encode("utf-16-le")[: 2 * place["character"]].decode("utf-16-le"))
    return sum(map(len, lines[: place["line"]])) + inside
