"""How the search index follows the library: what has changed is put first, what is missing is built in between.

The index is derived data. Kept in it, committed with its documents, is how far it is: the library that it was made of,
that library's version, and where a walk over all published templates has arrived. So a process that was killed goes on
from its last commit, a new index is one whose walk has just begun, and one that does not agree with the database is
walked over again while it is searched. Of several processes with one folder, the first one writes and the others read.
Runs on one thread at a time; blocks on the disk and the database.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection, Engine

from template_api.errors import DamagedIndexError
from template_api.library.database import translated
from template_api.library.statements import Statements, document, is_published
from template_api.ranking import Ranking, SearchIndex

log = logging.getLogger(__name__)

_PART_SECONDS = 0.4  # of putting templates before the next look at what has changed
_CHANGES_SECONDS = 1.0  # of putting changed ones before they are committed: 1,000 of 300 words take 0.3 to 0.8
_COMMIT_SECONDS = 5.0  # between commits while all is built; what a killed process has to do again
_ROWS = 50
_REMIND_SECONDS = 60.0  # after which a fault that lasts is logged again; then twice as long, and so on
_LONGEST_REMIND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class State:
    """How far an index is.

    `walked` is the id of the last template that the walk has reached, None when it is complete.
    """

    library: str
    version: int
    walked: str | None


class LastingFault:
    """Log a fault that each attempt meets again: once, then after 1, 2, 4 ... 60 minutes, and its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._attempts = 0
        self._pause = 0.0
        self._due = 0.0

    def met(self, error: Exception) -> None:
        """Log the fault where it is due."""
        self._attempts += 1
        now = self._clock()
        if self._pause and now < self._due:
            return
        self._pause = min(2 * self._pause, _LONGEST_REMIND_SECONDS) or _REMIND_SECONDS
        self._due = now + self._pause
        log.error("%s; searches do not see changes until it can be written again", error)

    def ended(self) -> None:
        """Log that the fault is over, where it was logged."""
        if self._pause:
            log.warning("the search index can be written again, after %d attempts that failed", self._attempts)
        self._attempts, self._pause = 0, 0.0


class Indexer:
    """Keep a search index up to date with a library.

    Args:
        engine: the library's database.
        statements: the SELECTs on it.
        folder: where the index is kept; None keeps it in memory.
    """

    def __init__(self, engine: Engine, statements: Statements, folder: Path | None) -> None:
        self._engine = engine
        self._statements = statements
        self._folder = folder
        self._index: SearchIndex | None = None
        self._state: State | None = None  # what was put, committed or not; None to go on from what was committed
        self._committed = 0.0
        self._checked = -1  # the version at which the index was last compared with the database
        self._fault = LastingFault()
        self._searched: tuple[SearchIndex, State] | None = None  # what `ranking` is a state of
        self.ranking: Ranking | None = None
        self.edition = 0
        self.is_settled = False  # whether a kept index was opened, or a first one is complete

    def work(self) -> bool:
        """Do a part of what the index lacks, half a second's worth; return whether something is left.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        try:
            return self._work()
        except DamagedIndexError as exc:
            self._fault.met(exc)
            self._close()  # until the next time; searches keep the state that they have
            return False

    def close(self) -> None:
        """Release the index's lock: another process may write it."""
        self._close()

    def _work(self) -> bool:
        index = self._opened()
        if not index.lock():
            index.reload()
            self._state = None
        state = self._state or _state(index.ranking)
        with self._reading() as connection:
            library, version = connection.execute(self._statements.identity).one()
        if state is not None and state.library == library:
            self._adopt(index, state)
            self.is_settled = self.is_settled or self._state is None
        if not index.is_locked:
            self._fault.ended()
            return False
        if state == State(library, version, None):
            self._fault.ended()
            return self._compared(index, state)
        self._put_part(index, state, library)
        return True

    def _opened(self) -> SearchIndex:
        """Return the index, opened again when its folder was deleted and rebuilt when it is damaged."""
        if self._index is not None and not self._index.is_intact():
            log.warning("the search index in %s was deleted; it is rebuilt", self._folder)
            self._close()
        if self._index is None:
            try:
                self._index = SearchIndex(self._folder)
            except DamagedIndexError as exc:
                if self._folder is None or not self._folder.is_dir():
                    raise
                log.warning("%s; it is rebuilt", exc)
                shutil.rmtree(self._folder, ignore_errors=True)
                self._index = SearchIndex(self._folder)
            self._checked = -1
        return self._index

    def _close(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index, self._state = None, None

    def _adopt(self, index: SearchIndex, state: State) -> None:
        """Search this state of the index from now on.

        An index that is built in place of a deleted one waits until it is complete: files that are open outlive their
        folder, so the one before is searched till then.
        """
        if state.walked is not None and self._searched is not None:
            searched, reached = self._searched
            if searched is not index and (reached.library, reached.walked) == (state.library, None):
                return
        if self.ranking is not index.ranking:
            self.ranking, self._searched = index.ranking, (index, state)
            self.edition += 1

    def _put_part(self, index: SearchIndex, before: State | None, library: str) -> None:
        """Read and put templates for a while, changed ones first.

        They are committed when something has changed and all of it is put, at the end, and now and then.
        """
        began, count = time.monotonic(), 0
        with self._reading() as connection:
            version = connection.execute(self._statements.identity).one().version
            state = self._begun(index, before, library, version)
            changed = state.version < version
            seconds = _CHANGES_SECONDS if changed else _PART_SECONDS
            while (state.version, state.walked) != (version, None):
                if count and time.monotonic() - began > seconds:
                    break
                if state.version < version:  # each change has a version of its own
                    rows = connection.execute(self._statements.changed, {"since": state.version, "most": _ROWS}).all()
                    _take(index, rows)
                    state = replace(state, version=rows[-1].changed if len(rows) == _ROWS else version)
                else:
                    rows, state = self._walked(connection, index, state)
                count += len(rows)
        self._state = state
        log.debug("%d templates put in %.2f s", count, time.monotonic() - began)
        if (
            changed
            or state.walked is None
            or self.ranking is None
            or time.monotonic() - self._committed > _COMMIT_SECONDS
        ):
            self._commit(index, state)

    def _begun(self, index: SearchIndex, state: State | None, library: str, version: int) -> State:
        """Return the state to go on from: a walk from the start for an index that is not one of this library."""
        if state is None or state.library != library:
            index.clear()
            return State(library, version, "")
        if state.version > version:
            log.warning(
                "library version %d after %d: a backup was restored, all is indexed again", version, state.version
            )
            return State(library, version, "")
        return state

    def _commit(self, index: SearchIndex, state: State) -> None:
        index.commit(json.dumps(asdict(state)))
        self._committed = time.monotonic()
        self._fault.ended()
        self._adopt(index, state)
        self.is_settled = self.is_settled or state.walked is None
        complete = "complete" if state.walked is None else "being built"
        log.info("library version %d is indexed; the index is %s", state.version, complete)

    def _walked(self, connection: Connection, index: SearchIndex, state: State) -> tuple[Sequence[Any], State]:
        """Put the next templates of the walk; at its end, remove those that the library does not have."""
        rows = connection.execute(self._statements.walk, {"after": state.walked, "most": _ROWS}).all()
        _take(index, rows)
        if len(rows) == _ROWS:
            return rows, replace(state, walked=rows[-1].id)
        for key in index.ranking.keys().difference(connection.execute(self._statements.ids).scalars()):
            index.remove(key)
        return rows, replace(state, walked=None)

    def _compared(self, index: SearchIndex, state: State) -> bool:
        """Compare a complete index with the database, once for each version; return whether something is left."""
        if self._checked == state.version:
            return False
        with self._reading() as connection:
            found = connection.execute(self._statements.fingerprint).one()
        if found.version != state.version:
            return True
        self._checked = state.version
        if index.ranking.fingerprint() == (found.templates, found.changes):
            return False
        log.warning("the search index does not agree with the library; all is indexed again")
        self._state = replace(state, walked="")
        return True

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open one transaction that sees one state of the database throughout."""
        with translated(self._engine), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection


def _take(index: SearchIndex, rows: Sequence[Any]) -> None:
    for row in rows:
        if is_published(row):
            index.put(document(row))
        else:
            index.remove(row.id)


def _state(ranking: Ranking) -> State | None:
    """Return the state that an index was committed with, None when there is none."""
    text = ranking.state
    if text is None:
        return None
    try:
        return State(**json.loads(text))
    except (ValueError, TypeError) as exc:
        raise DamagedIndexError(f"the search index has a state that is not ours: {exc}") from exc
