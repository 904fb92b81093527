"""What a query means: for each of its words, the terms that a template may have for it, and how much each counts.

Misspellings are corrected and synonyms looked up in the query, before anything is ranked. Pure; any thread may call it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from template_api.ranking.tokens import FOREIGN_STOP_WORDS, STOP_WORDS, stem, words
from template_api.ranking.vocabulary import Phrase, Synonyms, Vocabulary
from template_api.records import Word

# Looking for the nearest words costs some tenths of a millisecond; a question has few unknown words, an attack many.
MOST_CORRECTED: Final = 32
_MOST_DOUBTED: Final = 8  # likewise; of many words one more or less matters little
_SYNONYMS: Final = 12  # of one word that are searched
_SHORTEST_OF_COMPOUND: Final = 4
_ENDINGS: Final = ("", "s", "n", "en", "es", "e")  # of a German noun, also as the first part of a compound
NO_SYNONYMS: Final = Synonyms()


class Origin(Enum):
    """Where a term that is searched for a word comes from, and what it counts beside the word as typed."""

    TYPED = 1.0
    CORRECTED = 0.9
    DOUBTED = 0.7
    SYNONYM = 0.6


class Option(NamedTuple):
    """What a word of the query may mean: a word of the library, or several that a template must all have.

    `rarity` is what it counts if it was typed, by its idf. A correction or a synonym has less `weight`.
    """

    words: Phrase
    origin: Origin
    rarity: float

    @property
    def weight(self) -> float:
        """What finding it counts."""
        return self.rarity * self.origin.value

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms that a template must have."""
        return tuple(map(stem, self.words))

    def word(self, typed: str) -> Word:
        """Return the word as typed with what was found for it."""
        return Word(typed, " ".join(self.words), self.origin is Origin.SYNONYM)


@dataclass(frozen=True, slots=True)
class QueryWord:
    """A word of the query, how often it was typed, and what it may mean, likeliest first; the best match counts."""

    typed: str
    options: tuple[Option, ...]
    count: int = 1

    @property
    def is_typed(self) -> bool:
        """Whether the library has the word as typed."""
        return self.options[0].origin is Origin.TYPED


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a query means: its words that the library can match, in order, and those that it has nothing for."""

    query_words: tuple[QueryWord, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def corrected(self) -> tuple[Word, ...]:
        """The words of the query for which others are searched: in their place, or beside them.

        The parts of one word are together.
        """
        changed: dict[str, Word] = {}
        for each in self.query_words:
            doubted = next((option for option in each.options if option.origin is Origin.DOUBTED), None)
            option = doubted if each.is_typed else each.options[0]
            if option is not None:
                word, before = option.word(each.typed), changed.get(each.typed)
                changed[each.typed] = replace(word, found=f"{before.found} {word.found}") if before else word
        return tuple(changed.values())


def interpret(text: str, vocabulary: Vocabulary, synonyms: Synonyms, *, exact: bool = False) -> Meaning:
    """Return what a query means.

    Stop words are dropped unless there is nothing else. A word that the library has in any form is kept; if a much
    commoner one is near, both are searched, since the library may misspell that one. Another word that has synonyms is
    read as these.

    For any other word these are tried: one word that a space divides, two words without their space (unless a known
    word is one edit away), the beginning of a word if it is the last, the nearest known words, and the nearest word
    with synonyms. If nothing fits, it is ignored. `exact` keeps words as they are.
    """
    synonyms = NO_SYNONYMS if exact else synonyms
    typed = words(text)
    if not STOP_WORDS.issuperset(typed):
        typed = synonyms.content_words(typed)
    reader = _Reader(typed, vocabulary, synonyms, exact=exact)
    found: dict[tuple[str, ...], QueryWord] = {}
    for wanted in reader.read():
        key = wanted.options[0].terms
        before = found.get(key)
        if before is None:
            found[key] = wanted
        else:
            found[key] = replace(before if before.is_typed else wanted, count=before.count + 1)
    return Meaning(tuple(found.values()), tuple(dict.fromkeys(reader.ignored)))


class _Reader:
    """One reading of a query from left to right."""

    def __init__(self, typed: Sequence[str], vocabulary: Vocabulary, synonyms: Synonyms, *, exact: bool) -> None:
        self._typed = typed
        self._vocabulary = vocabulary
        self._synonyms = synonyms
        self._exact = exact
        # A query with another word that the library lacks counts as foreign: "de" is one of its stop words.
        others = [word for word in typed if word not in FOREIGN_STOP_WORDS and word not in STOP_WORDS]
        is_foreign = not exact and any(vocabulary.term(word) is None for word in others)
        # Words that only count as part of a phrase.
        self._dropped = frozenset() if STOP_WORDS.issuperset(typed) else STOP_WORDS
        self._dropped |= FOREIGN_STOP_WORDS if is_foreign else frozenset()
        self._corrected: dict[str, tuple[QueryWord, ...]] = {}
        self._doubted = 0
        self.ignored: list[str] = []

    def read(self) -> Iterator[QueryWord]:
        """Yield the words that the library can match, and note the others."""
        at = 0
        while at < len(self._typed):
            length, wanted = self._phrase(at) or self._word(at)
            yield from wanted
            at += length

    def _phrase(self, at: int) -> tuple[int, tuple[QueryWord, ...]] | None:
        """Return the longest phrase of synonyms that begins here: its number of words, two or more, and its meaning."""
        for length in range(min(self._synonyms.longest, len(self._typed) - at), 1, -1):
            phrase = self._typed[at : at + length]
            if self._synonyms.has(phrase) and (meant := self._meant(phrase)):
                each = [QueryWord(word, self._known(word)) for word in phrase if word not in self._dropped]
                if not each or not all(one.options for one in each):
                    return length, (QueryWord(" ".join(phrase), meant),)
                first, *others = each  # in place of the first word, beside the others
                return length, (replace(first, options=(*first.options, *meant)), *others)
        return None

    def _word(self, at: int) -> tuple[int, tuple[QueryWord, ...]]:
        """Return what the word here means, after the number of words that it takes: 2 if a space divides it."""
        word, last = self._typed[at], at == len(self._typed) - 1
        if word in self._dropped:
            return 1, ()
        options = self._known(word)
        if options and not self._exact:
            options += (*self._likelier(word, options), *self._meant([word], options))
        if options or self._exact:
            self.ignored += [] if options else [word]
            return 1, self._one(word, options)
        for left in (at - 1, at):
            parts = self._typed[max(left, 0) : left + 2]
            joined = "".join(parts)
            if len(parts) > 1 and (options := self._known(joined, Origin.CORRECTED)):
                is_second_read = left == at and self._vocabulary.term(self._typed[at + 1]) is None
                options += self._meant([joined], options)
                return 2 if is_second_read else 1, self._one(" ".join(parts), options)
        if word not in self._corrected and len(self._corrected) < MOST_CORRECTED:
            self._corrected[word] = self._unknown(word, last=last)
        wanted = self._corrected.get(word, ())
        if not wanted and word not in FOREIGN_STOP_WORDS:
            self.ignored.append(word)
        return 1, wanted

    def _known(self, word: str, origin: Origin = Origin.TYPED) -> tuple[Option, ...]:
        term = self._vocabulary.term(word)
        return () if term is None else (Option((word,), origin, self._vocabulary.idf(term)),)

    def _likelier(self, word: str, options: Sequence[Option]) -> tuple[Option, ...]:
        """Return the much commoner words that a known word may be misspelt for, in the library and in the query."""
        if self._synonyms.has([word]) or self._doubted == _MOST_DOUBTED:
            return ()
        commoner = self._vocabulary.commoner_words(word)
        self._doubted += commoner is not None
        return self._weighed([commoner], Origin.DOUBTED, options) if commoner else ()

    def _meant(self, phrase: Sequence[str], options: Sequence[Option] = ()) -> tuple[Option, ...]:
        """Return the synonyms of a phrase that the library has; all count as much as the commonest."""
        meant = [each for each in self._synonyms.of(phrase) if all(map(self._vocabulary.term, each))]
        return self._weighed(meant[:_SYNONYMS], Origin.SYNONYM, options)

    def _weighed(self, meanings: Sequence[Phrase], origin: Origin, before: Sequence[Option] = ()) -> tuple[Option, ...]:
        """Return meanings as options that all have the rarity of the commonest, at most that of the options before."""
        rarities = [max(self._vocabulary.idf(stem(word)) for word in each) for each in meanings]
        rarity = min([*rarities, *(option.rarity for option in before)], default=0.0)
        return tuple(Option(each, origin, rarity) for each in meanings)

    def _unknown(self, word: str, *, last: bool) -> tuple[QueryWord, ...]:
        if word in FOREIGN_STOP_WORDS:
            return ()
        if self._synonyms.has([word]):
            return self._one(word, self._meant([word]))
        known, edits = self._vocabulary.nearest(word)
        if edits != 1:
            parts = self._vocabulary.split_word(word)
            parted = tuple(QueryWord(word, self._weighed([(part,)], Origin.CORRECTED)) for part in parts)
            if parted := parted or self._compound(word):
                return parted
        if last:
            # A word being typed has a beginning of one, or is misspelt: one edit is as likely as letters to come.
            completions = self._vocabulary.completions(word)
            near = known if edits == 1 or not completions else ()
            known = tuple({stem(each): each for each in (*completions, *near)}.values())
        if known or edits:
            return self._one(word, self._weighed([(each,) for each in known], Origin.CORRECTED))
        near_synonyms = (self._meant([each]) for each in self._synonyms.spelling.nearest(word)[0])
        return self._one(word, next(filter(None, near_synonyms), ()))

    def _compound(self, word: str) -> tuple[QueryWord, ...]:
        """Return what the parts of a compound mean, or its plural, if the library or the list of synonyms has them.

        Of several ways to part it, the one whose shorter part is longest: *Funksensoren* is *Funk* and *Sensoren*.
        """
        places = range(_SHORTEST_OF_COMPOUND, len(word) - _SHORTEST_OF_COMPOUND + 1)
        for at in sorted(places, key=lambda at: abs(2 * at - len(word))):
            left = self._noun(word, word[:at])
            right = None if left is None else self._noun(word, word[at:])
            if left is not None and right is not None and (left or right):
                return (*left, *right)
        return self._noun(word, word) or ()

    def _noun(self, word: str, part: str) -> tuple[QueryWord, ...] | None:
        """Return what a noun means as a part of a word, without its ending; None where there is no such noun."""
        for ending in _ENDINGS:
            noun = part.removesuffix(ending)
            if part.endswith(ending) and len(noun) >= _SHORTEST_OF_COMPOUND:
                for whole in (noun, noun + "e"):  # an e is lost between parts: Suche, Suchindex
                    is_noun = self._vocabulary.has(whole) or self._synonyms.has([whole])
                    if is_noun and whole not in STOP_WORDS:
                        return self._one(word, self._known(whole, Origin.CORRECTED) or self._meant([whole]))
        return None

    def _one(self, word: str, options: tuple[Option, ...]) -> tuple[QueryWord, ...]:
        return (QueryWord(word, options),) if options else ()
