"""Test files of routes (`*.test.yaml`) to cases, with a fault for whatever a file should not hold. Reads files."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from amqtt_rest_bridge.errors import ConfigurationError

SUFFIX: Final = ".test.yaml"
NOW: Final = 1_769_860_800.0
"""When messages and requests arrive unless a case says otherwise: 2026-01-31T12:00:00Z."""

_FILE: Final = ("routes", "environment", "secrets", "tests")
_CASE: Final = (
    *("name", "time", "message", "request", "response", "responses", "latest", "reply"),
    *("sends", "publishes", "answers", "skipped"),
)
_MESSAGE: Final = ("topic", "event", "payload", "payload_base64")
_REQUEST: Final = ("method", "path", "headers", "body", "body_base64", "signed")
_RESPONSE: Final = ("status", "reason", "headers", "body", "body_base64", "error")
_SENT: Final = ("method", "url", "headers", "body", "body_base64")
_PUBLISHED: Final = ("topic", "payload", "payload_base64", "retain", "failure")
_ANSWER: Final = ("status", "headers", "body", "body_base64")


@dataclass(frozen=True, slots=True)
class Case:
    """One test; expectations that are None are not compared. Members are as written, but checked."""

    name: str
    now: float
    message: Mapping[str, Any] | None
    request: Mapping[str, Any] | None
    responses: Sequence[Mapping[str, Any]]
    latest: Any
    reply: Any
    sends: Sequence[Mapping[str, Any]] | None
    publishes: Sequence[Mapping[str, Any]] | None
    answers: Mapping[str, Any] | None
    skipped: bool | None


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A test file: the route files that it tests, what GET ENV and GET SECRET read in it, and its cases."""

    path: Path
    routes: tuple[Path, ...]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    cases: tuple[Case, ...]


def find(paths: Sequence[str]) -> list[Path]:
    """Return the test files among paths and below folders, sorted.

    Raises:
        ConfigurationError: A path is missing, is not a test file, or no test file is found.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(path.rglob(f"*{SUFFIX}"))
        elif not path.is_file():
            raise ConfigurationError(f"cannot read {path}: it is not a file or folder")
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
        whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    where = str(path)
    _check(where, whole, _FILE)
    tests = whole.get("tests")
    if not isinstance(tests, list) or not tests:
        raise ConfigurationError(f"{where}: tests must be a list of cases")
    for name in whole.get("secrets", {}):
        if Path(str(name)).name != str(name):
            raise ConfigurationError(f"{where}: {str(name)!r} cannot be the name of a secret")
    routes = whole.get("routes", ".")
    return CaseFile(
        path,
        tuple(path.parent / one for one in ([routes] if isinstance(routes, str) else routes)),
        {str(name): str(text) for name, text in whole.get("environment", {}).items()},
        {str(name): str(text) for name, text in whole.get("secrets", {}).items()},
        tuple(_case(f"{where}, test {number}", test) for number, test in enumerate(tests, 1)),
    )


def octets(member: Mapping[str, Any], name: str) -> bytes:
    """Return a payload or body: a text as UTF-8, anything else as JSON; NAME_base64 holds other bytes."""
    if f"{name}_base64" in member:
        return base64.b64decode(member[f"{name}_base64"])
    value = member.get(name, "")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def _case(where: str, test: Any) -> Case:
    _check(where, test, _CASE)
    name = str(test.get("name") or where.rpartition(", ")[2])
    if ("message" in test) == ("request" in test):
        raise ConfigurationError(f"{where} ({name}) needs either a message or a request")
    responses = test.get("responses", [test["response"]] if "response" in test else [])
    parts = {"message": _MESSAGE, "request": _REQUEST, "answers": _ANSWER}
    for part, known in parts.items():
        if part in test:
            _check(f"{where}, {part}", test[part], known)
    lists = {"responses": (responses, _RESPONSE), "sends": (test.get("sends"), _SENT)}
    lists["publishes"] = (test.get("publishes"), _PUBLISHED)
    for part, (items, known) in lists.items():
        if items is not None and not isinstance(items, list):
            raise ConfigurationError(f"{where}, {part} must be a list")
        for item in items or ():
            _check(f"{where}, {part}", item, known)
    return Case(
        name,
        _time(where, test.get("time")),
        test.get("message"),
        test.get("request"),
        responses,
        test.get("latest"),
        test.get("reply"),
        test.get("sends"),
        test.get("publishes"),
        test.get("answers"),
        test.get("skipped"),
    )


def _time(where: str, value: Any) -> float:
    if value is None:
        return NOW
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        return moment.timestamp()
    except ValueError as error:
        raise ConfigurationError(f"{where}: time is not as in 2026-01-31T12:00:00Z") from error


def _check(where: str, part: Any, known: Sequence[str]) -> None:
    if not isinstance(part, dict):
        raise ConfigurationError(f"{where} must be a mapping with {', '.join(known)}")
    unknown = [str(name) for name in part if name not in known]
    if unknown:
        raise ConfigurationError(f"{where}: {unknown[0]} is not known here; known are {', '.join(known)}")
