"""What callers ask of the library and what it answers: immutable values that any thread may hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

DEFAULT_LIMIT = 20
_KEPT = 3  # ids of a place

Of = TypeVar("Of")
FreeForm = Mapping[str, Any]
"""A free-form JSON object of the specification; ours carry at least `id`, `name` and `slug`."""


class Difficulty(StrEnum):
    """The prior knowledge that a template needs."""

    BEGINNER = "beginner"
    INTERMEDIATE = "intermediate"
    ADVANCED = "advanced"


class Sort(StrEnum):
    """The order of templates; without a text the newest are the most relevant."""

    RELEVANCE = "relevance"
    NEWEST = "newest"
    TITLE = "title"


class Status(StrEnum):
    """The state of a template; only published ones are visible through the API."""

    PUBLISHED = "published"
    DRAFT = "draft"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Summary:
    """A template as lists and search results show it.

    `url` is the one given at import, or None: then the API makes one from its base address. `published_at` and
    `updated_at` are times (RFC 3339, UTC), None where the library does not know them.
    """

    id: str
    slug: str | None
    title: str
    short_description: str
    difficulty: str | None
    url: str | None
    content: str
    published_at: str | None
    updated_at: str | None
    category: FreeForm | None
    tags: Sequence[FreeForm]
    routes: Sequence[FreeForm]
    broker_version: FreeForm | None


@dataclass(frozen=True, slots=True)
class Notebook:
    """The latest cells of one notebook file; `cells` is a JSON array as text, `role` what the file is for."""

    filename: str
    version: int
    is_primary: bool
    cells: str
    role: str | None


@dataclass(frozen=True, slots=True)
class Template:
    """A template with the latest cells of its notebooks."""

    summary: Summary
    notebooks: tuple[Notebook, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a query as typed and as found in a template: the same, or another one that was found in its place.

    `is_synonym` says that the list of synonyms has it for what was typed; else it is a correction.
    """

    typed: str
    found: str
    is_synonym: bool = False


@dataclass(frozen=True, slots=True)
class SynonymRule:
    """Words or phrases, and what is searched besides each of them. In a group of synonyms both are the same."""

    words: tuple[str, ...]
    meant: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found(Generic[Of]):
    """One result: the template (its key, where the search has found it), its score (0 to 1), the words that it has."""

    template: Of
    score: float
    matched: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page ended: how many templates were shown, and the ids of the last three, none for an offset.

    The next page begins behind the last of these that is still there, whatever is published meanwhile.
    """

    shown: int
    keys: tuple[str, ...] = ()

    def after(self, keys: Sequence[str]) -> "Place":
        """Return the place behind some more templates."""
        return Place(self.shown + len(keys), (*self.keys, *keys)[-_KEPT:])


@dataclass(frozen=True, slots=True)
class Page(Generic[Of]):
    """The templates that a query asks for, how many there are in all, and where this page ended, None at the end.

    `corrected` are the words of the query in whose place others were searched, `ignored` those that the library has
    nothing for.
    """

    found: tuple[Found[Of], ...] = ()
    total: int = 0
    corrected: tuple[Word, ...] = ()
    ignored: tuple[str, ...] = ()
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class TemplateQuery:
    """A query for templates.

    An empty `text` selects the most recently published ones. Ids are in lower case; an empty set of ids passes all.
    `updated_since` counts microseconds since 1970. Beside a `place`, `offset` has no effect.
    """

    text: str = ""
    limit: int = DEFAULT_LIMIT
    offset: int = 0
    category_id: str | None = None
    difficulty: str | None = None
    tag_ids: frozenset[str] = frozenset()
    route_ids: frozenset[str] = frozenset()
    broker_version_ids: frozenset[str] = frozenset()
    exact: bool = False
    sort: Sort = Sort.RELEVANCE
    updated_since: int | None = None
    place: Place | None = None

    @property
    def is_listed(self) -> bool:
        """Whether the database lists what is wanted: without a text, the newest first, changed at any time."""
        return not self.text and self.sort is not Sort.TITLE and self.updated_since is None
