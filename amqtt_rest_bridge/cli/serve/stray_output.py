"""What reaches standard error past the log: lines of child processes, of amqtt's own printing, of the interpreter.

With a JSON log every line has to be an object, so descriptor 2 becomes a pipe and a thread makes records of what comes
out of it. The log itself goes to the standard error that was there before.
"""

import logging
import os
import re
import threading
from typing import Final, TextIO

log = logging.getLogger(__name__)

_STANDARD_ERROR: Final = 2
_JOIN_SECONDS: Final = 1.0  # a child may outlive us and keep the pipe open
_LOG_LINE: Final = re.compile(r"\[[^\]]+\] :: ([A-Z]+) - (.*)")  # the template API's process logs like this


class StrayOutput:
    """Turns lines written to descriptor 2 into log records, from its construction to `end`."""

    def __init__(self) -> None:
        self.stream: TextIO = os.fdopen(
            os.dup(_STANDARD_ERROR), "w", buffering=1, encoding="utf-8", errors="backslashreplace"
        )
        """The standard error that was there before."""
        reading, writing = os.pipe()
        os.dup2(writing, _STANDARD_ERROR)
        os.close(writing)
        self._thread = threading.Thread(target=_read, args=(reading,), name="stray output", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Give descriptor 2 back and log what is still in the pipe; waits a second at most."""
        os.dup2(self.stream.fileno(), _STANDARD_ERROR)
        self._thread.join(_JOIN_SECONDS)


def _read(descriptor: int) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            text = line.rstrip("\n")
            found = _LOG_LINE.fullmatch(text)
            level = logging.getLevelNamesMapping().get(found[1]) if found else None
            if found and level is not None:
                log.log(level, "%s", found[2])
            elif text:
                log.warning("%s", text)
