"""How the search index follows the library: brought forward change by change, or rebuilt beside the old one.

The index is derived data: the published templates of one library at one version, which are committed with them. Each
change of the library has a version of its own, so an index is brought forward by putting what has changed since its
version, and a new one is an empty index brought forward from version 0. One check says whether an index is right: that
of how many templates there are, and the sum of the versions that they came with. An index that is damaged, ahead of
the library, of another library or not right is replaced by a new one, once that is complete; till then searches use
the old one, unless it is of another library. A process that was killed goes on from its last commit; what it was
building is deleted. Of several processes with one folder, the first one writes and the others read. Runs on one thread
at a time; blocks on the disk and the database.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.engine import Connection, Engine

from template_api.errors import DamagedIndexError, StartError
from template_api.library import statements
from template_api.library.database import SCHEMA_VERSION, parsed_url, reading
from template_api.library.statements import document, is_published
from template_api.ranking import FORMAT, KeptIndex, Ranking, SearchIndex, Synonyms
from template_api.records import SynonymRule
from template_api.sources import shipped_synonyms

log = logging.getLogger(__name__)

_REMIND_SECONDS = 60.0  # after which a fault that lasts is logged again; then twice as long, and so on
_LONGEST_REMIND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a library is looked at for changes, and how much is indexed at once; in seconds, but for `rows`."""

    follow: float = 0.25  # between two looks
    overdue: float = 1.0  # a request looks for changes itself when the last look is older
    first_index: float = 5.0  # that a start waits for a first index: some thousands of templates are indexed by then
    part: float = 0.5  # of putting templates before what is put is committed: 1,000 of 300 words take 0.3 to 0.8
    rows: int = 50  # read at once


class State(NamedTuple):
    """What an index is made of: a library's identity, and its version."""

    library: str
    version: int


def index_folder(database_url: str, index_dir: str | None) -> Path | None:
    """Return the folder of a library's search index, one for each database, schema and format of the index.

    Args:
        database_url: a URL that `open_database` accepts.
        index_dir: its parent folder; None means `template-api` in the user's cache folder.

    Returns:
        The folder, or None when the user's cache folder cannot be written: the index is then kept in memory.

    Raises:
        StartError: `index_dir` cannot be written.
    """
    if index_dir is not None:
        parent = Path(index_dir)
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME", "") or os.environ.get("LOCALAPPDATA", ""))
        parent = (cache if cache.is_absolute() else Path("~").expanduser() / ".cache") / "template-api"
    folder = parent.absolute() / f"{_database_key(database_url)}-{SCHEMA_VERSION}.{FORMAT}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
        reason = "it cannot be written"
    except OSError as exc:
        writable, reason = False, os.strerror(exc.errno or 0)
    if writable:
        return folder
    if index_dir is not None:
        raise StartError(f"index_dir {parent}: {reason}; name a folder that this user can write")
    log.warning("the search index is kept in memory, as %s cannot be used: %s; see index_dir", parent, reason)
    return None


def _database_key(database_url: str) -> str:
    """Return a name for a database: the same for each way to write its path, and without its password."""
    url = parsed_url(database_url)
    if url.get_backend_name() == "sqlite":
        name = f"sqlite {Path(url.database or '').absolute().resolve()}"
    else:
        name = f"postgresql {url.username} {url.host} {url.port} {url.database}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


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


@cache
def _shipped() -> Synonyms:
    """Return the synonyms of a library that lists none of its own; 20 ms, once."""
    return Synonyms(shipped_synonyms())


class Indexer:
    """Keep a search index up to date with a library.

    Args:
        engine: the library's database.
        folder: where the index is kept; None keeps it in memory.
        pace: how much is indexed at once.
    """

    def __init__(self, engine: Engine, folder: Path | None, pace: Pace) -> None:
        self._pace = pace
        self._engine = engine
        self._kept = KeptIndex(folder)
        self._built: tuple[SearchIndex, State] | None = None  # the new index, and how far it is
        self._checked: tuple[SearchIndex, int] | None = None  # the index and its version that were last checked
        self._wrong: SearchIndex | None = None  # what the check has found to be so
        self._fault = LastingFault()
        self._library: str | None = None  # whose index `ranking` is
        self._listed: tuple[str, int] | None = None  # the library and its version whose synonyms were read
        self._rules: str | None = None
        self._synonyms = _shipped()
        self._searched: tuple[Ranking, Synonyms] | None = None  # what `ranking` consists of
        self.ranking: Ranking | None = None
        """The index as it is searched; None while a first one is built."""
        self.edition = 0
        self.is_opening = False
        """Whether a kept index may be about to be searched."""

    def work(self) -> bool:
        """Do a part of what the index lacks, `Pace.part` of it; return whether something is left.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        self.is_opening = self.ranking is None
        try:
            is_left = self._work()
        except DamagedIndexError as exc:
            self._fault.met(exc)
            self.close()  # until the next time; searches keep the state that they have
            return False
        finally:
            self.is_opening = False
        if not is_left:
            self._fault.ended()
        return is_left

    def close(self) -> None:
        """Release the index's lock: another process may write it."""
        if self._built is not None:
            self._built[0].close()
        self._built = self._checked = None
        self._kept.close()

    def _work(self) -> bool:
        writes = self._kept.lock()
        index = self._kept.current()
        with self._reading() as connection:
            library, version = connection.execute(statements.IDENTITY).one()
            if self._listed != (library, version):
                self._list(connection.execute(statements.SYNONYMS).scalar_one())
                self._listed = library, version
        if self._library not in {None, library}:
            # Another library has taken its place, with other templates.
            self.ranking = self._library = self._searched = None
            self.edition += 1
        text = None if index is None else index.ranking.state
        state = None if text is None else State(*json.loads(text))
        if index is not None and state is not None and state.library == library:
            self._adopt(index, library)
            if writes and state.version < version:
                state = self._put_part(index, state)
                self._commit(index, state)
                self._adopt(index, library)
                return True
            if not writes or self._is_right(index, state, version):
                return False
        self.is_opening = False  # there is none that can be used
        return writes and self._build_part(library, version)

    def _is_right(self, index: SearchIndex, state: State, version: int) -> bool:
        """Check an index that is at the version of the library, or ahead of it, once for each version."""
        if index is self._wrong:
            return False
        if state.version > version:
            log.warning(
                "library version %d after %d: a backup was restored, all is indexed again", version, state.version
            )
            self._wrong = index
        elif self._checked != (index, version):
            with self._reading() as connection:
                found = connection.execute(statements.FINGERPRINT).one()
            if found.version != version:
                return True  # until the next look
            self._checked = index, version
            if index.ranking.fingerprint() != (found.templates, found.changes):
                log.warning("the search index does not agree with the library; all is indexed again")
                self._wrong = index
        return index is not self._wrong

    def _build_part(self, library: str, version: int) -> bool:
        """Put some templates into a new index; use it once it has all of them."""
        if self._built is None or self._built[1].library != library or self._built[1].version > version:
            self._built = self._kept.begin(), State(library, 0)
        index, state = self._built
        state = self._put_part(index, state)
        self._built = index, state
        if state.version >= version:
            self._commit(index, state)
            self._kept.use(index)
            self._built, self._checked = None, (index, state.version)  # made of the library: not checked
            self._adopt(index, library)
            log.info("the index is complete")
        return True

    def _put_part(self, index: SearchIndex, state: State) -> State:
        """Put what has changed since a state for a while, in the order of the changes; return how far that led."""
        began, count = time.monotonic(), 0
        with self._reading() as connection:
            version = connection.execute(statements.IDENTITY).one().version
            while state.version < version and not (count and time.monotonic() - began > self._pace.part):
                wanted = {"since": state.version, "most": self._pace.rows}
                rows = connection.execute(statements.CHANGED, wanted).all()
                for row in rows:
                    if is_published(row):
                        index.put(document(row))
                    else:
                        index.remove(row.id)
                count += len(rows)
                state = state._replace(version=rows[-1].changed if len(rows) == self._pace.rows else version)
        log.debug("%d templates put in %.2f s", count, time.monotonic() - began)
        return state

    def _commit(self, index: SearchIndex, state: State) -> None:
        index.commit(json.dumps(state))
        self._fault.ended()
        log.info("library version %d is indexed", state.version)

    def _adopt(self, index: SearchIndex, library: str) -> None:
        """Search the index as it is now, with the synonyms of now."""
        now = index.ranking, self._synonyms
        if self._searched != now:
            self.ranking, self._library, self._searched = index.ranking.with_synonyms(self._synonyms), library, now
            self.edition += 1

    def _list(self, rules: str | None) -> None:
        """Use the library's own list of synonyms, on top of the shipped one."""
        if rules != self._rules:
            own = [SynonymRule(tuple(words), tuple(meant)) for words, meant in json.loads(rules or "[]")]
            self._synonyms = Synonyms([*shipped_synonyms(), *own]) if own else _shipped()
            self._rules = rules

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open one transaction that sees one state of the database throughout."""
        with reading(self._engine) as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection
