"""The ranking of a library: build it from documents, ask it with a text.

Built in one thread, then immutable: any number of threads may search at once.
"""

from array import array
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from template_api.ranking.fuzzy import title_likeness
from template_api.ranking.interpretation import Wanted, interpret
from template_api.ranking.postings import Clause, PostingsBuilder
from template_api.ranking.tokens import words
from template_api.ranking.vocabulary import Vocabulary

# What a word weighs, where one of the content weighs CONTENT_WEIGHT, 2.
TITLE_WEIGHT: Final = 7
LABELS_WEIGHT: Final = 4
SHORT_DESCRIPTION_WEIGHT: Final = 3
CELLS_WEIGHT: Final = 1
# A corrected word counts a little less than one found as typed, so that of two equal templates the exact one is first.
_CORRECTED: Final = 0.9
# How many of the best are ordered anew by their titles, and how much a title that says just the query adds.
_REORDERED: Final = 60
_TITLE_BONUS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Document:
    """A template as the ranking sees it; `labels` are the names of its tags, routes, category and broker version."""

    key: str
    title: str
    labels: str
    short_description: str
    content: str
    cells: str


@dataclass(frozen=True, slots=True)
class Match:
    """A word of the query as typed and as found in a template: the same, or another one when it was corrected."""

    typed: str
    found: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A template found: its position among the documents, its key, its score (above 0, at most 1), the words it has."""

    position: int
    key: str
    score: float
    matched: tuple[Match, ...]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The templates found, best first."""

    hits: tuple[Hit, ...]


class Ranking:
    """An immutable index of documents, which are given newest first: of two equally good ones the newer is first."""

    def __init__(self, documents: Iterable[Document]) -> None:
        builder = PostingsBuilder()
        self._keys: list[str] = []
        self._titles: list[str] = []
        for document in documents:
            builder.add(document.content, _other_fields(document))
            self._keys.append(document.key)
            self._titles.append(" ".join(words(document.title)))
        self._postings = builder.build()
        frequencies = array("I", (self._postings.frequency(term) for term in range(len(builder.stems))))
        self._vocabulary = Vocabulary(builder.words, builder.stems, frequencies)

    def __len__(self) -> int:
        return len(self._keys)

    def search(self, text: str, limit: int, accept: Container[int] | None = None) -> Ranked:
        """Return at most `limit` templates that have a word of the text, best first.

        `accept` holds the positions that may be returned, None meaning all. A score is the share of what a template
        could reach at most for this text, were every word found as typed, over and over, and its title just these.
        """
        wanted = interpret(text, self._vocabulary)
        if not wanted or limit < 1:
            return Ranked(())
        clauses = [_clause(each) for each in wanted]
        best = self._postings.best(clauses, max(limit, _REORDERED), accept)
        ideal = (1 + _TITLE_BONUS) * sum(each.count * self._postings.ideal(each.terms) for each in wanted)
        return Ranked(
            tuple(
                Hit(position, self._keys[position], round(score / ideal, 6), tuple(self._matched(position, wanted)))
                for position, score in self._reordered(best, wanted)[:limit]
            )
        )

    def _reordered(self, best: list[tuple[int, float]], wanted: tuple[Wanted, ...]) -> list[tuple[int, float]]:
        query = " ".join(each.options[0].word for each in wanted)
        top = [
            (position, score * (1 + _TITLE_BONUS * title_likeness(query, self._titles[position])))
            for position, score in best[:_REORDERED]
        ]
        return sorted(top, key=lambda item: (-item[1], item[0])) + best[_REORDERED:]

    def _matched(self, position: int, wanted: tuple[Wanted, ...]) -> Iterator[Match]:
        for each in wanted:
            for option in each.options:
                if self._postings.has(position, option.term):
                    yield Match(each.typed, option.word)
                    break


def _clause(wanted: Wanted) -> Clause:
    return Clause(wanted.terms, wanted.count * (_CORRECTED if wanted.corrected else 1))


def _other_fields(document: Document) -> Iterator[tuple[str, int]]:
    yield document.title, TITLE_WEIGHT
    yield document.labels, LABELS_WEIGHT
    if not _opens(document.content, document.short_description):
        yield document.short_description, SHORT_DESCRIPTION_WEIGHT
    yield document.cells, CELLS_WEIGHT


def _opens(content: str, short_description: str) -> bool:
    """Tell whether a description is just the beginning of the content, which would count its words twice."""
    return content.lstrip().startswith(short_description.strip().rstrip(".… "))
