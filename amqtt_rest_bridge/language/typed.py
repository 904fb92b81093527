"""The settings of a block to typed values: one converter for each kind of parameter, faults for what does not fit."""

import re
from collections.abc import Callable
from typing import Any

from amqtt_rest_bridge.language import syntax
from amqtt_rest_bridge.language.blocks import Block, Setting
from amqtt_rest_bridge.language.masking import is_credential
from amqtt_rest_bridge.language.parameters import Kind, Parameter
from amqtt_rest_bridge.language.report import Report, did_you_mean
from amqtt_rest_bridge.language.surroundings import Surroundings
from amqtt_rest_bridge.language.syntax import Refused
from amqtt_rest_bridge.language.values import Value, evaluate
from amqtt_rest_bridge.placeholders import Mode, Place, parse
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name

_DIGITS = re.compile(r"-?[0-9]{1,12}")


class TypedBlock:
    """The settings of one block: as texts, and converted.

    Everything is converted at once, so that all faults of a block come out whatever is then asked for. `failed` names
    the settings that are there but have no usable value, or that an unknown name may have meant.
    """

    def __init__(self, block: Block, report: Report, surroundings: Surroundings) -> None:
        self.block = block
        self.report = report
        self.failed = block.broken | block.guessed
        self.secrets: set[str] = set()
        self.texts: dict[str, Value] = {}
        self.values: dict[str, Any] = {}
        self.headers: list[tuple[Value, Value]] = []
        for setting in block.settings.values():
            if setting.parameter.kind is not Kind.HEADERS:
                self._read(setting, surroundings)
        for line in block.headers:
            name = evaluate((line.name,), surroundings, report)
            value = evaluate(line.pieces, surroundings, report)
            if name is not None and value is not None:
                self.secrets |= value.secrets | (value.brought_in if is_credential(name.text) else frozenset())
                self.headers.append((name, value))

    def _read(self, setting: Setting, surroundings: Surroundings) -> None:
        parameter = setting.parameter
        value = evaluate(setting.pieces, surroundings, self.report)
        if value is None:
            self.failed.add(parameter.name)
            return
        self.secrets |= value.secrets
        if parameter.secret:
            self.secrets |= {value.text, *value.brought_in} - {""}
        try:
            self.values[parameter.name] = _convert(parameter, value)
            self.texts[parameter.name] = value
        except Refused as refused:
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
        """Give where a setting's value stands; the block's own place when it has none."""
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


def _refuse_placeholders(parameter: Parameter, value: Value) -> None:
    """Refuse placeholders of messages where nothing fills them; a password may hold any braces."""
    if parameter.kind in (Kind.TEMPLATE, Kind.TOPIC_TEMPLATE) or (parameter.secret and parameter.kind is Kind.STRING):
        return
    names = parse(value.parts, Place.TEXT, Mode.CLIENT).names
    if names:
        hint = "write it under HEADERS of the event" if parameter.name == "AUTHORIZATION" else None
        raise Refused(f"cannot hold placeholders of a message: {{{names[0]}}} would never be filled", hint)


def _wrong(parameter: Parameter, value: Value, hint: str | None = None) -> Refused:
    if hint is None and value.shown.endswith(","):
        hint = "leave the comma out"
    return Refused(f'must be {parameter.allowed}, not "{value.shown}"', hint)


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
        raise Refused(f'"{value.shown}" {reason}', None)
    return value.text


def _filter(_: Parameter, value: Value) -> str:
    if reason := check_topic_filter(value.text):
        raise Refused(f'"{value.shown}" {reason}', None)
    if value.text.startswith("$share/"):
        raise Refused(f'"{value.shown}" is a shared subscription, which never matches here', "write the filter alone")
    return value.text


def _origins(_: Parameter, value: Value) -> tuple[str, ...]:
    return syntax.read_origins(value.text)


def _header_name(_: Parameter, value: Value) -> str:
    if not syntax.is_token(value.text):
        raise Refused(f'"{value.shown}" is no header name', "letters, digits and - are safe")
    if value.text.lower() in syntax.OWN_HEADERS:
        raise Refused(f'"{value.shown}" is a header that belongs to the connection', "choose another name")
    return value.text


def _header_value(_: Parameter, value: Value) -> str:
    if syntax.has_control(value.text):
        raise Refused("holds a control character, which a header cannot carry", "write the value on one line")
    return value.text


def _file(_: Parameter, value: Value) -> str:
    if not Surroundings.has_file(value.text):
        raise Refused(f'"{value.shown}" is no file', "relative paths begin at the working directory")
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
}
