"""The SELECTs that the API needs, and what their rows become. Pure."""

import json
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa

from template_api.library.database import TABLES
from template_api.ranking import Document, Filters
from template_api.records import Status, Summary, TemplateQuery

_LIBRARY: Final = TABLES["library"].c
_T: Final = TABLES["templates"].c
_N: Final = TABLES["notebooks"].c
_PUBLISHED: Final = _T.status == Status.PUBLISHED.value
_MOST: Final[sa.BindParameter[int]] = sa.bindparam("most")

VERSION: Final = sa.select(_LIBRARY.version)
IDENTITY: Final = sa.select(_LIBRARY.identity, _LIBRARY.version)
SYNONYMS: Final = sa.select(_LIBRARY.synonyms)
_INDEXED: Final = sa.select(
    _T.id, _T.status, _T.published_at, _T.difficulty, _T.facets, _T.title, _T.labels, _T.short_description, _T.content,
    _T.cells_text, _T.changed, _T.updated_at,
)  # fmt: skip
CHANGED: Final = _INDEXED.where(_T.changed > sa.bindparam("since")).order_by(_T.changed).limit(_MOST)
"""At most `most` templates that changed after the version `since`, for the index."""
_COUNT, _SUM = sa.func.count().label("templates"), sa.func.coalesce(sa.func.sum(_T.changed), 0).label("changes")
_SUMS: Final = sa.select(_COUNT, _SUM).where(_PUBLISHED).subquery()
FINGERPRINT: Final = sa.select(_LIBRARY.version, _SUMS).select_from(sa.join(TABLES["library"], _SUMS, sa.true()))
"""The library's version, how many templates are published, and the sum of the versions that they came with."""
# Rows looked up by id are not restricted to published ones: SQLite would prefer the index over all of those.
_SHOWN: Final = (
    _T.status, _T.id, _T.slug, _T.title, _T.short_description, _T.difficulty, _T.url, _T.facets, _T.content
)  # fmt: skip
SOME: Final = sa.select(*_SHOWN).where(_T.id.in_(sa.bindparam("ids", expanding=True)))
ONE: Final = sa.select(*_SHOWN, _T.inputs, _T.published_at, _T.updated_at).where(
    sa.or_(_T.id == sa.bindparam("id"), _T.slug == sa.bindparam("slug"))
)
NOTEBOOKS: Final = (
    sa.select(_N.filename, _N.version, _N.is_primary, _N.cells, _N.role)
    .where(_N.template_id == sa.bindparam("template_id"), _N.is_latest)
    .order_by(_N.place)
)
_KINDS: Final = {
    "categories": "category_id", "tags": "tag_ids", "routes": "route_ids", "broker_versions": "broker_version_ids"
}  # fmt: skip
FACETS: Final = {
    name: (kind, sa.select(c.id, c.name, c.slug).order_by(c.slug))
    for name, kind in _KINDS.items()
    for c in [TABLES[name].c]
}
"""What templates are classified by: the kind that filters have it by, and the SELECT of all there are."""


def listed(query: TemplateQuery) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Return the SELECTs of what a query without a text asks for, and of how many there are in all.

    The first selects `published_at` and `id`, of one template more than a page has: whether another page follows.
    """
    wanted = [_PUBLISHED]
    if query.category_id:
        wanted.append(_T.category_id.in_(_storable([query.category_id])))
    if query.difficulty:
        wanted.append(_T.difficulty == query.difficulty)
    if query.broker_version_ids:
        wanted.append(_T.broker_version_id.in_(_storable(query.broker_version_ids)))
    for name, column, ids in (
        ("template_tags", "tag_id", query.tag_ids),
        ("template_routes", "route_id", query.route_ids),
    ):
        if ids:
            link = TABLES[name].c
            wanted.append(_T.id.in_(sa.select(link.template_id).where(link[column].in_(_storable(ids)))))
    page = sa.select(_T.published_at, _T.id).where(*wanted).order_by(_T.published_at.desc(), _T.id)
    if query.place is not None and query.place.after is not None:
        date, id_ = query.place.after
        same_time = sa.and_(_T.published_at == date, _T.id > id_)
        page = page.where(_T.published_at <= date, sa.or_(_T.published_at < date, same_time))
    else:
        page = page.offset(query.offset)
    return page.limit(query.limit + 1), sa.select(sa.func.count(_T.id)).where(*wanted)


def _storable(ids: Iterable[str]) -> list[str]:
    """Return ids with NUL, which no template has, as others that none has: PostgreSQL's driver refuses them."""
    return sorted(each.replace("\0", "\N{REPLACEMENT CHARACTER}") for each in ids)


def is_published(row: Any) -> bool:
    """Return whether a row is one that readers may see."""
    return bool(row.status == Status.PUBLISHED.value)


def document(row: Any) -> Document:
    """Return what the search reads of a row."""
    facets = json.loads(row.facets)
    found = [f"tag_ids:{tag['id']}" for tag in facets["tags"]]
    found += [f"route_ids:{route['id']}" for route in facets["routes"]]
    for kind, facet in (("category_id", facets["category"]), ("broker_version_ids", facets["broker_version"])):
        if facet is not None:
            found.append(f"{kind}:{facet['id']}")
    if row.difficulty is not None:
        found.append(f"difficulty:{row.difficulty}")
    return Document(
        row.id, row.title, row.labels, row.short_description, row.content, row.cells_text, row.published_at,
        tuple(found), row.changed, row.updated_at,
    )  # fmt: skip


def filters(query: TemplateQuery) -> Filters:
    """Return the facets that a query's filters ask for, one of each filter."""
    wanted = {
        "category_id": [query.category_id] if query.category_id else (),
        "difficulty": [query.difficulty] if query.difficulty else (),
        "tag_ids": sorted(query.tag_ids),
        "route_ids": sorted(query.route_ids),
        "broker_version_ids": sorted(query.broker_version_ids),
    }
    return [[f"{kind}:{value}" for value in values] for kind, values in wanted.items() if values]


def summary(row: Any) -> Summary:
    """Return what lists show of a row."""
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
