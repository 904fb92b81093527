"""The SELECTs that the API needs, and what their rows become. Pure."""

import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlmodel import col

from template_api.library.models import (
    BrokerVersion,
    Category,
    Deletion,
    LibraryRow,
    Named,
    NotebookRow,
    Tag,
    TemplateRow,
    UsedRoute,
    columns,
    having,
)
from template_api.ranking import Document, Filters, Prepared
from template_api.records import Status, Summary, TemplateQuery

_T, _N = TemplateRow, NotebookRow
_PUBLISHED: Final = col(_T.status) == Status.PUBLISHED.value

VERSION: Final = sa.select(col(LibraryRow.version))
LIBRARY: Final = sa.select(*columns(LibraryRow.identity, LibraryRow.version, LibraryRow.synonyms))
CHANGED: Final = (
    sa.select(
        *columns(_T.id, _T.status, _T.published_at, _T.difficulty, _T.facets, _T.changed, _T.updated_at, _T.prepared)
    )
    .where(col(_T.changed) > sa.bindparam("since"))
    .order_by(col(_T.changed))
    .limit(sa.bindparam("most"))
)
"""At most `most` templates that changed after the version `since`, for the index."""
DELETED: Final = sa.select(col(Deletion.template_id)).where(col(Deletion.changed) > sa.bindparam("since"))
# Rows looked up by id are not restricted to published ones: SQLite would prefer the index over all of those.
_OF_ROW: Final = (
    "id", "slug", "title", "short_description", "difficulty", "url", "content", "published_at", "updated_at",
)  # fmt: skip
"""What a `Summary` has of a row as it is, in its order; the rest is in `facets`."""
_SHOWN: Final = columns(_T.status, _T.facets, *(getattr(_T, name) for name in _OF_ROW))
SOME: Final = sa.select(*_SHOWN).where(col(_T.id).in_(sa.bindparam("ids", expanding=True)))
ONE: Final = sa.select(*_SHOWN, col(_T.inputs)).where(
    sa.or_(col(_T.id) == sa.bindparam("id"), col(_T.slug) == sa.bindparam("slug"))
)
LAST: Final = (
    sa.select(*columns(_T.published_at, _T.id))
    .where(col(_T.id).in_(sa.bindparam("ids", expanding=True)), col(_T.published_at).is_not(None))
    .order_by(col(_T.published_at), col(_T.id).desc())
    .limit(1)
)
"""What `behind` takes of the last one of some templates in the order of lists."""
NOTEBOOKS: Final = (
    sa.select(*columns(_N.filename, _N.version, _N.is_primary, _N.cells, _N.role))
    .where(col(_N.template_id) == sa.bindparam("template_id"), col(_N.is_latest))
    .order_by(col(_N.place))
)
KINDS: Final[dict[str, tuple[str, type[Named]]]] = {
    "categories": ("category_id", Category),
    "tags": ("tag_ids", Tag),
    "routes": ("route_ids", UsedRoute),
    "broker_versions": ("broker_version_ids", BrokerVersion),
}
"""What templates are classified by: the name that filters have for each group, and its table."""


def listed(query: TemplateQuery) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Return the SELECTs of what a query without a text asks for, and of how many there are in all.

    The first selects the `id` of one template more than a page has: whether another page follows.
    """
    wanted = [_PUBLISHED]
    if query.difficulty:
        wanted.append(col(_T.difficulty) == query.difficulty)
    asked = _asked(query)
    wanted += [having(table, _ids(table, asked[name])) for name, table in KINDS.values() if asked[name]]
    page = sa.select(col(_T.id)).where(*wanted).order_by(col(_T.published_at).desc(), col(_T.id))
    return page.limit(query.limit + 1), sa.select(sa.func.count(col(_T.id))).where(*wanted)


def behind(page: sa.Select[Any], published_at: str, id_: str) -> sa.Select[Any]:
    """Return the SELECT of the part of a list that comes behind one of its templates."""
    same_time = sa.and_(col(_T.published_at) == published_at, col(_T.id) > id_)
    return page.where(col(_T.published_at) <= published_at, sa.or_(col(_T.published_at) < published_at, same_time))


def named(table: type[Named]) -> sa.Select[Any]:
    """Return the SELECT of id, name and slug of what there is of a kind."""
    return sa.select(*columns(table.id, table.name, table.slug)).order_by(col(table.slug))


def _ids(table: type[Named], names: Iterable[str]) -> sa.Select[Any]:
    """Return the SELECT of the ids of what these ids or slugs name; their letters are in lower case.

    PostgreSQL's driver refuses NUL, which none of them has.
    """
    storable = sorted(name.replace("\0", "\N{REPLACEMENT CHARACTER}") for name in names)
    return sa.select(col(table.id)).where(
        sa.or_(col(table.id).in_(storable), sa.func.lower(col(table.slug)).in_(storable))
    )


def is_published(row: Any) -> bool:
    """Return whether a row is one that readers may see."""
    return bool(row.status == Status.PUBLISHED.value)


def document(row: Any) -> Document:
    """Return what the search reads of a row. Filters find what classifies a template by its id and by its slug."""
    facets = json.loads(row.facets)
    named = [("tag_ids", tag) for tag in facets["tags"]] + [("route_ids", route) for route in facets["routes"]]
    named += [("category_id", facets["category"]), ("broker_version_ids", facets["broker_version"])]
    found = [f"{kind}:{name}" for kind, one in named if one for name in (one["id"], one["slug"].lower())]
    if row.difficulty is not None:
        found.append(f"difficulty:{row.difficulty}")
    texts = msgspec.json.decode(row.prepared, type=Prepared)
    return Document(row.id, texts, row.published_at, tuple(found), row.updated_at)


def filters(query: TemplateQuery) -> Filters:
    """Return the facets that a query's filters ask for, one of each filter."""
    return [[f"{kind}:{value}" for value in values] for kind, values in _asked(query).items() if values]


def _asked(query: TemplateQuery) -> dict[str, list[str]]:
    """Return the values that each filter of a query asks for."""
    single = {name: [value] if (value := getattr(query, name)) else [] for name in ("category_id", "difficulty")}
    return single | {name: sorted(getattr(query, name)) for name in ("tag_ids", "route_ids", "broker_version_ids")}


def summary(row: Any) -> Summary:
    """Return what lists show of a row."""
    return Summary(*[getattr(row, name) for name in _OF_ROW], **json.loads(row.facets))
