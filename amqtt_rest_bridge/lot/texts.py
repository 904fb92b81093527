"""Texts with placeholders, and conditions (WHEN), parsed and checked for the place that they are used in. Pure.

A fault of a condition has the line and column of the term that it concerns.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.errors import CallError, FaultCode, Severity
from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.evaluation import BlockSettings, Value, place_in
from amqtt_rest_bridge.lot.forms import FormError
from amqtt_rest_bridge.lot.grammar.parsing import ConditionTree, Operation, Term, unescape
from amqtt_rest_bridge.lot.hints import explain_suspect
from amqtt_rest_bridge.lot.masking import is_credential, is_credential_parameter
from amqtt_rest_bridge.lot.placeholders.conditions import Condition, Literal, Operand, Test
from amqtt_rest_bridge.lot.placeholders.kinds import Mode, Placeholder, Suspect, recognise, suspects
from amqtt_rest_bridge.lot.placeholders.text import (
    Fixed,
    LoneBackslashError,
    Place,
    PlaceholderText,
    dot_segments,
    parse,
)
from amqtt_rest_bridge.lot.placeholders.values import JsonNumber
from amqtt_rest_bridge.lot.sources import Report
from amqtt_rest_bridge.spelling import Question, question
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name

_LONGEST: Final = 200  # characters of a query parameter that are looked at


def placeholder_text_of(settings: BlockSettings, name: str, place: Place, mode: Mode) -> PlaceholderText | None:
    """Parse a setting with placeholders; None when it is missing or at fault."""
    value = settings.texts.get(name)
    if value is None or name in settings.failed:
        return None
    template = read_placeholder_text(name, value, place, mode, settings.report)
    if template is None:
        settings.failed.add(name)
    return template


def names_in(value: Value, mode: Mode) -> tuple[str, ...]:
    """Return the placeholders of a mode in a value, whatever is wrong with it."""
    return parse(value.parts, Place.TEXT, mode).names


def read_placeholder_text(name: str, value: Value, place: Place, mode: Mode, report: Report) -> PlaceholderText | None:
    """Parse a value with placeholders and check its literal text; None when it is not allowed there.

    `name` is the setting's or header's, for messages.
    """
    errors = report.errors
    misspelt = _report_misspelt(name, value, place, mode, report)
    if report.errors > errors:
        return None
    try:
        template = parse(value.parts, place, mode)
        _check_literal(name, template, value, mode)
    except CallError as failed:
        report.error(FaultCode.PLACEHOLDER, value.offset, f"{name}: {failed.message}")
        return None
    except LoneBackslashError as error:
        hint = r"write \\\\ in the file: a backslash of JSON is two, and each of them is two in a string of the file"
        report.error(FaultCode.PLACEHOLDER, value.offset, f"{name} {error}", hint)
        return None
    except FormError as refused:
        report.error(FaultCode.INVALID_VALUE, value.offset, value.hide(f"{name} {refused.message}"), refused.hint)
        return None
    if place is Place.ENDPOINT:  # in server mode it is not a template
        warn_of_dot_segments(name, _sample(template), value.offset, report)
    if place is Place.JSON and not misspelt:
        _warn_of_broken_json(name, template, value, report)
    return template


def _sample(template: PlaceholderText) -> str:
    """Return the text with any word for each placeholder."""
    return "".join([piece if isinstance(piece, str) else "x" for piece in template.pieces])


def _check_literal(name: str, template: PlaceholderText, value: Value, mode: Mode) -> None:
    sample = _sample(template)
    if template.place is Place.ENDPOINT:
        forms.check_client_endpoint(sample)
    elif template.place is Place.HEADER:
        forms.read_header_value(sample)
    elif template.place is Place.TOPIC and name == "SOURCE_TOPIC":
        if reason := check_topic_filter(sample):
            raise FormError(f'"{value.shown}" {reason}')
    elif template.place is Place.TOPIC and (reason := check_topic_name(sample)):
        hint = "a level of the message's topic is {topic.1}, {topic.2}, ..."
        if mode is Mode.SERVER:
            hint = "write what is the caller's own in its place: {request_id}, or {path.x}, a segment of ENDPOINT"
        raise FormError(f'"{value.shown}" {reason}', hint if set("+#") & set(sample) else None)


def warn_of_foreign(name: str, value: Value, mode: Mode, report: Report) -> None:
    """Warn of `:id`, `*` and the like in a topic filter or path, which other languages fill or match."""
    if name != "ENDPOINT" and re.search(r",\s", value.text):
        message = f"{name} is one filter, with the comma in it"
        report.warning(FaultCode.OTHER_SYNTAX, value.offset, message, "write an event for each filter")
    end = 0
    for level, written, word in forms.foreign_levels(value.text):
        place, end = place_in(value, rf"(?<![^/\"']){re.escape(written)}(?![^/?\"'])", report, end)
        message = f"{name} has the level {written}, which matches only that text"
        hint: str = f"write + for a level that may be anything; its text is {{topic.{level}}}"
        if written.startswith("*"):
            hint = "write + for one level that may be anything, or # at the end for all that follow"
        if name == "ENDPOINT":
            if "{" in written or ("<" in written and mode is Mode.CLIENT):
                continue  # a placeholder or segment; no URL
            effect = "is sent as it is written" if mode is Mode.CLIENT else "matches only that text"
            message = f"ENDPOINT has the segment {written}, which {effect}"
            hint = f"write {{{word or 'name'}}} for a segment that may be anything"
            if mode is Mode.CLIENT and recognise(word, mode):
                hint = question(f"{{{word}}}")
            elif mode is Mode.CLIENT:
                field = f"{{value.json.{word or 'name'}}}"
                hint = f"write {field} for a field of the payload, {{topic.2}} for a level of the topic"
        report.warning(FaultCode.OTHER_SYNTAX, place, message, hint, end=end)


def warn_of_dot_segments(name: str, path: str, offset: int, report: Report) -> None:
    """Warn of a `.` or `..` that is written as a segment: it is sent as it is, and servers differ in what they do."""
    if dot_segments(path):
        message = f"{name} has a segment . or ..: it is sent as written, and servers resolve or refuse it"
        report.warning(FaultCode.DOUBTFUL, offset, message, "write the path that is meant")


def _warn_of_broken_json(name: str, template: PlaceholderText, value: Value, report: Report) -> None:
    """Warn when the body is not JSON with any values of its placeholders, or with their defaults."""
    sample = ""
    for piece in template.pieces:
        if isinstance(piece, str):
            sample += piece
        else:
            sample += "x" if piece.quoted else "0" if piece.default is None else piece.default
    lines = [line for line in sample.split("\n") if line.strip()]
    try:
        if sample and not (len(lines) > 1 and all(map(_is_json, lines))):  # one a line, as application/x-ndjson has it
            json.loads(sample)
    except (ValueError, RecursionError) as error:
        reason = error.msg.lower() if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        hint = "if it is not meant to be JSON, say so with a Content-Type header or DEFAULT_CONTENT_TYPE"
        if '"' not in sample and _is_json(sample.replace("'", '"')):
            hint = "strings of JSON are in double quotes: write ' around it and \" inside, as in '{\"city\": 1}'"
        report.warning(FaultCode.NOT_JSON, value.offset, f"{name} is not JSON: {reason}", hint)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _report_misspelt(name: str, value: Value, place: Place, mode: Mode, report: Report) -> bool:
    """Warn of texts that look like placeholders; `${TOKEN}` as a credential is an error."""
    found = False
    for piece in value.pieces:
        if piece.source:
            continue
        for suspect in suspects(piece.text, mode):
            warning = explain_suspect(suspect, place, mode)
            if warning is None:
                continue
            (message, hint), severity, found = warning, Severity.WARNING, True
            if isinstance(hint, Question):
                hint = question(hint.meant, f"{hint.meant[:-1]}{suspect.default}}}")
            is_variable = suspect.written.startswith("${") and recognise(suspect.name, mode) is None
            if is_variable and _is_for_credential(name, place, piece.text[: suspect.offset]):
                severity, variable = Severity.ERROR, suspect.name.strip()
                hint = f"write {{env.{variable}}} for an environment variable, {{secret.{variable}}} for a secret"
            begin, end = piece.offset + suspect.offset, piece.offset + suspect.end
            report.note(severity, FaultCode.PLACEHOLDER, begin, message, hint, end=end)
    return found


def _is_for_credential(name: str, place: Place, before: str) -> bool:
    """Return whether what follows a text is a credential: in a header, or in a query parameter, that is named so."""
    if place is Place.ENDPOINT:
        parameter, equals, _ = re.split("[?&]", before[-_LONGEST:])[-1].partition("=")
        return bool(equals) and is_credential_parameter(parameter)
    return place is Place.HEADER and is_credential(name.removeprefix("header "))


# Conditions.

_NAME: Final = "WHEN"
_CHARACTER: Final = re.compile(r"\\[\"'\\nt]|\r\n|.", re.DOTALL)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_FIELD: Final = re.compile(r"(?:\$\.|(?:body|message|payload|value)\.)?(?:json\.)?([A-Za-z_][\w.-]*)")
_SIGNS: Final = re.compile(r"\{[^{}]*\}|'[^']*'|\"[^\"]*\"|([=<>!~&|]+)")
# Of other languages, and what they are here.
_OPERATORS: Final = {
    **{"==": "=", "===": "=", "=>": ">=", "=<": "<=", "<>": "!=", "><": "!=", "!==": "!=", "=!": "!="},
    **{"~=": "!=", "&&": "AND", "&": "AND", "||": "OR", "|": "OR"},
}
_NUMBERS: Final = ("timestamp.unix", "timestamp.unix_ms")


def read_condition(settings: BlockSettings, mode: Mode) -> Condition | None:
    """Read WHEN; None when it is missing or at fault."""
    value = settings.texts.get(_NAME)
    if value is None or _NAME in settings.failed:
        return None
    try:
        return _ConditionReader(value, mode).read(settings.block.condition)
    except _AtError as fault:
        settings.error(FaultCode.CONDITION, _NAME, f"{_NAME}: {fault.message}", fault.hint, (fault.offset, fault.end))
        return None


class _AtError(FormError):
    """A fault of the term from `offset` to `end` of the file."""

    def __init__(self, offset: int, message: str, hint: str | None = None, end: int | None = None) -> None:
        super().__init__(message, hint)
        self.offset = offset
        self.end = end


@dataclass(frozen=True, slots=True)
class _Typed:
    """An operand with the name of its JSON type, None where only the message tells."""

    operand: Operand
    type: str | None
    term: Term

    @property
    def described(self) -> str:
        return f"{self.term.text} is {'null' if self.type == 'null' else f'a {self.type}'}"


class _ConditionReader:
    """Turn the tree of one condition into tests; raises `_AtError` at the first term that is wrong."""

    def __init__(self, value: Value, mode: Mode) -> None:
        self._mode = mode
        self._fixed = {part.label: part.text for part in value.parts if isinstance(part, Fixed)}
        piece = value.pieces[0]
        if len(value.pieces) > 1 or not piece.is_string:
            hint = "write the whole condition in one string; {env.X} and {secret.X} may be in it"
            raise _AtError(piece.offset, "is not one string", hint)
        found = list(_CHARACTER.finditer(piece.text[1:-1]))
        self._source = "".join([unescape(one[0]) for one in found])
        # In the file, of each character of the condition.
        self._offsets = [piece.offset + 1 + one.start() for one in found] + [piece.offset + len(piece.text) - 1]

    def read(self, tree: ConditionTree | None) -> Condition:
        try:
            if tree is not None:
                self._check_shape(tree)
                return Condition(self._source, self._test(tree.root))
        except RecursionError:
            pass
        raise _AtError(self._offsets[0] - 1, "is nested too deeply", "write fewer parentheses")

    def _fault(self, term: Term | Operation, message: str, hint: str | None = None) -> _AtError:
        last = len(self._offsets) - 1
        begin = self._offsets[min(term.offset, last)]
        end = self._offsets[min(term.offset + len(term.text if isinstance(term, Term) else term.name), last)]
        return _AtError(begin, message, hint, max(begin + 1, end))

    def _check_shape(self, tree: ConditionTree) -> None:
        """Refuse what follows the last term; what is wrong before it is a better reason."""
        if not tree.leftover.text:
            return
        start, hint = tree.leftover.offset, "as in {value.json.level} >= 3 AND NOT EXISTS {value.json.test}"
        # Of `=>` the parser has read the `=` already.
        foreign = next(
            (one for one in _SIGNS.finditer(self._source) if one[1] and one.start() <= start < one.end()), None
        )
        if not _is_unfinished(tree.root):
            self._test(tree.root)
        if foreign is not None and foreign[1] in _OPERATORS:
            start, hint = foreign.start(), f"write {_OPERATORS[foreign[1]]}"
        text = self._source[start:].strip()
        if text.upper().startswith("IN"):
            hint = "as in IN ('a', 'b')"
        raise _AtError(self._offsets[start], f"{_shown(text)} cannot follow here", hint)

    def _test(self, node: Operation) -> Test:
        if node.name == "(":
            raise self._fault(node, "this ( is never closed", "write ) where it ends")
        tests = tuple(map(self._test, node.operations))
        operands = tuple(self._operand(term, is_first=number == 0) for number, term in enumerate(node.terms))
        match node.name, operands:
            case "lone", (operand,):
                text = operand.term.text
                hint = f"write {text} = true, or EXISTS {text}" if isinstance(operand.operand, Placeholder) else None
                raise self._fault(operand.term, f"{_shown(text)} alone is not a condition", hint)
            case "EXISTS", (operand,):
                self._check_existence(operand)
            case "LIKE", (operand, pattern):
                if not isinstance(pattern.operand, Literal) or pattern.type != "text":
                    raise self._fault(pattern.term, "LIKE asks for a text in quotes", "as in LIKE 'pump-%'")
                if operand.type not in (None, "text"):
                    raise self._fault(operand.term, f"{operand.described}, and LIKE compares texts")
            case name, (left, *others):
                for other in others:
                    self._check_types(left, name, other)
        return Test(node.name, tuple(one.operand for one in operands), tests)

    def _check_existence(self, one: _Typed) -> None:
        if not isinstance(one.operand, Placeholder):
            hint = "as in EXISTS {value.json.test}"
            raise self._fault(one.term, "EXISTS asks for a placeholder of the message", hint)
        if one.operand.default is not None:
            hint = f"write EXISTS {{{one.operand.name}}}"
            raise self._fault(one.term, "a placeholder with a default always exists", hint)

    def _operand(self, node: Term, *, is_first: bool) -> _Typed:
        text = node.text
        match node.kind:
            case "placeholder":
                return self._placeholder(node)
            case "number":
                return _Typed(Literal(JsonNumber(text)), "number", node)
            case "quoted":
                return _Typed(Literal(text[1:-1]), "text", node)
            case "constant":
                value = _CONSTANTS[text.lower()]
                return _Typed(Literal(value), "null" if value is None else "boolean", node)
        if not text:
            hint = "a placeholder, a number, a text in quotes, true, false or null"
            raise self._fault(node, "a value is missing here", hint)
        hint = f"a text is written in quotes: '{text}'"
        if text[0] in "'\"":
            hint = "close the quote"
        elif recognise(text, self._mode):
            hint = f"a placeholder is written in braces: {{{text}}}"
        elif is_first and (field := _FIELD.fullmatch(text)):
            hint = question(f"{{{'body' if self._mode is Mode.SERVER else 'value'}.json.{field[1]}}}")
        raise self._fault(node, f"{_shown(text)} is not a value", hint)

    def _placeholder(self, term: Term) -> _Typed:
        name = term.text[1:-1]
        if (constant := self._fixed.get(term.text)) is not None:
            return _Typed(Literal(constant), "text", term)
        found = recognise(name, self._mode)
        if found is None:
            explained = explain_suspect(Suspect(0, term.text, name.partition("|")[0]), Place.TEXT, self._mode)
            raise self._fault(term, f"{term.text} is not a placeholder", explained and explained[1])
        if found.root == "json":  # of any type
            return _Typed(found, None, term)
        return _Typed(found, "number" if found.root in _NUMBERS else "text", term)

    def _check_types(self, left: _Typed, name: str, right: _Typed) -> None:
        """Refuse what can never be true, whatever the message holds."""
        for one in (left, right):
            if one.type in ("boolean", "null") and name not in ("=", "!=", "IN"):
                raise self._fault(one.term, f"{one.term.text} has no order", "compare it with = or !=")
        if left.type is None or right.type is None or left.type == right.type:
            return
        types, hint = {left.type: left, right.type: right}, None
        placeholder = left.operand if isinstance(left.operand, Placeholder) else right.operand
        if isinstance(placeholder, Placeholder) and "null" in types:
            hint = f"it is missing or a text, never null: write NOT EXISTS {{{placeholder.name}}}"
        elif isinstance(placeholder, Placeholder) and placeholder.root == "payload":
            hint = (
                f"{{{placeholder.name}.json}} is the payload as JSON" if placeholder.name != "body" else "{body.json}"
            )
        elif types.keys() == {"number", "text"} and isinstance(types["number"].operand, Literal):
            hint = f"compare with a text: '{types['number'].term.text}'"
        raise self._fault(right.term, f"{left.described}, {right.described}: they never compare", hint)


def _is_unfinished(node: Operation) -> bool:
    """Return whether what follows is the rest of a term that could not be read as a whole."""
    if node.operations:
        return _is_unfinished(node.operations[-1])
    last = node.terms[-1]
    return node.name == "lone" or (last.kind == "missing" and not last.text)


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
