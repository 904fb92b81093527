"""The values of settings: parts are joined by +, GET, `{env.X}` and `{secret.X}` are read, and the text is converted.

`loader` makes a `BlockSettings` of each block that `definitions` has read. It evaluates each value (`evaluate`: the
text), converts it (`forms`), and checks it beside other settings (`check_rules`). `blocks` then builds the model of it.
Reading a secret waits for its file.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from amqtt_rest_bridge.errors import FaultCode, HintedError, Position, Severity, on_one_line
from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.definitions import Block
from amqtt_rest_bridge.lot.forms import FormError
from amqtt_rest_bridge.lot.grammar.parsing import Piece, unescape
from amqtt_rest_bridge.lot.masking import is_credential
from amqtt_rest_bridge.lot.model import ClientEvent, RestApiConfig, RouteConfig, ServerEvent
from amqtt_rest_bridge.lot.placeholders.kinds import Mode, recognise
from amqtt_rest_bridge.lot.placeholders.text import Fixed, Place, parse, placeholders_at_load
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, USER_NAMES, Applies, Kind, Parameter, Rule
from amqtt_rest_bridge.lot.sources import Report
from amqtt_rest_bridge.system import regular_file

MAX_SECRET_BYTES = 65_536
_Model = TypeVar("_Model", RestApiConfig, RouteConfig, ClientEvent, ServerEvent)
_Range = tuple[int, int | None]  # the offset of a text, and of its end if that is known
_ELSEWHERE = "secrets_dir (check, try, lsp: --secrets-dir)"


class NotAvailableError(HintedError):
    """A variable or secret is not available; the message is the reason, and never holds a value."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables, and the folder that holds one file for each secret.

    `variables` and `secrets` record each name that was read: None if it is available, else the reason why not.
    """

    environment: Mapping[str, str]
    secrets_dir: Path
    variables: dict[str, NotAvailableError | None] = field(default_factory=dict, compare=False)
    secrets: dict[str, NotAvailableError | None] = field(default_factory=dict, compare=False)

    def value(self, what: str, name: str) -> str:
        """Return and record the value of a variable (`what` is "env") or secret; raises `NotAvailableError`."""
        record, read = (self.secrets, self.secret) if what == "secret" else (self.variables, self.variable)
        record[name] = None
        try:
            return read(name)
        except NotAvailableError as error:
            record[name] = error
            raise

    def variable(self, name: str) -> str:
        """Return the value of an environment variable; raises `NotAvailableError` when it is not set or not text."""
        value = self.environment.get(name)
        if value is None:
            hint = "set it in the environment of the broker (or of this command)"
            raise NotAvailableError(f"the environment variable {name} is not set", hint)
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise NotAvailableError(f"the environment variable {name} is not UTF-8 text", "set it to text in UTF-8")
        return value

    def secret(self, name: str) -> str:
        """Read a secret, without the line break at its end. Blocks for one small file.

        Raises:
            NotAvailableError: it cannot be read, or its name would leave the folder.
        """
        if "/" in name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            message = "the name of a secret is the name of a file, without a path"
            raise NotAvailableError(message, f"write the name alone; the folder is {_ELSEWHERE}")
        try:
            path = self.secrets_dir / name
            regular_file(path)
            with path.open("rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            reason, hint = "it is not UTF-8 text", "store it as text in UTF-8, such as base64"
            if isinstance(error, OSError):
                reason = str(error.strerror)
                hint = "make it a file that the user of the broker (or of this command) can read"
            if isinstance(error, FileNotFoundError):
                hint = f"put that file there, or name another folder: {_ELSEWHERE}"
            message = f"the secret {name} cannot be read from {self.secrets_dir}: {reason}"
            raise NotAvailableError(message, hint) from None
        if len(content) > MAX_SECRET_BYTES:
            message = f"the secret {name} is larger than {MAX_SECRET_BYTES} bytes"
            raise NotAvailableError(message, "put the secret alone into the file")
        return text.removesuffix("\n").removesuffix("\r")


@dataclass(frozen=True, slots=True)
class NameEnvironment(Environment):
    """An environment for texts that are only shown: `{env.HOST}` has the value "HOST", unless `values` has another."""

    values: dict[str, str] = field(default_factory=dict)

    def value(self, what: str, name: str) -> str:  # noqa: ARG002  # one name for both
        """Return the value of a variable or secret, and add it to `values`."""
        return self.values.setdefault(name, name)


_CHARACTER = re.compile(r"""\r\n|\\["'\\nt]|.""", re.DOTALL)
"""A character of a string as it is written."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a setting, in parts. A part that came from outside the file is `Fixed`.

    `pieces` is how it was written. `secrets` are the texts in it that are never shown: secrets, and the values of
    environment variables with the name of a credential, such as API_KEY.
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

    def file_offset(self, position: int) -> int:
        """Return the offset in the file of a character of the text; that of the value if a part came from outside."""
        if not all(isinstance(part, str) for part in self.parts):
            return self.offset
        for piece in self.pieces:
            characters = list(_CHARACTER.finditer(piece.text[1:-1] if piece.is_string else piece.text))
            if position < len(characters):
                return piece.offset + piece.is_string + characters[position].start()
            position -= len(characters)
        return self.pieces[-1].offset + len(self.pieces[-1].text) - 1

    @property
    def from_outside(self) -> frozenset[str]:
        """Return the texts that came from outside."""
        return frozenset(part.text for part in self.parts if _is_from_outside(part) and part.text)

    @property
    def variables(self) -> frozenset[str]:
        """Return the texts that came from environment variables."""
        return frozenset(
            part.text for part in self.parts if _is_from_outside(part) and part.text and part.label.startswith("{env.")
        )

    @property
    def shown(self) -> str:
        """Return the text as a fault may show it: on one line, with `{env.X}` in place of the variable's value."""
        return on_one_line("".join([part if isinstance(part, str) else part.label for part in self.parts]))

    def hide(self, message: str) -> str:
        """Return a message that was made from the text, with `{env.X}` in place of the variable's value.

        A hint that is changed loses its type `Question`: an editor must not write `{env.X}` over the text of the file.
        """
        for part in self.parts:
            if isinstance(part, Fixed) and len(part.text) > 1:
                message = message.replace(part.text, part.label)
        return message


def evaluate(pieces: tuple[Piece, ...], environment: Environment, report: Report) -> Value | None:
    """Return the value that pieces make together. If a variable or secret is missing, report it and return None."""
    parts: list[str | Fixed] = []
    complete = True
    for piece in pieces:
        place = piece.offset
        try:
            if piece.source:
                parts.append(
                    _read_fixed(piece.source.lower(), piece.text.strip("'\""), environment, needs_escape=False)
                )
                continue
            raw, end = piece.text[1:-1] if piece.is_string else piece.text, 0
            for start, stop, constant in placeholders_at_load(raw):
                place = piece.offset + piece.is_string + start
                default = None if constant.default is None else unescape(constant.default)
                from_outside = _read_fixed(
                    constant.root, constant.argument, environment, needs_escape=True, default=default
                )
                parts += [unescape(raw[end:start]), from_outside]
                end = stop
            parts.append(unescape(raw[end:]))
        except NotAvailableError as error:
            report.error(FaultCode.UNAVAILABLE, place, str(error), error.hint)
            complete = False
    secrets = {
        part.text
        for part in parts
        if _is_from_outside(part) and (part.label.startswith("{secret.") or is_credential(part.label))
    }
    return Value(pieces, tuple(parts), frozenset(secrets - {""})) if complete else None


def _read_fixed(
    what: str, name: str, environment: Environment, *, needs_escape: bool, default: str | None = None
) -> Fixed:
    """Return the value of a variable (`what` is "env") or secret, else its default.

    Raises `NotAvailableError` if it has neither.
    """
    try:
        text = environment.value(what, name)
    except NotAvailableError:
        if default is None:
            raise
        return Fixed(default, f"{{{what}.{name}|{default}}}", needs_escape)
    return Fixed(text, f"{{{what}.{name}}}", needs_escape)


def _is_from_outside(part: str | Fixed) -> TypeGuard[Fixed]:
    """Return whether a part is the value of a variable or secret. Its default is written in the file."""
    return isinstance(part, Fixed) and "|" not in part.label


def end_of(piece: Piece, report: Report) -> int:
    """Return the offset of the end of a piece of a value."""
    return report.end_of(piece.offset) if piece.source else piece.offset + len(piece.text)


def place_in(value: Value, pattern: str, report: Report, after: int) -> tuple[int, int]:
    """Return begin and end of the first match of a pattern in a value as it is written, after the offset `after`.

    Without a match they are those of the whole value. A caller that searches for many texts passes the end of the last
    match, so that the search takes linear time.
    """
    for piece in value.pieces:
        if piece.source or piece.offset + len(piece.text) <= after:
            continue
        if found := re.compile(pattern).search(piece.text, max(0, after - piece.offset)):
            return piece.offset + found.start(), piece.offset + found.end()
    return value.offset, end_of(value.pieces[-1], report)


class BlockSettings:
    """The settings of one block: their texts, and their converted values.

    All values are converted at once, so that all faults of a block are reported. `failed` names settings that are
    written but have no usable value, and settings that an unknown name may have meant.
    """

    def __init__(self, block: Block, report: Report, environment: Environment) -> None:
        self.block = block
        self.report = report
        self.failed = block.broken | block.guessed
        self.secrets: set[str] = set()  # texts that are never shown
        self.in_addresses: set[str] = set()  # values of variables in addresses, which pages do not show either
        self.texts: dict[str, Value] = {}  # by setting: its value as a text
        self.values: dict[str, Any] = {}  # by setting: its value, converted
        self.headers: list[tuple[Value, Value]] = []
        for name, node in block.settings.items():
            parameter = PARAMETERS[block.kind][name]
            if parameter.kind is not Kind.HEADERS:
                self._read(parameter, evaluate(node.pieces, environment, report))
        for line in block.headers:
            header = evaluate((line.name,), environment, report)
            value = evaluate(line.pieces, environment, report)
            if header is not None and value is not None:
                _report_unread_variable(f"header {header.shown}", value, report, is_secret=False, has_placeholders=True)
                self.secrets |= value.secrets | (value.from_outside if is_credential(header.text) else frozenset())
                self.headers.append((header, value))

    def _read(self, parameter: Parameter, value: Value | None) -> None:
        """Convert the value of a setting. None is a value that could not be read, which has been reported."""
        if value is None:
            self.failed.add(parameter.name)
            return
        self.secrets |= value.secrets
        if parameter.secret:
            self.secrets |= {value.text, *value.from_outside} - {""}
        is_secret, has_placeholders = parameter.secret or parameter.name in USER_NAMES, bool(parameter.placeholders)
        _report_unread_variable(
            parameter.name, value, self.report, is_secret=is_secret, has_placeholders=has_placeholders
        )
        try:
            # Such a setting is used as it is written, so `{payload}` in it is a mistake. Only a password may hold it.
            is_password = parameter.secret and parameter.kind in (Kind.STRING, Kind.TOKENS)
            names = () if has_placeholders or is_password else parse(value.parts, Place.TEXT, Mode.CLIENT).names
            if names:
                hint = "write it under HEADERS of the event" if parameter.name == "AUTHORIZATION" else None
                message = f"cannot hold placeholders of a message: {{{names[0]}}} would never be filled"
                raise FormError(message, hint)  # noqa: TRY301  # reported as others, below
            self.values[parameter.name] = forms.convert(parameter, value.text, value.shown)
            self.texts[parameter.name] = value
            if parameter.name in forms.ADDRESSES:
                self.in_addresses.update(form for text in value.variables for form in forms.address_forms(text))
        except FormError as refused:
            self.failed.add(parameter.name)
            message, hint = value.hide(f"{parameter.name} {refused.message}"), refused.hint and value.hide(refused.hint)
            end = end_of(value.pieces[-1], self.report)
            self.report.error(FaultCode.INVALID_VALUE, value.offset, message, hint, end=end)

    def has(self, name: str) -> bool:
        """Return whether a setting is written, even if its value cannot be used."""
        return name in self.block.settings or name in self.block.broken

    def may_have(self, name: str) -> bool:
        """Return whether a setting is written, or an unknown name may have meant it, so that it is not missing."""
        return name in self.block.settings or name in self.failed

    def value(self, name: str) -> Any:
        """Return the value of a setting; if it is missing or at fault, its default as the table of settings has it."""
        return self.values.get(name, PARAMETERS[self.block.kind][name].default)

    def offset(self, name: str) -> int:
        """Return the offset of a setting's value, or that of the block if it has none."""
        return self.texts[name].offset if name in self.texts else self.block.offset

    def range(self, name: str) -> tuple[Position, Position]:
        """Return where a setting's value begins and ends."""
        begin, end = self._range(name)
        return self.report.position(begin), self.report.position_behind(
            self.report.end_of(begin) if end is None else end
        )

    def error(
        self, code: FaultCode, name: str, message: str, hint: str | None = None, at: _Range | None = None
    ) -> None:
        """Report that a setting cannot be used; `at` is the range of the fault, by default the whole value."""
        self.failed.add(name)
        if name in self.texts:
            message = self.texts[name].hide(message)
            hint = hint and self.texts[name].hide(hint)
        begin, end = at or self._range(name)
        self.report.error(code, begin, message, hint, end=end)

    def invalid(self, name: str, why: str, hint: str | None = None) -> None:
        """Report a value that cannot be used; `why` continues the name of its setting."""
        self.error(FaultCode.INVALID_VALUE, name, f"{name} {why}", hint)

    def warning(self, code: FaultCode, name: str, message: str, hint: str | None = None) -> None:
        """Report that a setting is not used as was meant."""
        begin, end = self._range(name)
        self.report.warning(code, begin, message, hint, end=end)

    def _range(self, name: str) -> _Range:
        """Return the offsets of a setting's value, or that of the block if it has none."""
        return self.offset(name), end_of(self.texts[name].pieces[-1], self.report) if name in self.texts else None

    def check_rules(self, modes: Collection[Mode], ignored: Collection[str] = ()) -> None:
        """Check each setting beside the other settings that it excludes or requires, by its row in `settings_table`.

        Rules for one of these modes count. Settings that are `ignored` are not checked.
        """
        applying = {Applies.BOTH, *(Applies(mode) for mode in modes)}
        reported: set[Rule] = set()
        for row in PARAMETERS[self.block.kind].values():
            if row.name in self.values and row.name not in ignored and self._check_excluded(row, applying):
                self._check_required(row, applying, reported)

    def _check_excluded(self, row: Parameter, applying: Collection[Applies]) -> bool:
        """Report settings that a setting excludes; return whether the setting has an effect beside them."""
        has_effect = True
        for rule in row.excludes:
            if rule.applies not in applying or not self._is_met(rule):
                continue
            if rule.strict:
                other = f"{rule.name} {self._in_lower_case(rule.name)}" if rule.values else rule.name
                self.error(FaultCode.EXCLUDES, row.name, f"{row.name} and {other} are both set", rule.hint)
            else:
                has_effect = False
                message = f"{row.name} has no effect with {rule.name}"
                self.warning(FaultCode.NO_EFFECT, row.name, message, rule.hint)
        return has_effect

    def _check_required(self, row: Parameter, applying: Collection[Applies], reported: set[Rule]) -> None:
        """Report settings that a setting requires. If several settings require the same one, report the first only."""
        value = self._in_lower_case(row.name)
        for rule in row.requires:
            is_off = bool(rule.values) and value == "false"
            counts = rule.applies in applying and rule.having in ("", value) and not is_off
            if not counts or rule in reported or rule.name in self.failed or self._is_met(rule):
                continue
            if rule.strict:
                reported.add(rule)
                self.error(FaultCode.REQUIRES, row.name, f"{row.name} is set without {rule.name}", rule.hint)
            else:
                lack = f": {rule.name} is not {' or '.join(rule.values)}" if rule.values else f" without {rule.name}"
                self.warning(FaultCode.NO_EFFECT, row.name, f"{row.name} has no effect{lack}", rule.hint)

    def _is_met(self, rule: Rule) -> bool:
        """Return whether the setting of a rule has one of the rule's values, or any value if the rule has none."""
        return self._in_lower_case(rule.name) in rule.values if rule.values else rule.name in self.values

    def _in_lower_case(self, name: str) -> str:
        """Return a value as rules have it: as text in lower case."""
        return str(self.value(name)).lower()

    def warn_of_unused(self, mode: Mode) -> None:
        """Warn of settings that have no effect in a mode."""
        for name, node in self.block.settings.items():
            if PARAMETERS[self.block.kind][name].applies not in (Applies.BOTH, Applies(mode)):
                self.report.warning(FaultCode.NO_EFFECT, node.offset, f"{name} has no effect in {mode} mode")

    def require(self, mode: Mode, hints: dict[str, str | None]) -> bool:
        """Report each setting of `hints` that is missing, with its hint; return whether all of them can be used."""
        for name, hint in hints.items():
            if not self.may_have(name):
                self.report.error(
                    FaultCode.MISSING, self.block.offset, f"{name} is missing: a {mode} event needs it", hint
                )
        return all(name in self.values and name not in self.failed for name in hints)

    def build(self, kind: type[_Model], **read: Any) -> _Model:
        """Return a block of the model: a field has its value of `read`, else that of the setting with its name."""
        usable = ((field.name, field.name.upper()) for field in fields(kind))
        values = {field: self.values[name] for field, name in usable if name in self.values and name not in self.failed}
        return kind(**values | read)


_LOOKS_LIKE_VARIABLE = re.compile(
    r"""(?P<scheme>(?:Bearer|Basic|Token)\s)?
    (?:GET\s+(?P<source>ENV|SECRET)\s+["']?(?P<name>[\w.-]+)["']?
    |\$\{(?P<brace>[A-Za-z_]\w*)\}|\$(?P<dollar>[A-Z][A-Z0-9_]+)|%(?P<percent>[A-Z][A-Z0-9_]+)%)""",
    re.VERBOSE,
)


def _report_unread_variable(
    name: str, value: Value, report: Report, *, is_secret: bool, has_placeholders: bool
) -> None:
    """Warn of a text that looks like a variable but is not replaced: `$KEY`, `%KEY%`, and a GET within quotes.

    `${KEY}` is an error in a credential; in a setting with placeholders it is reported as a misspelt one.
    """
    found = _LOOKS_LIKE_VARIABLE.fullmatch(value.text) if all(isinstance(part, str) for part in value.parts) else None
    if found is None:
        return
    brace = found["brace"]
    is_error = is_secret and brace is not None and recognise(brace, Mode.CLIENT) is None
    if brace and not is_error and (has_placeholders or not brace.isupper()):
        return
    scheme, what = found["scheme"] or "", found["name"] or brace or found["dollar"] or found["percent"]
    source = found["source"] or "ENV"
    hint = f'write GET {source} "{what}", without quotes around it'
    if scheme:
        hint = f'write "{scheme}" + GET {source} "{what}", or "{scheme}{{{source.lower()}.{what}}}"'
    message = f"{name} is the text that is written here: nothing is read of the environment"
    severity = Severity.ERROR if is_error else Severity.WARNING
    report.note(severity, FaultCode.OTHER_SYNTAX, value.offset, message, hint)
