"""`TemplateSource`: all that one template says about itself, checked and brought into one form. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from template_api.errors import SourceError
from template_api.fields import SLUG, Fields, NamedSource, check_storable, is_uuid, slug_of
from template_api.records import Difficulty, Status

KEYS = (
    "id", "slug", "title", "summary", "short_description", "category", "difficulty", "tags", "primitives", "protocols",
    "services", "routes", "broker_version", "verified_broker_version", "status", "published_at", "notebooks", "url",
)  # fmt: skip
_SEARCHED_ONLY = ("primitives", "protocols", "services")
_DEEPEST_CELLS = 100  # Python reads and writes JSON recursively, and answers hold cells some levels down
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ROUTE = re.compile(r"^[ \t]*DEFINE\s+ROUTE\s+\S+\s+WITH\s+TYPE\s+([A-Za-z0-9_.-]+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NotebookSource:
    """Hold one notebook file; `cells` is a JSON array as text, `text` what the search reads of it."""

    filename: str
    is_primary: bool
    cells: str
    text: str
    route_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """Hold one template. `where` is its file and line, `keywords` are words that only the search reads."""

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

    def digest(self) -> str:
        """Return a text that is the same exactly when the template says the same, wherever its file is."""
        return hashlib.blake2b(repr(replace(self, where="")).encode(), digest_size=20).hexdigest()

    def labels(self) -> str:
        """Return the names of all that the template is sorted by, for the search."""
        named = [*self.tags, *self.routes, self.category, self.broker_version]
        return " ".join([each.name for each in named if each is not None] + list(self.keywords))


def template_source(
    fields: Fields, content: str, notebooks: Sequence[NotebookSource], default_slug: str | None = None
) -> TemplateSource:
    """Read one template.

    Args:
        fields: its members.
        content: its markdown body.
        notebooks: its notebooks, in order.
        default_slug: the name of its folder, which stands for the slug of a template that gives neither slug nor id.

    Raises:
        SourceError: a member breaks its rule.
    """
    check_storable(fields.where("content"), "content", content)
    id_, slug = _identity(fields, default_slug)
    named_routes = {each.slug: each for each in fields.all_named("routes")}
    for name in (name for notebook in notebooks for name in notebook.route_types):
        named_routes.setdefault(slug_of(name), NamedSource(name, slug_of(name)))
    return TemplateSource(
        where=fields.where(),
        id=id_,
        slug=slug,
        title=_title(fields) or slug or id_ or "",
        short_description=fields.text("short_description") or fields.text("summary") or "",
        content=content,
        difficulty=fields.choice("difficulty", Difficulty),
        url=_url(fields),
        status=fields.choice("status", Status) or Status.PUBLISHED.value,
        published_at=fields.time("published_at"),
        category=fields.named("category"),
        broker_version=fields.named("broker_version") or fields.named("verified_broker_version"),
        tags=fields.all_named("tags"),
        routes=tuple(named_routes.values()),
        keywords=tuple(named.name for key in _SEARCHED_ONLY for named in fields.all_named(key)),
        notebooks=tuple(notebooks),
    )


def warnings(fields: Fields, also: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is odd but no fault: a blank title, and each key that no template has with what was probably meant."""
    if _title(fields) is None:
        yield f"{fields.where('title')}: warning: title is blank; the slug stands in for it"
    known = (*KEYS, *also)
    for key in fields.members:
        if key not in known:
            close = get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            yield f"{fields.where(key)}: warning: unknown key {key!r} is not read{hint}"


def notebook_source(where: str, filename: str, cells: object, *, is_primary: bool) -> NotebookSource:
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
    return NotebookSource(filename, is_primary, stored, text.replace("\0", " "), tuple(route_types(lot)))


def route_types(lot: str) -> Iterator[str]:
    """Yield the type of each `DEFINE ROUTE ... WITH TYPE x`, each once, in the spelling of its first use."""
    seen: set[str] = set()
    for match in _ROUTE.finditer(_BLOCK_COMMENT.sub(" ", lot)):
        if match[1].upper() not in seen:
            seen.add(match[1].upper())
            yield match[1].upper()


def _identity(fields: Fields, default_slug: str | None) -> tuple[str | None, str | None]:
    """Return id and slug: an `id` that is a UUID is the id, any other is the slug."""
    given, slug = fields.text("id"), fields.slug("slug")
    if given is not None and is_uuid(given):
        return given.lower(), slug
    slug = slug or fields.slug("id") or _slug_of_folder(default_slug)
    if slug is None:
        raise fields.fault("slug", "is required (or an id)")
    return None, slug


def _slug_of_folder(name: str | None) -> str | None:
    """Return the name of a folder as a slug. Decision: one with blanks and the like is brought into the form of one."""
    return next((slug for slug in (name, slug_of(name)) if SLUG.fullmatch(slug)), None) if name else None


def _title(fields: Fields) -> str | None:
    """Return the title. Decision: none at all is a fault, a blank one is not, as collections hold such templates."""
    if fields.members.get("title") is None:
        raise fields.fault("title", "is required")
    return fields.text("title")


def _url(fields: Fields) -> str | None:
    url = fields.text("url")
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and url.isascii() and url.isprintable()
    except ValueError:
        usable = False
    if not usable or " " in url:
        raise fields.fault("url", f"must be an http or https address, not {url!r}")
    return url


def _is_deeper(value: object, levels: int) -> bool:
    """Tell whether a JSON value is nested deeper than so many levels, without recursion."""
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
