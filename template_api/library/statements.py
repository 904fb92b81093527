"""The SELECTs that the API needs, and what their rows become. Pure but for the tables' names."""

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from template_api.library.database import tables
from template_api.ranking import Document, Filters
from template_api.records import Status, Summary, TemplateQuery


class Statements:
    """The SELECTs, built once."""

    def __init__(self) -> None:
        library, templates, notebooks = (tables()[name] for name in ("library", "templates", "notebooks"))
        t = templates.c
        published = t.status == Status.PUBLISHED.value
        # Rows looked up by id are not restricted to published ones: SQLite would prefer the index over all of those.
        shown = (t.status, t.id, t.slug, t.title, t.short_description, t.difficulty, t.url, t.facets, t.content)
        self.version = sa.select(library.c.version)
        self.identity = sa.select(library.c.identity, library.c.version)
        self.synonyms = sa.select(library.c.synonyms)
        indexed = sa.select(
            t.id, t.status, t.published_at, t.difficulty, t.facets, t.title, t.labels, t.short_description, t.content,
            t.cells_text, t.changed, t.updated_at,
        )  # fmt: skip
        most: sa.BindParameter[int] = sa.bindparam("most")
        self.changed = indexed.where(t.changed > sa.bindparam("since")).order_by(t.changed).limit(most)
        counted = sa.func.count().label("templates"), sa.func.coalesce(sa.func.sum(t.changed), 0).label("changes")
        sums = sa.select(*counted).where(published).subquery()
        self.fingerprint = sa.select(library.c.version, sums).select_from(sa.join(library, sums, sa.true()))
        self.some = sa.select(*shown).where(t.id.in_(sa.bindparam("ids", expanding=True)))
        whole = (*shown, t.inputs, t.published_at, t.updated_at)
        self.one = sa.select(*whole).where(sa.or_(t.id == sa.bindparam("id"), t.slug == sa.bindparam("slug")))
        n = notebooks.c
        self.notebooks = (
            sa.select(n.filename, n.version, n.is_primary, n.cells, n.role)
            .where(n.template_id == sa.bindparam("template_id"), n.is_latest)
            .order_by(n.place)
        )
        names = {
            "categories": "category_id",
            "tags": "tag_ids",
            "routes": "route_ids",
            "broker_versions": "broker_version_ids",
        }
        self.facets = {
            name: (kind, sa.select(c.id, c.name, c.slug).order_by(c.slug))
            for name, kind in names.items()
            for c in [tables()[name].c]
        }

    def listed(self, query: TemplateQuery) -> tuple[sa.Select[Any], sa.Select[Any]]:
        """Return the SELECTs of what a query without a text asks for, and of how many there are in all.

        The first selects `published_at` and `id`, of one template more than a page has: whether another page follows.
        """
        t = tables()["templates"].c
        wanted = [t.status == Status.PUBLISHED.value]
        if query.category_id:
            wanted.append(t.category_id.in_(_storable([query.category_id])))
        if query.difficulty:
            wanted.append(t.difficulty == query.difficulty)
        if query.broker_version_ids:
            wanted.append(t.broker_version_id.in_(_storable(query.broker_version_ids)))
        for name, column, ids in (
            ("template_tags", "tag_id", query.tag_ids),
            ("template_routes", "route_id", query.route_ids),
        ):
            if ids:
                link = tables()[name].c
                wanted.append(t.id.in_(sa.select(link.template_id).where(link[column].in_(_storable(ids)))))
        page = sa.select(t.published_at, t.id).where(*wanted).order_by(t.published_at.desc(), t.id)
        if query.place is not None and query.place.after is not None:
            date, id_ = query.place.after
            same_time = sa.and_(t.published_at == date, t.id > id_)
            page = page.where(t.published_at <= date, sa.or_(t.published_at < date, same_time))
        else:
            page = page.offset(query.offset)
        return page.limit(query.limit + 1), sa.select(sa.func.count(t.id)).where(*wanted)


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
