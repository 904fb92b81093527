"""The import: folders of templates and `.jsonl` files into a library, each template as one transaction.

So a killed import leaves whole templates only, and the next one continues from there. One import runs at a time for
each library, the next one waits. Blocks on files and the database.
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import func
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, delete, insert, select, update

from template_api.errors import SourceError
from template_api.library.database import is_missing, opened, writing
from template_api.library.models import (
    BrokerVersion,
    Category,
    LibraryRow,
    Named,
    NotebookRow,
    Tag,
    TemplateRoute,
    TemplateRow,
    TemplateTag,
    UsedRoute,
    having,
    now_text,
    prepared_text,
)
from template_api.records import FreeForm, Status
from template_api.sources import NotebookSource, Reading, TemplateSource, read_synonyms, read_templates
from template_api.sources.members import NamedSource, json_text

NAMESPACE = uuid.UUID("0f6d2d0c-5c1e-5b7a-9a43-6a1f0f4f7d51")
"""Namespace of the ids made from slugs (UUIDv5), so that they are the same in every database."""
_AS_GIVEN = ("slug", "title", "short_description", "content", "difficulty", "url")  # members of a source
_GONE = "gone"  # the source_status of a template that a pruning import did not find any more
_LOCK_KEY = 0x7E3A1A7F  # any constant but that of the lock under which tables are made
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
    """How many templates had each outcome; `pruned` is False if pruning was asked for but a template failed."""

    counts: Mapping[Outcome, int]
    pruned: bool

    @property
    def failed(self) -> int:
        """How many templates could not be imported."""
        return self.counts[Outcome.FAILED]

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[each]} {each}" for each in Outcome if each != "hidden" or self.counts[each])


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
            stack.enter_context(_import_lock(engine, on_wait))
        session = stack.enter_context(writing(engine))
        if engine.dialect.name == "postgresql":
            # A crash may cost the last templates, which the next import brings again, and saves a disk flush for each.
            session.connection().exec_driver_sql("SET synchronous_commit TO off")
            session.commit()
        return _Import(session, observe, dry_run=dry_run).run(paths, chain.from_iterable(readings), prune=prune)


@contextmanager
def _import_lock(engine: Engine, on_wait: Callable[[], None]) -> Iterator[None]:
    """Wait until no other import runs, then keep others waiting until this block ends, or this process.

    On SQLite the lock is that of an empty database beside the library's: its own is needed for each template in turn.
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
            on_wait()
            while not try_lock():
                time.sleep(_LOCK_PAUSE_SECONDS)
        yield


class _Import:
    """One import in one session. With `dry_run` each transaction is rolled back."""

    def __init__(self, session: Session, observe: Callable[[Reading], None], *, dry_run: bool) -> None:
        self._session = session
        self._observe = observe
        self._dry_run = dry_run
        self._seen: dict[tuple[str, str], str] = {}
        self._named: dict[tuple[type[Named], str], FreeForm] = {}  # in this import, by slug
        row = TemplateRow
        rows = session.exec(select(row.id, row.slug, row.digest, row.source_status)).all()
        session.rollback()
        self._known = {id_: (digest, source_status) for id_, _, digest, source_status in rows}
        self._id_of_slug = {slug: id_ for id_, slug, _, _ in rows}

    def run(self, paths: Sequence[Path], readings: Iterable[Reading], *, prune: bool) -> Report:
        counts = dict.fromkeys(Outcome, 0)
        for reading in readings:
            outcome = Outcome.FAILED
            if reading.source is not None:
                try:
                    outcome = self._bring(reading.source, reading.where)
                except SourceError as exc:
                    reading.faults.append(exc)
            counts[outcome] += 1
            self._observe(reading)
        for outcome in self._bring_synonyms(paths, prune=prune):
            counts[outcome] += 1
        pruned = prune and not counts[Outcome.FAILED]
        if pruned:
            counts[Outcome.HIDDEN] = self._prune()
        return Report(counts, pruned or not prune)

    def _bring(self, source: TemplateSource, where: str) -> Outcome:
        """Write one template in one transaction, unless it is as it was."""
        id_ = source.id or self._id_of_slug.get(source.slug) or template_id(source.slug or "")
        names = [*([("slug", source.slug)] if source.slug else []), ("id", id_)]  # the slug is what its author wrote
        for kind, name in names:  # a second template of the same id or slug is refused: each import would swap them
            if (kind, name) in self._seen:
                raise SourceError(where, f"{kind} {name!r} was already used by {self._seen[kind, name]}")
        self._seen.update(dict.fromkeys(names, where))
        if self._known.get(id_) == (source.digest(), source.status):
            return Outcome.UNCHANGED
        try:
            outcome = self._store(source, id_)
            if not self._dry_run:
                self._session.commit()
        except IntegrityError as exc:
            raise SourceError(where, "its slug or an id in it belongs to another object") from exc
        finally:
            if self._session.in_transaction():
                self._session.rollback()
                self._named.clear()  # some may be those of this transaction
        return outcome

    def _store(self, source: TemplateSource, id_: str) -> Outcome:
        session = self._session
        version = next_version(session)
        row = session.get(TemplateRow, id_)
        facets: dict[str, Any] = {
            "category": source.category and self._object(Category, source.category),
            "tags": [self._object(Tag, each) for each in source.all_tags],
            "routes": [self._object(UsedRoute, each) for each in source.all_routes],
            "broker_version": source.broker_version and self._object(BrokerVersion, source.broker_version),
        }
        # A state that was set by command stays until the source itself has a new one.
        status = source.status if row is None or row.source_status != source.status else row.status
        published_at = source.published_at or (row.published_at if row is not None else None)
        if published_at is None and status == Status.PUBLISHED:
            published_at = now_text()
        stored = TemplateRow(
            **{name: getattr(source, name) for name in _AS_GIVEN},
            id=id_,
            status=status,
            source_status=source.status,
            published_at=published_at,
            category_id=facets["category"] and facets["category"]["id"],
            broker_version_id=facets["broker_version"] and facets["broker_version"]["id"],
            cells_text=source.cells_text,
            digest=source.digest(),
            facets="",
            labels="",
            changed=version,
        )
        _describe(stored, facets, " ".join(source.keywords), version)
        session.merge(stored)
        session.flush()
        for link, column, named in ((TemplateTag, "tag_id", "tags"), (TemplateRoute, "route_id", "routes")):
            if row is not None:
                session.exec(delete(link).where(col(link.template_id) == id_))
            if facets[named]:
                session.execute(insert(link), [{"template_id": id_, column: each["id"]} for each in facets[named]])
        self._store_notebooks(id_, source.notebooks)
        return Outcome.ADDED if row is None else Outcome.CHANGED

    def _object(self, table: type[Named], source: NamedSource) -> FreeForm:
        """Return the stored object with a slug, made when there is none; rename it everywhere when it has another name.

        Of several spellings in one import the first counts, so that it is renamed once.
        """
        if found := self._named.get((table, source.slug)):
            return found
        row = self._session.exec(select(table).where(col(table.slug) == source.slug)).one_or_none()
        members = json_text(source.members) if source.members else None
        if row is not None and source.members is None:
            members = row.members
        id_ = row.id if row is not None else source.id or template_id(f"{table.__tablename__}/{source.slug}")
        named = {"id": id_, "name": source.name, "slug": source.slug, **json.loads(members or "{}")}
        if row is None:
            self._session.add(table(id=id_, name=source.name, slug=source.slug, members=members))
        elif (row.name, row.members) != (source.name, members):
            row.name, row.members = source.name, members
            self._rename(table, named)
        self._named[table, source.slug] = named
        return named

    def _rename(self, table: type[Named], named: FreeForm) -> None:
        """Show an object by its new name in each template that has it."""

        def renamed(one: Any) -> Any:
            return named if one and one["id"] == named["id"] else one

        for row in self._session.exec(select(TemplateRow).where(having(table, [named["id"]]))).all():
            before = json.loads(row.facets)
            keywords = row.labels.removeprefix(_names(before)).strip()
            after = {
                kind: [*map(renamed, value)] if isinstance(value, list) else renamed(value)
                for kind, value in before.items()
            }
            _describe(row, after, keywords, next_version(self._session))

    def _store_notebooks(self, id_: str, sources: Sequence[NotebookSource]) -> None:
        """Store notebooks: changed cells become a new version, earlier ones stay, the latest of each file is marked."""
        known = select(NotebookRow).where(NotebookRow.template_id == id_).order_by(col(NotebookRow.version))
        rows = self._session.exec(known).all()
        newest = {row.filename: row for row in rows}
        for old in rows:
            old.is_latest = False
        for place, source in enumerate(sources):
            row = newest.get(source.filename)
            if row is None or row.cells != source.cells:
                version = row.version + 1 if row is not None else 1
                row = NotebookRow(template_id=id_, filename=source.filename, version=version, cells=source.cells)
                self._session.add(row)
            row.is_primary, row.role, row.is_latest, row.place = source.is_primary, source.role, True, place

    def _bring_synonyms(self, paths: Sequence[Path], *, prune: bool) -> Iterator[Outcome]:
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
            self._observe(Reading(faults[0].where, faults=faults))
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


def _describe(row: TemplateRow, facets: Mapping[str, Any], keywords: str, version: int) -> None:
    """Put what a template is classified by into its row, and its texts as the index takes them."""
    row.facets = json.dumps(facets, ensure_ascii=False, separators=(",", ":"))
    row.labels = " ".join(filter(None, (_names(facets), keywords)))
    row.prepared = prepared_text(row.title, row.labels, row.short_description, row.content, row.cells_text)
    row.changed, row.updated_at = version, now_text()


def _names(facets: Mapping[str, Any]) -> str:
    named = [*facets["tags"], *facets["routes"], facets["category"], facets["broker_version"]]
    return " ".join(each["name"] for each in named if each)


def template_id(slug: str) -> str:
    """Return the id of a template that has none of its own, by its slug; of other things by `kind/slug`."""
    return str(uuid.uuid5(NAMESPACE, slug))


def next_version(session: Session) -> int:
    """Add one to the library's version, which also makes other writers wait, and return it."""
    statement = update(LibraryRow).values(version=LibraryRow.version + 1).returning(col(LibraryRow.version))
    return int(session.connection().execute(statement).scalar_one())
