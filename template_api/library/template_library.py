"""`TemplateLibrary`: what the API reads from the database, and how it follows the changes that other processes make.

Each process holds a `Catalogue` of the published templates, built from the database. When the library's version there
has changed, the catalogue is replaced by one with the changed templates, or built anew when many have changed. Requests
run on the server's threads; one further thread, after `follow`, looks for changes, so that no request waits for that.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from template_api.errors import DatabaseUnavailableError
from template_api.library.catalogue import Catalogue, Facet
from template_api.library.database import open_database, translated
from template_api.library.statements import Statements, document, entry, summary
from template_api.query import TemplateQuery
from template_api.records import Found, Notebook, Status, Summary, Template

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 0.5
_OVERDUE_SECONDS = 1.0  # a request looks for changes itself when the last look is older
_FETCHED_ROWS = 500
_MOST_PENDING = 1000  # changed templates; from here on, indexing all anew is cheaper


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
        self._statements = Statements()
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
        """Read the library's version, and build a new catalogue when it has changed.

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
        """Stop following and close the database's connections."""
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
            wanted = {"id": id_or_slug.lower(), "slug": id_or_slug}
            rows = connection.execute(self._statements.one, wanted).all()
            if not rows:
                return None
            row = min(rows, key=lambda row: row.id != wanted["id"])
            notebooks = connection.execute(self._statements.notebooks, {"template_id": row.id}).all()
        return Template(summary(row), tuple(Notebook(*notebook) for notebook in notebooks))

    def check(self) -> None:
        """Check that the database answers.

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
        return {row.id: summary(row) for row in rows}

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
            bounds = {"since": catalogue.version, "most": _MOST_PENDING + 1}
            rows = connection.execute(self._statements.changed, bounds).all()
        if len(rows) > _MOST_PENDING:
            return self._load()
        began = time.monotonic()
        published = {
            row.id: (entry(row, self._facets), document(row)) for row in rows if row.status == Status.PUBLISHED.value
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
            catalogue = Catalogue.built(version, ((entry(row, self._facets), document(row)) for row in rows))
        log.info("library version %d: %d templates indexed in %.2f s", version, len(catalogue), _since(began))
        return catalogue


def _since(began: float) -> float:
    return time.monotonic() - began
