"""A set of words that misspellings are compared with. Pure; immutable."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

from template_api.ranking.tokens import within

# How many edits a word of at least so many letters may be from what was meant.
_EDITS: Final = ((8, 2), (4, 1))
_LACKS_A_LETTER: Final = 3  # a shorter word may only lack one: *tme* is "time", but *mpa* not "map"


class Words:
    """Some words, all of them folded.

    Args:
        words: these.
        others: more of them.
    """

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
        """Yield the words that another one may mean, each with its number of edits."""
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


def _digits(word: str) -> str:
    """Return the digits of a word: "esp32" and "esp23" are different things, not one of them misspelt."""
    return "" if word.isalpha() else "".join(filter(str.isdigit, word))
