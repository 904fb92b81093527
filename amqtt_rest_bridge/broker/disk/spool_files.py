"""The files beside the spool's database: who may use it, and room on its disk that is kept for removals.

| file | what for |
|---|---|
| `-lock` | keeps other brokers away from this name |
| `-reserve` | allocated blocks, released when the disk is full |
| `-salvaged` | a salvage that was interrupted between two renames |
| `-wal`, `-shm` | SQLite's |
"""

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.system import regular_file

log = logging.getLogger(__name__)

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def salvaged(path: Path) -> Path:
    """Return where a salvage builds the new file."""
    return Path(f"{path}-salvaged")


class SpoolLock:
    """A lock against other brokers, which would send every message a second time, until it is closed.

    Two locks: one on the name, with symbolic links resolved, and one on the database file itself, which finds it under
    whatever name. The second one is taken last: closing any descriptor of a file drops the locks that SQLite has in the
    same process, so a second spool of this process is refused before it opens the file.

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
            if not path.exists() and salvaged(path).exists():
                salvaged(path).rename(path)
                log.error("the spool %s was damaged; what could be read of it when it was last opened is sent", path)
            # Decision: refused, not opened by this name: a log may lie beside another one.
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
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._files.append(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"cannot use the spool {self._path}: another broker uses it; give each its own"
            raise ConfigurationError(text) from None


class Reserve:
    """A file whose blocks are allocated and hold nothing."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @property
    def size(self) -> int:
        """Return how many bytes are held."""
        return os.fstat(self._file).st_size

    def hold(self, size: int) -> bool:
        """Hold at least `size` bytes; False, and no more held than before, when the disk has no room for them."""
        before = self.size
        if before >= size:
            return True
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            os.ftruncate(self._file, before)
            return error.errno not in _NO_ROOM  # a file system that cannot reserve is used without
        return True

    def trim(self, size: int) -> None:
        """Release what is held above `size` bytes."""
        if self.size > size:
            os.ftruncate(self._file, size)

    def close(self) -> None:
        """Close the file; what is held stays held."""
        os.close(self._file)
