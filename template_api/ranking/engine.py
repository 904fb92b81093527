"""The search index in memory, and the search in it. tantivy keeps the words of each template and computes BM25.

One thread writes a `SearchIndex`. Each commit makes a new `Ranking`, which never changes: any number of threads may
search in it at once.
"""

import ctypes
import os
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tantivy import DocAddress, Index, IndexWriter, Occur, Query, Searcher
from tantivy import Document as Entry

from template_api.ranking.fields import STOP_STEMS, Document, any_of, filtered, joined, schema, term_query, unscored
from template_api.ranking.meaning import NO_SYNONYMS, Meaning, QueryWord, interpret
from template_api.ranking.tokens import STOP_WORDS, likest, stem, title_likeness, words
from template_api.ranking.vocabulary import Synonyms, Vocabulary, Words
from template_api.records import Found, Page, Place, Sort, Word

Filters = Sequence[Collection[str]]
"""A template passes if it has at least one facet of each filter."""

_K1: Final = 1.2  # of BM25 in tantivy: a word that a template repeats counts at most 1 + _K1 times
# The best templates are ordered again, with their titles. A title that is like the query raises the score by up to
# _TITLE_BONUS (`title_likeness`). A title whose words are in the query raises it by up to _TITLE_COVERED_BONUS; rare
# words count more. The second bonus gained up to 0.008 nDCG on three test collections.
_REORDERED: Final = 60
_TITLE_BONUS: Final = 0.2
_TITLE_COVERED_BONUS: Final = 0.2
_LEAST_SCORE: Final = 1e-6  # of a template that was found, however few words of a long query it has
_LEAST_SHARE: Final = 0.1  # of the best score; a template with less has only words that hardly count
_TERMS_AT_ONCE: Final = 20  # in one query of `_terms_of`: one bit of the score for each, and a score has 24 exact bits
_COMPLETED_WORDS: Final = 200  # words of titles that an unfinished word may become
# tantivy collects documents in so much memory before it writes a part of the index. Its least, 15 MB, holds only 170
# templates of 300 words, so that there are more parts to merge.
_WRITER_BYTES: Final = 30_000_000
_LIBC: Final = ctypes.CDLL(None) if os.name == "posix" else None


class _Indexed(NamedTuple):
    """What a template is ordered by: its title as folded words, their stems, when it was published, its key."""

    key: str
    title: str
    title_terms: tuple[str, ...]
    published: int


class _Candidate(NamedTuple):
    """A template that was found; `row` is its number in the index."""

    score: float
    row: int
    template: _Indexed


_ScoredAddress = tuple[float, DocAddress]
"""What tantivy finds: the score of a template, and where the template is in the index."""
_ORDERS: Final = {
    Sort.RELEVANCE: lambda one: (-one.score, -one.template.published, one.template.key),
    Sort.NEWEST: lambda one: (-one.template.published, one.template.key),
    Sort.TITLE: lambda one: (one.template.title, -one.template.published, one.template.key),
}


class Ranking:
    """One state of the index to search in: its words, its templates by their rows, and the synonyms of words."""

    def __init__(
        self, searcher: Searcher, vocabulary: Vocabulary, templates: Mapping[int, _Indexed], synonyms: Synonyms
    ) -> None:
        self._searcher = searcher
        self._templates = templates
        self._synonyms = synonyms
        self.vocabulary = vocabulary

    def with_synonyms(self, synonyms: Synonyms) -> "Ranking":
        """Return this state of the index, searched with these synonyms."""
        return Ranking(self._searcher, self.vocabulary, self._templates, synonyms)

    def search(
        self, text: str, limit: int, offset: int = 0, filters: Filters = (), *, exact: bool = False,
        since: int | None = None, sort: Sort = Sort.RELEVANCE, place: Place | None = None,
    ) -> Page[str]:  # fmt: skip
        """Return the templates that have a word of the text and pass the filters, best first, at most `limit`.

        A score is a share, from 0 to 1, of the highest possible score for this text. A template that scores less than a
        tenth of the best one is left out, unless it has all rare words of the text. Of templates with equal scores the
        newest comes first, then the one with the lowest key.

        Without a text, `since` finds all templates that have changed since then, and sorting by title finds all; their
        score is 0. `exact` corrects no words. `offset` leaves out the first templates; `place` leaves out those that
        earlier pages have shown, wherever they are in the order now.
        """
        meaning = self._meaning(text, exact=exact)
        query_words = meaning.query_words
        finds_all = not text and (sort is Sort.TITLE or since is not None)
        if limit < 1 or not (query_words or finds_all):
            return Page(ignored=meaning.ignored)
        found = self._find(self._query(text, query_words, filters, since), query_words)
        order = Sort.NEWEST if finds_all and sort is Sort.RELEVANCE else sort
        start = place or Place(offset)
        # The templates that `place` names may be anywhere in the order now, so all are ordered.
        count = len(found) if start.keys else max(start.shown + limit + 1, _REORDERED)
        ordered = self._order(found, query_words, order, count)
        ends = {each.template.key: number for number, each in enumerate(ordered, 1)}
        first = next((ends[key] for key in reversed(start.keys) if key in ends), start.shown)
        hits = self._hits(ordered[first : first + limit], query_words)
        next_place = start.after([hit.template for hit in hits]) if len(ordered) > first + limit else None
        return Page(hits, len(found), meaning.corrected, meaning.ignored, next_place)

    def _meaning(self, text: str, *, exact: bool = False) -> Meaning:
        return interpret(text, self.vocabulary, self._synonyms, exact=exact)

    def _query(self, text: str, query_words: Sequence[QueryWord], filters: Filters, since: int | None) -> Query:
        """Return the query for the words of a text, or for all templates if there is no text."""
        return filtered(joined(map(self._clause, query_words)) if text else Query.all_query(), filters, since)

    def _clause(self, query_word: QueryWord) -> Query:
        """Return the query for a word: it scores as its best option, times how often the text has the word."""
        options = []
        for option in query_word.options:
            weight = query_word.count * option.weight / len(option.terms)  # in BM25, in place of the term's idf
            terms = [Query.boost_query(term_query(term), weight / self.vocabulary.idf(term)) for term in option.terms]
            options.append(terms[0] if len(terms) == 1 else joined(terms, Occur.Must))
        return options[0] if len(options) == 1 else Query.disjunction_max_query(options)

    def _find(self, query: Query, query_words: Sequence[QueryWord]) -> list[_ScoredAddress]:
        """Return what a query finds, best first, without the templates that have only words that hardly count."""
        found: list[_ScoredAddress] = self._searcher.search(query, max(1, self._searcher.num_docs)).hits
        if not found or not query_words:
            return found
        end = bisect_left(found, -_LEAST_SHARE * found[0][0], key=lambda each: -each[0])
        if end == len(found):
            return found
        # Below the least share, templates stay that have all rare words: those at least half as rare as the rarest one.
        least = max(option.rarity for each in query_words for option in each.options) / 2
        rare = [each for each in query_words if any(option.rarity >= least for option in each.options)]
        having_all = joined(map(self._clause, rare), Occur.Must)
        rows = set(self._rows(self._searcher.search(having_all, self._searcher.num_docs).hits))
        below = found[end:]
        return found[:end] + [one for one, row in zip(below, self._rows(below), strict=True) if row in rows]

    def _order(
        self, found: Sequence[_ScoredAddress], query_words: Sequence[QueryWord], order: Sort, count: int
    ) -> list[_Candidate]:
        """Return the first `count` templates in an order. For relevance the best ones are reordered by their titles."""
        if order is Sort.RELEVANCE:
            end = min(count, len(found))
            while 0 < end < len(found) and found[end][0] == found[end - 1][0]:
                end += 1  # of equal scores the newest is to come first, so all of them are compared
            found = found[:end]
        rows = self._rows(found)
        ordered = [_Candidate(score, row, self._templates[row]) for (score, _), row in zip(found, rows, strict=True)]
        ordered.sort(key=_ORDERS[order])
        if order is not Sort.RELEVANCE or not query_words:
            return ordered[:count]
        query = " ".join(text for each in query_words for text in each.options[0].words)
        query_terms = frozenset(term for each in query_words for term in each.options[0].terms)
        best = []
        for each in ordered[:_REORDERED]:
            idfs = {term: self.vocabulary.idf(term) for term in each.template.title_terms}
            # The part of the title that the query has, from 0 to 1; each word counts by its idf.
            covered = (
                sum(idf for term, idf in idfs.items() if term in query_terms) / sum(idfs.values()) if idfs else 0.0
            )
            bonus = 1 + _TITLE_BONUS * title_likeness(query, each.template.title)
            bonus *= 1 + _TITLE_COVERED_BONUS * covered
            best.append(each._replace(score=each.score * bonus))
        return [*sorted(best, key=_ORDERS[order]), *ordered[_REORDERED:count]]

    def _hits(self, page: Sequence[_Candidate], query_words: Sequence[QueryWord]) -> tuple[Found[str], ...]:
        """Return templates with their scores as shares of the highest possible one, and the words that they have."""
        highest = sum(each.count * max(option.rarity for option in each.options) for each in query_words) * (_K1 + 1)
        highest *= (1 + _TITLE_BONUS) * (1 + _TITLE_COVERED_BONUS)
        needed = [[(option, frozenset(option.terms)) for option in each.options] for each in query_words]
        terms = list(frozenset().union(*(terms for options in needed for _, terms in options)))
        terms_of_row = self._terms_of([each.row for each in page], terms)
        hits = []
        for candidate in page:
            held = terms_of_row[candidate.row]
            best = [next((option for option, terms in options if terms <= held), None) for options in needed]
            matched = [option.word(each.typed) for each, option in zip(query_words, best, strict=True) if option]
            share = min(1.0, max(round(candidate.score / highest, 6), _LEAST_SCORE)) if query_words else 0.0
            hits.append(Found(candidate.template.key, share, tuple(matched)))
        return tuple(hits)

    def _terms_of(self, rows: Sequence[int], terms: Sequence[str]) -> dict[int, set[str]]:
        """Return which of some terms each template has, by its row.

        tantivy returns nothing about a template but its score. So the query for each term adds another power of two to
        the score: each term has a bit of the score.
        """
        found: dict[int, set[str]] = {row: set() for row in rows}
        for start in range(0, len(terms) if rows else 0, _TERMS_AT_ONCE):
            part = terms[start : start + _TERMS_AT_ONCE]
            powers = [Query.const_score_query(term_query(term), 2.0**bit) for bit, term in enumerate(part)]
            query = Query.boolean_query(
                [(Occur.Must, unscored(any_of("row", rows))), *((Occur.Should, power) for power in powers)]
            )
            hits = self._searcher.search(query, len(rows), count=False).hits
            for (score, _), row in zip(hits, self._rows(hits), strict=True):
                bits = int(score)
                found[row].update([term for bit, term in enumerate(part) if bits >> bit & 1])
        return found

    def _rows(self, found: Sequence[_ScoredAddress]) -> list[int]:
        """Return the rows of templates, in one read of the index."""
        rows = self._searcher.fast_field_values("row", [address for _, address in found])
        return [int(row or 0) for row in rows]

    def suggest(self, text: str, limit: int) -> tuple[tuple[str, ...], tuple[Word, ...]]:
        """Return the keys of templates whose title has a word that begins with the last word of the text.

        They are at most `limit`, those with the titles most like the text first. If no title has such a word, the
        result is that of `search`. Beside the keys are the words of the text that were corrected.
        """
        *before, last = words(text) or [""]
        completed = [word for word, _ in self._searcher.terms_with_prefix("title", last, limit=_COMPLETED_WORDS)]
        if not last or not completed:
            page = self.search(text, limit)
            return tuple(each.template for each in page.found), page.corrected
        meaning = self._meaning(" ".join(before))
        others = [(Occur.Should, self._clause(each)) for each in meaning.query_words]
        query = Query.boolean_query([(Occur.Must, unscored(any_of("title", completed))), *others])
        found = self._searcher.search(query, self._searcher.num_docs).hits
        best = [each.template for each in self._order(found, (), Sort.RELEVANCE, _REORDERED)]
        best.sort(key=lambda each: -title_likeness(" ".join([*before, last]), each.title))
        return tuple(each.key for each in best[:limit]), meaning.corrected

    def near(self, text: str, limit: int) -> tuple[str, ...]:
        """Return the keys of at most `limit` templates whose titles are like a text."""
        return likest(text, {each.key: each.title for each in self._templates.values()}, limit)

    def facets(
        self, text: str = "", filters: Filters = (), *, exact: bool = False, since: int | None = None
    ) -> dict[str, int]:
        """Return how many of the templates that `search` finds have each facet. Without a text all templates count."""
        query_words = self._meaning(text, exact=exact).query_words
        query = self._query(text, query_words, filters, since)
        found = self._find(query, query_words)
        result: Any = self._searcher.search(query, 1)  # tantivy 0.27 does not declare its `count`
        if len(found) < result.count:  # some were left out for their score
            query = any_of("row", self._rows(found))
        return dict(self._searcher.terms_with_prefix("facets", "", filter_query=query))


class SearchIndex:
    """An index in memory; `ranking` is its state at the last commit."""

    def __init__(self) -> None:
        self._index = Index(schema())
        self._index.config_reader("manual")
        self._writer: IndexWriter | None = None  # only from the first change to its commit, since it holds 25 MB
        self._new_words = set(STOP_WORDS)  # of documents that were put since the last commit
        self._templates: dict[int, _Indexed] = {}
        self._rows: dict[str, int] = {}
        self._next_row = 0
        searcher = self._index.searcher()
        self.ranking = Ranking(searcher, Vocabulary(searcher, Words()), {}, NO_SYNONYMS)

    def put(self, document: Document) -> None:
        """Add a document, or replace the one with its key, from the next commit on."""
        self.remove(document.key)
        row = self._next_row
        self._next_row += 1
        texts = document.texts
        entry = Entry(
            row=row, text=texts.text, stops=texts.stops, words=texts.words, title=texts.title,
            facets=list(document.facets), updated=_microseconds(document.updated_at),
        )  # fmt: skip
        self._writing().add_document(entry)
        terms = dict.fromkeys(term for term in map(stem, texts.title.split()) if term not in STOP_STEMS)
        self._rows[document.key] = row
        self._templates[row] = _Indexed(document.key, texts.title, tuple(terms), _microseconds(document.published_at))
        self._new_words.update(texts.words.split())

    def remove(self, key: str) -> None:
        """Remove the document with this key, if there is one, from the next commit on."""
        row = self._rows.pop(key, None)
        if row is not None:
            self._writing().delete_documents_by_term("row", row)
            del self._templates[row]

    def commit(self) -> None:
        """Make a new `ranking`, with what was put and without what was removed."""
        writer, self._writer = self._writing(), None
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        searcher = self._index.searcher()
        vocabulary = Vocabulary(searcher, Words(self._new_words, self.ranking.vocabulary.spelling))
        self.ranking = Ranking(searcher, vocabulary, self._templates.copy(), NO_SYNONYMS)
        self._new_words = set()
        if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):  # otherwise glibc holds 90 MB after 10,000 templates
            _LIBC.malloc_trim(0)

    def _writing(self) -> IndexWriter:
        if self._writer is None:
            self._writer = self._index.writer(_WRITER_BYTES, 1)
        return self._writer


def _microseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1_000_000) if time else 0
