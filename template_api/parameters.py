"""The one declared schema of requests: what lists, searches, suggestions and the body of POST may say.

`query` reads requests by it; the schemas of `openapi.json` and the README's table are made from it. In each `Meta`, the
title is what messages say that a value must be, the description what the parameter means.
"""

from enum import StrEnum
from typing import Annotated, Any, Final
from uuid import UUID

from msgspec import Meta, Struct

from template_api.records import DEFAULT_LIMIT, Difficulty, Sort

MOST_OFFSET: Final = 10_000
# Engines disagree on what \s means.
_NOT_BLANK: Final = "[^\\t\\n\\v\\f\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"


SummaryField = StrEnum(
    "SummaryField",
    [
        "id", "slug", "title", "short_description", "difficulty", "url", "category", "tags", "routes", "broker_version",
        "published_at", "updated_at", "snippet",
    ],
)  # fmt: skip
"""A member of a result of a list."""
ResultField = StrEnum("ResultField", [*SummaryField, "content", "score", "matched"])  # type: ignore[misc]
"""A member of a search result."""


def _rule(title: str, description: str, example: Any, **rules: Any) -> Meta:
    return Meta(title=title, description=description, examples=[example], **rules)


def _text(description: str, example: str, most: int = 4000) -> Meta:
    return _rule(f"text, of at most {most} characters", description, example, max_length=most)


def _one_of(words: type[StrEnum], description: str, example: str) -> Meta:
    return _rule(f"one of {', '.join(words)}", description, example)


def _flag(description: str) -> Meta:
    return _rule("true or false", description, True)


def _some_of(words: type[StrEnum], *example: str) -> Meta:
    return _rule(f"some of {', '.join(words)}, separated by commas", "Only these members of each result.", example)


def _ids(which: str, example: str) -> Meta:
    return _rule("a list of texts", f"Only templates {which}.", [example])


_SOUGHT: Final = "Search text: titles, descriptions, tags, routes and content."
_OFFSET: Final = _rule(
    f"a whole number from 0 to {MOST_OFFSET}",
    "How many of the first ones to leave out; without effect beside `cursor`.",
    20,
)
_CURSOR: Final = _rule(
    "what a page of the same search named as its next one, or blank", "The `next_cursor` of the page before.", ""
)
_SORT: Final = _one_of(
    Sort, "The order: best first, newest first, or by title. Without a text the newest are best.", "newest"
)
_TIME: Final = _rule(
    "a date or time (RFC 3339) such as 2026-01-31T12:00:00Z",
    "Only templates that changed in this library at this time or later.",
    "2026-01-31T12:00:00Z",
)
_CATEGORY: Final = _rule("a UUID", "Only templates in this category.", "0b7c5a52-8b1f-5a56-8d8a-6f1f4f0f9d10")

_Limit = Annotated[int, Meta(ge=1, le=30)]
_Offset = Annotated[int, Meta(ge=0, le=MOST_OFFSET)]
_Cursor = Annotated[str, Meta(max_length=2000, pattern="^([A-Za-z0-9_-]{10,})?$")]
_Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_NotBlank = Annotated[str, Meta(min_length=1, max_length=4000, pattern=_NOT_BLANK)]
_SummaryFields = Annotated[list[SummaryField], Meta(min_length=1)]
_ResultFields = Annotated[list[ResultField], Meta(min_length=1)]
_Difficulty = Annotated[Difficulty | None, _one_of(Difficulty, "Only templates of this difficulty.", "beginner")]
_TagIds = Annotated[list[str] | None, _ids("with one of these tags", "f2a1f6f3-77c6-5f0e-8a55-7f0d3a0c9e42")]
_RouteIds = Annotated[list[str] | None, _ids("that use one of these routes", "c7c1a1de-5d0a-5a7b-9c1e-1e6b8f9f2d33")]
_VersionIds = Annotated[
    list[str] | None, _ids("for one of these broker versions", "9e3a7c64-1f27-5d11-a0a5-6d2b1c3e4f50")
]
_Fields = Annotated[_ResultFields | None, _some_of(ResultField, "id", "title", "score")]


class Options(Struct, kw_only=True, frozen=True):
    """What lists and searches have in common beside their text and filters."""

    limit: Annotated[_Limit | None, _rule("a whole number from 1 to 30", "How many at most.", 10)] = DEFAULT_LIMIT
    offset: Annotated[_Offset | None, _OFFSET] = 0
    cursor: Annotated[_Cursor | None, _CURSOR] = None
    sort: Annotated[Sort | None, _SORT] = Sort.RELEVANCE
    exact: Annotated[bool | None, _flag("Search for the words as typed: no corrections, no synonyms.")] = False
    updated_since: Annotated[_Time | None, _TIME] = None
    meta: Annotated[
        bool | None, _flag("Add `meta` beside `results`: total, corrections, ignored words, facets, next cursor.")
    ] = False
    highlight: Annotated[
        bool | None, _flag("Add `snippet` to each result: escaped text with the words found in `<mark>`.")
    ] = False


class Filters(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Conditions that every result meets, as POST has them."""

    category_id: Annotated[str | None, _CATEGORY] = None
    difficulty: _Difficulty = None
    tag_ids: _TagIds = None
    route_ids: _RouteIds = None
    broker_version_ids: _VersionIds = None


class Parameters(Options, kw_only=True, frozen=True):
    """What the query strings of lists and searches have in common."""

    category_id: Annotated[UUID | None, _CATEGORY] = None
    difficulty: _Difficulty = None
    tag_ids: _TagIds = None
    route_ids: _RouteIds = None
    broker_version_ids: _VersionIds = None


class ListParameters(Parameters, kw_only=True, frozen=True):
    """The query string of GET /api/templates."""

    q: Annotated[str, _text(f"{_SOUGHT} Blank counts as omitted.", "weather")] = ""
    fields: Annotated[_SummaryFields | None, _some_of(SummaryField, "id", "title")] = None


class SearchParameters(Parameters, kw_only=True, frozen=True):
    """The query string of GET /api/search."""

    q: Annotated[_NotBlank, _rule("text, not blank and of at most 4000 characters", "Search text.", "weather polliing")]
    fields: _Fields = None


class SuggestParameters(Struct, kw_only=True, frozen=True):
    """The query string of GET /api/suggest."""

    q: Annotated[str, _text("What has been typed so far; blank gives no suggestion.", "receive web", 200)]


class SearchBody(Options, kw_only=True, frozen=True):
    """The body of POST /api/search."""

    query: Annotated[str, _text("Search text; blank for the most recent.", "weather polling")]
    fields: _Fields = None
    filters: Annotated[
        Filters | None, _rule("an object", "Conditions that every result meets.", {"difficulty": "beginner"})
    ] = None
