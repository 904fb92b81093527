"""What is written to the library: imported templates, one transaction each, and changes of state.

A killed import leaves whole templates only, and the next import goes on from there. Blocks on files and the database.
"""

import json
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from template_api.errors import SourceError, UnknownTemplateError
from template_api.fields import NamedSource, time_text
from template_api.models import open_database, tables, translated, writing
from template_api.notebooks import NotebookSource
from template_api.reading import Reading, read_templates
from template_api.records import Status
from template_api.reports import Outcome, Report
from template_api.sources import TemplateSource

NAMESPACE = uuid.UUID("0f6d2d0c-5c1e-5b7a-9a43-6a1f0f4f7d51")
"""Namespace of the ids made from slugs (UUIDv5), so that they are the same in every database."""

_GONE = "gone"  # the source_status of a template that a pruning import did not find any more


def import_templates(
    database_url: str, path: Path, *, prune: bool = False, observe: Callable[[Reading], None] = lambda _reading: None
) -> Report:
    """Bring a folder of templates or a `.jsonl` file into a library.

    Args:
        database_url: the library.
        path: what is read.
        prune: hide the templates that are not in `path` (any more); left out when a template failed.
        observe: told of each template that was read, with the faults of one that failed, and how far the import is.

    Raises:
        StartError: `path` cannot be read or holds no template, or the database cannot be used.
        DatabaseUnavailableError: the database went away; what was imported until then stays.
    """
    readings = read_templates(path)
    engine = open_database(database_url)
    try:
        with translated(engine), engine.execution_options(writes=True).connect() as connection:
            return _Import(connection).run(readings, prune, observe)
    finally:
        engine.dispose()


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


def set_status(database_url: str, id_or_slug: str, status: Status) -> bool:
    """Change the state of one template; the first time it is published it also gets its date.

    Returns:
        Whether this changed anything.

    Raises:
        UnknownTemplateError: no template has this id or slug.
        DatabaseUnavailableError: the database does not answer.
    """
    engine = open_database(database_url)
    try:
        with translated(engine), writing(engine) as connection:
            return _set_status(connection, id_or_slug, status)
    finally:
        engine.dispose()


def template_id(slug: str) -> str:
    """Return the id of a template that has none of its own."""
    return str(uuid.uuid5(NAMESPACE, slug))


class _Import:
    """Run one import over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names: dict[tuple[str, str], tuple[str, str]] = {}
        self._seen: dict[tuple[str, str], str] = {}
        if connection.dialect.name == "postgresql":
            # A crash may cost the last templates, which the next import brings again, and saves a disk flush for each.
            connection.exec_driver_sql("SET synchronous_commit TO off")
            connection.commit()
        t = tables()["templates"].c
        rows = connection.execute(sa.select(t.id, t.slug, t.digest, t.source_status)).all()
        connection.rollback()
        templates = tables()["templates"]
        row = sa.select(t.status, t.source_status, t.published_at, t.digest)
        self._select = row.where(t.id == sa.bindparam("known"))
        self._insert = templates.insert()
        self._update = templates.update().where(t.id == sa.bindparam("known"))
        self._known = {row.id: (row.digest, row.source_status) for row in rows}
        self._id_of_slug = {row.slug: row.id for row in rows}

    def run(self, readings: Iterable[Reading], prune: bool, observe: Callable[[Reading], None]) -> Report:
        counts = dict.fromkeys(Outcome, 0)
        for reading in readings:
            outcome, told = self._one(reading)
            counts[outcome] += 1
            observe(told)
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
            return self._store(source, id_, digest, is_new=id_ not in self._known)
        except sa.exc.IntegrityError:
            self._names.clear()  # they may be those of the transaction that failed
        try:  # another import may have been quicker
            return self._store(source, id_, digest, is_new=False)
        except sa.exc.IntegrityError as exc:
            self._names.clear()
            raise SourceError(source.where, "its slug or an id in it belongs to another object") from exc

    def _note(self, source: TemplateSource, id_: str) -> None:
        """Refuse a second template of the same id or slug in one import: each import would swap them."""
        names = [("id", id_), *([("slug", source.slug)] if source.slug else [])]
        for kind, name in names:
            if (kind, name) in self._seen:
                raise SourceError(source.where, f"{kind} {name!r} was already used by {self._seen[kind, name]}")
        self._seen.update(dict.fromkeys(names, source.where))

    def _store(self, source: TemplateSource, id_: str, digest: str, *, is_new: bool) -> Outcome:
        """Write one template in one transaction; `is_new` saves looking for it."""
        connection = self._connection
        with connection.begin() as transaction:
            version = _next_version(connection)
            row = None if is_new else connection.execute(self._select, {"known": id_}).one_or_none()
            if row is not None and (row.digest, row.source_status) == (digest, source.status):
                transaction.rollback()  # another import brought the same meanwhile
                return Outcome.UNCHANGED
            facets, values = self._values(source, row)
            values |= {"digest": digest, "changed": version}
            if row is None:
                connection.execute(self._insert, {"id": id_, **values})
            else:
                connection.execute(self._update, {"known": id_, **values})
                for link in ("template_tags", "template_routes"):
                    connection.execute(tables()[link].delete().where(tables()[link].c.template_id == id_))
            self._link("template_tags", id_, "tag_id", facets["tags"])
            self._link("template_routes", id_, "route_id", facets["routes"])
            _store_notebooks(connection, id_, source.notebooks, is_new=row is None)
        return Outcome.ADDED if row is None else Outcome.CHANGED

    def _values(self, source: TemplateSource, row: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the facets of a template and the values of its row."""
        # A state that was set by command stays until the source itself says something new.
        status = source.status if row is None or row.source_status != source.status else row.status
        published_at = source.published_at or (row.published_at if row is not None else None)
        if published_at is None and status == Status.PUBLISHED.value:
            published_at = time_text(datetime.now(UTC))
        facets = {
            "category": self._named("categories", source.category),
            "tags": [self._named("tags", tag) for tag in source.tags],
            "routes": [self._named("routes", route) for route in source.routes],
            "broker_version": self._named("broker_versions", source.broker_version),
        }
        return facets, {
            "slug": source.slug,
            "title": source.title,
            "short_description": source.short_description,
            "content": source.content,
            "difficulty": source.difficulty,
            "url": source.url,
            "status": status,
            "source_status": source.status,
            "published_at": published_at,
            "category_id": facets["category"] and facets["category"]["id"],
            "broker_version_id": facets["broker_version"] and facets["broker_version"]["id"],
            "facets": json.dumps(facets, ensure_ascii=False, separators=(",", ":")),
            "labels": source.labels(),
            "cells_text": "\n".join(notebook.text for notebook in source.notebooks),
        }

    def _named(self, table_name: str, source: NamedSource | None) -> Any:
        """Return the stored object with this slug, made when there is none.

        Decision: the spelling that came first stays, so that importing twice changes nothing.
        """
        if source is None:
            return None
        key = (table_name, source.slug)
        if key not in self._names:
            table = tables()[table_name]
            row = self._connection.execute(
                sa.select(table.c.id, table.c.name).where(table.c.slug == source.slug)
            ).one_or_none()
            if row is None:
                id_ = source.id or str(uuid.uuid5(NAMESPACE, f"{table_name}/{source.slug}"))
                self._connection.execute(table.insert(), {"id": id_, "name": source.name, "slug": source.slug})
                self._names[key] = (id_, source.name)
            else:
                self._names[key] = (row.id, row.name)
        id_, name = self._names[key]
        return {"id": id_, "name": name, "slug": source.slug}

    def _link(self, table_name: str, id_: str, column: str, objects: list[dict[str, str]]) -> None:
        if objects:
            rows = [{"template_id": id_, column: each["id"]} for each in objects]
            self._connection.execute(tables()[table_name].insert(), rows)

    def _prune(self) -> int:
        templates = tables()["templates"]
        gone = [
            id_
            for id_, (_, source_status) in self._known.items()
            if ("id", id_) not in self._seen and source_status != _GONE
        ]
        for id_ in gone:
            with self._connection.begin():
                version = _next_version(self._connection)
                values = {"status": Status.HIDDEN.value, "source_status": _GONE, "changed": version}
                self._connection.execute(templates.update().where(templates.c.id == id_), values)
        return len(gone)


def _next_version(connection: Connection) -> Any:
    """Add one to the library's version, which also makes other writers wait, and return it."""
    return connection.execute(_next_version_statement()).scalar_one()


@cache
def _next_version_statement() -> sa.UpdateBase:
    version = tables()["library"].c.version
    return tables()["library"].update().values(version=version + 1).returning(version)


def _store_notebooks(
    connection: Connection, template_id: str, sources: tuple[NotebookSource, ...], *, is_new: bool
) -> None:
    """Keep every version of a notebook; changed cells make a new one, and the latest of each file is marked."""
    table = tables()["notebooks"]
    n = table.c
    newest: dict[str, Any] = {}
    if not is_new:
        statement = sa.select(n.id, n.filename, n.version, n.cells).where(n.template_id == template_id)
        newest = {row.filename: row for row in connection.execute(statement.order_by(n.version))}
        connection.execute(table.update().where(n.template_id == template_id), {"is_latest": False})
    added = []
    for place, source in enumerate(sources):
        row = newest.get(source.filename)
        values: dict[str, Any] = {"is_primary": source.is_primary, "role": source.role, "is_latest": True}
        values["place"] = place
        if row is not None and row.cells == source.cells:
            connection.execute(table.update().where(n.id == row.id), values)
        else:
            values |= {"template_id": template_id, "filename": source.filename, "cells": source.cells}
            added.append({**values, "version": row.version + 1 if row is not None else 1})
    if added:
        connection.execute(table.insert(), added)


def _set_status(connection: Connection, id_or_slug: str, status: Status) -> bool:
    templates = tables()["templates"]
    t = templates.c
    known = sa.select(t.id, t.status, t.published_at).where(sa.or_(t.id == id_or_slug.lower(), t.slug == id_or_slug))
    # Drivers do not take every text that a command line may hold.
    matches = connection.execute(known).all() if id_or_slug.isprintable() else []
    if not matches:
        slugs = connection.execute(sa.select(t.slug).where(t.slug.is_not(None)).order_by(t.slug)).scalars().all()
        raise UnknownTemplateError(id_or_slug, connection.engine.url.render_as_string(hide_password=True), slugs)
    row = min(matches, key=lambda match: match.id != id_or_slug.lower())
    if row.status == status.value:
        return False
    values: dict[str, Any] = {"status": status.value, "changed": _next_version(connection)}
    if status is Status.PUBLISHED and row.published_at is None:
        values["published_at"] = time_text(datetime.now(UTC))
    connection.execute(templates.update().where(t.id == row.id), values)
    return True
