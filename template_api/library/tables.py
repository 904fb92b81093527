"""The library's tables as statements name them; pure. `models` makes them, and a test compares the two."""

from collections.abc import Mapping
from functools import cache

import sqlalchemy as sa

SCHEMA_VERSION = 3
UPGRADES: Mapping[int, tuple[str, ...]] = {
    1: ("ALTER TABLE notebooks ADD COLUMN role VARCHAR",),
    2: (
        "ALTER TABLE library ADD COLUMN identity VARCHAR",
        "CREATE INDEX templates_listed ON templates"
        " (status, published_at DESC, id, category_id, difficulty, broker_version_id, changed)",
    ),
}
"""SQL statements that lead from a schema version to the next one. Version 1 is the first."""

_NAMED = ("id", "name", "slug")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "categories": _NAMED,
    "tags": _NAMED,
    "routes": _NAMED,
    "broker_versions": _NAMED,
    "templates": (
        "id", "slug", "title", "short_description", "content", "difficulty", "url", "status", "source_status",
        "published_at", "category_id", "broker_version_id", "facets", "labels", "cells_text", "digest", "changed",
    ),
    "template_tags": ("template_id", "tag_id"),
    "template_routes": ("template_id", "route_id"),
    "notebooks": ("id", "template_id", "filename", "version", "is_primary", "is_latest", "place", "cells", "role"),
    "library": ("id", "schema_version", "version", "is_filling", "identity"),
}  # fmt: skip


@cache
def tables() -> Mapping[str, sa.TableClause]:
    """Return the library's tables by name, for statements over columns; SQLite has numbers for `is_...`."""
    return {
        table: sa.table(table, *(sa.column(name, sa.Boolean() if name.startswith("is_") else None) for name in names))
        for table, names in _COLUMNS.items()
    }
