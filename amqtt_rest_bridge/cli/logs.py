"""The log of `rest-bridge serve`: records as text or JSON, and the last line of its process. Any thread."""

import json
import logging
import os
import re
import sys
import threading
from enum import StrEnum
from types import TracebackType
from typing import Final, TextIO

from amqtt_rest_bridge.errors import visible
from amqtt_rest_bridge.times import rfc3339

_TEXT: Final = "[%(asctime)s] :: %(levelname)s - %(message)s"  # as the amqtt command writes it
_DEBUG_TEXT: Final = "[%(asctime)s] %(name)s:%(lineno)d :: %(levelname)s - %(message)s"
_LOGGER: Final = "amqtt_rest_bridge.cli.serve"
_STANDARD_ERROR: Final = 2
_JOIN_SECONDS: Final = 1.0  # a child may outlive the broker and keep the pipe open
_LOG_LINE: Final = re.compile(r"\[[^\]]+\] :: ([A-Z]+) - (.*)")  # as the template API's process writes it
_CONNECTION: Final = re.compile(
    r"Connection from |Listener '.*': \d+/\S+ connections acquired|### 'on_broker_client_(dis)?connected' EVENT FIRED"
)


class LogFormat(StrEnum):
    """How log records are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least level that is written (`--log-level`)."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TextFormatter(logging.Formatter):
    """One record a line; what follows the first line is indented, so that no message can pass for another record."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; control characters that would steer a terminal are spelt out."""
        lines = super().format(record).split("\n")
        return "\n    ".join("\t".join(map(visible, line.split("\t"))) for line in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        members = {
            "time": rfc3339(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, ensure_ascii=False)


class Handler(logging.StreamHandler[TextIO]):
    """Writes records to a stream.

    At the start (`holding`) an ERROR waits for the next record. A plugin that cannot start logs its reason as such an
    ERROR, and the last line of the process says the same: then the ERROR is left out.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.holding = True
        self.is_debug = False
        self._held: logging.LogRecord | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what amqtt 0.12.1 logs beside our own lines.

        That is the stack of a listener that cannot bind; and, but for debug, three lines at INFO for each client that
        comes and goes, of which one is enough to fill a log, and two of its EventLoggerPlugin.
        """
        is_amqtt = record.name.startswith("amqtt.")
        if is_amqtt and record.levelno == logging.INFO and not self.is_debug:
            return _CONNECTION.match(record.getMessage()) is None
        return not (is_amqtt and record.msg == "Broker startup failed")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, after the one that waits."""
        self.write_held()
        if self.holding and record.levelno == logging.ERROR and not record.exc_info:
            self._held = record
        else:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Show no traceback if the reader has gone or the disk is full."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def write_held(self, last_line: str | None = None) -> None:
        """Write the record that waits, but not when the process's last line gives the same reason."""
        held, self._held = self._held, None
        if held is None:
            return
        message = " ".join(held.getMessage().split())
        reason = message.partition(": ")[2] or message  # of "the template API cannot start: reason"
        if last_line is None or not last_line.endswith(reason):
            super().emit(held)

    def stop_holding(self) -> None:
        """Write every record at once from now on."""
        self.holding = False
        self.write_held()

    def write_last(self, message: str) -> None:
        """Write why the process ends: in text the message only, in JSON a record like all others.

        It takes no lock, since a signal may have come while the holder of the lock was writing.
        """
        line = message
        if isinstance(self.formatter, JsonFormatter):
            line = self.format(logging.LogRecord(_LOGGER, logging.CRITICAL, __file__, 0, message, None, None))
        os.write(self.stream.fileno(), f"{line}\n".encode(errors="backslashreplace"))


def configure(
    log_format: LogFormat, stream: TextIO, *, level: LogLevel = LogLevel.INFO, only_messages: bool = False
) -> Handler:
    """Send all records of this process to a stream; uncaught exceptions and warnings become records.

    Args:
        log_format: How they are written.
        stream: Where they go.
        level: The least level that is written; text of `debug` has each record's place in the code.
        only_messages: Whether text has neither time nor level: for a command whose output the messages are.
    """
    handler = Handler(stream)
    debug = level is LogLevel.DEBUG
    if log_format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    elif only_messages:
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler.setFormatter(TextFormatter(_DEBUG_TEXT if debug else _TEXT))
    handler.holding, handler.is_debug = not only_messages, debug
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("transitions").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    log = logging.getLogger(_LOGGER)

    def log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        log.critical("ended by an exception", exc_info=(kind, error, traceback))

    def log_thread(caught: threading.ExceptHookArgs) -> None:
        if caught.exc_value is not None:
            name = caught.thread.name if caught.thread is not None else "?"
            log.error("thread %s ended", name, exc_info=(caught.exc_type, caught.exc_value, caught.exc_traceback))

    sys.excepthook = log_uncaught
    threading.excepthook = log_thread
    return handler


class StrayOutput:
    """Logs what is written to descriptor 2 past the log, from its construction to `end`.

    The process of the template API, amqtt's own prints and the interpreter write there; with a JSON log every line has
    to be an object. Descriptor 2 becomes a pipe that a thread reads; the log itself goes to the stream that was there.
    """

    def __init__(self) -> None:
        self.stream: TextIO = os.fdopen(
            os.dup(_STANDARD_ERROR), "w", buffering=1, encoding="utf-8", errors="backslashreplace"
        )
        """The standard error that was there before."""
        reading, writing = os.pipe()
        os.dup2(writing, _STANDARD_ERROR)
        os.close(writing)
        self._thread = threading.Thread(target=_log_lines, args=(reading,), name="stray output", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Restore descriptor 2 and log what is still in the pipe; blocks for a second at most."""
        os.dup2(self.stream.fileno(), _STANDARD_ERROR)
        self._thread.join(_JOIN_SECONDS)


def _log_lines(descriptor: int) -> None:
    """Log each line that comes from a descriptor, at the level that it names."""
    log = logging.getLogger(_LOGGER)
    with os.fdopen(descriptor, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            text = line.rstrip("\n")
            found = _LOG_LINE.fullmatch(text)
            level = logging.getLevelNamesMapping().get(found[1]) if found else None
            if found and level is not None:
                log.log(level, "%s", found[2])
            elif text:
                log.warning("%s", text)
