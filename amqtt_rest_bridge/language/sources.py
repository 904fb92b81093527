"""What is read from outside: route files, folders and notebooks; environment variables, secrets, other files.

The language's only reading of the machine it runs on; blocks while it reads.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, Fault, Position, Severity
from amqtt_rest_bridge.files import regular_file
from amqtt_rest_bridge.language.report import Report

SUFFIXES = (".lot", ".lotnb")
"""Names of route files end so, in any case."""
_START = Position(1, 1)
MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """One text of the route language: a file, or the cell of a notebook.

    `path` is as the operator named it; a cell's is `file.lotnb#3`, all cells counted from 1.
    `faults` are those of reading it.
    """

    path: str
    text: str
    faults: tuple[Fault, ...] = ()


def read(paths: Sequence[str | Path]) -> tuple[Source, ...]:
    """Read route files and notebooks; folders are searched for `*.lot` and `*.lotnb`, at any depth, in sorted order.

    A file that is named twice is read once. What cannot be understood as text becomes a fault of its source.

    Raises:
        ConfigurationError: a path is missing or cannot be read; the message names all of them.
    """
    sources: list[Source] = []
    unreadable: list[str] = []
    for path in _files(paths, unreadable, sources):
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            unreadable.append(f"{path}: {getattr(error, 'strerror', None) or error}{_where(path, error)}")
        else:
            sources += of_content(str(path), content)
    if unreadable:
        raise ConfigurationError("; ".join(f"cannot read {item}" for item in unreadable))
    return tuple(sources)


def is_route_file(name: str) -> bool:
    """Return whether a file found in a folder is read; hidden ones are of editors and version control."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)


def find_route_files(folder: Path, on_error: Callable[[OSError], None]) -> list[Path]:
    """Return the route files of a folder, at any depth, sorted; hidden folders are left out. Blocks while it looks."""
    found: list[Path] = []
    for inner, folders, files in os.walk(folder, onerror=on_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [path for path in (Path(inner, name) for name in files if is_route_file(name)) if path.is_file()]
    return sorted(found)


def _where(path: Path, error: Exception) -> str:
    """Name the folder in which a relative path was looked for: most often it is the wrong one."""
    if isinstance(error, FileNotFoundError) and not path.is_absolute():
        return f" (working directory: {Path.cwd()})"
    return ""


def _files(paths: Iterable[str | Path], unreadable: list[str], sources: list[Source]) -> Iterator[Path]:
    seen: set[str] = set()
    for path in map(Path, paths):
        found = [path]
        if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for a name that is too long
            found = find_route_files(path, lambda error: unreadable.append(f"{error.filename}: {error.strerror}"))
            if not found:
                message = "this folder holds no *.lot or *.lotnb file"
                sources.append(_faulty(str(path), Severity.WARNING, message))
        for item in found:
            # Path.resolve raises for links in a circle, realpath for a NUL; opening the file reports both.
            real = str(item) if "\0" in str(item) else os.path.realpath(item)
            if real not in seen:
                seen.add(real)
                yield item


def of_content(path: str, content: bytes) -> Iterator[Source]:
    """Yield the texts of a route file or notebook, which its name tells apart; reads nothing."""
    if len(content) > MAX_FILE_BYTES:
        yield _faulty(path, Severity.ERROR, f"the file is larger than {MAX_FILE_BYTES} bytes")
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        position = Position(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        yield _faulty(path, Severity.ERROR, "the file is not UTF-8 text", position, "save it as UTF-8")
        return
    if path.lower().endswith(SUFFIXES[1]):
        yield from _cells(path, text)
    else:
        yield Source(path, text)


def _cells(path: str, text: str) -> Iterator[Source]:
    if not text.strip():  # a notebook that an editor has just created
        return
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        report = Report(path, text)
        report.error(error.pos, f"the notebook is not JSON: {error.msg}")
        yield Source(path, "", tuple(report.faults))
        return
    except (ValueError, RecursionError):  # numbers of thousands of digits, a thousand brackets
        yield _faulty(path, Severity.ERROR, "the notebook is not JSON that can be read")
        return
    cells = notebook.get("cells") if isinstance(notebook, dict) else notebook
    if not isinstance(cells, list):
        hint = "[{kind, language, value}, ...]"
        yield _faulty(path, Severity.ERROR, "the notebook is not an array of cells", hint=hint)
        return
    for number, cell in enumerate(cells, start=1):
        if isinstance(cell, dict) and str(cell.get("language")).lower() == "lot":
            yield _cell(f"{path}#{number}", cell.get("value"))


def _cell(path: str, value: object) -> Source:
    if not isinstance(value, str):
        return _faulty(path, Severity.ERROR, "the cell has no text", hint="its value is a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # "\ud800" is JSON
        report = Report(path, value)
        report.error(error.start, "the cell holds half a surrogate pair, which has no UTF-8 form", "leave it out")
        return Source(path, "", tuple(report.faults))
    return Source(path, value)


def _faulty(
    path: str, severity: Severity, message: str, position: Position = _START, hint: str | None = None
) -> Source:
    return Source(path, "", (Fault(path, position, severity, message, hint),))


MAX_SECRET_BYTES = 65_536


_ELSEWHERE = "secrets_dir (check and try: --secrets-dir)"


class NotAvailableError(BridgeError):
    """A variable or secret is not available; the message is the reason, without a value, `hint` what to do next."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables and the folder that holds one file for each secret."""

    environment: Mapping[str, str]
    secrets_dir: Path

    def variable(self, name: str) -> str:
        """Return the value of an environment variable.

        Raises:
            NotAvailableError: it is not set or not text.
        """
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
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            message = f"the secret {name} cannot be read from {self.secrets_dir}: {reason}"
            raise NotAvailableError(message, _way_out(error)) from None
        if len(content) > MAX_SECRET_BYTES:
            message = f"the secret {name} is larger than {MAX_SECRET_BYTES} bytes"
            raise NotAvailableError(message, "put the secret alone into the file")
        return text.removesuffix("\n").removesuffix("\r")

    @staticmethod
    def has_file(path: str) -> bool:
        """Return whether a file is there to be read; relative paths begin at the working directory."""
        try:
            return Path(path).is_file()
        except OSError:  # a name that is too long for the file system
            return False


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


def _way_out(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"put that file there, or name another folder: {_ELSEWHERE}"
    if isinstance(error, OSError):
        return "make it a file that the user of the broker (or of this command) can read"
    return "store it as text in UTF-8, such as base64"
