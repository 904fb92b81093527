"""Which templates have which term, how much it tells about them, and which of them are best for a query: BM25F.

Nothing that can be seen ever changes; any thread may read. Templates are numbered by *slot*, in the order they were
indexed; a *term* is the number of a stem.
"""

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Final

# How much the first occurrences of a word count beside the later ones, and how much a template's length counts: the
# customary values (Robertson, Zaragoza, "The probabilistic relevance framework", 2009), tuned to no collection.
K1: Final = 1.2
B: Final = 0.75
# Weights are whole numbers, so that one fits into a few bits beside the slot of its template.
WEIGHT_BITS: Final = 16
MOST_WEIGHT: Final = (1 << WEIGHT_BITS) - 1
# Once a query has read so many postings, its commonest words only reorder the best that the rarer ones have found
# ("continue", Moffat and Zobel, TOIS 14(4), 1996). This bounds the time of whole questions on large libraries. A filter
# makes those few: what the rarer words found may not be among what is wanted, so all postings are read.
_MOST_POSTINGS: Final = 150_000
_MOST_CANDIDATES: Final = 500
# Looking a template up in a word's postings takes as long as reading so many of them.
_LOOK_UP: Final = 8
# Sums of the same scores in another order may differ in the last digits; nothing is dropped for less than this.
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Clause:
    """One word of a query: the terms that may stand for it, of which the best counts, times `weight`."""

    terms: tuple[int, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class Order:
    """Which position each slot has, -1 for a template that is gone, and which slot each position."""

    positions: Sequence[int]
    slots: Sequence[int]


class Posting:
    """The templates that have a term, and its BM25 score in each before idf.

    Scores are worked out when a term is first asked for, from the weights of the term in its templates: most terms are
    never asked for, and building is a quarter quicker. Threads that are first together work out the same.

    Args:
        packed: relative slot << WEIGHT_BITS | weight, ascending.
        norms: for each relative slot, the weight that earns half of the highest score.
        first_slot: what a relative slot counts from.
    """

    __slots__ = ("_first_slot", "_held", "_norms", "frequency")

    def __init__(self, packed: "array[int]", norms: "array[float]", first_slot: int) -> None:
        self.frequency = len(packed)
        self._first_slot = first_slot
        self._norms = norms
        # What is packed until it is scored; one attribute, so that another thread sees either.
        self._held: array[int] | tuple[array[int], array[float]] = packed

    def scored(self) -> "tuple[array[int], array[float]]":
        """Return the slots of the templates, ascending, and the score in each."""
        held = self._held
        if isinstance(held, tuple):
            return held
        first_slot, norms = self._first_slot, self._norms
        slots = array("I", [first_slot + (each >> WEIGHT_BITS) for each in held])
        # The arithmetic of _score, without a call for each template.
        scores = array("d", [
            (K1 + 1) * (weight := each & MOST_WEIGHT) / (weight + norms[each >> WEIGHT_BITS]) for each in held
        ])  # fmt: skip
        self._held = slots, scores
        return slots, scores

    def score(self, slot: int) -> float:
        """Return the score in one template, 0 when it lacks the term; does not work out those in others."""
        held = self._held
        if isinstance(held, tuple):
            slots, scores = held
            at = bisect_left(slots, slot)
            return scores[at] if at < len(slots) and slots[at] == slot else 0.0
        relative = slot - self._first_slot
        at = bisect_left(held, relative << WEIGHT_BITS) if relative >= 0 else len(held)
        return self._score(held[at]) if at < len(held) and held[at] >> WEIGHT_BITS == relative else 0.0

    def _score(self, packed: int) -> float:
        weight = packed & MOST_WEIGHT
        return (K1 + 1) * weight / (weight + self._norms[packed >> WEIGHT_BITS])


@dataclass(frozen=True, slots=True)
class Postings:
    """The index: postings by term, in parts of disjoint templates; later parts hold what was added later.

    `average` is the mean weighted length of the first part's templates, `size` the number of slots of all parts.
    """

    parts: tuple[Mapping[int, Posting], ...]
    average: float
    size: int

    def frequency(self, term: int) -> int:
        """Return how many templates have a term."""
        return sum(posting.frequency for posting in self._of(term))

    def has(self, slot: int, term: int) -> bool:
        """Tell whether a template has a term."""
        return any(posting.score(slot) > 0 for posting in self._of(term))

    def idf(self, terms: Iterable[int]) -> float:
        """Return the inverse document frequency of the commonest of some terms, always above 0."""
        frequency = max(self.frequency(term) for term in terms)
        return math.log(1 + (self.size - frequency + 0.5) / (frequency + 0.5))

    def ideal(self, terms: Iterable[int]) -> float:
        """Return the score that no template can exceed for a clause of these terms and weight 1, whatever its text."""
        return self.idf(terms) * (K1 + 1)

    def best(
        self, clauses: Iterable[Clause], count: int, order: Order, accept: Collection[int] | None = None, *, exact: bool
    ) -> list[tuple[int, float]]:
        """Return the slots of the `count` best templates with their scores, best first, then by position.

        `accept` holds the positions wanted, None meaning all. With `exact` False the best of many may be missed.

        Max-score evaluation (H. Turtle, J. Flood, 1995): rare words first; once `count` templates stand above all that
        the remaining words could give together, those words are only looked up in the templates already found.
        """
        weighted = sorted((self._weighted(clause) for clause in clauses), key=lambda each: -each.most)
        remaining = [*accumulate((each.most for each in reversed(weighted)), initial=0.0)][::-1]
        found: dict[int, float] = {}
        threshold, read, enough = 0.0, 0, max(count, _MOST_CANDIDATES)
        is_closed = False
        for each, rest in zip(weighted, remaining, strict=False):
            # Finding the threshold takes time too: not worth it before a word with few postings.
            if len(found) >= count and each.length > len(found) // 8:
                threshold = _nth(found.values(), count)
            if not exact and read > _MOST_POSTINGS and len(found) > enough:
                found = dict(heapq.nlargest(enough, found.items(), key=itemgetter(1)))
                is_closed = True
            if is_closed or threshold > rest:
                least = threshold - rest - _ROUNDING
                found = {slot: score + each.score(slot) for slot, score in found.items() if score >= least}
            else:
                read += each.length
                _add(found, each.scores(order, accept))
        least = _nth(found.values(), count) if len(found) > count else 0.0
        top = [(slot, score) for slot, score in found.items() if score >= least]
        return heapq.nsmallest(count, top, key=lambda item: (-item[1], order.positions[item[0]]))

    def _of(self, term: int) -> Iterator[Posting]:
        return (part[term] for part in self.parts if term in part)

    def _weighted(self, clause: Clause) -> "_Weighted":
        postings = tuple(posting for term in clause.terms for posting in self._of(term))
        return _Weighted(postings, clause.weight * self.idf(clause.terms))


class _Weighted:
    """A clause with its postings; `most` is the largest score that it can give."""

    __slots__ = ("_postings", "_weight", "length", "most")

    def __init__(self, postings: tuple[Posting, ...], weight: float) -> None:
        self._postings = postings
        self._weight = weight
        self.length = sum(posting.frequency for posting in postings)
        self.most = weight * (K1 + 1)

    def scores(self, order: Order, accept: Collection[int] | None) -> dict[int, float]:
        """Return the score of every wanted template that has one of the terms, by slot."""
        if accept is not None and self.length > len(accept) * _LOOK_UP:
            slots = (order.slots[position] for position in accept)
            return {slot: score for slot in slots if (score := self.score(slot))}
        best: dict[int, float] = {}
        for posting in self._postings:
            found = self._wanted(posting, order.positions, accept)
            if not best:
                best = found
                continue
            for slot, score in found.items():
                if score > best.get(slot, 0.0):
                    best[slot] = score
        return best

    def _wanted(self, posting: Posting, positions: Sequence[int], accept: Collection[int] | None) -> dict[int, float]:
        weight = self._weight
        slots, scores = posting.scored()
        if accept is None:
            return dict(zip(slots, [weight * score for score in scores], strict=True))
        pairs = zip(slots, scores, strict=True)
        return {slot: weight * score for slot, score in pairs if positions[slot] in accept}

    def score(self, slot: int) -> float:
        """Return the score of one template."""
        return self._weight * max([posting.score(slot) for posting in self._postings])


def _add(found: dict[int, float], scores: dict[int, float]) -> None:
    if not found:
        found.update(scores)
        return
    for slot, score in scores.items():
        found[slot] = found.get(slot, 0.0) + score


def _nth(scores: Collection[float], count: int) -> float:
    return heapq.nlargest(count, scores)[-1]
