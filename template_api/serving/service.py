"""One API process from start to stop: first import, library, application, waitress, signals. Main thread.

A process that a broker's plugin has started gets its listening socket and a *link*, a socket on which it reports
`ready` or why it cannot start. When the other end closes, it stops, an import that runs included.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from contextlib import ExitStack, closing
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import waitress
from waitress import wasyncore

from template_api.app import create_app
from template_api.config import DEFAULT_THREADS, Settings
from template_api.errors import SettingsError, TemplateApiError
from template_api.library import TemplateLibrary, fill_empty_library, listed_templates
from template_api.serving.supervisor import READY, listening_socket
from template_api.sources.reading import Reading

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0001
_LIMITS: dict[str, Any] = {
    "connection_limit": 1000,  # below the 1,024 files that a process may usually have open
    "channel_timeout": 30,  # seconds after which a connection on which nothing moves is closed
    "cleanup_interval": 5,
    "max_request_header_size": 65536,
    # The application refuses more than 64 KiB, in the form of its errors; from here on waitress does, in plain text.
    "max_request_body_size": 1 << 20,
    # waitress answers all requests that came in one piece, whether or not the caller reads. Small pieces bound what
    # that costs in memory; below the watermark such a caller holds no thread, which it would for ever.
    "recv_bytes": 1024,
    "outbuf_high_watermark": 1 << 30,
    "ident": None,
    # One write for the head and the body of an answer, by the thread that selects: two thirds of the processor time of
    # two writes by a thread that answers, which each wait for the interpreter lock. Deprecated, without a successor.
    "send_bytes": 65536,
}


def serve(
    settings: Settings, threads: int = DEFAULT_THREADS, access_log: str | None = None,
    socket_fd: int | None = None, link_fd: int | None = None,
) -> None:  # fmt: skip
    """Serve the API until a signal or the supervisor ends it.

    `access_log` is a file, `-` for standard output. A supervisor hands over its listening socket and its link.

    Raises:
        SettingsError: a setting cannot be used.
        StartError: the port is taken, or the database or the library cannot be used.
        DatabaseUnavailableError: the database does not answer.
        SystemExit: one of these, after the supervisor, which logs it, was informed.
    """
    settings.check()
    with ExitStack() as opened:
        link = None
        if link_fd is not None:
            link = opened.enter_context(socket.socket(fileno=link_fd))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # those to the process group; the supervisor stops this process
            threading.Thread(target=_stop_at_end, args=(link,), name="link", daemon=True).start()
        try:
            if socket_fd is not None:
                listening = opened.enter_context(socket.socket(fileno=socket_fd))
            else:
                listening = opened.enter_context(listening_socket(settings.host, settings.port))
            logger = _access_logger(access_log)
            library = opened.enter_context(closing(_open_library(settings)))
            # A request takes the interpreter lock some ten times and waits so long each time for the thread that
            # indexes: with Python's 5 ms, the p99 of searches is three times as long while 1,000 templates are indexed.
            sys.setswitchinterval(_SWITCH_SECONDS)
            address = settings.public_url(listening.getsockname()[1])
            app = create_app(
                library, address, logger,
                log_empty_searches=settings.log_empty_searches, playground=settings.playground,
            )  # fmt: skip
            server = ApiServer(app, listening, threads)
            library.follow()
        except TemplateApiError as exc:
            if link is None:
                raise
            _send(link, str(exc))
            raise SystemExit(1) from exc
        for number in (signal.SIGINT, signal.SIGTERM) if link is None else (signal.SIGUSR1,):
            signal.signal(number, lambda *_: server.stop())
        # What is there now lives as long as this process: 68,000 objects, for which each full round of the garbage
        # collector would hold the interpreter lock for 20 ms.
        gc.collect()
        gc.freeze()
        log.info("template API on http://%s:%s, public address %s", settings.host, server.port, address)
        if link is not None:
            _send(link, READY)
        server.run()
    log.info("template API stopped")


class ApiServer:
    """Waitress with an application on a bound socket; `limits` are taken in place of those above, as it names them."""

    def __init__(self, app: Any, listening: socket.socket, threads: int = DEFAULT_THREADS, **limits: Any) -> None:
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it warns of each request that waits for a thread
        self._is_stopping = False
        self._waited_for: dict[int, Any] = {}
        settings = {**_LIMITS, **limits}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._waitress = waitress.create_server(
                app, map=self._waited_for, sockets=[listening], threads=threads, **settings
            )
        self.port = int(self._waitress.effective_port)

    def run(self) -> None:
        """Serve until `stop`. Running requests then get 5 s, and what they answered is sent."""
        while not self._is_stopping:
            # select() takes no descriptor above 1,023, poll() does.
            wasyncore.loop(timeout=1, use_poll=True, map=self._waited_for, count=1)
        self._waitress.task_dispatcher.shutdown()
        for channel in list(self._waitress.active_channels.values()):  # nothing waits for them any more
            channel.handle_write()

    def stop(self) -> None:
        """End `run`; for handlers of signals, which must raise nothing: between sending and noting what was sent."""
        self._is_stopping = True
        self._waitress.pull_trigger()


def _open_library(settings: Settings) -> TemplateLibrary:
    """Open the library; import `settings.library` first when it is empty."""

    def observe(reading: Reading) -> None:
        for warning in reading.warnings:
            log.warning("%s", warning)
        for fault in reading.faults:
            log.error("%s", fault)

    if settings.library is not None:
        # A template that cannot be read is logged and does not keep the others from being served.
        report = fill_empty_library(settings.database_url, Path(settings.library), observe)
        if report is not None:
            log.info("library %s imported: %s", settings.library, report)
    library = TemplateLibrary(settings.database_url)
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    old_index = Path(settings.index_dir or Path(cache, "template-api"))  # of versions that kept one
    if settings.index_dir or old_index.is_dir():
        ignored = "the search index is in memory: index_dir has no effect, and the folder %s can be deleted"
        log.warning(ignored, old_index)
    with closing(listed_templates(settings.database_url)) as listed:  # drafts and hidden ones too
        if next(listed, None) is None:
            log.warning("the library is empty; fill it with template-api import PATH")
    return library


def _send(link: socket.socket, word: str) -> None:
    """Send a line to the supervisor, unless it has ended."""
    with contextlib.suppress(OSError):
        link.sendall(word.encode("utf-8", "replace") + b"\n")


def _stop_at_end(link: socket.socket) -> None:
    """Stop this process once the supervisor closes its end of the link, or dies."""
    with contextlib.suppress(OSError):
        while link.recv(1):
            pass
    os.kill(os.getpid(), signal.SIGUSR1)  # which ends a process that has not begun to serve at once


def _access_logger(target: str | None) -> logging.Logger | None:
    """Return the logger of requests; a full disk costs their lines, no more."""
    if target is None:
        return None
    try:
        # The second is the file that logrotate may move away.
        handler = logging.StreamHandler(sys.stdout) if target == "-" else WatchedFileHandler(target, encoding="utf-8")
    except OSError as exc:
        raise SettingsError(f"--access-log {target}: cannot be written: {os.strerror(exc.errno or 0)}") from exc
    logging.raiseExceptions = False
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("template_api.access")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return logger
