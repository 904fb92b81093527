"""The piece of a template that shows why it was found: escaped text with the words found in `<mark>`. Pure."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from html import escape
from typing import Final

from template_api.ranking import stem, words
from template_api.records import Found

_LENGTH: Final = 240
_LEAD: Final = 40  # characters before the first word
_WINDOW: Final = _LENGTH - 2 * _LEAD
_READ: Final = 20_000  # characters of a content; the words that follow are not looked for
_MARKS: Final = re.compile(
    r"""!?\[(?P<text>[^\[\]\n]{0,200})\](?:\([^()\n]{0,500}\)|\[[^\[\]\n]{0,200}\])
    |^[ \t]*(?:`{3,}|~{3,})[^\n]*$ | ^[ \t|:=-]+$ | ^[ \t]*(?:\#{1,6}|>|[-*+]|\d{1,9}[.)])[ \t]+
    |\*{1,3}(?=\S) | (?<=\S)\*{1,3} | `+ | ~~ | (?<![^\W_])_{1,3}(?=\w) | (?<=\w)_{1,3}(?![^\W_])
    |^[ \t]*\| | [ ]\|(?=[ \n]|$)""",
    re.MULTILINE | re.VERBOSE,
)
_FENCED: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_RUN: Final = re.compile(r"[^\W_]+")

_Span = tuple[int, int]


def snippet(found: Found) -> str:
    """Return about 240 characters of the content or, where no word is in that, of the short description, as HTML.

    All is escaped but `<mark>` and `</mark>` around the words that `matched` lists, in whatever form they are there.
    """
    description = " ".join(found.summary.short_description.split())
    return excerpt(found) or _marked(description, list(_spans(description, _sought(found))))


def excerpt(found: Found) -> str:
    """Return about 240 characters of the content as `snippet` does, an empty text where no word is in it."""
    content, sought = found.summary.content[:_READ], _sought(found)

    def unmarked(match: re.Match[str]) -> str:
        return match["text"] or (" " if match[0].isspace() or "|" in match[0] else "")

    for text in (_FENCED.sub("\n", content), content):  # prose before code
        plain = " ".join(_MARKS.sub(unmarked, text).split())
        spans = list(_spans(plain, sought))
        if spans:
            return _marked(plain, spans)
    return ""


def marked_text(found: Found, text: str) -> str:
    """Return a whole text as HTML, with the words that `matched` lists in `<mark>`."""
    return _between(text, sorted(_spans(text, _sought(found))), 0, len(text))


def _sought(found: Found) -> frozenset[str]:
    return frozenset(stem(part) for word in found.matched for part in words(word.found))


def _spans(text: str, sought: frozenset[str]) -> Iterator[_Span]:
    """Yield where the words are; of scripts without spaces, where the pairs of characters are."""
    known: dict[str, list[str]] = {}
    if not sought:
        return
    for run in _RUN.finditer(text):
        written = run[0]
        if written not in known:
            several = words(written)
            hits = [word for word in several if stem(word) in sought]
            known[written] = hits if len(several) > 1 else [written] * len(hits)
        for hit in known[written]:
            at = written.find(hit)
            if at >= 0:
                yield run.start() + at, run.start() + at + len(hit)


def _marked(text: str, spans: list[_Span]) -> str:
    begins = sorted(start for start, _ in spans)
    # Where the window begins that has the most words.
    densest = max(begins, key=lambda at: bisect_right(begins, at + _WINDOW) - bisect_left(begins, at), default=0)
    begin = max(0, densest - _LEAD)
    if begin:
        begin = text.find(" ", begin, begin + _LEAD) + 1 or begin
    end = begin + _LENGTH
    if end < len(text):
        end = max(text.rfind(" ", begin, end), max((stop for _, stop in spans if stop <= end), default=begin)) or end
        end = end if end > begin else begin + _LENGTH
    return f"{'… ' if begin else ''}{_between(text, sorted(spans), begin, end)}{' …' if end < len(text) else ''}"


def _between(text: str, spans: list[_Span], begin: int, end: int) -> str:
    parts, at = [], begin
    for start, stop in spans:
        if at <= start and stop <= end:
            parts += [escape(text[at:start]), "<mark>", escape(text[start:stop]), "</mark>"]
            at = stop
    return "".join([*parts, escape(text[at:end])])
