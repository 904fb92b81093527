"""What an editor asks of a text: what may be written at a place, and what is where in the files of a project. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from amqtt_rest_bridge.lot.definitions import Block
from amqtt_rest_bridge.lot.grammar.parsing import SettingNode, unescape
from amqtt_rest_bridge.lot.loops import may_match, topic_pattern
from amqtt_rest_bridge.lot.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind, Parameter
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS, Mode, PlaceholderKind, recognise
from amqtt_rest_bridge.lot.placeholders.text import Place, parse
from amqtt_rest_bridge.lot.reference import markdown_of
from amqtt_rest_bridge.tools.editor.project import Part, Project, RouteText
from amqtt_rest_bridge.topics import sample_topic

_BEFORE = 4_000
"""Characters before a place that decide what may follow."""
_NAME = re.compile(r"(?<!\S)WITH\s+(\w*)\Z", re.IGNORECASE)
_BLOCK = re.compile(r"(?<!\S)ADD\s+(\w*)\Z", re.IGNORECASE)
_GET = re.compile(r"(?<!\S)GET\s+(\w*)\Z", re.IGNORECASE)
_VALUE = re.compile(r"(?<!\S)WITH\s+(\w+)\s+[\"']?([\w.]*)\Z", re.IGNORECASE)
_TYPE = re.compile(r"(?<!\S)DEFINE\s+ROUTE\s+\S+\s+(\w*)\Z", re.IGNORECASE)
_DEFINED = re.compile(r"(?<!\S)DEFINE\s+(\w*)\Z", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{([\w.]*)\Z")
_SETTING_BEFORE = re.compile(r"(?<!\S)WITH\s+(\w+)\s", re.IGNORECASE)
_FIRST_WORD = re.compile(r"(?:\A|\n)[^\S\n]*(\w*)\Z")
_WORD = re.compile(r"\w+")
_BRACES = re.compile(r"\{[^{}\n]*\}")
_BLOCKS: dict[str, str] = {
    BlockKind.CONFIG: "what a route connects to; exactly one in a route",
    BlockKind.ROUTE_CONFIG: "how many messages a route holds, and what happens to others; at most one in a route",
    BlockKind.EVENT: "a message that sends a request, or a request that is published; any number in a route",
    IGNORED_BLOCK: "of other brokers: it is skipped",
}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A text to write instead of the `length` characters before a place; `detail` is one line, `meaning` Markdown."""

    text: str
    length: int
    kind: str
    detail: str = ""
    meaning: str = ""


def complete(part: Part, offset: int) -> list[Suggestion]:
    """Return what may be written at an offset of a part."""
    before = part.text[max(0, offset - _BEFORE) : offset]
    if found := _PLACEHOLDER.search(before):
        return list(_placeholders(part, offset, before, len(found[1])))
    if found := _NAME.search(before):
        return list(_settings(_block_at(part, offset), len(found[1]), is_typed=bool(found[1])))
    if found := _BLOCK.search(before):
        return [Suggestion(name, len(found[1]), "block", "", meaning) for name, meaning in _BLOCKS.items()]
    if found := _GET.search(before):
        return [
            Suggestion("ENV", len(found[1]), "keyword", "an environment variable, read at load"),
            Suggestion("SECRET", len(found[1]), "keyword", "a file of secrets_dir, read at load"),
        ]
    if (found := _VALUE.search(before)) and (parameter := _parameter(part, offset, found[1])):
        values = ("true", "false") if parameter.kind is Kind.BOOLEAN else tuple(parameter.choices)
        return [Suggestion(str(value), len(found[2]), "value", parameter.name) for value in values]
    if found := _TYPE.search(before):
        return [Suggestion("WITH TYPE REST_API", len(found[1]), "keyword")]
    if found := _DEFINED.search(before):
        return [Suggestion("ROUTE", len(found[1]), "keyword", "DEFINE ROUTE <name> WITH TYPE REST_API")]
    if found := _FIRST_WORD.search(before):
        words = {"DEFINE ROUTE": "begins a route", "ADD": "begins a block, or a header", "WITH": "sets something"}
        return [Suggestion(word, len(found[1]), "keyword", detail) for word, detail in words.items()]
    return []


def describe(part: Part, offset: int) -> tuple[str, int, int] | None:
    """Return what is written at an offset as Markdown, and where it begins and ends; None where nothing is known."""
    start = part.text.rfind("\n", 0, offset) + 1
    end = part.text.find("\n", offset)
    line = part.text[start : end if end >= 0 else len(part.text)]
    for found in _BRACES.finditer(line):
        if found.start() <= offset - start < found.end() and (kinds := _kinds_of(found[0][1:-1])):
            meaning = "\n\n".join(f"`{kind.written[0]}`: {kind.meaning}" for kind in kinds)
            return meaning, start + found.start(), start + found.end()
    for found in _WORD.finditer(line):
        if not found.start() <= offset - start <= found.end():
            continue
        before = part.text[max(0, start + found.start() - _BEFORE) : start + found.start()]
        name, place = found[0].upper(), (start + found.start(), start + found.end())
        if _NAME.search(before) and (parameter := _parameter(part, offset, name)):
            return markdown_of(parameter), *place
        if _BLOCK.search(before) and name in _BLOCKS:
            return f"`{name}`: {_BLOCKS[name]}", *place
    return None


def _settings(block: Block | None, length: int, *, is_typed: bool) -> Iterator[Suggestion]:
    """Yield the settings that a block does not have yet; those of all blocks if the block is not known."""
    for kind in [block.kind] if block is not None else BlockKind:
        for name, parameter in PARAMETERS[kind].items():
            # The one that is being typed is there already, where its name is complete.
            if block is None or is_typed or name not in block.settings:
                yield Suggestion(name, length, "setting", parameter.allowed, markdown_of(parameter))


def _placeholders(part: Part, offset: int, before: str, length: int) -> Iterator[Suggestion]:
    """Yield the placeholders of the setting before; what follows a dot is up to the author."""
    settings = _SETTING_BEFORE.findall(before)
    parameter = _parameter(part, offset, settings[-1]) if settings else None
    modes = set(parameter.placeholders if parameter is not None and parameter.placeholders else Mode)
    for kind in PLACEHOLDERS:
        for written in kind.written if modes & set(kind.modes) else ():
            yield Suggestion(written[1:-1], length, "placeholder", kind.meaning)


def _kinds_of(name: str) -> list[PlaceholderKind]:
    """Return what a placeholder means, in each mode that has it."""
    roots = {(mode, found.root) for mode in Mode if (found := recognise(name, mode)) is not None}
    return [kind for kind in PLACEHOLDERS if any((mode, kind.root) in roots for mode in kind.modes)]


def _block_at(part: Part, offset: int) -> Block | None:
    """Return the block that an offset is in."""
    return next((block for _, block in reversed(list(part.blocks())) if block.offset < offset), None)


def _parameter(part: Part, offset: int, name: str) -> Parameter | None:
    """Return a setting of the block at an offset, else one of any other block."""
    block = _block_at(part, offset)
    kinds = [*([block.kind] if block is not None else []), *BlockKind]
    return next((PARAMETERS[kind][name.upper()] for kind in kinds if name.upper() in PARAMETERS[kind]), None)


_PUBLISHED = ("DESTINATION_TOPIC", "ERROR_TOPIC")
_SUBSCRIBED = ("SOURCE_TOPIC", "REPLY_TOPIC")
_TRIED = ("SOURCE_TOPIC", "METHOD", "ENDPOINT")
_LEVEL_WITH_PLACEHOLDER = re.compile(r"[^/]*\{[^{}]*\}[^/]*")


class Span(NamedTuple):
    """A text of a file, by offsets."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A route, or an event of one: its name, its text, and its first line."""

    name: str
    kind: str
    whole: Span
    line: Span
    children: tuple["Symbol", ...] = ()


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """A topic in a file: a filter that is subscribed to, or what is published to, as `topic_pattern` has it."""

    path: str
    span: Span
    topic: str
    is_published: bool


@dataclass(frozen=True, slots=True)
class TriableEvent:
    """An event that can be tried: by a message on `topic`, or by a `request`, a method and a path."""

    span: Span
    route: str
    event: str
    topic: str = ""
    request: str = ""


def symbols(file: RouteText) -> list[Symbol]:
    """Return the routes of a file with their events."""
    found = []
    for part in file.parts:
        definitions, last = part.parsed.definitions, len(part.text.rstrip())
        for definition, following in zip_longest(definitions, definitions[1:]):
            blocks, end = definition.blocks, following.offset if following is not None else last
            events = tuple(
                Symbol(block.name or str(block.kind), str(block.kind), *_spans(file, part, block.offset, behind))
                for block, behind in zip(blocks, [*(block.offset for block in blocks[1:]), end], strict=False)
            )
            whole, line = _spans(file, part, definition.offset, end)
            found.append(Symbol(definition.name or "DEFINE ROUTE", "route", whole, line, events))
    return found


def other_ends(project: Project, path: str, offset: int) -> list[TopicEnd]:
    """Return where what is published to the topic at an offset is subscribed to, or the other way round."""
    file = project.files[path]
    here = next((end for end in _topics(path, file) if end.span.start <= offset <= end.span.end), None)
    if here is None:
        return []
    others = [end for name, one in project.files.items() for end in _topics(name, one)]
    if here.is_published:
        return [end for end in others if not end.is_published and end.topic and may_match(end.topic, here.topic)]
    return [end for end in others if end.is_published and here.topic and may_match(here.topic, end.topic)]


def trials(file: RouteText) -> list[TriableEvent]:
    """Return the events of a file that can be tried."""
    found = []
    for part in file.parts:
        for definition, block in part.blocks():
            if block.kind is not BlockKind.EVENT or not (block.name and definition.name):
                continue
            span = _spans(file, part, block.offset, block.offset + 1)[1]
            source, method, endpoint = (_written(block.settings.get(name)) for name in _TRIED)
            if source:
                found.append(TriableEvent(span, definition.name, block.name, topic=sample_topic(source)))
            elif method and endpoint and "EVERY" not in block.settings:
                request = f"{method.upper()} {re.sub(r'{[^{}]*}', 'x', endpoint)}"
                found.append(TriableEvent(span, definition.name, block.name, request=request))
    return found


def _topics(path: str, file: RouteText) -> Iterator[TopicEnd]:
    for part in file.parts:
        for _, block in part.blocks() if "_TOPIC" in part.text.upper() else ():
            source = _written(block.settings.get("SOURCE_TOPIC")) or ""
            for name in (*_SUBSCRIBED, *_PUBLISHED):
                node = block.settings.get(name)
                topic = _written(node)
                if node is None or topic is None:
                    continue
                first, last = node.pieces[0], node.pieces[-1]
                span = _span(file, part, first.offset, last.offset + len(last.text))
                if name in _PUBLISHED:
                    mode = Mode.CLIENT if source else Mode.SERVER
                    yield TopicEnd(path, span, topic_pattern(parse(topic, Place.TEXT, mode), source), is_published=True)
                else:
                    yield TopicEnd(path, span, _LEVEL_WITH_PLACEHOLDER.sub("+", topic), is_published=False)


def _written(node: SettingNode | None) -> str | None:
    """Return the text of a setting that reads nothing from elsewhere."""
    if node is None or not node.pieces or any(piece.source for piece in node.pieces):
        return None
    return "".join([unescape(piece.text[1:-1]) if piece.is_string else piece.text for piece in node.pieces])


def _spans(file: RouteText, part: Part, start: int, end: int) -> tuple[Span, Span]:
    """Return a text of a part, and its first line."""
    line_end = part.text.find("\n", start)
    first = min(end, line_end if line_end >= 0 else end)
    return _span(file, part, start, end), _span(file, part, start, max(first, start + 1))


def _span(file: RouteText, part: Part, start: int, end: int) -> Span:
    of = part.offset
    return Span(file.offset_in_file(part.source, of + start), file.offset_in_file(part.source, of + end))
