"""Where the search index of a library is kept. Makes that folder; reads nothing else."""

import hashlib
import logging
import os
from pathlib import Path

from template_api.errors import StartError
from template_api.library.database import parsed_url
from template_api.library.tables import SCHEMA_VERSION
from template_api.ranking import FORMAT

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
    parent = Path(index_dir) if index_dir is not None else _cache_folder() / "template-api"
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


def _cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "") or os.environ.get("LOCALAPPDATA", "")
    return Path(given) if Path(given).is_absolute() else Path("~").expanduser() / ".cache"


def _database_key(database_url: str) -> str:
    """Return a name for a database: the same for each way to write its path, and without its password."""
    url = parsed_url(database_url)
    if url.get_backend_name() == "sqlite":
        name = f"sqlite {Path(url.database or '').absolute().resolve()}"
    else:
        name = f"postgresql {url.username} {url.host} {url.port} {url.database}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]
