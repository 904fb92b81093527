"""Values of settings: pieces joined by +, with what GET and `{env.X}`, `{secret.X}` read of the machine.

Blocks for the file of a secret.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from amqtt_rest_bridge.errors import HintedError, on_one_line
from amqtt_rest_bridge.language.grammar import Piece, unescape
from amqtt_rest_bridge.language.sources import Report
from amqtt_rest_bridge.masking import is_credential
from amqtt_rest_bridge.placeholders import Fixed, constants
from amqtt_rest_bridge.system import regular_file

MAX_SECRET_BYTES = 65_536
_ELSEWHERE = "secrets_dir (check and try: --secrets-dir)"


class NotAvailableError(HintedError):
    """A variable or secret is not available; the message is the reason, without a value."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables and the folder that holds one file for each secret."""

    environment: Mapping[str, str]
    secrets_dir: Path

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
class RecordingEnvironment(Environment):
    """An environment that records what is read of it: names to why they are not available, None where they are."""

    variables: dict[str, NotAvailableError | None] = field(default_factory=dict)
    secrets: dict[str, NotAvailableError | None] = field(default_factory=dict)

    def variable(self, name: str) -> str:
        """Return and record a variable, as `Environment.variable`."""
        return self._recorded(self.variables, name, Environment.variable)

    def secret(self, name: str) -> str:
        """Read and record a secret, as `Environment.secret`."""
        return self._recorded(self.secrets, name, Environment.secret)

    @property
    def missing(self) -> frozenset[str]:
        """Return the messages of the faults that report what is not available."""
        return frozenset(str(error) for error in (*self.variables.values(), *self.secrets.values()) if error)

    def _recorded(
        self, record: dict[str, NotAvailableError | None], name: str, read: Callable[[Environment, str], str]
    ) -> str:
        try:
            value = read(self, name)
        except NotAvailableError as error:
            record[name] = error
            raise
        record[name] = None
        return value


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
    def variables(self) -> frozenset[str]:
        """Return those of them that are values of environment variables."""
        return frozenset(
            part.text for part in self.parts if _is_from_outside(part) and part.text and part.label.startswith("{env.")
        )

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
