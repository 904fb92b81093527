"""What an operator does with templates: list them in every state, change the state of one. Blocks on the database."""

from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from template_api.errors import UnknownTemplateError
from template_api.library.database import open_database, shown_url, translated, writing
from template_api.library.tables import tables
from template_api.library.writer import next_version
from template_api.records import ListedTemplate, Status
from template_api.sources.fields import time_text


def listed_templates(database_url: str, status: Status | None = None) -> Generator[ListedTemplate, None, None]:
    """Yield the templates of a library in any state, or in one; the newest first, those without a date last.

    Raises:
        StartError: the URL cannot be used or the database is of a newer version.
        DatabaseUnavailableError: the database does not answer.
    """
    engine = open_database(database_url)
    t = tables()["templates"].c
    statement = sa.select(t.id, t.slug, t.title, t.status, t.difficulty, t.published_at)
    if status is not None:
        statement = statement.where(t.status == status.value)
    try:
        with translated(engine), engine.connect() as connection:
            for row in connection.execute(statement.order_by(t.published_at.is_(None), t.published_at.desc(), t.id)):
                yield ListedTemplate(*row)
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
    templates, wanted = tables()["templates"], id_or_slug.lower()
    t = templates.c
    known = sa.select(t.id, t.status, t.published_at).where(sa.or_(t.id == wanted, t.slug == id_or_slug))
    engine = open_database(database_url)
    try:
        with translated(engine), writing(engine) as connection:
            # Drivers do not take every text that a command line may hold.
            matches = connection.execute(known).all() if id_or_slug.isprintable() else []
            if not matches:
                slugs = connection.execute(sa.select(t.slug).where(t.slug.is_not(None)).order_by(t.slug)).scalars()
                raise UnknownTemplateError(id_or_slug, shown_url(engine.url), slugs.all())
            row = min(matches, key=lambda match: match.id != wanted)
            if row.status == status.value:
                return False
            values: dict[str, Any] = {"status": status.value, "changed": next_version(connection)}
            if status is Status.PUBLISHED and row.published_at is None:
                values["published_at"] = time_text(datetime.now(UTC))
            connection.execute(templates.update().where(t.id == row.id), values)
            return True
    finally:
        engine.dispose()
