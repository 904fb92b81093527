"""`rest-bridge lsp`: session, completion, hover and outline as a language server. The only use of pygls.

One loop runs everything. Texts are kept by the session, not by pygls, whose lines end with other characters than those
of the protocol.
"""

import asyncio
import json
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
from amqtt_rest_bridge.errors import Severity, on_one_line, utf_8
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.sources import is_notebook, is_route_file
from amqtt_rest_bridge.tools.editor import assist
from amqtt_rest_bridge.tools.editor.layout import laid_out_file
from amqtt_rest_bridge.tools.editor.places import EditorPlace
from amqtt_rest_bridge.tools.editor.project import Finding, RouteText
from amqtt_rest_bridge.tools.editor.session import Document, Session, TextChange

log = logging.getLogger(__name__)

TRY = "rest-bridge.try"
_TRY_SECONDS = 60.0
_REFERENCE = Path(amqtt_rest_bridge.__file__).parent / "lot" / "README.md"
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.NOTICE: types.DiagnosticSeverity.Information,
}
_ITEM_KINDS = {
    "setting": types.CompletionItemKind.Property,
    "block": types.CompletionItemKind.Class,
    "keyword": types.CompletionItemKind.Keyword,
    "value": types.CompletionItemKind.EnumMember,
    "placeholder": types.CompletionItemKind.Variable,
}
_SYMBOL_KINDS = {"route": types.SymbolKind.Class, "EVENT": types.SymbolKind.Event}


def _position(place: EditorPlace) -> types.Position:
    return types.Position(*place)


def _range(file: RouteText, start: int, end: int) -> types.Range:
    return types.Range(_position(file.lines.place(start)), _position(file.lines.place(end)))


def _diagnostic(finding: Finding) -> types.Diagnostic:
    return types.Diagnostic(
        range=types.Range(_position(finding.start), _position(finding.end)),
        message=finding.message,
        severity=_SEVERITIES[finding.severity],
        code=str(finding.code),
        code_description=types.CodeDescription(f"{_REFERENCE.as_uri()}#{finding.code}"),
        source="rest-bridge",
    )


class _Handlers:
    """Answer the requests of an editor about a text that it has open."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def answering(
        self, answer: Callable[[RouteText, Any], object], nothing: object
    ) -> Callable[[Any], Coroutine[Any, Any, object]]:
        """Return what answers a request once its text is read as it is now; `nothing` is the answer for no text.

        What fails is logged, and answered with null.
        """

        async def handle(params: Any) -> object:
            try:
                file = await self._session.file(params.text_document.uri)
                return answer(file, params) if file is not None else nothing
            except Exception:
                log.exception("a request could not be answered")
                return None

        return handle

    def completion(self, file: RouteText, params: types.CompletionParams) -> list[types.CompletionItem]:
        offset = _offset(file, params)
        found = file.part_at(offset)
        return [
            types.CompletionItem(
                suggestion.text,
                kind=_ITEM_KINDS[suggestion.kind],
                detail=suggestion.detail or None,
                documentation=types.MarkupContent(types.MarkupKind.Markdown, suggestion.meaning or suggestion.detail),
                text_edit=types.TextEdit(_range(file, offset - suggestion.length, offset), suggestion.text),
            )
            for suggestion in (assist.complete(*found) if found is not None else ())
        ]

    def hover(self, file: RouteText, params: types.HoverParams) -> types.Hover | None:
        found = file.part_at(_offset(file, params))
        described = assist.describe(*found) if found is not None else None
        if found is None or described is None:
            return None
        part, meaning = found[0], described[0]
        start, end = (file.offset_in_file(part.source, part.offset + one) for one in described[1:])
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, meaning), _range(file, start, end))

    def symbols(self, file: RouteText, _: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        return [_symbol(file, symbol) for symbol in assist.symbols(file)]

    def definition(self, file: RouteText, params: types.DefinitionParams) -> list[types.Location]:
        project = self._session.project
        return [
            types.Location(
                self._session.uri_of(end.path) or Path(end.path).as_uri(),
                _range(project.files[end.path], *end.span),
            )
            for end in assist.other_ends(project, file.path, _offset(file, params))
        ]

    def formatting(self, file: RouteText, _: types.DocumentFormattingParams) -> list[types.TextEdit]:
        if not file.parts or not is_readable(file):
            return []
        after = laid_out_file(file.path, file.text)
        return [types.TextEdit(_range(file, 0, len(file.text)), after)] if after != file.text else []

    def fixes(self, file: RouteText, params: types.CodeActionParams) -> list[types.CodeAction]:
        uri, begin, end = params.text_document.uri, params.range.start, params.range.end
        found: list[types.CodeAction] = []
        for finding in self._session.findings(uri):
            if finding.replacement is None or finding.end < (begin.line, begin.character):
                continue
            if (end.line, end.character) < finding.start:
                continue
            diagnostic = _diagnostic(finding)
            text = json.dumps(finding.replacement)[1:-1] if is_notebook(file.path) else finding.replacement
            edit = types.WorkspaceEdit(changes={uri: [types.TextEdit(diagnostic.range, text)]})
            title = f"Write {finding.replacement}"
            kind = types.CodeActionKind.QuickFix
            found.append(types.CodeAction(title, kind, diagnostics=[diagnostic], is_preferred=True, edit=edit))
        return found

    def lenses(self, file: RouteText, params: types.CodeLensParams) -> list[types.CodeLens]:
        found: list[types.CodeLens] = []
        for trial in assist.trials(file):
            options = {"topic": trial.topic} if trial.topic else {"request": trial.request}
            command = types.Command("try", TRY, arguments=[params.text_document.uri, options])
            found.append(types.CodeLens(_range(file, *trial.span), command))
        return found


def _offset(file: RouteText, params: Any) -> int:
    return file.lines.offset(params.position.line, params.position.character)


def is_readable(file: RouteText) -> bool:
    """Return whether a file may be laid out: nothing in its texts is an error."""
    faults = [*file.unread.faults, *(fault for part in file.parts for fault in part.parsed.faults)]
    return all(fault.severity is not Severity.ERROR for fault in faults)


def _symbol(file: RouteText, symbol: assist.Symbol) -> types.DocumentSymbol:
    return types.DocumentSymbol(
        symbol.name,
        _SYMBOL_KINDS.get(symbol.kind, types.SymbolKind.Object),
        _range(file, *symbol.whole),
        _range(file, *symbol.line),
        children=[_symbol(file, child) for child in symbol.children],
    )


async def _try(file: RouteText, options: Mapping[str, str], secrets_dir: Path) -> str:
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
    """Logs what goes wrong, such as a change of a document that was never opened, instead of showing it to the user."""

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

    def publish(document: Document, findings: Iterable[Finding]) -> None:
        diagnostics = [_diagnostic(finding) for finding in findings]
        params = types.PublishDiagnosticsParams(document.uri, diagnostics, document.version)
        server.text_document_publish_diagnostics(params)

    session = Session(Environment(os.environ, secrets_dir), publish)
    handlers = _Handlers(session)
    _add_texts(server, session)
    _add_notebooks(server, session)
    triggers = types.CompletionOptions(trigger_characters=[" ", "{", ".", '"', "'"])
    actions = types.CodeActionOptions([types.CodeActionKind.QuickFix])
    for feature, handler, options in (
        (types.TEXT_DOCUMENT_COMPLETION, handlers.completion, triggers),
        (types.TEXT_DOCUMENT_HOVER, handlers.hover, None),
        (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, handlers.symbols, None),
        (types.TEXT_DOCUMENT_DEFINITION, handlers.definition, None),
        (types.TEXT_DOCUMENT_FORMATTING, handlers.formatting, None),
        (types.TEXT_DOCUMENT_CODE_ACTION, handlers.fixes, actions),
        (types.TEXT_DOCUMENT_CODE_LENS, handlers.lenses, None),
    ):
        server.feature(feature, options)(
            handlers.answering(handler, nothing=None if feature == types.TEXT_DOCUMENT_HOVER else [])
        )

    @server.command(TRY)
    async def try_it(uri: str, options: Any) -> str | None:
        file = await session.file(uri)
        if file is None or not isinstance(options, Mapping):
            return None
        shown = await _try(file, options, secrets_dir)
        server.window_show_message(types.ShowMessageParams(types.MessageType.Info, shown))
        return shown

    server.start_io()


def _add_texts(server: LanguageServer, session: Session) -> None:
    """Register what editors tell of texts."""

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
        session.change(params.text_document.uri, params.text_document.version, map(_change, params.content_changes))

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(_: types.DidSaveTextDocumentParams) -> None:
        session.reload()

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        session.close(params.text_document.uri)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def on_disk(params: types.DidChangeWatchedFilesParams) -> None:
        session.look_at([_path(change.uri) for change in params.changes])


def _add_notebooks(server: LanguageServer, session: Session) -> None:
    """Register what editors tell of notebooks and their cells."""

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
            session.change(content.document.uri, content.document.version, map(_change, content.changes))

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseNotebookDocumentParams) -> None:
        for cell in params.cell_text_documents:
            session.close(cell.uri)
        session.look_at([_path(params.notebook_document.uri)])


def _path(uri: str) -> str:
    """Return the path of a file; what is not a file is called by its URI."""
    path = (to_fs_path(uri) if uri.startswith("file:") else None) or uri
    return os.fsdecode(unquote_to_bytes(urlsplit(uri).path)) if "\ufffd" in path else path  # a name that is not UTF-8


def _change(change: types.TextDocumentContentChangeEvent) -> TextChange:
    if isinstance(change, types.TextDocumentContentChangeWholeDocument):
        return TextChange(change.text)
    start, end = change.range.start, change.range.end
    return TextChange(change.text, EditorPlace(start.line, start.character), EditorPlace(end.line, end.character))
