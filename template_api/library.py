"""`TemplateLibrary`: what the API reads from the database, and how it follows the changes that others make to it.

Each process holds a `Catalogue` of the published templates, built from the database. When the library's version there
has changed, the catalogue is replaced by one with the changed templates, or built anew when many have changed. Requests
run on the server's threads; one further thread, after `follow`, looks for changes, so that no request waits for that.
"""

import json
import logging
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from template_api.catalogue import Catalogue, Entry, Facet
from template_api.errors import DatabaseUnavailableError
from template_api.models import open_database, tables, translated
from template_api.query import TemplateQuery
from template_api.ranking import Document
from template_api.records import Found, ListedTemplate, Notebook, Status, Summary, Template

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 0.5
_OVERDUE_SECONDS = 1.0  # a request looks for changes itself when nobody has for so long
_FETCHED_ROWS = 500
_MOST_PENDING = 1000  # changed templates; indexing all anew is then the better deal


class TemplateLibrary:
    """Read the published templates of one database.

    Args:
        database_url: where the library is; its tables are made or upgraded when needed.

    Raises:
        StartError: the URL cannot be used or the database is of a newer version.
        DatabaseUnavailableError: the database does not answer.
    """

    def __init__(self, database_url: str) -> None:
        self._engine = open_database(database_url)
        self._statements = _Statements()
        self._facets: dict[Facet, Facet] = {}
        self._refreshing = threading.Lock()
        self._stopping = threading.Event()
        self._follower: threading.Thread | None = None
        self._fault: DatabaseUnavailableError | None = None
        self._catalogue = self._load()
        self._checked = time.monotonic()

    def current(self) -> Catalogue:
        """Return the catalogue of the library's current version, at most about a second old.

        Raises:
            DatabaseUnavailableError: the database did not answer when it was last asked.
        """
        if time.monotonic() - self._checked > _OVERDUE_SECONDS:
            self.refresh(wait=False)
        if self._fault is not None:
            raise DatabaseUnavailableError(str(self._fault)) from self._fault
        return self._catalogue

    @property
    def version(self) -> int:
        """The version of the library that answers are made from; it grows with every change."""
        return self.current().version

    def refresh(self, *, wait: bool = True) -> None:
        """Ask the database for its version, and build a new catalogue when it has changed.

        Args:
            wait: wait for another thread that does the same, instead of leaving it to that one.
        """
        if not self._refreshing.acquire(blocking=wait):
            return
        try:
            self._refresh()
        finally:
            self._checked = time.monotonic()
            self._refreshing.release()

    def follow(self) -> None:
        """Start the thread that looks for changes until `close`."""
        self._follower = threading.Thread(target=self._follow, name="library-follower", daemon=True)
        self._follower.start()

    def close(self) -> None:
        """Stop following and give the database's connections back."""
        self._stopping.set()
        if self._follower is not None:
            self._follower.join()
        self._engine.dispose()

    def find(self, query: TemplateQuery) -> list[Found]:
        """Return the templates that a query asks for: best first, or newest first when it has no text.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        catalogue = self.current()
        places = catalogue.search(query) if query.text else catalogue.latest(query)
        summaries = self._summaries([place.id for place in places])
        return [Found(summaries[id_], score, matched) for id_, score, matched in places if id_ in summaries]

    def get(self, id_or_slug: str) -> Template | None:
        """Return the published template with this UUID or, if there is none, with this slug.

        Raises:
            DatabaseUnavailableError: the database does not answer.
        """
        self.current()
        with translated(self._engine), self._engine.connect() as connection:
            given = {"id": id_or_slug.lower(), "slug": id_or_slug}
            rows = connection.execute(self._statements.one, given).all()
            if not rows:
                return None
            row = min(rows, key=lambda row: row.id != given["id"])
            notebooks = connection.execute(self._statements.notebooks, {"template_id": row.id}).all()
        return Template(_summary(row), tuple(Notebook(*notebook) for notebook in notebooks))

    def check(self) -> None:
        """Ask the database for a sign of life.

        Raises:
            DatabaseUnavailableError: it does not answer.
        """
        with translated(self._engine), self._engine.connect() as connection:
            connection.execute(self._statements.version)

    def _summaries(self, ids: Sequence[str]) -> Mapping[str, Summary]:
        """Read the published ones among some templates: what was hidden a moment ago is not shown."""
        if not ids:
            return {}
        with translated(self._engine), self._engine.connect() as connection:
            rows = connection.execute(self._statements.some, {"ids": ids}).all()
        return {row.id: _summary(row) for row in rows}

    def _refresh(self) -> None:
        try:
            with translated(self._engine), self._engine.connect() as connection:
                version = connection.execute(self._statements.version).scalar_one()
            if version != self._catalogue.version:
                self._catalogue = self._brought_to(version)
            elif self._catalogue.pending > _MOST_PENDING:
                self._catalogue = self._load()
        except DatabaseUnavailableError as exc:
            if self._fault is None:
                log.error("%s; requests are answered with 500 until it is back", exc)  # noqa: TRY400 - the cause is in the text
            self._fault = exc
        else:
            if self._fault is not None:
                log.warning("the library's database is back")
            self._fault = None

    def _follow(self) -> None:
        while not self._stopping.wait(FOLLOW_SECONDS):
            try:
                self.refresh()
            except Exception:
                log.exception("cannot follow the library's changes")

    def _brought_to(self, version: int) -> Catalogue:
        """Return the catalogue with what has changed since, or a new one when that is much or a backup came back."""
        catalogue = self._catalogue
        if version < catalogue.version or catalogue.pending > 2 * _MOST_PENDING:
            return self._load()
        with translated(self._engine), self._engine.connect() as connection:
            given = {"since": catalogue.version, "most": _MOST_PENDING + 1}
            rows = connection.execute(self._statements.changed, given).all()
        if len(rows) > _MOST_PENDING:
            return self._load()
        began = time.monotonic()
        published = {
            row.id: (_entry(row, self._facets), _document(row)) for row in rows if row.status == Status.PUBLISHED.value
        }
        gone = {row.id for row in rows} - set(published)
        catalogue = catalogue.updated(version, published, gone)
        log.info("library version %d: %d templates changed, read in %.2f s", version, len(rows), _since(began))
        return catalogue

    def _load(self) -> Catalogue:
        began = time.monotonic()
        with translated(self._engine), self._engine.connect() as connection:
            # The version first: rows that are newer than it are read again at the next look.
            version = connection.execute(self._statements.version).scalar_one()
            rows = connection.execution_options(yield_per=_FETCHED_ROWS).execute(self._statements.published)
            catalogue = Catalogue.built(version, ((_entry(row, self._facets), _document(row)) for row in rows))
        log.info("library version %d: %d templates indexed in %.2f s", version, len(catalogue), _since(began))
        return catalogue


def _since(began: float) -> float:
    return time.monotonic() - began


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


class _Statements:
    """Hold the SELECTs, built once."""

    def __init__(self) -> None:
        library, templates, notebooks = (tables()[name] for name in ("library", "templates", "notebooks"))
        t = templates.c
        published = t.status == Status.PUBLISHED.value
        shown = (t.id, t.slug, t.title, t.short_description, t.difficulty, t.url, t.facets, t.content)
        self.version = sa.select(library.c.version)
        indexed = sa.select(
            t.id, t.status, t.published_at, t.difficulty, t.facets, t.title, t.labels, t.short_description, t.content,
            t.cells_text,
        )  # fmt: skip
        self.published = indexed.where(published).order_by(t.published_at.desc(), t.id)
        self.changed = indexed.where(t.changed > sa.bindparam("since")).limit(sa.bindparam("most"))
        self.some = sa.select(*shown).where(published, t.id.in_(sa.bindparam("ids", expanding=True)))
        self.one = sa.select(*shown).where(
            published, sa.or_(t.id == sa.bindparam("id"), t.slug == sa.bindparam("slug"))
        )
        n = notebooks.c
        self.notebooks = (
            sa.select(n.filename, n.version, n.is_primary, n.cells, n.role)
            .where(n.template_id == sa.bindparam("template_id"), n.is_latest)
            .order_by(n.place)
        )


def _document(row: Any) -> Document:
    return Document(row.id, row.title, row.labels, row.short_description, row.content, row.cells_text)


def _entry(row: Any, known: dict[Facet, Facet]) -> Entry:
    """Return what order and filters look at; equal facets of different templates are one object in memory."""
    facets = json.loads(row.facets)
    found = [
        *(("tag_ids", tag["id"]) for tag in facets["tags"]),
        *(("route_ids", route["id"]) for route in facets["routes"]),
    ]
    for kind, facet in (("category_id", facets["category"]), ("broker_version_ids", facets["broker_version"])):
        if facet is not None:
            found.append((kind, facet["id"]))
    if row.difficulty is not None:
        found.append(("difficulty", row.difficulty))
    return Entry(row.id, row.published_at, tuple(known.setdefault(facet, facet) for facet in found))


def _summary(row: Any) -> Summary:
    return Summary(
        id=row.id,
        slug=row.slug,
        title=row.title,
        short_description=row.short_description,
        difficulty=row.difficulty,
        url=row.url,
        content=row.content,
        **json.loads(row.facets),
    )
