"""A command that kills itself behind one of its effects: a write to SQLite, to the room beside it, or to a socket.

Wherever a process ends between two effects, the world outside is the same. So a run for each effect is a run for each
point at which it can crash. What changes nothing that a later process could find does not count: the beginning of a
transaction, and packets to clients that acknowledge nothing. `tests.support.forked` runs this in place of a command;
see `Crash`.
"""

import functools
import importlib
import json
import os
import resource
import signal
import socket
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

_MODULE: Final = "tests.support.crashing"
_SETTINGS: Final = "CRASHING"
_WRITES: Final = {"COMMIT", "CREATE", "DELETE", "INSERT", "ROLLBACK", "UPDATE"}
_LOCAL: Final = {
    "quick_check", "table_info", "page_size", "secure_delete", "synchronous", "wal_autocheckpoint", "max_page_count",
}  # fmt: skip
"""PRAGMAs that only read, or change the connection only."""
_PACKETS: Final = {0x40: "PUBACK", 0x50: "PUBREC", 0x70: "PUBCOMP"}

Point = tuple[str, int]
"""An effect, and the how-manieth of its kind it is."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Where a command crashes.

    Args:
        effects: Gets a line for each effect; see `read`.
        behind: Where it kills itself; None: nowhere.
        file_bytes: The size that no file exceeds: a write beyond it fails as on a full disk.
    """

    effects: Path
    behind: Point | None = None
    file_bytes: int | None = None

    def of(self, command: str) -> tuple[str, dict[str, str]]:
        """Return the module and the environment for `tests.support.forked`, in place of a command's module."""
        settings = {"command": command, "effects": str(self.effects), "behind": self.behind, "bytes": self.file_bytes}
        return _MODULE, dict(os.environ) | {_SETTINGS: json.dumps(settings)}


def read(effects: Path) -> list[tuple[str, str]]:
    """Return the effects so far, in order: what it was, and the topic of a message that was written to the spool."""
    lines = effects.read_text().splitlines() if effects.exists() else []
    return [(kind, topic) for kind, topic in map(json.loads, lines)]


def points(effects: Iterable[tuple[str, str]]) -> list[Point]:
    """Number effects."""
    counts: Counter[str] = Counter()
    found = []
    for kind, _ in effects:
        counts[kind] += 1
        found.append((kind, counts[kind]))
    return found


class _Effects:
    """Counts effects, and ends the process behind the wanted one."""

    def __init__(self, file: Path, behind: list[Any] | None) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._behind = behind
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, kind: str, topic: str = "") -> None:
        with self._lock:
            self._counts[kind] += 1
            os.write(self._file, json.dumps([kind, topic]).encode() + b"\n")
            if [kind, self._counts[kind]] == self._behind:
                os.kill(os.getpid(), signal.SIGKILL)

    def of(self, kind: str | None, act: Callable[[], Any], topic: str = "") -> Any:
        """Act, then note it; a failure may have left a trace too. Without a kind it only acts."""
        if kind is None:
            return act()
        try:
            result = act()
        except (sqlite3.Error, OSError) as error:
            if not isinstance(error, BlockingIOError):
                self.note(f"{kind} failed", topic)
            raise
        self.note(kind, topic)
        return result


def main() -> int:
    """Run the command."""
    settings = json.loads(os.environ[_SETTINGS])
    effects = _Effects(Path(settings["effects"]), settings["behind"])
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # it would send beside Python's sockets
    _watch_sqlite(effects)
    _watch_sockets(effects)
    for name in ("ftruncate", "posix_fallocate"):
        _watch(os, name, lambda name, _: f"reserve: {name}", effects)
    if settings["bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (settings["bytes"], resource.RLIM_INFINITY))
    sys.exit(importlib.import_module(settings["command"]).main())


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> Any:
        topic = next((value for value in parameters if isinstance(value, str) and value.startswith("in/")), "")
        return _Connection.effects.of(_kind_of(sql), functools.partial(super().execute, sql, parameters), topic)

    def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
        listed = list(rows)
        return _Connection.effects.of(
            _kind_of(sql) if listed else None, functools.partial(super().executemany, sql, listed)
        )


class _Connection(sqlite3.Connection):
    effects: ClassVar[_Effects]

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any]) -> Any:
        return self.cursor().executemany(sql, rows)

    def close(self) -> None:
        self.effects.of("SQLite: close", super().close)


def _watch_sqlite(effects: _Effects) -> None:
    _Connection.effects, connect = effects, sqlite3.connect
    sqlite3.connect = lambda *arguments, **keywords: connect(*arguments, **{"factory": _Connection} | keywords)


def _kind_of(sql: str) -> str | None:
    """Return what a statement is as a point, None where it only reads."""
    words = sql.split()
    if words[0] == "PRAGMA":
        is_write = words[1].partition("(")[0] not in _LOCAL and {"=", "("} & set(sql)
        return f"SQLite: {sql}" if is_write else None
    return f"SQLite: {' '.join(words[:3])}" if words[0] in _WRITES else None


def _watch_sockets(effects: _Effects) -> None:
    def kind(_: str, arguments: tuple[Any, ...]) -> str | None:
        sock, data = arguments[:2]
        first = bytes(data[0] if isinstance(data, list) else data)[:1]
        if sock.family == socket.AF_UNIX:
            return None if first == b"\0" and len(data) == 1 else "bridge: sent"  # asyncio wakes its loop with a zero
        return f"MQTT: {_PACKETS[first[0]]}" if first and first[0] in _PACKETS else None

    for name in ("send", "sendall", "sendmsg"):
        _watch(socket.socket, name, kind, effects)
    watched: Any = socket.socket.sendmsg

    def sendmsg(sock: socket.socket, parts: Iterable[Any], *more: Any) -> Any:  # asyncio hands over an iterator
        return watched(sock, list(parts), *more)

    socket.socket.sendmsg = sendmsg  # type: ignore[assignment,method-assign]


def _watch(owner: Any, name: str, kind_of: Callable[[str, tuple[Any, ...]], str | None], effects: _Effects) -> None:
    act = getattr(owner, name)

    def watched(*arguments: Any, **keywords: Any) -> Any:
        return effects.of(kind_of(name, arguments), functools.partial(act, *arguments, **keywords))

    setattr(owner, name, watched)
