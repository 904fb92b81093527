"""Parses a text to its definitions of our type, and the faults outside of their blocks. Pure.

`loader` and the editor call it; `grammar` parses the text to statements, `definitions` puts these into blocks.

`routes_in` has the settings of routes as they are written, for drawings; it checks no value.
"""

import contextlib
import hashlib
import pickle
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amqtt_rest_bridge.errors import Fault, FaultCode, Severity
from amqtt_rest_bridge.lot.definitions import Block, Definition, is_name, read_blocks, report_open_strings
from amqtt_rest_bridge.lot.grammar.parsing import Junk, OtherNode, Piece, RouteNode, parse, unescape
from amqtt_rest_bridge.lot.hints import COMMENT_HINT, FENCE_HINT
from amqtt_rest_bridge.lot.masking import is_credential
from amqtt_rest_bridge.lot.settings_table import CREDENTIALS, HEADERS, ROUTE_TYPE, BlockKind
from amqtt_rest_bridge.lot.sources import Report
from amqtt_rest_bridge.spelling import closest, question

_QUOTES = "'\""
_MOST_WORDS = 5  # that are proposed as one name
_EXAMPLE = f"write DEFINE ROUTE MyRoute WITH TYPE {ROUTE_TYPE}"
_COMMENT = re.compile(r"//[^\n]*|--[^\n]*|/\*.*?\*/", re.DOTALL)
_LINE_COMMENT = re.compile(r"(?://|--)[^\n]*")
_WITHOUT_DEFINE = re.compile(
    rf"^[^\S\n]*(?:[A-Za-z]+[^\S\n]+)?(?P<route>ROUTE)\s+(?P<name>\S+)\s+WITH\s+TYPE\s+{ROUTE_TYPE}(?!\S)",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text, independent of the environment: definitions of our type, and faults without a path.

    `without_define` are those of lines that look like a route of ours.
    """

    definitions: tuple[Definition, ...]
    faults: tuple[Fault, ...]
    without_define: tuple[Fault, ...]


def parse_text(text: str) -> ParsedText:
    """Parse a text of the route language: 0.4 ms a line."""
    report = Report("", text)
    tree = parse(text)
    without_define = _read_outside(tree.outside, report)
    definitions: list[Definition] = []
    for node in tree.definitions:
        if isinstance(node, OtherNode):
            _report_skipped(node, report)
        else:
            before = report.errors
            definition = Definition(_read_name(node, report), node.offset)
            if node.open_strings:
                report_open_strings(node.open_strings, report)
            read_blocks(node.body, definition, report)
            definition.is_faulty = report.errors > before
            definitions.append(definition)
    if tree.stopped_at is not None:
        line = report.position(tree.stopped_at).line
        message = f"too much of this text cannot be read: it is read up to line {line} only"
        report.error(FaultCode.UNREADABLE, 0, message, "correct what is reported, then check it again")
    return ParsedText(tuple(definitions), tuple(report.faults), without_define)


class ParsedTexts:
    """Texts that were parsed before, by their content, so that a reload parses changed files only.

    Values of variables and secrets are not in it. `dump` keeps the texts that `parse` was asked for.
    """

    def __init__(self, dumped: bytes = b"") -> None:
        self._known: dict[bytes, ParsedText] = {}
        self._used: dict[bytes, ParsedText] = {}
        # It cannot be loaded if the package was upgraded while the broker runs.
        with contextlib.suppress(AttributeError, ImportError, TypeError, ValueError, pickle.UnpicklingError):
            known = pickle.loads(dumped) if dumped else {}  # noqa: S301  # our own process
            self._known = known if isinstance(known, dict) else {}

    def parse(self, text: str) -> ParsedText:
        """Parse a text, or return the result of the last time."""
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        found = self._used[key] = self._used.get(key) or self._known.get(key) or parse_text(text)
        return found

    def dump(self) -> bytes:
        """Return the texts in use, for another process of the same version."""
        return pickle.dumps(self._used)


@dataclass(frozen=True, slots=True)
class WrittenEvent:
    """An event: its settings, and its headers in their order."""

    name: str
    settings: dict[str, str]
    headers: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class WrittenRoute:
    """A route: the settings of its REST_API_CONFIG, its events, and what its credentials (settings, headers) hold."""

    name: str
    config: dict[str, str] = field(default_factory=dict)
    events: list[WrittenEvent] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)


def routes_in(text: str) -> Iterator[WrittenRoute]:
    """Yield the routes of type REST_API that can be read to their end; settings have their names in capitals."""
    for definition in parse_text(text).definitions:
        if definition.name is None or definition.is_faulty:
            continue
        route = WrittenRoute(definition.name)
        for block in definition.blocks:
            if block.kind is BlockKind.CONFIG:
                route.config.update(_settings(block))
            elif block.kind is BlockKind.EVENT:
                headers = [(_written([line.name]), _written(line.pieces)) for line in block.headers]
                route.events.append(WrittenEvent(block.name, _settings(block), headers))
                route.credentials.extend(value for name, value in headers if is_credential(name))
            route.credentials.extend(value for name, value in _settings(block).items() if name in CREDENTIALS)
        yield route


def _settings(block: Block) -> dict[str, str]:
    return {name: _written(node.pieces) for name, node in block.settings.items() if name != HEADERS}


def _written(pieces: Iterable[Piece]) -> str:
    """Join strings, words and what GET reads; times keep their blanks."""
    parts = [
        f"{{{piece.source.lower()}.{piece.text.strip(_QUOTES)}}}"
        if piece.source
        else unescape(piece.text[1:-1] if piece.is_string else piece.text)
        for piece in pieces
    ]
    return "".join(parts)


def _read_outside(outside: Junk, report: Report) -> tuple[Fault, ...]:
    """Return a fault for each line that looks like a route without DEFINE; if there is none, report any other text."""
    # Comments become spaces. Behind the last */ no block comment is looked for: each that is never closed would be
    # followed to the end.
    closed = outside.text.find("\n", outside.text.rfind("*/")) if "*/" in outside.text else 0
    closed = len(outside.text) if closed < 0 else closed
    text = _COMMENT.sub(_blank, outside.text[:closed]) + _LINE_COMMENT.sub(_blank, outside.text[closed:])
    without_define = []
    for found in _WITHOUT_DEFINE.finditer(text):
        offset, name = outside.offset + found.start("route"), found["name"]
        message = f"ROUTE {name} is skipped: DEFINE is missing before it"
        hint, end = f"write DEFINE ROUTE {name} WITH TYPE {ROUTE_TYPE}", offset + len("ROUTE")
        without_define.append(report.fault(Severity.WARNING, FaultCode.MISSING_KEYWORD, offset, message, hint, end))
    if without_define or not text.strip():
        return tuple(without_define)
    offset = outside.offset + len(text) - len(text.lstrip())
    word = text.split()[0]
    if closest(word, ["DEFINE"]) or word.upper() in ("WITH", "ADD"):
        report.error(
            FaultCode.MISPLACED, offset, f"{word} is outside of a definition", "a definition begins with DEFINE ROUTE"
        )
    else:
        mark_hint = FENCE_HINT if word.startswith("```") else COMMENT_HINT if word[0] == "#" else None
        report.notice(offset, "text outside of a definition is skipped", mark_hint)
    return ()


def _blank(comment: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", comment[0])


def _report_skipped(node: OtherNode, report: Report) -> None:
    """Report a definition that is not a route of our type; it is an error where it was probably meant to be one."""
    kind, name = node.kind, node.name
    route_type = node.type.text.strip("'\"") if node.type else None
    if kind is None:
        report.error(FaultCode.UNEXPECTED_TEXT, node.offset, "DEFINE is not followed by what it defines", _EXAMPLE)
    elif kind.upper() != "ROUTE" and route_type is not None and route_type.upper() == ROUTE_TYPE:
        message = f"DEFINE {kind} cannot have the type {ROUTE_TYPE}"
        hint: str | None = None
        if closest(kind, ["ROUTE"]):
            hint = question("ROUTE", "DEFINE ROUTE")
        elif not name:
            hint = f"write DEFINE ROUTE {kind} WITH TYPE {ROUTE_TYPE}"
        end = report.find(kind, node.offset + len("DEFINE")) + len(kind)
        report.error(FaultCode.INVALID_NAME, node.offset, message, hint, end=end)
    elif kind.upper() != "ROUTE":
        report.notice(node.offset, f"DEFINE {kind} {name or ''}".rstrip() + " is skipped: only routes are read here")
    elif node.type is not None and route_type and closest(route_type, [ROUTE_TYPE]):
        message = f"route {name} is skipped: its type is {route_type}"
        hint = question(f"WITH TYPE {ROUTE_TYPE}", ROUTE_TYPE)
        report.warning(FaultCode.SKIPPED, node.type.offset, message, hint)
    else:
        report.notice(node.offset, f"route {name} of type {route_type} is skipped: only {ROUTE_TYPE} is read here")


def _read_name(node: RouteNode, report: Report) -> str | None:
    """Return the route's name; faults of its first line are reported at the DEFINE."""
    if node.name is None or not node.has_type:
        missing, hint = "its name is missing", _EXAMPLE
        if node.name is not None:
            missing = "its WITH TYPE is missing"
            words = [word for word in node.unread if word.upper() not in ("WITH", "TYPE", ROUTE_TYPE)]
            joined = "_".join([node.name.text.strip("'\""), *words[:_MOST_WORDS]])
            if (
                0 < len(words) <= _MOST_WORDS
                and is_name(joined)
                and not any(closest(word, ["WITH", "TYPE", ROUTE_TYPE]) for word in words)
            ):
                missing = "the name of a route is one word"
                hint = f"write DEFINE ROUTE {joined} WITH TYPE {ROUTE_TYPE}"
            elif is_name(node.name.text):
                hint = f"write DEFINE ROUTE {node.name.text} WITH TYPE {ROUTE_TYPE}"
        report.error(FaultCode.UNEXPECTED_TEXT, node.offset, f"DEFINE ROUTE cannot be read: {missing}", hint)
        return None
    name = node.name.text
    if not is_name(name):
        quoted = name[0] in "'\""
        reason = "is quoted" if quoted and is_name(name[1:-1]) else "holds other characters than A-Z a-z 0-9 _ . -"
        hint = f"write it bare, as in DEFINE ROUTE {name[1:-1] if quoted and is_name(name[1:-1]) else 'My_Route-1'}"
        report.error(FaultCode.INVALID_NAME, node.offset, f"the route name {name} {reason}", hint)
        return None
    return name
