"""The ranking of a library: build it from documents, ask it with a text.

Built in one thread, then immutable: any number of threads may search at once.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from template_api.ranking.building import PostingsBuilder, Terms
from template_api.ranking.fuzzy import title_likeness
from template_api.ranking.interpretation import Wanted, interpret
from template_api.ranking.postings import Clause, Order, Postings
from template_api.ranking.tokens import words
from template_api.ranking.vocabulary import Vocabulary

# What a word weighs, where one of the content weighs CONTENT_WEIGHT, 2.
TITLE_WEIGHT: Final = 7
LABELS_WEIGHT: Final = 4
SHORT_DESCRIPTION_WEIGHT: Final = 3
CELLS_WEIGHT: Final = 1
# A corrected word counts a little less than one found as typed, so that of two equal templates the exact one is first.
_CORRECTED: Final = 0.9
# How many of the best are ordered anew by their titles. A title adds up to a fifth for words shared with the query,
# rare or not, and up to a fifth for how much of what it says, common words counting less, the query has asked for.
# The second gained 0 to 0.008 nDCG on three test collections, typos or not; with queries of three title words nothing.
_REORDERED: Final = 60
_TITLE_BONUS: Final = 0.2
_TITLE_COVERED_BONUS: Final = 0.2
# A template that was found scores more than nothing, however little it has of a long question.
_LEAST_SCORE: Final = 1e-6
# Comparing sixty titles stays quick, however long someone makes them.
_TITLE_WORDS: Final = 50


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


@dataclass(frozen=True, slots=True)
class Index:
    """What a ranking knows of its documents: their words and, by slot, their keys and folded titles."""

    terms: Terms
    postings: Postings
    keys: list[str]
    titles: list[str]


class Ranking:
    """An immutable index of documents, which are given newest first: of two equally good ones the newer is first.

    Args:
        documents: newest first, read once; the number of a document in this order is its *position*.
        base: an index to share, the documents being what has changed since; for `updated`.
        order: with `base`, the keys of all documents that shall be found, newest first.
    """

    def __init__(
        self, documents: Iterable[Document], base: Index | None = None, order: Sequence[str] | None = None
    ) -> None:
        later: dict[str, Document] = {}
        if base is not None:
            later = {document.key: document for document in documents}
            documents = later.values()
        index = _index(documents, base)
        self._base = index if base is None else base
        self._later = later
        self._terms, self._postings = index.terms, index.postings
        self._keys, self._titles = index.keys, index.titles
        everything = range(len(index.keys))
        self._order = Order(everything, everything) if order is None else _order(index.keys, order)
        self._size = len(index.keys) if order is None else len(order)
        # A document that is gone has the position -1, which is in no range.
        self._all = None if self._size == len(index.keys) else range(self._size)
        self._vocabulary = Vocabulary(index.terms, index.terms.stems, index.postings.frequency)

    def __len__(self) -> int:
        return self._size

    @property
    def pending(self) -> int:
        """How many documents have come or gone by `updated`; above a thousand or so, better build a ranking anew."""
        return 2 * len(self._keys) - len(self._base.keys) - self._size

    def updated(self, changed: Iterable[Document], order: Sequence[str]) -> "Ranking":
        """Return a ranking that shares this one's index: quick when few documents have changed.

        It takes some hundredths of a second whatever the size of the library, and a fraction of a millisecond for each
        document that has changed since the ranking was built anew. How rare a word is and what is known is not counted
        anew for documents that are gone, so scores differ a little from those of a ranking built anew.

        Args:
            changed: documents that are new, or differ from those known with the same key.
            order: the keys of all documents that shall be found, newest first; others are no longer found.

        Raises:
            ValueError: `order` has a key that is neither known nor among the changed.
        """
        wanted = frozenset(order)
        later = self._later | {document.key: document for document in changed}
        return Ranking((document for key, document in later.items() if key in wanted), self._base, order)

    def search(self, text: str, limit: int, accept: Collection[int] | None = None) -> Ranked:
        """Return at most `limit` templates that have a word of the text, best first.

        `accept` holds the positions that may be returned, None meaning all. A score is the share of what a template
        could reach at most for this text, were every word found as typed, over and over, and its title just these.
        """
        wanted = interpret(text, self._vocabulary)
        if not wanted or limit < 1:
            return Ranked(())
        clauses = [_clause(each) for each in wanted]
        within = self._all if accept is None else accept
        exact = accept is not None
        best = self._postings.best(clauses, max(limit, _REORDERED), self._order, within, exact=exact)
        ideal = sum(each.count * self._postings.ideal(each.terms) for each in wanted)
        ideal *= (1 + _TITLE_BONUS) * (1 + _TITLE_COVERED_BONUS)
        return Ranked(tuple(self._hit(*each, ideal, wanted) for each in self._reordered(best, wanted)[:limit]))

    def _reordered(self, best: list[tuple[int, float]], wanted: tuple[Wanted, ...]) -> list[tuple[int, float]]:
        query = " ".join(each.options[0].word for each in wanted)
        asked = frozenset(term for each in wanted for term in each.terms)
        top = []
        for slot, score in best[:_REORDERED]:
            title = self._titles[slot]
            bonus = 1 + _TITLE_BONUS * title_likeness(query, title)
            bonus *= 1 + _TITLE_COVERED_BONUS * self._covered(title, asked)
            top.append((slot, score * bonus))
        return sorted(top, key=lambda item: (-item[1], self._order.positions[item[0]])) + best[_REORDERED:]

    def _covered(self, title: str, asked: Container[int]) -> float:
        """Return how much of a title is asked for, 0 to 1, each of its words counting by its idf."""
        covered = total = 0.0
        # Every word of a title is indexed, so [] never makes a term here.
        for term in {self._terms[word] for word in title.split()} - self._terms.stops:
            idf = self._postings.idf((term,))
            total += idf
            covered += idf if term in asked else 0.0
        return covered / total if total else 0.0

    def _hit(self, slot: int, score: float, ideal: float, wanted: tuple[Wanted, ...]) -> Hit:
        matched = []
        for each in wanted:
            found = next((option for option in each.options if self._postings.has(slot, option.term)), None)
            if found is not None:
                matched.append(Match(each.typed, found.word))
        share = max(round(score / ideal, 6), _LEAST_SCORE)
        return Hit(self._order.positions[slot], self._keys[slot], share, tuple(matched))


def _index(documents: Iterable[Document], base: Index | None) -> Index:
    """Index documents, after those of a base if given, which stays as it is."""
    terms = Terms(base.terms if base else None)
    keys = list(base.keys) if base else []
    titles = list(base.titles) if base else []
    builder = PostingsBuilder(terms, len(keys))
    for document in documents:
        builder.add(document.content, _other_fields(document))
        keys.append(document.key)
        titles.append(" ".join(words(document.title)[:_TITLE_WORDS]))
    return Index(terms, builder.build(base.postings if base else None), keys, titles)


def _order(keys: Sequence[str], order: Sequence[str]) -> Order:
    """Return where each slot stands in an order of keys; a key's last slot is its own."""
    last = {key: slot for slot, key in enumerate(keys)}
    positions = [-1] * len(keys)
    slots = []
    for position, key in enumerate(order):
        if key not in last:
            raise ValueError(f"document {key!r} is in the order, but neither known nor changed")
        positions[last[key]] = position
        slots.append(last[key])
    return Order(positions, slots)


def _clause(wanted: Wanted) -> Clause:
    return Clause(wanted.terms, wanted.count * (_CORRECTED if wanted.corrected else 1))


def _other_fields(document: Document) -> Iterator[tuple[str, int]]:
    yield document.title, TITLE_WEIGHT
    yield document.labels, LABELS_WEIGHT
    if not _opens(document.content, document.short_description):
        yield document.short_description, SHORT_DESCRIPTION_WEIGHT
    yield document.cells, CELLS_WEIGHT


def _opens(content: str, short_description: str) -> bool:
    """Tell whether a description is just the beginning of the content: its words shall not count twice."""
    return content.lstrip().startswith(short_description.strip().rstrip(".… "))
