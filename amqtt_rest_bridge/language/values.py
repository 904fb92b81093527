"""The pieces of a setting's value to text: escapes, GET ENV, GET SECRET, `{env.X}` and `{secret.X}`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.grammar import Piece
from amqtt_rest_bridge.language.masking import is_credential
from amqtt_rest_bridge.language.report import Report
from amqtt_rest_bridge.language.surroundings import NotAvailable, Surroundings
from amqtt_rest_bridge.placeholders import Fixed, constants

_ESCAPE = re.compile(r"\\([\"'\\nt])")
_ESCAPED = {"n": "\n", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a setting: its text, in parts of which those that came from outside are `Fixed`.

    `pieces` is how it was written; `secrets` are the texts in it that nobody may see: secrets, and what comes from
    environment variables that are called like one.
    """

    pieces: tuple[Piece, ...]
    parts: tuple[str | Fixed, ...]
    secrets: frozenset[str] = frozenset()

    @property
    def offset(self) -> int:
        """Give where the value begins in its file."""
        return self.pieces[0].offset

    @property
    def text(self) -> str:
        """Give the whole text, with what came from outside."""
        return "".join([part if isinstance(part, str) else part.text for part in self.parts])

    @property
    def brought_in(self) -> frozenset[str]:
        """Give the texts that came from outside."""
        return frozenset(part.text for part in self.parts if isinstance(part, Fixed) and part.text)

    @property
    def shown(self) -> str:
        """Give the text as a fault may show it: on one line, what came from outside by its name only."""
        return on_one_line("".join([part if isinstance(part, str) else part.label for part in self.parts]))

    def hide(self, message: str) -> str:
        """Put names for what came from outside into a message that was made from the text."""
        for part in self.parts:
            if isinstance(part, Fixed) and len(part.text) > 1:
                message = message.replace(part.text, part.label)
        return message


def evaluate(pieces: tuple[Piece, ...], surroundings: Surroundings, report: Report) -> Value | None:
    """Put a value together, or report what is missing and give None."""
    parts: list[str | Fixed] = []
    secrets = set()
    complete = True
    for piece in pieces:
        try:
            for part in _parts(piece, surroundings):
                parts.append(part)
                if isinstance(part, Fixed) and (part.label.startswith("{secret.") or is_credential(part.label)):
                    secrets.add(part.text)
        except NotAvailable as error:
            report.error(piece.offset, str(error), error.hint)
            complete = False
    return Value(pieces, tuple(parts), frozenset(secrets - {""})) if complete else None


def _parts(piece: Piece, surroundings: Surroundings) -> Iterator[str | Fixed]:
    if piece.source:
        yield _fixed(piece.source.lower(), piece.text.strip("'\""), surroundings, escaped=False)
        return
    raw = piece.text[1:-1] if piece.is_string else piece.text
    end = 0
    for start, stop, what, name in constants(raw):
        yield _unescape(raw[end:start])
        yield _fixed(what, name, surroundings, escaped=True)
        end = stop
    yield _unescape(raw[end:])


def _fixed(what: str, name: str, surroundings: Surroundings, *, escaped: bool) -> Fixed:
    text = surroundings.secret(name) if what == "secret" else surroundings.variable(name)
    return Fixed(text, f"{{{what}.{name}}}", escaped)


def _unescape(raw: str) -> str:
    """Resolve escapes; a line break in a string is LF whatever the file uses."""
    if "\\" in raw:
        raw = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), raw)
    return raw.replace("\r\n", "\n") if "\r" in raw else raw
