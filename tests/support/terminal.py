"""A command on a terminal of its own: a real pseudo-terminal with a size, whose text a test reads and types into."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Final

from tests.support.forked import REST_BRIDGE, Forked

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 60.0


class Terminal:
    """A terminal of 20 lines, 90 columns if not said otherwise, in which a `rest-bridge` command runs.

    The command is forked; `interpreter` starts an interpreter for it, which inherits the signals that are ignored here.
    """

    def __init__(
        self, *arguments: str, cwd: Path = ROOT, columns: int = 90, interpreter: bool = False, **environment: str
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, columns, 0, 0))
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        sized = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        variables = sized | {"TERM": "xterm", "PYTHONPATH": path} | environment
        self.process: Forked | subprocess.Popen[bytes]
        if interpreter:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "amqtt_rest_bridge", *arguments],
                stdout=theirs, stderr=theirs, stdin=theirs, cwd=cwd, env=variables,
            )  # fmt: skip
        else:
            with open(theirs, "wb", buffering=0, closefd=False) as screen:
                self.process = Forked(REST_BRIDGE, arguments, cwd, environment=variables, output=screen)
        os.close(theirs)
        self.text = ""

    def expect(self, pattern: str) -> None:
        """Wait until the terminal has got something."""
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, self.text):
            assert self._read(deadline), f"ended without {pattern!r}: {self.text!r}"

    def type(self, text: str) -> None:
        """Type a text, with a line break where it shall be sent."""
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Read to the end and give the exit status."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        os.close(self._ours)
        return self.process.wait(SECONDS)

    def _read(self, deadline: float) -> bool:
        # A table that is drawn every second never falls silent, so the limit is for the whole wait.
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        if not ready or time.monotonic() > deadline:
            self.process.kill()
            raise AssertionError(f"not within {SECONDS} s: {self.text[-2000:]!r}")
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.text += data.decode()
        return bool(data)
