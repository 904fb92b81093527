"""What an operator does with a library: import into it, list templates in every state, change the state of one; checks.

An import is one transaction a template: a killed one leaves whole templates only, and the next import continues from
there. One import runs at a time for each library, the next one waits. Blocks on files and the database.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, or_
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, delete, select

from template_api.errors import SourceError, StartError, TemplateApiError, UnknownTemplateError
from template_api.library.database import check_url, is_missing, opened, parsed_url, shown_url
from template_api.library.models import (
    Deletion,
    LibraryRow,
    NotebookRow,
    TemplateRoute,
    TemplateRow,
    TemplateTag,
    columns,
)
from template_api.library.upgrades import now_text
from template_api.library.writer import Outcome, Report, TemplateWriter, next_version, template_id
from template_api.records import Status
from template_api.sources import Reading, read_synonyms, read_templates
from template_api.sources.template import TemplateSource

_GONE = "gone"  # the source_status of a template that a pruning import did not find any more
_LOCK_KEY = 0x7E3A1A7F  # any constant but that of the lock under which tables are made
_LOCK_PAUSE_SECONDS = 0.1


def import_templates(
    database_url: str,
    path: Path | Sequence[Path],
    *,
    prune: bool = False,
    dry_run: bool = False,
    observe: Callable[[Reading], None] = lambda _reading: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Report:
    """Import folders of templates or `.jsonl` files into a library. Waits until no other import into it runs.

    Args:
        database_url: the library.
        path: what is read, one path or several.
        prune: hide the templates that are not in `path` (any more); left out when a template failed.
        dry_run: change nothing; each transaction is rolled back, so the report is that of an import.
        observe: called with each template that was read, the faults of one that failed, and the import's progress.
        on_wait: called once when there is another import to wait for.

    Raises:
        StartError: a path cannot be read or holds no template, or the database cannot be used.
        DatabaseUnavailableError: the database went away; what was imported until then stays.
    """
    paths = [path] if isinstance(path, Path) else path
    readings = [read_templates(each) for each in paths]
    with ExitStack() as stack:
        if dry_run and is_missing(database_url):
            empty = f"sqlite:///{stack.enter_context(TemporaryDirectory())}/empty.db"
            engine = stack.enter_context(opened(empty))
        else:
            engine = stack.enter_context(opened(database_url, as_it_is=dry_run))
        if not dry_run:
            lock = _sqlite_lock if engine.dialect.name == "sqlite" else _postgresql_lock
            stack.enter_context(lock(engine, on_wait))
        session = stack.enter_context(_writing(engine))
        if engine.dialect.name == "postgresql":
            # A crash may cost the last templates, which the next import brings again, and saves a disk flush for each.
            session.connection().exec_driver_sql("SET synchronous_commit TO off")
            session.commit()
        return _Import(session, dry_run=dry_run).run(paths, chain.from_iterable(readings), prune, observe)


@contextmanager
def _writing(engine: Engine) -> Iterator[Session]:
    """Open a session over one connection that writes: on SQLite its transactions take the write lock at once."""
    with engine.execution_options(writes=True).connect() as connection, Session(connection) as session:
        yield session


def fill_empty_library(
    database_url: str, path: Path, observe: Callable[[Reading], None] = lambda _reading: None
) -> Report | None:
    """Import into a library that is empty, or whose first import was cut off; leave any other as it is.

    Returns:
        What the import did, or None when there was none.

    Raises:
        StartError, DatabaseUnavailableError: as `import_templates`.
    """
    with opened(database_url) as engine:
        with _writing(engine) as session:
            library = session.exec(select(LibraryRow)).one()
            if session.exec(select(TemplateRow.id).limit(1)).first() is not None and not library.is_filling:
                return None
            read_templates(path)  # a path that cannot be read is refused before anything is marked
            library.is_filling = True
            session.commit()
        report = import_templates(database_url, path, observe=observe)
        with _writing(engine) as session:
            session.exec(select(LibraryRow)).one().is_filling = False
            session.commit()
        return report


class _Import:
    """Run one import in one session."""

    def __init__(self, session: Session, *, dry_run: bool) -> None:
        self._session = session
        self._dry_run = dry_run
        self._writer = TemplateWriter(session, dry_run=dry_run)
        self._seen: dict[tuple[str, str], str] = {}
        row = TemplateRow
        rows = session.exec(select(row.id, row.slug, row.digest, row.source_status)).all()
        session.rollback()
        self._known = {id_: (digest, source_status) for id_, _, digest, source_status in rows}
        self._id_of_slug = {slug: id_ for id_, slug, _, _ in rows}

    def run(
        self, paths: Sequence[Path], readings: Iterable[Reading], prune: bool, observe: Callable[[Reading], None]
    ) -> Report:
        counts = dict.fromkeys(Outcome, 0)
        for reading in readings:
            outcome, observed = Outcome.FAILED, reading
            if reading.source is not None:
                try:
                    outcome = self._bring(reading.source)
                except SourceError as exc:
                    observed = Reading(None, (exc,), reading.warnings, reading.done, reading.total)
            counts[outcome] += 1
            observe(observed)
        for outcome in self._bring_synonyms(paths, prune, observe):
            counts[outcome] += 1
        pruned = prune and not counts[Outcome.FAILED]
        if pruned:
            counts[Outcome.HIDDEN] = self._prune()
        return Report(counts, pruned or not prune)

    def _bring(self, source: TemplateSource) -> Outcome:
        id_ = source.id or self._id_of_slug.get(source.slug) or template_id(source.slug or "")
        names = [*([("slug", source.slug)] if source.slug else []), ("id", id_)]  # the slug is what its author wrote
        for kind, name in names:  # a second template of the same id or slug is refused: each import would swap them
            if (kind, name) in self._seen:
                raise SourceError(source.where, f"{kind} {name!r} was already used by {self._seen[kind, name]}")
        self._seen.update(dict.fromkeys(names, source.where))
        digest = source.digest()
        if self._known.get(id_) == (digest, source.status):
            return Outcome.UNCHANGED
        try:
            return self._writer.store(source, id_)
        except IntegrityError as exc:
            raise SourceError(source.where, "its slug or an id in it belongs to another object") from exc

    def _bring_synonyms(
        self, paths: Sequence[Path], prune: bool, observe: Callable[[Reading], None]
    ) -> Iterator[Outcome]:
        """Store the synonyms of the paths in the place of those before, without the entries that are wrong."""
        found = read_synonyms(paths)
        if found is None and not prune:
            return
        rules, faults = found or ((), ())
        text = json.dumps([(rule.words, rule.meant) for rule in rules]) if rules else None
        before = self._session.exec(select(LibraryRow.synonyms)).one()
        is_changed = text != before and not (faults and not rules)
        if is_changed and not self._dry_run:
            next_version(self._session)
            self._session.exec(select(LibraryRow)).one().synonyms = text
        self._session.commit()
        if faults:
            observe(Reading(None, tuple(faults), (), 1, 1))
            yield Outcome.FAILED
        elif is_changed:
            yield Outcome.CHANGED if before else Outcome.ADDED
        elif found is not None:
            yield Outcome.UNCHANGED

    def _prune(self) -> int:
        gone = [
            id_
            for id_, (_, source_status) in self._known.items()
            if ("id", id_) not in self._seen and source_status != _GONE
        ]
        for id_ in gone if not self._dry_run else ():
            version, row = next_version(self._session), self._session.get_one(TemplateRow, id_)
            row.status, row.source_status = Status.HIDDEN, _GONE
            row.changed, row.updated_at = version, now_text()
            self._session.commit()
        return len(gone)


@contextmanager
def _sqlite_lock(engine: Engine, on_wait: Callable[[], None]) -> Iterator[None]:
    """Wait until no other import runs, then keep others waiting until this process ends, or this block.

    The lock is that of an empty database beside the library's: its own is needed for each template in turn.
    """
    file = Path(f"{engine.url.database}-import")
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:

        def try_lock() -> bool:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                return False
            return True

        _wait(try_lock, on_wait)
        yield


@contextmanager
def _postgresql_lock(engine: Engine, on_wait: Callable[[], None]) -> Iterator[None]:
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        _wait(lambda: bool(connection.execute(select(func.pg_try_advisory_lock(_LOCK_KEY))).scalar()), on_wait)
        try:
            yield
        finally:
            connection.invalidate()  # the lock is the connection's, which shall not return to the pool with it


def _wait(try_lock: Callable[[], bool], on_wait: Callable[[], None]) -> None:
    if try_lock():
        return
    on_wait()
    while not try_lock():
        time.sleep(_LOCK_PAUSE_SECONDS)


def listed_templates(database_url: str, status: Status | None = None) -> Generator[sa.Row[Any], None, None]:
    """Yield id, slug, title, status, difficulty and date of the templates of a library in any state, or in one.

    The newest come first, those without a date last.

    Raises:
        StartError: the URL cannot be used or the database is of a newer version.
        DatabaseUnavailableError: the database does not answer.
    """
    t = TemplateRow
    statement = sa.select(*columns(t.id, t.slug, t.title, t.status, t.difficulty, t.published_at))
    if status is not None:
        statement = statement.where(col(t.status) == status.value)
    order = (col(t.published_at).is_(None), col(t.published_at).desc(), t.id)
    with opened(database_url) as engine, engine.connect() as connection:
        yield from connection.execute(statement.order_by(*order))


def set_status(database_url: str, id_or_slug: str, status: Status) -> bool:
    """Change the state of one template; the first time it is published it also gets its date.

    Returns:
        Whether this changed anything.

    Raises:
        UnknownTemplateError: no template has this id or slug.
        DatabaseUnavailableError: the database does not answer.
    """
    with opened(database_url) as engine, _writing(engine) as session:
        row = _named(session, id_or_slug)
        if row.status == status:
            return False
        row.changed, row.status, row.updated_at = next_version(session), status.value, now_text()
        if status is Status.PUBLISHED and row.published_at is None:
            row.published_at = row.updated_at
        session.commit()
        return True


def delete_template(database_url: str, id_or_slug: str) -> None:
    """Delete a template with all versions of its notebooks.

    Raises:
        UnknownTemplateError: no template has this id or slug.
        DatabaseUnavailableError: the database does not answer.
    """
    with opened(database_url) as engine, _writing(engine) as session:
        row = _named(session, id_or_slug)
        for link in (TemplateTag, TemplateRoute, NotebookRow):
            session.exec(delete(link).where(col(link.template_id) == row.id))
        session.merge(Deletion(template_id=row.id, changed=next_version(session)))
        session.delete(row)
        session.commit()


def _named(session: Session, id_or_slug: str) -> TemplateRow:
    """Return the template with an id or, if there is none, with a slug, in any state."""
    wanted = id_or_slug.lower()
    known = select(TemplateRow).where(or_(col(TemplateRow.id) == wanted, col(TemplateRow.slug) == id_or_slug))
    # Drivers do not take every text that a command line may hold.
    matches = session.exec(known).all() if id_or_slug.isprintable() else []
    if not matches:
        slugs = session.exec(select(TemplateRow.slug).order_by(col(TemplateRow.slug))).all()
        database = shown_url(session.get_bind().engine.url)
        raise UnknownTemplateError(id_or_slug, database, [slug for slug in slugs if slug])
    return min(matches, key=lambda row: row.id != wanted)


def place_faults(database_url: str, library: str | None) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the name of each of these settings that stops a start, and why.

    Whether a PostgreSQL server answers, and whether its library is still empty, only a start can show.
    """
    checks: dict[str, Callable[[], None]] = {"database_url": partial(check_url, database_url)}
    if library is not None:
        checks["library"] = partial(_check_library, Path(library), database_url)
    for name, check in checks.items():
        try:
            check()
        except TemplateApiError as exc:
            yield (name,), str(exc)


def _check_library(library: Path, database_url: str) -> None:
    """Check that a library can be read, unless it was imported: from then on its folder may be gone."""
    with suppress(StartError, sqlite3.Error):  # no database, or without our tables: a start makes them
        parsed = parsed_url(database_url)
        if parsed.get_backend_name() != "sqlite":
            return
        address = f"{Path(parsed.database or '').absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            is_filled = connection.execute("SELECT 1 FROM templates LIMIT 1").fetchone() is not None
            if is_filled and connection.execute("SELECT is_filling FROM library").fetchone() == (0,):
                return
    read_templates(library)  # only looks for the files: none is read before the first template is taken
