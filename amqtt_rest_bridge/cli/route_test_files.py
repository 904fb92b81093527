"""Reads test files of routes (`*.test.yaml`): their cases, and the routes that they test. `route_tests` runs them.

The classes are the format of these files: msgspec builds them, and refuses members and types that they do not have.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from amqtt_rest_bridge.cli.yaml_files import read_yaml
from amqtt_rest_bridge.errors import ConfigurationError, FailureCode
from amqtt_rest_bridge.lot import loader, sources
from amqtt_rest_bridge.lot.evaluation import Environment, NotAvailableError
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.spelling import did_you_mean

SUFFIX: Final = ".test.yaml"
NOW: Final = 1_769_860_800.0
"""When messages and requests arrive unless a case says otherwise: 2026-01-31T12:00:00Z."""

Scalar = str | int | float | bool
Headers = dict[str, Scalar]
UserProperties = dict[str, Scalar]


class _Member(Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of a test file. `body` and `payload` are text or JSON; other bytes are in the member with `_base64`."""


class SourceMessage(_Member, frozen=True):
    """The message that a case publishes, or the `event` that its schedule runs."""

    topic: str | None = None
    event: str | None = None
    payload: Any = ""
    payload_base64: bytes | None = None
    properties: UserProperties = {}


class _Content(_Member, frozen=True):
    headers: Headers = {}
    body: Any = ""
    body_base64: bytes | None = None


class CallerRequest(_Content, frozen=True):
    """The request of server mode that a case sends."""

    method: str = "POST"
    path: str = "/"
    signed: bool = False


class ServerResponse(_Content, frozen=True):
    """What the HTTP server answers, or how the call fails."""

    status: int = 200
    reason: str = ""
    error: FailureCode | None = None


class ExpectedRequest(_Content, frozen=True):
    """A request that is sent. As of all expectations, only the members that are there are compared."""

    method: str | None = None
    url: str | None = None
    body: Any = UNSET


class ExpectedMessage(_Member, frozen=True):
    """A message that is published; `failure` is the code of a failure payload, `properties` are user properties.

    `qos` is the highest QoS that it is delivered with.
    """

    topic: str | None = None
    payload: Any = UNSET
    payload_base64: bytes | None = None
    retain: bool | None = None
    qos: int | None = None
    failure: str | None = None
    properties: UserProperties = {}


class ExpectedAnswer(_Content, frozen=True):
    """The answer to the request."""

    status: int | None = None
    body: Any = UNSET


class Case(_Member, frozen=True):
    """One test: a message or a request, what comes back, and expectations, of which those that are None do not count.

    With `twice` the message or request comes a second time; the messages of `batch` come after it.
    """

    name: Scalar = ""
    time: datetime | None = None
    message: SourceMessage | None = None
    request: CallerRequest | None = None
    twice: bool = False
    batch: list[SourceMessage] = []
    response: ServerResponse | None = None
    responses: list[ServerResponse] = []
    latest: Any = None
    topics: dict[str, Any] = {}
    reply: Any = None
    sends: list[ExpectedRequest] | None = None
    publishes: list[ExpectedMessage] | None = None
    answers: ExpectedAnswer | None = None
    skipped: bool | None = None

    def __post_init__(self) -> None:
        """Refuse a case without a beginning, or with two."""
        if (self.message is None) == (self.request is None):
            raise ValueError("needs either a message or a request")

    @property
    def now(self) -> float:
        """Return when the message or request arrives, in Unix seconds.

        A `time` without a zone is in UTC, so that a test holds on any machine.
        """
        if self.time is None:
            return NOW
        return (self.time if self.time.tzinfo else self.time.replace(tzinfo=UTC)).timestamp()


class _File(_Member, frozen=True):
    tests: list[Case]
    routes: str | list[str] = "."
    environment: dict[str, Scalar] = {}
    secrets: dict[str, Scalar] = {}

    def __post_init__(self) -> None:
        if not self.tests:
            raise ValueError("tests holds no case")
        for name in self.secrets:
            if Path(name).name != name:
                raise ValueError(f"{name!r} cannot be the name of a secret")


_UNKNOWN: Final = re.compile("Object contains unknown field `(.*)`")
_EXPECTED: Final = re.compile("Expected `(.*)`, got `(.*)`")
_WORDS: Final = {"array": "a list", "object": "a mapping", "str": "text", "int": "a whole number", "bool": "a boolean"}
_OTHER_NAMES: Final = {"messages": "write message for the first one, and batch for those that follow"}
_KINDS: Final = (*_Member.__subclasses__(), *_Content.__subclasses__())
_MEMBERS: Final = sorted({name for kind in _KINDS for name in kind.__struct_fields__})


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A test file: the route files that it tests, what GET ENV and GET SECRET read in it, and its cases by name."""

    path: Path
    routes: tuple[Path, ...]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    cases: tuple[tuple[str, Case], ...]


def find(paths: Sequence[str]) -> list[Path]:
    """Return the test files among paths and below folders, sorted.

    Raises:
        ConfigurationError: A path is missing, is not a test file, or no test file is found.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        # Path.is_dir and is_file raise for a name that is too long, or in a folder that is closed to us.
        if os.path.isdir(path):  # noqa: PTH112
            found += sorted(path.rglob(f"*{SUFFIX}"))
        elif not os.path.isfile(path):  # noqa: PTH113
            where = "" if path.is_absolute() else f" (working directory: {Path.cwd()})"
            raise ConfigurationError(f"cannot read {path}: it is not a file or folder{where}")
        elif path.name.endswith(SUFFIX):
            found.append(path)
        else:
            raise ConfigurationError(f"{path} is not a test file: its name must end with {SUFFIX}")
    if not found:
        raise ConfigurationError(f"there is no *{SUFFIX} in {', '.join(paths)}")
    return found


def read(path: Path) -> CaseFile:
    """Read a test file.

    Raises:
        ConfigurationError: It cannot be read, or holds something that a test file does not have.
    """
    try:
        file = msgspec.convert(read_yaml(path)[0], _File)
    except msgspec.ValidationError as error:
        # msgspec's message with the words of YAML, behind the place: `tests[0].sends: must be a list, not text`.
        what, _, place = str(error).partition(" - at ")
        if unknown := _UNKNOWN.fullmatch(what):
            hint = (
                _OTHER_NAMES.get(unknown[1])
                or did_you_mean(unknown[1], _MEMBERS)
                or "the reference has a table of all members"
            )
            what = f"{unknown[1]} is not known here; {hint}"
        elif wrong := _EXPECTED.fullmatch(what):
            expected, got = ([_WORDS.get(one, one) for one in kinds.split(" | ")] for kinds in wrong.groups())
            what = f"must be {' or '.join(one for one in expected if one != 'null')}, not {got[0]}"
        place = place.replace("`", "").replace("$.", "").replace("$", "")
        raise ConfigurationError(f"{path}: {place}: {what}" if place else f"{path}: {what}") from error
    routes = [file.routes] if isinstance(file.routes, str) else file.routes
    return CaseFile(
        path,
        tuple(path.parent / one for one in routes),
        {name: str(text) for name, text in file.environment.items()},
        {name: str(text) for name, text in file.secrets.items()},
        tuple((str(case.name or f"test {number}"), case) for number, case in enumerate(file.tests, 1)),
    )


def octets(value: Any, base64: bytes | None = None) -> bytes:
    """Return a payload or body: `base64` if it is there, a text as UTF-8, anything else as JSON."""
    if base64 is not None:
        return base64
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CaseEnvironment(Environment):
    """The environment of the routes of a test file: its variables before those of the process, and its secrets only."""

    given: Mapping[str, str]
    file: Path

    def secret(self, name: str) -> str:
        """Return a secret, without the line break at its end; raises `NotAvailableError`."""
        if name not in self.given:
            hint = f"write a value for the test into {self.file}, as in secrets: {{{name}: abc}}"
            raise NotAvailableError(f"the test file has no secret {name}", hint)
        return self.given[name].removesuffix("\n").removesuffix("\r")


def load(file: CaseFile) -> LoadResult:
    """Load the routes of a test file; raises `ConfigurationError` where a path cannot be read."""
    environment = _CaseEnvironment({**os.environ, **file.environment}, Path(), given=file.secrets, file=file.path)
    return loader.load(sources.read(file.routes), environment)
