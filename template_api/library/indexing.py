"""How the search index follows the library: brought forward change by change.

The index is derived data: the published templates of one library at one version. Each change of the library has a
version of its own, so an index is brought forward by putting what has changed since its version, and a new one is an
empty index brought forward from version 0. When another library takes the place of this one, or a backup comes back,
a new index is begun; a backup's is searched once it is complete, till then the old one. Runs on one thread at a time;
blocks on the database.
"""

import json
import logging
import time
from dataclasses import dataclass
from functools import cache

from sqlalchemy.engine import Connection, Engine

from template_api.library import statements
from template_api.library.database import reading
from template_api.library.statements import document, is_published
from template_api.ranking import Ranking, SearchIndex, Synonyms
from template_api.records import SynonymRule
from template_api.sources import shipped_synonyms

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a library is looked at for changes, and how much is indexed at once; in seconds, but for `rows`."""

    follow: float = 0.25  # between two looks
    overdue: float = 1.0  # a request looks for changes itself when the last look is older
    first_index: float = 5.0  # that a start waits for a first index: some thousands of templates are indexed by then
    part: float = 0.5  # of putting templates before what was put is searched
    rows: int = 200  # read at once


@cache
def _shipped() -> Synonyms:
    """Return the synonyms of a library that lists none of its own; 20 ms, once."""
    return Synonyms(shipped_synonyms())


class Indexer:
    """Keep a search index up to date with a library.

    Args:
        engine: the library's database.
        pace: how much is indexed at once.
    """

    def __init__(self, engine: Engine, pace: Pace) -> None:
        self._pace = pace
        # Each piece of work sees one state of the database, as SQLite's transactions do anyway.
        one_state = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        self._engine = engine.execution_options(**one_state)
        self._index = SearchIndex()
        self._library: str | None = None  # whose index that is
        self._version = 0  # of the library, that the index has
        self._is_complete = False  # and is searched
        self._rules: str | None = None
        self._synonyms = _shipped()
        self.ranking: Ranking | None = None
        """The index as it is searched; None while a first one is built."""
        self.edition = 0
        """Grows with each state of `ranking`."""

    def work(self) -> bool:
        """Do a part of what the index lacks, `Pace.part` of it; return whether something is left.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        with reading(self._engine) as connection:
            library, version, rules = connection.execute(statements.LIBRARY).one()
            if library != self._library or version < self._version:
                self._begin(library, version)
            elif version == self._version:
                return False
            self._put_part(connection, version)
        if rules != self._rules:
            own = [SynonymRule(tuple(words), tuple(meant)) for words, meant in json.loads(rules or "[]")]
            self._synonyms = Synonyms([*shipped_synonyms(), *own]) if own else _shipped()
            self._rules = rules
        if self._version < version and not self._is_complete:
            return True
        self._index.commit()
        if not self._is_complete:
            self._is_complete = True
            log.info("the search index is complete")
        self.ranking = self._index.ranking.with_synonyms(self._synonyms)
        self.edition += 1
        log.debug("library version %d is indexed", self._version)
        return bool(self._version < version)

    def _begin(self, library: str, version: int) -> None:
        """Begin a new index."""
        if self._library not in (None, library):
            self.ranking = None  # of other templates
            self.edition += 1
        elif self._library == library:
            log.warning(
                "library version %d after %d: a backup was restored, all is indexed again", version, self._version
            )
        self._index, self._library, self._version, self._is_complete = SearchIndex(), library, 0, False

    def _put_part(self, connection: Connection, version: int) -> None:
        """Put what has changed since the index's version for a while, in the order of the changes."""
        began, count = time.monotonic(), 0
        for key in connection.execute(statements.DELETED, {"since": self._version}).scalars():
            self._index.remove(key)
        while self._version < version and not (count and time.monotonic() - began > self._pace.part):
            wanted = {"since": self._version, "most": self._pace.rows}
            rows = connection.execute(statements.CHANGED, wanted).all()
            for row in rows:
                if is_published(row):
                    self._index.put(document(row))
                else:
                    self._index.remove(row.id)
            count += len(rows)
            self._version = rows[-1].changed if len(rows) == self._pace.rows else version
        log.debug("%d templates put in %.2f s", count, time.monotonic() - began)
