"""Room on the spool's disk: a removal needs room too, and must succeed on a full disk. Runs on the broker's loop.

SQLite appends each commit to its log. A checkpoint copies the pages of the log into the database file; after that the
log can be restarted, which means that it begins again at its start. So two things always need room: the database file
for what the log holds, and the log for one more removal. The *reserve*, a file beside the spool, holds that room.
`Spool` calls `cover_message` before it keeps a message, `make_room` after a write that found no room, and
`finish_checkpoint` after each checkpoint.

When the disk has no room for the full reserve, the spool is *tight*:

- The reserve holds only what a removal needs.
- The database may not grow. So a checkpoint needs no room, and the log can always be restarted.
- A new message may take the room of a removed one, but only after the log has been restarted. Otherwise each message
  would make the log grow into the room that a removal needs.

When the disk has room again, the full reserve is held again. If all messages are removed while other files have taken
the rest of the disk, the database file shrinks.
"""

import contextlib
import logging
import math
import os
import resource
import sqlite3
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.system import NO_BLOCKS, open_private

log = logging.getLogger(__name__)

# The reserve grows in steps. A step is a sixteenth of the file system, within these bounds. All sizes are in bytes.
_LEAST_STEP: Final = 128 << 10
_MOST_STEP: Final = 1 << 20
_SHARE: Final = 16
_REMOVAL_ROOM: Final = 32 << 10  # for one removal: what the reserve holds while the spool is tight
_BLOCK: Final = 4096
_LARGEST_MESSAGE: Final = 16 << 20  # a larger message may not find room in a tight spool
_SMALL_LOG: Final = 4 << 20  # the largest log that a checkpoint on the loop may copy
_LARGE_RESERVE: Final = 64  # steps; a larger reserve is trimmed after a checkpoint
_MOST_PAGES: Final = (1 << 30) - 1


def size_on_disk(payload: bytes, topic: str) -> int:
    """Return an upper bound of the bytes by which a message makes the database grow."""
    return len(payload) + len(payload) // 64 + 4 * len(topic) + 4096


class Reserve:
    """A file whose blocks are allocated and hold nothing."""

    def __init__(self, path: Path) -> None:
        self._file = open_private(path)

    @property
    def size(self) -> int:
        """Return how many bytes are held."""
        return os.fstat(self._file).st_size

    def hold(self, size: int) -> bool:
        """Hold at least `size` bytes and return True. On a full disk return False, and hold what was held before."""
        before = self.size
        if before >= size:
            return True
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            os.ftruncate(self._file, before)
            return error.errno not in NO_BLOCKS  # True on a file system that cannot reserve: then there is no reserve
        return True

    def trim(self, size: int) -> None:
        """Release what is held above `size` bytes."""
        if self.size > size:
            os.ftruncate(self._file, size)

    def close(self) -> None:
        """Close the file; its blocks stay on the disk."""
        os.close(self._file)


class DiskSpace:
    """Ensures that the database and its log find the room that they need; `connection` is the loop's."""

    def __init__(self, path: Path, reserve: Reserve, connection: sqlite3.Connection) -> None:
        self.tight = False
        """Whether the disk has no room for the full reserve; then the database may not grow."""
        self._path = path
        self._reserve = reserve
        self._connection = connection
        self._page_size = self._pragma("page_size")
        disk, limit = os.statvfs(path), resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        total = disk.f_blocks * disk.f_frsize
        self._step = min(_MOST_STEP, max(_LEAST_STEP, (total if limit < 0 else min(limit, total)) // _SHARE))
        self._log_room = self._step  # bytes that the log needs for one message or some removals
        self._covered = 0.0  # bytes of further messages for which the reserve is large enough
        self._has_logged_full = False
        self._page_limit = _MOST_PAGES if limit < 0 else max(64, limit // self._page_size - 64)
        self._pragma(f"max_page_count = {self._page_limit}")
        if not self._reserve.hold(self._full_reserve()):
            self._become_tight()

    def cover_message(self, size: int) -> None:
        """Ensure that there is room to write a message of this size, to checkpoint it, and to remove it again.

        Raises `sqlite3.OperationalError` if the message would take the room that a checkpoint of the log needs.
        """
        if self.tight and self._checkpoint_growth() and not self._restart_log(_SMALL_LOG):
            raise sqlite3.OperationalError("database or disk is full")
        self._covered -= size
        if self._covered >= 0:
            return
        self._log_room = max(self._log_room, min(size, _LARGEST_MESSAGE) + self._step)
        if self._reserve.hold(self._full_reserve() + size):
            self._covered = self._step
        else:
            self._become_tight()

    def make_room(self, size: int = 0) -> bool:
        """Make room after a write has found none; return whether the write should be tried again.

        `size` is the bytes that the write needs in the database, 0 for a removal.
        """
        free_pages = self._pragma("freelist_count") + self._pragma("max_page_count") - self._pages()
        if size > self._page_size * free_pages:
            return False
        if not self.tight:
            self._become_tight()
            return True
        if self._restart_log(_SMALL_LOG):
            return True
        if size or not self._reserve.size:
            return False
        self._reserve.trim(0)  # for a removal, until the log is restarted
        return True

    def restore_reserve(self) -> None:
        """Hold the room for a removal again, less what the removals before have taken of it for the log."""
        if self.tight:
            self._reserve.hold(_REMOVAL_ROOM - -(-self._log_size() // _BLOCK) * _BLOCK)

    def finish_checkpoint(self, *, checkpointed: bool) -> None:
        """Adapt the reserve to the disk after a checkpoint; `checkpointed` is whether it has copied the whole log."""
        if not checkpointed:
            disk = os.statvfs(self._path)
            if not self.tight and disk.f_bavail * disk.f_frsize < self._checkpoint_growth() + self._step:
                self._become_tight()
        elif self.tight:
            self._restart_log(math.inf)
            self._shrink()
            self._end_tight()
        elif self._reserve.size > _LARGE_RESERVE * self._step:
            self._reserve.trim(self._log_room + self._step)
            self._covered = 0

    def release(self) -> None:
        """Release the reserve: SQLite needs its room for the last checkpoint, when the connection is closed."""
        self._reserve.trim(0)

    def hold_for_next_start(self) -> None:
        """Hold the reserve again, after the connection was closed."""
        self._reserve.hold(self._log_room)
        self._reserve.close()

    def _become_tight(self) -> None:
        """Make the spool tight, unless a restart of the log leaves room for the full reserve."""
        self.tight, self._covered = True, math.inf
        self._page_limit = self._pragma("max_page_count")
        self._pragma(f"max_page_count = {self._pages()}")  # the database may not grow
        self._reserve.trim(0 if self._log_size() else _REMOVAL_ROOM)
        self._restart_log(_SMALL_LOG)
        self._end_tight()
        if self.tight and not self._has_logged_full:
            self._has_logged_full = True
            log.error(
                "the disk of the spool %s is full: what it holds is safe and is sent; a new message is kept only where "
                "a sent one has left room. Make room on the disk",
                self._path,
            )

    def _end_tight(self) -> None:
        """Make the spool tight no longer, if the disk has room for the full reserve and for the log beside it."""
        full = self._full_reserve()
        if not self._reserve.hold(full + self._log_room):
            return
        self._reserve.trim(full)
        self._pragma(f"max_page_count = {self._page_limit}")
        self.tight, self._covered = False, 0.0
        if self._has_logged_full:
            self._has_logged_full = False
            log.warning("the disk of the spool %s has room again", self._path)

    def _shrink(self) -> None:
        """Shrink the file once all messages are removed, if other files have taken the rest of the disk.

        VACUUM writes the little that remains to the log, which fits into the room for a removal. The file is cut by the
        next checkpoint, which has a thread: for a gigabyte that takes longer than the loop may wait.
        """
        free, disk = self._pragma("freelist_count"), os.statvfs(self._path)
        is_empty = self._page_size * (self._pages() - free) <= _REMOVAL_ROOM // 2
        is_worth_it = (
            self._page_size * free >= 2 * self._log_room + self._step and disk.f_bavail * disk.f_frsize < self._step
        )
        if self._log_size() or not is_empty or not is_worth_it:
            return
        self._reserve.trim(0)
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("VACUUM")
        self.restore_reserve()
        self._pragma(f"max_page_count = {self._pages()}")

    def _restart_log(self, most: float) -> bool:
        """Copy a log of at most `most` bytes into the database and empty it; return False if that gained nothing."""
        with contextlib.suppress(OSError, sqlite3.Error):
            if 0 < self._log_size() <= most:
                (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if self.tight and not busy:
                    self._reserve.hold(_REMOVAL_ROOM)
                return not busy
        return False

    def _full_reserve(self) -> int:
        """Return the size of the full reserve: room for the next checkpoint and in the log, and a step to spare."""
        return self._checkpoint_growth() + self._log_room + self._step

    def _log_size(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return Path(f"{self._path}-wal").stat().st_size
        return 0

    def _checkpoint_growth(self) -> int:
        """Return how many bytes the next checkpoint adds to the database file."""
        return max(0, self._pages() * self._page_size - self._path.stat().st_size)

    def _pages(self) -> int:
        return self._pragma("page_count")

    def _pragma(self, text: str) -> int:
        return int(self._connection.execute(f"PRAGMA {text}").fetchone()[0])
