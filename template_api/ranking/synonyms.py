"""Synonyms: words that templates may use for a word of the query. Pure; immutable."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Final

from template_api.ranking.tokens import STOP_WORDS, stem, words
from template_api.ranking.vocabulary import Words
from template_api.records import SynonymRule

Phrase = tuple[str, ...]
"""Folded words, one or several."""

# Written without umlauts, as on a keyboard that has none.
_UMLAUTS: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"})


class Synonyms:
    """A list of synonyms.

    A phrase is found in any form of its words (*sensors* as *sensor*), with or without accents, and with umlauts
    written either way (*Störung* as *stoerung*).
    """

    def __init__(self, rules: Sequence[SynonymRule] = ()) -> None:
        self._meant: defaultdict[Phrase, list[tuple[Phrase, ...]]] = defaultdict(list)
        single: set[str] = set()
        for rule in rules:
            # "log in" as a synonym of another word would find each "log": it is not searched for.
            phrases = map(_phrase, rule.meant)
            meant = tuple(phrase for phrase in phrases if len(phrase) == 1 or STOP_WORDS.isdisjoint(phrase))
            for each in rule.words:
                for phrase in {_phrase(each), _phrase(each.translate(_UMLAUTS))}:
                    self._meant[_stems(phrase)].append(meant)
                    single.update(phrase if len(phrase) == 1 else ())
        self._longest: dict[str, int] = {}
        for first, *others in self._meant:
            self._longest[first] = max(self._longest.get(first, 0), 1 + len(others))
        self.spelling = Words(single)
        """The phrases of one word, which misspellings are compared with."""

    def content_words(self, typed: Sequence[str]) -> list[str]:
        """Return words without stop words, except those of a phrase ("turn on")."""
        kept = [word not in STOP_WORDS for word in typed]
        for at, word in enumerate(typed):
            for end in range(at + 2, min(at + self.longest(word), len(typed)) + 1):
                if self.has(typed[at:end]):
                    kept[at:end] = [True] * (end - at)
        return [word for word, is_kept in zip(typed, kept, strict=True) if is_kept]

    def longest(self, word: str) -> int:
        """Return how many words the longest phrase has that begins with a word; 0 when none does."""
        return self._longest.get(stem(word), 0)

    def has(self, phrase: Sequence[str]) -> bool:
        """Return whether the list has a phrase."""
        return _stems(phrase) in self._meant

    def of(self, phrase: Sequence[str]) -> tuple[Phrase, ...]:
        """Return what a phrase means besides itself, in the order of the list."""
        stems = _stems(phrase)
        meant = chain.from_iterable(self._meant.get(stems, ()))
        found: dict[Phrase, Phrase] = {}
        for each in meant:
            found.setdefault(_stems(each), each)
        found.pop(stems, None)
        return tuple(found.values())


def _phrase(text: str) -> Phrase:
    """Return the words of a phrase, without stop words, unless too little would be left: "turn on" is not "turn"."""
    found = tuple(words(text))
    content_words = tuple(word for word in found if word not in STOP_WORDS)
    return content_words if len(content_words) > 1 else found


def _stems(phrase: Sequence[str]) -> Phrase:
    return tuple(map(stem, phrase))
