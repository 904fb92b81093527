"""What the index holds of a template, and the parts that queries over it are made of.

Pure; any thread may call it. Queries are built from tantivy's query objects, never from its query syntax, so no text of
a caller can change their shape. The weighted fields of a template count as one text, in which a title word occurs 3.5
times: S. Robertson, H. Zaragoza, M. Taylor, "Simple BM25 extension to multiple weighted fields", CIKM 2004.

| field | holds |
|---|---|
| `row` | the template's number: `engine` has its key, title and date |
| `text` | the stems of its words, each repeated by its weight; stop words are left out and add nothing to the length |
| `stops` | its stop words, likewise, for queries that consist of nothing else |
| `words` | its words as they occur, each once: what the vocabulary is read from |
| `title` | the words of its title |
| `facets` | what filters ask for |
| `updated` | when the template last changed, in microseconds since 1970 |

The first texts are made at the import (`prepared`): splitting and stemming would take three quarters of the time in
which an index is built.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec
from tantivy import FieldType, Occur, Query, Schema, SchemaBuilder

from template_api.ranking.tokens import STOP_WORDS, stem, words

# What a word weighs, where one of the content weighs _CONTENT_WEIGHT, 2.
_TITLE_WEIGHT: Final = 7
_LABELS_WEIGHT: Final = 5
_SHORT_DESCRIPTION_WEIGHT: Final = 3
_CONTENT_WEIGHT: Final = 2
_CELLS_WEIGHT: Final = 1
# Comparing sixty titles stays quick, however long they are.
_TITLE_WORDS: Final = 50
STOP_STEMS: Final = frozenset(map(stem, STOP_WORDS))
_ALL_TOGETHER: Final = 32  # values of one filter; more are quicker looked up together


class Prepared(msgspec.Struct, frozen=True, array_like=True):
    """The texts of a template as the index takes them, words separated by spaces."""

    title: str
    text: str
    stops: str
    words: str


@dataclass(frozen=True, slots=True)
class Document:
    """A template as the ranking sees it.

    `published_at` (RFC 3339) orders equals, `facets` are what filters ask for, `updated_at` is when it last changed.
    """

    key: str
    texts: Prepared
    published_at: str = ""
    facets: tuple[str, ...] = ()
    updated_at: str = ""


def prepared(title: str, labels: str, short_description: str, content: str, cells: str) -> Prepared:
    """Return what the index keeps of the texts of a template.

    `labels` are the names of its tags, routes, category and broker version, `cells` the texts of its notebooks.
    """
    weighted = [
        (content, _CONTENT_WEIGHT), (title, _TITLE_WEIGHT), (labels, _LABELS_WEIGHT), (cells, _CELLS_WEIGHT)
    ]  # fmt: skip
    # Words of a description that is just the beginning of the content are not counted twice.
    if not content.lstrip().startswith(short_description.strip().rstrip(".… ")):
        weighted.append((short_description, _SHORT_DESCRIPTION_WEIGHT))
    counted: Counter[str] = Counter()
    for text, weight in weighted:
        counted.update(words(text) * weight)
    weights: Counter[str] = Counter()
    for word, weight in counted.items():
        weights[stem(word)] += weight
    # Half weights are rounded up: a word of the cells only counts once.
    repeated = {term: f"{term} " * ((weight + 1) // 2) for term, weight in weights.items()}
    stops = repeated.keys() & STOP_STEMS
    return Prepared(
        " ".join(words(title)[:_TITLE_WORDS]),
        "".join([text for term, text in repeated.items() if term not in stops]),
        "".join([repeated[term] for term in sorted(stops)]),
        " ".join(counted),
    )


@cache
def schema() -> Schema:
    """Return the index's schema."""
    builder = SchemaBuilder()
    builder.add_integer_field("row", fast=True, indexed=True)
    builder.add_text_field("text", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("stops", tokenizer_name="whitespace", index_option="freq")
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="basic")
    builder.add_text_field("title", tokenizer_name="whitespace", index_option="basic")
    builder.add_text_field("facets", tokenizer_name="raw", index_option="basic")
    builder.add_integer_field("updated", fast=True)
    return builder.build()


def term_field(term: str) -> str:
    """Return the field that a stem is searched in."""
    return "stops" if term in STOP_STEMS else "text"


def term_query(term: str) -> Query:
    """Return the query for the templates that have a stem."""
    return Query.term_query(schema(), term_field(term), term, "freq")


def filtered(query: Query, filters: Iterable[Collection[str]], since: int | None = None) -> Query:
    """Return a query that finds, with the same scores, only what has one facet of each filter, changed since a time."""
    passed = [(Occur.Must, unscored(any_of("facets", facets))) for facets in filters]
    if since is not None:
        passed.append((Occur.Must, unscored(Query.range_query(schema(), "updated", FieldType.Integer, since))))
    return Query.boolean_query([(Occur.Must, query), *passed]) if passed else query


def any_of(field: str, values: Collection[str | int]) -> Query:
    """Return the query for what has one of some values in a field."""
    if len(values) > _ALL_TOGETHER:
        return Query.term_set_query(schema(), field, list(values))
    return joined([Query.term_query(schema(), field, value, "basic") for value in values])


def joined(queries: Iterable[Query], occur: Occur = Occur.Should) -> Query:
    """Return the query for what one of several finds, or all of them (`Occur.Must`); their scores add up."""
    return Query.boolean_query([(occur, query) for query in queries])


def unscored(query: Query) -> Query:
    """Return a query that finds the same and adds nothing to the score."""
    return Query.const_score_query(query, 0.0)
