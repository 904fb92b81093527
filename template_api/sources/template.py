"""`TemplateSource`: one template and its notebooks as their author described them, validated and normalised. Pure."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from template_api.errors import SourceError, did_you_mean, visible
from template_api.records import Input
from template_api.sources.members import (
    SLUG,
    Listed,
    Members,
    NamedSource,
    is_uuid,
    json_text,
    once,
    reasons,
    slug_of,
    storable,
    time_text,
)

_NEAR = 0.75  # how like a known key an unknown one is that is probably misspelt
PRIMARY_ROLE = "solution"
_BLOCK_COMMENT = re.compile(r"/\*(?>(?:[^*]+|\*(?!/))*)(?:\*/)?")  # one that never ends is read once, not from each /*
_READ = re.compile(
    rf"""{_BLOCK_COMMENT.pattern}|(?://|--)[^\n]*
    |\bGET\s+(?P<source>ENV|SECRET)\s+(?P<quote>["'])(?P<name>[A-Za-z0-9_.-]+)(?P=quote)
    |(?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_PLACEHOLDER = re.compile(r"\{(env|secret)\.([A-Za-z0-9_.-]+)(?:\|[^{}]*)?\}")
_ROUTE = re.compile(r"^[ \t]*DEFINE\s+ROUTE\s+\S+\s+WITH\s+TYPE\s+([A-Za-z0-9_.-]+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NotebookSource:
    """One notebook file; `cells` is a JSON array as text, `text` what the search indexes of it.

    `asked` is what its routes read of their environment.
    """

    filename: str
    is_primary: bool
    cells: str
    text: str
    route_types: tuple[str, ...]
    asked: tuple[Input, ...]
    role: str | None = None


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """One template. `where` is its file and line, `keywords` are words that only the search uses."""

    where: str
    id: str | None
    slug: str | None
    title: str
    short_description: str
    content: str
    difficulty: str | None
    url: str | None
    status: str
    published_at: str | None
    category: NamedSource | None
    broker_version: NamedSource | None
    tags: tuple[NamedSource, ...]
    routes: tuple[NamedSource, ...]
    keywords: tuple[str, ...]
    notebooks: tuple[NotebookSource, ...]
    inputs: tuple[Input, ...]

    def digest(self) -> str:
        """Return a hash of the template's content, without the place of its file."""
        return hashlib.blake2b(repr(replace(self, where="")).encode(), digest_size=20).hexdigest()


@dataclass(slots=True)
class Written:
    """A template as its author wrote it; `faults` by line and text, and `warnings`, are what reading it finds.

    `lines` has the line of each key of `members`, where known; `line` is used for the others. `files` are the cells of
    the notebooks in its folder, or why they cannot be read; None where the cells are in `members`.
    """

    path: str
    members: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    line: int = 1
    files: Mapping[str, object] | None = None
    faults: dict[tuple[float, str], SourceError] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def where(self, key: str = "") -> str:
        """Return `path:line` of a key, or of the template."""
        return f"{self.path}:{self.lines.get(key, self.line)}"

    def warn(self, key: str, text: str) -> None:
        """Add a warning."""
        self.warnings.append(visible(f"{self.where(key)}: warning: {text}"))

    def fail(self, key: str, reason: str) -> None:
        """Add a fault of a key."""
        self.note(SourceError(self.where(key), reason), self.lines.get(key, self.line))

    def note(self, fault: SourceError, line: float = math.inf) -> None:
        """Add a fault, without a line of another file."""
        self.faults[line, str(fault)] = fault


def template_source(written: Written) -> TemplateSource | None:
    """Return a template; None when there are faults."""
    try:
        read = Members.model_validate(written.members)
    except ValidationError as exc:
        usable = dict(written.members)
        for key, reason in reasons(exc):
            written.fail(key, reason)
            usable.pop(key, None)
        read = Members.model_validate(usable)  # the notebooks may have faults too
    notebooks = _notebooks(written, read.notebooks)
    asked = tuple(dict.fromkeys(chain.from_iterable(each.asked for each in notebooks)))
    inputs = tuple(Input(each.name, each.secret, each.example) for each in read.inputs)
    id_, slug = (read.id, read.slug) if read.id and is_uuid(read.id) else (None, read.slug or read.id)
    if slug is None and id_ is None and written.files is not None:
        # The name of its folder; one with blanks and the like is brought into the form of a slug.
        folder = Path(written.path).absolute().parent.name
        slug = next((each for each in (folder, slug_of(folder)) if SLUG.fullmatch(each)), None)
    if slug is None and id_ is None and not (written.members.get("slug") or written.members.get("id")):
        written.fail("slug", "slug is required (or an id)")
    routes = {each.slug: each for each in read.routes}
    for name in chain.from_iterable(each.route_types for each in notebooks):
        routes.setdefault(slug_of(name), NamedSource(name, slug_of(name)))
    # Names that only the search reads; they become the tags of a template without any.
    searched = [*read.primitives, *read.protocols, *read.services]
    _warn(written, read, {each.name: each for each in inputs}, asked)
    if written.faults:
        return None
    return TemplateSource(
        where=written.where(),
        id=id_,
        slug=slug,
        title=read.title or slug or id_ or "",
        short_description=read.short_description or read.summary or "",
        content=read.content,
        difficulty=read.difficulty and read.difficulty.value,
        url=read.url,
        status=read.status.value,
        published_at=read.published_at,
        category=read.category,
        broker_version=read.broker_version or read.verified_broker_version,
        tags=tuple(once(searched) if read.tags is None else read.tags),
        routes=tuple(routes.values()),
        keywords=() if read.tags is None else tuple(each.name for each in searched),
        notebooks=notebooks,
        inputs=inputs or asked,
    )


def _warn(written: Written, read: Members, declared: Mapping[str, Input], asked: Sequence[Input]) -> None:
    """Warn of what is odd but no fault: no title, a date to come, inputs unlike those of the routes, misspelt keys."""
    # No title at all is a fault, a blank one is not, as collections hold such templates.
    title = written.members.get("title")
    if title is None:
        written.fail("title", "title is required")
    elif isinstance(title, str) and not title.strip():
        written.warn("title", "title is blank; the slug is used instead")
    if read.published_at is not None and read.published_at > time_text(datetime.now(UTC)):
        later = f"published_at {read.published_at[:10]} is in the future: the template is listed first until then"
        written.warn("published_at", later)
    for each in asked if declared else ():
        what = f"GET {'SECRET' if each.secret else 'ENV'} {json.dumps(each.name, ensure_ascii=False)}"
        if each.name not in declared:
            written.warn("inputs", f"inputs lacks {each.name}, which a route reads ({what})")
        elif each.secret and not declared[each.name].secret:
            written.warn("inputs", f"{each.name} is read by {what}: write secret: true")
    for key in written.members:
        # Other keys are what their authors keep for other programs, and no mistake.
        if key not in Members.model_fields and (meant := did_you_mean(str(key), Members.model_fields, _NEAR)):
            written.warn(key, f"unknown key {key!r} is not read{meant}")


def _notebooks(written: Written, several: Sequence[Listed]) -> tuple[NotebookSource, ...]:
    """Read the notebooks, those that the template lists first; a fault in one is noted, and the notebook left out.

    The primary ones are those that say so, else those of the role `solution`, else the first in order.
    """
    files = written.files
    listed: dict[str, Listed] = {}
    for each in several:
        before = listed.setdefault(each.name, each)
        if (before.role, before.is_primary) != (each.role, each.is_primary) or (files is None and before != each):
            written.fail("notebooks", f"notebooks names {each.name!r} twice")
    cells = {name: each.cells for name, each in listed.items()}
    if files is not None:
        for name in listed.keys() - files.keys():
            written.fail("notebooks", f"notebooks names {name!r}, which is not a .lotnb file of this folder")
        cells = {name: files[name] for name in (*listed, *files) if name in files}
    primary = {name for name, each in listed.items() if each.is_primary}
    primary = primary or {name for name, each in listed.items() if (each.role or "").lower() == PRIMARY_ROLE}
    primary = primary or set(list(cells)[:1])
    found = []
    for name, held in cells.items():
        role = listed[name].role if name in listed else None
        try:
            if isinstance(held, SourceError):
                written.note(held)
            else:
                found.append(_notebook(name, held, is_primary=name in primary, role=role))
        except ValueError as exc:
            if files is None:
                written.fail("notebooks", f"notebook {name} {exc}")
            else:
                written.note(SourceError(str(Path(written.path).parent / name), f"notebook {name} {exc}"))
    return tuple(found)


def _notebook(filename: str, cells: object, *, is_primary: bool, role: str | None) -> NotebookSource:
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError("must be a JSON array of cells {kind, language, value}")  # noted as a fault
    lot = list(lot_texts(cells))
    return NotebookSource(
        storable(filename),
        is_primary,
        json_text(cells),
        "\n".join(map(_cell_text, cells)).replace("\0", " "),
        tuple(dict.fromkeys(defined_routes("\n".join(lot)))),
        tuple(dict.fromkeys(chain.from_iterable(map(names_read, lot)))),
        role,
    )


def lot_texts(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the texts of the cells in the route language."""
    for cell in cells:
        if str(cell.get("language", "lot")).lower() == "lot":
            yield _cell_text(cell)


def names_read(lot: str) -> Iterator[Input]:
    """Yield what a text reads of its environment, by GET and by placeholders, but in comments."""
    for match in _READ.finditer(lot):
        if match["name"]:
            yield Input(match["name"], match["source"].upper() == "SECRET")
        for source, name in _PLACEHOLDER.findall(match["string"] or ""):
            yield Input(name, source == "secret")


def defined_routes(lot: str) -> list[str]:
    """Return the type of each `DEFINE ROUTE ... WITH TYPE x` in capitals."""
    return [match[1].upper() for match in _ROUTE.finditer(_BLOCK_COMMENT.sub(" ", lot))]


def _cell_text(cell: Mapping[str, Any]) -> str:
    value = cell.get("value", "")
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
