"""The search index follows the library, change by change.

The index has the published templates of the library at one version. Each change of the library has a version of its
own, so the index takes what has changed since its version; a new index starts empty at version 0. If the library's
version is before that of the index, a backup was restored, and a new index is begun. Runs on one thread at a time;
blocks on the database.
"""

import json
import logging
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlmodel import col

from template_api.library.models import FILTERS, Deletion, LibraryRow, TemplateRow, classifiers_of, columns, facet_keys
from template_api.ranking import Document, Prepared, Ranking, SearchIndex, Synonyms
from template_api.records import FreeForm, Status, SynonymRule
from template_api.sources.synonyms import shipped_synonyms

log = logging.getLogger(__name__)

_T = TemplateRow
_LIBRARY = sa.select(*columns(LibraryRow.version, LibraryRow.synonyms))
_CHANGED = sa.select(
    *columns(_T.id, _T.status, _T.published_at, _T.difficulty, _T.facets, _T.changed, _T.updated_at, _T.prepared)
).order_by(col(_T.changed))


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a process looks for changes of its library, in seconds, and how many templates it indexes at once."""

    follow: float = 0.25  # between two looks
    first_index: float = 5.0  # that a start waits for a first index, enough for some thousands of templates
    rows: int = 1000


@lru_cache(maxsize=4)
def synonyms_of(rules: str | None) -> Synonyms:
    """Return the shipped synonyms and those of a library, which are JSON; 20 ms for a list that is new."""
    own = [SynonymRule(tuple(words), tuple(meant)) for words, meant in json.loads(rules or "[]")]
    return Synonyms([*shipped_synonyms(), *own])


class Indexer:
    """Keep a search index up to date with a library.

    Attributes:
        ranking: the index as it is searched; None while a first one is built.
        edition: a number that grows with each state of `ranking`.
        objects: the classifiers of templates by the facet of their id, as `tag_ids:ID`, with those not in use any more.
    """

    def __init__(self, engine: Engine, pace: Pace) -> None:
        # Each piece of work sees one state of the database, as SQLite's transactions do anyway.
        one_state = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        self._engine = engine.execution_options(**one_state)
        self._rows = pace.rows
        self._index = SearchIndex()
        self._version = 0  # of the library, that the index has
        self.ranking: Ranking | None = None
        self.edition = 0
        self.objects: dict[str, FreeForm] = {}

    def index_changes(self) -> bool:
        """Bring the oldest changes that the index lacks into it; return whether more are left."""
        with self._engine.connect() as connection:
            version, rules = connection.execute(_LIBRARY).one()
            if version == self._version:
                return False
            if version < self._version:
                log.warning("library version %d after %d: all is indexed again", version, self._version)
                self._index, self._version, self.ranking = SearchIndex(), 0, None
                self.edition += 1
            gone = sa.select(col(Deletion.template_id)).where(col(Deletion.changed) > self._version)
            for key in connection.execute(gone).scalars():
                self._index.remove(key)
            rows = connection.execute(_CHANGED.where(col(_T.changed) > self._version).limit(self._rows)).all()
        for row in rows:
            if row.status != Status.PUBLISHED:
                self._index.remove(row.id)
                continue
            texts = msgspec.json.decode(row.prepared, type=Prepared)
            facets = tuple(facet_keys(row.facets, row.difficulty))
            self._index.put(Document(row.id, texts, row.published_at, facets, row.updated_at))
            for member, name in FILTERS.items():
                self.objects.update({f"{name}:{one['id']}": one for one in classifiers_of(row.facets, member)})
        log.debug("%d templates put", len(rows))
        self._version = rows[-1].changed if len(rows) == self._rows else version
        is_behind = bool(self._version < version)
        if is_behind and self.ranking is None:  # searches wait until it is complete
            return True
        self._index.commit()
        if self.ranking is None:
            log.info("the search index is complete")
        self.ranking = self._index.ranking.with_synonyms(synonyms_of(rules))
        self.edition += 1
        return is_behind
