"""The library's tables, the same on SQLite and PostgreSQL: the one description of the schema."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Field, SQLModel, col

from template_api.ranking import prepared
from template_api.records import FreeForm
from template_api.sources.members import time_text

SCHEMA_VERSION: Final = 7
"""Grows with each change of the models, so that older software refuses the database."""
FILTERS: Final = {
    "tags": "tag_ids", "routes": "route_ids", "category": "category_id", "broker_version": "broker_version_ids",
}  # fmt: skip
"""The kinds of classifiers, which are the members of `TemplateRow.facets`, and the name of the filter of each."""
_NAMESPACE: Final = uuid.UUID("0f6d2d0c-5c1e-5b7a-9a43-6a1f0f4f7d51")  # of UUIDv5s: the same in each database
_UUID = 36


def slug_id(slug: str) -> str:
    """Return the id of a template that has none of its own, by its slug; of a classifier by `kind/slug`."""
    return str(uuid.uuid5(_NAMESPACE, slug))


def now_text() -> str:
    """Return the present time as the library keeps it."""
    return time_text(datetime.now(UTC))


def columns(*attributes: Any) -> list[Any]:
    """Return attributes of tables as the columns of a statement."""
    return [col(each) for each in attributes]


class Table(SQLModel):
    """Base class of the tables, with metadata of their own."""

    metadata = sa.MetaData()


class TemplateRow(Table, table=True):
    """A template in any state.

    `facets` are its classifiers: category, tags, routes and broker version, objects with `id`, `name`, `slug` and what
    their author has added. The search reads `labels`, which are their names and other keywords, and `cells_text` of the
    notebooks; `prepared` is the JSON of `ranking.Prepared`: all texts as the index takes them. `source_status` is the
    status that the source last had, `digest` the hash of that source. `changed` is the library's version that last
    changed this row, `updated_at` the time of that change.
    """

    __tablename__ = "templates"
    # All that a list and its count look at, in the order of the list: the rows themselves are long.
    __table_args__ = (sa.Index("templates_listed", "status", sa.text("published_at DESC"), "id"),)

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
    facets: dict[str, Any] = Field(sa_type=sa.JSON)
    labels: str
    cells_text: str
    digest: str
    changed: int = Field(index=True)
    updated_at: str | None = None
    prepared: str | None = None

    def classify(self, facets: Mapping[str, Any], keywords: str) -> None:
        """Set what it is classified by, words that only the search reads, and all texts as the index takes them."""
        self.facets = dict(facets)
        self.labels = " ".join(filter(None, (classifier_names(facets), keywords)))
        self.prepare()

    def prepare(self) -> None:
        """Set the texts as the index takes them."""
        texts = prepared(self.title, self.labels, self.short_description, self.content, self.cells_text)
        self.prepared = msgspec.json.encode(texts).decode()


class FacetRow(Table, table=True):
    """What filters find a template by, see `facet_keys`."""

    __tablename__ = "template_facets"

    facet: str = Field(primary_key=True)
    template_id: str = Field(primary_key=True, foreign_key="templates.id", index=True)


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
    import runs, and stays so when it is cut off. `synonyms` is the JSON of the imported list of synonyms: a pair of
    lists for each of its entries.
    """

    __tablename__ = "library"

    id: int = Field(primary_key=True)
    schema_version: int
    version: int
    is_filling: bool = False
    synonyms: str | None = None


def classifiers_of(facets: Mapping[str, Any], member: str) -> Sequence[FreeForm]:
    """Return the classifiers of one kind that a template has."""
    held = facets[member]
    return held if isinstance(held, list) else [held] if held else []


def classifier_names(facets: Mapping[str, Any]) -> str:
    """Return the names of all classifiers of a template."""
    return " ".join(one["name"] for member in FILTERS for one in classifiers_of(facets, member))


def facet_keys(facets: Mapping[str, Any], difficulty: str | None) -> set[str]:
    """Return the keys by which filters find a template: `tag_ids:ID`, `tag_ids:SLUG` and so on, and its difficulty."""
    found = {
        f"{name}:{text}"
        for member, name in FILTERS.items()
        for one in classifiers_of(facets, member)
        for text in (one["id"], one["slug"].lower())
    }
    return found | ({f"difficulty:{difficulty}"} if difficulty else set())
