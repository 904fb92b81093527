"""From texts to an index: words to terms, terms to postings.

A builder is used by one thread; what it builds is immutable. The weighted fields of a template count as one text, in
which a title word stands 3.5 times: S. Robertson, H. Zaragoza, M. Taylor, "Simple BM25 extension to multiple weighted
fields", CIKM 2004.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Final

from template_api.ranking.postings import K1, B, Posting, Postings
from template_api.ranking.stemmer import stem
from template_api.ranking.tokens import STOP_WORDS, words

# Weights are whole numbers, so that one fits into a few bits beside the slot of its template.
CONTENT_WEIGHT: Final = 2
_WEIGHT_BITS: Final = 16
_MOST_WEIGHT: Final = (1 << _WEIGHT_BITS) - 1
_STOP_STEMS: Final = frozenset(map(stem, STOP_WORDS))


class Terms(dict[str, int]):
    """The term of every word met so far; a new word is stemmed when it is first looked up with []."""

    def __init__(self, before: "Terms | None" = None) -> None:
        super().__init__(before or {})
        self.stems: dict[str, int] = dict(before.stems) if before else {}
        self.stops: set[int] = set(before.stops) if before else set()

    def __missing__(self, word: str) -> int:
        stemmed = stem(word)
        term = self[word] = self.stems.setdefault(stemmed, len(self.stems))
        if stemmed in _STOP_STEMS:
            self.stops.add(term)
        return term


class PostingsBuilder:
    """Takes one template after the other and gives it the next slot; `terms` grows with every new word."""

    def __init__(self, terms: Terms, first_slot: int = 0) -> None:
        self._terms = terms
        self._first_slot = first_slot
        # For each term, slot << _WEIGHT_BITS | weight: one append a posting, where building spends most of its time.
        self._packed: list[array[int]] = []
        self._lengths = array("L")

    def add(self, content: str, others: Iterable[tuple[str, int]]) -> None:
        """Index the next template: its content, and other texts each with the weight of its words.

        Weights are whole numbers beside CONTENT_WEIGHT. Stop words are indexed, but add nothing to a text's length.
        """
        # The longest text is counted in C; short ones are quicker added word by word.
        counts = Counter(map(self._terms.__getitem__, words(content)))
        weights = {term: CONTENT_WEIGHT * count for term, count in counts.items()}
        for text, weight in others:
            for term in map(self._terms.__getitem__, words(text)):
                weights[term] = weights.get(term, 0) + weight
        if max(weights.values(), default=0) > _MOST_WEIGHT:
            weights = {term: min(weight, _MOST_WEIGHT) for term, weight in weights.items()}
        self._packed.extend(array("Q") for _ in range(len(self._terms.stems) - len(self._packed)))
        packed, slot = self._packed, len(self._lengths) << _WEIGHT_BITS
        for term, weight in weights.items():
            packed[term].append(slot | weight)
        stops = sum([weights[term] for term in weights.keys() & self._terms.stops])
        self._lengths.append(sum(weights.values()) - stops)

    def build(self, before: Postings | None = None) -> Postings:
        """Return the index of all templates added, after those of another one if given; the builder is used up."""
        average = before.average if before else sum(self._lengths) / max(1, len(self._lengths)) or 1.0
        norms = [CONTENT_WEIGHT * K1 * (1 - B + B * length / average) for length in self._lengths]
        part: dict[int, Posting] = {}
        for term, packed in enumerate(self._packed):
            if packed:
                slots = array("I", [self._first_slot + (each >> _WEIGHT_BITS) for each in packed])
                scores = array("f", [
                    (K1 + 1) * (weight := each & _MOST_WEIGHT) / (weight + norms[each >> _WEIGHT_BITS])
                    for each in packed
                ])  # fmt: skip
                del packed[:]
                part[term] = Posting(slots, scores)
        size = self._first_slot + len(self._lengths)
        return Postings((*(before.parts if before else ()), part), average, size)
