"""Locks that keep other brokers away from the spool and from the file of failures."""

import fcntl
import logging
import os
from pathlib import Path

from amqtt_rest_bridge.errors import ConfigurationError, InUseError
from amqtt_rest_bridge.store.salvage import salvaged_path
from amqtt_rest_bridge.system import open_private, regular_file

log = logging.getLogger(__name__)


def lock_file(path: Path, in_use: str) -> int:
    """Open and lock a file, and make it if it is missing; return its descriptor. Closing that releases the lock.

    Raises:
        InUseError: Another program has locked it; `in_use` is the message.
        OSError: It cannot be opened.
    """
    file = open_private(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise InUseError(in_use) from None
    return file


class SpoolLock:
    """Two locks against other brokers, which would send every message a second time.

    1. On the name: the file `-lock` beside the spool, with symbolic links resolved.
    2. On the database file itself, since it may have another name. It is opened only after the first lock: when any
       descriptor of a file is closed, the locks that SQLite has on it in the same process are dropped. So a second
       spool of this process is refused before it opens the file.

    Args:
        path: Of the database file, symbolic links resolved.

    Raises:
        ConfigurationError: Another broker uses the spool, it cannot be opened, or it has several names.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[int] = []
        try:
            if path.exists():
                regular_file(path)
            self._take(Path(f"{path}-lock"))
            if not path.exists() and salvaged_path(path).exists():
                salvaged_path(path).rename(path)
                log.error("the spool %s was damaged; what could be read of it when it was last opened is sent", path)
            # Refused, not opened by this name: a log may lie beside another one.
            if path.exists() and path.stat().st_nlink > 1:
                raise ConfigurationError(  # noqa: TRY301  # closes what is open, as below
                    f"cannot use the spool {path}: the file has several names (hard links), and another broker may use "
                    "it by another one; SQLite's log lies beside one name only. Remove the other names"
                )
            self._take(path)
        except OSError as error:
            self.close()
            reason = error.strerror or error
            hint = "name a file in a folder that the broker's user may write"
            raise ConfigurationError(f"cannot open the spool {path}: {reason}; {hint}") from error
        except ConfigurationError:
            self.close()
            raise

    def renew(self) -> None:
        """Lock the file that has taken the database's place."""
        os.close(self._files.pop())
        self._take(self._path)

    def close(self) -> None:
        """Release the lock; after SQLite has closed the spool."""
        while self._files:
            os.close(self._files.pop())

    def _take(self, path: Path) -> None:
        in_use = f"cannot use the spool {self._path}: another broker uses it; give each its own"
        self._files.append(lock_file(path, in_use))
