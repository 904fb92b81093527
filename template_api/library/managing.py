"""What an operator does with a library: list templates in every state, change the state of one; checks before a start.

Blocks on files and the database. Raises `DatabaseUnavailableError` where that does not answer, `StartError` where it
cannot be used.
"""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, delete, or_, select

from template_api.errors import StartError, TemplateApiError, did_you_mean
from template_api.library.database import connected, is_missing, mark_changed, next_version, opened, shown_url, writing
from template_api.library.importing import Report, import_templates
from template_api.library.models import Deletion, FacetRow, LibraryRow, NotebookRow, TemplateRow, columns
from template_api.records import Status
from template_api.sources.reading import Reading, read_templates


def fill_empty_library(
    database_url: str, path: Path, observe: Callable[[Reading], None] = lambda _reading: None
) -> Report | None:
    """Import into a library that is empty, or whose first import was cut off; leave any other as it is.

    Return what the import did, or None when there was none.
    """
    with opened(database_url) as engine, writing(engine) as session:
        library = session.exec(select(LibraryRow)).one()
        if session.exec(select(TemplateRow.id).limit(1)).first() is not None and not library.is_filling:
            return None
        read_templates(path)  # a path that cannot be read is refused before anything is marked
        library.is_filling = True
        session.commit()
        report = import_templates(database_url, path, observe=observe)
        library.is_filling = False
        session.commit()
        return report


def listed_templates(database_url: str, status: Status | None = None) -> Generator[sa.Row[Any], None, None]:
    """Yield id, slug, title, status, difficulty and date of the templates of a library in any state, or in one.

    The newest come first, those without a date last.
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

    Return whether this changed anything; raise `TemplateApiError` when no template has this id or slug.
    """
    with opened(database_url) as engine, writing(engine) as session:
        row = _named(session, id_or_slug)
        if row.status == status:
            return False
        row.status = status.value
        mark_changed(session, row)
        if status is Status.PUBLISHED and row.published_at is None:
            row.published_at = row.updated_at
        session.commit()
        return True


def delete_template(database_url: str, id_or_slug: str) -> None:
    """Delete a template with all versions of its notebooks; raise as `set_status` does."""
    with opened(database_url) as engine, writing(engine) as session:
        row = _named(session, id_or_slug)
        for table in (FacetRow, NotebookRow):
            session.exec(delete(table).where(col(table.template_id) == row.id))
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
        near = did_you_mean(id_or_slug, filter(None, slugs)) or ", nor one that is near (see template-api list)"
        database = shown_url(session.get_bind().engine.url)
        raise TemplateApiError(f"database {database} holds no template with the id or slug {id_or_slug!r}{near}")
    return min(matches, key=lambda row: row.id != wanted)


def place_faults(database_url: str, library: str | None) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the name of each of these settings that stops a start, and why; connects to nothing.

    Whether a database that exists is still empty, and so reads the library, only a start can show.
    """
    would_fill = True
    try:
        connected(database_url).dispose()
        would_fill = is_missing(database_url)
    except StartError as exc:
        yield ("database_url",), str(exc)
    try:
        if library is not None and would_fill:
            read_templates(Path(library))  # only looks for the files: none is read before the first template is taken
    except StartError as exc:
        yield ("library",), str(exc)
