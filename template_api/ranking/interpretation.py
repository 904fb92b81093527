"""What a query means: its words, each with the library's words that may be meant by it.

Pure; any thread may call it. This is where misspellings are put right: in the query, before anything is ranked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from template_api.ranking.tokens import STOP_WORDS, words
from template_api.ranking.vocabulary import Known, Vocabulary

# Looking for the nearest words costs some tenths of a millisecond; a question has few unknown words, an attack many.
MOST_CORRECTED: Final = 32


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
                else:
                    yield from self._correct(word, last=at == len(self._typed) - 1)

    def _joined(self, at: int) -> tuple[int, Wanted] | None:
        for left, right in ((at - 1, at), (at, at + 1)):
            if left >= 0 and right < len(self._typed):
                whole = self._typed[left] + self._typed[right]
                term = self._vocabulary.term(whole)
                if term is not None:
                    typed = f"{self._typed[left]} {self._typed[right]}"
                    return right, Wanted(typed, (Known(whole, term),), corrected=True)
        return None

    def _correct(self, word: str, *, last: bool) -> tuple[Wanted, ...]:
        if word not in self._corrected:
            if len(self._corrected) >= MOST_CORRECTED:
                return ()
            self._corrected[word] = self._corrections(word, last=last)
        return self._corrected[word]

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
