"""What each version of the schema changed: the steps that lead a database of an older version to the next one."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlmodel import col

from template_api.library.models import LibraryRow, TemplateRow, columns
from template_api.ranking import prepared
from template_api.sources.fields import time_text

Step = str | Callable[[Connection], None]
"""A statement, or what does more than one can."""

_AT_ONCE: Final = 500  # templates read at once


def now_text() -> str:
    """Return the present time as the library keeps it."""
    return time_text(datetime.now(UTC))


def _identify(connection: Connection) -> None:
    """Set the identity of a library that has none."""
    nameless = col(LibraryRow.identity).is_(None)
    connection.execute(sa.update(LibraryRow).where(nameless).values(identity=str(uuid4())))


def _date(connection: Connection) -> None:
    """Count each template as changed at the upgrade, so that no change is missed."""
    undated = col(TemplateRow.updated_at).is_(None)
    connection.execute(sa.update(TemplateRow).where(undated).values(updated_at=now_text()))


def _prepare(connection: Connection) -> None:
    """Prepare the texts of each template for the index."""
    row = TemplateRow
    texts = sa.select(
        *columns(row.id, row.title, row.labels, row.short_description, row.content, row.cells_text)
    ).order_by(col(row.id)).limit(_AT_ONCE)  # fmt: skip
    update = sa.update(row).where(col(row.id) == sa.bindparam("known"))
    last = ""
    while rows := connection.execute(texts.where(col(row.id) > last)).all():
        last = rows[-1].id
        values = [{"known": one.id, "prepared": prepared_text(*one[1:])} for one in rows]
        connection.execute(update.values(prepared=sa.bindparam("prepared")), values)


def prepared_text(title: str, labels: str, short_description: str, content: str, cells: str) -> str:
    """Return `ranking.Prepared` of the texts of a template as the library keeps it."""
    return msgspec.json.encode(prepared(title, labels, short_description, content, cells)).decode()


UPGRADES: Final[Mapping[int, Sequence[Step]]] = {
    1: ("ALTER TABLE notebooks ADD COLUMN role VARCHAR",),
    2: (
        "ALTER TABLE library ADD COLUMN identity VARCHAR",
        _identify,
        "CREATE INDEX templates_listed ON templates"
        " (status, published_at DESC, id, category_id, difficulty, broker_version_id, changed)",
    ),
    3: (
        "ALTER TABLE library ADD COLUMN synonyms VARCHAR",
        "ALTER TABLE templates ADD COLUMN updated_at VARCHAR",
        _date,
    ),
    4: ("ALTER TABLE templates ADD COLUMN inputs VARCHAR",),
    5: (
        *(
            f"ALTER TABLE {name} ADD COLUMN members VARCHAR"
            for name in ("categories", "tags", "routes", "broker_versions")
        ),
        "CREATE TABLE deletions (template_id VARCHAR(36) NOT NULL PRIMARY KEY, changed INTEGER NOT NULL)",
        "CREATE INDEX ix_deletions_changed ON deletions (changed)",
        "ALTER TABLE templates ADD COLUMN prepared VARCHAR",
        _prepare,
    ),
}
"""The steps from a schema version to the next one. Version 1 is the first."""

SCHEMA_VERSION: Final = max(UPGRADES) + 1
