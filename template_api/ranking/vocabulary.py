"""The words that the library knows, and what a query means: its words, and the known words that each of them may mean.

Immutable; any thread may ask. *Word* is a folded word as it occurs in a text, *term* its stem. Which words and terms
there are and in how many templates is asked of the index; only the words to compare misspellings with are in memory.
Misspellings are put right here: in the query, before anything is ranked.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import log
from typing import Final

from tantivy import Searcher

from template_api.ranking.fields import term_field
from template_api.ranking.tokens import STOP_WORDS, stem, within, words

# How many edits a word of at least so many letters may be from what was meant.
_EDITS: Final = ((8, 2), (4, 1))
_CANDIDATES: Final = 3
_COMPLETIONS: Final = 10
_FORMS: Final = 5  # words compared for each completion: several are forms of one word
_SHORTEST_PART: Final = 3
# Looking for the nearest words costs some tenths of a millisecond; a question has few unknown words, an attack many.
MOST_CORRECTED: Final = 32

Buckets = Mapping[tuple[str, int], str]
"""Words by first letter and length, in alphabetical order, run together: a sixth of the memory of so many strings."""


@dataclass(frozen=True, slots=True)
class Known:
    """A word of the library and its term."""

    word: str
    term: str


@dataclass(frozen=True, slots=True)
class Nearest:
    """The known words nearest to an unknown one, all equally many edits away."""

    options: tuple[Known, ...]
    edits: int


class Vocabulary:
    """The library's words.

    Args:
        searcher: one state of the index.
        buckets: its words and the stop words.
    """

    def __init__(self, searcher: Searcher, buckets: Buckets) -> None:
        self._searcher = searcher
        self._buckets = buckets
        self._first_letters = sorted({letter for letter, _ in buckets if letter.isalpha()})
        self._size = searcher.num_docs
        self._frequencies: dict[str, int] = {}

    @classmethod
    def of(cls, searcher: Searcher) -> "Vocabulary":
        """Return the vocabulary of one state of the index; 0.1 s for 50,000 words."""
        words = (word for word, _ in searcher.terms_with_prefix("words", ""))
        return cls(searcher, _sorted_in(chain(STOP_WORDS, words), {}))

    def grown(self, searcher: Searcher, words: Collection[str]) -> "Vocabulary":
        """Return the vocabulary of a later state of the index, which has these words beside those known."""
        grown = Vocabulary(searcher, _sorted_in(words, self._buckets))
        changed = set(map(stem, words))
        known = self._frequencies.copy()  # requests add to it meanwhile
        grown._frequencies = {term: count for term, count in known.items() if term not in changed}
        return grown

    def has(self, word: str) -> bool:
        """Return whether a template has a word in just this form; true for stop words."""
        bucket = self._buckets.get((word[:1], len(word)), "")
        at = bucket.find(word)
        while at > 0 and at % len(word):
            at = bucket.find(word, at + 1)
        return at >= 0

    def term(self, word: str) -> str | None:
        """Return the term of a word, or None when no template has it in any form."""
        term = stem(word)
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

    def split(self, word: str) -> tuple[Known, ...]:
        """Return the two known words that an unknown one consists of, the commonest such pair; else nothing."""
        best: tuple[int, tuple[Known, ...]] = (0, ())
        for at in range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1):
            left, right = word[:at], word[at:]
            if self.has(left) and self.has(right) and STOP_WORDS.isdisjoint((left, right)):
                pair = tuple(Known(part, stem(part)) for part in (left, right))
                rarer = min(self.frequency(part.term) for part in pair)
                if rarer > best[0]:
                    best = (rarer, pair)
        return best[1]

    def completions(self, beginning: str) -> tuple[Known, ...]:
        """Return the commonest words with this beginning, at most ten, no two of one term."""
        begun = self._searcher.terms_with_prefix("words", beginning, limit=_COMPLETIONS * _FORMS)
        return self._commonest(sorted(word for word, _ in begun), _COMPLETIONS)

    def nearest(self, word: str) -> Nearest:
        """Return the commonest of the words fewest edits from an unknown one, at most three, no two of one term.

        When a stop word is nearer than any other, the unknown word means nothing and there are no options.
        """
        # Words that left the library lately are compared too, and dropped here.
        edits = {near: count for near, count in self._near(word) if near in STOP_WORDS or self.term(near)}
        least = min(edits.values(), default=0)
        nearest = sorted(near for near, count in edits.items() if count == least and near not in STOP_WORDS)
        return Nearest(self._commonest(nearest, _CANDIDATES), least)

    def _near(self, word: str) -> Iterator[tuple[str, int]]:
        """Yield the known words and stop words that the word may mean, each with its number of edits."""
        most = next((edits for length, edits in _EDITS if len(word) >= length), 0)
        if not most:
            return
        digits = _digits(word)
        for length in range(len(word) - most, len(word) + most + 1):
            for near, edits in within(word, _parted(self._buckets.get((word[0], length), ""), length), most):
                if _digits(near) == digits:
                    yield near, edits
        for near in self._with_other_first_letter(word):
            yield near, 1

    def _with_other_first_letter(self, word: str) -> Iterator[str]:
        """Yield the words that are one edit of the first letter away: looked up, where comparing would take all."""
        if word[0].isdigit() or word[1].isdigit():
            return
        changed = [word[1:], word[1] + word[0] + word[2:]]
        changed += [letter + rest for letter in self._first_letters for rest in (word, word[1:])]
        for near in changed:
            if near[0] != word[0] and self.has(near):
                yield near

    def _commonest(self, words: Iterable[str], most: int) -> tuple[Known, ...]:
        by_term: dict[str, str] = {}
        for word in words:
            by_term.setdefault(stem(word), word)
        terms = sorted(by_term, key=lambda term: (-self.frequency(term), by_term[term]))
        return tuple(Known(by_term[term], term) for term in terms[:most])


def _sorted_in(words: Iterable[str], buckets: Buckets) -> Buckets:
    """Return buckets with further words, sharing those that stay as they are."""
    added: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for word in words:
        added[word[0], len(word)].append(word)
    grown = dict(buckets)
    for key, new in added.items():
        grown[key] = "".join(sorted({*new, *_parted(buckets.get(key, ""), key[1])}))
    return grown


def _parted(bucket: str, length: int) -> list[str]:
    """Return the words of a bucket."""
    return [bucket[at : at + length] for at in range(0, len(bucket), length)]


def _digits(word: str) -> str:
    """Return the digits of a word: "esp32" and "esp23" are different things, not one of them misspelt."""
    return "" if word.isalpha() else "".join(filter(str.isdigit, word))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A word of the query: as typed, the known words that may be meant (the best counts), how often."""

    typed: str
    options: tuple[Known, ...]
    count: int = 1
    corrected: bool = False

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms of the options, in their order."""
        return tuple(option.term for option in self.options)


def interpret(text: str, vocabulary: Vocabulary) -> tuple[Wanted, ...]:
    """Return the words of a query that the library can match, in order of their first appearance.

    Stop words are dropped unless there is nothing else. A word that the library has in any form is kept as it is.
    Another one is read as one word torn apart, as two words run together (unless a known word is one edit away), as the
    beginning of a word when it is the last, as the nearest known words; failing all that it is ignored.
    """
    typed = words(text)
    reader = _Reader([word for word in typed if word not in STOP_WORDS] or typed, vocabulary)
    found: dict[tuple[str, ...], Wanted] = {}
    for wanted in reader.read():
        before = found.get(wanted.terms)
        if before is None:
            found[wanted.terms] = wanted
        else:
            found[wanted.terms] = replace(wanted if before.corrected else before, count=before.count + 1)
    return tuple(found.values())


class _Reader:
    """One reading of a query from left to right."""

    def __init__(self, typed: list[str], vocabulary: Vocabulary) -> None:
        self._typed = typed
        self._vocabulary = vocabulary
        self._corrected: dict[str, tuple[Wanted, ...]] = {}

    def read(self) -> Iterator[Wanted]:
        joined_to = -1
        for at, word in enumerate(self._typed):
            term = self._vocabulary.term(word)
            if term is not None:
                yield Wanted(word, (Known(word, term),))
            elif at != joined_to:
                joined = self._joined(at)
                if joined is not None:
                    joined_to = joined[0]
                    yield joined[1]
                    continue
                if word not in self._corrected and len(self._corrected) < MOST_CORRECTED:
                    self._corrected[word] = self._corrections(word, last=at == len(self._typed) - 1)
                yield from self._corrected.get(word, ())

    def _joined(self, at: int) -> tuple[int, Wanted] | None:
        for left, right in ((at - 1, at), (at, at + 1)):
            if left >= 0 and right < len(self._typed):
                whole = self._typed[left] + self._typed[right]
                term = self._vocabulary.term(whole)
                if term is not None:
                    typed = f"{self._typed[left]} {self._typed[right]}"
                    return right, Wanted(typed, (Known(whole, term),), corrected=True)
        return None

    def _corrections(self, word: str, *, last: bool) -> tuple[Wanted, ...]:
        nearest = self._vocabulary.nearest(word)
        if nearest.edits != 1:
            parts = self._vocabulary.split(word)
            if parts:
                return tuple(Wanted(word, (part,), corrected=True) for part in parts)
        options = nearest.options
        if last:
            # A word being typed has a beginning of one, or is misspelt: one edit is as likely as letters to come.
            completions = self._vocabulary.completions(word)
            near = options if nearest.edits == 1 or not completions else ()
            options = tuple({option.term: option for option in (*completions, *near)}.values())
        return (Wanted(word, options, corrected=True),) if options else ()
