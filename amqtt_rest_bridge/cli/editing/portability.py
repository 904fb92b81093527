"""What another parser of the language refuses: Coreflux's wants keywords in capitals and four spaces a level. Pure."""

import re
from collections.abc import Iterable

from amqtt_rest_bridge.errors import Fault, FaultCode
from amqtt_rest_bridge.language.grammar import BlockNode, HeadersNode, Line, Piece, RouteNode, SettingNode, parse
from amqtt_rest_bridge.language.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind
from amqtt_rest_bridge.language.sources import Report, Source
from amqtt_rest_bridge.spelling import question

_LEVEL = 4
_FIRST_LINE = re.compile(r"(DEFINE)\s+(ROUTE)\s+\S+\s+(WITH)\s+(TYPE)\s+[\"']?(\w+)", re.IGNORECASE)
_KEYWORDS = re.compile(r"(WITH|ADD)(?:\s+(HEADERS|EVENT|\w+_CONFIG)(?![\w-]))?", re.IGNORECASE)
_GET = re.compile(r"(GET)\s+(ENV|SECRET)", re.IGNORECASE)
_EXTENSION = "an extension of this bridge; leave it out where Coreflux reads the file too"


def portability_warnings(source: Source) -> list[Fault]:
    """Return a warning for each statement of our routes that Coreflux's parser refuses."""
    statements = _Statements(source)
    for route in parse(source.text).definitions:
        if isinstance(route, RouteNode):
            statements.read_route(route)
    return statements.report.faults


class _Statements:
    def __init__(self, source: Source) -> None:
        self.report = Report(source.path, source.text)
        self._text = source.text

    def read_route(self, route: RouteNode) -> None:
        self._check_layout(route.offset, 0)
        self._check_case(_FIRST_LINE, route.offset)
        for node in route.body:
            if isinstance(node, BlockNode):
                self._read_block(node)

    def _read_block(self, block: BlockNode) -> None:
        self._check_layout(block.offset, 1)
        self._check_case(_KEYWORDS, block.offset)
        self._check_values(block.pieces)
        name = block.name.text.upper()
        if name == BlockKind.ROUTE_CONFIG:
            self._warn(block.offset, f"{name} is not portable", _EXTENSION)
        rows = PARAMETERS[BlockKind(name)] if block.known and name != IGNORED_BLOCK else {}
        for line in block.lines:
            self._read_line(line, {name for name, row in rows.items() if not row.portable and block.known})

    def _read_line(self, line: Line, extensions: Iterable[str]) -> None:
        if isinstance(line, HeadersNode):
            self._check_layout(line.offset, 2)
            self._check_case(_KEYWORDS, line.offset)
            for header in line.lines:
                if isinstance(header, SettingNode):
                    self._check_layout(header.offset, 3)
                    self._check_case(_KEYWORDS, header.offset)
                    self._check_values(header.pieces)
        elif isinstance(line, SettingNode):
            self._check_layout(line.offset, 2)
            self._check_case(_KEYWORDS, line.offset)
            name = line.name.text
            if name != name.upper():
                self._warn_of_case(name, line.name.offset)
            if name.upper() in extensions:
                self._warn(line.name.offset, f"{name.upper()} is not portable", _EXTENSION)
            self._check_values(line.pieces)

    def _check_layout(self, offset: int, level: int) -> None:
        """Warn of a statement that does not begin its line, after four spaces for each level."""
        before = self.report.line_before(offset)
        if before.strip():
            self._warn(offset, "a statement behind another one in its line is not portable", "begin a line with it")
        elif "\t" in before:
            self._warn(offset, "a tab in the indentation is not portable", f"write {_LEVEL * level} spaces")
        elif len(before) != _LEVEL * level:
            message = f"an indentation of {len(before)} spaces is not portable here"
            self._warn(offset, message, f"write {_LEVEL * level} spaces; rest-bridge fmt does")

    def _check_case(self, keywords: re.Pattern[str], offset: int) -> None:
        """Warn of the first keyword of a statement that is not in capitals."""
        found = keywords.match(self._text, offset)
        for number, word in enumerate(found.groups() if found else (), start=1):
            if found is not None and word and word != word.upper():
                self._warn_of_case(word, found.start(number))
                return

    def _check_values(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece.source:
                self._check_case(_GET, piece.offset)

    def _warn_of_case(self, word: str, offset: int) -> None:
        message, end = f"{word} is not in capitals", offset + len(word)
        self.report.warning(FaultCode.NOT_PORTABLE, offset, message, question(word.upper()), end=end)

    def _warn(self, offset: int, message: str, hint: str) -> None:
        self.report.warning(FaultCode.NOT_PORTABLE, offset, message, hint)
