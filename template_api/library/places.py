"""Where a library and its index are kept: the folder of the search index, and what in these settings stops a start.

`index_folder` makes its folder; the checks write nothing and connect to no server.
"""

import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from template_api.errors import StartError, TemplateApiError
from template_api.library.database import SCHEMA_VERSION, check_url, parsed_url
from template_api.ranking import FORMAT
from template_api.sources import read_templates

log = logging.getLogger(__name__)


def index_folder(database_url: str, index_dir: str | None) -> Path | None:
    """Return the folder of a library's search index, one for each database, schema and format of the index.

    Args:
        database_url: a URL that `open_database` accepts.
        index_dir: its parent folder; None means `template-api` in the user's cache folder.

    Returns:
        The folder, or None when the user's cache folder cannot be written: the index is then kept in memory.

    Raises:
        StartError: `index_dir` cannot be written.
    """
    if index_dir is not None:
        parent = Path(index_dir)
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME", "") or os.environ.get("LOCALAPPDATA", ""))
        parent = (cache if cache.is_absolute() else Path("~").expanduser() / ".cache") / "template-api"
    folder = parent.absolute() / f"{_database_key(database_url)}-{SCHEMA_VERSION}.{FORMAT}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
        reason = "it cannot be written"
    except OSError as exc:
        writable, reason = False, os.strerror(exc.errno or 0)
    if writable:
        return folder
    if index_dir is not None:
        raise StartError(f"index_dir {parent}: {reason}; name a folder that this user can write")
    log.warning("the search index is kept in memory, as %s cannot be used: %s; see index_dir", parent, reason)
    return None


def _database_key(database_url: str) -> str:
    """Return a name for a database: the same for each way to write its path, and without its password."""
    url = parsed_url(database_url)
    if url.get_backend_name() == "sqlite":
        name = f"sqlite {Path(url.database or '').absolute().resolve()}"
    else:
        name = f"postgresql {url.username} {url.host} {url.port} {url.database}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


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
