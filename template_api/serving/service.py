"""One API process from start to stop: first import, library, application, server, signals.

Requests are parsed, bounded and sent by `amqtt_rest_bridge.http_server`; the application runs behind its WSGI door.
Runs on the main thread. A process that a broker's plugin has started gets its listening socket and a *link*, a socket
on which it reports `busy` while it imports, then `ready` or why it cannot start. When the other end closes, it stops.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from logging.handlers import WatchedFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from amqtt_rest_bridge.http_server import HttpServer, Limits, Request, Response, WsgiDoor, path_info
from template_api.app import CORS_FIELDS, create_app
from template_api.config import DEFAULT_THREADS, MOST_THREADS, Settings
from template_api.errors import INTERNAL_ERROR, ROWS, SettingsError, StartError, TemplateApiError
from template_api.library import TemplateLibrary, fill_empty_library, index_folder, listed_templates
from template_api.query import MAX_BODY_BYTES
from template_api.replies import JSON, error_body
from template_api.serving.supervisor import BUSY, READY, listening_socket
from template_api.sources import Reading

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0001
_BUSY_SECONDS = 1.0  # between two reports that the import is running
_GRACE_SECONDS = 5  # what running requests get to finish in at a stop
_LIMITS = Limits(
    slow_seconds=30,  # for a request to arrive whole, or a caller that reads nothing of its answer
    idle_seconds=30,  # a connection between requests
    waiting=1000,
    connections=1000,  # below the 1,024 files that a process may usually have open
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one process: threads, access log, and the descriptors from its supervisor."""

    threads: int = DEFAULT_THREADS
    access_log: str | None = None
    socket_fd: int | None = None
    link_fd: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MOST_THREADS:
            raise SettingsError(f"--threads must be a whole number from 1 to {MOST_THREADS}, not {self.threads}")


class Server:
    """Serve one WSGI application on one listening socket, until `stop`.

    Args:
        app: the application.
        listening: a bound socket; closed at the end.
        threads: how many requests are answered at once.
        limits: of connections.
    """

    def __init__(
        self, app: Any, listening: socket.socket, threads: int = DEFAULT_THREADS, limits: Limits = _LIMITS
    ) -> None:
        self._listening = listening
        address = listening.getsockname()
        self.port: int = address[1]
        self._stops: SimpleQueue[None] = SimpleQueue()
        self._door = WsgiDoor(app, threads, address[:2], _refused)
        self._http = HttpServer(listening, self._door, max_body_bytes=MAX_BODY_BYTES, limits=limits, refuse=_refused)

    def run(self) -> None:
        """Serve until `stop`, then wait up to 5 s for running requests."""
        self._http.start()
        self._stops.get()
        self._listening.close()  # else who connects waits for an answer until the end
        self._http.stop(_GRACE_SECONDS)
        self._door.close(1)

    def stop(self) -> None:
        """Stop `run`; may be called from any thread."""
        self._stops.put(None)


def _refused(request: Request) -> Response:
    """Return the server's own refusals in the form of this API."""
    refusal = request.refusal
    assert refusal is not None  # noqa: S101  # it is refused
    row = ROWS.get(refusal.code, INTERNAL_ERROR)
    error = row.error(row.message or refusal.message)
    body = error_body(error, request.method, path_info(request.target))
    fields = (("Content-Type", JSON), *CORS_FIELDS, *refusal.headers)
    return Response(f"{error.status.value} {error.status.phrase}", fields, body)


def serve(settings: Settings, options: Options) -> None:
    """Serve the API until a signal or the supervisor ends it.

    Raises:
        SettingsError: a setting cannot be used.
        StartError: the port is taken, or the database or the library cannot be used.
        DatabaseUnavailableError: the database does not answer.
        SystemExit: one of these, after the supervisor, which logs it, was informed.
    """
    with ExitStack() as opened:
        link = None
        if options.link_fd is not None:
            link = _Link(opened.enter_context(socket.socket(fileno=options.link_fd)))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # those to the process group; the supervisor stops this process
        try:
            server = _server(settings, options, opened, link.send_busy if link is not None else lambda: None)
        except TemplateApiError as exc:
            if link is None:
                raise
            link.send(str(exc))
            raise SystemExit(1) from exc
        if link is None:
            opened.enter_context(_stopped_by_signals(server))
        public_url = settings.public_url(server.port)
        log.info("template API on http://%s:%d, public address %s", settings.host, server.port, public_url)
        if link is not None:
            link.send(READY)
            threading.Thread(target=link.stop_at_end, args=(server,), name="link", daemon=True).start()
        server.run()
    log.info("template API stopped")


@contextlib.contextmanager
def _stopped_by_signals(server: Server) -> Iterator[None]:
    """Stop the server at SIGINT or SIGTERM.

    Any thread of the process may take a signal, and Python calls handlers on the main one, which would wait for the
    stop and not notice: 3 of 32 SIGTERM were lost beside threads that index. The descriptor is written on any thread.
    """
    woken, wakes = socket.socketpair()

    def wait() -> None:
        woken.recv(1)
        server.stop()

    waiting = threading.Thread(target=wait, name="signals", daemon=True)
    with woken:
        with wakes:
            wakes.setblocking(False)
            signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            waiting.start()
            try:
                yield
            finally:
                signal.set_wakeup_fd(-1)
        waiting.join()


def _server(settings: Settings, options: Options, opened: ExitStack, report_busy: Callable[[], None]) -> Server:
    """Return the server, ready to run; what it needs is closed with `opened`."""
    if options.socket_fd is not None:
        listening = opened.enter_context(socket.socket(fileno=options.socket_fd))
    else:
        listening = opened.enter_context(listening_socket(settings.host, settings.port))
    access_log = _access_logger(options.access_log, opened)
    library = opened.enter_context(closing(open_library(settings, report_busy)))
    port = listening.getsockname()[1]
    # A request takes the interpreter lock some ten times and waits so long each time for the thread that indexes: with
    # Python's 5 ms, the p99 of searches is 45 to 65 ms while 1,000 changed templates are indexed, with this 20 ms.
    # Measured again with 6,000 templates and cached reads beside, 0.1, 1 and 5 ms in turns, on two cores with other
    # work: p99 of searches 48 to 72, 134 to 242 and 142 to 438 ms; of cached reads 25 to 53, 70 to 133, 113 to 240 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    app = create_app(
        library, settings.public_url(port), access_log,
        log_empty_searches=settings.log_empty_searches, playground=settings.playground,
    )  # fmt: skip
    server = Server(app, listening, options.threads)
    library.follow()
    # What is there now lives as long as this process: 68,000 objects, for which each full round of the garbage
    # collector would hold the interpreter lock for 20 ms.
    gc.collect()
    gc.freeze()
    return server


def open_library(settings: Settings, report_busy: Callable[[], None] = lambda: None) -> TemplateLibrary:
    """Open the library; import `settings.library` first when it is empty.

    Args:
        settings: where both are.
        report_busy: called every second while the import runs.

    Raises:
        StartError: the database or the library folder cannot be used.
        DatabaseUnavailableError: the database does not answer.
    """
    if settings.library is not None:
        # Decision: a template that cannot be read is logged and does not keep the others from being served.
        report = fill_empty_library(settings.database_url, Path(settings.library), _Observer(report_busy))
        if report is not None:
            log.info("library %s imported: %s", settings.library, report)
    library = TemplateLibrary(settings.database_url, index_folder(settings.database_url, settings.index_dir))
    if library.is_empty():
        with closing(listed_templates(settings.database_url)) as listed:  # drafts and hidden ones count too
            if next(listed, None) is None:
                log.warning("the library is empty; fill it with template-api import PATH")
    return library


class _Observer:
    """Logs warnings and faults of templates, and reports once a second that the import is running."""

    def __init__(self, report_busy: Callable[[], None]) -> None:
        self._report_busy = report_busy
        self._reported = time.monotonic()

    def __call__(self, reading: Reading) -> None:
        for warning in reading.warnings:
            log.warning("%s", warning)
        for fault in reading.faults:
            log.error("%s", fault)
        if time.monotonic() - self._reported >= _BUSY_SECONDS:
            self._reported = time.monotonic()
            log.info("importing the library: %d %%", 100 * reading.done // max(1, reading.total))
            self._report_busy()


class _Link:
    """This process's end of the link to its supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, word: str) -> None:
        """Write a line, unless the supervisor has ended."""
        with contextlib.suppress(OSError):
            self._connection.sendall(word.encode("utf-8", "replace") + b"\n")

    def send_busy(self) -> None:
        """Report that the import is running; raise `StartError` when the supervisor has ended."""
        try:
            self._connection.sendall(BUSY.encode() + b"\n")
        except OSError as exc:
            raise StartError("the import was stopped, as the broker has ended") from exc

    def stop_at_end(self, server: Server) -> None:
        """Stop the server once the supervisor closes its end, or dies."""
        with contextlib.suppress(OSError):
            while self._connection.recv(1):
                pass
        server.stop()


class _AccessFile(WatchedFileHandler):
    """The file of the access log, which logrotate may move away; a full disk is logged once and harms no request."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  # as logging has it
        """Log why a line could not be written, the first time."""
        if not self._has_failed:
            self._has_failed = True
            exc = sys.exc_info()[1]
            log.error("access log %s cannot be written: %s", self.baseFilename, getattr(exc, "strerror", exc))

    def close(self) -> None:
        """Close the file; what could not be written is lost."""
        with contextlib.suppress(OSError):
            super().close()


def _access_logger(target: str | None, opened: ExitStack) -> logging.Logger | None:
    if target is None:
        return None
    try:
        handler = logging.StreamHandler(sys.stdout) if target == "-" else _AccessFile(target, encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"--access-log {target}: cannot be written: {os.strerror(exc.errno or 0)}") from exc
    opened.callback(handler.close)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("template_api.access")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return logger
