"""Faults of route files and the package's error tree. Bottom floor: imports nothing of ours; any thread may use it."""

import logging
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

_CLEAR = (OSError, ImportError, ValueError, RuntimeError)  # builtin errors whose messages need no class name


class Severity(StrEnum):
    """How severe a fault is; errors stop the broker's start, the others are logged."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"

    @property
    def level(self) -> int:
        """Return the level of its log record."""
        return {"error": logging.ERROR, "warning": logging.WARNING}.get(self.value, logging.INFO)


class FaultCode(StrEnum):
    """What kind of fault it is: stable, for programs, with an anchor of this name in the reference of the language.

    `meaning` is one clause, for the reference and for reports of other programs.
    """

    meaning: str

    def __new__(cls, code: str, meaning: str = "") -> Self:
        """Make a member that equals its code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    UNREADABLE = "unreadable", "a file, notebook or cell is not text that can be read, or too much of it cannot"
    SKIPPED = "skipped", "text or a definition that is not of the type REST_API is not read"
    NO_ROUTE = "no-route", "there is no route, or one that does nothing"
    UNEXPECTED_TEXT = "unexpected-text", "a text is not a statement, or does not belong behind the value before it"
    NOT_CLOSED = "not-closed", "a string or comment has no end"
    QUOTES = "quotes", "a quote is missing, one too many, or not a straight one"
    MISSING_KEYWORD = "missing-keyword", "DEFINE, ADD, WITH or GET is missing"
    INVALID_NAME = "invalid-name", "a route, event, header or kind of definition cannot be named so"
    UNKNOWN_BLOCK = "unknown-block", "no block has this name"
    UNKNOWN_SETTING = "unknown-setting", "no setting of the block has this name"
    MISPLACED = "misplaced", "a setting, header or block is not where it belongs"
    DUPLICATE = "duplicate", "a name, setting, block, header or endpoint is there twice"
    MISSING = "missing", "a block, setting, name or value that is needed is not there"
    INVALID_VALUE = "invalid-value", "a value does not have the form that its setting needs"
    UNAVAILABLE = "unavailable", "a variable or secret cannot be read"
    REQUIRES = "requires", "a setting cannot be used without another one"
    EXCLUDES = "excludes", "two settings cannot be used together"
    NO_EFFECT = "no-effect", "a setting, event or port is not used"
    PLACEHOLDER = "placeholder", "a placeholder is misspelt, or cannot be filled there"
    CONDITION = "condition", "a WHEN is not a condition, or never true"
    NOT_JSON = "not-json", "a body is not JSON, whatever is inserted"
    OTHER_SYNTAX = "other-syntax", "another language is written so; here it is plain text"
    DOUBTFUL = "doubtful", "it works, but hardly as it was meant"
    LOOP = "loop", "what an event publishes triggers it again"
    INSECURE = "insecure", "others can read or change what is sent"
    NOT_PORTABLE = "not-portable", "the parser of Coreflux refuses it (`check --portable`)"
    CONFIGURATION = "configuration", "a setting of the plugin, or one that routes need"


class FailureCode(StrEnum):
    """Why a client-mode call ended without a usable response: `error.code` of the failure payload."""

    TIMEOUT = "timeout"
    CONNECTION_FAILED = "connection_failed"
    TLS_FAILED = "tls_failed"
    HTTP_STATUS = "http_status"
    RESPONSE_TOO_LARGE = "response_too_large"
    REDIRECT_REFUSED = "redirect_refused"
    PLACEHOLDER_UNRESOLVED = "placeholder_unresolved"
    INVALID_VALUE = "invalid_value"
    OVERLOADED = "overloaded"
    BRIDGE_RESTARTED = "bridge_restarted"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    OAUTH2_FAILED = "oauth2_failed"
    TARGET_DOWN = "target_down"
    SCHEMA_MISMATCH = "schema_mismatch"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text: line and column, both counted from 1, columns in characters."""

    line: int
    column: int


_NOWHERE: Final = Position(0, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault or remark at one place of one file.

    `path` is the file as the operator named it, any character that the system allows; a notebook's cell follows as
    `file.lotnb#3`. `end` is the place behind the last character of what is wrong, `position` itself where only that is
    known. `replacement` is the text to write from `position` to `end` where a hint knows it, as each did-you-mean does.
    """

    path: str
    position: Position
    severity: Severity
    message: str
    hint: str | None = None
    code: FaultCode = FaultCode.CONFIGURATION
    end: Position = _NOWHERE
    replacement: str | None = None

    def __post_init__(self) -> None:
        """Put an end that is not known at the place."""
        object.__setattr__(self, "end", max(self.position, self.end))

    def __str__(self) -> str:
        """Return the fault as an operator reads it: `path:line:column: error: message`, then its hint."""
        line = f"{visible(self.path)}:{self.position.line}:{self.position.column}: {self.severity}: {self.message}"
        return f"{line}\nhint: {self.hint}" if self.hint else line


class BridgeError(Exception):
    """Base of every error that this package raises on purpose."""


class HintedError(BridgeError):
    """An error whose `hint`, if there is one, is what to do next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigurationError(BridgeError):
    """A setting of the plugin or command line cannot be used; the message says which, why and what is allowed."""


class InUseError(ConfigurationError):
    """Another program has what a setting names: a port, or a file."""


class BrokerAwayError(BridgeError):
    """The broker is away or does not acknowledge, and the publication was not to wait; it may have been published."""


class NoRoomError(BridgeError):
    """There is no room for a publication that was not to wait; it is not published."""


class PublicationRefusedError(BridgeError):
    """The broker refuses a publication for good; the message says what was not published where, and why."""


class RouteFilesError(BridgeError):
    """At least one route file has an error; `faults` holds all faults of all files, sorted."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class CallError(BridgeError):
    """A client-mode call fails; becomes the failure payload.

    `unsent` is true when no byte of the request can have reached a server, so that repeating it is safe for every
    method (RFC 9110 section 9.2.2).
    """

    def __init__(self, code: FailureCode, message: str, hint: str, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.unsent = unsent


CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""A control character: no topic, header or path holds one."""


def visible(text: str) -> str:
    """Write out what cannot be seen, such as line breaks."""
    return text if text.isprintable() else "".join([char if char.isprintable() else repr(char)[1:-1] for char in text])


def utf_8(text: str) -> str:
    r"""Write out characters without a UTF-8 form, such as a byte of a file name: `\udcff`, as `visible` does."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def on_one_line(text: str, limit: int = 60) -> str:
    """Shorten a text from outside for a message or log line, and write out what cannot be seen."""
    shown = visible(text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def reason(error: BaseException) -> str:
    """Return why something failed, on one line: the first message in the chain of causes.

    Builtin exceptions with terse messages, such as `KeyError`, are named.
    """
    seen: BaseException | None = error
    while seen is not None:
        text = " ".join(str(seen).split())
        if text:
            named = type(seen).__module__ == "builtins" and not isinstance(seen, _CLEAR)
            return f"{type(seen).__name__}: {text}" if named else text
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__
