"""From texts to an index: words to terms, terms to postings.

A builder is used by one thread; what it builds is immutable. The weighted fields of a template count as one text, in
which a title word stands 3.5 times: S. Robertson, H. Zaragoza, M. Taylor, "Simple BM25 extension to multiple weighted
fields", CIKM 2004.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Final

from template_api.ranking.postings import K1, MOST_WEIGHT, WEIGHT_BITS, B, Posting, Postings
from template_api.ranking.stemmer import stem
from template_api.ranking.tokens import STOP_WORDS, words

CONTENT_WEIGHT: Final = 2
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
        # For each term what a Posting takes: one append for each of its templates, where building spends most time.
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
        if max(weights.values(), default=0) > MOST_WEIGHT:
            weights = {term: min(weight, MOST_WEIGHT) for term, weight in weights.items()}
        self._packed.extend(array("Q") for _ in range(len(self._terms.stems) - len(self._packed)))
        packed, slot = self._packed, len(self._lengths) << WEIGHT_BITS
        for term, weight in weights.items():
            packed[term].append(slot | weight)
        stops = sum([weights[term] for term in weights.keys() & self._terms.stops])
        self._lengths.append(sum(weights.values()) - stops)

    def build(self, before: Postings | None = None) -> Postings:
        """Return the index of all templates added, after those of another one if given; the builder is used up."""
        average = before.average if before else sum(self._lengths) / max(1, len(self._lengths)) or 1.0
        norms = array("d", [CONTENT_WEIGHT * K1 * (1 - B + B * length / average) for length in self._lengths])
        part = {term: Posting(packed, norms, self._first_slot) for term, packed in enumerate(self._packed) if packed}
        size = self._first_slot + len(self._lengths)
        return Postings((*(before.parts if before else ()), part), average, size)
