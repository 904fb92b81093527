"""A definition while it is read: its blocks, where the reader is, and mistakes in its statements. Pure.

A mistake is reported once, and the statement read on as it was meant: what it explains is noted in `Reading`, so that
one mistake is not many faults. Values stay as written.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from amqtt_rest_bridge.errors import FaultCode, on_one_line
from amqtt_rest_bridge.lot import hints
from amqtt_rest_bridge.lot.grammar.parsing import BlockNode, ConditionTree, Junk, Piece, SettingNode
from amqtt_rest_bridge.lot.parameters import PARAMETERS, BlockKind, Kind
from amqtt_rest_bridge.lot.sources import Report
from amqtt_rest_bridge.spelling import closest

HEADERS = Kind.HEADERS.name
_HASH_BEFORE = re.compile(r"(?<!\S)#[^\"']*\Z")
_NAME_IN = re.compile(r"([A-Z]+)\s+([A-Z_]+)", re.IGNORECASE)


@dataclass(slots=True)
class Block:
    """A block: `WITH` lines by name, each a setting that the block has, and the lines below WITH HEADERS.

    `broken` names settings that are present but could not be read; `guessed` those that an unknown name may mean:
    they are not missed, and nothing else is concluded from them. `condition` is the tree of WHEN, None where it is not
    one string, or nested too deeply.
    """

    kind: BlockKind
    offset: int
    name: str = ""
    settings: dict[str, SettingNode] = field(default_factory=dict)
    headers: list[SettingNode] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    guessed: set[str] = field(default_factory=set)
    condition: ConditionTree | None = None


@dataclass(slots=True)
class Definition:
    """One `DEFINE ROUTE ... WITH TYPE REST_API`: its blocks in their order; `name` is None when it cannot be read.

    `broken` names blocks whose first line could not be read. `is_faulty`: its text has an error already.
    """

    name: str | None
    offset: int
    blocks: list[Block] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    is_faulty: bool = False


@dataclass(slots=True)
class Reading:
    """Where the reader of a definition is: the block that is open, the statement before, what is explained already.

    Each method reports a mistake, and notes what it explains.

    `block` is None before the first block, `last` after text that is not a statement. `skipping`: inside a block that
    is not known, or known twice. `after_headers`: nothing but headers since WITH HEADERS. `loose_headers`: WITH HEADERS
    is where it does not belong; what follows are headers all the same. `rest_is_known`: the next line that is not a
    statement belongs to a fault that is reported. `event_is_missing`: the setting before belongs in an
    event, and is reported.
    """

    definition: Definition
    report: Report
    block: Block | None = None
    last: BlockNode | SettingNode | None = None
    skipping: bool = False
    in_headers: bool = False
    after_headers: bool = False
    loose_headers: bool = False
    rest_is_known: bool = False
    outside_reported: bool = False
    event_is_missing: bool = False

    def refuse(
        self, code: FaultCode, name: str, offset: int, message: str, hint: str | None = None, end: int | None = None
    ) -> None:
        """Report a setting of the open block that is there, but cannot be read."""
        self.report.error(code, offset, message, hint, end=end)
        if self.block is not None:
            self.block.broken.add(name)

    def report_outside(self, node: SettingNode) -> None:
        """Report the first setting before any block; those that follow have the same cause."""
        home = next((kind for kind in BlockKind if node.name.text.upper() in PARAMETERS[kind]), None)
        if not self.outside_reported:
            block = {None: "ADD REST_API_CONFIG or ADD EVENT <name>", BlockKind.EVENT: "ADD EVENT <name>"}
            hint = f"write {block.get(home, f'ADD {home}')} before it"
            self.report.error(FaultCode.MISPLACED, node.offset, f"{node.name.text} is outside of a block", hint)
        self.outside_reported = True
        self.definition.broken.add(str(home))

    def unknown_setting(self, node: SettingNode, block: Block) -> None:
        """Report a setting that the block does not have, by what was probably meant."""
        name, kind = node.name, block.kind
        plain = name.text.strip("'\"")
        next_word = node.pieces[0].text if node.pieces else ""
        if (meant := f"{plain}_{next_word}".upper()) in PARAMETERS[kind]:
            self.report.error(
                FaultCode.UNKNOWN_SETTING, name.offset, f"unknown setting {plain} {next_word}", f"write {meant}"
            )
            block.guessed.add(meant)
            self.rest_is_known = True
            return
        like_header = name.is_string or "-" in plain or (self.after_headers and not plain.isupper())
        if kind is BlockKind.EVENT and like_header and closest(plain, PARAMETERS[kind]) is None:
            hint = f"write ADD {name.text}: below WITH HEADERS each line begins with ADD"
            if not self.after_headers:
                hint = f"write WITH HEADERS, and below it ADD {name.text} and the value"
            self.refuse(FaultCode.MISPLACED, HEADERS, node.offset, f"{name.text} is not a setting", hint)
            return
        elsewhere = next((other for other in BlockKind if plain.upper() in PARAMETERS[other]), None)
        if elsewhere is not None:
            hint = f"it belongs in {elsewhere}"
            if plain.upper() == HEADERS:
                hint = hints.HEADERS_IN_AN_EVENT
            elif elsewhere is BlockKind.EVENT and all(one.kind is not elsewhere for one in self.definition.blocks):
                hint += ": write ADD EVENT <name> before it"
            if not self.event_is_missing:
                self.report.error(FaultCode.MISPLACED, name.offset, f"{name.text} does not belong in {kind}", hint)
            self.event_is_missing = elsewhere is BlockKind.EVENT
            self.loose_headers = plain.upper() == HEADERS
            self.definition.broken.add(elsewhere)
            return
        guesses, hint = hints.explain_unknown_setting(plain, kind)
        block.guessed.update(guesses)
        self.rest_is_known = plain.upper() == "HEADER"
        self.report.error(FaultCode.UNKNOWN_SETTING, name.offset, f"unknown setting {name.text}", hint)

    def add_is_missing(self, offset: int, name: str) -> None:
        """Report a line of a header that does not begin with ADD."""
        hint = f"write ADD {name}: each header begins with ADD"
        self.refuse(FaultCode.MISSING_KEYWORD, HEADERS, offset, f"ADD is missing before {name}", hint)

    def explain(self, junk: Junk) -> None:
        """Report text that is not a statement, and what of the statement before cannot be trusted."""
        if (quotes := hints.explain_quotes(junk, self.last)) is not None:
            if quotes[1]:
                self.report.error(FaultCode.QUOTES, *quotes)
            self._give_up()
            return
        report_open_strings(junk.open_strings, self.report)
        # What continues a # comment is reported with it already.
        in_comment = self.last is not None and any(piece.text.startswith("#") for piece in self.last.pieces[:1])
        if self._forgot_get(junk.text) or in_comment:
            return
        self.report.error(FaultCode.UNEXPECTED_TEXT, junk.offset, *hints.explain_junk(junk.text, self.last))
        found = _NAME_IN.match(junk.text)
        if found is not None and found[1].upper() == "ADD" and not self.in_headers:
            self.definition.broken.add(found[2].upper())
            self.skipping = True
        elif found is not None and self.block is not None:
            self.block.broken.add(found[2].upper())
        elif self.report.line_before(junk.offset).strip():
            self._give_up()

    def _give_up(self) -> None:
        """Forget the value of the statement before, of which only a part could be read."""
        if self.block is None or not isinstance(self.last, SettingNode):
            return
        name = self.last.name.text.upper()
        if self.in_headers and self.block.headers and self.block.headers[-1] is self.last:
            self.block.headers.pop()
            self.block.broken.add(HEADERS)
        elif self.block.settings.pop(name, None) is not None:
            self.block.broken.add(name)

    def _forgot_get(self, text: str) -> bool:
        """Report `ENV "X"` and `GET "X"` as one fault of their setting; return whether it was one of them."""
        last, block = self.last, self.block
        word = last.pieces[-1] if last is not None and last.pieces else None
        if last is None or word is None or word.source or block is None or text[:1] not in ("'", '"'):
            return False
        name, source = last.name.text.upper(), word.text.upper()
        is_setting = name in block.settings
        wanted = is_setting and (source != "GET" or PARAMETERS[block.kind][name].kind is not Kind.CHOICE)
        if source not in ("ENV", "SECRET", "GET") or not (wanted or self.in_headers):
            return False
        shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
        message, hint = f"{word.text} {shown} is not a value", f"write GET {source} {shown}"
        if source == "GET":
            message, hint = f"GET {shown} does not say of what", f"write GET ENV {shown} or GET SECRET {shown}"
        self.report.error(FaultCode.MISSING_KEYWORD, word.offset, message, hint)
        if is_setting:
            block.broken.add(name)
            del block.settings[name]
        elif self.in_headers:
            block.headers.pop()
        return True


def report_open_strings(pieces: Iterable[Piece], report: Report) -> None:
    """Report the strings that are not closed."""
    for piece in pieces:
        if piece.open_at is not None:
            in_comment = _HASH_BEFORE.search(report.line_before(piece.open_at))
            hint = hints.COMMENT_HINT if in_comment else f"write {piece.text[0]} where it ends"
            if piece.text[:2] in ('"{', '"['):
                hint = "write ' where it begins and where it ends: \" is part of the JSON in it"
            report.error(FaultCode.NOT_CLOSED, piece.open_at, "this string is not closed on its line", hint)
