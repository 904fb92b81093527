"""`rest-bridge lsp`: passes the messages of an editor to its session and to `assist`. One loop runs everything.

The session keeps the texts. pygls does not, as it ends lines at more characters than the protocol does.
"""

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

import amqtt_rest_bridge
from amqtt_rest_bridge.errors import on_one_line, utf_8
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.sources import is_notebook, is_route_file
from amqtt_rest_bridge.tools.editor import assist
from amqtt_rest_bridge.tools.editor.project import RouteText
from amqtt_rest_bridge.tools.editor.session import Session

log = logging.getLogger(__name__)

_TRY_SECONDS = 60.0


async def _run_try(file: RouteText, options: Mapping[str, str], secrets_dir: Path) -> str:
    """Return what `rest-bridge try` prints for a text as it is in the editor; nothing is sent."""
    for option, value in options.items():
        if not isinstance(value, str) or "\0" in value or utf_8(value) != value:
            return f"try: {option} cannot be in a message: {on_one_line(repr(value))}"
    name = Path(file.path).name if not is_notebook(file.path) else "notebook.lotnb"
    with tempfile.TemporaryDirectory(prefix="rest-bridge-") as folder:
        path = Path(folder, name if is_route_file(name) else "text.lot")
        path.write_text(file.text, encoding="utf-8", errors="replace")
        given = ["--topic", options["topic"]] if "topic" in options else ["--request", options.get("request", "")]
        # -P: no code is read from the working directory, which is that of the editor.
        command = [sys.executable, "-P", "-m", "amqtt_rest_bridge", "try", str(path), *given]
        command += ["--payload", options.get("payload", "{}"), "--secrets-dir", str(secrets_dir)]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:  # a topic or payload that is longer than an argument may be
            return f"try: {error.strerror}"
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _TRY_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return output.decode("utf-8", "replace").replace(str(path), path.name)


class _QuietServer(LanguageServer):
    """A server that logs errors instead of showing them, such as a change of a document that was never opened."""

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log an error."""
        log.error("%s: %s", getattr(source, "__name__", source), error)


def serve(secrets_dir: Path) -> None:
    """Speak the protocol on standard input and output until the editor ends it.

    Secrets are read from a folder, variables from the environment.
    """
    cells = types.NotebookDocumentFilterWithCells(cells=[types.NotebookCellLanguage("lot")])
    server = _QuietServer(
        "rest-bridge",
        amqtt_rest_bridge.__version__,
        text_document_sync_kind=types.TextDocumentSyncKind.Full,
        notebook_document_sync=types.NotebookDocumentSyncOptions([cells], save=True),
    )

    session = Session(server, Environment(os.environ, secrets_dir))
    _add_texts(server, session)
    _add_notebooks(server, session)

    def definition(file: RouteText, params: types.DefinitionParams) -> list[types.Location]:
        ends = assist.opposite_uses(session.project, file.path, assist.offset_of(file, params))
        return [types.Location(session.uri_of(end.path) or Path(end.path).as_uri(), end.range) for end in ends]

    triggers = types.CompletionOptions(trigger_characters=[" ", "{", ".", '"', "'"])
    fixes = types.CodeActionOptions([types.CodeActionKind.QuickFix])
    for feature, answer, options in (
        (types.TEXT_DOCUMENT_COMPLETION, assist.completion, triggers),
        (types.TEXT_DOCUMENT_HOVER, assist.hover, None),
        (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, assist.symbols, None),
        (types.TEXT_DOCUMENT_DEFINITION, definition, None),
        (types.TEXT_DOCUMENT_FORMATTING, assist.formatting, None),
        (types.TEXT_DOCUMENT_CODE_ACTION, assist.fixes, fixes),
        (types.TEXT_DOCUMENT_CODE_LENS, assist.lenses, None),
    ):
        server.feature(feature, options)(_handler_of(session, answer))

    @server.command(assist.TRY)
    async def try_it(uri: str, options: Any) -> str | None:
        file = await session.file(uri)
        if file is None or not isinstance(options, Mapping):
            return None
        shown = await _run_try(file, options, secrets_dir)
        server.window_show_message(types.ShowMessageParams(types.MessageType.Info, shown))
        return shown

    server.start_io()


def _handler_of(
    session: Session, answer: Callable[[RouteText, Any], object]
) -> Callable[[Any], Coroutine[Any, Any, object]]:
    """Return the handler of a request, which answers once the text is read, with null if the text is not open.

    A failure is logged and answered with null.
    """

    async def handle(params: Any) -> object:
        try:
            file = await session.file(params.text_document.uri)
            return None if file is None else answer(file, params)
        except Exception:
            log.exception("a request could not be answered")
            return None

    return handle


def _add_texts(server: LanguageServer, session: Session) -> None:
    """Register the handlers of texts that open, change and close."""

    @server.feature(types.INITIALIZED)
    def begin(_: types.InitializedParams) -> None:
        workspace = server.workspace
        uris = [folder.uri for folder in workspace.folders.values()] or [workspace.root_uri or ""]
        units = types.PositionEncodingKind(workspace.position_encoding).value
        session.begin([path for uri in uris if (path := to_fs_path(uri))], units)
        capabilities = server.client_capabilities.workspace
        watched = capabilities and capabilities.did_change_watched_files
        if watched and watched.dynamic_registration:
            options = types.DidChangeWatchedFilesRegistrationOptions([types.FileSystemWatcher("**/*.{lot,lotnb}")])
            files = types.Registration("files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
            server.client_register_capability(types.RegistrationParams([files]))

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        one = params.text_document
        session.open(one.uri, _path(one.uri), one.text, one.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        session.change(params.text_document.uri, params.text_document.version, params.content_changes)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(_: types.DidSaveTextDocumentParams) -> None:
        session.reload()

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        session.close(params.text_document.uri)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def on_disk(params: types.DidChangeWatchedFilesParams) -> None:
        session.read_from_disk([_path(change.uri) for change in params.changes])


def _add_notebooks(server: LanguageServer, session: Session) -> None:
    """Register the handlers of notebooks and their cells."""

    def take(notebook: str, cells: Iterable[types.TextDocumentItem]) -> None:
        for cell in cells:
            session.open_cell(cell.uri, _path(notebook), cell.text, cell.version)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenNotebookDocumentParams) -> None:
        take(params.notebook_document.uri, params.cell_text_documents)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeNotebookDocumentParams) -> None:
        cells = params.change.cells
        structure = cells and cells.structure
        for closed_cell in (structure and structure.did_close) or ():
            session.close(closed_cell.uri)
        take(params.notebook_document.uri, (structure and structure.did_open) or ())
        for content in (cells and cells.text_content) or ():
            session.change(content.document.uri, content.document.version, content.changes)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseNotebookDocumentParams) -> None:
        for cell in params.cell_text_documents:
            session.close(cell.uri)
        session.read_from_disk([_path(params.notebook_document.uri)])


def _path(uri: str) -> str:
    """Return the path of a file, the URI itself for anything else."""
    path = (to_fs_path(uri) if uri.startswith("file:") else None) or uri
    return os.fsdecode(unquote_to_bytes(urlsplit(uri).path)) if "\ufffd" in path else path  # a name that is not UTF-8
