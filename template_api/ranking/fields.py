"""What the index holds of a template, and the parts that queries over it are made of.

Pure; any thread may call it. Queries are built from tantivy's query objects, never from its query syntax, so no text of
a caller can change their shape. The weighted fields of a template count as one text, in which a title word occurs 3.5
times: S. Robertson, H. Zaragoza, M. Taylor, "Simple BM25 extension to multiple weighted fields", CIKM 2004.

| field | holds |
|---|---|
| `key` | the template's key |
| `text` | the stems of its words, each repeated by its weight; stop words are left out and add nothing to the length |
| `stops` | its stop words, likewise, for queries that consist of nothing else |
| `words` | its words as they occur, each once: what the vocabulary is read from |
| `title` | the words of its title |
| `facets` | what filters ask for |
| `published`, `tie` | order among equals: the newest first, then by key |
| `title_order` | the first letters of the title, as a number that sorts like them |
| `updated` | when the template last changed, in microseconds since 1970 |
| `mark` | its number in the place where a page ended |
| `changed` | the library's version that it came with |
| `state` | in one document that no query finds: how far the index is |
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final

from tantivy import Document as Entry
from tantivy import FieldType, Occur, Query, Schema, SchemaBuilder

from template_api.ranking.tokens import STOP_WORDS, stem, words
from template_api.records import mark_of

FORMAT: Final = 3
"""Raised when the fields or what they hold change: an index of another format is not opened."""

STATE_KEY: Final = ":state"
# What a word weighs, where one of the content weighs _CONTENT_WEIGHT, 2.
_TITLE_WEIGHT: Final = 7
_LABELS_WEIGHT: Final = 5
_SHORT_DESCRIPTION_WEIGHT: Final = 3
_CONTENT_WEIGHT: Final = 2
_CELLS_WEIGHT: Final = 1
# Comparing sixty titles stays quick, however long they are.
_TITLE_WORDS: Final = 50
_FACET_LENGTH: Final = 200  # no id or word of a template is longer; tantivy refuses 64 KiB
_STOP_STEMS: Final = frozenset(map(stem, STOP_WORDS))
_ALL_TOGETHER: Final = 32  # values of one filter; more are quicker looked up together


@dataclass(frozen=True, slots=True)
class Document:
    """A template as the ranking sees it; `labels` are the names of its tags, routes, category and broker version.

    `published_at` (RFC 3339) orders equals, `facets` are what filters ask for, `changed` is the library's version that
    the template came with, `updated_at` when that was.
    """

    key: str
    title: str
    labels: str
    short_description: str
    content: str
    cells: str
    published_at: str = ""
    facets: tuple[str, ...] = ()
    changed: int = 0
    updated_at: str = ""


@cache
def schema() -> Schema:
    """Return the index's schema."""
    builder = SchemaBuilder()
    builder.add_text_field("key", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("text", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("stops", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="basic")
    builder.add_text_field("title", stored=True, tokenizer_name="whitespace", index_option="basic")
    builder.add_text_field("facets", tokenizer_name="raw", index_option="basic")
    builder.add_integer_field("published", fast=True)
    builder.add_integer_field("tie", fast=True)
    for name in ("title_order", "updated", "mark", "changed"):
        builder.add_integer_field(name, fast=True)
    builder.add_text_field("state", stored=True, tokenizer_name="raw", index_option="basic")
    return builder.build()


def entry(document: Document) -> tuple[Entry, Collection[str]]:
    """Return what the index keeps of a template, and the words that it has."""
    weighted = [
        (document.content, _CONTENT_WEIGHT),
        (document.title, _TITLE_WEIGHT),
        (document.labels, _LABELS_WEIGHT),
        (document.cells, _CELLS_WEIGHT),
    ]
    # Words of a description that is just the beginning of the content are not counted twice.
    if not document.content.lstrip().startswith(document.short_description.strip().rstrip(".… ")):
        weighted.append((document.short_description, _SHORT_DESCRIPTION_WEIGHT))
    counted: Counter[str] = Counter()
    for text, weight in weighted:
        counted.update(words(text) * weight)
    weights: dict[str, int] = {}
    for word, weight in counted.items():
        term = stem(word)
        weights[term] = weights.get(term, 0) + weight
    # Half weights are rounded up: a word of the cells only counts once.
    repeated = {term: f"{term} " * ((weight + 1) // 2) for term, weight in weights.items()}
    stops = repeated.keys() & _STOP_STEMS
    title = " ".join(words(document.title)[:_TITLE_WORDS])
    kept = Entry(
        key=document.key,
        text="".join([text for term, text in repeated.items() if term not in stops]),
        stops="".join([repeated[term] for term in stops]),
        words=" ".join(counted),
        title=title,
        title_order=_leading(title),
        facets=list(document.facets),
        published=_microseconds(document.published_at),
        updated=_microseconds(document.updated_at),
        tie=_leading(document.key),
        mark=mark_of(document.key),
        changed=document.changed,
    )
    return kept, counted.keys()


def _leading(text: str) -> int:
    """Return the first seven bytes of a text as a number."""
    return int.from_bytes(text.encode()[:7].ljust(7, b"\0"), "big")


def _microseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1_000_000) if time else 0


def state_entry(state: str) -> Entry:
    """Return the document that says how far the index is."""
    return Entry(key=STATE_KEY, state=state)


def telling_terms(title: str) -> dict[str, None]:
    """Return the stems of a title's words in their order, each once, stop words aside."""
    return dict.fromkeys(term for term in map(stem, title.split()) if term not in _STOP_STEMS)


def term_field(term: str) -> str:
    """Return the field that a stem is searched in."""
    return "stops" if term in _STOP_STEMS else "text"


def term_query(term: str) -> Query:
    """Return the query for the templates that have a stem."""
    return Query.term_query(schema(), term_field(term), term, "freq")


def filtered(query: Query, filters: Iterable[Collection[str]], since: int | None = None) -> Query:
    """Return a query that finds, with the same scores, only what has one facet of each filter, changed since a time."""
    passed = [(Occur.Must, unscored(any_of("facets", facets))) for facets in filters]
    if since is not None:
        passed.append((Occur.Must, unscored(Query.range_query(schema(), "updated", FieldType.Integer, since))))
    return Query.boolean_query([(Occur.Must, query), *passed]) if passed else query


def every() -> Query:
    """Return the query for all templates."""
    return Query.boolean_query([(Occur.Must, Query.all_query()), (Occur.MustNot, any_of("key", [STATE_KEY]))])


def any_of(field: str, values: Collection[str]) -> Query:
    """Return the query for what has one of some values in a field."""
    usable = [value for value in values if len(value) <= _FACET_LENGTH]
    if len(usable) > _ALL_TOGETHER:
        return Query.term_set_query(schema(), field, usable)
    return either([Query.term_query(schema(), field, value, "basic") for value in usable])


def either(queries: Iterable[Query]) -> Query:
    """Return the query for what one of several finds; their scores add up."""
    return Query.boolean_query([(Occur.Should, query) for query in queries])


def all_of(queries: Iterable[Query]) -> Query:
    """Return the query for what all of several find; their scores add up."""
    return Query.boolean_query([(Occur.Must, query) for query in queries])


def unscored(query: Query) -> Query:
    """Return a query that finds the same and adds nothing to the score."""
    return Query.const_score_query(query, 0.0)
