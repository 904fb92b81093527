"""How one template is written: its row, what it links to, and the versions of its notebooks. Blocks on the database."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from template_api.library.database import TABLES, now_text
from template_api.records import Status
from template_api.sources.fields import NamedSource
from template_api.sources.template import NotebookSource, TemplateSource

NAMESPACE = uuid.UUID("0f6d2d0c-5c1e-5b7a-9a43-6a1f0f4f7d51")
"""Namespace of the ids made from slugs (UUIDv5), so that they are the same in every database."""


class Outcome(StrEnum):
    """What an import did with one template."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of an import by number; `pruned` is False when pruning was asked for but something failed."""

    counts: Mapping[Outcome, int]
    pruned: bool

    @property
    def failed(self) -> int:
        """How many templates could not be imported."""
        return self.counts[Outcome.FAILED]

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[each]} {each}" for each in Outcome if each != "hidden" or self.counts[each])


class TemplateWriter:
    """Write templates over one connection, one transaction each.

    Args:
        connection: with the execution option `writes`; no transaction is open.
        dry_run: roll each transaction back.
    """

    def __init__(self, connection: Connection, *, dry_run: bool = False) -> None:
        self._dry_run = dry_run
        self._connection = connection
        self._names: dict[tuple[str, str], tuple[str, str]] = {}
        templates = TABLES["templates"]
        t = templates.c
        row = sa.select(t.status, t.source_status, t.published_at, t.digest)
        self._select = row.where(t.id == sa.bindparam("known"))
        self._insert = templates.insert()
        self._update = templates.update().where(t.id == sa.bindparam("known"))

    def forget_names(self) -> None:
        """Drop the names that are known to be stored; call it when a transaction has failed."""
        self._names.clear()

    def store(self, source: TemplateSource, id_: str, digest: str, *, is_new: bool) -> Outcome:
        """Write one template in one transaction; `is_new` saves looking for it.

        Raises:
            sqlalchemy.exc.IntegrityError: it is new no longer, or its slug or an id in it belongs to another object.
        """
        connection = self._connection
        with connection.begin() as transaction:
            version = next_version(connection)
            row = None if is_new else connection.execute(self._select, {"known": id_}).one_or_none()
            if row is not None and (row.digest, row.source_status) == (digest, source.status):
                transaction.rollback()  # another import brought the same meanwhile
                return Outcome.UNCHANGED
            facets, values = self._values(source, row)
            values |= {"digest": digest, "changed": version, "updated_at": now_text()}
            if row is None:
                connection.execute(self._insert, {"id": id_, **values})
            else:
                connection.execute(self._update, {"known": id_, **values})
                for link in ("template_tags", "template_routes"):
                    connection.execute(TABLES[link].delete().where(TABLES[link].c.template_id == id_))
            self._link("template_tags", id_, "tag_id", facets["tags"])
            self._link("template_routes", id_, "route_id", facets["routes"])
            _store_notebooks(connection, id_, source.notebooks, is_new=row is None)
            if self._dry_run:
                transaction.rollback()
                self.forget_names()
        return Outcome.ADDED if row is None else Outcome.CHANGED

    def _values(self, source: TemplateSource, row: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the facets of a template and the values of its row."""
        # A state that was set by command stays until the source itself has a new one.
        status = source.status if row is None or row.source_status != source.status else row.status
        published_at = source.published_at or (row.published_at if row is not None else None)
        if published_at is None and status == Status.PUBLISHED.value:
            published_at = now_text()
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
            "inputs": json.dumps([astuple(each) for each in source.inputs], ensure_ascii=False),
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
            table = TABLES[table_name]
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
            self._connection.execute(TABLES[table_name].insert(), rows)


def template_id(slug: str) -> str:
    """Return the id of a template that has none of its own."""
    return str(uuid.uuid5(NAMESPACE, slug))


def next_version(connection: Connection) -> Any:
    """Add one to the library's version, which also makes other writers wait, and return it."""
    library = TABLES["library"]
    statement = library.update().values(version=library.c.version + 1).returning(library.c.version)
    return connection.execute(statement).scalar_one()


def _store_notebooks(
    connection: Connection, template_id: str, sources: tuple[NotebookSource, ...], *, is_new: bool
) -> None:
    """Store notebooks: changed cells become a new version, earlier ones stay, the latest of each file is marked."""
    table = TABLES["notebooks"]
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
