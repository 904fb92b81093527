"""What the C library does with freed memory. Called once, at the start of a process; nothing but glibc is changed."""

import contextlib
import ctypes
import os
from typing import Final

_MMAP_THRESHOLD: Final = (-3, "MALLOC_MMAP_THRESHOLD_")
_TRIM_THRESHOLD: Final = (-1, "MALLOC_TRIM_THRESHOLD_")
_ARENA_MAX: Final = (-8, "MALLOC_ARENA_MAX")
_LARGE: Final = 512 << 10  # bytes; more than the 256 KiB that sockets are read with, which would be mapped each time
# Free bytes at the end of a heap. glibc's is 128 KiB once the other threshold is set: each read of a socket would take
# memory from the system and return it.
_SPARE: Final = 4 * _LARGE
_ARENAS: Final = 2


def return_large_blocks(*, few_arenas: bool = False) -> None:
    """Return large payloads to the system from now on, as soon as they are freed; variables of the environment win.

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
