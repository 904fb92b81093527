"""The import: folders of templates and `.jsonl` files into a library, each template as one transaction.

So a killed import leaves whole templates only, and the next one continues from there. One import runs at a time for
each library, the next one waits. Blocks on files and the database.
"""

import json
import logging
import sqlite3
import time
import uuid
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
from sqlmodel import Session, col, delete, insert, select, update

from template_api.library.database import bring_up, connected, is_missing, writing
from template_api.library.models import (
    FILTERS,
    FacetRow,
    LibraryRow,
    NotebookRow,
    TemplateRow,
    found_by,
    names,
    now_text,
    objects,
)
from template_api.records import FreeForm, Status
from template_api.sources.members import NamedSource
from template_api.sources.reading import Reading, noting, read_templates
from template_api.sources.synonyms import read_synonyms
from template_api.sources.template import TemplateSource

log = logging.getLogger(__name__)

NAMESPACE = uuid.UUID("0f6d2d0c-5c1e-5b7a-9a43-6a1f0f4f7d51")
"""Namespace of the ids made from slugs (UUIDv5), so that they are the same in every database."""
_AS_GIVEN = ("slug", "title", "short_description", "content", "difficulty", "cells_text")  # members of a source
_GONE = "gone"  # the source_status of a template that a pruning import did not find any more
_LOCK_KEY = 0x7E3A1A7F  # of PostgreSQL's advisory lock; another lock than that under which tables are made
_LOCK_PAUSE_SECONDS = 0.1


class Outcome(StrEnum):
    """What an import did with one template."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Report:
    """The templates of each outcome; `pruned` is False if pruning was asked for but a template failed.

    Their names are slugs, else ids; of those that failed their places; of the list of synonyms `synonyms.yaml`.
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
    database_url: str,
    path: Path | Sequence[Path],
    *,
    prune: bool = False,
    dry_run: bool = False,
    observe: Callable[[Reading], None] = lambda _reading: None,
) -> Report:
    """Import folders of templates or `.jsonl` files into a library. Waits until no other import into it runs.

    Args:
        database_url: the library.
        path: what is read, one path or several.
        prune: hide the templates that are not in `path` (any more); left out when a template failed.
        dry_run: change nothing: all is one transaction, which is rolled back, so the report is that of an import.
        observe: called with each template that was read, the faults of one that failed, and the import's progress.

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
        bring_up(session)
        if engine.dialect.name == "postgresql":
            # A crash may cost the last templates, which the next import brings again, and saves a disk flush for each.
            session.connection().exec_driver_sql("SET synchronous_commit TO off")
        run = _Import(session, observe, dry_run=dry_run)
        for reading in readings:
            run.bring(reading)
        return run.finish(paths, prune=prune)


@contextmanager
def _import_lock(engine: Engine) -> Iterator[None]:
    """Wait until no other import runs, then keep others waiting until this block ends, or this process.

    On SQLite it is the lock of an empty database beside the library. The library's own lock is free between templates.
    """
    with ExitStack() as held:
        if engine.dialect.name == "sqlite":
            file = Path(f"{engine.url.database}-import")
            beside = held.enter_context(closing(sqlite3.connect(file, timeout=0, isolation_level=None)))
        else:
            connection = held.enter_context(engine.connect()).execution_options(isolation_level="AUTOCOMMIT")
            held.callback(connection.invalidate)  # the lock is the connection's, which shall not return to the pool

        def try_lock() -> bool:
            if engine.dialect.name != "sqlite":
                return bool(connection.execute(select(func.pg_try_advisory_lock(_LOCK_KEY))).scalar())
            try:
                beside.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                return False
            return True

        if not try_lock():
            log.warning("another import into this library is running; waiting until it has ended")
            while not try_lock():
                time.sleep(_LOCK_PAUSE_SECONDS)
        yield


class _Import:
    """One import in one session, which must be closed without a commit after a dry run."""

    def __init__(self, session: Session, observe: Callable[[Reading], None], *, dry_run: bool) -> None:
        self._session = session
        self._observe = observe
        self._dry_run = dry_run
        self._names: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
        self._seen: dict[tuple[str, str], str] = {}  # where each ("slug", slug) and ("id", id) was read
        self._classifiers: dict[tuple[str, str], FreeForm] = {}  # of this import, by member and slug
        row = TemplateRow
        rows = session.exec(select(row.id, row.slug, row.digest, row.source_status)).all()
        self._known = {id_: (digest, source_status) for id_, _, digest, source_status in rows}
        self._id_of_slug = {slug: id_ for id_, slug, _, _ in rows}
        self._commit()

    def bring(self, reading: Reading) -> None:
        """Write one template in one transaction, unless it has faults or is as it was."""
        outcome, name = Outcome.FAILED, reading.where
        if (source := reading.source) is not None:
            with noting(reading.faults, reading.where):
                outcome = self._import_template(source, reading.where)
                name = source.slug or source.id or name
        self._names[outcome].append(name)
        self._observe(reading)

    def finish(self, paths: Sequence[Path], *, prune: bool) -> Report:
        """Store the synonyms, hide templates that were not found if `prune`, and return what was done."""
        self._store_synonyms(paths, prune=prune)
        pruned = prune and not self._names[Outcome.FAILED]
        if pruned:
            for id_, (_, source_status) in self._known.items():
                if ("id", id_) not in self._seen and source_status != _GONE:
                    row = self._session.get_one(TemplateRow, id_)
                    row.status, row.source_status = Status.HIDDEN, _GONE
                    mark_changed(self._session, row)
                    self._names[Outcome.HIDDEN].append(row.slug or id_)
                    self._commit()
        return Report(self._names, pruned or not prune)

    def _commit(self) -> None:
        if not self._dry_run:
            self._session.commit()

    def _import_template(self, source: TemplateSource, where: str) -> Outcome:
        """Store a template that has changed; raise `ValueError` if another one has its slug or id."""
        id_ = source.id or self._id_of_slug.get(source.slug) or template_id(source.slug or "")
        identities = [("slug", source.slug), ("id", id_)] if source.slug else [("id", id_)]
        for kind, name in identities:  # a second template with a slug or id is refused: it would replace the first
            if (kind, name) in self._seen:
                raise ValueError(f"{kind} {name!r} was already used by {self._seen[kind, name]}")
        self._seen.update(dict.fromkeys(identities, where))
        if self._known.get(id_) == (source.digest(), source.status):
            return Outcome.UNCHANGED
        try:
            with self._session.begin_nested():
                outcome = self._store_template(source, id_)
        except (IntegrityError, ValueError) as exc:
            self._classifiers.clear()  # the transaction that was rolled back may have written some
            reason = "its slug belongs to another template" if isinstance(exc, IntegrityError) else str(exc)
            raise ValueError(reason) from exc
        finally:
            self._commit()
        return outcome

    def _store_template(self, source: TemplateSource, id_: str) -> Outcome:
        session = self._session
        known = session.get(TemplateRow, id_) if id_ in self._known else None
        facets = {
            "category": source.category and self._classifier("category", source.category),
            "tags": [self._classifier("tags", each) for each in source.all_tags],
            "routes": [self._classifier("routes", each) for each in source.all_routes],
            "broker_version": source.broker_version and self._classifier("broker_version", source.broker_version),
        }
        given: dict[str, Any] = {name: getattr(source, name) for name in _AS_GIVEN}
        row = known or TemplateRow(**given)
        row.sqlmodel_update(given | {"id": id_, "url": source.url and str(source.url), "digest": source.digest()})
        if row.source_status != source.status:  # if it is the same, a status that was set by command stays
            row.status = row.source_status = source.status
        row.published_at = source.published_at or row.published_at
        if row.published_at is None and row.status == Status.PUBLISHED:
            row.published_at = now_text()
        row.classify(facets, " ".join(source.keywords))
        mark_changed(session, row)
        session.add(row)
        session.flush()
        session.exec(delete(FacetRow).where(col(FacetRow.template_id) == id_))
        if found := found_by(facets, row.difficulty):
            session.execute(insert(FacetRow), [{"facet": facet, "template_id": id_} for facet in found])
        # Changed cells become a new version, earlier ones stay, the latest of each file is marked.
        earlier = select(NotebookRow).where(NotebookRow.template_id == id_).order_by(col(NotebookRow.version))
        notebooks = session.exec(earlier).all()
        newest = {row.filename: row for row in notebooks}
        for old in notebooks:
            old.is_latest = False
        for place, each in enumerate(source.notebooks):
            notebook = newest.get(each.filename)
            if notebook is None or notebook.cells != each.cells:
                latest = notebook.version if notebook is not None else 0
                notebook = NotebookRow(template_id=id_, filename=each.filename, version=latest + 1, cells=each.cells)
                session.add(notebook)
            notebook.is_primary, notebook.role = each.is_primary, each.role
            notebook.is_latest, notebook.place = True, place
        return Outcome.ADDED if known is None else Outcome.CHANGED

    def _classifier(self, member: str, source: NamedSource) -> FreeForm:
        """Return a category, tag, route or broker version as templates of the library have it.

        If the source says otherwise, all templates that have it are changed. If sources of one import differ, the first
        one counts, so that they are changed once.
        """
        if found := self._classifiers.get((member, source.slug)):
            return found
        session, facet = self._session, f"{FILTERS[member]}:{source.slug}"
        having = col(TemplateRow.id).in_(select(FacetRow.template_id).where(FacetRow.facet == facet))
        holder = session.exec(select(TemplateRow.facets).where(having).limit(1)).first()
        present = objects(holder, member) if holder else ()
        before = next((one for one in present if one["slug"].lower() == source.slug), None)
        if before is None and source.id and self._is_taken(member, source.id):
            raise ValueError(f"{member} {source.slug!r} has the id of another one")
        plural = {"category": "categories", "broker_version": "broker_versions"}.get(member, member)
        id_ = before["id"] if before else source.id or template_id(f"{plural}/{source.slug}")
        own = {"id": id_, "name": source.name, "slug": source.slug}
        classifier = {**(before or {}), **own} if source.members is None else {**own, **source.members}
        if before and before != classifier:
            for row in session.exec(select(TemplateRow).where(having)).all():
                keywords = row.labels.removeprefix(names(row.facets)).strip()
                kept = row.facets[member]
                several = isinstance(kept, list)
                changed = [classifier if one["id"] == id_ else one for one in kept] if several else classifier
                row.classify({**row.facets, member: changed}, keywords)
                mark_changed(session, row)
        self._classifiers[member, source.slug] = classifier
        return classifier

    def _is_taken(self, member: str, id_: str) -> bool:
        facet = FacetRow.facet == f"{FILTERS[member]}:{id_}"
        here = any(one["id"] == id_ for (kind, _), one in self._classifiers.items() if kind == member)
        return here or self._session.exec(select(FacetRow.template_id).where(facet).limit(1)).first() is not None

    def _store_synonyms(self, paths: Sequence[Path], *, prune: bool) -> None:
        """Store the synonyms of the paths in the place of those before, without the entries that are wrong."""
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
            self._names[outcome].append("synonyms.yaml")


def template_id(slug: str) -> str:
    """Return the id of a template that has none of its own, by its slug; of other things by `kind/slug`."""
    return str(uuid.uuid5(NAMESPACE, slug))


def mark_changed(session: Session, row: TemplateRow) -> None:
    """Note that a template changes, with a new version of the library, by which readers see it."""
    row.changed, row.updated_at = next_version(session), now_text()


def next_version(session: Session) -> int:
    """Add one to the library's version, which also makes other writers wait, and return it."""
    statement = update(LibraryRow).values(version=LibraryRow.version + 1).returning(col(LibraryRow.version))
    return int(session.connection().execute(statement).scalar_one())
