"""The files of templates as text, JSON and YAML, with bounds on what is read. Blocks on the file system."""

import json
import math
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from template_api.errors import SourceError
from template_api.sources.fields import Fields

# Decision: what is larger is a mistake or an attack. YAML is read slowly, and no template needs so much.
LARGEST_FILE = 32 * 1024 * 1024
_LARGEST_YAML = 1024 * 1024


class _Loader(yaml.BaseLoader):
    """Read every scalar as text, so that `1.10` is a version and `no` a word, but an unquoted null as None."""


def _foreign(_loader: yaml.BaseLoader, node: yaml.Node) -> Any:
    line = node.start_mark.line + 1
    raise SourceError(
        f"{node.start_mark.name}:{line}", f"has the tag {node.tag!r}, which means nothing here; leave it out"
    )


_CORE = "tag:yaml.org,2002:"
_Loader.add_implicit_resolver(f"{_CORE}null", re.compile(r"(?:~|null|Null|NULL)?$"), ["~", "n", "N", ""])
_Loader.add_constructor(f"{_CORE}null", lambda _loader, _node: None)
for _tag in ("map", "seq", "str", "bool", "int", "float", "timestamp"):
    _kind = {"map": "mapping", "seq": "sequence"}.get(_tag, "scalar")
    _Loader.add_constructor(f"{_CORE}{_tag}", getattr(_Loader, f"construct_{_kind}"))
_Loader.add_constructor(None, _foreign)  # any other tag would be read as text


def yaml_fields(root: Path, file: Path) -> Fields:
    """Read a YAML mapping, with the line of each key."""
    node, members = parsed_yaml(file, file_text(root, file, _LARGEST_YAML))
    if not isinstance(node, yaml.MappingNode) or not isinstance(members, dict):
        raise SourceError(f"{file}:1", "must hold keys and values such as title: My template")
    lines: dict[str, int] = {}
    fields = Fields(str(file), members, lines)
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if lines.setdefault(key.value, line) != line:
            fields.note(SourceError(f"{file}:{line}", f"key {key.value!r} comes twice"))
    return fields


def parsed_yaml(file: Path, text: str) -> tuple[yaml.Node | None, Any]:
    """Parse YAML into nodes, which know their lines, None for an empty document, and into values.

    Raises:
        SourceError: it is not YAML, or has a tag that means nothing here.
    """
    try:
        loader = _Loader(text)
        loader.name = str(file)  # for `_foreign`
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


def file_text(root: Path, file: Path, largest: int = LARGEST_FILE) -> str:
    """Read a file of a template. Links out of the imported folder are refused."""
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


def parsed_json(file: Path, text: str, line: int | None = None) -> Any:
    """Parse the JSON of a file, or of one of its lines.

    Raises:
        SourceError: it is not JSON (RFC 8259), or its numbers cannot be written as JSON again.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as exc:
        raise SourceError(f"{file}:{line or exc.lineno}", f"is not JSON: {exc.msg} (column {exc.colno})") from exc
    except (RecursionError, ValueError) as exc:
        raise SourceError(f"{file}:{line or 1}", f"is not JSON: {exc}") from exc


def _finite(digits: str) -> float:
    """Refuse what Python takes for infinity, and NaN: it could not be written as JSON again."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large a number" if digits[-1].isdigit() else f"{digits} is not a JSON value")
    return number
