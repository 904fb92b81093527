"""What to say about text that is no statement: a message and what to do next. Pure."""

import re
from dataclasses import dataclass

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.grammar import Piece
from amqtt_rest_bridge.language.report import Report, closest

COMMENT_HINT = "a comment begins with // or --"
"""What to do about text that begins with #."""
NO_COMMA = "leave the comma out: a line break or a space is enough"
STRAIGHT = "strings stand in straight quotes: \" or '"
TYPOGRAPHIC_QUOTES = "“”„‟‘’‚‛«»"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_FIRST_CHARACTERS = {"#": COMMENT_HINT, ",": NO_COMMA}
_ROUTE = re.compile(r"ROUTE\s+[^\s\"']+\Z", re.IGNORECASE)
_PLUS_FIRST = re.compile(r"(?:(?:WITH|ADD)\s+[^\s+]+\s*)?\+", re.IGNORECASE)
_HASH_BEFORE = re.compile(r"(?<!\S)#[^\"']*\Z")


@dataclass(frozen=True, slots=True)
class Statement:
    """What stands before a text that is none: its name and the pieces of its value."""

    name: str
    pieces: tuple[Piece, ...]
    is_event: bool = False


def is_name(text: str) -> bool:
    """Return whether a text can name a route or an event."""
    return _NAME.fullmatch(text) is not None


def open_string(piece: Piece, report: Report) -> None:
    """Report a string that is not closed, if it is one."""
    if piece.open_at is None:
        return
    hint = f"write {piece.text[0]} where it ends"
    if _HASH_BEFORE.search(report.line_before(piece.open_at)):
        hint = COMMENT_HINT
    report.error(piece.open_at, "this string is not closed on its line", hint)


def hint_at(pieces: tuple[Piece, ...], hint: str) -> str:
    """Return the hint for a value that should not be there: a # comment is the usual reason."""
    return COMMENT_HINT if pieces[0].text.startswith("#") else hint


def explain(text: str, before: Statement | None) -> tuple[str, str | None]:
    """Return message and hint for a text that is no statement, by what it is and what stands before it."""
    if text.endswith("+"):
        hint = 'a value follows it: "text", GET ENV "X" or GET SECRET "X"'
        return f"nothing follows the + in {on_one_line(text, 40)}", hint
    if text.upper() in ("WITH", "ADD"):
        return f"{text} is not followed by a name", None
    shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
    if _PLUS_FIRST.match(text):
        return f"+ does not stand between two values: {shown}", None
    if text[:1] in TYPOGRAPHIC_QUOTES:
        return f"unexpected text: {shown}", STRAIGHT
    if text[:6].upper() == "DEFINE":
        return f"unexpected text: {shown}", "a definition begins at the start of a line"
    if verb := closest(text.split()[0], ["WITH", "ADD"]):
        return f"unexpected text: {shown}", f"did you mean {verb}?"
    return _explain_behind(shown, before)


def _explain_behind(shown: str, before: Statement | None) -> tuple[str, str | None]:
    """Return message and hint for a text by what stands before it."""
    if before is None or not before.pieces:
        hint = _FIRST_CHARACTERS.get(shown[0], "a route goes on with ADD REST_API_CONFIG or ADD EVENT <name>")
        return f"unexpected text: {shown}", hint
    if before.is_event:
        after = f"unexpected text after ADD EVENT {on_one_line(before.pieces[0].text)}: {shown}"
        return after, _FIRST_CHARACTERS.get(shown[0])
    hint = _FIRST_CHARACTERS.get(shown[0], "a value with spaces needs quotes")
    if _ROUTE.match(shown):
        hint = f"write DEFINE before {shown}"
    if before.pieces[-1].text in ("=", ":"):
        hint = f"no {before.pieces[-1].text} stands between a name and its value"
    return f"unexpected text after the value of {before.name}: {shown}", hint
