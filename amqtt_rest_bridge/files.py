"""What a path has to lead to before it is opened. Blocks for one look at the file system; any thread."""

import errno
import os
import stat


def regular_file(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the status of a regular file, links followed.

    Raises:
        OSError: There is none; or it is a folder, FIFO, device or socket, whose reading may never end.
    """
    status = os.stat(path)  # noqa: PTH116  # of text and paths alike
    if not stat.S_ISREG(status.st_mode):
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, f"it is {_kind(status.st_mode)}, not a regular file")
    return status


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"
