"""The access log: one JSON object a line for each answer.

A line never holds a body, a credential or a query string, which may hold tokens.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from amqtt_rest_bridge.errors import ConfigurationError

log = logging.getLogger(__name__)


class AccessLog:
    """A file of entries, which several processes may share and logrotate may move away.

    It is not `logging.handlers.WatchedFileHandler`: there a line costs 7 us, with `os.write` 0.4. After a full disk,
    that handler also writes the rest of a line behind lines of other processes.

    Args:
        path: The file. A later failure, as of a full disk, is logged once and never harms a request.
        labels: Names of an application's own fields; null in the entry of an answer that has none.
        look_seconds: How often a write first looks whether the file was moved away.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def __init__(self, path: str, labels: Sequence[str] = (), look_seconds: float = 1.0) -> None:
        self._path = Path(path)
        self.labels = tuple(labels)
        self._look_seconds = look_seconds
        self._failed = False
        self._looked = time.monotonic()
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise ConfigurationError(f"access_log {path} cannot be opened: {error.strerror}") from error

    def write(self, fields: Mapping[str, object]) -> None:
        """Append one line; it is one write, so that lines of several processes never mix."""
        if self._descriptor < 0:
            return
        try:
            self._follow()
            os.write(self._descriptor, json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.error("Writing to the access log %s fails: %s", self._path, error.strerror)  # noqa: TRY400  # the reason is all
        else:
            self._failed = False

    def close(self) -> None:
        """Close the file; what is written afterwards is dropped."""
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _follow(self) -> None:
        """Open the path again when its file was moved away."""
        now = time.monotonic()
        if now - self._looked < self._look_seconds:
            return
        self._looked = now
        try:
            is_same = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            descriptor = self._open()
            os.close(self._descriptor)
            self._descriptor = descriptor
