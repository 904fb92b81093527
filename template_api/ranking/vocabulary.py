"""What the words of a query are compared with: the words of the library, and a list of synonyms.

Immutable; any thread may use it. A *word* is a folded word as it occurs in a text, its *term* is the stem. How many
templates have a term is read from the index; the words themselves are in memory, to be compared with misspellings.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain
from math import log
from typing import Final

from tantivy import Searcher

from template_api.ranking.fields import term_field
from template_api.ranking.tokens import STOP_WORDS, stem, within, words
from template_api.records import SynonymRule

Phrase = tuple[str, ...]
"""Folded words, one or several."""

_MOST_CORRECTIONS: Final = 3
_MOST_COMPLETIONS: Final = 10
_FORMS: Final = 5  # words compared for each completion: several are forms of one word
SHORTEST_PART: Final = 3
# A word of the library is doubted, since it may be misspelt there, if it has at least 5 letters and a near word is in
# at least 5 times as many templates.
SHORTEST_DOUBTED: Final = 5
_MUCH_COMMONER: Final = 5
_RARE: Final = 2  # templates that a rare word is in at most, and one more for each thousand
_RARE_ONE_IN: Final = 1000

_EDITS: Final = ((8, 2), (3, 1))  # a word of 8 letters or more may be misspelt by 2 edits, one of 3 or more by 1
_LACKS_A_LETTER: Final = 3  # letters of a word that may only lack one: *tme* is "time", but *mpa* is not "map"

# How umlauts are written on a keyboard without them.
_UMLAUTS: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"})


class Words:
    """A set of folded words that misspellings are compared with: `words`, and those of an earlier set. Immutable."""

    def __init__(self, words: Iterable[str] = (), earlier: "Words | None" = None) -> None:
        added: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for word in words:
            added[word[0], len(word)].add(word)
        known = dict(earlier.by_form) if earlier is not None else {}
        grown = {form: new | known.get(form, set()) for form, new in added.items()}
        self.by_form: Mapping[tuple[str, int], Set[str]] = known | grown  # first letter and length
        self._first_letters = sorted({letter for letter, _ in self.by_form if letter.isalpha()})

    def __contains__(self, word: str) -> bool:
        return word in self.by_form.get((word[:1], len(word)), ())

    def nearest(self, word: str, passes: Callable[[str], bool] = bool) -> tuple[list[str], int]:
        """Return the words nearest to a misspelt one, of those that pass, and how many edits they are away."""
        most = next((edits for length, edits in _EDITS if len(word) >= length), 0)
        near = self.within_edits(word, most) if most else {}
        if most and not (word[0].isdigit() or word[1].isdigit()):
            # Words with another first letter: the possible ones are looked up, since to compare all would take long.
            changed = [word[1:], word[1] + word[0] + word[2:]]
            changed += [letter + rest for letter in self._first_letters for rest in (word, word[1:])]
            near |= {each: 1 for each in changed if each[0] != word[0] and each in self}
        if len(word) == _LACKS_A_LETTER:
            near = {each: edits for each, edits in near.items() if len(each) > len(word)}
        passed = {each: edits for each, edits in near.items() if passes(each)}
        least = min(passed.values(), default=0)
        return sorted(each for each, edits in passed.items() if edits == least), least

    def within_edits(self, word: str, most: int = 1) -> dict[str, int]:
        """Return the words at most `most` edits away, with their edits; first letter and digits have to be the same."""
        digits = _digits(word)
        lengths = range(len(word) - most, len(word) + most + 1)
        near = chain.from_iterable(within(word, self.by_form.get((word[0], length), ()), most) for length in lengths)
        return {each: edits for each, edits in near if _digits(each) == digits}


class Vocabulary:
    """The words of one state of the index; `spelling` has these and the stop words."""

    def __init__(self, searcher: Searcher, spelling: Words) -> None:
        self._searcher = searcher
        self.spelling = spelling
        self._size = searcher.num_docs
        self._frequencies: dict[str, int] = {}

    def has(self, word: str) -> bool:
        """Return whether a template has a word in exactly this form; true for stop words."""
        return word in self.spelling

    def term(self, word: str) -> str | None:
        """Return the term of a word, or None when no template has it in any form."""
        term = stem(word)
        if term_field(term) != "text" and not self.has(word):
            return None  # it is unknown, although its stem is that of a stop word: *Suche* is not "such"
        return term if self.frequency(term) else None

    def frequency(self, term: str) -> int:
        """Return how many templates have a term; those that have left the library lately may be counted."""
        known = self._frequencies.get(term) or self._searcher.doc_freq(term_field(term), term)
        if known:  # words that callers invent must not fill the memory
            self._frequencies[term] = known
        return known

    def idf(self, term: str) -> float:
        """Return the inverse document frequency of a term, above 0."""
        frequency = self.frequency(term)
        return log(1 + (max(self._size, frequency) - frequency + 0.5) / (frequency + 0.5))

    def split_word(self, word: str, beyond: int = 0) -> Phrase:
        """Return the commonest pair of known words that a word consists of, both in more than `beyond` templates."""
        pairs = [(word[:at], word[at:]) for at in range(SHORTEST_PART, len(word) - SHORTEST_PART + 1)]
        known = [pair for pair in pairs if all(map(self.has, pair)) and STOP_WORDS.isdisjoint(pair)]
        rarer = {pair: min(self.frequency(stem(part)) for part in pair) for pair in known}
        return max((pair for pair in rarer if rarer[pair] > beyond), key=rarer.__getitem__, default=())

    def completions(self, beginning: str) -> tuple[str, ...]:
        """Return the commonest words with this beginning, at most ten, no two of one term."""
        begun = self._searcher.terms_with_prefix("words", beginning, limit=_MOST_COMPLETIONS * _FORMS)
        return self._commonest(sorted(word for word, _ in begun), _MOST_COMPLETIONS)

    def nearest(self, word: str) -> tuple[tuple[str, ...], int]:
        """Return the commonest of the words that are nearest to an unknown one, and how many edits they are away.

        They are at most three, no two of one term. There are none if a stop word is nearer than any other word.
        """
        # `spelling` also has words whose last template has left the library; they do not pass.
        near, edits = self.spelling.nearest(word, lambda each: each in STOP_WORDS or self.term(each) is not None)
        return self._commonest([each for each in near if each not in STOP_WORDS], _MOST_CORRECTIONS), edits

    def commoner_words(self, word: str) -> Phrase | None:
        """Return what a rare word may be misspelt for: a much commoner word, or two words without their space.

        The phrase is empty if there is neither. None if the word is not rare.
        """
        frequency = self.frequency(stem(word))
        if frequency > _RARE + self._size // _RARE_ONE_IN:
            return None
        least = frequency * _MUCH_COMMONER
        near = self.spelling.within_edits(word) if len(word) >= SHORTEST_DOUBTED else {}
        likely = (each for each in near if each not in STOP_WORDS and self.frequency(stem(each)) >= least)
        return self._commonest(likely, 1) or self.split_word(word, beyond=least - 1)

    def _commonest(self, words: Iterable[str], most: int) -> tuple[str, ...]:
        by_term: dict[str, str] = {}
        for word in words:
            by_term.setdefault(stem(word), word)
        terms = sorted(by_term, key=lambda term: (-self.frequency(term), by_term[term]))
        return tuple(by_term[term] for term in terms[:most])


class Synonyms:
    """A list of synonyms.

    A phrase is found in any form of its words (*sensors* as *sensor*), with or without accents, and with umlauts
    written either way (*Störung* as *stoerung*).
    """

    def __init__(self, rules: Sequence[SynonymRule] = ()) -> None:
        self._meant: defaultdict[Phrase, dict[Phrase, Phrase]] = defaultdict(dict)
        single: set[str] = set()
        for rule in rules:
            # A phrase with a stop word is not searched for: "log in" would find each "log".
            phrases = [each for each in map(_phrase, rule.meant) if len(each) == 1 or STOP_WORDS.isdisjoint(each)]
            # Of phrases with the same stems the first one is shown: `reversed` assigns it last.
            meant = {_stems(each): each for each in (*phrases, *reversed(phrases))}
            for each in rule.words:
                for phrase in {_phrase(each), _phrase(each.translate(_UMLAUTS))}:
                    known = self._meant[_stems(phrase)]
                    known |= meant | known
                    single.update(phrase if len(phrase) == 1 else ())
        self.longest = max(map(len, self._meant), default=0)
        """How many words the longest phrase has."""
        self.spelling = Words(single)

    def content_words(self, typed: Sequence[str]) -> list[str]:
        """Return words without stop words, except those of a phrase ("turn on")."""
        kept = [word not in STOP_WORDS for word in typed]
        for at in range(len(typed)):
            for end in range(at + 2, min(at + self.longest, len(typed)) + 1):
                if self.has(typed[at:end]):
                    kept[at:end] = [True] * (end - at)
        return [word for word, is_kept in zip(typed, kept, strict=True) if is_kept]

    def has(self, phrase: Sequence[str]) -> bool:
        """Return whether the list has a phrase."""
        return _stems(phrase) in self._meant

    def of(self, phrase: Sequence[str]) -> tuple[Phrase, ...]:
        """Return what a phrase means besides itself, in the order of the list."""
        stems = _stems(phrase)
        return tuple(each for key, each in self._meant.get(stems, {}).items() if key != stems)


def _digits(word: str) -> str:
    """Return the digits of a word: "esp32" and "esp23" are different things, not one of them misspelt."""
    return "" if word.isalpha() else "".join(filter(str.isdigit, word))


def _phrase(text: str) -> Phrase:
    """Return the words of a phrase, without stop words, unless too little would be left: "turn on" is not "turn"."""
    found = tuple(words(text))
    content_words = tuple(word for word in found if word not in STOP_WORDS)
    return content_words if len(content_words) > 1 else found


def _stems(phrase: Sequence[str]) -> Phrase:
    return tuple(map(stem, phrase))
