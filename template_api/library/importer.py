"""Imports into the library: one transaction a template.

A killed import leaves whole templates only, and the next import continues from there. Blocks on files and the database.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from template_api.errors import SourceError
from template_api.library.database import is_missing, open_database, translated, writing
from template_api.library.import_lock import import_lock
from template_api.library.tables import tables
from template_api.library.writer import Outcome, Report, TemplateWriter, next_version, template_id
from template_api.records import Status
from template_api.sources import Reading, read_templates
from template_api.sources.template import TemplateSource

_GONE = "gone"  # the source_status of a template that a pruning import did not find any more


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
    readings = [read_templates(each) for each in ([path] if isinstance(path, Path) else path)]
    with ExitStack() as opened:
        if dry_run and is_missing(database_url):
            engine = open_database(f"sqlite:///{opened.enter_context(TemporaryDirectory())}/empty.db")
        else:
            engine = open_database(database_url, as_it_is=dry_run)
        opened.callback(engine.dispose)
        opened.enter_context(translated(engine))
        if not dry_run:
            opened.enter_context(import_lock(engine, on_wait))
        connection = opened.enter_context(engine.execution_options(writes=True).connect())
        return _Import(connection, dry_run=dry_run).run(chain.from_iterable(readings), prune, observe)


def fill_empty_library(
    database_url: str, path: Path, observe: Callable[[Reading], None] = lambda _reading: None
) -> Report | None:
    """Import into a library that is empty, or whose first import was cut off; leave any other as it is.

    Returns:
        What the import did, or None when there was none.

    Raises:
        StartError, DatabaseUnavailableError: as `import_templates`.
    """
    engine = open_database(database_url)
    library, templates = tables()["library"], tables()["templates"]
    try:
        with translated(engine), writing(engine) as connection:
            empty = connection.execute(sa.select(templates.c.id).limit(1)).first() is None
            if not empty and not connection.execute(sa.select(library.c.is_filling)).scalar_one():
                return None
            read_templates(path)  # a path that cannot be read is refused before anything is marked
            connection.execute(library.update().values(is_filling=True))
        report = import_templates(database_url, path, observe=observe)
        with translated(engine), writing(engine) as connection:
            connection.execute(library.update().values(is_filling=False))
        return report
    finally:
        engine.dispose()


class _Import:
    """Run one import over one connection."""

    def __init__(self, connection: Connection, *, dry_run: bool) -> None:
        self._connection = connection
        self._dry_run = dry_run
        self._writer = TemplateWriter(connection, dry_run=dry_run)
        self._seen: dict[tuple[str, str], str] = {}
        if connection.dialect.name == "postgresql":
            # A crash may cost the last templates, which the next import brings again, and saves a disk flush for each.
            connection.exec_driver_sql("SET synchronous_commit TO off")
            connection.commit()
        t = tables()["templates"].c
        rows = connection.execute(sa.select(t.id, t.slug, t.digest, t.source_status)).all()
        connection.rollback()
        self._known = {row.id: (row.digest, row.source_status) for row in rows}
        self._id_of_slug = {row.slug: row.id for row in rows}

    def run(self, readings: Iterable[Reading], prune: bool, observe: Callable[[Reading], None]) -> Report:
        counts = dict.fromkeys(Outcome, 0)
        for reading in readings:
            outcome, observed = self._one(reading)
            counts[outcome] += 1
            observe(observed)
        pruned = prune and not counts[Outcome.FAILED]
        if pruned:
            counts[Outcome.HIDDEN] = self._prune()
        return Report(counts, pruned or not prune)

    def _one(self, reading: Reading) -> tuple[Outcome, Reading]:
        if reading.source is None:
            return Outcome.FAILED, reading
        try:
            return self._bring(reading.source), reading
        except SourceError as exc:
            return Outcome.FAILED, Reading(None, (exc,), reading.warnings, reading.done, reading.total)

    def _bring(self, source: TemplateSource) -> Outcome:
        id_ = source.id or self._id_of_slug.get(source.slug) or template_id(source.slug or "")
        self._note(source, id_)
        digest = source.digest()
        if self._known.get(id_) == (digest, source.status):
            return Outcome.UNCHANGED
        try:
            return self._writer.store(source, id_, digest, is_new=id_ not in self._known)
        except sa.exc.IntegrityError:
            self._writer.forget_names()  # they may be those of the transaction that failed
        try:  # another import may have been quicker
            return self._writer.store(source, id_, digest, is_new=False)
        except sa.exc.IntegrityError as exc:
            self._writer.forget_names()
            raise SourceError(source.where, "its slug or an id in it belongs to another object") from exc

    def _note(self, source: TemplateSource, id_: str) -> None:
        """Refuse a second template of the same id or slug in one import: each import would swap them."""
        names = [*([("slug", source.slug)] if source.slug else []), ("id", id_)]  # the slug is what its author wrote
        for kind, name in names:
            if (kind, name) in self._seen:
                raise SourceError(source.where, f"{kind} {name!r} was already used by {self._seen[kind, name]}")
        self._seen.update(dict.fromkeys(names, source.where))

    def _prune(self) -> int:
        templates = tables()["templates"]
        gone = [
            id_
            for id_, (_, source_status) in self._known.items()
            if ("id", id_) not in self._seen and source_status != _GONE
        ]
        for id_ in gone if not self._dry_run else ():
            with self._connection.begin():
                version = next_version(self._connection)
                values = {"status": Status.HIDDEN.value, "source_status": _GONE, "changed": version}
                self._connection.execute(templates.update().where(templates.c.id == id_), values)
        return len(gone)
