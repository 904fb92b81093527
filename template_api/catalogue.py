"""The published templates of one version of the library, in memory: their order, what filters look at, and the ranking.

Pure: a catalogue is built from entries and never changes, so any number of threads may read it. The texts of the
templates are not kept here, only the ranking's index over them.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from template_api.query import TemplateQuery
from template_api.ranking import Document, Ranking
from template_api.records import Word


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold what filters look at of one published template."""

    id: str
    category_id: str | None
    difficulty: str | None
    broker_version_id: str | None
    tag_ids: tuple[str, ...]
    route_ids: tuple[str, ...]


class Place(NamedTuple):
    """Name one result: the template's id, its score (0 to 1) and the words found."""

    id: str
    score: float
    matched: tuple[Word, ...]


class Catalogue:
    """Answer which published templates a query asks for, and in which order.

    Args:
        version: the library's version that the entries come from.
        templates: the published templates, newest first, each as filters and as the search see it; consumed once.
            The number of a template in this order is the *position* that the ranking speaks of.
    """

    def __init__(self, version: int, templates: Iterable[tuple[Entry, Document]]) -> None:
        self.version = version
        self._ids: list[str] = []
        self._positions: dict[tuple[str, str], array[int]] = {}
        self._ranking = Ranking(map(self._enter, templates))

    def __len__(self) -> int:
        return len(self._ids)

    def latest(self, query: TemplateQuery) -> list[Place]:
        """Return the most recently published templates that pass the filters."""
        accepted = self._accepted(query)
        first = range(len(self._ids)) if accepted is None else sorted(accepted)
        return [Place(self._ids[position], 0.0, ()) for position in first[: query.limit]]

    def search(self, query: TemplateQuery) -> list[Place]:
        """Return the templates that match the query's text and pass its filters, best first."""
        accepted = self._accepted(query)
        if accepted is not None and not accepted:
            return []
        ranked = self._ranking.search(query.text, query.limit, accepted)
        return [Place(hit.key, hit.score, tuple(Word(m.typed, m.found) for m in hit.matched)) for hit in ranked.hits]

    def _enter(self, template: tuple[Entry, Document]) -> Document:
        """Note what filters look at of the next template, and pass on what the search reads of it."""
        entry, document = template
        for facet in _facets(entry):
            self._positions.setdefault(facet, array("I")).append(len(self._ids))
        self._ids.append(entry.id)
        return document

    def _accepted(self, query: TemplateQuery) -> set[int] | None:
        """Return the positions that pass every filter, or None when the query has none."""
        wanted: list[tuple[str, Iterable[str]]] = [
            ("category", [query.category_id] if query.category_id else ()),
            ("difficulty", [query.difficulty] if query.difficulty else ()),
            ("tag", query.tag_ids),
            ("route", query.route_ids),
            ("broker version", query.broker_version_ids),
        ]
        sets = [self._having(kind, values) for kind, values in wanted if values]
        return set.intersection(*sorted(sets, key=len)) if sets else None

    def _having(self, kind: str, values: Iterable[str]) -> set[int]:
        found: set[int] = set()
        for value in values:
            found.update(self._positions.get((kind, value), ()))
        return found


def _facets(entry: Entry) -> Iterable[tuple[str, str]]:
    single = (
        ("category", entry.category_id),
        ("difficulty", entry.difficulty),
        ("broker version", entry.broker_version_id),
    )
    yield from ((kind, value) for kind, value in single if value is not None)
    yield from (("tag", tag) for tag in entry.tag_ids)
    yield from (("route", route) for route in entry.route_ids)
