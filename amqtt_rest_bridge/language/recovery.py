"""Statements with a mistake in them: reported once, and read on as they were meant, so that one is not many. Pure."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.hints import (
    closest,
    did_you_mean,
    explain_junk,
    explain_quotes,
    explain_unknown_setting,
)
from amqtt_rest_bridge.language.nodes import Block, BlockNode, Blocks, Junk, Piece, SettingNode
from amqtt_rest_bridge.language.parameters import IGNORED_BLOCK, PARAMETERS, BlockKind, Kind
from amqtt_rest_bridge.language.sources import Report

BLOCK_NAMES = (*BlockKind, IGNORED_BLOCK)
_FIRST_WORD = re.compile(r"\s*([A-Za-z_]+)[:=]?(?=\s|\Z)")
_MARK = re.compile(r"\A\s*[:=]\s*")
_HEADER_LINE = re.compile(r"\s*(?P<name>\"[^\"]+\"|'[^']+'|[\w-]+)[ \t]+\S")
_NAME_IN = re.compile(r"([A-Z]+)\s+([A-Z_]+)", re.IGNORECASE)
_AS_HEADERS = "write WITH HEADERS, and below it ADD <name> <value>"


class Recovery(ABC):
    """The reader of a definition where a statement is at fault; `blocks` has the rest of it."""

    blocks: Blocks
    _report: Report
    _block: Block | None
    _skipping: bool
    _in_headers: bool
    _after_headers: bool
    _loose_headers: bool
    _rest_is_known: bool
    _outside_reported: bool
    _last: BlockNode | SettingNode | None

    @abstractmethod
    def _open_block(self, node: BlockNode) -> None: ...

    @abstractmethod
    def _read_setting(self, written: SettingNode) -> None: ...

    @abstractmethod
    def _report_open(self, pieces: Iterable[Piece]) -> None: ...

    def _read_junk(self, junk: Junk) -> None:
        if self._skipping:
            self._report_open(junk.open_strings)
            return
        unexplained = junk
        for number, line in enumerate(_lines(junk)):
            if number == 0 and self._rest_is_known:
                unexplained = Junk("", (), junk.offset)
            elif self._lacks_keyword(line) and (number == 0 or unexplained is junk):
                unexplained = Junk(junk.text[: line.offset - junk.offset].rstrip(), (), junk.offset)
        if unexplained.text:
            self._explain(unexplained)

    def _explain(self, junk: Junk) -> None:
        """Report text that is not a statement, as one fault of the statement before it."""
        if (quotes := explain_quotes(junk, self._last)) is not None:
            if quotes[1]:
                self._report.error(quotes[0], *quotes[1:])
            self._give_up()
            return
        self._report_open(junk.open_strings)
        # What continues a # comment is reported with it already.
        in_comment = self._last is not None and any(piece.text.startswith("#") for piece in self._last.pieces[:1])
        if self._forgot_get(junk.text) or in_comment:
            return
        self._report.error(junk.offset, *explain_junk(junk.text, self._last))
        found = _NAME_IN.match(junk.text)
        if found is not None and found[1].upper() == "ADD" and not self._in_headers:
            self.blocks.broken.add(found[2].upper())
            self._skipping = True
        elif found is not None and self._block is not None:
            self._block.broken.add(found[2].upper())
        elif self._report.line_before(junk.offset).strip():
            self._give_up()

    def _give_up(self) -> None:
        """Forget the value of the statement before, of which only a part could be read."""
        if self._block is None or not isinstance(self._last, SettingNode):
            return
        name = self._last.name.text.upper()
        if self._in_headers and self._block.headers and self._block.headers[-1] is self._last:
            self._block.headers.pop()
            self._block.broken.add(Kind.HEADERS.name)
        elif self._block.settings.pop(name, None) is not None:
            self._block.broken.add(name)

    def _lacks_keyword(self, line: Junk) -> bool:
        """Report a line that only lacks its WITH or ADD; return whether it is one."""
        found, block = _FIRST_WORD.match(line.text), self._block
        begins_line = not self._report.line_before(line.offset).strip()
        name = found[1].upper() if found and (begins_line or found[1].isupper()) else ""
        follows = line.text[found.end() :].strip() if found else ""
        if name in BLOCK_NAMES:
            self._report.error(line.offset, f"ADD is missing before {name}", f"write ADD {on_one_line(line.text)}")
            pieces = tuple(Piece(word, line.offset) for word in follows.split()[:1])
            self._open_block(BlockNode(Piece(name, line.offset), pieces, (), line.offset, known=True))
        elif block is not None and name in PARAMETERS[block.kind] and (follows or name == Kind.HEADERS.name):
            value = _MARK.sub("", line.text[found.end(1) :].rstrip(" \t,;")) if found else ""
            shown = name if PARAMETERS[block.kind][name].secret else on_one_line(f"{name} {value.strip()}".strip())
            self._report.error(line.offset, f"WITH is missing before {name}", f"write WITH {shown}")
            block.broken.add(name)
            self._loose_headers = name == Kind.HEADERS.name
        elif self._in_headers and begins_line and (header := _HEADER_LINE.match(line.text)):
            self._add_is_missing(line.offset, header["name"])
        else:
            return False
        return True

    def _add_is_missing(self, offset: int, name: str) -> None:
        self._report.error(offset, f"ADD is missing before {name}", f"write ADD {name}: each header begins with ADD")
        if self._block is not None:
            self._block.broken.add(Kind.HEADERS.name)

    def _forgot_get(self, text: str) -> bool:
        """Report `ENV "X"` and `GET "X"` as one fault of their setting; return whether it was one of them."""
        last, block = self._last, self._block
        word = last.pieces[-1] if last is not None and last.pieces else None
        if last is None or word is None or word.source or block is None or text[:1] not in ("'", '"'):
            return False
        name = last.name.text.upper()
        is_setting = name in block.settings
        wanted = is_setting and (word.text.upper() != "GET" or PARAMETERS[block.kind][name].kind is not Kind.CHOICE)
        if word.text.upper() not in ("ENV", "SECRET", "GET") or not (wanted or self._in_headers):
            return False
        shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
        if word.text.upper() == "GET":
            hint = f"write GET ENV {shown} or GET SECRET {shown}"
            self._report.error(word.offset, f"GET {shown} does not say of what", hint)
        else:
            hint = f"write GET {word.text.upper()} {shown}"
            self._report.error(word.offset, f"{word.text} {shown} is not a value", hint)
        if is_setting:
            block.broken.add(name)
            del block.settings[name]
        elif self._in_headers:
            block.headers.pop()
        return True

    def _report_outside(self, node: SettingNode) -> None:
        """Report the first setting before any block; those that follow have the same cause."""
        home = next((kind for kind in BlockKind if node.name.text.upper() in PARAMETERS[kind]), None)
        block = {None: "ADD REST_API_CONFIG or ADD EVENT <name>", BlockKind.EVENT: "ADD EVENT <name>"}
        if not self._outside_reported:
            hint = f"write {block.get(home, f'ADD {home}')} before it"
            self._report.error(node.offset, f"{node.name.text} is outside of a block", hint)
        self._outside_reported = True
        self.blocks.broken.add(str(home))

    def _unknown_setting(self, node: SettingNode, block: Block) -> None:
        name, kind = node.name, block.kind
        plain = name.text.strip("'\"")
        next_word = node.pieces[0].text if node.pieces else ""
        if f"{plain}_{next_word}".upper() in PARAMETERS[kind]:
            meant = f"{plain}_{next_word}".upper()
            self._report.error(name.offset, f"unknown setting {plain} {next_word}", f"write {meant}")
            block.guessed.add(meant)
            self._rest_is_known = True
            return
        like_header = name.is_string or "-" in plain or (self._after_headers and not plain.isupper())
        if kind is BlockKind.EVENT and like_header and closest(plain, PARAMETERS[kind]) is None:
            hint = f"write ADD {name.text}: below WITH HEADERS each line begins with ADD"
            if not self._after_headers:
                hint = f"write WITH HEADERS, and below it ADD {name.text} and the value"
            self._report.error(node.offset, f"{name.text} is not a setting", hint)
            block.broken.add(Kind.HEADERS.name)
            return
        elsewhere = next((other for other in BlockKind if plain.upper() in PARAMETERS[other]), None)
        if elsewhere is not None:
            hint = f"it belongs in {elsewhere}"
            if elsewhere is BlockKind.EVENT and not self.blocks.events:
                hint += ": write ADD EVENT <name> before it"
            self._report.error(name.offset, f"{name.text} does not belong in {kind}", hint)
            self._loose_headers = plain.upper() == Kind.HEADERS.name
            self.blocks.broken.add(elsewhere)
            return
        guesses, hint = explain_unknown_setting(plain, kind)
        block.guessed.update(guesses)
        self._rest_is_known = plain.upper() == "HEADER"
        self._report.error(name.offset, f"unknown setting {name.text}", hint)

    def _unknown_block(self, node: BlockNode) -> None:
        name, plain = node.name.text, node.name.text.strip("'\"").upper()
        block = self._block
        homes = ([block.kind] if block else []) + list(BlockKind)
        if plain in ("HEADER", Kind.HEADERS.name):
            self._report.error(node.name.offset, f"{name} is not a block", _AS_HEADERS)
            self._loose_headers = self._rest_is_known = True
        elif block is not None and any(plain in PARAMETERS[home] for home in homes):
            self._report.error(node.offset, f"{name} is a setting, which begins with WITH", f"write WITH {plain}")
            self._skipping = False
            self._read_setting(SettingNode(node.name, node.pieces, node.offset))
        elif not self._loose_headers:
            self._report_unknown_block(node)
            return
        if block is not None:
            block.broken.add(Kind.HEADERS.name)

    def _report_unknown_block(self, node: BlockNode) -> None:
        name = node.name.text
        settings = [line.name.text.upper() for line in node.lines if isinstance(line, SettingNode)]
        inside = Counter(kind for name in settings for kind in BlockKind if name in PARAMETERS[kind])
        if name.rstrip(":{").upper() in BLOCK_NAMES:
            known = Piece(name.rstrip(":{").upper(), node.name.offset)
            self._report.error(node.name.offset, f"unknown block {name}", f"write ADD {known.text}")
            self._open_block(BlockNode(known, node.pieces, (), node.offset, known=True))
            return
        hint = did_you_mean(name, BLOCK_NAMES)
        like_header = node.name.is_string or "-" in name or bool(node.pieces)
        if hint is None and like_header and self._block is not None and self._block.kind is BlockKind.EVENT:
            hint = "header lines follow directly below WITH HEADERS"
            self._report.error(node.name.offset, f"unknown block {name}", hint)
            return
        if inside:
            home = inside.most_common(1)[0][0]
            hint = f"did you mean {home}?"
            self.blocks.broken.add(home)
        self._report.error(node.name.offset, f"unknown block {name}", hint or f"known: {', '.join(BLOCK_NAMES)}")
        self._skipping = True


def _lines(junk: Junk) -> Iterator[Junk]:
    """Split a text that is not a statement into its lines, without the white space before them."""
    offset = junk.offset
    for line in junk.text.split("\n"):
        yield Junk(line.strip(), (), offset + len(line) - len(line.lstrip()))
        offset += len(line) + 1
