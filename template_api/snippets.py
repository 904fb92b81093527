"""The piece of a template that shows why it was found: escaped text with the words found in `<mark>`. Pure."""

import re
from html import escape
from typing import Final

from template_api.ranking import stem, words
from template_api.records import Found, Summary

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
_HEADING: Final = re.compile(r"^([ \t]*#{1,6}[ \t].*?[^\s.:!?])(?:[ \t]+#+)?[ \t]*$", re.MULTILINE)
_FENCED: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_RUN: Final = re.compile(r"[^\W_]+")

_BEGIN, _END = "\x01", "\x02"  # of a word found, until a text is HTML
_MARKED: Final = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]+){_END}")
_UNMARKED: Final = dict.fromkeys(map(ord, (_BEGIN, _END)))


def snippet(found: Found[Summary]) -> str:
    """Return about 240 characters of the content or, where no word is in that, of the short description, as HTML.

    All is escaped but `<mark>` and `</mark>` around the words that `matched` lists, in whatever form they are there.
    """
    description = " ".join(found.template.short_description.split())
    return excerpt(found) or _html(_window(_marked(found, description)))


def excerpt(found: Found[Summary]) -> str:
    """Return about 240 characters of the content as `snippet` does, an empty text where no word is in it."""
    content = found.template.content[:_READ]

    def unmarked(match: re.Match[str]) -> str:
        return match["text"] or (" " if match[0].isspace() or "|" in match[0] else "")

    for text in (_FENCED.sub("\n", content), content):  # prose before code
        marked = _marked(found, " ".join(_MARKS.sub(unmarked, _HEADING.sub(r"\1.", text)).split()))
        if _BEGIN in marked:
            return _html(_window(marked))
    return ""


def marked_text(found: Found[Summary], text: str) -> str:
    """Return a whole text as HTML, with the words that `matched` lists in `<mark>`."""
    return _html(_marked(found, text))


def _marked(found: Found[Summary], text: str) -> str:
    """Return a text with marks around the words; in scripts without spaces, around pairs of characters."""
    sought = frozenset(stem(part) for word in found.matched for part in words(word.found))
    known: dict[str, str] = {}

    def mark(run: re.Match[str]) -> str:
        written = run[0]
        if written not in known:
            several, marked = words(written), written
            for word in several:
                if stem(word) in sought:
                    hit = word if len(several) > 1 else written
                    marked = marked.replace(hit, f"{_BEGIN}{hit}{_END}", 1)
            known[written] = marked
        return known[written]

    plain = text.translate(_UNMARKED)
    return _RUN.sub(mark, plain) if sought else plain


def _window(text: str) -> str:
    """Return the part of a marked text that has the most marks, cut between words."""
    begins = [match.start() for match in _MARKED.finditer(text)]
    densest = max(begins, key=lambda at: text.count(_BEGIN, at, at + _WINDOW), default=0)
    begin = max(0, densest - _LEAD)
    if begin:
        begin = text.find(" ", begin, densest) + 1 or densest
    part = text[begin : begin + _LENGTH]
    is_last = begin + _LENGTH >= len(text)
    if not is_last:
        part = part.rpartition(" ")[0] or part
    return f"{'… ' if begin else ''}{part}{'' if is_last else ' …'}"


def _html(marked: str) -> str:
    return _MARKED.sub(r"<mark>\1</mark>", escape(marked)).translate(_UNMARKED)
