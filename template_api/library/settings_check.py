"""What in the settings would stop a start, found beforehand. Writes nothing, connects to no server."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from template_api.errors import StartError, TemplateApiError
from template_api.library.database import check_url, parsed_url
from template_api.sources import read_templates


def place_faults(
    database_url: str, library: str | None, index_dir: str | None
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the name of each of these settings that stops a start, and why.

    Whether a PostgreSQL server answers, and whether its library is still empty, only a start can show.
    """
    checks: dict[str, Callable[[], None]] = {"database_url": partial(check_url, database_url)}
    if library is not None:
        checks["library"] = partial(_check_library, Path(library), database_url)
    if index_dir is not None:
        checks["index_dir"] = partial(_check_index_dir, Path(index_dir).absolute())
    for name, check in checks.items():
        try:
            check()
        except TemplateApiError as exc:
            yield (name,), str(exc)


def _check_library(library: Path, database_url: str) -> None:
    """Check that a library can be read, unless it was imported: from then on its folder may be gone."""
    with suppress(StartError, sqlite3.Error):  # no database, or without our tables: a start makes them
        parsed = parsed_url(database_url)
        if parsed.get_backend_name() != "sqlite":
            return
        address = f"{Path(parsed.database or '').absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            is_filled = connection.execute("SELECT 1 FROM templates LIMIT 1").fetchone() is not None
            if is_filled and connection.execute("SELECT is_filling FROM library").fetchone() == (0,):
                return
    read_templates(library)  # only looks for the files: none is read before the first template is taken


def _check_index_dir(folder: Path) -> None:
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir():
        raise StartError(f"index_dir {folder}: {nearest} is not a folder; name a folder that this user can write")
    if not os.access(nearest, os.W_OK):
        raise StartError(f"index_dir {folder}: {nearest} cannot be written; name a folder that this user can write")
