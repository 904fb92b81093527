"""Answers to requests of the language server protocol about an open text, which `server` passes here. Pure.

There are completion, hover, outline, events to try, the canonical layout, quick fixes, and the way from a publication
to its subscriptions and back.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from lsprotocol import types

from amqtt_rest_bridge.errors import Severity
from amqtt_rest_bridge.lot.definitions import Block
from amqtt_rest_bridge.lot.grammar.parsing import StatementNode, unescape
from amqtt_rest_bridge.lot.loops import may_match, topic_pattern
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS, Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, parse
from amqtt_rest_bridge.lot.reference import BLOCKS, markdown_of, placeholders_named
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.lot.sources import is_notebook
from amqtt_rest_bridge.tools.editor.layout import laid_out_file
from amqtt_rest_bridge.tools.editor.project import Part, Project, RouteText
from amqtt_rest_bridge.topics import sample_topic

TRY: Final = "rest-bridge.try"
"""The command of a code lens, with the URI and the options of `rest-bridge try`."""
_BEFORE = 4_000
"""How many characters before a place are read to find out what may be written there."""
# What may be at the end of the text before a place; the last group is the word that the user has begun.
_TYPED_PLACEHOLDER = re.compile(r"\{([\w.]*)\Z")
_TYPED_SETTING = re.compile(r"(?<!\S)WITH\s+(\w*)\Z", re.IGNORECASE)
_TYPED_BLOCK = re.compile(r"(?<!\S)ADD\s+(\w*)\Z", re.IGNORECASE)
_TYPED_GET = re.compile(r"(?<!\S)GET\s+(\w*)\Z", re.IGNORECASE)
_TYPED_VALUE = re.compile(r"(?<!\S)WITH\s+(\w+)\s+[\"']?([\w.]*)\Z", re.IGNORECASE)
_TYPED_TYPE = re.compile(r"(?<!\S)DEFINE\s+ROUTE\s+\S+\s+(\w*)\Z", re.IGNORECASE)
_TYPED_DEFINE = re.compile(r"(?<!\S)DEFINE\s+(\w*)\Z", re.IGNORECASE)
_TYPED_FIRST_WORD = re.compile(r"(?:\A|\n)[^\S\n]*(\w*)\Z")
_SETTING = re.compile(r"(?<!\S)WITH\s+(\w+)\s", re.IGNORECASE)
_PUBLISHED = ("DESTINATION_TOPIC", "ERROR_TOPIC")
_SUBSCRIBED = ("SOURCE_TOPIC", "REPLY_TOPIC")
_TRIGGERS = ("SOURCE_TOPIC", "METHOD", "ENDPOINT")
_LEVEL_WITH_PLACEHOLDER = re.compile(r"[^/]*\{[^{}]*\}[^/]*")
_WORD = re.compile(r"\w+")
_BRACES = re.compile(r"\{[^{}\n]*\}")


def range_of(file: RouteText, start: int, end: int) -> types.Range:
    """Return the range of two offsets of a file."""
    return types.Range(types.Position(*file.lines.place(start)), types.Position(*file.lines.place(end)))


def offset_of(file: RouteText, params: Any) -> int:
    """Return the offset of the place that a request is about."""
    return file.lines.offset(params.position.line, params.position.character)


def completion(file: RouteText, params: types.CompletionParams) -> list[types.CompletionItem]:
    """Return the words that may be written at a place."""
    offset = offset_of(file, params)
    if (found := file.part_at(offset)) is None:
        return []
    typed, items = _suggestions(*found)
    place = range_of(file, offset - len(typed), offset)
    for item in items:
        item.text_edit = types.TextEdit(place, item.label)
    return items


def _suggestions(part: Part, offset: int) -> tuple[str, list[types.CompletionItem]]:
    """Return the word that has been begun at an offset of a part, and what may be written in its place."""
    before = part.text[max(0, offset - _BEFORE) : offset]
    if found := _TYPED_PLACEHOLDER.search(before):  # suggest what may be in the value of the last setting
        settings = _SETTING.findall(before)
        parameter = _parameter_named(part, offset, settings[-1]) if settings else None
        modes = set(parameter.placeholders if parameter is not None and parameter.placeholders else Mode)
        return found[1], [
            _item(written[1:-1], types.CompletionItemKind.Variable, kind.meaning)
            for kind in PLACEHOLDERS
            if modes & set(kind.modes)
            for written in kind.written
        ]
    if found := _TYPED_SETTING.search(before):
        # The settings that the block does not have yet; those of all blocks if the block is not known. A name that the
        # user has begun may already be complete, so that the block has it: then it is suggested, too.
        block = _block_at(part, offset)
        return found[1], [
            _item(name, types.CompletionItemKind.Property, parameter.allowed, markdown_of(parameter))
            for kind in ([block.kind] if block is not None else BlockKind)
            for name, parameter in PARAMETERS[kind].items()
            if block is None or found[1] or name not in block.settings
        ]
    if found := _TYPED_BLOCK.search(before):
        return found[1], [_item(name, types.CompletionItemKind.Class, "", meaning) for name, meaning in BLOCKS.items()]
    if found := _TYPED_GET.search(before):
        return found[1], _words(
            {"ENV": "an environment variable, read at load", "SECRET": "a file of secrets_dir, read at load"}
        )
    if (found := _TYPED_VALUE.search(before)) and (parameter := _parameter_named(part, offset, found[1])):
        values = ("true", "false") if parameter.kind is Kind.BOOLEAN else tuple(parameter.choices)
        return found[2], [_item(str(value), types.CompletionItemKind.EnumMember, parameter.name) for value in values]
    if found := _TYPED_TYPE.search(before):
        return found[1], _words({"WITH TYPE REST_API": ""})
    if found := _TYPED_DEFINE.search(before):
        return found[1], _words({"ROUTE": "DEFINE ROUTE <name> WITH TYPE REST_API"})
    if found := _TYPED_FIRST_WORD.search(before):
        words = {"DEFINE ROUTE": "begins a route", "ADD": "begins a block, or a header", "WITH": "sets something"}
        return found[1], _words(words)
    return "", []


def _item(text: str, kind: types.CompletionItemKind, detail: str, meaning: str = "") -> types.CompletionItem:
    """Return a suggestion; `detail` is one line, `meaning` Markdown."""
    documentation = types.MarkupContent(types.MarkupKind.Markdown, meaning or detail)
    return types.CompletionItem(text, kind=kind, detail=detail or None, documentation=documentation)


def _words(words: Mapping[str, str]) -> list[types.CompletionItem]:
    return [_item(word, types.CompletionItemKind.Keyword, detail) for word, detail in words.items()]


def hover(file: RouteText, params: types.HoverParams) -> types.Hover | None:
    """Return the meaning of the word at a place, None for an unknown word."""
    if (found := file.part_at(offset_of(file, params))) is None or (described := _describe(*found)) is None:
        return None
    meaning, start, end = described
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, meaning), _range(file, found[0], start, end))


def _describe(part: Part, offset: int) -> tuple[str, int, int] | None:
    """Return the meaning of the word at an offset of a part, as Markdown, and where the word begins and ends."""
    start = part.text.rfind("\n", 0, offset) + 1
    end = part.text.find("\n", offset)
    line = part.text[start : end if end >= 0 else len(part.text)]
    for found in _BRACES.finditer(line):
        is_here = found.start() <= offset - start < found.end()
        if is_here and (kinds := placeholders_named(found[0])):  # what it means, in each mode that has it
            meaning = "\n\n".join(f"`{kind.written[0]}`: {kind.meaning}" for kind in kinds)
            return meaning, start + found.start(), start + found.end()
    for found in _WORD.finditer(line):
        if not found.start() <= offset - start <= found.end():
            continue
        before = part.text[max(0, start + found.start() - _BEFORE) : start + found.start()]
        name, place = found[0].upper(), (start + found.start(), start + found.end())
        if _TYPED_SETTING.search(before) and (parameter := _parameter_named(part, offset, name)):
            return markdown_of(parameter), *place
        if _TYPED_BLOCK.search(before) and name in BLOCKS:
            return f"`{name}`: {BLOCKS[name]}", *place
    return None


def _block_at(part: Part, offset: int) -> Block | None:
    """Return the block that an offset is in."""
    return next((block for _, block in reversed(list(part.blocks())) if block.offset < offset), None)


def _parameter_named(part: Part, offset: int, name: str) -> Parameter | None:
    """Return a setting of the block at an offset, else one of any other block."""
    block = _block_at(part, offset)
    kinds = [*([block.kind] if block is not None else []), *BlockKind]
    return next((PARAMETERS[kind][name.upper()] for kind in kinds if name.upper() in PARAMETERS[kind]), None)


def symbols(file: RouteText, _: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
    """Return the routes of a file with their blocks and events."""
    found = []
    for part in file.parts:
        definitions, last = part.parsed.definitions, len(part.text.rstrip())
        for definition, following in zip_longest(definitions, definitions[1:]):
            blocks, end = definition.blocks, following.offset if following is not None else last
            ends = [*(block.offset for block in blocks[1:]), end]
            children = [
                types.DocumentSymbol(
                    block.name or str(block.kind),
                    types.SymbolKind.Event if block.kind is BlockKind.EVENT else types.SymbolKind.Object,
                    _range(file, part, block.offset, behind),
                    _first_line(file, part, block.offset, behind),
                )
                for block, behind in zip(blocks, ends, strict=False)
            ]
            whole, line = (of(file, part, definition.offset, end) for of in (_range, _first_line))
            name = definition.name or "DEFINE ROUTE"
            found.append(types.DocumentSymbol(name, types.SymbolKind.Class, whole, line, children=children))
    return found


def lenses(file: RouteText, params: types.CodeLensParams) -> list[types.CodeLens]:
    """Return the events of a file that can be tried: by a message on a topic, or by a request."""
    found = []
    for part in file.parts:
        for definition, block in part.blocks():
            if block.kind is not BlockKind.EVENT or not (block.name and definition.name):
                continue
            source, method, endpoint = (_text_of(block.settings.get(name)) for name in _TRIGGERS)
            if source:
                options = {"topic": sample_topic(source)}
            elif method and endpoint and "EVERY" not in block.settings:
                options = {"request": f"{method.upper()} {re.sub(r'{[^{}]*}', 'x', endpoint)}"}
            else:
                continue
            line = _first_line(file, part, block.offset, block.offset + 1)
            command = types.Command("try", TRY, arguments=[params.text_document.uri, options])
            found.append(types.CodeLens(line, command))
    return found


def formatting(file: RouteText, _: types.DocumentFormattingParams) -> list[types.TextEdit]:
    """Return the edit that lays a file out, none if a text of it has an error."""
    faults = [*file.unread.faults, *(fault for part in file.parts for fault in part.parsed.faults)]
    if not file.parts or any(fault.severity is Severity.ERROR for fault in faults):
        return []
    after = laid_out_file(file.path, file.text)
    return [types.TextEdit(range_of(file, 0, len(file.text)), after)] if after != file.text else []


def fixes(file: RouteText, params: types.CodeActionParams) -> list[types.CodeAction]:
    """Return what to write in the place of each fault that the editor asks about; editors keep the `data` of faults."""
    found = []
    for fault in params.context.diagnostics:
        if isinstance(fault.data, str):
            text = json.dumps(fault.data)[1:-1] if is_notebook(file.path) else fault.data
            edit = types.WorkspaceEdit(changes={params.text_document.uri: [types.TextEdit(fault.range, text)]})
            kind, title = types.CodeActionKind.QuickFix, f"Write {fault.data}"
            found.append(types.CodeAction(title, kind, diagnostics=[fault], is_preferred=True, edit=edit))
    return found


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A topic in a file: a filter that an event subscribes to, or the pattern (`topic_pattern`) of published topics."""

    path: str
    range: types.Range
    topic: str
    is_published: bool


def opposite_uses(project: Project, path: str, offset: int) -> list[TopicUse]:
    """Return the subscriptions to the topic that is published at an offset, or the publications to a subscribed one."""
    file = project.files[path]
    place = range_of(file, offset, offset).start
    here = next((use for use in _topics(path, file) if use.range.start <= place <= use.range.end), None)
    if here is None:
        return []
    others = [use for name, one in project.files.items() for use in _topics(name, one)]
    if here.is_published:
        return [use for use in others if not use.is_published and use.topic and may_match(use.topic, here.topic)]
    return [use for use in others if use.is_published and here.topic and may_match(here.topic, use.topic)]


def _topics(path: str, file: RouteText) -> Iterator[TopicUse]:
    """Yield the topics of a file."""
    for part in file.parts:
        for _, block in part.blocks() if "_TOPIC" in part.text.upper() else ():
            source = _text_of(block.settings.get("SOURCE_TOPIC")) or ""
            for name in (*_SUBSCRIBED, *_PUBLISHED):
                node = block.settings.get(name)
                topic = _text_of(node)
                if node is None or topic is None:
                    continue
                first, last = node.pieces[0], node.pieces[-1]
                place = _range(file, part, first.offset, last.offset + len(last.text))
                if name in _PUBLISHED:
                    mode = Mode.CLIENT if source else Mode.SERVER
                    pattern = topic_pattern(parse(topic, Place.TEXT, mode), source)
                    yield TopicUse(path, place, pattern, is_published=True)
                else:
                    pattern = _LEVEL_WITH_PLACEHOLDER.sub("+", topic)
                    yield TopicUse(path, place, pattern, is_published=False)


def _text_of(node: StatementNode | None) -> str | None:
    """Return the text of a setting, None if a part of it is read by GET."""
    if node is None or not node.pieces or any(piece.source for piece in node.pieces):
        return None
    return "".join([unescape(piece.text[1:-1]) if piece.is_string else piece.text for piece in node.pieces])


def _range(file: RouteText, part: Part, start: int, end: int) -> types.Range:
    """Return the range of a text of a part, by offsets in the part."""
    return range_of(file, *(file.offset_in_file(part.source, part.offset + one) for one in (start, end)))


def _first_line(file: RouteText, part: Part, start: int, end: int) -> types.Range:
    """Return the range of the first line of a text of a part."""
    line_end = part.text.find("\n", start)
    return _range(file, part, start, max(min(end, line_end if line_end >= 0 else end), start + 1))
