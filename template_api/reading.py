"""From files to `TemplateSource`: template folders with their notebooks, and `.jsonl` files.

Blocks on the file system. Yields one `Reading` for each template found, so that a bad one never stops the others.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from template_api.errors import SourceError, StartError
from template_api.fields import Fields
from template_api.notebooks import NotebookSource, listed_notebooks, notebook_source, primary_names
from template_api.sources import TemplateSource, template_source, warnings

TEMPLATE_FILES = ("template.yaml", "template.yml")
CONTENT_FILE = "README.md"
NOTEBOOK_SUFFIX = ".lotnb"
_LINE_KEYS = ("content",)
# Decision: what is larger is a mistake or an attack. YAML is read slowly, and no template says so much.
_LARGEST_FILE = 32 * 1024 * 1024
_LARGEST_YAML = 1024 * 1024


class _Loader(yaml.BaseLoader):
    """Read every scalar as text, so that `1.10` is a version and `no` a word, but an unquoted null as None."""


_NULL = "tag:yaml.org,2002:null"
_Loader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL)?$"), ["~", "n", "N", ""])
_Loader.add_constructor(_NULL, lambda _loader, _node: None)


@dataclass(frozen=True, slots=True)
class Reading:
    """Hold what came of one template: its source, or the faults that kept it from being read.

    `done` and `total` say how far the reading is, in templates or in bytes.
    """

    source: TemplateSource | None
    faults: tuple[SourceError, ...]
    warnings: tuple[str, ...]
    done: int
    total: int


def read_templates(path: Path) -> Iterator[Reading]:
    """Read a `.jsonl` file, or the template folders under a folder at any depth, in the order of their names.

    Raises:
        StartError: there is no such file or folder, or it holds no template.
    """
    try:
        if path.is_dir():
            return _read_folders(path)
        if path.suffix == ".jsonl" and path.is_file():
            return _read_lines(path)
    except OSError as exc:
        raise StartError(f"{path}: cannot be read: {exc.strerror}") from exc
    if not path.exists():
        raise StartError(f"{path}: there is no such file or folder")
    raise StartError(f"{path}: is neither a folder nor a .jsonl file")


def _read_folders(root: Path) -> Iterator[Reading]:
    files, unreadable = _template_files(root)
    total = len(files) + len(unreadable)
    readings = (Reading(None, (fault,), (), number, total) for number, fault in enumerate(unreadable, 1))
    return chain(readings, _read_files(root.resolve(), files, len(unreadable), total))


def _template_files(root: Path) -> tuple[list[Path], list[SourceError]]:
    """Return the template files under a folder, and the folders that cannot be read as what they seem to be."""
    found: list[Path] = []
    unreadable: list[SourceError] = []

    def note(exc: OSError) -> None:
        unreadable.append(SourceError(str(exc.filename), f"cannot be read: {exc.strerror}"))

    for where, folders, files in os.walk(root, onerror=note):
        folders.sort()
        names = [name for name in TEMPLATE_FILES if name in files]
        found.extend(Path(where) / name for name in names[:1])
        if not names and CONTENT_FILE in files and any(map(_is_notebook, files)) and not _is_within(where, found):
            reason = f"holds {CONTENT_FILE} and notebooks, but no {TEMPLATE_FILES[0]}; write one, with a title at least"
            unreadable.append(SourceError(where, reason))
    if not found and not unreadable:
        raise StartError(f"{root}: no template.yaml was found in it")
    return found, unreadable


def _is_within(folder: str, files: list[Path]) -> bool:
    """Tell whether a folder belongs to the template of one of the files."""
    return any(Path(folder).is_relative_to(file.parent) for file in files)


def _read_files(root: Path, files: list[Path], done: int, total: int) -> Iterator[Reading]:
    for number, file in enumerate(files, done + 1):
        yield _reading(partial(_read_folder, root, file), number, total)


def _reading(
    read: Callable[[], tuple[Fields, TemplateSource | None, tuple[str, ...]]], done: int, total: int
) -> Reading:
    try:
        fields, source, warned = read()
    except SourceError as exc:
        return Reading(None, (exc,), (), done, total)
    return Reading(source, fields.found_faults(), warned, done, total)


def _read_folder(root: Path, file: Path) -> tuple[Fields, TemplateSource | None, tuple[str, ...]]:
    fields = _yaml_fields(root, file)
    content = file.parent / CONTENT_FILE
    text = fields.checked("", _text, root, content) if os.path.lexists(content) else ""
    notebooks = list(_folder_notebooks(root, fields, file.parent))
    source = template_source(fields, text, notebooks, default_slug=file.parent.absolute().name)
    return fields, source, tuple(warnings(fields))


def _yaml_fields(root: Path, file: Path) -> Fields:
    """Read a YAML mapping, with the line of each key."""
    text = _text(root, file, _LARGEST_YAML)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            members = loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = mark.line + 1 if mark else 1
        raise SourceError(f"{file}:{line}", f"is not YAML: {exc.problem or exc.context}") from exc
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as exc:
        raise SourceError(f"{file}:1", f"is not YAML: {str(exc).splitlines()[0]}") from exc
    if not isinstance(node, yaml.MappingNode) or not isinstance(members, dict):
        raise SourceError(f"{file}:1", "must hold keys and values such as title: My template")
    lines: dict[str, int] = {}
    fields = Fields(str(file), members, lines)
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if lines.setdefault(key.value, line) != line:
            fields.note(SourceError(f"{file}:{line}", f"key {key.value!r} comes twice"))
    return fields


def _folder_notebooks(root: Path, fields: Fields, folder: Path) -> Iterator[NotebookSource]:
    """Yield the notebooks that the template lists, in that order, then the others of its folder by name."""
    listed = {each.filename: each for each in listed_notebooks(fields)}
    present = sorted(each.name for each in folder.iterdir() if _is_notebook(each.name) and each.is_file())
    for filename in listed.keys() - set(present):
        reason = f"names {filename!r}, which is not a {NOTEBOOK_SUFFIX} file of this folder"
        fields.note(fields.fault("notebooks", reason))
    order = [*(name for name in listed if name in present), *(name for name in present if name not in listed)]
    primary = primary_names(listed.values(), order)
    for filename in order:
        role = listed[filename].role if filename in listed else None
        read = partial(_folder_notebook, root, folder / filename, is_primary=filename in primary, role=role)
        notebook = fields.checked(None, read)
        if notebook is not None:
            yield notebook


def _folder_notebook(root: Path, file: Path, *, is_primary: bool, role: str | None) -> NotebookSource:
    return notebook_source(f"{file}", file.name, _json(file, _text(root, file)), is_primary=is_primary, role=role)


def _is_notebook(filename: str) -> bool:
    return filename.lower().endswith(NOTEBOOK_SUFFIX)


def _read_lines(file: Path) -> Iterator[Reading]:
    total = file.stat().st_size
    with file.open("rb") as lines:
        for number, line in enumerate(_bounded_lines(lines), 1):
            done = lines.tell()
            if not line.strip():
                continue
            yield _reading(partial(_read_line, file, number, line), done, total)


def _bounded_lines(lines: BinaryIO) -> Iterator[bytes]:
    """Yield lines; of one that is too long, only its beginning."""
    while line := lines.readline(_LARGEST_FILE + 1):
        yield line
        while len(line) > _LARGEST_FILE and not line.endswith(b"\n"):
            line = lines.readline(_LARGEST_FILE + 1)


def _read_line(file: Path, number: int, line: bytes) -> tuple[Fields, TemplateSource | None, tuple[str, ...]]:
    where = f"{file}:{number}"
    if len(line) > _LARGEST_FILE:
        raise SourceError(where, f"is longer than {_LARGEST_FILE} bytes")
    try:
        members = _json(file, line.decode("utf-8-sig"), number)
    except UnicodeDecodeError as exc:
        raise SourceError(where, f"is not UTF-8 at byte {exc.start}") from exc
    if not isinstance(members, dict):
        raise SourceError(where, "must hold a JSON object")
    fields = Fields(str(file), members, {}, number)
    content = members.get("content")
    if content is not None and not isinstance(content, str):
        fields.note(fields.fault("content", "must be text"))
        content = ""
    notebooks = list(_line_notebooks(fields))
    return fields, template_source(fields, content or "", notebooks), tuple(warnings(fields, _LINE_KEYS))


def _line_notebooks(fields: Fields) -> Iterator[NotebookSource]:
    listed = listed_notebooks(fields)
    primary = primary_names(listed, [each.filename for each in listed])
    for each in listed:
        read = partial(notebook_source, is_primary=each.filename in primary, role=each.role)
        notebook = fields.checked(None, read, fields.where(), each.filename, each.cells)
        if notebook is not None:
            yield notebook


def _text(root: Path, file: Path, largest: int = _LARGEST_FILE) -> str:
    """Read a file of a template. What a link shows from outside the folder that is imported is not the author's."""
    try:
        if not file.resolve().is_relative_to(root):
            raise SourceError(str(file), f"is a link that leads out of {root}")
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device would not end
            raise SourceError(str(file), "is not a regular file")
        if found.st_size > largest:
            raise SourceError(str(file), f"is larger than {largest} bytes")
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise SourceError(f"{file}:{line}", "is not UTF-8") from exc
    except (OSError, RuntimeError) as exc:  # the second for links that lead in a circle
        raise SourceError(str(file), f"cannot be read: {getattr(exc, 'strerror', exc)}") from exc


def _json(file: Path, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as exc:
        raise SourceError(f"{file}:{line or exc.lineno}", f"is not JSON: {exc.msg} (column {exc.colno})") from exc
    except (RecursionError, ValueError) as exc:
        raise SourceError(f"{file}:{line or 1}", f"is not JSON: {exc}") from exc


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    """Refuse what Python takes for infinity: it could not be written as JSON again."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large a number")
    return number
