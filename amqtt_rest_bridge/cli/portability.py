"""`check --portable`: what Coreflux's parser refuses, which wants capital keywords and four spaces a level. Pure."""

import re

from amqtt_rest_bridge.errors import Fault, FaultCode
from amqtt_rest_bridge.lot.grammar.parsing import RouteNode, parse
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, BlockKind
from amqtt_rest_bridge.lot.sources import Report, Source
from amqtt_rest_bridge.spelling import question
from amqtt_rest_bridge.tools.editor.layout import LEVEL, statements_of

_KEYWORDS = (
    re.compile(r"(DEFINE)\s+(ROUTE)\s+\S+\s+(WITH)\s+(TYPE)\s+[\"']?(\w+)", re.IGNORECASE),
    re.compile(r"(ADD)(?:\s+(EVENT|\w+_CONFIG)(?![\w-]))?", re.IGNORECASE),
    re.compile(r"(WITH)", re.IGNORECASE),
    re.compile(r"(ADD)", re.IGNORECASE),
)
"""The keywords of a statement, by its level."""
_GET = re.compile(r"(GET)\s+(ENV|SECRET)", re.IGNORECASE)
_EXTENSION = "an extension of this bridge; leave it out where Coreflux reads the file too"


def portability_warnings(source: Source) -> list[Fault]:
    """Return a warning for each statement of our routes that Coreflux's parser refuses."""
    found = _Statements(source)
    for route in parse(source.text).definitions:
        if isinstance(route, RouteNode):
            found.check(route)
    return found.report.faults


class _Statements:
    """The statements of a text, and the warnings about them."""

    def __init__(self, source: Source) -> None:
        self.report = Report(source.path, source.text)
        self._text = source.text

    def check(self, route: RouteNode) -> None:
        """Warn of the statements of a route: their indentation, keywords and settings."""
        extensions: set[str] | None = None  # of the block, None before the first one
        for one in statements_of(route, self._text):
            name = "" if one.name is None else one.name.text
            if one.level == 1:
                rows = PARAMETERS[BlockKind(name.upper())] if name.upper() in PARAMETERS else {}
                extensions = {setting for setting, row in rows.items() if not row.portable}
            elif one.level > 1 and extensions is None:
                continue
            before, width = self.report.line_before(one.offset), LEVEL * one.level
            if before.strip():
                message = "a statement behind another one in its line is not portable"
                self._warn(one.offset, message, "begin a line with it")
            elif "\t" in before:
                self._warn(one.offset, "a tab in the indentation is not portable", f"write {width} spaces")
            elif len(before) != width:
                message = f"an indentation of {len(before)} spaces is not portable here"
                self._warn(one.offset, message, f"write {width} spaces; rest-bridge fmt does")
            self._check_case(_KEYWORDS[one.level], one.offset)
            if one.level == 1 and name.upper() == BlockKind.ROUTE_CONFIG:
                self._warn(one.offset, f"{name.upper()} is not portable", _EXTENSION)
            if one.level == 2 and one.name is not None:
                if name != name.upper():
                    self._warn_of_case(name, one.name.offset)
                if extensions and name.upper() in extensions:
                    self._warn(one.name.offset, f"{name.upper()} is not portable", _EXTENSION)
            for piece in one.pieces:
                if piece.source:
                    self._check_case(_GET, piece.offset)

    def _check_case(self, keywords: re.Pattern[str], offset: int) -> None:
        """Warn of the first keyword of a statement that is not in capitals."""
        found = keywords.match(self._text, offset)
        for number, word in enumerate(found.groups() if found else (), start=1):
            if found is not None and word and word != word.upper():
                self._warn_of_case(word, found.start(number))
                return

    def _warn_of_case(self, word: str, offset: int) -> None:
        message, end = f"{word} is not in capitals", offset + len(word)
        self.report.warning(FaultCode.NOT_PORTABLE, offset, message, question(word.upper()), end=end)

    def _warn(self, offset: int, message: str, hint: str) -> None:
        self.report.warning(FaultCode.NOT_PORTABLE, offset, message, hint)
