"""The index in memory, and the ranking of each of its states. Posting lists and BM25 are tantivy's, the rest is ours.

`SearchIndex` is written by one thread; each commit makes a new `Ranking`, which never changes: any number of threads
may search in it at once.
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
"""What a template must have: one facet of each filter."""

_K1: Final = 1.2  # tantivy's, the customary value
# The best templates are reordered by their titles. A title that is like the query raises the score by up to a fifth
# (`title_likeness`), and one whose words the query has by up to another fifth; there rare words count more. The second
# bonus gained up to 0.008 nDCG on three test collections.
_REORDERED: Final = 60
_TITLE_BONUS: Final = 0.2
_TITLE_COVERED_BONUS: Final = 0.2
# The least score of a template that was found, however few words of a long query it has.
_LEAST_SCORE: Final = 1e-6
_FLOOR: Final = 0.1  # of the best score; a template below it only has words that hardly count
_BITS: Final = 20  # terms that one query looks up, a bit of the score each; scores are exact up to 24 bits
_SUGGESTED_WORDS: Final = 200  # words of titles that an unfinished word may become
# Documents are held until a part of the index is complete. With the least that tantivy takes, 15 MB, a part has 170
# templates of 300 words, and there are so many more parts to merge.
_WRITER_BYTES: Final = 30_000_000
_LIBC: Final = ctypes.CDLL(None) if os.name == "posix" else None


class _Indexed(NamedTuple):
    """What a template is ordered by beside its score: words of its title, folded, and their stems; its time."""

    key: str
    title: str
    terms: tuple[str, ...]
    newest: int


class _Candidate(NamedTuple):
    """A template that was found; `row` is its number in the index."""

    score: float
    row: int
    template: _Indexed


_ScoredAddress = tuple[float, DocAddress]
"""A template that a query finds: its score and where it is."""
_ORDERS: Final = {
    Sort.RELEVANCE: lambda one: (-one.score, -one.template.newest, one.template.key),
    Sort.NEWEST: lambda one: (-one.template.newest, one.template.key),
    Sort.TITLE: lambda one: (one.template.title, -one.template.newest, one.template.key),
}


class Ranking:
    """One state of the index: its words, its templates by their rows, and the synonyms that are searched too."""

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
        """Return at most `limit` templates that have a word of the text and pass the filters, best first.

        A score is a share, from 0 to 1, of the highest possible score for this text. A template that scores less than a
        tenth of the best one is left out, unless it has all rare words of the text. Of templates with equal scores the
        newest comes first, then the one with the lowest key.

        Without a text, `since` finds all templates that have changed since then, and sorting by title finds all; their
        score is 0. `offset` leaves out the first ones, `place` those that were shown before. `exact` corrects no
        words.
        """
        meaning = self._meaning(text, exact=exact)
        wanted = meaning.wanted
        takes_all = not text and (sort is Sort.TITLE or since is not None)
        if limit < 1 or not (wanted or takes_all):
            return Page(ignored=meaning.ignored)
        found = self._found(self._query(text, wanted, filters, since), wanted)
        order = Sort.NEWEST if takes_all and sort is Sort.RELEVANCE else sort
        start = place or Place(offset)
        # All are ordered if there is a place: a template that was shown before it may be anywhere now.
        ordered = self._ordered(
            found, wanted, order, len(found) if start.keys else max(start.shown + limit + 1, _REORDERED)
        )
        behind = {each.template.key: number for number, each in enumerate(ordered, 1)}
        first = next((behind[key] for key in reversed(start.keys) if key in behind), start.shown)
        hits = self._hits(ordered[first : first + limit], wanted)
        following = start.after([hit.template for hit in hits]) if len(ordered) > first + limit else None
        return Page(hits, len(found), meaning.corrected, meaning.ignored, following)

    def suggest(self, text: str, limit: int) -> tuple[tuple[str, ...], tuple[Word, ...]]:
        """Return the keys of at most `limit` templates whose title has a word that begins with the text's last one.

        Those come first whose titles are most like the text. Where no title has such a word, the result is that of
        `search`. Beside the keys are the words that were read otherwise than typed.
        """
        *before, last = words(text) or [""]
        begun = [word for word, _ in self._searcher.terms_with_prefix("title", last, limit=_SUGGESTED_WORDS)]
        if not last or not begun:
            ranked = self.search(text, limit)
            return tuple(each.template for each in ranked.found), ranked.corrected
        meaning = self._meaning(" ".join(before))
        others = [(Occur.Should, self._clause(each)) for each in meaning.wanted]
        query = Query.boolean_query([(Occur.Must, unscored(any_of("title", begun))), *others])
        found = self._searcher.search(query, self._searcher.num_docs).hits
        best = [each.template for each in self._ordered(found, (), Sort.RELEVANCE, _REORDERED)]
        best.sort(key=lambda each: -title_likeness(" ".join([*before, last]), each.title))
        return tuple(each.key for each in best[:limit]), meaning.corrected

    def near(self, text: str, limit: int) -> tuple[str, ...]:
        """Return the keys of at most `limit` templates whose titles are like a text."""
        return likest(text, {each.key: each.title for each in self._templates.values()}, limit)

    def facets(
        self, text: str = "", filters: Filters = (), *, exact: bool = False, since: int | None = None
    ) -> dict[str, int]:
        """Return how many of the templates that `search` finds have each facet. Without a text all templates count."""
        wanted = self._meaning(text, exact=exact).wanted
        query = self._query(text, wanted, filters, since)
        found = self._found(query, wanted)
        result: Any = self._searcher.search(query, 1)  # tantivy 0.27 does not declare its `count`
        if len(found) < result.count:
            query = any_of("row", self._rows(found))
        return dict(self._searcher.terms_with_prefix("facets", "", filter_query=query))

    def _meaning(self, text: str, *, exact: bool = False) -> Meaning:
        return interpret(text, self.vocabulary, self._synonyms, exact=exact)

    def _query(self, text: str, wanted: Sequence[QueryWord], filters: Filters, since: int | None) -> Query:
        """Return the query for the words of a text, or for all templates where there is no text."""
        return filtered(joined(map(self._clause, wanted)) if text else Query.all_query(), filters, since)

    def _clause(self, wanted: QueryWord) -> Query:
        """Return the query for a word. Of its options the best counts, times how often the word occurs in the text."""
        options = []
        for option in wanted.options:
            weight = wanted.count * option.weight / len(option.terms)  # in the place of the term's idf in BM25
            terms = [Query.boost_query(term_query(term), weight / self.vocabulary.idf(term)) for term in option.terms]
            options.append(terms[0] if len(terms) == 1 else joined(terms, Occur.Must))
        return options[0] if len(options) == 1 else Query.disjunction_max_query(options)

    def _found(self, query: Query, wanted: Sequence[QueryWord]) -> list[_ScoredAddress]:
        """Return what a query finds, best first, without templates that only have words that hardly count."""
        found: list[_ScoredAddress] = self._searcher.search(query, max(1, self._searcher.num_docs)).hits
        end = bisect_left(found, -_FLOOR * found[0][0], key=lambda each: -each[0]) if found and wanted else len(found)
        if end == len(found):
            return found
        # Below the floor, those stay that have all rare words: words at least half as rare as the rarest one.
        least = max(option.rarity for each in wanted for option in each.options) / 2
        rare = [each for each in wanted if any(option.rarity >= least for option in each.options)]
        having_all = joined(map(self._clause, rare), Occur.Must)
        having = set(self._rows(self._searcher.search(having_all, self._searcher.num_docs).hits))
        others = found[end:]
        return found[:end] + [one for one, row in zip(others, self._rows(others), strict=True) if row in having]

    def _ordered(
        self, found: Sequence[_ScoredAddress], wanted: Sequence[QueryWord], order: Sort, count: int
    ) -> list[_Candidate]:
        """Return the first `count` templates in an order. By relevance, titles reorder the best ones."""
        end = len(found) if order is not Sort.RELEVANCE else min(count, len(found))
        while 0 < end < len(found) and found[end][0] == found[end - 1][0]:
            end += 1
        found = found[:end]
        rows = self._rows(found)
        ordered = [_Candidate(score, row, self._templates[row]) for (score, _), row in zip(found, rows, strict=True)]
        ordered.sort(key=_ORDERS[order])
        if order is not Sort.RELEVANCE or not wanted:
            return ordered[:count]
        query = " ".join(text for each in wanted for text in each.options[0].words)
        asked = frozenset(term for each in wanted for term in each.options[0].terms)
        top = []
        for each in ordered[:_REORDERED]:
            idfs = {term: self.vocabulary.idf(term) for term in each.template.terms}
            # How much of the title is asked for, 0 to 1, each of its words counting by its idf.
            covered = sum(idf for term, idf in idfs.items() if term in asked) / sum(idfs.values()) if idfs else 0.0
            bonus = 1 + _TITLE_BONUS * title_likeness(query, each.template.title)
            bonus *= 1 + _TITLE_COVERED_BONUS * covered
            top.append(each._replace(score=each.score * bonus))
        return [*sorted(top, key=_ORDERS[order]), *ordered[_REORDERED:count]]

    def _hits(self, page: Sequence[_Candidate], wanted: Sequence[QueryWord]) -> tuple[Found[str], ...]:
        """Return templates with their shares of the ideal score, and the words that they have."""
        ideal = sum(each.count * max(option.rarity for option in each.options) for each in wanted) * (_K1 + 1)
        ideal *= (1 + _TITLE_BONUS) * (1 + _TITLE_COVERED_BONUS)
        # One query finds out which terms each template has: a term adds a power of two to the score, so each bit of the
        # score is a term.
        terms = list({term for each in wanted for option in each.options for term in option.terms})
        bits = {term: 1 << number for number, term in enumerate(terms)}
        needed = [[(one, sum({bits[term] for term in one.terms})) for one in each.options] for each in wanted]
        bits_of_row = {each.row: 0 for each in page}
        for start in range(0, len(terms) if page else 0, _BITS):
            here = terms[start : start + _BITS]
            flags = [Query.const_score_query(term_query(term), 2.0**bit) for bit, term in enumerate(here)]
            shown = (Occur.Must, unscored(any_of("row", list(bits_of_row))))
            query = Query.boolean_query([shown, *((Occur.Should, flag) for flag in flags)])
            hits = self._searcher.search(query, len(page), count=False).hits
            for (score, _), row in zip(hits, self._rows(hits), strict=True):
                bits_of_row[row] |= int(score) << start
        found = []
        for candidate in page:
            has = bits_of_row[candidate.row]
            options = [next((one for one, mask in each if has & mask == mask), None) for each in needed]
            both = zip(wanted, options, strict=True)
            matched = tuple(option.word(each.typed) for each, option in both if option)
            share = min(1.0, max(round(candidate.score / ideal, 6), _LEAST_SCORE)) if wanted else 0.0
            found.append(Found(candidate.template.key, share, matched))
        return tuple(found)

    def _rows(self, found: Sequence[_ScoredAddress]) -> list[int]:
        rows = self._searcher.fast_field_values("row", [address for _, address in found])
        return [int(row or 0) for row in rows]


class SearchIndex:
    """An index in memory; `ranking` is its state at the last commit."""

    def __init__(self) -> None:
        self._index = Index(schema())
        self._index.config_reader("manual")
        self._writer: IndexWriter | None = None  # from the first change to its commit: it holds 25 MB
        self._added = set(STOP_WORDS)  # words, since the last commit
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
        self._added.update(texts.words.split())

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
        vocabulary = Vocabulary(searcher, Words(self._added, self.ranking.vocabulary.spelling))
        self.ranking = Ranking(searcher, vocabulary, self._templates.copy(), NO_SYNONYMS)
        self._added = set()
        if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):  # glibc kept 90 MB after 10,000 templates
            _LIBC.malloc_trim(0)

    def _writing(self) -> IndexWriter:
        if self._writer is None:
            self._writer = self._index.writer(_WRITER_BYTES, 1)
        return self._writer


def _microseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1_000_000) if time else 0
