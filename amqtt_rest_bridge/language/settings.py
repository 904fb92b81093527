"""The settings of a block: values converted and checked, with faults for what does not fit.

There is one converter for each kind of parameter; texts with placeholders are parsed for the place they are used in.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.blocks import Block
from amqtt_rest_bridge.language.evaluation import Environment, Value, evaluate
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.language.hints import explain_suspect
from amqtt_rest_bridge.language.parameters import PARAMETERS, Applies, Kind, Parameter
from amqtt_rest_bridge.language.sources import Report
from amqtt_rest_bridge.masking import is_credential
from amqtt_rest_bridge.placeholders import (
    LoneBackslashError,
    Mode,
    Place,
    Placeholder,
    PlaceholderText,
    dot_segments,
    parse,
    recognise,
    suspects,
)
from amqtt_rest_bridge.sizes import FORM, read_size, size_text
from amqtt_rest_bridge.spelling import did_you_mean
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name

_DIGITS = re.compile(r"-?[0-9]{1,12}")
_WITH_UNIT = re.compile(r"([0-9]{1,9})\s*[A-Za-z]+")
_READ_BY_GET = re.compile(
    r"""GET\s+(?P<source>ENV|SECRET)\s+["']?(?P<name>[\w.-]+)["']?
    |(?:(?:Bearer|Basic|Token)\s)?(?:\$(?P<brace>\{)?(?P<shell>[A-Z][A-Z0-9_]+)(?(brace)\})|%(?P<windows>[A-Z][A-Z0-9_]+)%)""",
    re.VERBOSE,
)


class TypedBlock:
    """The settings of one block: as texts, and converted.

    Everything is converted at once, so that all faults of a block are reported whatever is read. `failed` names
    the settings that are there but have no usable value, or that an unknown name may have meant.
    """

    def __init__(self, block: Block, report: Report, environment: Environment) -> None:
        self.block = block
        self.report = report
        self.failed = block.broken | block.guessed
        self.secrets: set[str] = set()
        self.in_addresses: set[str] = set()
        self.texts: dict[str, Value] = {}
        self.values: dict[str, Any] = {}
        self.headers: list[tuple[Value, Value]] = []
        for name, node in block.settings.items():
            parameter = PARAMETERS[block.kind][name]
            if parameter.kind is not Kind.HEADERS:
                self._read(parameter, evaluate(node.pieces, environment, report))
        for line in block.headers:
            header = evaluate((line.name,), environment, report)
            value = evaluate(line.pieces, environment, report)
            if header is not None and value is not None:
                _warn_of_unread(f"header {header.shown}", value, report, is_template=True)
                self.secrets |= value.secrets | (value.brought_in if is_credential(header.text) else frozenset())
                self.headers.append((header, value))

    def _read(self, parameter: Parameter, value: Value | None) -> None:
        if value is None:
            self.failed.add(parameter.name)
            return
        self.secrets |= value.secrets
        if parameter.secret:
            self.secrets |= {value.text, *value.brought_in} - {""}
        _warn_of_unread(parameter.name, value, self.report, is_template=parameter.kind in _FILLED)
        try:
            _refuse_placeholders(parameter, value)
            converter = _CONVERTERS.get(parameter.kind)
            self.values[parameter.name] = converter(parameter, value) if converter else value.text
            self.texts[parameter.name] = value
            if parameter.name in forms.ADDRESSES:
                self.in_addresses.update(form for text in value.variables for form in forms.address_forms(text))
        except FormError as refused:
            self.failed.add(parameter.name)
            hint = refused.hint and value.hide(refused.hint)
            self.report.error(value.offset, value.hide(f"{parameter.name} {refused.message}"), hint)

    def __contains__(self, name: str) -> bool:
        """Return whether a setting is there or was perhaps meant to be: then it is not missed."""
        return name in self.block.settings or name in self.failed

    def has(self, name: str) -> bool:
        """Return whether a setting is certainly there, even if its value cannot be used."""
        return name in self.block.settings or name in self.block.broken

    def offset(self, name: str) -> int:
        """Return the offset of a setting's value; that of the block when it has none."""
        return self.texts[name].offset if name in self.texts else self.block.offset

    def error(self, name: str, message: str, hint: str | None = None) -> None:
        """Report that a setting cannot be used together with the rest."""
        self.failed.add(name)
        if name in self.texts:
            message = self.texts[name].hide(message)
            hint = hint and self.texts[name].hide(hint)
        self.report.error(self.offset(name), message, hint)

    def warning(self, name: str, message: str, hint: str | None = None) -> None:
        """Report that a setting is not used as was meant."""
        self.report.warning(self.offset(name), message, hint)

    def warn_of_lone(self, name: str, needed: str) -> None:
        """Warn of a setting that means nothing without another one that is missing."""
        if name in self.values and needed not in self:
            self.warning(name, f"{name} has no effect without {needed}")

    def refuse_lone(self, name: str, needed: str, hint: str | None = None) -> None:
        """Refuse a setting that cannot be used without another one that is missing."""
        if self.has(name) and needed not in self:
            self.error(name, f"{name} is set without {needed}", hint)

    def check_media_type(self, name: str) -> None:
        """Refuse the value of a setting that is not a media type."""
        if name in self.texts and not forms.is_media_type(self.texts[name].text):
            message = f'{name} "{self.texts[name].shown}" is not a media type'
            self.error(name, message, "as in application/json or text/plain; charset=utf-8")

    def warn_of_unused(self, mode: Mode) -> None:
        """Warn of settings that mean nothing in a mode."""
        for name, node in self.block.settings.items():
            if PARAMETERS[self.block.kind][name].applies not in (Applies.BOTH, Applies(mode)):
                self.report.warning(node.offset, f"{name} has no effect in {mode} mode")

    def require(self, mode: Mode, hints: dict[str, str | None]) -> bool:
        """Report what an event of a mode lacks, with its hint; return whether every setting is present and usable."""
        for name, hint in hints.items():
            if name not in self:
                self.report.error(self.block.offset, f"{name} is missing: a {mode} event needs it", hint)
        return all(name in self.values and name not in self.failed for name in hints)

    def template(self, name: str, place: Place, mode: Mode) -> PlaceholderText | None:
        """Parse a setting with placeholders; None when it is missing or at fault."""
        value = self.texts.get(name)
        if value is None or name in self.failed:
            return None
        template = read_template(name, value, place, mode, self.report)
        if template is None:
            self.failed.add(name)
        return template

    def members_of(self, kind: type[Any]) -> dict[str, Any]:
        """Return the values that a class of the model has a field for: that of RETRY_ON goes to `retry_on`."""
        usable = ((field.name, field.name.upper()) for field in fields(kind))
        return {field: self.values[name] for field, name in usable if name in self.values and name not in self.failed}


def _warn_of_unread(name: str, value: Value, report: Report, *, is_template: bool) -> None:
    """Warn of a text that other programs replace by a variable: `$KEY`, `%KEY%`, and a GET within quotes."""
    found = _READ_BY_GET.fullmatch(value.text) if all(isinstance(part, str) for part in value.parts) else None
    if found is None or (is_template and found["brace"]):  # a misspelt placeholder
        return
    what = found["name"] or found["shell"] or found["windows"]
    source = found["source"] or "ENV"
    hint = f'write GET {source} "{what}", without quotes around it'
    report.warning(value.offset, f"{name} is the text that is written here: nothing is read of the environment", hint)


_FILLED = (Kind.TEMPLATE, Kind.TOPIC_TEMPLATE, Kind.CONDITION)


def _refuse_placeholders(parameter: Parameter, value: Value) -> None:
    """Refuse placeholders of messages where nothing fills them; a password may hold any braces."""
    is_filled = parameter.kind in _FILLED
    is_password = parameter.secret and parameter.kind in (Kind.STRING, Kind.TOKENS)
    if not is_filled and not is_password and (names := parse(value.parts, Place.TEXT, Mode.CLIENT).names):
        hint = "write it under HEADERS of the event" if parameter.name == "AUTHORIZATION" else None
        raise FormError(f"cannot hold placeholders of a message: {{{names[0]}}} would never be filled", hint)


def _wrong(parameter: Parameter, value: Value, hint: str | None = None) -> FormError:
    if hint is None and value.shown.endswith(","):
        hint = "leave the comma out"
    return FormError(f'must be {parameter.allowed}, not "{value.shown}"', hint)


def _boolean(parameter: Parameter, value: Value) -> bool:
    text = value.text.strip().lower()
    if text not in ("true", "false"):
        raise _wrong(parameter, value)
    return text == "true"


def _integer(parameter: Parameter, value: Value) -> int:
    text = value.text.strip()
    if not _DIGITS.fullmatch(text) or not parameter.low <= int(text) <= parameter.high:
        unit = _WITH_UNIT.fullmatch(text)
        raise _wrong(parameter, value, f"write {unit[1]}, without a unit" if unit else None)
    return int(text)


def _size(parameter: Parameter, value: Value) -> int:
    size = read_size(value.text)
    if size is None:
        raise _wrong(parameter, value, FORM)
    if not parameter.low <= size <= parameter.high:
        raise FormError(f"must be from {size_text(parameter.low)} to {size_text(parameter.high)}, not {value.shown!r}")
    return size


def _choice(parameter: Parameter, value: Value) -> str:
    wanted = value.text.strip().lower()
    for choice in parameter.choices:
        if choice.lower() == wanted:
            return choice
    raise _wrong(parameter, value, did_you_mean(wanted, parameter.choices))


def _topic(_: Parameter, value: Value) -> str:
    if reason := check_topic_name(value.text):
        raise FormError(f'"{value.shown}" {reason}', None)
    return value.text


def _filter(_: Parameter, value: Value) -> str:
    if reason := check_topic_filter(value.text):
        has_wildcard = "+" in value.text or "#" in value.text
        hint = "+ is one whole level, # all that follow, at the end" if has_wildcard else None
        raise FormError(f'"{value.shown}" {reason}', hint)
    if value.text.startswith("$share/"):
        raise FormError(f'"{value.shown}" is a shared subscription, which never matches here', "write the filter alone")
    return value.text


def _header_name(_: Parameter, value: Value) -> str:
    if not forms.is_token(value.text):
        raise FormError(f'"{value.shown}" is not a header name', "letters, digits and - are safe")
    if value.text.lower() in forms.OWN_HEADERS:
        raise FormError(f'"{value.shown}" is a header that the connection sets', "choose another name")
    return value.text


def _header_value(_: Parameter, value: Value) -> str:
    forms.check_header_value(value.text)
    return value.text


def _file(_: Parameter, value: Value) -> str:
    if not os.path.isfile(value.text):  # noqa: PTH113  # Path.is_file raises for a name that is too long
        raise FormError(f'"{value.shown}" is not a file', "relative paths begin at the working directory")
    return value.text


_CONVERTERS: dict[Kind, Callable[[Parameter, Value], object]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _integer,
    Kind.SIZE: _size,
    Kind.CHOICE: _choice,
    Kind.TOPIC: _topic,
    Kind.FILTER: _filter,
    Kind.ORIGINS: lambda _, value: forms.read_origins(value.text),
    Kind.HEADER_NAME: _header_name,
    Kind.HEADER_VALUE: _header_value,
    Kind.FILE: _file,
    Kind.TOKENS: lambda _, value: forms.read_tokens(value.text),
    Kind.DURATION: lambda _, value: forms.read_duration(value.text),
    Kind.RATE: lambda _, value: forms.read_rate(value.text),
    Kind.STATUSES: lambda _, value: forms.read_statuses(value.text),
}


def read_template(name: str, value: Value, place: Place, mode: Mode, report: Report) -> PlaceholderText | None:
    """Parse a value with placeholders and check its literal text; None when it is not allowed there.

    `name` is the setting's or header's, for messages.
    """
    misspelt = _warn_of_misspelt(value, place, mode, report)
    try:
        template = parse(value.parts, place, mode)
        _check_literal(template, value)
    except CallError as failed:
        report.error(value.offset, f"{name}: {failed.message}")
        return None
    except LoneBackslashError as error:
        hint = r"write \\\\ in the file: a backslash of JSON is two, and each of them is two in a string of the file"
        report.error(value.offset, f"{name} {error}", hint)
        return None
    except FormError as refused:
        report.error(value.offset, value.hide(f"{name} {refused.message}"), refused.hint)
        return None
    if place is Place.ENDPOINT:  # in server mode it is not a template
        warn_of_dot_segments(name, _sample(template), value.offset, report)
    if place is Place.JSON and not misspelt:
        _warn_of_broken_json(name, template, value, report)
    return template


def _sample(template: PlaceholderText) -> str:
    """Return the text with any word for each placeholder."""
    return "".join([piece if isinstance(piece, str) else "x" for piece in template.pieces])


def _check_literal(template: PlaceholderText, value: Value) -> None:
    sample = _sample(template)
    if template.place is Place.ENDPOINT:
        forms.check_client_endpoint(sample)
    elif template.place is Place.HEADER:
        forms.check_header_value(sample)
    elif template.place is Place.TOPIC and (reason := check_topic_name(sample)):
        hint = "a level of the message's topic is {topic.1}, {topic.2}, ..." if set("+#") & set(sample) else None
        raise FormError(f'"{value.shown}" {reason}', hint)


def warn_of_foreign(name: str, value: Value, mode: Mode, report: Report) -> None:
    """Warn of `:id`, `*` and the like in a topic filter or path, which other languages fill or match."""
    if name != "ENDPOINT" and re.search(r",\s", value.text):
        report.warning(value.offset, f"{name} is one filter, with the comma in it", "write an event for each filter")
    for level, written, word in forms.foreign_levels(value.text):
        if name == "ENDPOINT":
            if "{" in written or ("<" in written and mode is Mode.CLIENT):
                continue  # a placeholder or segment; no URL
            hint = f"write {{{word or 'name'}}} for a segment that may be anything"
            if mode is Mode.CLIENT and recognise(word, mode):
                hint = f"did you mean {{{word}}}?"
            elif mode is Mode.CLIENT:
                field = f"{{value.json.{word or 'name'}}}"
                hint = f"write {field} for a field of the payload, {{topic.2}} for a level of the topic"
            effect = "is sent as it is written" if mode is Mode.CLIENT else "matches only that text"
            report.warning(value.offset, f"ENDPOINT has the segment {written}, which {effect}", hint)
            continue
        hint = f"write + for a level that may be anything; its text is {{topic.{level}}}"
        if written.startswith("*"):
            hint = "write + for one level that may be anything, or # at the end for all that follow"
        report.warning(value.offset, f"{name} has the level {written}, which matches only that text", hint)


def warn_of_dot_segments(name: str, path: str, offset: int, report: Report) -> None:
    """Warn of a `.` or `..` that is written as a segment: it is sent as it is, and servers differ in what they do."""
    if dot_segments(path):
        message = f"{name} has a segment . or ..: it is sent as written, and servers resolve or refuse it"
        report.warning(offset, message, "write the path that is meant")


def _warn_of_broken_json(name: str, template: PlaceholderText, value: Value, report: Report) -> None:
    """Warn when the body is not JSON with any values of its placeholders, or with their defaults."""
    sample = "".join([piece if isinstance(piece, str) else _json_sample(piece) for piece in template.pieces])
    lines = [line for line in sample.split("\n") if line.strip()]
    try:
        if sample and not (len(lines) > 1 and all(map(_is_json, lines))):  # one a line, as application/x-ndjson has it
            json.loads(sample)
    except (ValueError, RecursionError) as error:
        reason = error.msg.lower() if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        hint = "if it is not meant to be JSON, say so with a Content-Type header or DEFAULT_CONTENT_TYPE"
        if '"' not in sample and _is_json(sample.replace("'", '"')):
            hint = "strings of JSON are in double quotes: write ' around it and \" inside, as in '{\"city\": 1}'"
        report.warning(value.offset, f"{name} is not JSON: {reason}", hint)


def _json_sample(placeholder: Placeholder) -> str:
    return "x" if placeholder.quoted else "0" if placeholder.default is None else placeholder.default


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _warn_of_misspelt(value: Value, place: Place, mode: Mode, report: Report) -> bool:
    found = False
    for piece in value.pieces:
        if piece.source:
            continue
        for suspect in suspects(piece.text, mode):
            warning = explain_suspect(suspect, place, mode)
            if warning is not None:
                report.warning(piece.offset + suspect.offset, *warning)
                found = True
    return found
