"""The ranking of a library as one state of its index has it: ask it with a text.

Immutable; any number of threads may search at once. Posting lists and BM25 are tantivy's; what a query means and the
order of the best are ours.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Final, NamedTuple

from tantivy import DocAddress, Occur, Query, Searcher

from template_api.ranking.fields import STATE_KEY, any_of, either, filtered, telling_terms, term_query, unscored
from template_api.ranking.tokens import title_likeness, words
from template_api.ranking.vocabulary import Vocabulary, Wanted, interpret
from template_api.records import Word

Filters = Sequence[Collection[str]]
"""What a template must have: one facet of each filter."""

_K1: Final = 1.2  # tantivy's, the customary value
# A corrected word counts a little less than one found as typed, so that of two equal templates the exact one is first.
_CORRECTED: Final = 0.9
# How many of the best are reordered by their titles. A title adds up to a fifth for words shared with the query,
# rare or not, and up to a fifth for how much of what it says, common words counting less, the query has asked for.
# The second gained 0 to 0.008 nDCG on three test collections, typos or not; with queries of three title words nothing.
_REORDERED: Final = 60
_TITLE_BONUS: Final = 0.2
_TITLE_COVERED_BONUS: Final = 0.2
# A template that was found scores more than nothing, however little it has of a long question.
_LEAST_SCORE: Final = 1e-6
_MOST_TIES: Final = 20_000  # found at most to order equals that go on beyond what is asked for
_BITS: Final = 20  # words looked up in one query; scores are exact up to 24 bits
_SUGGESTED_WORDS: Final = 200  # words of titles that an unfinished word may become


@dataclass(frozen=True, slots=True)
class Hit:
    """A template found: its key, its score (above 0, at most 1) and the words it has."""

    key: str
    score: float
    matched: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The templates asked for, best first, and how many were found in all."""

    hits: tuple[Hit, ...] = ()
    total: int = 0


class _Candidate(NamedTuple):
    """A template found; `newest` and `tie` order it among equals. A tuple: a search makes a hundred."""

    address: DocAddress
    score: float
    newest: int
    tie: int

    @property
    def place(self) -> tuple[int, int]:
        """Where it is in this state of the index."""
        return self.address.segment_ord, self.address.doc

    def rank(self) -> tuple[float, int, int]:
        return -self.score, -self.newest, self.tie


class Ranking:
    """Search one state of the index.

    Args:
        searcher: this state.
        vocabulary: its words.
    """

    def __init__(self, searcher: Searcher, vocabulary: Vocabulary) -> None:
        self._searcher = searcher
        self.vocabulary = vocabulary

    def search(self, text: str, limit: int, offset: int = 0, filters: Filters = ()) -> Ranked:
        """Return at most `limit` templates that have a word of the text and pass the filters, best first.

        A score is the share of what a template could reach at most for this text, were every word found as typed, over
        and over, and its title just these. `offset` leaves out that many of the best. Of equals the newest comes first,
        then the one with the lowest key.
        """
        wanted = interpret(text, self.vocabulary)
        if not wanted or limit < 1:
            return Ranked()
        query = filtered(either(map(self._clause, wanted)), filters)
        best, total = self._best(query, max(offset + limit, _REORDERED))
        ideal = sum(_repeated(each.count) * self._rarity(each) for each in wanted) * (_K1 + 1)
        ideal *= (1 + _TITLE_BONUS) * (1 + _TITLE_COVERED_BONUS)
        page = self._reordered(best, wanted)[offset : offset + limit]
        return Ranked(tuple(self._hits(page, wanted, ideal)), total)

    def suggest(self, text: str, limit: int) -> list[str]:
        """Return the keys of at most `limit` templates whose title has a word that begins with the text's last one.

        Those come first that have the words before it too, as `search` would find them, in titles like the text. Where
        no title has such a word, the result is that of `search`.
        """
        typed = words(text)
        begun = self._searcher.terms_with_prefix("title", typed[-1], limit=_SUGGESTED_WORDS) if typed else []
        if not begun:
            return [hit.key for hit in self.search(text, limit).hits]
        titled = [(Occur.Must, unscored(any_of("title", [word for word, _ in begun])))]
        before = [(Occur.Should, self._clause(each)) for each in interpret(" ".join(typed[:-1]), self.vocabulary)]
        best, _ = self._best(Query.boolean_query(titled + before), _REORDERED)
        best.sort(key=lambda each: -title_likeness(" ".join(typed), self._stored(each, "title")))
        return [self._stored(each, "key") for each in best[:limit]]

    def facets(self, text: str = "", filters: Filters = ()) -> dict[str, int]:
        """Return how many of the templates that `search` finds have each facet; without a text how many of all."""
        wanted = interpret(text, self.vocabulary)
        found = either(map(self._clause, wanted)) if wanted or text else Query.all_query()
        return dict(self._searcher.terms_with_prefix("facets", "", filter_query=filtered(found, filters)))

    @property
    def state(self) -> str | None:
        """What was last committed as the state of the index, None before the first time."""
        found = self._searcher.search(any_of("key", [STATE_KEY]), 1).hits
        return str(self._searcher.doc(found[0][1]).get_first("state")) if found else None

    def fingerprint(self) -> tuple[int, int]:
        """Return how many templates there are, and the sum of the library's versions that they came with."""
        asked = {"count": {"value_count": {"field": "changed"}}, "sum": {"sum": {"field": "changed"}}}
        found = self._searcher.aggregate(Query.all_query(), asked)
        return int(found["count"]["value"]), int(found["sum"]["value"] or 0)

    def _clause(self, wanted: Wanted) -> Query:
        """Return the query for a word: the best of the terms that may be meant counts, as rare as the commonest."""
        weight = _repeated(wanted.count) * (_CORRECTED if wanted.corrected else 1) * self._rarity(wanted)
        terms = [Query.boost_query(term_query(term), weight / self.vocabulary.idf(term)) for term in wanted.terms]
        return terms[0] if len(terms) == 1 else Query.disjunction_max_query(terms)

    def _rarity(self, wanted: Wanted) -> float:
        return min(map(self.vocabulary.idf, wanted.terms))

    def _best(self, query: Query, count: int) -> tuple[list[_Candidate], int]:
        """Return the `count` best templates in order, and how many there are in all."""
        asked = count
        while True:
            result: Any = self._searcher.search(query, asked + 1)  # tantivy 0.27 does not declare `count`
            hits: list[tuple[float, DocAddress]] = result.hits
            # Equals of the last one may come before it: as many more are asked for.
            if len(hits) <= asked or hits[count - 1][0] != hits[-1][0] or asked >= _MOST_TIES:
                break
            asked *= 4
        addresses = [address for _, address in hits]
        newest = self._searcher.fast_field_values("published", addresses)
        ties = self._searcher.fast_field_values("tie", addresses)
        found = [
            _Candidate(address, score, int(published or 0), int(tie or 0))
            for (score, address), published, tie in zip(hits, newest, ties, strict=True)
        ]
        return sorted(found, key=_Candidate.rank)[:count], result.count

    def _reordered(self, best: list[_Candidate], wanted: Sequence[Wanted]) -> list[_Candidate]:
        query = " ".join(each.options[0].word for each in wanted)
        asked = frozenset(term for each in wanted for term in each.terms)
        top = []
        for each in best[:_REORDERED]:
            title = self._stored(each, "title")
            idfs = {term: self.vocabulary.idf(term) for term in telling_terms(title)}
            # How much of the title is asked for, 0 to 1, each of its words counting by its idf.
            covered = sum(idf for term, idf in idfs.items() if term in asked) / sum(idfs.values()) if idfs else 0.0
            bonus = 1 + _TITLE_BONUS * title_likeness(query, title)
            bonus *= 1 + _TITLE_COVERED_BONUS * covered
            top.append(_Candidate(each.address, each.score * bonus, each.newest, each.tie))
        return sorted(top, key=_Candidate.rank) + best[_REORDERED:]

    def _hits(self, page: Sequence[_Candidate], wanted: Sequence[Wanted], ideal: float) -> Iterator[Hit]:
        keys = [self._stored(each, "key") for each in page]
        had = self._terms_had(keys, [term for each in wanted for term in each.terms])
        for key, candidate in zip(keys, page, strict=True):
            terms = had[candidate.place]
            found = [next((option for option in each.options if option.term in terms), None) for each in wanted]
            matched = [Word(each.typed, known.word) for each, known in zip(wanted, found, strict=True) if known]
            share = min(1.0, max(round(candidate.score / ideal, 6), _LEAST_SCORE))
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


def _repeated(count: int) -> float:
    """Return the weight of a word that a query has so often: the second time adds .7, the third .4 (SMART's "l")."""
    return 1 + log(count)
