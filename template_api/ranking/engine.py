"""The index in memory, and the ranking of each of its states. Posting lists and BM25 are tantivy's, the rest is ours.

`SearchIndex` is written by one thread; each commit makes a new `Ranking`, which never changes: any number of threads
may search in it at once.
"""

import ctypes
import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from tantivy import DocAddress, Index, IndexWriter, Occur, Query, Searcher

from template_api.ranking.fields import (
    Document,
    all_of,
    any_of,
    either,
    entry,
    filtered,
    leading,
    schema,
    term_query,
    unscored,
)
from template_api.ranking.meaning import Meaning, QueryWord, interpret
from template_api.ranking.synonyms import Synonyms
from template_api.ranking.tokens import STOP_WORDS, likest, title_likeness, words
from template_api.ranking.vocabulary import SHORTEST_PART, Vocabulary, Words
from template_api.records import Place, Sort, Word

Filters = Sequence[Collection[str]]
"""What a template must have: one facet of each filter."""

_K1: Final = 1.2  # tantivy's, the customary value
# How many of the best are reordered by their titles. A title adds up to a fifth for words that it shares with the
# query, rare or not, and up to a fifth for the part of it that the query has, where common words count less. The second
# bonus gained up to 0.008 nDCG on three test collections.
_REORDERED: Final = 60
_TITLE_BONUS: Final = 0.2
_TITLE_COVERED_BONUS: Final = 0.2
# The least score of a template that was found, however few words of a long query it has.
_LEAST_SCORE: Final = 1e-6
_FLOOR: Final = 0.1  # of the best score; a template below it only has words that hardly count
_BITS: Final = 20  # words looked up in one query; scores are exact up to 24 bits
_SUGGESTED_WORDS: Final = 200  # words of titles that an unfinished word may become
# Documents are held until a part of the index is complete. With the least that tantivy takes, 15 MB, a part has 170
# templates of 300 words, and there are so many more parts to merge.
_WRITER_BYTES: Final = 30_000_000
_LIBC: Final = ctypes.CDLL(None) if os.name == "posix" else None


@dataclass(frozen=True, slots=True)
class Hit:
    """A template found: its key, its score (above 0, at most 1) and the words it has."""

    key: str
    score: float
    matched: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The templates asked for, in order, how many were found in all, and where the page ended, None at the end.

    `corrected` are the words of the query that others were searched for in place of, `ignored` those that nothing
    was found for.
    """

    hits: tuple[Hit, ...] = ()
    total: int = 0
    corrected: tuple[Word, ...] = ()
    ignored: tuple[str, ...] = ()
    place: Place | None = None


_Found = tuple[float, DocAddress]
"""A template that a query finds: its score and where it is."""


class _Candidate(NamedTuple):
    """A template found; `newest`, `title` (first letters, words) and `tie` order it. A tuple, as many are made."""

    address: DocAddress
    score: float
    newest: int
    tie: int
    title: tuple[int, str] = (0, "")

    @property
    def place(self) -> tuple[int, int]:
        """Where it is in this state of the index."""
        return self.address.segment_ord, self.address.doc

    def rank(self) -> tuple[float, int, int]:
        """Order by score, of equals the newest first."""
        return -self.score, -self.newest, self.tie


_NO_SYNONYMS: Final = Synonyms()


class Ranking:
    """One state of the index, its words, and what words of a query are also searched as."""

    def __init__(self, searcher: Searcher, vocabulary: Vocabulary, synonyms: Synonyms = _NO_SYNONYMS) -> None:
        self._searcher = searcher
        self._synonyms = synonyms
        self.vocabulary = vocabulary

    @classmethod
    def of(cls, searcher: Searcher) -> "Ranking":
        """Return the ranking of one state of the index; 0.1 s for 50,000 words."""
        words = (word for word, _ in searcher.terms_with_prefix("words", ""))
        return cls(searcher, Vocabulary(searcher, Words(chain(STOP_WORDS, words))))

    def with_synonyms(self, synonyms: Synonyms) -> "Ranking":
        """Return this state of the index, searched with these synonyms."""
        return Ranking(self._searcher, self.vocabulary, synonyms)

    def search(
        self, text: str, limit: int, offset: int = 0, filters: Filters = (), *, exact: bool = False,
        since: int | None = None, sort: Sort = Sort.RELEVANCE, place: Place | None = None,
    ) -> Ranked:  # fmt: skip
        """Return at most `limit` templates that have a word of the text and pass the filters, best first.

        A score is the share of what a template could reach at most for this text. What scores less than a tenth of the
        best is left out, unless it has all rare words of the text. `offset` leaves out that many of the first, `place`
        what was shown before it. Of equals the newest comes first, then the one with the lowest key. Without a text all
        that changed `since` are found, or all in the order of titles, with a score of 0. `exact` keeps the words.
        """
        meaning = self._meaning(text, exact=exact)
        wanted = meaning.wanted
        takes_all = not text and (sort is Sort.TITLE or since is not None)
        if limit < 1 or not (wanted or takes_all):
            return Ranked(ignored=meaning.ignored)
        order = sort if wanted or sort is Sort.TITLE else Sort.NEWEST
        query = filtered(Query.all_query() if takes_all else either(map(self._clause, wanted)), filters, since)
        found = self._found(query, wanted)
        begin = place or Place(offset)
        page = self._page(found, wanted, order, begin, limit)
        ideal = sum(each.count * max(option.rarity for option in each.options) for each in wanted) * (_K1 + 1)
        ideal *= (1 + _TITLE_BONUS) * (1 + _TITLE_COVERED_BONUS)
        hits = tuple(self._hits(page[:limit], wanted, ideal))
        ended = begin.after([hit.key for hit in hits]) if len(page) > limit else None
        return Ranked(hits, len(found), meaning.corrected, meaning.ignored, ended)

    def suggest(self, text: str, limit: int) -> tuple[tuple[str, ...], tuple[Word, ...]]:
        """Return the keys of at most `limit` templates whose title has a word that begins with the text's last one.

        Those come first that have the words before it too, as `search` would find them, in titles like the text. A last
        word that was torn apart (`web ho`) is also read without its space, one run together (`homeass`) with one.
        Where no title has such a word, the result is that of `search`. Beside the keys is what was read otherwise than
        typed.
        """
        keys: dict[str, None] = {}
        corrected: tuple[Word, ...] = ()
        for before, last, typed, part in self._readings(words(text)):
            if keys and part:
                break  # what is run together is parted only where nothing begins so
            begun = [word for word, _ in self._searcher.terms_with_prefix("title", last, limit=_SUGGESTED_WORDS)]
            meaning = self._meaning(" ".join(before))
            found = self._titled(begun, meaning, [*before, last]) if begun else []
            if found and not keys:
                changed = () if typed == last else (Word(typed, f"{part} {begun[0]}".strip()),)
                corrected = (*meaning.corrected, *changed)
            keys |= dict.fromkeys(found)
        if keys:
            return tuple(keys)[:limit], corrected
        ranked = self.search(text, limit)
        return tuple(hit.key for hit in ranked.hits), ranked.corrected

    def near(self, text: str, limit: int) -> tuple[str, ...]:
        """Return the keys of at most `limit` templates with a word in the title that is like one of a text."""
        titled = [word for word, _ in self._searcher.terms_with_prefix("title", "")]
        keys: dict[str, None] = {}
        for like in likest(words(text), [word for word in titled if word not in STOP_WORDS]):
            for _, address in self._searcher.search(any_of("title", [like]), limit).hits:
                keys[self._searcher.doc(address).get_first("key") or ""] = None
        return tuple(keys)[:limit]

    def _readings(self, typed: list[str]) -> Iterator[tuple[list[str], str, str, str]]:
        """Yield the ways to read a text whose last word is unfinished.

        Each is the words before, the last one, that one as typed, and the part of it that is now among those before.
        """
        if len(typed) > 1:
            yield typed[:-2], "".join(typed[-2:]), " ".join(typed[-2:]), ""
        if typed:
            *before, last = typed
            yield before, last, last, ""
            for at in range(SHORTEST_PART, len(last)):
                part = last[:at]
                if self.vocabulary.has(part) and part not in STOP_WORDS:
                    yield [*before, part], last[at:], last, part

    def _titled(self, begun: Sequence[str], before: Meaning, typed: Sequence[str]) -> list[str]:
        """Return the keys of templates with one of some words in the title, those like what was typed first."""
        titled = (Occur.Must, unscored(any_of("title", begun)))
        others = [(Occur.Should, self._clause(each)) for each in before.wanted]
        found = self._searcher.search(Query.boolean_query([titled, *others]), max(1, self._searcher.num_docs)).hits
        best = self._ordered(found, (), Sort.RELEVANCE, _REORDERED)
        best.sort(key=lambda each: -title_likeness(" ".join(typed), self._stored(each, "title")))
        return [self._stored(each, "key") for each in best]

    def facets(
        self, text: str = "", filters: Filters = (), *, exact: bool = False, since: int | None = None
    ) -> dict[str, int]:
        """Return how many of the templates that `search` finds have each facet; without a text how many of all."""
        wanted = self._meaning(text, exact=exact).wanted
        query = filtered(either(map(self._clause, wanted)) if wanted or text else Query.all_query(), filters, since)
        found = self._found(query, wanted)
        result: Any = self._searcher.search(query, 1)  # tantivy 0.27 does not declare its `count`
        if len(found) < result.count:
            ties = self._searcher.fast_field_values("tie", [address for _, address in found])
            these = Query.term_set_query(schema(), "tie", [int(tie or 0) for tie in ties])
            query = all_of([query, unscored(these)])
        return dict(self._searcher.terms_with_prefix("facets", "", filter_query=query))

    def _meaning(self, text: str, *, exact: bool = False) -> Meaning:
        return interpret(text, self.vocabulary, self._synonyms, exact=exact)

    def _clause(self, wanted: QueryWord) -> Query:
        """Return the query for a word, which counts as often as it occurs: the best of what may be meant counts."""
        options = []
        for option in wanted.options:
            weight = wanted.count * option.weight / len(option.terms)
            terms = [Query.boost_query(term_query(term), weight / self.vocabulary.idf(term)) for term in option.terms]
            options.append(terms[0] if len(terms) == 1 else all_of(terms))
        return options[0] if len(options) == 1 else Query.disjunction_max_query(options)

    def _found(self, query: Query, wanted: Sequence[QueryWord]) -> list[_Found]:
        """Return what a query finds, best first, without what only shares words that hardly count."""
        found: list[_Found] = self._searcher.search(query, max(1, self._searcher.num_docs)).hits
        end = bisect_left(found, -_FLOOR * found[0][0], key=lambda each: -each[0]) if found and wanted else len(found)
        if end == len(found):
            return found
        least = max(option.rarity for each in wanted for option in each.options) / 2
        rare = [each for each in wanted if any(option.rarity >= least for option in each.options)]
        having = self._searcher.search(all_of(map(self._clause, rare)), self._searcher.num_docs).hits
        places = {(address.segment_ord, address.doc) for _, address in having}
        return found[:end] + [one for one in found[end:] if (one[1].segment_ord, one[1].doc) in places]

    def _page(
        self, found: Sequence[_Found], wanted: Sequence[QueryWord], order: Sort, begin: Place, limit: int
    ) -> list[_Candidate]:
        """Return the `limit` templates after a place in their order, and one more where there is."""
        count = max(begin.shown + limit + 1, _REORDERED)
        while True:
            ordered = self._ordered(found, wanted, order, count)
            last = self._last_of(ordered, begin.keys) if begin.keys else begin.shown - 1
            if count >= len(found) or (last is not None and last + limit + 1 < count):
                first = begin.shown if last is None else last + 1
                return ordered[first : first + limit + 1]
            count *= 4

    def _ordered(
        self, found: Sequence[_Found], wanted: Sequence[QueryWord], order: Sort, count: int
    ) -> list[_Candidate]:
        """Return the first `count` templates in an order. Titles that begin alike are read from the store."""
        end = count
        if order is Sort.RELEVANCE:
            while end < len(found) and found[end][0] == found[count - 1][0]:
                end += 1
            found = found[:end]
        addresses = [address for _, address in found]
        newest, ties = (self._searcher.fast_field_values(name, addresses) for name in ("published", "tie"))
        each = [
            _Candidate(address, score, int(published or 0), int(tie or 0))
            for (score, address), published, tie in zip(found, newest, ties, strict=True)
        ]
        if order is Sort.TITLE:
            letters = self._searcher.fast_field_values("title_order", addresses)
            equals = Counter(letters)
            each = [
                one._replace(title=(int(letter or 0), self._stored(one, "title") if equals[letter] > 1 else ""))
                for one, letter in zip(each, letters, strict=True)
            ]
        # What is not ordered by title has none here.
        each.sort(key=_Candidate.rank if order is Sort.RELEVANCE else lambda one: (one.title, -one.newest, one.tie))
        return (self._reordered(each, wanted) if order is Sort.RELEVANCE and wanted else each)[:count]

    def _last_of(self, ordered: Sequence[_Candidate], keys: Sequence[str]) -> int | None:
        """Return where the last of some templates is that is still there, None where none is."""
        for key in reversed(keys):
            tie = leading(key)
            for at, each in enumerate(ordered):
                if each.tie == tie and self._stored(each, "key") == key:
                    return at
        return None

    def _reordered(self, best: list[_Candidate], wanted: Sequence[QueryWord]) -> list[_Candidate]:
        query = " ".join(each.options[0].text for each in wanted)
        asked = frozenset(term for each in wanted for term in each.options[0].terms)
        top = []
        for each in best[:_REORDERED]:
            kept = self._searcher.doc(each.address)
            title, terms = kept.get_first("title") or "", kept.get_first("title_terms") or ""
            idfs = {term: self.vocabulary.idf(term) for term in terms.split()}
            # How much of the title is asked for, 0 to 1, each of its words counting by its idf.
            covered = sum(idf for term, idf in idfs.items() if term in asked) / sum(idfs.values()) if idfs else 0.0
            bonus = 1 + _TITLE_BONUS * title_likeness(query, title)
            bonus *= 1 + _TITLE_COVERED_BONUS * covered
            top.append(_Candidate(each.address, each.score * bonus, each.newest, each.tie))
        return sorted(top, key=_Candidate.rank) + best[_REORDERED:]

    def _hits(self, page: Sequence[_Candidate], wanted: Sequence[QueryWord], ideal: float) -> Iterator[Hit]:
        keys = [self._stored(each, "key") for each in page]
        options = [[(option, option.terms) for option in each.options] for each in wanted]
        had = self._terms_had(keys, [term for each in wanted for option in each.options for term in option.terms])
        for key, candidate in zip(keys, page, strict=True):
            terms = had[candidate.place]
            found = [next((option for option, its in each if terms.issuperset(its)), None) for each in options]
            both = zip(wanted, found, strict=True)
            matched = [Word(each.typed, option.text, option.is_synonym) for each, option in both if option]
            share = min(1.0, max(round(candidate.score / ideal, 6), _LEAST_SCORE)) if wanted else 0.0
            yield Hit(key, share, tuple(matched))

    def _terms_had(self, keys: Sequence[str], terms: Sequence[str]) -> Mapping[tuple[int, int], set[str]]:
        """Return which of some terms each of some templates has, by its place.

        A query gives each term a power of two as its score, so that the score of a template says which ones it has.
        """
        had: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        several = list(dict.fromkeys(terms))
        these = (Occur.Must, unscored(any_of("key", keys)))
        for start in range(0, len(several) if keys else 0, _BITS):
            here = several[start : start + _BITS]
            flags = [Query.const_score_query(term_query(term), 2.0**bit) for bit, term in enumerate(here)]
            query = Query.boolean_query([these, *((Occur.Should, flag) for flag in flags)])
            for score, address in self._searcher.search(query, len(keys), count=False).hits:
                flagged = int(score)
                place = address.segment_ord, address.doc
                had[place].update(term for bit, term in enumerate(here) if flagged >> bit & 1)
        return had

    def _stored(self, candidate: _Candidate, field: str) -> str:
        return self._searcher.doc(candidate.address).get_first(field) or ""


class SearchIndex:
    """An index in memory; `ranking` is its state at the last commit."""

    def __init__(self) -> None:
        self._index = Index(schema())
        self._index.config_reader("manual")
        self._writer: IndexWriter | None = None  # from the first change to its commit: it holds 25 MB
        self._added: set[str] = set()  # words, since the last commit
        self._is_empty = True
        self.ranking = Ranking.of(self._index.searcher())

    def put(self, document: Document) -> None:
        """Add a document, or replace the one with its key, from the next commit on."""
        self.remove(document.key)
        self._writing().add_document(entry(document))
        if not self._is_empty:
            self._added.update(document.texts.words.split())

    def remove(self, key: str) -> None:
        """Remove the document with this key, if there is one, from the next commit on."""
        self._writing().delete_documents_by_term("key", key)

    def commit(self) -> None:
        """Make what was put and removed count."""
        writer, self._writer = self._writing(), None
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        searcher, known = self._index.searcher(), self.ranking.vocabulary
        self.ranking = Ranking.of(searcher) if self._is_empty else Ranking(searcher, known.grown(searcher, self._added))
        self._added, self._is_empty = set(), False
        if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):  # glibc kept 90 MB after 10,000 templates
            _LIBC.malloc_trim(0)

    def _writing(self) -> IndexWriter:
        if self._writer is None:
            self._writer = self._index.writer(_WRITER_BYTES, 1)
        return self._writer
