"""`TemplateLibrary` reads the database for the API, and follows the changes that other processes make.

Lists and single templates come from the database. Searches use an index of it in memory (`indexing`); what they find is
read from the database again, so that a hidden template is never shown. Requests run on the server's threads: four times
a second one of them reads the library's version, and cached answers of an earlier version are dropped. After `follow`,
another thread brings the index up to date, so that no request waits for that.
"""

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any, Final

import sqlalchemy as sa
from sqlmodel import col

from template_api.errors import DatabaseUnavailableError, IndexNotReadyError
from template_api.library.database import opened
from template_api.library.indexing import Indexer, Pace
from template_api.library.models import FacetRow, LibraryRow, NotebookRow, TemplateRow, columns
from template_api.ranking import Filters, Ranking
from template_api.records import (
    Difficulty,
    Found,
    FreeForm,
    Notebook,
    Page,
    Place,
    Status,
    Summary,
    Template,
    TemplateQuery,
    Word,
)

log = logging.getLogger(__name__)

_MOST_SUGGESTED = 8
_MOST_NEAR = 4
_FILTER_OF_GROUP: Final = {
    "categories": "category_id", "tags": "tag_ids", "routes": "route_ids", "broker_versions": "broker_version_ids",
    "difficulties": "difficulty",
}  # fmt: skip
"""The filter of each group of facets."""
_Row, _Notebook = TemplateRow, NotebookRow
_id: Final = col(_Row.id)
_SELECT_VERSION: Final = sa.select(col(LibraryRow.version))
_COPIED_MEMBERS: Final = [each.name for each in fields(Summary) if hasattr(TemplateRow, each.name)]
"""The members of a `Summary` that a row has too; the others are in the row's `facets`."""
_SUMMARIES: Final = sa.select(*columns(_Row.status, _Row.facets, *(getattr(_Row, name) for name in _COPIED_MEMBERS)))
# Hidden templates are left out in Python: with a condition on `status` SQLite would read all published rows.
_BY_IDS: Final = _SUMMARIES.where(_id.in_(sa.bindparam("ids", expanding=True)))
_BY_ID_OR_SLUG: Final = _SUMMARIES.where(sa.or_(_id == sa.bindparam("id"), col(_Row.slug) == sa.bindparam("slug")))
_LATEST_NOTEBOOKS: Final = (
    sa.select(*columns(_Notebook.filename, _Notebook.version, _Notebook.is_primary, _Notebook.cells, _Notebook.role))
    .where(col(_Notebook.template_id) == sa.bindparam("template_id"), col(_Notebook.is_latest))
    .order_by(col(_Notebook.place))
)


class TemplateLibrary:
    """Read the published templates of one database.

    Args:
        database_url: where the library is; its tables are made or upgraded when needed.
        pace: how often it looks for changes.

    Raises:
        StartError: the URL cannot be used or the database is of a newer version.
        DatabaseUnavailableError: raised by every method: the database does not answer, or did not the last time.
        IndexNotReadyError: raised by methods that search: the first index is being built.
    """

    def __init__(self, database_url: str, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._opened = ExitStack()
        self._engine = self._opened.enter_context(opened(database_url))
        self._indexer = Indexer(self._engine, self._pace)
        self._version_lock = threading.Lock()
        self._index_lock = threading.Lock()
        self._fault_lock = threading.Lock()
        self._stopping = threading.Event()
        self._follower: threading.Thread | None = None
        self._fault: DatabaseUnavailableError | None = None  # the last one, until the database is back
        self._version = 0
        self._version_read_at = -math.inf
        self.current()

    def follow(self) -> None:
        """Start the thread that keeps the search index up to date until `close`.

        Waits until the search index is complete, at most for `Pace.first_index`: so only with a large library searches
        right after the start are refused.
        """

        def repeat() -> None:
            while not self._stopping.is_set():
                try:
                    self.refresh()
                except Exception:
                    log.exception("cannot follow the library's changes")
                self._stopping.wait(self._pace.follow)

        self._follower = threading.Thread(target=repeat, name="library-index", daemon=True)
        self._follower.start()
        deadline = time.monotonic() + self._pace.first_index
        while self._indexer.ranking is None and time.monotonic() < deadline:
            self._stopping.wait(0.005)

    def refresh(self) -> None:
        """Bring the search index up to date; blocks until it is."""
        self._version_read_at = -math.inf
        with self._index_lock, self._noting_fault():
            while not self._stopping.is_set() and self._indexer.index_changes():
                pass

    def current(self) -> int:
        """Return the version of the library, as it was at most `Pace.follow` ago; it grows with every change."""
        # Only one request at a time waits for a slow database; the others go on with the version that is known.
        if time.monotonic() - self._version_read_at > self._pace.follow and self._version_lock.acquire(blocking=False):
            try:
                with self._noting_fault(), self._engine.connect() as connection:
                    self._version = int(connection.execute(_SELECT_VERSION).scalar_one())
            finally:
                self._version_read_at = time.monotonic()
                self._version_lock.release()
        if self._fault is not None:
            raise DatabaseUnavailableError(str(self._fault)) from self._fault
        return self._version

    @contextmanager
    def _noting_fault(self) -> Iterator[None]:
        """Run a block, and note whether the database answered; log once that it went away, and once that it is back."""
        fault = None
        try:
            yield
        except DatabaseUnavailableError as exc:
            fault = exc
        with self._fault_lock:
            if fault is not None and self._fault is None:
                log.error("%s; requests are answered with 500 until it is back", fault)
            elif fault is None and self._fault is not None:
                log.warning("the library's database is back")
            self._fault = fault

    @property
    def edition(self) -> tuple[int, int]:
        """The state that answers are made from: version of the library, and number of the index, which grows."""
        return self.current(), self._indexer.edition

    def close(self) -> None:
        """Stop following and close the database's connections."""
        self._stopping.set()
        if self._follower is not None:
            self._follower.join()
        self._opened.close()

    def find(self, query: TemplateQuery) -> Page[Summary]:
        """Return the templates that a query asks for: best first, or newest first when it has no text."""
        self.current()
        if query.is_listed:
            return self._latest(query)
        ranked = self._ranking().search(
            query.text, query.limit, query.offset, _filters(query), exact=query.exact, since=query.updated_since,
            sort=query.sort, place=query.place,
        )  # fmt: skip
        summaries = self._summaries([each.template for each in ranked.found])
        known = [each for each in ranked.found if each.template in summaries]
        found = tuple(Found(summaries[each.template], each.score, each.matched) for each in known)
        return Page(found, ranked.total, ranked.corrected, ranked.ignored, ranked.place)

    def _latest(self, query: TemplateQuery) -> Page[Summary]:
        """Return the newest templates that pass the filters, from the database."""
        wanted = [col(_Row.status) == Status.PUBLISHED.value]
        for any_of in _filters(query):
            # PostgreSQL's driver refuses NUL, which no facet has.
            storable = [facet.replace("\0", "\N{REPLACEMENT CHARACTER}") for facet in any_of]
            having = sa.select(col(FacetRow.template_id)).where(col(FacetRow.facet).in_(storable))
            wanted.append(_id.in_(having))
        date = col(_Row.published_at)
        page = sa.select(_id).where(*wanted).order_by(date.desc(), _id).limit(query.limit + 1)  # is there one more?
        begin = query.place or Place(query.offset)
        with self._engine.connect() as connection:
            shown = sa.select(date, _id).where(_id.in_(begin.keys), date.is_not(None)).order_by(date, _id.desc())
            last = connection.execute(shown.limit(1)).first() if begin.keys else None
            if last is None:
                page = page.offset(begin.shown)
            else:
                same_time = sa.and_(date == last.published_at, _id > last.id)
                page = page.where(date <= last.published_at, sa.or_(date < last.published_at, same_time))
            ids = connection.execute(page).scalars().all()
            total = connection.execute(sa.select(sa.func.count(_id)).where(*wanted)).scalar_one()
        here = ids[: query.limit]
        found = tuple(Found(each, 0.0) for each in self._summaries(here).values())
        return Page(found, total, place=begin.after(here) if len(ids) > len(here) else None)

    def _summaries(self, ids: Sequence[str]) -> Mapping[str, Summary]:
        """Read these templates, in this order, without those that are no longer published."""
        if not ids:
            return {}
        with self._engine.connect() as connection:
            several = connection.execute(_BY_IDS, {"ids": ids})
            rows = {row.id: row for row in several if row.status == Status.PUBLISHED}
        return {id_: _summary(rows[id_]) for id_ in ids if id_ in rows}

    def suggest(self, text: str) -> tuple[tuple[Summary, ...], tuple[Word, ...]]:
        """Return at most eight templates whose titles complete a text, and the words of it that were corrected."""
        keys, corrected = self._ranking().suggest(text, _MOST_SUGGESTED)
        return tuple(self._summaries(keys).values()), corrected

    def near(self, text: str) -> tuple[Summary, ...]:
        """Return at most four templates whose titles are like a text for which nothing was found."""
        return tuple(self._summaries(self._ranking().near(text, _MOST_NEAR)).values())

    def facets(self, query: TemplateQuery | None = None) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the facets of published templates by group, with counts, the commonest first.

        With a query, only the templates that it finds are counted, as by `facet_counts`.
        """
        counts = self._ranking().facets() if query is None else self.facet_counts(query)
        known: dict[str, FreeForm] = dict(self._indexer.objects)
        known |= {f"difficulty:{each}": {"id": each, "name": each, "slug": each} for each in Difficulty}
        found: dict[str, list[dict[str, Any]]] = {group: [] for group in _FILTER_OF_GROUP}
        for group, name in _FILTER_OF_GROUP.items():
            for facet, count in counts.items():
                if facet.startswith(f"{name}:") and (one := known.get(facet)):
                    found[group].append({each: one[each] for each in ("id", "name", "slug")} | {"count": count})
            found[group].sort(key=lambda each: (-each["count"], each["slug"]))
        return found

    def facet_counts(self, query: TemplateQuery) -> Mapping[str, int]:
        """Return how many of the templates that a query finds have each facet; a facet is written `tag_ids:ID`.

        Facets of a kind that the query filters by are counted as if the query had no filter of this kind.
        """
        self.current()
        ranking, chosen = self._ranking(), _filters(query)
        counts = ranking.facets(query.text, chosen, exact=query.exact, since=query.updated_since)
        for own in chosen:
            kind = next(iter(own)).partition(":")[0]
            others = [each for each in chosen if each is not own]
            without = ranking.facets(query.text, others, exact=query.exact, since=query.updated_since)
            counts |= {facet: count for facet, count in without.items() if facet.startswith(f"{kind}:")}
        return counts

    def get(self, id_or_slug: str) -> Template | None:
        """Return the published template with this UUID or, if there is none, with this slug."""
        self.current()
        with self._engine.connect() as connection:
            wanted = {"id": id_or_slug.lower(), "slug": id_or_slug}
            rows = [row for row in connection.execute(_BY_ID_OR_SLUG, wanted) if row.status == Status.PUBLISHED]
            if not rows:
                return None
            row = min(rows, key=lambda row: row.id != wanted["id"])
            notebooks = connection.execute(_LATEST_NOTEBOOKS, {"template_id": row.id}).all()
        found = tuple(Notebook(*notebook) for notebook in notebooks)
        return Template(_summary(row), found)

    def check(self) -> None:
        """Check that searches are answered: the database answers, and the search index is open."""
        with self._engine.connect() as connection:
            connection.execute(_SELECT_VERSION)
        self._ranking()

    def _ranking(self) -> Ranking:
        if self._follower is None:
            self.refresh()
        ranking = self._indexer.ranking
        if ranking is None:
            raise IndexNotReadyError("the search index is being built")
        return ranking


def _filters(query: TemplateQuery) -> Filters:
    """Return the facets that a query's filters ask for, one of each filter."""
    given = {name: getattr(query, name) for name in _FILTER_OF_GROUP.values()}
    asked = {name: sorted(value) if isinstance(value, frozenset) else [value] for name, value in given.items() if value}
    return [[f"{name}:{value}" for value in values] for name, values in asked.items()]


def _summary(row: Any) -> Summary:
    return Summary(**{name: getattr(row, name) for name in _COPIED_MEMBERS}, **row.facets)
