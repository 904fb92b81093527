"""The library's tables, the same on SQLite and PostgreSQL: the one description of the schema."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Field, SQLModel, col

from template_api.ranking import prepared
from template_api.sources.members import time_text

SCHEMA_VERSION: Final = 6
"""Grows with each change of the models, so that older software refuses the database."""

_UUID = 36


def now_text() -> str:
    """Return the present time as the library keeps it."""
    return time_text(datetime.now(UTC))


def prepared_text(title: str, labels: str, short_description: str, content: str, cells: str) -> str:
    """Return `ranking.Prepared` of the texts of a template as the library keeps it."""
    return msgspec.json.encode(prepared(title, labels, short_description, content, cells)).decode()


def columns(*attributes: Any) -> list[Any]:
    """Return attributes of tables as the columns of a statement."""
    return [col(each) for each in attributes]


class Table(SQLModel):
    """Base class of the tables, with metadata of their own."""

    metadata = sa.MetaData()


class Named(Table):
    """Base class of what classifies templates: id, name, slug, and as JSON the members that its author has added."""

    id: str = Field(primary_key=True, max_length=_UUID)
    name: str
    slug: str = Field(unique=True)
    members: str | None = None


class Category(Named, table=True):
    """A category; a template has one at most."""

    __tablename__ = "categories"


class Tag(Named, table=True):
    """A tag: also a primitive, protocol or service that a template names."""

    __tablename__ = "tags"


class UsedRoute(Named, table=True):
    """A route type that templates use, such as REST_API."""

    __tablename__ = "routes"


class BrokerVersion(Named, table=True):
    """A version of the broker that templates are for."""

    __tablename__ = "broker_versions"


class TemplateRow(Table, table=True):
    """A template in any state.

    `facets`, `labels` and `cells_text` repeat the linked rows: `facets` is the JSON of category, tags, routes
    and broker version, so that a list is one SELECT; the two texts are what the search reads. `source_status` is the
    status in the source when it was last imported, `digest` the hash of that source, `changed` is the
    library's version that this row came with, and `updated_at` when that was. `prepared` is the JSON of
    `ranking.Prepared`: the texts as the index takes them.
    """

    __tablename__ = "templates"
    # All that a list, its filters and counts look at, in the order of the list: the rows themselves are long.
    __table_args__ = (
        sa.Index(
            "templates_listed",
            "status", sa.text("published_at DESC"), "id", "category_id", "difficulty", "broker_version_id", "changed",
        ),
    )  # fmt: skip

    id: str = Field(primary_key=True, max_length=_UUID)
    slug: str | None = Field(default=None, unique=True)
    title: str
    short_description: str
    content: str
    difficulty: str | None = None
    url: str | None = None
    status: str
    source_status: str
    published_at: str | None = None
    category_id: str | None = Field(default=None, foreign_key="categories.id")
    broker_version_id: str | None = Field(default=None, foreign_key="broker_versions.id")
    facets: str
    labels: str
    cells_text: str
    digest: str
    changed: int = Field(index=True)
    updated_at: str | None = None
    prepared: str | None = None


class TemplateTag(Table, table=True):
    """A tag of a template."""

    __tablename__ = "template_tags"

    template_id: str = Field(primary_key=True, foreign_key="templates.id")
    tag_id: str = Field(primary_key=True, foreign_key="tags.id")


class TemplateRoute(Table, table=True):
    """A route type that a template uses."""

    __tablename__ = "template_routes"

    template_id: str = Field(primary_key=True, foreign_key="templates.id")
    route_id: str = Field(primary_key=True, foreign_key="routes.id")


class NotebookRow(Table, table=True):
    """One version of a notebook file; `is_latest` marks the one that readers get, `cells` is a JSON array.

    `role` is what the template uses the file for, such as `solution`.
    """

    __tablename__ = "notebooks"
    __table_args__ = (sa.UniqueConstraint("template_id", "filename", "version"),)

    id: int | None = Field(default=None, primary_key=True)
    template_id: str = Field(foreign_key="templates.id")
    filename: str
    version: int
    is_primary: bool = False
    is_latest: bool = True
    place: int = 0
    cells: str
    role: str | None = None


class Deletion(Table, table=True):
    """A template that was deleted, and the library's version since when it is gone: indexes drop it then."""

    __tablename__ = "deletions"

    template_id: str = Field(primary_key=True, max_length=_UUID)
    changed: int = Field(index=True)


class LibraryRow(Table, table=True):
    """The single row with the versions of the schema and of the library.

    Every transaction that changes what readers can see adds one to `version`. `is_filling` is true while the first
    import runs, and stays so when it is cut off. `identity` is a UUID that tells this library from one created again in
    its place. `synonyms` is the JSON of the imported list of synonyms: a pair of lists for each of its entries.
    """

    __tablename__ = "library"

    id: int = Field(primary_key=True)
    schema_version: int
    version: int
    is_filling: bool = False
    identity: str | None = None
    synonyms: str | None = None


def having(table: type[Named], ids: Any) -> sa.ColumnElement[bool]:
    """Return the condition of the templates that have one of some objects; `ids` are a list or a SELECT."""
    if table is Tag:
        linked = sa.select(col(TemplateTag.template_id)).where(col(TemplateTag.tag_id).in_(ids))
    elif table is UsedRoute:
        linked = sa.select(col(TemplateRoute.template_id)).where(col(TemplateRoute.route_id).in_(ids))
    else:
        return col(TemplateRow.category_id if table is Category else TemplateRow.broker_version_id).in_(ids)
    return col(TemplateRow.id).in_(linked)
