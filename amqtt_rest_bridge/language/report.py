"""Faults of one text as they are found, and their messages; the bridge's only use of rapidfuzz.

Offsets become lines and columns here and nowhere else.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rapidfuzz import process
from rapidfuzz.distance import OSA, JaroWinkler

from amqtt_rest_bridge.errors import Fault, Position, Severity, on_one_line, visible
from amqtt_rest_bridge.language.nodes import Piece


class Report:
    """The faults of one source; `offset`s count characters of its text from 0.

    `without_define` are the lines that look like a route of ours whose DEFINE is missing: offset and name.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.errors = 0
        self.without_define: list[tuple[int, str]] = []
        self._text = text

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self._text))]

    def position(self, offset: int) -> Position:
        """Return the line and column, from 1, of an offset; one past the end counts as the last character."""
        offset = max(0, min(offset, len(self._text) - 1))
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def line_before(self, offset: int) -> str:
        """Return the text of a line up to an offset."""
        return self._text[self._text.rfind("\n", 0, offset) + 1 : offset]

    def error(self, offset: int, message: str, hint: str | None = None) -> None:
        """Note something that keeps the route from working."""
        self._add(Severity.ERROR, offset, message, hint)

    def warning(self, offset: int, message: str, hint: str | None = None) -> None:
        """Note something that works, but hardly as it was meant."""
        self._add(Severity.WARNING, offset, message, hint)

    def notice(self, offset: int, message: str, hint: str | None = None) -> None:
        """Note something worth knowing."""
        self._add(Severity.NOTICE, offset, message, hint)

    def _add(self, severity: Severity, offset: int, message: str, hint: str | None) -> None:
        # Messages hold names and texts of a file: these must not break the log line they end in.
        message, hint = visible(message), hint and visible(hint)
        self.errors += severity is Severity.ERROR
        self.faults.append(Fault(self.path, self.position(offset), severity, message, hint))


_CELL = re.compile(r"(.*?)(?:#(\d+))?", re.DOTALL)


def in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """Sort faults by file, cell, line and column, and drop duplicates."""
    return tuple(sorted(dict.fromkeys(faults), key=_place))


def _place(fault: Fault) -> tuple[str, int, Position, Severity, str]:
    cell = _CELL.fullmatch(fault.path)
    file, number = cell.groups() if cell else (fault.path, None)
    return file, int(number or 0), fault.position, fault.severity, fault.message


_ALIKE = 0.87  # Jaro-Winkler, for endings and parts that are missing: REST_CONFIG means REST_API_CONFIG


def closest(name: str, names: Iterable[str], *, parts: bool = False) -> str | None:
    """Return the name that was probably meant, or None; case and the difference of - and _ do not matter.

    With `parts`, the end of a name counts when only one ends so (CLIENT means ENABLE_CLIENT), then any part of one.
    """
    names = list(names)
    slips = min(2, len(name) // 3)  # letters that are wrong, missing, too many or swapped
    slip = process.extractOne(name, names, scorer=OSA.distance, processor=_normalised, score_cutoff=slips)
    if slip is not None:
        return slip[0]
    ending = [whole for whole in names if parts and _normalised(whole).endswith(f"_{_normalised(name)}")]
    if len(ending) == 1:
        return ending[0]
    alike = process.extractOne(
        name, names, scorer=JaroWinkler.normalized_similarity, processor=_normalised, score_cutoff=_ALIKE
    )
    if alike is not None or not parts:
        return alike[0] if alike else None
    holding = [whole for whole in names if _normalised(name) in _normalised(whole).split("_")]
    return holding[0] if len(holding) == 1 else None


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """Return the hint of a fault, or None when nothing comes close."""
    found = closest(name, names)
    return f"did you mean {found}?" if found else None


def _normalised(name: str) -> str:
    return name.upper().replace("-", "_")


COMMENT_HINT = "a comment begins with // or --"
"""What to do about text that begins with #."""
NO_COMMA = "leave the comma out: a line break or a space is enough"
STRAIGHT = "strings need straight quotes: \" or '"
TYPOGRAPHIC_QUOTES = "“”„‟‘’‚‛«»"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_FIRST_CHARACTERS = {"#": COMMENT_HINT, ",": NO_COMMA}
_ROUTE = re.compile(r"ROUTE\s+[^\s\"']+\Z", re.IGNORECASE)
_PLUS_FIRST = re.compile(r"(?:(?:WITH|ADD)\s+[^\s+]+\s*)?\+", re.IGNORECASE)
_HASH_BEFORE = re.compile(r"(?<!\S)#[^\"']*\Z")


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement before a text that is not one: its name and the pieces of its value."""

    name: str
    pieces: tuple[Piece, ...]
    is_event: bool = False


def is_name(text: str) -> bool:
    """Return whether a text can name a route or an event."""
    return _NAME.fullmatch(text) is not None


def report_open_strings(pieces: Iterable[Piece], report: Report) -> None:
    """Report the strings that are not closed."""
    for piece in pieces:
        if piece.open_at is not None:
            in_comment = _HASH_BEFORE.search(report.line_before(piece.open_at))
            hint = COMMENT_HINT if in_comment else f"write {piece.text[0]} where it ends"
            report.error(piece.open_at, "this string is not closed on its line", hint)


def hint_at(pieces: tuple[Piece, ...], hint: str) -> str:
    """Return the hint for a value that should not be there: a # comment is the usual reason."""
    return COMMENT_HINT if pieces[0].text.startswith("#") else hint


def explain(text: str, before: Statement | None) -> tuple[str, str | None]:
    """Return message and hint for a text that is not a statement, by what it is and what precedes it."""
    if text.endswith("+"):
        hint = 'a value follows it: "text", GET ENV "X" or GET SECRET "X"'
        return f"nothing follows the + in {on_one_line(text, 40)}", hint
    if text.upper() in ("WITH", "ADD"):
        return f"{text} is not followed by a name", None
    shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
    if _PLUS_FIRST.match(text):
        return f"+ is not between two values: {shown}", None
    if text[:1] in TYPOGRAPHIC_QUOTES:
        return f"unexpected text: {shown}", STRAIGHT
    if text[:6].upper() == "DEFINE":
        return f"unexpected text: {shown}", "a definition begins at the start of a line"
    if verb := closest(text.split()[0], ["WITH", "ADD"]):
        return f"unexpected text: {shown}", f"did you mean {verb}?"
    return _explain_behind(shown, before)


def _explain_behind(shown: str, before: Statement | None) -> tuple[str, str | None]:
    """Return message and hint for a text by what precedes it."""
    if before is None or not before.pieces:
        hint = _FIRST_CHARACTERS.get(shown[0], "a route continues with ADD REST_API_CONFIG or ADD EVENT <name>")
        return f"unexpected text: {shown}", hint
    if before.is_event:
        after = f"unexpected text after ADD EVENT {on_one_line(before.pieces[0].text)}: {shown}"
        return after, _FIRST_CHARACTERS.get(shown[0])
    hint = _FIRST_CHARACTERS.get(shown[0], "a value with spaces needs quotes")
    if _ROUTE.match(shown):
        hint = f"write DEFINE before {shown}"
    if before.pieces[-1].text in ("=", ":"):
        hint = f"no {before.pieces[-1].text} belongs between a name and its value"
    return f"unexpected text after the value of {before.name}: {shown}", hint
