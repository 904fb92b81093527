"""Reads WHEN, the condition of an event. Pure.

The parser calls a method of `_Tests` for each rule of the grammar that it has read, the innermost first. The methods
for terms return a `_Term`, those for comparisons and for what joins them return a `Test`. A mistake raises `_TermError`
with its place in the condition, and `read_condition` reports it at its place in the file.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from amqtt_rest_bridge.errors import FaultCode
from amqtt_rest_bridge.lot.evaluation import BlockSettings
from amqtt_rest_bridge.lot.forms import FormError
from amqtt_rest_bridge.lot.grammar.parsing import offset_of, parse_condition, unescape
from amqtt_rest_bridge.lot.hints import explain_suspect, with_dots
from amqtt_rest_bridge.lot.placeholders.conditions import Condition, Literal, Operand, Test
from amqtt_rest_bridge.lot.placeholders.formats import JsonNumber
from amqtt_rest_bridge.lot.placeholders.kinds import Mode, Placeholder, Suspect, recognise, suspects
from amqtt_rest_bridge.lot.placeholders.text import Fixed, Place
from amqtt_rest_bridge.spelling import question

_NAME: Final = "WHEN"
_CHARACTER: Final = re.compile(r"\\[\"'\\nt]|\r\n|.", re.DOTALL)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_FIELD: Final = re.compile(r"(?:\$\.|(?:body|message|payload|value)\.)?(?:json\.)?([A-Za-z_][\w.-]*)")
_SIGNS: Final = re.compile(r"\{[^{}]*\}|'[^']*'|\"[^\"]*\"|([=<>!~&|]+)")
# Operators of other languages, and what they are here.
_OPERATORS: Final = {
    **{"==": "=", "===": "=", "=>": ">=", "=<": "<=", "<>": "!=", "><": "!=", "!==": "!=", "=!": "!="},
    **{"~=": "!=", "&&": "AND", "&": "AND", "||": "OR", "|": "OR"},
}
_LIKE: Final = re.compile(
    r"(?P<negated>NOT\s+)?(?P<word>CONTAINS?|INCLUDES|STARTS?_?\s?WITH|ENDS?_?\s?WITH)\b\s*\(?(?:['\"](?P<value>[^'\"]*))?",
    re.IGNORECASE,
)
_IS: Final = re.compile(r"IS\b\s*(?P<negated>NOT\b)?\s*(?P<null>(?:NULL|NONE|MISSING|EMPTY)\b)?", re.IGNORECASE)
_BETWEEN: Final = re.compile(r"BETWEEN\s+(?P<low>\S+)\s+AND\s+(?P<high>[^\s)]+)", re.IGNORECASE)
_LAST_PLACEHOLDER: Final = re.compile(r"(\{[^{}]*\})\s*\Z")
_NUMBERS: Final = ("timestamp.unix", "timestamp.unix_ms")


def read_condition(settings: BlockSettings, mode: Mode) -> Condition | None:
    """Return the condition of WHEN, None if it is missing or at fault."""
    value = settings.texts.get(_NAME)
    if value is None or _NAME in settings.failed:
        return None
    piece = value.pieces[0]
    if len(value.pieces) > 1 or not piece.is_string:
        hint = "write the whole condition in one string; {env.X} and {secret.X} may be in it"
        settings.error(FaultCode.CONDITION, _NAME, f"{_NAME}: is not one string", hint, (piece.offset, None))
        return None
    characters = list(_CHARACTER.finditer(piece.text[1:-1]))
    constants = tuple((part.label, part.text) for part in value.parts if isinstance(part, Fixed))
    for suspect in suspects(piece.text, mode):
        if suspect.has_spaced_bar and (explained := explain_suspect(suspect, Place.TEXT, mode)):
            begin, end = piece.offset + suspect.offset, piece.offset + suspect.end
            settings.report.warning(FaultCode.PLACEHOLDER, begin, *explained, end=end)
    try:
        return _read("".join([unescape(one[0]) for one in characters]), mode, constants)
    except RecursionError:
        message, hint = f"{_NAME}: is nested too deeply", "write fewer parentheses"
        settings.error(FaultCode.CONDITION, _NAME, message, hint, (piece.offset, None))
    except _TermError as fault:
        # The offset in the file of each character of the condition, and of its end.
        offsets = [piece.offset + 1 + one.start() for one in characters] + [piece.offset + len(piece.text) - 1]
        begin, end = (offsets[min(one, len(characters))] for one in (fault.offset, fault.end))
        message = f"{_NAME}: {fault.message}"
        settings.error(FaultCode.CONDITION, _NAME, message, fault.hint, (begin, max(begin + 1, end)))
    return None


@lru_cache(maxsize=1024)  # many events have the same condition, and parsing one takes a millisecond
def _read(text: str, mode: Mode, constants: tuple[tuple[str, str], ...]) -> Condition:
    return Condition(text, parse_condition(text, _Tests(text, mode, dict(constants))))


class _TermError(FormError):
    """A fault of a term, which goes from `offset` to `end` in the condition."""

    def __init__(self, offset: int, end: int, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.offset = offset
        self.end = end


@dataclass(frozen=True, slots=True)
class _Term:
    """An operand as it is written, such as `{payload}` or `'on'`. `operand` is None for a text that is not a value.

    `type` is "text", "number", "boolean" or "null"; None if the type depends on the message.
    """

    text: str
    offset: int
    operand: Operand | None = None
    type: str | None = None

    @property
    def described(self) -> str:
        """Return the term and its type, for messages."""
        return f"{self.text} is {'null' if self.type == 'null' else f'a {self.type}'}"

    def fault(self, message: str, hint: str | None = None) -> _TermError:
        """Return a fault at this term."""
        return _TermError(self.offset, self.offset + len(self.text), message, hint)


class _Tests:
    """Makes the tests of a condition: one method for each rule of the grammar. Raises `_TermError` for a wrong term.

    A condition that ends too early, as `{payload} =`, is not refused at once. Its fault is kept in `_fault_at_end`, and
    raised at the end of the condition, unless text is left there that no rule can read: this text is the better reason.
    """

    def __init__(self, text: str, mode: Mode, constants: dict[str, str]) -> None:
        self._text = text
        self._mode = mode
        self._constants = constants
        self._fault_at_end: _TermError | None = None

    def condition(self, ast: Any) -> Test:
        """Return the test of a whole condition; refuse text after it that no rule can read."""
        leftover: _Term = ast["leftover"]
        if leftover.text:
            start, hint = leftover.offset, "as in {value.json.level} >= 3 AND NOT EXISTS {value.json.test}"
            # The leftover may be a part of an operator: of `=>` the parser has read the `=` already.
            signs = (one for one in _SIGNS.finditer(self._text) if one[1] and one.start() <= start < one.end())
            foreign = next(signs, None)
            if foreign is not None and foreign[1] in _OPERATORS:
                start, hint = foreign.start(), f"write {_OPERATORS[foreign[1]]}"
            text = self._text[start:].strip()
            if re.match(r"(NOT\s+)?IN\b", text, re.IGNORECASE):
                hint = "as in IN ('a', 'b')"
            elif foreign is None:
                hint = _hint_of_word(text, self._text[:start]) or hint
            raise _TermError(start, start + 1, f"{_shown(text)} cannot follow here", hint)
        if self._fault_at_end is not None:
            raise self._fault_at_end
        test: Test = ast["test"]
        return test

    def either(self, ast: Any) -> Test:
        """Return tests joined by OR; a single test as it is."""
        return ast[0] if len(ast) == 1 else Test("OR", tests=tuple(ast))

    def both(self, ast: Any) -> Test:
        """Return tests joined by AND; a single test as it is."""
        return ast[0] if len(ast) == 1 else Test("AND", tests=tuple(ast))

    def negation(self, ast: Any) -> Test:
        """Return NOT of a test."""
        return Test("NOT", tests=(ast["of"],))

    def group(self, ast: Any) -> Test:
        """Return the test in parentheses."""
        if not ast["end"]:
            fault = _Term("(", offset_of(ast)).fault("this ( is never closed", "write ) where it ends")
            if self._fault_at_end is None:
                raise fault
            self._fault_at_end = fault
        test: Test = ast["of"]
        return test

    def existence(self, ast: Any) -> Test:
        """Return EXISTS of a placeholder."""
        term: _Term = ast["of"]
        test = self._make_test("EXISTS", term)
        if not isinstance(term.operand, Placeholder) and term.text:
            hint = "as in EXISTS {value.json.test}"
            raise term.fault("EXISTS asks for a placeholder of the message", hint)
        if isinstance(term.operand, Placeholder) and term.operand.default is not None:
            raise term.fault("a placeholder with a default always exists", f"write EXISTS {{{term.operand.name}}}")
        return test

    def comparison(self, ast: Any) -> Test:
        """Return IN, LIKE or a comparison of two terms. A term alone is kept as a fault at the end."""
        left: _Term = ast["left"]
        if ast["items"]:
            test = self._make_test("IN", left, *ast["items"])
            self._check_types("IN", left, ast["items"])
        elif pattern := ast["pattern"]:
            test = self._make_test("LIKE", left, pattern)
            if pattern.type != "text" or not isinstance(pattern.operand, Literal):
                raise pattern.fault("LIKE asks for a text in quotes", "as in LIKE 'pump-%'")
            if left.type not in (None, "text"):
                raise left.fault(f"{left.described}, and LIKE compares texts")
        elif name := ast["operator"]:
            test = self._make_test(name, left, ast["right"])
            self._check_types(name, left, [ast["right"]])
        else:
            test = self._make_test("", left)
            text = left.text
            hint = f"write {text} = true, or EXISTS {text}" if isinstance(left.operand, Placeholder) else None
            self._fault_at_end = self._fault_at_end or left.fault(f"{_shown(text)} alone is not a condition", hint)
        return Test("NOT", tests=(test,)) if ast["negated"] else test

    def _make_test(self, name: str, *terms: _Term) -> Test:
        """Return a test of terms; refuse a term that is not a value."""
        if self._fault_at_end is not None:  # another test follows, so the end is not missing
            raise self._fault_at_end
        for number, term in enumerate(terms):
            text = term.text
            if term.operand is None and text:
                hint = f"a text is written in quotes: '{text}'"
                if text[0] in "'\"":
                    hint = "close the quote"
                elif text[0] == "{" and recognise(with_dots(text)[1:-1], self._mode):
                    hint = question(with_dots(text))
                elif text[0] == "{":
                    hint = f"close the brace: {text}}}"
                elif recognise(text, self._mode):
                    hint = f"a placeholder is written in braces: {{{text}}}"
                elif number == 0 and (field := _FIELD.fullmatch(text)):
                    hint = question(f"{{{'body' if self._mode is Mode.SERVER else 'value'}.json.{field[1]}}}")
                raise term.fault(f"{_shown(text)} is not a value", hint)
            if term.operand is None:
                hint = "a placeholder, a number, a text in quotes, true, false or null"
                self._fault_at_end = term.fault("a value is missing here", hint)
        return Test(name, tuple(term.operand for term in terms if term.operand is not None))

    def _check_types(self, name: str, left: _Term, others: list[_Term]) -> None:
        """Refuse a comparison of types that can never be equal or have no order."""
        for one in (left, *others):
            if one.type in ("boolean", "null") and name not in ("=", "!=", "IN"):
                raise one.fault(f"{one.text} has no order", "compare it with = or !=")
        for right in others:
            if left.type is None or right.type is None or left.type == right.type:
                continue
            types, hint = {left.type: left, right.type: right}, None
            placeholder = left.operand if isinstance(left.operand, Placeholder) else right.operand
            if isinstance(placeholder, Placeholder) and "null" in types:
                hint = f"it is missing or a text, never null: write NOT EXISTS {{{placeholder.name}}}"
            elif isinstance(placeholder, Placeholder) and placeholder.root == "payload":
                hint = f"{{{placeholder.name}.json}} is the payload as JSON"
                hint = "{body.json}" if placeholder.name == "body" else hint
            elif types.keys() == {"number", "text"} and isinstance(types["number"].operand, Literal):
                hint = f"compare with a text: '{types['number'].text}'"
            raise right.fault(f"{left.described}, {right.described}: they never compare", hint)

    # Terms.

    def placeholder(self, ast: Any) -> _Term:
        """Return a placeholder of the message, or the text that `{env.X}` or `{secret.X}` has read."""
        written, offset = ast["text"], offset_of(ast)
        if written in self._constants:
            return _Term(written, offset, Literal(self._constants[written]), "text")
        name = written[1:-1]
        found = recognise(name, self._mode)
        if found is None:
            explained = explain_suspect(Suspect(0, written, name.partition("|")[0]), Place.TEXT, self._mode)
            raise _Term(written, offset).fault(f"{written} is not a placeholder", explained and explained[1])
        kind = "number" if found.root in _NUMBERS else "text"
        return _Term(written, offset, found, None if found.root == "json" else kind)

    def number(self, ast: Any) -> _Term:
        """Return a number."""
        return _Term(ast["text"], offset_of(ast), Literal(JsonNumber(ast["text"])), "number")

    def quoted(self, ast: Any) -> _Term:
        """Return a text in quotes."""
        return _Term(ast["text"], offset_of(ast), Literal(ast["text"][1:-1]), "text")

    def constant(self, ast: Any) -> _Term:
        """Return true, false or null."""
        value = _CONSTANTS[ast["text"].lower()]
        return _Term(ast["text"], offset_of(ast), Literal(value), "null" if value is None else "boolean")

    def missing(self, ast: Any) -> _Term:
        """Return a text that is not a value, empty if there is none."""
        return _Term(ast["text"], offset_of(ast))

    leftover = missing


def _hint_of_word(text: str, before: str) -> str | None:
    """Return what to write for an operator in words, which `text` begins with, such as `CONTAINS 'x'`; or None."""
    if found := _LIKE.match(text):
        word, value = found["word"].upper(), found["value"] or "x"
        pattern = f"{'' if word.startswith('START') else '%'}{value}{'' if word.startswith('END') else '%'}"
        return f"write {'NOT ' if found['negated'] else ''}LIKE '{pattern}'"
    placeholder = _LAST_PLACEHOLDER.search(before)
    if placeholder is not None and (found := _BETWEEN.match(text)):
        return f"write >= {found['low']} AND {placeholder[1]} <= {found['high']}"
    if found := _IS.match(text):
        if not found["null"]:
            return "write !=" if found["negated"] else "write ="
        if placeholder is not None and found["negated"]:
            return f"write != null, or EXISTS {placeholder[1]} where null counts too"
        if placeholder is not None:
            return f"write = null, or NOT EXISTS {placeholder[1]} where it may be missing"
    return None


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
