"""The notebooks of one template: which files it lists, in which roles, and what their cells hold. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from template_api.errors import SourceError
from template_api.sources.fields import Fields, check_storable

PRIMARY_ROLE = "solution"
_KEY = "notebooks"
_NAMES = ("filename", "file", "name")
_LONGEST_NAME = 255
_DEEPEST_CELLS = 100  # Python reads and writes JSON recursively, and answers hold cells some levels down
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ROUTE = re.compile(r"^[ \t]*DEFINE\s+ROUTE\s+\S+\s+WITH\s+TYPE\s+([A-Za-z0-9_.-]+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Listed:
    """A notebook as its template lists it; `cells` only where they are beside it, as in a `.jsonl` file."""

    filename: str
    role: str | None
    is_primary: bool
    cells: object


@dataclass(frozen=True, slots=True)
class NotebookSource:
    """One notebook file; `cells` is a JSON array as text, `text` what the search indexes of it."""

    filename: str
    is_primary: bool
    cells: str
    text: str
    route_types: tuple[str, ...]
    role: str | None = None


def listed_notebooks(fields: Fields) -> list[Listed]:
    """Return the notebooks that a template lists, in order; a fault in one is noted in `fields`.

    `notebooks` is a list of file names or objects, or maps each role to one of these, or to a list of them.
    """
    given = fields.members.get(_KEY)
    if isinstance(given, Mapping) and not any(name in given for name in _NAMES):
        pairs = [(role, item) for role, held in given.items() for item in (held if isinstance(held, list) else [held])]
    else:
        pairs = [(None, item) for item in fields.items(_KEY)]
    found: dict[str, Listed] = {}
    for role, item in pairs:
        each = fields.checked(None, _listed, fields, role, item) if item not in (None, "") else None
        if each is None:
            continue
        if each.filename in found and each != found[each.filename]:
            fields.note(fields.fault(_KEY, f"names {each.filename!r} twice"))
        found.setdefault(each.filename, each)
    return list(found.values())


def primary_names(listed: Iterable[Listed], order: Sequence[str]) -> set[str]:
    """Return the primary ones: those that say so, else those of the role `solution`, else the first in order."""
    each = list(listed)
    # Decision: without a word on it, the first notebook is the primary one.
    return (
        {one.filename for one in each if one.is_primary}
        or {one.filename for one in each if (one.role or "").lower() == PRIMARY_ROLE}
        or set(order[:1])
    )


def _listed(fields: Fields, role: object, item: object) -> Listed:
    given = item if isinstance(item, Mapping) else {"filename": item}
    filename = next((given[name] for name in _NAMES if given.get(name)), None)
    if not isinstance(filename, str) or not 0 < len(filename) <= _LONGEST_NAME or "\0" in filename:
        raise fields.fault(_KEY, "must hold file names, objects with filename and is_primary, or map roles to these")
    named = given.get("role") if role is None else role
    if named is not None and not (isinstance(named, str) and 0 < len(named.strip()) <= _LONGEST_NAME):
        raise fields.fault(_KEY, f"has a role that is not a name: {named!r}")
    check_storable(fields.where(_KEY), f"{_KEY}: a role", named or "")
    is_primary = fields.flag(_KEY, given.get("is_primary", given.get("primary")))
    return Listed(filename, named and named.strip(), is_primary, given.get("cells"))


def notebook_source(
    where: str, filename: str, cells: object, *, is_primary: bool, role: str | None = None
) -> NotebookSource:
    """Read the cells of one notebook.

    Raises:
        SourceError: they are not a JSON array of objects, are nested too deeply, or hold what a database cannot keep.
    """
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise SourceError(where, f"notebook {filename}: must be a JSON array of cells {{kind, language, value}}")
    if _is_deeper(cells, _DEEPEST_CELLS):
        raise SourceError(where, f"notebook {filename}: its cells are nested more than {_DEEPEST_CELLS} deep")
    check_storable(where, f"the name of notebook {filename!r}", filename)
    stored = json.dumps(cells, ensure_ascii=False, separators=(",", ":"))
    text = "\n".join(_cell_text(cell) for cell in cells)
    check_storable(where, f"notebook {filename}", stored)
    lot = "\n".join(_cell_text(cell) for cell in cells if str(cell.get("language", "lot")).lower() == "lot")
    return NotebookSource(filename, is_primary, stored, text.replace("\0", " "), tuple(route_types(lot)), role)


def route_types(lot: str) -> Iterator[str]:
    """Yield the type of each `DEFINE ROUTE ... WITH TYPE x`, each once, in the spelling of its first use."""
    seen: set[str] = set()
    for match in _ROUTE.finditer(_BLOCK_COMMENT.sub(" ", lot)):
        if match[1].upper() not in seen:
            seen.add(match[1].upper())
            yield match[1].upper()


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether a JSON value is nested deeper than so many levels, without recursion."""
    level = [value]
    for _ in range(levels + 1):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = list(chain.from_iterable(inner))
    return bool(level)


def _cell_text(cell: Mapping[str, Any]) -> str:
    value = cell.get("value", "")
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
