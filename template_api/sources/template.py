"""`TemplateSource`: one template as its author described it, validated and normalised. Pure."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from template_api.records import Difficulty, Status
from template_api.sources.fields import SLUG, Fields, NamedSource, check_storable, is_uuid, slug_of
from template_api.sources.notebooks import NotebookSource

KEYS = (
    "id", "slug", "title", "summary", "short_description", "category", "difficulty", "tags", "primitives", "protocols",
    "services", "routes", "broker_version", "verified_broker_version", "status", "published_at", "notebooks", "url",
)  # fmt: skip
_NEAR = 0.75  # how like a known key an unknown one is that is probably misspelt
_SEARCHED_ONLY = ("primitives", "protocols", "services")


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

    def digest(self) -> str:
        """Return a hash of the template's content, without the place of its file."""
        return hashlib.blake2b(repr(replace(self, where="")).encode(), digest_size=20).hexdigest()

    def labels(self) -> str:
        """Return the names of all that the template is sorted by, for the search."""
        named = [*self.tags, *self.routes, self.category, self.broker_version]
        return " ".join([each.name for each in named if each is not None] + list(self.keywords))


def template_source(
    fields: Fields, content: str, notebooks: Sequence[NotebookSource], default_slug: str | None = None
) -> TemplateSource | None:
    """Read one template.

    Args:
        fields: its members.
        content: its markdown body.
        notebooks: its notebooks, in order.
        default_slug: the name of its folder, the slug of a template that has neither slug nor id.

    Returns:
        The template; None when a member breaks its rule, which is noted in `fields`.
    """
    fields.checked(None, check_storable, fields.where("content"), "content", content)
    id_, slug = _identity(fields, default_slug)
    named_routes = {each.slug: each for each in fields.all_named("routes")}
    for name in (name for notebook in notebooks for name in notebook.route_types):
        named_routes.setdefault(slug_of(name), NamedSource(name, slug_of(name)))
    tags, keywords = _tags(fields)
    # Decision: no title at all is a fault, a blank one is not, as collections hold such templates.
    if fields.members.get("title") is None:
        fields.note(fields.fault("title", "is required"))
    source = TemplateSource(
        where=fields.where(),
        id=id_,
        slug=slug,
        title=fields.text("title") or slug or id_ or "",
        short_description=fields.text("short_description") or fields.text("summary") or "",
        content=content,
        difficulty=fields.choice("difficulty", Difficulty),
        url=fields.url("url"),
        status=fields.choice("status", Status) or Status.PUBLISHED.value,
        published_at=fields.time("published_at"),
        category=fields.named("category"),
        broker_version=fields.named("broker_version") or fields.named("verified_broker_version"),
        tags=tags,
        routes=tuple(named_routes.values()),
        keywords=keywords,
        notebooks=tuple(notebooks),
    )
    return None if fields.faults else source


def warnings(fields: Fields, also: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is odd but no fault: a blank title, and each unknown key that is near to a known one."""
    title = fields.members.get("title")
    if isinstance(title, str) and not title.strip():
        yield f"{fields.where('title')}: warning: title is blank; the slug is used instead"
    known = (*KEYS, *also)
    for key in fields.members:
        # Decision: other keys are what their authors keep for other programs, and no mistake.
        close = get_close_matches(str(key), known, n=1, cutoff=_NEAR) if key not in known else ()
        if close:
            yield f"{fields.where(key)}: warning: unknown key {key!r} is not read; did you mean {close[0]!r}?"


def _tags(fields: Fields) -> tuple[tuple[NamedSource, ...], tuple[str, ...]]:
    """Return the tags, and the names that only the search reads: these become the tags of a template without any."""
    others = [named for key in _SEARCHED_ONLY for named in fields.all_named(key)]
    if fields.members.get("tags") in (None, ""):
        tags: dict[str, NamedSource] = {}
        for named in others:
            tags.setdefault(named.slug, named)
        return tuple(tags.values()), ()
    return fields.all_named("tags"), tuple(named.name for named in others)


def _identity(fields: Fields, default_slug: str | None) -> tuple[str | None, str | None]:
    """Return id and slug: an `id` that is a UUID is the id, any other is the slug."""
    given, slug = fields.text("id"), fields.slug("slug")
    if given is not None and is_uuid(given):
        return given.lower(), slug
    slug = slug or fields.slug("id")
    if slug is None and default_slug:
        # Decision: a folder's name with blanks and the like is brought into the form of a slug.
        slug = next((each for each in (default_slug, slug_of(default_slug)) if SLUG.fullmatch(each)), None)
    if slug is None and not (fields.members.get("slug") or fields.members.get("id")):
        fields.note(fields.fault("slug", "is required (or an id)"))
    return None, slug
