"""Child processes of our own code, and when what has ended is started again. Any thread; the template API uses it too.

A child holds one end of a socket and ends by itself when the other end closes, so that none outlives its parent.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from amqtt_rest_bridge.times import Backoff

log = logging.getLogger(__name__)


class Restarts:
    """When one process or task is started again, by how often in a row it has ended.

    Args:
        backoff: The delays, and after how long it has recovered.
        monotonic: The clock, in seconds.
    """

    def __init__(self, backoff: Backoff, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        """How often it has ended in a row."""
        self._backoff = backoff
        self._monotonic = monotonic
        self._began = monotonic()

    def begin(self) -> None:
        """Note that it is started."""
        self._began = self._monotonic()

    def ended(self) -> float:
        """Note that it has ended, or could not start; return the seconds until it is started again."""
        has_recovered = self._monotonic() - self._began >= self._backoff.steady
        self.failures = 1 if has_recovered else self.failures + 1
        return self._backoff.delay(self.failures)


def own_code(module: str) -> tuple[list[str], dict[str, str]]:
    """Return command and environment that run a module in another process of this interpreter.

    It imports from where this process does, and never from its working directory.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": paths}


class ChildProcess:
    """A child process that runs a module of ours.

    Args:
        module: Its name.
        arguments: Of its command line, which other users of the machine can see.
        descriptors: Those that it takes over, by the same numbers.
        environment: Variables beside those of this process.

    Raises:
        OSError: Processes or descriptors have run out.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        descriptors: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command, variables = own_code(module)
        self._process = subprocess.Popen(  # noqa: S603  # our own module in our own interpreter
            [*command, *arguments],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            env={**variables, **(environment or {})},
        )
        self.pid = self._process.pid

    def wait(self) -> int:
        """Wait for its end and return its status, negative where a signal ended it; blocks."""
        return self._process.wait()

    def end(self, seconds: float) -> int:
        """Wait so long for its end, then kill it, and return its status; blocks."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.warning("the process with pid %d did not stop within %g s and is killed", self.pid, seconds)
            self._process.kill()
            return self._process.wait()
