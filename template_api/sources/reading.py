"""From files to `TemplateSource`: template folders with their notebooks, and `.jsonl` files; YAML and JSON with bounds.

Blocks on the file system. Yields one `Reading` for each template found, so that a bad one never stops the others.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from template_api.errors import SourceError, StartError, did_you_mean, visible
from template_api.sources.members import SLUG, slug_of
from template_api.sources.template import TemplateSource, cells_text, reasons

TEMPLATE_FILE = "template.yaml"
CONTENT_FILE = "README.md"
# A larger file is a mistake or an attack. YAML is slow to read, and no template needs so much.
_LARGEST_FILE = 32 * 1024 * 1024
_LARGEST_YAML = 1024 * 1024
_NEAR = 0.75  # how like a known key an unknown one is that is probably misspelt


@dataclass(slots=True)
class Reading:
    """What was read of one template: its source, or its faults; `where` is its file and line.

    `done` and `total` are the progress, in templates or in bytes.
    """

    where: str
    source: TemplateSource | None = None
    faults: list[SourceError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    done: int = 1
    total: int = 1


def read_templates(path: Path) -> Iterator[Reading]:
    """Read a `.jsonl` file, or the template folders under a folder at any depth, in the order of their names.

    Raises `StartError` at once where there is no such file or folder, or it holds no template.
    """
    try:
        mode = path.stat().st_mode  # not is_dir and is_file, which hide every error since Python 3.14
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise StartError(f"{path}: there is no such file or folder") from exc
    except OSError as exc:
        raise StartError(f"{path}: cannot be read: {exc.strerror}") from exc
    if path.suffix == ".jsonl" and stat.S_ISREG(mode):
        return _read_lines(path)
    if not stat.S_ISDIR(mode):
        raise StartError(f"{path}: is neither a folder nor a .jsonl file")
    found: list[Path] = []
    unreadable: list[SourceError] = []  # and folders that seem to be templates and are not
    within: set[Path] = set()  # the folders of templates, and all below them

    def note(exc: OSError) -> None:
        unreadable.append(SourceError(str(exc.filename), f"cannot be read: {exc.strerror}"))

    for where, folders, files in os.walk(path, onerror=note):
        folders.sort()
        folder = Path(where)
        if TEMPLATE_FILE in files:
            found.append(folder / TEMPLATE_FILE)
        if TEMPLATE_FILE in files or folder.parent in within:
            within.add(folder)
        elif CONTENT_FILE in files and any(each.lower().endswith(".lotnb") for each in files):
            reason = f"holds {CONTENT_FILE} and notebooks, but no {TEMPLATE_FILE}; write one, with a title at least"
            unreadable.append(SourceError(where, reason))
    if not found and not unreadable:
        raise StartError(f"{path}: no template.yaml was found in it")
    return _read_folders(path.resolve(), found, unreadable)


def _read_folders(root: Path, files: list[Path], unreadable: list[SourceError]) -> Iterator[Reading]:
    total = len(files) + len(unreadable)
    for done, fault in enumerate(unreadable, 1):
        yield Reading(fault.where, faults=[fault], done=done, total=total)
    for done, file in enumerate(files, len(unreadable) + 1):
        reading = Reading(f"{file}:1", done=done, total=total)
        with noting(reading.faults, reading.where):
            _read_folder(root, file, reading)
        yield reading


@contextmanager
def noting(faults: list[SourceError], where: str) -> Iterator[None]:
    """Add an error of the block to the faults, at its own place or else at `where`, and go on after the block."""
    try:
        yield
    except SourceError as exc:
        faults.append(exc)
    except ValueError as exc:
        faults.append(SourceError(where, str(exc)))


def _read_folder(root: Path, file: Path, reading: Reading) -> None:
    """Read a template's folder: its members as YAML with the line of each key, its content and its notebooks."""
    node, members = parsed_yaml(file, file_text(root, file, _LARGEST_YAML))
    if not isinstance(node, yaml.MappingNode) or not isinstance(members, dict):
        raise ValueError("must hold keys and values such as title: My template")  # noqa: TRY004  # of its author
    folder, lines, found = file.parent, dict[str, int](), list[tuple[int, str]]()
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if lines.setdefault(key.value, line) != line:
            found.append((line, f"key {key.value!r} comes twice"))
    if not (members.get("id") or members.get("slug")):
        # The name of its folder; one with blanks and the like is brought into the form of a slug.
        name = folder.absolute().name
        members["slug"] = next((each for each in (name, slug_of(name)) if SLUG.fullmatch(each)), None)
    cells: dict[str, str | None] = {}
    unread: list[SourceError] = []  # files of the folder
    content = folder / CONTENT_FILE
    with noting(unread, str(content)):
        members["content"] = file_text(root, content) if os.path.lexists(content) else ""
    for notebook in sorted(each for each in folder.iterdir() if each.suffix.lower() == ".lotnb" and each.is_file()):
        cells[notebook.name] = None
        with noting(unread, str(notebook)):
            cells[notebook.name] = cells_text(_parsed_json(notebook, file_text(root, notebook)))
    _validate(reading, members, lines, found, cells)
    reading.faults += unread
    if reading.faults:
        reading.source = None


def _read_lines(file: Path) -> Iterator[Reading]:
    total, number = file.stat().st_size, 0
    with file.open("rb") as lines:
        while line := lines.readline(_LARGEST_FILE + 1):
            number, part = number + 1, line
            while len(part) > _LARGEST_FILE and not part.endswith(b"\n"):  # the rest of one that is too long
                part = lines.readline(_LARGEST_FILE + 1)
            if not line.strip():
                continue
            reading = Reading(f"{file}:{number}", done=lines.tell(), total=total)
            with noting(reading.faults, reading.where):
                if len(line) > _LARGEST_FILE:
                    raise ValueError(f"is longer than {_LARGEST_FILE} bytes")
                members = _parsed_json(file, line.decode("utf-8-sig"), number)
                if not isinstance(members, dict):
                    raise ValueError("must hold a JSON object")  # noqa: TRY004  # of its author
                _validate(reading, members, {}, [])
            yield reading


def _validate(
    reading: Reading, members: Mapping[str, Any], lines: Mapping[str, int], found: list[tuple[int, str]],
    cells: Mapping[str, str | None] | None = None,
) -> None:  # fmt: skip
    """Make the source of a reading from its members, or add its faults and those `found`, in the order of their lines.

    An unknown key that is near to a known one gets a warning; authors may keep any other for other programs.
    """
    file, _, first = reading.where.rpartition(":")
    try:
        reading.source = TemplateSource.model_validate(members, context=cells)
    except ValidationError as exc:
        found += [(lines.get(key, int(first)), reason) for key, reason in reasons(exc)]
    reading.faults += [SourceError(f"{file}:{line}", reason) for line, reason in sorted(found)]
    known = TemplateSource.model_fields
    for key in members:
        if key not in known and (meant := did_you_mean(str(key), known, _NEAR)):
            where = f"{file}:{lines.get(key, first)}"
            reading.warnings.append(visible(f"{where}: warning: unknown key {key!r} is not read{meant}"))


class _Loader(yaml.BaseLoader):
    """Read every scalar as text, so that `1.10` is a version and `no` a word, but an unquoted null as None.

    Other tags have no effect.
    """


_NULL = "tag:yaml.org,2002:null"
_Loader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL)?$"), ["~", "n", "N", ""])
_Loader.add_constructor(_NULL, lambda _loader, _node: None)


def parsed_yaml(file: Path, text: str) -> tuple[yaml.Node | None, Any]:
    """Parse YAML into nodes, which know their lines, None for an empty document, and into values."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            return node, loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = mark.line + 1 if mark else 1
        raise SourceError(f"{file}:{line}", f"is not YAML: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as exc:
        raise SourceError(f"{file}:1", f"is not YAML: {str(exc).splitlines()[0]}") from exc


def file_text(root: Path, file: Path, largest: int = _LARGEST_FILE) -> str:
    """Read a file of a template, in UTF-8; raise `SourceError`, or `ValueError`. Links out of `root` are refused."""
    try:
        if not file.resolve().is_relative_to(root):
            raise SourceError(str(file), f"is a link that leads out of {root}")
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device would not end
            raise SourceError(str(file), "is not a regular file")
        if found.st_size > largest:
            raise SourceError(str(file), f"is larger than {largest} bytes")
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, RuntimeError) as exc:  # the second for links that lead in a circle
        raise SourceError(str(file), f"cannot be read: {getattr(exc, 'strerror', exc)}") from exc


def _parsed_json(file: Path, text: str, line: int | None = None) -> Any:
    """Parse the JSON (RFC 8259) of a file, or of one of its lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        raise SourceError(f"{file}:{line or exc.lineno}", f"is not JSON: {exc.msg} (column {exc.colno})") from exc
    except (RecursionError, ValueError) as exc:
        raise SourceError(f"{file}:{line or 1}", f"is not JSON: {exc}") from exc
