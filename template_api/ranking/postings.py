"""Which templates have which term, and how much it tells about them: the BM25F index.

Built once by `PostingsBuilder`, then immutable; any thread may read. Templates are numbered from 0 in the order they
are added. The weighted fields of a template count as one text, in which a title word stands 3.5 times: S. Robertson,
H. Zaragoza, M. Taylor, "Simple BM25 extension to multiple weighted fields", CIKM 2004.
"""

import heapq
import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Final

from template_api.ranking.stemmer import stem
from template_api.ranking.tokens import STOP_WORDS, words

# The customary values (Robertson, Zaragoza, "The probabilistic relevance framework", 2009), tuned to no collection.
_K1: Final = 1.2
_B: Final = 0.75
# Weights are whole numbers, so that one fits into a few bits beside the number of its template.
CONTENT_WEIGHT: Final = 2
_WEIGHT_BITS: Final = 16
_MOST_WEIGHT: Final = (1 << _WEIGHT_BITS) - 1
# Once a query has read so many postings, its commonest words only reorder what the rarer ones have found ("continue",
# Moffat and Zobel, TOIS 14(4), 1996). This bounds the time of whole questions on large libraries.
_MOST_POSTINGS: Final = 200_000
_MOST_CANDIDATES: Final = 1_000
# Sums of the same scores in another order may differ in the last digits; nothing is dropped for less than this.
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Clause:
    """One word of a query: the terms that may stand for it, of which the best weights, times `weight`."""

    terms: tuple[int, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class _Posting:
    """The templates that have a term, ascending, and its BM25 score in each before idf."""

    templates: "array[int]"
    scores: "array[float]"
    highest: float

    def score(self, template: int) -> float:
        at = bisect_left(self.templates, template)
        return self.scores[at] if at < len(self.templates) and self.templates[at] == template else 0.0


@dataclass(frozen=True, slots=True)
class _Weighted:
    postings: tuple[_Posting, ...]
    weight: float
    most: float

    @property
    def length(self) -> int:
        return sum(len(posting.templates) for posting in self.postings)

    def scores(self, accept: Container[int] | None) -> dict[int, float]:
        """Return the score of every accepted template that has one of the terms."""
        weight, first = self.weight, self.postings[0]
        best = dict(zip(first.templates, [weight * score for score in first.scores], strict=True))
        for posting in self.postings[1:]:
            for template, score in zip(posting.templates, posting.scores, strict=True):
                if weight * score > best.get(template, 0.0):
                    best[template] = weight * score
        return best if accept is None else {key: value for key, value in best.items() if key in accept}

    def score(self, template: int) -> float:
        return self.weight * max([posting.score(template) for posting in self.postings])


class Postings:
    """The finished index."""

    def __init__(self, postings: Sequence[_Posting], templates: int) -> None:
        self._postings = postings
        self._templates = templates

    def frequency(self, term: int) -> int:
        """Return how many templates have a term."""
        return len(self._postings[term].templates)

    def has(self, template: int, term: int) -> bool:
        """Tell whether a template has a term."""
        return self._postings[term].score(template) > 0

    def _idf(self, terms: Iterable[int]) -> float:
        """Return the inverse document frequency of the commonest of some terms, always above 0."""
        frequency = max(self.frequency(term) for term in terms)
        return math.log(1 + (self._templates - frequency + 0.5) / (frequency + 0.5))

    def ideal(self, terms: Iterable[int]) -> float:
        """Return the score that no template can exceed for a clause of these terms and weight 1, whatever its text."""
        return self._idf(terms) * (_K1 + 1)

    def best(self, clauses: Iterable[Clause], count: int, accept: Container[int] | None) -> list[tuple[int, float]]:
        """Return the `count` best accepted templates with their scores, best first, then in the order of their adding.

        Max-score evaluation (H. Turtle, J. Flood, 1995): rare words first; once `count` templates stand above all that
        the remaining words could give together, those words are only looked up in the templates already found.
        """
        weighted = sorted((self._weighted(clause) for clause in clauses), key=lambda each: -each.most)
        remaining = [*accumulate((each.most for each in reversed(weighted)), initial=0.0)][::-1]
        found: dict[int, float] = {}
        threshold, read = 0.0, 0
        for each, rest in zip(weighted, remaining, strict=False):
            length = each.length
            if len(found) >= count and length > len(found) // 8:
                threshold = heapq.nlargest(count, found.values())[-1]
            if read > _MOST_POSTINGS:
                found = dict(heapq.nlargest(_MOST_CANDIDATES, found.items(), key=itemgetter(1)))
            if threshold > rest or read > _MOST_POSTINGS:
                least = threshold - rest - _ROUNDING
                found = {key: value + each.score(key) for key, value in found.items() if value >= least}
            else:
                read += length
                _add(found, each.scores(accept))
        return heapq.nsmallest(count, found.items(), key=lambda item: (-item[1], item[0]))

    def _weighted(self, clause: Clause) -> _Weighted:
        postings = tuple(self._postings[term] for term in clause.terms)
        weight = clause.weight * self._idf(clause.terms)
        return _Weighted(postings, weight, weight * max(posting.highest for posting in postings))


def _add(found: dict[int, float], scores: dict[int, float]) -> None:
    if not found:
        found.update(scores)
        return
    for template, score in scores.items():
        found[template] = found.get(template, 0.0) + score


class _Words(dict[str, int]):
    """The term of every word met so far; a new word is stemmed when it is first looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.stems: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = self[word] = self.stems.setdefault(stem(word), len(self.stems))
        return term


class PostingsBuilder:
    """Takes one template after the other; `words` and `stems` tell the term of each word and stem."""

    def __init__(self) -> None:
        self._words = _Words()
        self._ignored = {self._words[word] for word in sorted(STOP_WORDS)}
        # For each term, template << _WEIGHT_BITS | weight: one append a posting, where building spends most time.
        self._packed: list[array[int]] = []
        self._lengths = array("L")

    @property
    def words(self) -> Mapping[str, int]:
        """Every word and its term."""
        return dict(self._words)

    @property
    def stems(self) -> Mapping[str, int]:
        """Every stem and its term."""
        return self._words.stems

    def add(self, content: str, others: Iterable[tuple[str, int]]) -> None:
        """Index the next template: its content, and other texts each with the weight of its words.

        Weights are whole numbers, CONTENT_WEIGHT for the content.
        """
        # The longest text is counted in C; short ones are quicker added word by word.
        counts = Counter(map(self._words.__getitem__, words(content)))
        weights = {term: CONTENT_WEIGHT * count for term, count in counts.items()}
        for text, weight in others:
            for term in map(self._words.__getitem__, words(text)):
                weights[term] = weights.get(term, 0) + weight
        self._packed.extend(array("Q") for _ in range(len(self._words.stems) - len(self._packed)))
        if max(weights.values(), default=0) > _MOST_WEIGHT:
            weights = {term: min(weight, _MOST_WEIGHT) for term, weight in weights.items()}
        template = len(self._lengths) << _WEIGHT_BITS
        packed = self._packed
        for term, weight in weights.items():
            packed[term].append(template | weight)
        ignored = sum(weights[term] for term in weights.keys() & self._ignored)
        self._lengths.append(sum(weights.values()) - ignored)

    def build(self) -> Postings:
        """Return the index of all templates added; the builder is used up."""
        # Without any template not even the stop words have their arrays yet.
        self._packed.extend(array("Q") for _ in range(len(self._words.stems) - len(self._packed)))
        average = sum(self._lengths) / max(1, len(self._lengths)) or 1.0
        norms = [CONTENT_WEIGHT * _K1 * (1 - _B + _B * length / average) for length in self._lengths]
        postings = []
        for packed in self._packed:
            templates = array("I", [each >> _WEIGHT_BITS for each in packed])
            scores = array("f", [
                (_K1 + 1) * (weight := each & _MOST_WEIGHT) / (weight + norms[each >> _WEIGHT_BITS]) for each in packed
            ])  # fmt: skip
            del packed[:]
            postings.append(_Posting(templates, scores, max(scores, default=0.0)))
        return Postings(postings, len(self._lengths))
