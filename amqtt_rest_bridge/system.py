"""The operating system: files, a full disk, and the memory, limits and core files of a process. Any thread."""

import contextlib
import ctypes
import errno
import faulthandler
import gc
import logging
import os
import stat
from typing import Final, NoReturn

log = logging.getLogger(__name__)

NO_BLOCKS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a disk, a quota or a limit that has no room."""
_NO_ROOM: Final = frozenset({10, 13, 14})  # SQLITE_IOERR, SQLITE_FULL, SQLITE_CANTOPEN: with EFBIG, ENOSPC, no -shm

_STANDARD_ERROR: Final = 2
_MMAP_THRESHOLD: Final = (-3, "MALLOC_MMAP_THRESHOLD_")
_TRIM_THRESHOLD: Final = (-1, "MALLOC_TRIM_THRESHOLD_")
_ARENA_MAX: Final = (-8, "MALLOC_ARENA_MAX")
_LARGE: Final = 512 << 10  # bytes; more than the 256 KiB that sockets are read with, which would be mapped each time
# Free bytes at the end of a heap. glibc's is 128 KiB once the other threshold is set: each read of a socket would take
# memory from the system and return it.
_SPARE: Final = 4 * _LARGE
_ARENAS: Final = 2


def own_version() -> str:
    """Return the version of the bridge, "unknown" of a source tree that is not installed."""
    from importlib import metadata

    try:
        return metadata.version("amqtt-rest-bridge")
    except metadata.PackageNotFoundError:
        return "unknown"


def return_large_blocks(*, few_arenas: bool = False) -> None:
    """Return large payloads to the system from now on, as soon as they are freed; variables of the environment win.

    Called once, at the start of a process; nothing but glibc is changed.

    glibc raises its threshold for such blocks up to 32 MiB once a large one has been freed. From then on payloads of
    4 MB lie between small objects: a broker that had queued 64 MiB kept 130 MB after the queue was empty.

    With `few_arenas` threads share two heaps. Each of glibc's reserves 64 MiB of addresses (a limit such as
    `ulimit -v` counts these) for threads that the interpreter lock lets run one at a time.
    """
    wanted = [(_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _SPARE)] + ([(_ARENA_MAX, _ARENAS)] if few_arenas else [])
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for (parameter, variable), value in wanted:
            if variable not in os.environ:
                mallopt(parameter, value)


def freeze_garbage() -> None:
    """Free the reference cycles that a start has left, and freeze all other objects; blocks for one full round.

    A full round of the garbage collector stops every message while it visits all objects, 55,000 after the start of a
    broker; later rounds leave the frozen ones out. Only a process that runs nothing but the broker is frozen: frozen
    objects in reference cycles are never freed. The thresholds of the collector stay: amqtt's sessions are in cycles,
    and with a threshold of 10,000 in place of 700, 4,000 clients that came and went left 70 MB more behind.
    """
    gc.collect()
    gc.freeze()


def leave_no_core_file() -> None:
    """Keep this process, and those that it starts, from leaving a core file: it would hold payloads and secrets.

    The stack of the thread that crashed goes to standard error in its place: names of files, lines and functions.
    Called once, at the start of a process. `prlimit --core=unlimited --pid PID` allows a core file all the same.
    """
    import resource  # which Windows does not have, and its commands do not need

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # One byte has room for no file. Linux starts a program of core_pattern with 0 and not with 1 (fs/coredump.c).
    resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))
    faulthandler.enable(_STANDARD_ERROR, all_threads=False)


def use_all_descriptors() -> None:
    """Raise the limit of open files as far as the system lets this process: every connection needs one."""
    import resource  # as above

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def sqlite_code(error: Exception) -> int:
    """Return SQLite's primary result code of an error, 0 where it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_lack_of_room(error: Exception) -> bool:
    """Return whether a full disk may be the cause of a failure of SQLite, which has no code of its own for it."""
    return sqlite_code(error) in _NO_ROOM


FileState = tuple[str, int, int, int]
"""A file as it was: path, size, time of change, inode; the size is -1 where there is none."""


def file_state(path: str) -> FileState:
    """Return what changes when a file does."""
    try:
        status = os.stat(path)  # noqa: PTH116  # a path that is a text
    except (OSError, ValueError):
        return path, -1, 0, 0
    return path, status.st_size, status.st_mtime_ns, status.st_ino


def regular_file(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of a regular file, links followed.

    Raises:
        OSError: There is none; or it is a folder, FIFO, device or socket, whose reading may never end.
    """
    status = os.stat(path)  # noqa: PTH116  # of text and paths alike
    if not stat.S_ISREG(status.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        raise OSError(number, f"it is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a regular file")
    return status


_OWNER_ALONE: Final = 0o600


def refuse_passphrase() -> NoReturn:
    """Refuse a private key that needs a passphrase, in place of OpenSSL, which would ask for it at the terminal."""
    raise ValueError("the key is encrypted")


def open_private(path: str | os.PathLike[str]) -> int:
    """Open a file to read and write, which is made where there is none, and return its descriptor.

    From now on its owner alone may read, write or lock it, whatever its mode was. The same holds for the files that
    SQLite has left beside it; those that it makes get the mode of the database.

    Raises:
        OSError: It cannot be opened.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ALONE)
    _restrict(file, os.fspath(path))
    for suffix in ("-wal", "-shm", "-journal"):
        beside = f"{os.fspath(path)}{suffix}"
        with contextlib.suppress(FileNotFoundError):
            _restrict(beside, beside)
    return file


def _restrict(file: int | str, name: str) -> None:
    """Restrict a file to its owner, if its mode allows more."""
    if os.stat(file).st_mode & 0o777 & ~_OWNER_ALONE:  # noqa: PTH116  # a descriptor or a path
        try:
            os.chmod(file, _OWNER_ALONE)  # noqa: PTH101  # as above
        except PermissionError:  # it belongs to another account, or to a file system without modes
            log.warning("%s may hold payloads, and other accounts can use it: its mode cannot be changed", name)
