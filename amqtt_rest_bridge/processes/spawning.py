"""How a bridge is started: a process of its own, or a thread of the broker process. Starting one blocks briefly."""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_THREAD_SECONDS: Final = 5.0  # for a bridge in a thread to end

Spawn = Callable[[socket.socket], tuple[int, Callable[[], None]]]
"""Start a bridge at the other end of a socket; returns its process id and a function that waits for its end."""


def spawn_process(sock: socket.socket) -> tuple[int, Callable[[], None]]:
    """Start a bridge process that owns this end of a socket pair."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    process = subprocess.Popen(  # noqa: S603  # our own module in our own interpreter
        [
            sys.executable,
            "-P",
            "-m",
            "amqtt_rest_bridge.bridge.main",
            str(sock.fileno()),
            str(logging.getLogger("amqtt_rest_bridge").getEffectiveLevel()),
        ],
        pass_fds=[sock.fileno()],
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    sock.close()

    def end() -> None:
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode < 0:
            log.warning("the bridge process with pid %d was ended by signal %d", process.pid, -process.returncode)

    return process.pid, end


def thread_spawner(run: Callable[[socket.socket], None]) -> Spawn:
    """Return what runs the bridge in a thread of this process (`processes: 0`): the same code behind the same link."""

    def spawn(sock: socket.socket) -> tuple[int, Callable[[], None]]:
        thread = threading.Thread(target=run, args=(sock,), name="bridge", daemon=True)
        thread.start()
        return os.getpid(), lambda: thread.join(timeout=_THREAD_SECONDS)

    return spawn
