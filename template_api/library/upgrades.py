"""How a database of an older version gets what the models have and it lacks. Blocks on the database."""

from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlmodel import col

from template_api.library.models import LibraryRow, Table, TemplateRow, columns
from template_api.ranking import prepared
from template_api.sources.fields import time_text

SCHEMA_VERSION: Final = 6
"""Grows with each change of the models, so that older software refuses the database."""

_AT_ONCE: Final = 500  # templates read at once


def now_text() -> str:
    """Return the present time as the library keeps it."""
    return time_text(datetime.now(UTC))


def prepared_text(title: str, labels: str, short_description: str, content: str, cells: str) -> str:
    """Return `ranking.Prepared` of the texts of a template as the library keeps it."""
    return msgspec.json.encode(prepared(title, labels, short_description, content, cells)).decode()


def upgrade(connection: Connection) -> None:
    """Add the tables, indexes and columns of the models that a database lacks, and fill the columns.

    So a column that is new must be one that may be NULL.
    """
    found = sa.inspect(connection)
    for table in Table.metadata.sorted_tables:
        if not found.has_table(table.name):
            table.create(connection)
            continue
        known = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    nameless, undated = col(LibraryRow.identity).is_(None), col(TemplateRow.updated_at).is_(None)
    connection.execute(sa.update(LibraryRow).where(nameless).values(identity=str(uuid4())))
    # Each template counts as changed at the upgrade, so that no change is missed.
    connection.execute(sa.update(TemplateRow).where(undated).values(updated_at=now_text()))
    _prepare(connection)
    connection.execute(sa.update(LibraryRow).values(schema_version=SCHEMA_VERSION, version=LibraryRow.version + 1))


def _prepare(connection: Connection) -> None:
    """Prepare the texts of templates for the index."""
    row = TemplateRow
    texts = sa.select(*columns(row.id, row.title, row.labels, row.short_description, row.content, row.cells_text))
    texts = texts.where(col(row.prepared).is_(None)).limit(_AT_ONCE)
    update = sa.update(row).where(col(row.id) == sa.bindparam("known")).values(prepared=sa.bindparam("prepared"))
    while rows := connection.execute(texts).all():
        connection.execute(update, [{"known": one.id, "prepared": prepared_text(*one[1:])} for one in rows])
