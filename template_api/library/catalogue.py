"""The published templates of one version of the library, in memory: their order, what filters look at, and the ranking.

Pure: a catalogue is built from entries and never changes, so any number of threads may read it. The texts of the
templates are not kept here, only the ranking's index over them.
"""

from array import array
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from template_api.query import TemplateQuery
from template_api.ranking import Document, Ranking
from template_api.records import Word

Facet = tuple[str, str]
"""A filter's condition: its kind, named like the query parameter, and an id or word."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The attributes of a published template that order and filters use."""

    id: str
    published_at: str
    facets: tuple[Facet, ...]


class Place(NamedTuple):
    """One result: the template's id, its score (0 to 1) and the words found."""

    id: str
    score: float
    matched: tuple[Word, ...]


class Catalogue:
    """The published templates in order, with an index for queries.

    Args:
        version: the library's version that the entries come from.
        entries: the published templates, newest first, then by id. The number of a template in this order is the
            *position* that the ranking uses.
        ranking: the search over the same templates.
    """

    def __init__(self, version: int, entries: Sequence[Entry], ranking: Ranking) -> None:
        self.version = version
        self._entries = entries
        self._positions = _positions_by_facet(entries)
        self._ranking = ranking

    @classmethod
    def built(cls, version: int, templates: Iterable[tuple[Entry, Document]]) -> "Catalogue":
        """Index templates, which come newest first, then by id; a second for 10,000."""
        entries: list[Entry] = []

        def enter(template: tuple[Entry, Document]) -> Document:
            entries.append(template[0])
            return template[1]

        ranking = Ranking(map(enter, templates))
        return cls(version, entries, ranking)

    def updated(self, version: int, changed: Mapping[str, tuple[Entry, Document]], gone: Container[str]) -> "Catalogue":
        """Return the catalogue of a later version; quick when little has changed.

        Args:
            version: the later version.
            changed: by id, the published templates that are new or differ.
            gone: the ids of templates that are no longer published.
        """
        entries = [entry for entry in self._entries if entry.id not in changed and entry.id not in gone]
        entries.extend(entry for entry, _ in changed.values())
        entries.sort(key=attrgetter("id"))
        entries.sort(key=attrgetter("published_at"), reverse=True)
        documents = (document for _, document in changed.values())
        return Catalogue(version, entries, self._ranking.updated(documents, [entry.id for entry in entries]))

    @property
    def pending(self) -> int:
        """How many templates have come or gone since all were indexed together; many of them slow `updated` down."""
        return self._ranking.pending

    def __len__(self) -> int:
        return len(self._entries)

    def latest(self, query: TemplateQuery) -> list[Place]:
        """Return the most recently published templates that pass the filters."""
        accepted = self._accepted(query)
        first = range(len(self._entries)) if accepted is None else sorted(accepted)
        return [Place(self._entries[position].id, 0.0, ()) for position in first[: query.limit]]

    def search(self, query: TemplateQuery) -> list[Place]:
        """Return the templates that match the query's text and pass its filters, best first."""
        accepted = self._accepted(query)
        if accepted is not None and not accepted:
            return []
        ranked = self._ranking.search(query.text, query.limit, accepted)
        return [Place(hit.key, hit.score, tuple(Word(m.typed, m.found) for m in hit.matched)) for hit in ranked.hits]

    def _accepted(self, query: TemplateQuery) -> set[int] | None:
        """Return the positions that pass every filter, or None when the query has none."""
        wanted: list[tuple[str, Iterable[str]]] = [
            ("category_id", [query.category_id] if query.category_id else ()),
            ("difficulty", [query.difficulty] if query.difficulty else ()),
            ("tag_ids", query.tag_ids),
            ("route_ids", query.route_ids),
            ("broker_version_ids", query.broker_version_ids),
        ]
        sets = [self._having(kind, values) for kind, values in wanted if values]
        return set.intersection(*sorted(sets, key=len)) if sets else None

    def _having(self, kind: str, values: Iterable[str]) -> set[int]:
        found: set[int] = set()
        for value in values:
            found.update(self._positions.get((kind, value), ()))
        return found


def _positions_by_facet(entries: Sequence[Entry]) -> "dict[Facet, array[int]]":
    """Invert the entries: for each facet, the positions that have it. At every change, so it must be quick."""
    positions: defaultdict[Facet, array[int]] = defaultdict(partial(array, "I"))
    for position, entry in enumerate(entries):
        for facet in entry.facets:
            positions[facet].append(position)
    return positions
