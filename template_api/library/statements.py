"""The SELECTs that the API needs, and what their rows become. Pure but for the tables' names."""

import json
from typing import Any

import sqlalchemy as sa

from template_api.library.catalogue import Entry, Facet
from template_api.library.tables import tables
from template_api.ranking import Document
from template_api.records import Status, Summary


class Statements:
    """The SELECTs, built once."""

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


def document(row: Any) -> Document:
    """Return what the search reads of a row."""
    return Document(row.id, row.title, row.labels, row.short_description, row.content, row.cells_text)


def entry(row: Any, known: dict[Facet, Facet]) -> Entry:
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
