"""The import: brings folders of templates and `.jsonl` files into a library.

Each template is one transaction, so an import that is killed leaves only whole templates, and the next import does the
rest. One import runs at a time for each library; others wait. Blocks on files and the database.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import func
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, delete, insert, select

from template_api.library.classifiers import Classifiers
from template_api.library.database import connected, is_missing, mark_changed, next_version, prepare_tables, writing
from template_api.library.models import FacetRow, LibraryRow, NotebookRow, TemplateRow, facet_keys, now_text, slug_id
from template_api.records import Status
from template_api.sources.reading import Reading, noting, read_templates
from template_api.sources.synonyms import read_synonyms
from template_api.sources.template import TemplateSource

log = logging.getLogger(__name__)

_COPIED = ("slug", "title", "short_description", "content", "difficulty", "cells_text")
"""The members that a row copies from its source."""
_PRUNED = "gone"
"""The `source_status` of a template that an import with `prune` has hidden."""
_LOCK_KEY = 0x7E3A1A7F  # any constant but that of the lock in `database`
_LOCK_PAUSE_SECONDS = 0.1  # between two attempts to get the lock


class Outcome(StrEnum):
    """What an import did with one template."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Report:
    """What an import did.

    `names` has the templates of each outcome by slug, else by id. One that failed is named by its file and line, the
    list of synonyms is `synonyms.yaml`. `pruned` is False if pruning was left out because a template failed.
    """

    names: Mapping[Outcome, Sequence[str]]
    pruned: bool

    @property
    def failed(self) -> int:
        """How many templates could not be imported."""
        return len(self.names[Outcome.FAILED])

    def __str__(self) -> str:
        return ", ".join(f"{len(names)} {each}" for each, names in self.names.items() if each != "hidden" or names)


def import_templates(
    database_url: str, path: Path | Sequence[Path], *, prune: bool = False, dry_run: bool = False,
    observe: Callable[[Reading], None] = lambda _reading: None,
) -> Report:  # fmt: skip
    """Import folders of templates or `.jsonl` files into a library. Waits until no other import into it runs.

    Args:
        database_url: the library.
        path: what is read, one path or several.
        prune: hide the templates of the library that are not in `path`, unless a template fails.
        dry_run: report what an import would do, and change nothing: its one transaction is rolled back.
        observe: called with each template once it is read, with its faults and the import's progress.

    Raises:
        StartError: a path cannot be read or holds no template, or the database cannot be used.
        DatabaseUnavailableError: the database went away; what was imported until then stays.
    """
    paths = [path] if isinstance(path, Path) else path
    readings = chain.from_iterable([read_templates(each) for each in paths])
    with ExitStack() as stack:
        engine = connected(None if dry_run and is_missing(database_url) else database_url)  # a dry run makes no file
        stack.callback(engine.dispose)
        if not dry_run:
            stack.enter_context(_import_lock(engine))
        session = stack.enter_context(writing(engine))
        prepare_tables(session)
        if engine.dialect.name == "postgresql":
            # Saves a disk flush for each template. A crash may lose the last ones; the next import adds them again.
            session.connection().exec_driver_sql("SET synchronous_commit TO off")
        run = _Import(session, observe, dry_run=dry_run)
        for reading in readings:
            run.import_reading(reading)
        run.store_synonyms(paths, prune=prune)
        return Report(run.names, not prune or run.prune())


@contextmanager
def _import_lock(engine: Engine) -> Iterator[None]:
    """Hold the lock of imports into a library until the block, or this process, ends; wait for another import."""
    with ExitStack() as stack:
        locks = _sqlite_lock if engine.dialect.name == "sqlite" else _postgresql_lock
        try_lock = locks(engine, stack)
        if not try_lock():
            log.warning("another import into this library is running; waiting until it has ended")
            while not try_lock():
                time.sleep(_LOCK_PAUSE_SECONDS)
        yield


def _sqlite_lock(engine: Engine, stack: ExitStack) -> Callable[[], bool]:
    """Return what tries to lock an empty database beside the library: the library's lock ends with each template."""
    file = f"{engine.url.database}-import"
    beside = stack.enter_context(closing(sqlite3.connect(file, timeout=0, isolation_level=None)))

    def try_lock() -> bool:
        try:
            beside.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    return try_lock


def _postgresql_lock(engine: Engine, stack: ExitStack) -> Callable[[], bool]:
    """Return what tries to get an advisory lock; its connection holds the lock until the connection is closed."""
    connection = stack.enter_context(engine.connect()).execution_options(isolation_level="AUTOCOMMIT")
    stack.callback(connection.invalidate)  # a connection that returned to the pool would keep the lock
    return lambda: bool(connection.execute(select(func.pg_try_advisory_lock(_LOCK_KEY))).scalar())


class _Import:
    """One import. Its session must be closed without a commit after a dry run."""

    def __init__(self, session: Session, observe: Callable[[Reading], None], *, dry_run: bool) -> None:
        self._session = session
        self._observe = observe
        self._dry_run = dry_run
        self.names: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
        self._places: dict[tuple[str, str], str] = {}  # where each ("slug", slug) and ("id", id) was read
        self._classifiers = Classifiers(session)
        row = TemplateRow
        rows = session.exec(select(row.id, row.slug, row.digest, row.source_status)).all()
        self._known = {id_: (digest, source_status) for id_, _, digest, source_status in rows}  # in the library
        self._id_of_slug = {slug: id_ for id_, slug, _, _ in rows}
        self._commit()

    def import_reading(self, reading: Reading) -> None:
        """Store the template that was read, unless it has faults or is unchanged."""
        outcome, name = Outcome.FAILED, reading.where
        if (source := reading.source) is not None:
            with noting(reading.faults, reading.where):
                outcome = self._import_template(source, reading.where)
                name = source.slug or source.id or name
        self.names[outcome].append(name)
        self._observe(reading)

    def _import_template(self, source: TemplateSource, where: str) -> Outcome:
        """Store a template that has changed; raise `ValueError` if another one has its slug or id."""
        id_ = source.id or self._id_of_slug.get(source.slug) or slug_id(source.slug or "")
        identities = [("slug", source.slug), ("id", id_)] if source.slug else [("id", id_)]
        for kind, name in identities:  # a second template with a slug or id would replace the first one
            if (kind, name) in self._places:
                raise ValueError(f"{kind} {name!r} was already used by {self._places[kind, name]}")
        self._places.update(dict.fromkeys(identities, where))
        if self._known.get(id_) == (source.digest(), source.status):
            return Outcome.UNCHANGED
        try:
            with self._session.begin_nested():
                outcome = self._store_template(source, id_)
        except (IntegrityError, ValueError) as exc:
            self._classifiers.forget()
            reason = "its slug belongs to another template" if isinstance(exc, IntegrityError) else str(exc)
            raise ValueError(reason) from exc
        finally:
            self._commit()
        return outcome

    def _store_template(self, source: TemplateSource, id_: str) -> Outcome:
        """Store a template; raise `ValueError` or `IntegrityError` if its slug, or an id in it, belongs to another."""
        session, store = self._session, self._classifiers.store
        known = session.get(TemplateRow, id_) if id_ in self._known else None
        facets = {
            "category": source.category and store("category", source.category),
            "tags": [store("tags", each) for each in source.all_tags],
            "routes": [store("routes", each) for each in source.all_routes],
            "broker_version": source.broker_version and store("broker_version", source.broker_version),
        }
        copied: dict[str, Any] = {name: getattr(source, name) for name in _COPIED}
        row = known or TemplateRow(**copied)
        row.sqlmodel_update(copied | {"id": id_, "url": source.url and str(source.url), "digest": source.digest()})
        if row.source_status != source.status:  # otherwise keep the status that a command has set
            row.status = row.source_status = source.status
        row.published_at = source.published_at or row.published_at
        if row.published_at is None and row.status == Status.PUBLISHED:
            row.published_at = now_text()
        row.classify(facets, " ".join(source.keywords))
        mark_changed(session, row)
        session.add(row)
        session.flush()
        session.exec(delete(FacetRow).where(col(FacetRow.template_id) == id_))
        if found := facet_keys(facets, row.difficulty):
            session.execute(insert(FacetRow), [{"facet": facet, "template_id": id_} for facet in found])
        self._store_notebooks(source, id_)
        return Outcome.ADDED if known is None else Outcome.CHANGED

    def _store_notebooks(self, source: TemplateSource, id_: str) -> None:
        """Store changed cells as a new version of their file; earlier versions stay, and the latest ones are marked."""
        order = col(NotebookRow.version)
        stored = self._session.exec(select(NotebookRow).where(NotebookRow.template_id == id_).order_by(order)).all()
        latest = {row.filename: row for row in stored}
        for old in stored:
            old.is_latest = False
        for place, each in enumerate(source.notebooks):
            row = latest.get(each.filename)
            if row is None or row.cells != each.cells:
                version = 1 if row is None else row.version + 1
                row = NotebookRow(template_id=id_, filename=each.filename, version=version, cells=each.cells)
                self._session.add(row)
            row.is_primary, row.role, row.place, row.is_latest = each.is_primary, each.role, place, True

    def store_synonyms(self, paths: Sequence[Path], *, prune: bool) -> None:
        """Replace the library's list of synonyms by the lists of the paths, without the entries that are wrong.

        The library's list stays if no path has a list and `prune` is not set, or if all entries are wrong.
        """
        found = read_synonyms(paths)
        if found is None and not prune:
            return
        rules, faults = found or ([], [])
        text = json.dumps([(rule.words, rule.meant) for rule in rules]) if rules else None
        library = self._session.exec(select(LibraryRow)).one()
        before, outcome = library.synonyms, Outcome.UNCHANGED
        if text != before and (rules or not faults):
            library.synonyms, outcome = text, Outcome.CHANGED if before else Outcome.ADDED
            next_version(self._session)
        self._commit()
        if faults:
            outcome = Outcome.FAILED
            self._observe(Reading(faults[0].where, faults=faults))
        if found is not None or outcome is not Outcome.UNCHANGED:
            self.names[outcome].append("synonyms.yaml")

    def prune(self) -> bool:
        """Hide the templates that this import has not read. Return False, and hide none, if a template failed."""
        if self.names[Outcome.FAILED]:
            return False
        for id_, (_, source_status) in self._known.items():
            if ("id", id_) not in self._places and source_status != _PRUNED:
                row = self._session.get_one(TemplateRow, id_)
                row.status, row.source_status = Status.HIDDEN, _PRUNED
                mark_changed(self._session, row)
                self.names[Outcome.HIDDEN].append(row.slug or id_)
                self._commit()
        return True

    def _commit(self) -> None:
        if not self._dry_run:
            self._session.commit()
