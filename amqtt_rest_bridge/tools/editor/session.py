"""The session of an editor: the texts that it has open, and the faults that it was sent. On the language server's loop.

`server` passes the changes of texts here; `project` reads them. A text is read in steps, so that requests are answered
in between. A request waits until its text is read. A change cancels the reading of the text before.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lsprotocol import types
from pygls.lsp.server import LanguageServer

import amqtt_rest_bridge
from amqtt_rest_bridge.errors import Severity
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.sources import find_route_files, is_route_file
from amqtt_rest_bridge.tools.editor.places import Lines
from amqtt_rest_bridge.tools.editor.project import MAX_TEXT, Finding, Project, RouteText

log = logging.getLogger(__name__)

_REFERENCE: Final = Path(amqtt_rest_bridge.__file__).parent / "lot" / "README.md"
_SEVERITIES: Final = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.NOTICE: types.DiagnosticSeverity.Information,
}
_MOST_FILES = 1_000  # of a workspace that are read; an open one always is


@dataclass(slots=True, eq=False)
class Document:
    """A text that the editor has open: a file, or a cell of a notebook."""

    uri: str
    path: str
    text: str
    version: int | None
    notebook: str = ""
    reading: asyncio.Task[None] | None = None
    published: list[Finding] | None = None


class Session:
    """What one editor has open, and what was sent to it."""

    def __init__(self, server: LanguageServer, environment: Environment) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self._documents: dict[str, Document] = {}  # by URI
        self._folders: list[Path] = []
        self.project = Project(environment)

    def begin(self, folders: Iterable[str], units: str) -> None:
        """Read the route files of the workspace, in the background; columns count `units`."""
        self.project.units = units
        self._folders = [Path(folder) for folder in folders]
        self._begin_task(self._read_folders())

    def open(self, uri: str, path: str, text: str, version: int | None) -> None:
        """Take the text of a document that has been opened."""
        self._begin_reading(Document(uri, path, text, version))

    def open_cell(self, uri: str, notebook: str, text: str, version: int | None) -> None:
        """Take the text of a cell, which is used instead of the file of its notebook."""
        self.project.remove(notebook)
        # The path of a cell ends with the name that the editor gives it: its number changes when a cell is inserted.
        self._begin_reading(Document(uri, f"{notebook}#{uri.rpartition('#')[2]}", text, version, notebook))

    def change(self, uri: str, version: int | None, changes: Iterable[types.TextDocumentContentChangeEvent]) -> None:
        """Apply changes to a document, in their order."""
        document = self._documents.get(uri)
        if document is None:
            return
        for change in changes:
            if isinstance(change, types.TextDocumentContentChangeWholeDocument):
                document.text = change.text
                continue
            text, lines = document.text, Lines(document.text, self.project.units)
            start, end = (lines.offset(one.line, one.character) for one in (change.range.start, change.range.end))
            document.text = text[:start] + change.text + text[max(start, end) :]
        document.version = version
        self._begin_reading(document)

    def close(self, uri: str) -> None:
        """Forget a document; a file of the workspace counts as it is on disk."""
        document = self._documents.pop(uri, None)
        if document is None:
            return
        if document.reading is not None:
            document.reading.cancel()
        self._send(document, [])
        self.project.remove(document.path)
        self.publish()
        self.read_from_disk([document.path])

    def read_from_disk(self, paths: Iterable[str]) -> None:
        """Read files that may have changed on disk, in the background."""
        route_files = (path for path in set(paths) if is_route_file(Path(path).name))
        inside = [path for path in route_files if any(map(Path(path).is_relative_to, self._folders))]
        self._begin_task(self._read_files(inside))

    def reload(self) -> None:
        """Read again what GET reads in the open documents."""
        self.project.reload({document.path for document in self._documents.values()})
        self.publish()

    async def file(self, uri: str) -> RouteText | None:
        """Return the text of a document once it is read as it is now."""
        document = self._documents.get(uri)
        while document is not None and document.reading is not None and not document.reading.done():
            await asyncio.wait([document.reading])
        return self.project.files.get(document.path) if document is not None else None

    def publish(self) -> None:
        """Send the diagnostics of open documents that differ from those sent before."""
        open_ones = {document.path: document for document in self._documents.values()}
        for path, findings in self.project.findings(open_ones).items():
            document = open_ones[path]
            is_read = document.reading is None or document.reading.done() or document.reading is asyncio.current_task()
            if is_read and findings != document.published:
                self._send(document, findings)

    def _send(self, document: Document, findings: list[Finding]) -> None:
        """Send what is wrong with a document to the editor."""
        document.published = findings
        shown = [
            types.Diagnostic(
                range=types.Range(types.Position(*one.start), types.Position(*one.end)),
                message=one.message,
                severity=_SEVERITIES[one.severity],
                code=str(one.code),
                code_description=types.CodeDescription(f"{_REFERENCE.as_uri()}#{one.code}"),
                source="rest-bridge",
                data=one.replacement,
            )
            for one in findings
        ]
        params = types.PublishDiagnosticsParams(document.uri, shown, document.version)
        self._server.text_document_publish_diagnostics(params)

    def uri_of(self, path: str) -> str | None:
        """Return the URI of a document that is open."""
        return next((one.uri for one in self._documents.values() if one.path == path), None)

    def _begin_reading(self, document: Document) -> None:
        """Begin to read the text of a document, in place of one before."""
        self._documents[document.uri] = document
        if document.reading is not None:
            document.reading.cancel()
        document.reading = self._begin_task(self._read_document(document))

    async def _read_document(self, document: Document) -> None:
        for _ in self.project.put_in_steps(document.path, document.text):
            await asyncio.sleep(0)
        document.published = None  # an editor moves what it shows with the text: it is sent again
        self.publish()

    async def _read_folders(self) -> None:
        def find_files() -> list[str]:
            found = (path for folder in self._folders for path in find_route_files(folder, []))
            return [str(path) for path in found][:_MOST_FILES]

        await self._read_files(await asyncio.to_thread(find_files))

    async def _read_files(self, paths: Iterable[str]) -> None:
        """Read files as they are on disk, but for those that are open."""
        for path in paths:
            text = await asyncio.to_thread(_read_file, Path(path))
            if any(path in (document.path, document.notebook) for document in self._documents.values()):
                continue
            if text is None:
                self.project.remove(path)
                continue
            for _ in self.project.put_in_steps(path, text):
                await asyncio.sleep(0)
        self.publish()

    def _begin_task(self, steps: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def logged() -> None:
            try:
                await steps
            except Exception:
                log.exception("a text could not be read")

        task = asyncio.get_running_loop().create_task(logged())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _read_file(path: Path) -> str | None:
    """Return the text of a file, None if it cannot be read or is larger than `MAX_TEXT`."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_TEXT:
            return None
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return None
