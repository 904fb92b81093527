"""The words that the library knows, and the known words meant by one that it does not know.

Immutable once built; any thread may ask. *Word* is a folded word as it stands in a text, *term* the number of its stem.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from template_api.ranking.fuzzy import within
from template_api.ranking.stemmer import stem
from template_api.ranking.tokens import STOP_WORDS

# How many edits a word of at least so many letters may be from what was meant.
_EDITS: Final = ((8, 2), (4, 1))
_CANDIDATES: Final = 3
_COMPLETIONS: Final = 10
_SHORTEST_PART: Final = 3
_LAST_CHARACTER: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Known:
    """A word of the library and its term."""

    word: str
    term: int


@dataclass(frozen=True, slots=True)
class Nearest:
    """The known words nearest to an unknown one, all equally many edits away."""

    options: tuple[Known, ...]
    edits: int


class Vocabulary:
    """The library's words.

    `words` maps each word and `stems` each stem to its term, `frequency` counts the templates that have a term.
    """

    def __init__(self, words: Mapping[str, int], stems: Mapping[str, int], frequency: Callable[[int], int]) -> None:
        self._words = words
        self._stems = stems
        self._frequency = frequency
        self._sorted = sorted(words)
        self._first_letters = sorted({word[0] for word in self._sorted if word[0].isalpha()})
        buckets: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for word in sorted(STOP_WORDS.union(self._sorted)):
            buckets[word[0], len(word)].append(word)
        self._buckets = dict(buckets)

    def term(self, word: str) -> int | None:
        """Return the term of a word, or None when no template has it in any form."""
        term = self._words.get(word)
        return self._stems.get(stem(word)) if term is None else term

    def split(self, word: str) -> tuple[Known, ...]:
        """Return the two known words that an unknown one consists of, the commonest such pair; else nothing."""
        best: tuple[int, tuple[Known, ...]] = (0, ())
        for at in range(_SHORTEST_PART, len(word) - _SHORTEST_PART + 1):
            left, right = self._words.get(word[:at]), self._words.get(word[at:])
            if left is not None and right is not None and STOP_WORDS.isdisjoint((word[:at], word[at:])):
                rarer = min(self._frequency(left), self._frequency(right))
                if rarer > best[0]:
                    best = (rarer, (Known(word[:at], left), Known(word[at:], right)))
        return best[1]

    def completions(self, beginning: str) -> tuple[Known, ...]:
        """Return the commonest words with this beginning, at most ten, no two of one term."""
        start, end = bisect_left(self._sorted, beginning), bisect_left(self._sorted, beginning + _LAST_CHARACTER)
        return self._commonest((self._sorted[at] for at in range(start, end)), _COMPLETIONS)

    def nearest(self, word: str) -> Nearest:
        """Return the commonest of the words fewest edits from an unknown one, at most three, no two of one term.

        When a stop word is nearer than any other, the unknown word means nothing and there are no options.
        """
        edits = dict(self._near(word))
        least = min(edits.values(), default=0)
        nearest = sorted(near for near, count in edits.items() if count == least and near not in STOP_WORDS)
        return Nearest(self._commonest(nearest, _CANDIDATES), least)

    def _near(self, word: str) -> Iterator[tuple[str, int]]:
        """Yield the known words and stop words that the word may stand for, each with its number of edits."""
        most = next((edits for length, edits in _EDITS if len(word) >= length), 0)
        if not most:
            return
        digits = _digits(word)
        for length in range(len(word) - most, len(word) + most + 1):
            for near, edits in within(word, self._buckets.get((word[0], length), ()), most):
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
            if near[0] != word[0] and (near in self._words or near in STOP_WORDS):
                yield near

    def _commonest(self, words: Iterable[str], most: int) -> tuple[Known, ...]:
        by_term: dict[int, str] = {}
        for word in words:
            by_term.setdefault(self._words[word], word)
        terms = sorted(by_term, key=lambda term: (-self._frequency(term), by_term[term]))
        return tuple(Known(by_term[term], term) for term in terms[:most])


def _digits(word: str) -> str:
    """Return the digits of a word: "esp32" and "esp23" are different things, not one of them misspelt."""
    return "" if word.isalpha() else "".join(filter(str.isdigit, word))
