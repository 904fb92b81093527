"""The canonical layout of route texts: only white space and the case of keywords change. Pure.

Each statement begins a line, with four spaces a level, keywords in upper case and one space between words. A value on
several lines keeps its lines, one level deeper. A comment stays between its words; an aligned one keeps its column.
Several blank lines become one. Strings, and text outside of our routes, stay as they are.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from amqtt_rest_bridge.lot.grammar.parsing import Level, OtherNode, Piece, RouteNode, StatementNode, parse
from amqtt_rest_bridge.lot.settings_table import BlockKind
from amqtt_rest_bridge.lot.sources import is_notebook
from amqtt_rest_bridge.tools.editor.places import cells_of, with_texts

LEVEL = 4
"""Columns of a level, and of a tab."""
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<line_comment>(?://|--)[^\n]*)|(?P<comment>/\*[\s\S]*?\*/)"
    r"""|(?P<string>"(?:[^"\\]|\\[\s\S])*+"|'(?:[^'\\]|\\[\s\S])*+')"""
    r"""|(?P<plus>\+)|(?P<word>(?:(?!//|/\*|--)[^\s"'])+|[\s\S])"""
)
_SKIPPED = r"(?:\s|(?://|--)[^\n]*|/\*[\s\S]*?\*/)"
_BEFORE_NAME = re.compile(rf"GET{_SKIPPED}+(?:ENV|SECRET){_SKIPPED}*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement: a text from `offset` up to the next one, comments included, whose first word begins a line.

    `level` is the indentation of that line. `keywords` are the numbers of the words in upper case, from 0. The first
    `head` words stay on one line, such as WITH and a name; the words behind them keep their lines. `name` is that of a
    block, setting or header. With `verbatim` the text stays as it is.
    """

    offset: int
    level: int
    keywords: tuple[int, ...] = ()
    head: int = 0
    pieces: tuple[Piece, ...] = ()
    name: Piece | None = None
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, string or comment as it is written; `breaks` counts the line breaks right before it."""

    text: str
    offset: int
    breaks: int
    kind: str

    @property
    def is_comment(self) -> bool:
        return self.kind.endswith("comment")


def laid_out_file(path: str, text: str) -> str:
    """Return the text of a file in the canonical layout; of a notebook the cells of the route language."""
    if not is_notebook(path):
        return laid_out(text)
    texts = {}
    for cell in cells_of(text):
        after = laid_out(cell.text)  # which adds a line break: most cells end without one
        texts[cell.number] = after if cell.text.endswith("\n") else after.rstrip("\r\n")
    return with_texts(text, texts)


def laid_out(text: str) -> str:
    """Return a text in the canonical layout, with the line breaks of its first line; it reads as before.

    A text in which `parsed_texts.parse_text` finds an error must be left as it is: it may be meant otherwise.
    """
    tree = parse(text)
    outside_end = _line_start(text, tree.definitions[0].offset) if tree.definitions else len(text)
    outside = list(_tokens(text, Statement(0, 0), outside_end))
    statements = [Statement(0, 0, verbatim=not all(token.is_comment for token in outside))]
    for definition in tree.definitions:
        statements += statements_of(definition, text)
    writer = _Writer(text)
    for statement, following in zip(statements, [*statements[1:], Statement(len(text), 0)], strict=True):
        writer.write(statement, following)
    return writer.text()


def _line_start(text: str, offset: int) -> int:
    """Return where the line of an offset begins."""
    return text.rfind("\n", 0, offset) + 1


def statements_of(definition: RouteNode | OtherNode, text: str) -> Iterator[Statement]:
    """Yield the statements of a definition in their order: its first line is of level 0, a header of level 3."""
    if isinstance(definition, OtherNode):
        yield Statement(_line_start(text, definition.offset), 0, verbatim=True)
        return
    name = (definition.name,) if definition.name else ()
    yield Statement(definition.offset, 0, (0, 1, 3, 4, 5), 6, name)
    for node in definition.body:
        if isinstance(node, StatementNode):  # any other is of a block that is skipped: it goes on the line before
            is_event = node.level is Level.BLOCK and node.name.text == BlockKind.EVENT
            keywords = (0,) if node.level is Level.HEADER else (0, 1)  # the name of a header is its author's
            yield Statement(node.offset, node.level, keywords, 2 + is_event, node.pieces, node.name)


def _tokens(text: str, statement: Statement, end: int) -> Iterator[_Token]:
    """Yield the tokens of a statement up to an offset, keywords in upper case."""
    read = {piece.offset: piece.text for piece in statement.pieces if not piece.source}
    gets = {piece.offset for piece in statement.pieces if piece.source}
    for piece in statement.pieces:
        if piece.source and (found := _BEFORE_NAME.match(text, piece.offset)):
            read[found.end()] = piece.text
    at, breaks, number, before = statement.offset, 0, 0, -1
    while at < end and (found := _TOKEN.match(text, at, end)):
        kind, written = str(found.lastgroup), found[0]
        if kind == "space":
            breaks += written.count("\n")
        elif kind.endswith("comment"):
            yield _Token(written.rstrip(), at, breaks, kind)
        else:
            # What the parser has read counts: a string of several lines, a name with -- in it.
            written = read.get(at, written)
            is_keyword = number in statement.keywords or at in gets or before in gets
            yield _Token(written.upper() if is_keyword and kind == "word" else written, at, breaks, kind)
            number, before = number + 1, at
        breaks = breaks if kind == "space" else 0
        at += len(found[0]) if kind.endswith("comment") else len(written)


class _Writer:
    """Writes statements one after the other. A line is kept open, since a comment may follow in it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._break = "\r\n" if re.match(r"[^\n]*\r\n", text) else "\n"
        self._written: list[str] = []
        self._line: list[str] = []  # the open one
        self._began = 0  # where the first word of the open line is in the text
        self._breaks = 0  # behind the last token

    def text(self) -> str:
        """Return what is written."""
        self._end_line()
        return "".join(self._written)

    def write(self, statement: Statement, following: Statement) -> None:
        """Write a statement, and the comments behind it."""
        end = following.offset
        if statement.verbatim:
            self._end_line()
            if self._breaks > 1 and self._written:
                self._written.append(self._break)
            end = _line_start(self._text, end) if end < len(self._text) else end
            self._written.append(self._text[statement.offset : end])
            self._breaks = 0
            return
        tokens = list(_tokens(self._text, statement, end))
        words = [number for number, token in enumerate(tokens) if not token.is_comment]
        last = words[-1] if words else -1
        breaks, self._breaks = self._breaks, 0
        for number, token in enumerate(tokens):
            behind_comment = number > 0 and tokens[number - 1].kind == "line_comment"
            if number == 0 and words:  # the first word
                self._begin_line(token, LEVEL * statement.level, blank=breaks > 1)
            elif number > last and (token.breaks or not words):
                # A comment on lines of its own, behind the words. It has the column of the next statement; if it is
                # deeper than that, the column of the deeper of both statements. A comment of several lines keeps its
                # column, as its other lines do.
                indentation = self._indentation(token.offset)
                if "\n" not in token.text:
                    deeper = indentation > (0 if following.verbatim else self._indentation(following.offset))
                    levels = following.level, statement.level if deeper else 0
                    indentation = LEVEL * max(levels)
                self._begin_line(token, indentation, blank=token.breaks > 1)
            elif behind_comment or (token.breaks and (token.is_comment or number not in words[: statement.head])):
                # A part of the value on a line of its own.
                self._begin_line(token, LEVEL * (statement.level + 1), blank=False)
            else:
                self._line += [self._gap(token), token.text]
        behind = tokens[-1].offset if tokens else statement.offset
        self._breaks = self._text.count("\n", behind + len(tokens[-1].text) if tokens else behind, end)

    def _begin_line(self, token: _Token, indentation: int, *, blank: bool) -> None:
        """Begin a line with a token, with `blank` behind an empty one."""
        self._end_line()
        if blank and self._written:
            self._written.append(self._break)
        self._line, self._began = [" " * indentation, token.text], token.offset

    def _end_line(self) -> None:
        if self._line:
            self._written += [*self._line, self._break]
            self._line = []

    def _gap(self, token: _Token) -> str:
        """Return the space before a token of the open line; a comment in a column of its own keeps it."""
        if token.is_comment and not token.breaks and not self._text[token.offset - 1 : token.offset].isspace():
            return ""
        if token.kind != "line_comment":
            return " "
        start, line = _line_start(self._text, token.offset), "".join(self._line)
        before = self._text[start : token.offset]
        is_aligned = len(before) - len(before.rstrip()) > 1 and not self._text[start : self._began].strip()
        if not is_aligned or "\n" in line:
            return " "
        return " " * max(1, len(before.expandtabs(LEVEL)) - len(line.expandtabs(LEVEL)))

    def _indentation(self, offset: int) -> int:
        """Return the column in which the line of an offset begins."""
        line = self._text[_line_start(self._text, offset) : offset + 1].expandtabs(LEVEL)
        return len(line) - len(line.lstrip())
