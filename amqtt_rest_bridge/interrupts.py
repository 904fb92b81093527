"""Ctrl-C while a command line is imported: the process ends with exit status 130 and no traceback. Main thread.

The modules of the command lines import this one first, for its effect, and call `raise_again` after their other
imports, which take a third of a second: until then there is nothing to clean up, and no `try` that could end it.
"""

import os
import signal
from types import FrameType


def raise_again() -> None:
    """Restore the handler that raises `KeyboardInterrupt`."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
    signal.signal(signal.SIGINT, _end)
