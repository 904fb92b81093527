"""The settings of a block: their values put together, then converted, with faults for what does not fit.

A value is pieces joined by +: strings with escapes, words, GET ENV, GET SECRET; `{env.X}` and `{secret.X}` are put in
here too. There is one converter for each kind of parameter.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.blocks import Block, Setting
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.language.nodes import Piece
from amqtt_rest_bridge.language.parameters import Kind, Parameter
from amqtt_rest_bridge.language.report import Report, did_you_mean
from amqtt_rest_bridge.language.sources import Environment, NotAvailableError
from amqtt_rest_bridge.masking import is_credential
from amqtt_rest_bridge.placeholders import Fixed, Mode, Place, constants, parse
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name

_ESCAPE = re.compile(r"\\([\"'\\nt])")
_ESCAPED = {"n": "\n", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a setting: its text, in parts of which those that came from outside are `Fixed`.

    `pieces` is how it was written; `secrets` are the texts in it that are never shown: secrets, and what comes from
    environment variables that are called like one.
    """

    pieces: tuple[Piece, ...]
    parts: tuple[str | Fixed, ...]
    secrets: frozenset[str] = frozenset()

    @property
    def offset(self) -> int:
        """Return where the value begins in its file."""
        return self.pieces[0].offset

    @property
    def text(self) -> str:
        """Return the whole text, with what came from outside."""
        return "".join([part if isinstance(part, str) else part.text for part in self.parts])

    @property
    def brought_in(self) -> frozenset[str]:
        """Return the texts that came from outside."""
        return frozenset(part.text for part in self.parts if _is_from_outside(part) and part.text)

    @property
    def shown(self) -> str:
        """Return the text as a fault may show it: on one line, what came from outside by its name only."""
        return on_one_line("".join([part if isinstance(part, str) else part.label for part in self.parts]))

    def hide(self, message: str) -> str:
        """Replace what came from outside by its names in a message that was made from the text."""
        for part in self.parts:
            if isinstance(part, Fixed) and len(part.text) > 1:
                message = message.replace(part.text, part.label)
        return message


def evaluate(pieces: tuple[Piece, ...], environment: Environment, report: Report) -> Value | None:
    """Join the pieces of a value; report what is missing and return None."""
    parts: list[str | Fixed] = []
    secrets = set()
    complete = True
    for piece in pieces:
        try:
            for part in _parts(piece, environment):
                parts.append(part)
                if _is_from_outside(part) and (part.label.startswith("{secret.") or is_credential(part.label)):
                    secrets.add(part.text)
        except NotAvailableError as error:
            report.error(piece.offset, str(error), error.hint)
            complete = False
    return Value(pieces, tuple(parts), frozenset(secrets - {""})) if complete else None


def _parts(piece: Piece, environment: Environment) -> Iterator[str | Fixed]:
    if piece.source:
        yield _fixed(piece.source.lower(), piece.text.strip("'\""), environment, escaped=False)
        return
    raw = piece.text[1:-1] if piece.is_string else piece.text
    end = 0
    for start, stop, constant in constants(raw):
        yield unescape(raw[end:start])
        default = None if constant.default is None else unescape(constant.default)
        yield _fixed(constant.root, constant.argument, environment, escaped=True, default=default)
        end = stop
    yield unescape(raw[end:])


def _fixed(what: str, name: str, environment: Environment, *, escaped: bool, default: str | None = None) -> Fixed:
    try:
        text = environment.secret(name) if what == "secret" else environment.variable(name)
    except NotAvailableError:
        if default is None:
            raise
        return Fixed(default, f"{{{what}.{name}|{default}}}", escaped)
    return Fixed(text, f"{{{what}.{name}}}", escaped)


def _is_from_outside(part: str | Fixed) -> TypeGuard[Fixed]:
    """Return whether a part is the value of a variable or secret, not its default."""
    return isinstance(part, Fixed) and "|" not in part.label


def unescape(raw: str) -> str:
    """Resolve escapes; a line break in a string is LF, also in a file with CRLF."""
    if "\\" in raw:
        raw = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), raw)
    return raw.replace("\r\n", "\n") if "\r" in raw else raw


_DIGITS = re.compile(r"-?[0-9]{1,12}")


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
        self.texts: dict[str, Value] = {}
        self.values: dict[str, Any] = {}
        self.headers: list[tuple[Value, Value]] = []
        for setting in block.settings.values():
            if setting.parameter.kind is not Kind.HEADERS:
                self._read(setting, environment)
        for line in block.headers:
            name = evaluate((line.name,), environment, report)
            value = evaluate(line.pieces, environment, report)
            if name is not None and value is not None:
                self.secrets |= value.secrets | (value.brought_in if is_credential(name.text) else frozenset())
                self.headers.append((name, value))

    def _read(self, setting: Setting, environment: Environment) -> None:
        parameter = setting.parameter
        value = evaluate(setting.pieces, environment, self.report)
        if value is None:
            self.failed.add(parameter.name)
            return
        self.secrets |= value.secrets
        if parameter.secret:
            self.secrets |= {value.text, *value.brought_in} - {""}
        try:
            self.values[parameter.name] = _convert(parameter, value)
            self.texts[parameter.name] = value
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


def _convert(parameter: Parameter, value: Value) -> object:
    _refuse_placeholders(parameter, value)
    converter = _CONVERTERS.get(parameter.kind)
    return converter(parameter, value) if converter else value.text


_FILLED = (Kind.TEMPLATE, Kind.TOPIC_TEMPLATE, Kind.CONDITION)


def _refuse_placeholders(parameter: Parameter, value: Value) -> None:
    """Refuse placeholders of messages where nothing fills them; a password may hold any braces."""
    if parameter.kind in _FILLED or (parameter.secret and parameter.kind in (Kind.STRING, Kind.TOKENS)):
        return
    names = parse(value.parts, Place.TEXT, Mode.CLIENT).names
    if names:
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
        raise _wrong(parameter, value)
    return int(text)


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
        raise FormError(f'"{value.shown}" {reason}', None)
    if value.text.startswith("$share/"):
        raise FormError(f'"{value.shown}" is a shared subscription, which never matches here', "write the filter alone")
    return value.text


def _origins(_: Parameter, value: Value) -> tuple[str, ...]:
    return forms.read_origins(value.text)


def _header_name(_: Parameter, value: Value) -> str:
    if not forms.is_token(value.text):
        raise FormError(f'"{value.shown}" is not a header name', "letters, digits and - are safe")
    if value.text.lower() in forms.OWN_HEADERS:
        raise FormError(f'"{value.shown}" is a header that the connection sets', "choose another name")
    return value.text


def _header_value(_: Parameter, value: Value) -> str:
    if forms.has_control(value.text):
        raise FormError("holds a control character, which a header cannot carry", "write the value on one line")
    return value.text


def _file(_: Parameter, value: Value) -> str:
    if not Environment.has_file(value.text):
        raise FormError(f'"{value.shown}" is not a file', "relative paths begin at the working directory")
    return value.text


_CONVERTERS: dict[Kind, Callable[[Parameter, Value], object]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _integer,
    Kind.CHOICE: _choice,
    Kind.TOPIC: _topic,
    Kind.FILTER: _filter,
    Kind.ORIGINS: _origins,
    Kind.HEADER_NAME: _header_name,
    Kind.HEADER_VALUE: _header_value,
    Kind.FILE: _file,
    Kind.TOKENS: lambda _, value: forms.read_tokens(value.text),
    Kind.DURATION: lambda _, value: forms.read_duration(value.text),
    Kind.RATE: lambda _, value: forms.read_rate(value.text),
    Kind.STATUSES: lambda _, value: forms.read_statuses(value.text),
}
