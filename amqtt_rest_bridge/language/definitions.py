"""A text to its definitions: which are ours, where they end, which are skipped. Pure.

Text of other definitions may be anything, so it is only searched for the next DEFINE. Text of ours comes out with every
string and comment closed, which is what the parser asks for; offsets stay those of the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from amqtt_rest_bridge.language.report import Report
from amqtt_rest_bridge.language.suggest import closest, did_you_mean

ROUTE_TYPE = "REST_API"
COMMENT_HINT = "a comment begins with // or --"
"""What to do about text that begins with #."""
_EXAMPLE = f"write DEFINE ROUTE MyRoute WITH TYPE {ROUTE_TYPE}"

_DEFINE = r"^[^\S\n]*(?=DEFINE(?![\w-]))"
_NEXT_DEFINE = re.compile(_DEFINE, re.MULTILINE | re.IGNORECASE)
_GAP = r"(?:\s|//[^\n]*|--[^\n]*|/\*.*?\*/)++"
_HEADER = re.compile(
    rf"""DEFINE{_GAP}(?P<kind>[^\s"'/]++)
    (?:{_GAP}(?!WITH{_GAP}TYPE\s)(?P<name>"[^"\n]*"|'[^'\n]*'|(?:(?!//|--|/\*)[^\s"'])++))?
    (?:{_GAP}WITH{_GAP}TYPE{_GAP}(?!(?:ADD|WITH)\s)(?P<type>"[^"\n]*"|'[^'\n]*'|(?:(?!//|--|/\*)[^\s"'])++))?""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
# Ours: strings may span lines. Others: only what surely is a comment hides a DEFINE.
_OUR_TOKEN = re.compile(
    rf"""(?P<define>{_DEFINE})|(?P<comment>/\*.*?\*/|//[^\n]*|--[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')|(?P<open>["']|/\*)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_OTHER_TOKEN = re.compile(
    rf"""(?P<define>{_DEFINE})|"[^"\n]*"|'[^'\n]*'|(?<!\S)/\*.*?\*/""",
    re.VERBOSE | re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_TO_FIRST_ADD = re.compile(r"\A.*?(?=\bADD\s|\Z)", re.DOTALL | re.IGNORECASE)
_STATEMENT_BEFORE = re.compile(r"\n[^\S\n]*(?:WITH|ADD)\s+[\w-]+\s*.\Z", re.IGNORECASE)
_WITHOUT_DEFINE = re.compile(
    rf"^[^\S\n]*(?P<route>ROUTE)\s+(?P<name>\S+)\s+WITH\s+TYPE\s+{ROUTE_TYPE}(?!\S)", re.MULTILINE | re.IGNORECASE
)
_HASH_BEFORE = re.compile(r"(?<!\S)#[^\"']*\Z")
_BEHIND_STRING = re.compile(r"\s|\Z|\+|//|--|/\*")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """One `DEFINE ROUTE ... WITH TYPE REST_API`: its name (None when it cannot be read), its body, its offsets."""

    name: str | None
    offset: int
    body: str
    body_offset: int

    @property
    def title(self) -> str:
        """Give what a message calls it."""
        return f"route {self.name}" if self.name is not None else "this route"


def split(text: str, report: Report) -> Iterator[Definition]:
    """Give the definitions that are ours and report what is skipped or cannot be read."""
    start = _first_define(text, report)
    while start is not None:
        header = _HEADER.match(text, start)
        if header is None or header["kind"].upper() in ("WITH", "ADD"):
            report.error(start, "DEFINE is not followed by what it defines", _EXAMPLE)
            start = _end_of_other(text, start + len("DEFINE"))
        elif _is_ours(header, report):
            body_start, name = _read_header(header, report)
            body, end = _close(text, body_start, report)
            if header["type"] is None or name is None:  # its header is reported; go on where its blocks begin
                body = _TO_FIRST_ADD.sub(lambda found: " " * len(found[0]), body, count=1)
            yield Definition(name, start, body, body_start)
            start = end
        else:
            start = _end_of_other(text, header.end())


def is_name(text: str) -> bool:
    """Tell whether a text can name a route or an event."""
    return _NAME.fullmatch(text) is not None


def _first_define(text: str, report: Report) -> int | None:
    start = _end_of_other(text, 0)
    before = re.sub(_GAP, lambda gap: " " * len(gap[0]), text[:start], flags=re.DOTALL)
    report.without_define += [(found.start("route"), found["name"]) for found in _WITHOUT_DEFINE.finditer(before)]
    if before.strip() and not report.without_define:
        offset = len(before) - len(before.lstrip())
        word = before.split()[0]
        if closest(word, ["DEFINE"]) or word.upper() in ("WITH", "ADD"):
            report.error(offset, f"{word} stands outside of a definition", "a definition begins with DEFINE ROUTE")
        else:
            report.notice(offset, "text outside of a definition is skipped", COMMENT_HINT if word[0] == "#" else None)
    return start


def _end_of_other(text: str, start: int) -> int | None:
    """Find the next DEFINE behind text that may be anything; None when there is no more."""
    for token in _OTHER_TOKEN.finditer(text, start):
        if token["define"] is not None:
            return token.end()
    return None


def _is_ours(header: re.Match[str], report: Report) -> bool:
    """Tell whether a definition is to be read; one that is not is reported as skipped."""
    kind, name, route_type = header["kind"], header["name"], _unquoted(header["type"])
    ours = route_type is not None and route_type.upper() == ROUTE_TYPE
    if kind.upper() == "ROUTE":
        if ours or route_type is None:
            return True
        if meant := closest(route_type, [ROUTE_TYPE]):
            report.warning(
                header.start(), f"route {name} is skipped: its type is {route_type}", f"did you mean WITH TYPE {meant}?"
            )
            return False
        report.notice(header.start(), f"route {name} of type {route_type} is skipped: only {ROUTE_TYPE} is read here")
    elif ours:
        report.error(header.start(), f"DEFINE {kind} cannot have the type {ROUTE_TYPE}", did_you_mean(kind, ["ROUTE"]))
    else:
        report.notice(header.start(), f"DEFINE {kind} {name or ''}".rstrip() + " is skipped: only routes are read here")
    return False


def _read_header(header: re.Match[str], report: Report) -> tuple[int, str | None]:
    """Give where the body begins and the route's name; faults of both stand at the DEFINE."""
    name = header["name"]
    if name is None or header["type"] is None:
        missing = "its name" if name is None or name.upper() in ("WITH", "ADD") else "its WITH TYPE"
        report.error(
            header.start(),
            f"DEFINE ROUTE cannot be read: {missing} is missing",
            _EXAMPLE,
        )
        return header.end(), None
    if not is_name(name):
        quoted = name[0] in "'\""
        reason = "is quoted" if quoted and is_name(name[1:-1]) else "holds other characters than A-Z a-z 0-9 _ . -"
        report.error(header.start(), f"the route name {name} {reason}", "write it bare, as in DEFINE ROUTE My_Route-1")
        return header.end(), None
    return header.end(), name


def _unquoted(text: str | None) -> str | None:
    return text.strip("'\"") if text else text


def _close(text: str, start: int, report: Report) -> tuple[str, int | None]:
    """Copy the body of one of our definitions, closing what is left open; give it and the next DEFINE.

    A string left open ends with its line: its line break becomes the missing quote, so that no offset moves.
    """
    parts: list[str] = []
    done = here = start
    while (token := _OUR_TOKEN.search(text, here)) is not None:
        if token["define"] is not None:
            return "".join([*parts, text[done : token.start()]]), token.end()
        here = token.end()
        if token["open"] == "/*":
            report.error(token.start(), "this comment is never closed", "write */ where it ends")
            parts += [text[done : token.start()], "//"]
            done = here
        elif token["open"] or _runs_over(text, token):
            hint = f"write {token[0][0]} where it ends"
            if _HASH_BEFORE.search(text, text.rfind("\n", 0, token.start()) + 1, token.start()):
                hint = COMMENT_HINT
            report.error(token.start(), "this string is not closed on its line", hint)
            here = _end_of_line(text, token.start())
            parts += [text[done:here].rstrip("\r\\").ljust(here - done), token[0][0]]
            here = done = min(here + 1, len(text))
    return "".join([*parts, text[done:]]), None


def _runs_over(text: str, token: re.Match[str]) -> bool:
    """Tell whether a string took in other lines because its own end is missing.

    Then its seeming end is where a later string begins: behind `WITH NAME`, and before that string's text.
    """
    if token["string"] is None or "\n" not in token[0]:
        return False
    return (
        _NEXT_DEFINE.search(text, token.start() + 1, token.end()) is not None
        or _STATEMENT_BEFORE.search(token[0]) is not None
        or _BEHIND_STRING.match(text, token.end()) is None
    )


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end
