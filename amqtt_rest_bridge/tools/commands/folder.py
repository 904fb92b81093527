"""The folder of routes that came by commands: `<name>.lot` for each, written whole, and no other file. Blocks.

A file is written beside its place, made durable and renamed, so that a kill at any moment leaves the old one or the new
one. What is left of a write that was cut off is hidden, which no loader reads.
"""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.errors import BridgeError, ConfigurationError

_STAGED: Final = ".command-{pid}.new"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MODE: Final = 0o640  # a definition may hold credentials


class FolderError(BridgeError):
    """What is in the place of a route's file is none that commands write."""


class RouteFolder:
    """The files of routes by name; raises `OSError` where the system does."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def prepare(self) -> None:
        """Make the folder if it is missing; raises `ConfigurationError` if there can be none."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigurationError(f"the setting coreflux cannot keep routes in {self._path}: {why}") from error

    def place_of(self, name: str) -> str:
        """Return the path of a route's file, as the loader calls it; reads nothing."""
        return str(self._path / f"{name}.lot")

    def is_place_of(self, name: str, path: str) -> bool:
        """Return whether a path, as a fault or a route names it, is that of a route's file."""
        return os.path.realpath(path) == f"{os.path.realpath(self._path)}/{name}.lot"

    def read(self, name: str) -> str | None:
        """Return the text of a route's file, None if there is none; raises `FolderError` for a link or a folder."""
        path = Path(self.place_of(name))
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise FolderError(f"{path} is not a regular file: no command wrote it, and none changes it")
            return path.read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None

    def change(self, texts: Mapping[str, str | None]) -> None:
        """Write the files of routes, or remove them (None); after an error of the system some may have changed."""
        for name, text in texts.items():
            path = Path(self.place_of(name))
            if text is None:
                path.unlink(missing_ok=True)
            else:
                self._write(path, text.encode("utf-8", "surrogateescape"))
        self._sync()

    def _write(self, path: Path, content: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        staged = self._path / _STAGED.format(pid=os.getpid())
        staged.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(staged, _NEW, _MODE), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)
            raise

    def _sync(self) -> None:
        """Make names durable."""
        with contextlib.suppress(FileNotFoundError):
            folder = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
