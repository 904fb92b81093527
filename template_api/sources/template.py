"""`TemplateSource`: one template and its notebooks as their author described them, validated and normalised. Pure."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from template_api.errors import SourceError, did_you_mean
from template_api.records import Input, Status
from template_api.sources.fields import (
    SLUG,
    Fields,
    NamedSource,
    check_storable,
    is_uuid,
    json_text,
    slug_of,
    time_text,
)

KEYS = (
    "id", "slug", "title", "summary", "short_description", "category", "difficulty", "tags", "primitives", "protocols",
    "services", "routes", "broker_version", "verified_broker_version", "status", "published_at", "notebooks", "url",
    "inputs",
)  # fmt: skip
_NEAR = 0.75  # how like a known key an unknown one is that is probably misspelt
_SEARCHED_ONLY = ("primitives", "protocols", "services")
PRIMARY_ROLE = "solution"
_KEY = "notebooks"
_NAMES = ("filename", "file", "name")
_LONGEST_NAME = 255
_LONGEST_SHOWN = 60
_MOST_NOTEBOOKS = 1000  # of a template; aliases of YAML can list each of many names for each of many roles
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


def template_source(
    fields: Fields,
    content: str,
    default_slug: str | None = None,
    present: Sequence[str] | None = None,
    cells_of: Callable[[str], tuple[str, object]] | None = None,
) -> TemplateSource | None:
    """Read one template.

    Args:
        fields: its members.
        content: its markdown body.
        default_slug: the name of its folder, the slug of a template that has neither slug nor id.
        present: the notebooks in its folder; None when their cells are among the members.
        cells_of: returns where the cells of one of these are, for messages, and the cells.

    Returns:
        The template; None when a member breaks its rule, which is noted in `fields`.
    """
    fields.checked(None, check_storable, fields.where("content"), "content", content)
    notebooks = _notebooks(fields, present, cells_of)
    id_, slug = _identity(fields, default_slug)
    named_routes = {each.slug: each for each in fields.all_named("routes")}
    for name in (name for notebook in notebooks for name in notebook.route_types):
        named_routes.setdefault(slug_of(name), NamedSource(name, slug_of(name)))
    # Names that only the search reads; they become the tags of a template without any.
    searched = [named for key in _SEARCHED_ONLY for named in fields.all_named(key)]
    tags = fields.all_named("tags")
    unlike = {each.slug: each for each in reversed(searched)}
    has_tags = fields.members.get("tags") not in (None, "")
    title, inputs = fields.members.get("title"), fields.inputs("inputs")
    # No title at all is a fault, a blank one is not, as collections hold such templates.
    if title is None:
        fields.fail("title", "is required")
    elif isinstance(title, str) and not title.strip():
        fields.warn("title", "title is blank; the slug is used instead")
    asked = tuple(dict.fromkeys(each for notebook in notebooks for each in notebook.asked))
    _warn(fields, {each.name: each for each in inputs}, asked, ("content",) if present is None else ())
    source = TemplateSource(
        where=fields.where(),
        id=id_,
        slug=slug,
        title=fields.text("title") or slug or id_ or "",
        short_description=fields.text("short_description") or fields.text("summary") or "",
        content=content,
        difficulty=fields.text("difficulty"),
        url=fields.text("url"),
        status=fields.text("status") or Status.PUBLISHED.value,
        published_at=fields.text("published_at"),
        category=fields.named("category"),
        broker_version=fields.named("broker_version") or fields.named("verified_broker_version"),
        tags=tags if has_tags else tuple(each for each in searched if unlike[each.slug] is each),
        routes=tuple(named_routes.values()),
        keywords=tuple(each.name for each in searched) if has_tags else (),
        notebooks=notebooks,
        inputs=inputs or asked,
    )
    return None if fields.faults else source


def _warn(fields: Fields, declared: Mapping[str, Input], asked: Sequence[Input], also: Sequence[str]) -> None:
    """Warn of what is odd but no fault: a date to come, inputs that are not those of the routes, misspelt keys.

    `asked` are the inputs of the routes, `also` are keys that are known beside the usual ones.
    """
    published_at = fields.text("published_at")
    if published_at is not None and published_at > time_text(datetime.now(UTC)):
        later = f"published_at {published_at[:10]} is in the future: the template is listed first until then"
        fields.warn("published_at", later)
    for each in asked if declared else ():
        what = f"GET {'SECRET' if each.secret else 'ENV'} {json.dumps(each.name, ensure_ascii=False)}"
        if each.name not in declared:
            fields.warn("inputs", f"inputs lacks {each.name}, which a route reads ({what})")
        elif each.secret and not declared[each.name].secret:
            fields.warn("inputs", f"{each.name} is read by {what}: write secret: true")
    known = (*KEYS, *also)
    for key in fields.members:
        # Other keys are what their authors keep for other programs, and no mistake.
        if key not in known and (meant := did_you_mean(str(key), known, _NEAR)):
            fields.warn(key, f"unknown key {key!r} is not read{meant}")


def _identity(fields: Fields, default_slug: str | None) -> tuple[str | None, str | None]:
    """Return id and slug: an `id` that is a UUID is the id, any other is the slug."""
    given, slug = fields.text("id"), fields.text("slug")
    if given is not None and is_uuid(given):
        return given.lower(), slug
    slug = slug or fields.text("id", "slug")
    if slug is None and default_slug:
        # A folder's name with blanks and the like is brought into the form of a slug.
        slug = next((each for each in (default_slug, slug_of(default_slug)) if SLUG.fullmatch(each)), None)
    if slug is None and not (fields.members.get("slug") or fields.members.get("id")):
        fields.fail("slug", "is required (or an id)")
    return None, slug


def _notebooks(
    fields: Fields, present: Sequence[str] | None, cells_of: Callable[[str], tuple[str, object]] | None
) -> tuple[NotebookSource, ...]:
    """Read the notebooks, those that the template lists first; a fault in one is noted, and the notebook left out.

    `notebooks` is a list of file names or objects, or maps each role to one of these, or to a list of them. The primary
    ones are those that say so, else those of the role `solution`, else the first in order.
    """
    given = fields.members.get(_KEY)
    pairs: Iterator[tuple[object, object]]
    if isinstance(given, Mapping) and not any(name in given for name in _NAMES):
        pairs = ((role, one) for role, held in given.items() for one in (held if isinstance(held, list) else [held]))
    else:
        pairs = ((None, item) for item in fields.items(_KEY))
    listed: dict[str, tuple[str | None, bool]] = {}
    cells: dict[str, object] = {}
    for number, (role, item) in enumerate(pairs):
        if number == _MOST_NOTEBOOKS:
            fields.fail(_KEY, f"must name at most {_MOST_NOTEBOOKS} files")
            break
        each = fields.checked(None, _listed, fields, role, item) if item not in (None, "") else None
        if each is None:
            continue
        filename, *about = each
        held = item.get("cells") if present is None and isinstance(item, Mapping) else None
        if listed.setdefault(filename, tuple(about)) != tuple(about) or cells.setdefault(filename, held) != held:
            fields.fail(_KEY, f"names {filename!r} twice")
    order = list(listed)
    if present is not None:
        for filename in listed.keys() - set(present):
            fields.fail(_KEY, f"names {filename!r}, which is not a .lotnb file of this folder")
        # Those that it does not list follow by name.
        order = [*(name for name in listed if name in present), *(name for name in present if name not in listed)]
    primary = {name for name, (_, is_primary) in listed.items() if is_primary}
    primary = primary or {name for name, (role, _) in listed.items() if (role or "").lower() == PRIMARY_ROLE}
    primary = primary or set(order[:1])
    found = []
    for filename in order:
        role, _ = listed.get(filename, (None, False))
        try:
            where, here = cells_of(filename) if cells_of is not None else (fields.where(), cells[filename])
            found.append(_notebook(where, filename, here, is_primary=filename in primary, role=role))
        except SourceError as exc:
            fields.note(exc)
    return tuple(found)


def _listed(fields: Fields, role: object, item: object) -> tuple[str, str | None, bool]:
    """Return the file name, the role, and whether it is a primary notebook."""
    given = item if isinstance(item, Mapping) else {"filename": item}
    filename = next((given[name] for name in _NAMES if given.get(name)), None)
    if not isinstance(filename, str) or not 0 < len(filename) <= _LONGEST_NAME or "\0" in filename:
        raise fields.fault(_KEY, "must hold file names, objects with filename and is_primary, or map roles to these")
    named = given.get("role") if role is None else role
    if named is not None and not (isinstance(named, str) and 0 < len(named.strip()) <= _LONGEST_NAME):
        shown = f"{named[:_LONGEST_SHOWN]!r}" if isinstance(named, str) else "a list or an object"
        raise fields.fault(_KEY, f"has a role that is not a name: {shown}")
    check_storable(fields.where(_KEY), f"{_KEY}: a role", named or "")
    return filename, named and named.strip(), fields.flag(_KEY, given.get("is_primary", given.get("primary")))


def _notebook(where: str, filename: str, cells: object, *, is_primary: bool, role: str | None) -> NotebookSource:
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise SourceError(where, f"notebook {filename}: must be a JSON array of cells {{kind, language, value}}")
    check_storable(where, f"the name of notebook {filename!r}", filename)
    stored = json_text(where, f"notebook {filename}", cells)
    text = "\n".join(_cell_text(cell) for cell in cells)
    lot = list(lot_texts(cells))
    types = tuple(dict.fromkeys(defined_routes("\n".join(lot))))
    asked = tuple(dict.fromkeys(chain.from_iterable(map(names_read, lot))))
    return NotebookSource(filename, is_primary, stored, text.replace("\0", " "), types, asked, role)


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
