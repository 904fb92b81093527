"""The API as a child process: started, watched, restarted, stopped.

The parent binds the socket and keeps it: a taken port is known at once, and the port stays open while the child is
started again. A socket pair, the *link*, signals that the child is ready, or that the parent has ended.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Mapping

from amqtt_rest_bridge.addresses import why_not_bound
from amqtt_rest_bridge.child_process import ChildProcess, Restarts
from amqtt_rest_bridge.times import Backoff
from template_api.errors import StartError

log = logging.getLogger(__name__)

READY = "ready"
_BACKLOG = 1024


def listening_socket(host: str, port: int) -> socket.socket:
    """Bind a socket and listen on it, port 0 takes a free one; raise `StartError` with why where that cannot be."""
    is_ipv6 = ":" in host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_ipv6)
    except (OSError, UnicodeError) as exc:
        why = why_not_bound(exc, port, "port") if isinstance(exc, OSError) else exc
        raise StartError(f"cannot listen on {host} port {port}: {why}") from exc


class Supervisor:
    """Run `template-api serve` in a process of its own.

    Args:
        listening: the bound socket that the child serves; stays open in this process.
        environment: the settings, as environment variables of the child.
        stop_seconds: how long the child may take to stop; it gives its requests 5.
        backoff: when the child is started again; by default at once, then after 1, 2, 4 ... 30 s.
    """

    def __init__(
        self, listening: socket.socket, environment: Mapping[str, str], *, stop_seconds: float = 8,
        backoff: Backoff | None = None,
    ) -> None:  # fmt: skip
        self._listening = listening
        self._environment = environment
        self._stop_seconds = stop_seconds
        self._backoff = backoff or Backoff(at_once=True)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self.process: ChildProcess | None = None
        """The child that runs now."""
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Start the child, wait until it is ready, and watch it from then on; raise `StartError` where it cannot start.

        Blocks for about a second, longer while a library is imported.
        """
        self._spawn()
        self._watcher = threading.Thread(target=self._watch, name="template-api-supervisor", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """Shut the child down gracefully, and kill it when that takes longer than `stop_seconds`. Blocks as long."""
        self._stopping.set()
        with self._lock:
            process = self.process
            self._close_link()
        if process is not None:
            process.end(self._stop_seconds)
        if self._watcher is not None:
            self._watcher.join()
        self._listening.close()

    def _spawn(self) -> None:
        """Start one child and wait for its first line."""
        ours, theirs = socket.socketpair()
        fds = (self._listening.fileno(), theirs.fileno())
        level = log.getEffectiveLevel()  # which holds for the child too
        named = next((name for name in ("DEBUG", "INFO", "WARNING") if level <= getattr(logging, name)), "ERROR")
        arguments = ["serve", "--log-level", named, "--socket-fd", str(fds[0]), "--link-fd", str(fds[1])]
        with theirs, self._lock:
            if self._stopping.is_set():
                ours.close()
                return
            self._link = ours
            self.process = ChildProcess("template_api", arguments, fds, self._environment)
        word = ""  # when it ends without one, or `stop` closes the link
        with contextlib.suppress(OSError, ValueError), ours.makefile(encoding="utf-8", errors="replace") as lines:
            word = lines.readline().strip()
        if word != READY and not self._stopping.is_set():
            self._close_link()
            status = self.process.end(self._stop_seconds)
            raise StartError(word or f"the template API's process ended with status {status}")

    def _watch(self) -> None:
        """Start the child again whenever it ends; runs in a thread until `stop`."""
        restarts = Restarts(self._backoff)
        while not self._stopping.is_set():
            restarts.begin()
            status = self.process.wait() if self.process is not None else None
            if self._stopping.is_set():
                return
            log.error("the template API's process ended with status %s and is started again", status)
            if self._stopping.wait(restarts.ended()):
                return
            try:
                self._close_link()
                self._spawn()
            except (StartError, OSError) as exc:
                log.error("the template API cannot start again: %s", exc)  # noqa: TRY400 - the reason is in the text

    def _close_link(self) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)
            self._link.close()
            self._link = None
