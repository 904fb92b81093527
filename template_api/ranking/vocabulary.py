"""The words of the library: in how many templates each one is, and which ones are near to a given word.

Immutable; any thread may ask. *Word* is a folded word as it occurs in a text, *term* its stem. The index counts the
templates of a term; only the words that misspellings are compared with are in memory.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from math import log
from typing import Final

from tantivy import Searcher

from template_api.ranking.fields import term_field
from template_api.ranking.tokens import STOP_WORDS, stem, within

_CANDIDATES: Final = 3
_COMPLETIONS: Final = 10
_FORMS: Final = 5  # words compared for each completion: several are forms of one word
SHORTEST_PART: Final = 3
# A word may be misspelt in the library: if it has at least so many letters, and a near word is in so many times as many
# templates.
SHORTEST_DOUBTED: Final = 5
_MUCH_COMMONER: Final = 5
_RARE: Final = 2
_RARE_ONE_IN: Final = 1000

# How many edits a word of at least so many letters may be from what was meant.
_EDITS: Final = ((8, 2), (4, 1))
_LACKS_A_LETTER: Final = 3  # a shorter word may only lack one: *tme* is "time", but *mpa* not "map"


class Words:
    """Some folded words that misspellings are compared with, and perhaps those of another set. Immutable."""

    def __init__(self, words: Iterable[str] = (), others: "Words | None" = None) -> None:
        added: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for word in words:
            added[word[0], len(word)].add(word)
        known = others.buckets if others is not None else {}
        grown = {key: known[key] | new if key in known else new for key, new in added.items()}
        self.buckets: Mapping[tuple[str, int], Set[str]] = {**known, **grown}  # by first letter and length
        self._first_letters = sorted({letter for letter, _ in self.buckets if letter.isalpha()})

    def __contains__(self, word: str) -> bool:
        return word in self.buckets.get((word[:1], len(word)), ())

    def near(self, word: str) -> Iterator[tuple[str, int]]:
        """Yield the words that a misspelt word may mean, each with its number of edits."""
        most = next((edits for length, edits in _EDITS if len(word) >= length), 0)
        if most:
            yield from self.slips(word, most)
            for near in self._with_other_first_letter(word):
                yield near, 1
        elif len(word) == _LACKS_A_LETTER and word.isalpha():
            for near, edits in self.slips(word):
                if len(near) > len(word):
                    yield near, edits
            for letter in self._first_letters:
                if letter != word[0] and letter + word in self:
                    yield letter + word, 1

    def slips(self, word: str, most: int = 1) -> Iterator[tuple[str, int]]:
        """Yield the words at most so many edits away that have the same first letter and the same digits."""
        digits = _digits(word)
        for length in range(len(word) - most, len(word) + most + 1):
            for near, edits in within(word, tuple(self.buckets.get((word[0], length), ())), most):
                if _digits(near) == digits:
                    yield near, edits

    def _with_other_first_letter(self, word: str) -> Iterator[str]:
        """Yield the words that are one edit of the first letter away: looked up, where comparing would take all."""
        if word[0].isdigit() or word[1].isdigit():
            return
        changed = [word[1:], word[1] + word[0] + word[2:]]
        changed += [letter + rest for letter in self._first_letters for rest in (word, word[1:])]
        for near in changed:
            if near[0] != word[0] and near in self:
                yield near


class Vocabulary:
    """The words of one state of the index; `spelling` has them and the stop words."""

    def __init__(self, searcher: Searcher, spelling: Words) -> None:
        self._searcher = searcher
        self._spelling = spelling
        self._size = searcher.num_docs
        self._frequencies: dict[str, int] = {}

    def grown(self, searcher: Searcher, words: Collection[str]) -> "Vocabulary":
        """Return the vocabulary of a later state of the index, which has these words beside those known."""
        return Vocabulary(searcher, Words(words, self._spelling))

    def has(self, word: str) -> bool:
        """Return whether a template has a word in just this form; true for stop words."""
        return word in self._spelling

    def term(self, word: str) -> str | None:
        """Return the term of a word, or None when no template has it in any form."""
        term = stem(word)
        if term_field(term) != "text" and not self.has(word):
            return None  # only its stem is that of a stop word: *Suche* is not "such"
        return term if self.frequency(term) else None

    def frequency(self, term: str) -> int:
        """Return how many templates have a term; those that have left the library lately may be counted."""
        known = self._frequencies.get(term)
        if known is None:
            known = self._searcher.doc_freq(term_field(term), term)
            if known:  # what callers make up is not kept
                self._frequencies[term] = known
        return known

    def idf(self, term: str) -> float:
        """Return the inverse document frequency of a term, above 0."""
        frequency = self._frequencies.get(term) or self.frequency(term)
        return log(1 + (max(self._size, frequency) - frequency + 0.5) / (frequency + 0.5))

    def split(self, word: str, beyond: int = 0) -> tuple[str, ...]:
        """Return the two known words that a word consists of, the commonest such pair; else nothing.

        Both are in more than `beyond` templates.
        """
        best: tuple[int, tuple[str, ...]] = (beyond, ())
        for at in range(SHORTEST_PART, len(word) - SHORTEST_PART + 1):
            left, right = word[:at], word[at:]
            if self.has(left) and self.has(right) and STOP_WORDS.isdisjoint((left, right)):
                rarer = min(self.frequency(stem(left)), self.frequency(stem(right)))
                if rarer > best[0]:
                    best = (rarer, (left, right))
        return best[1]

    def completions(self, beginning: str) -> tuple[str, ...]:
        """Return the commonest words with this beginning, at most ten, no two of one term."""
        begun = self._searcher.terms_with_prefix("words", beginning, limit=_COMPLETIONS * _FORMS)
        return self._commonest(sorted(word for word, _ in begun), _COMPLETIONS)

    def nearest(self, word: str) -> tuple[tuple[str, ...], int]:
        """Return the commonest of the words fewest edits from an unknown one, and how many edits these are.

        They are at most three, no two of one term. When a stop word is nearer than any other, the unknown word means
        nothing and there are none.
        """
        # Words that left the library lately are compared too, and dropped here.
        edits = {near: count for near, count in self._spelling.near(word) if near in STOP_WORDS or self.term(near)}
        least = min(edits.values(), default=0)
        nearest = sorted(near for near, count in edits.items() if count == least and near not in STOP_WORDS)
        return self._commonest(nearest, _CANDIDATES), least

    def much_commoner(self, word: str) -> int:
        """Return in how many templates another word must be to compete with a known one that may be misspelt there."""
        return self.frequency(stem(word)) * _MUCH_COMMONER

    def doubted(self, word: str) -> str | None:
        """Return the much commoner word, one edit away, that a rare word (`is_rare`) may be a slip for."""
        if len(word) < SHORTEST_DOUBTED:
            return None
        least = self.much_commoner(word)
        near = (near for near, _ in self._spelling.slips(word) if near not in STOP_WORDS)
        likely = self._commonest((near for near in near if self.frequency(stem(near)) >= least), 1)
        return likely[0] if likely else None

    def is_rare(self, word: str) -> bool:
        """Return whether so few templates have a word that it may be misspelt in them."""
        return self.frequency(stem(word)) <= _RARE + self._size // _RARE_ONE_IN

    def _commonest(self, words: Iterable[str], most: int) -> tuple[str, ...]:
        by_term: dict[str, str] = {}
        for word in words:
            by_term.setdefault(stem(word), word)
        terms = sorted(by_term, key=lambda term: (-self.frequency(term), by_term[term]))
        return tuple(by_term[term] for term in terms[:most])


def _digits(word: str) -> str:
    """Return the digits of a word: "esp32" and "esp23" are different things, not one of them misspelt."""
    return "" if word.isalpha() else "".join(filter(str.isdigit, word))
