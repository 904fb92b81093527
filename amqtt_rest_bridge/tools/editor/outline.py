"""What is where in the files of a project: routes and events, topics and their other ends, what can be tried. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from amqtt_rest_bridge.lot.grammar.parsing import SettingNode, unescape
from amqtt_rest_bridge.lot.loops import may_match, topic_pattern
from amqtt_rest_bridge.lot.parameters import BlockKind
from amqtt_rest_bridge.lot.placeholders import Mode, Place, parse
from amqtt_rest_bridge.tools.editor.project import Part, Project, RouteText
from amqtt_rest_bridge.topics import sample_topic

_PUBLISHED = ("DESTINATION_TOPIC", "ERROR_TOPIC")
_SUBSCRIBED = ("SOURCE_TOPIC", "REPLY_TOPIC")
_TRIED = ("SOURCE_TOPIC", "METHOD", "ENDPOINT")
_PLACEHOLDER = re.compile(r"[^/]*\{[^{}]*\}[^/]*")


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
class Trial:
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


def trials(file: RouteText) -> list[Trial]:
    """Return the events of a file that can be tried."""
    found = []
    for part in file.parts:
        for definition, block in part.blocks():
            if block.kind is not BlockKind.EVENT or not (block.name and definition.name):
                continue
            span = _spans(file, part, block.offset, block.offset + 1)[1]
            source, method, endpoint = (_written(block.settings.get(name)) for name in _TRIED)
            if source:
                found.append(Trial(span, definition.name, block.name, topic=sample_topic(source)))
            elif method and endpoint and "EVERY" not in block.settings:
                request = f"{method.upper()} {re.sub(r'{[^{}]*}', 'x', endpoint)}"
                found.append(Trial(span, definition.name, block.name, request=request))
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
                    yield TopicEnd(path, span, _PLACEHOLDER.sub("+", topic), is_published=False)


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
