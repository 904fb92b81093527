"""Our commands in processes of their own, each forked from one that has imported them: ready in 20 ms, not in 500.

`multiprocessing`'s fork server is that one: a fresh interpreter without threads, started once for each pytest process.
What a start itself does (imports, `sitecustomize`, the installed scripts) is for the tests that run an interpreter.
"""

import asyncio
import functools
import gc
import importlib
import multiprocessing
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection, reduction
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, NoReturn, Self, TextIO

from amqtt_rest_bridge import reload
from amqtt_rest_bridge.child_process import ChildProcess
from amqtt_rest_bridge.lot.loader import load_files
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.reload import SubprocessLoader

REST_BRIDGE: Final = "amqtt_rest_bridge.__main__"
TEMPLATE_API: Final = "template_api.cli"
AMQTT: Final = "amqtt.scripts.broker_script"
_BRIDGE: Final = "amqtt_rest_bridge.plugin_bridge"
_LOADER: Final = "amqtt_rest_bridge.lot.loader"
_SETTLE: Final = "amqtt_rest_bridge.bridge.Program._freeze_garbage"
_CHILD: Final = "amqtt_rest_bridge.broker.bridge_child.ChildProcess"
_LOAD: Final = "amqtt_rest_bridge.reload.SubprocessLoader.load"

_IMPORTED: Final = [
    REST_BRIDGE, _BRIDGE, "amqtt_rest_bridge.admin.app", "amqtt_rest_bridge.plugin",
    "amqtt_rest_bridge.broker.service", "amqtt_rest_bridge.cli.serve",
    "amqtt_rest_bridge.cli.configuration", "amqtt_rest_bridge.cli.status", "amqtt_rest_bridge.cli.worker",
    "amqtt_rest_bridge.bridge", AMQTT, "amqtt.plugins.authentication", TEMPLATE_API, "template_api.app",
    "template_api.library.models", "template_api.plugin", "template_api.serving.service",
    # What these import when they run:
    "encodings.idna", "encodings.utf_8_sig", "rich.live", "rich.table",
    "sqlalchemy.dialects.sqlite", "typer._adapters",
    __name__, "tests.support.warm",
]  # fmt: skip
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_IMPORTED)
vars(sys.modules["__main__"]).pop("__file__", None)  # else each fork runs it: pytest's script, without xdist


class Forked:
    """A running command, with what tests use of `subprocess.Popen`.

    It loads changed route files on a thread, in a tenth of the processor time that an interpreter takes.

    Args:
        module: One of the modules above; its `main` is run.
        arguments: What follows the command's name.
        folder: Its working directory.
        environment: Its whole environment; by default that of the test.
        output: The file that takes what it writes, a terminal also what it reads; by default `stdout` and `stderr` are
            pipes.
        constants: What some names of modules are for it, by `module.NAME`: times that a test would have to wait out.
        bridges: How many of its first bridge processes are forked with it; it starts further ones as elsewhere.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], folder: Path, *,
        environment: Mapping[str, str] | None = None, output: IO[Any] | None = None,
        constants: Mapping[str, object] | None = None, bridges: int = 0,
    ) -> None:  # fmt: skip
        given = [output.fileno(), output.fileno()] if output is not None else []
        pipes = [] if output is not None else [os.pipe(), os.pipe()]
        ends = given or [writing for _, writing in pipes]
        self._process = _CONTEXT.Process(
            target=_run,
            args=(
                module, list(arguments), folder, dict(environment or os.environ), constants or {}, bridges,
                *map(_Sent, ends),
            ),
        )  # fmt: skip
        self._process.start()
        for _, writing in pipes:
            os.close(writing)
        self.stdout, self.stderr = ([_text(reading) for reading, _ in pipes] + [None, None])[:2]
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit status; below 0 for a signal."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it did not end"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to this process alone, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


def run(
    module: str, arguments: Sequence[str], folder: Path, *,
    environment: Mapping[str, str] | None = None, timeout: float = 60, constants: Mapping[str, object] | None = None,
) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """Run a command to its end and return what it wrote."""
    process = Forked(module, arguments, folder, environment=environment, constants=constants)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr, ThreadPoolExecutor(1) as reader:
        errors = reader.submit(process.stderr.read)
        output = process.stdout.read()
        return subprocess.CompletedProcess(arguments, process.wait(timeout), output, errors.result())


@functools.cache
def await_server() -> None:
    """Wait until the fork server has imported everything, so that no start has to; once."""
    process = _CONTEXT.Process(target=int)
    process.start()
    process.join()


class ForkedBridge:
    """A bridge process that owns this end of a socket pair; `child.spawn_bridge` starts an interpreter for it."""

    def __init__(self, sock: socket.socket) -> None:
        given = map(_Sent, [sock.fileno(), 1, 2])
        self._process = _CONTEXT.Process(target=_run_bridge, args=(Path.cwd(), dict(os.environ), *given))
        self._process.start()
        self._lock = threading.Lock()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def end(self, seconds: float) -> int:
        """Wait so long for its end, then kill it, and return its status; blocks."""
        if not connection.wait([self._process.sentinel], seconds):
            self._process.kill()
        connection.wait([self._process.sentinel])
        with self._lock:
            return self._process.exitcode or 0


async def load_on_a_thread(self: SubprocessLoader, instead: Mapping[str, str | None] | None = None) -> LoadResult:
    """Load route files as `SubprocessLoader.load`, without a process."""
    result, self.parsed = await asyncio.to_thread(load_files, self._argument, self.parsed, instead)
    return result


INTERPRETER_LOADER: Final = reload.run_loader
"""Starts an interpreter, which takes half a second."""


async def run_loader(argument: str, texts: bytes) -> tuple[int, bytes, bytes]:
    """Load route files in a forked process."""
    return await asyncio.to_thread(_run_loader, argument, texts)


reload.run_loader = run_loader


def _run_loader(argument: str, texts: bytes) -> tuple[int, bytes, bytes]:
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(texts)
        given.seek(0)
        files = [_Sent(file.fileno()) for file in (given, output, errors)]
        process = _CONTEXT.Process(target=_be_loader, args=(argument, Path.cwd(), dict(os.environ), *files))
        process.start()
        process.join()
        output.seek(0)
        errors.seek(0)
        return process.exitcode or 0, output.read(), errors.read()


class ForkedApi:
    """The `ChildProcess` of the template API, forked; what its own start does is for other tests."""

    def __init__(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str],
        *, constants: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        assert module == "template_api"
        numbers = set(map(str, descriptors))
        given = [_Sent(int(argument)) if argument in numbers else argument for argument in arguments]
        variables = {**os.environ, **environment}
        self._process = _CONTEXT.Process(
            target=_run_api, args=(given, Path.cwd(), variables, constants or {}, _Sent(1), _Sent(2))
        )
        self._process.start()
        self._lock = threading.Lock()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end and return its status; None when it did not end in time. Any thread."""
        connection.wait([self._process.sentinel], seconds)
        with self._lock:
            return self._process.exitcode

    def end(self, seconds: float) -> int | None:
        """Wait so long for its end, then kill it, and return its status."""
        if self.wait(seconds) is None:
            self._process.kill()
        return self.wait()


class _Sent:
    """A descriptor among the arguments of a process, which gets a duplicate."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any]]:
        return _received, (reduction.DupFd(self._descriptor),)


def _received(duplicate: Any) -> int:
    return int(duplicate.detach())


def _text(descriptor: int) -> TextIO:
    return os.fdopen(descriptor, encoding="utf-8", errors="backslashreplace")


def _run(
    module: str, arguments: list[str], folder: Path, environment: dict[str, str], constants: Mapping[str, object],
    bridges: int, out: int, err: int,
) -> None:  # fmt: skip
    _enter(folder, environment, out, err)
    sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX")
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    waiting = [_WaitingBridge() for _ in range(bridges)]

    def child(module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> "ChildProcess | _WaitingBridge":
        return waiting.pop(0).use(arguments, descriptors) if waiting else ChildProcess(module, arguments, descriptors)

    _replace({_CHILD: child, _LOAD: load_on_a_thread, **constants})
    sys.argv = [module, *arguments]
    sys.exit(importlib.import_module(module).main())


def _replace(constants: Mapping[str, object]) -> None:
    for name, value in constants.items():
        place, _, constant = name.rpartition(".")
        owner = pkgutil.resolve_name(place)
        assert hasattr(owner, constant), name
        setattr(owner, constant, value)


def _be_loader(argument: str, folder: Path, environment: dict[str, str], given: int, out: int, err: int) -> None:
    _enter(folder, environment, out, err)
    sys.argv, sys.stdin = [_LOADER, argument], os.fdopen(given)
    sys.exit(importlib.import_module(_LOADER).main())


def _run_api(
    arguments: list[str | int], folder: Path, environment: dict[str, str], constants: Mapping[str, object],
    out: int, err: int,
) -> None:  # fmt: skip
    _enter(folder, environment, out, err)
    _replace(constants)
    sys.argv = [TEMPLATE_API, *map(str, arguments)]
    sys.exit(importlib.import_module(TEMPLATE_API).main())


class _WaitingBridge:
    """A bridge process that waits to be used in place of a `ChildProcess`; forked while there is one thread."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            self._sock.close()
            _wait_for_link(theirs)
        theirs.close()

    def use(self, arguments: Sequence[str], descriptors: Sequence[int]) -> Self:
        """Hand it its link."""
        with self._sock:
            socket.send_fds(self._sock, [b"use"], descriptors)
        return self

    def end(self, seconds: float) -> int:
        """Wait so long for its end, then kill it, and return its status; blocks."""
        ended = os.pidfd_open(self.pid)
        if not select.select([ended], [], [], seconds)[0]:
            os.kill(self.pid, signal.SIGKILL)
        os.close(ended)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _wait_for_link(sock: socket.socket) -> NoReturn:
    status = 1
    try:
        _, links, _, _ = socket.recv_fds(sock, 16, 1)
        sock.close()
        if links:
            _be_bridge(links[0])
        status = 0
    except BaseException:  # noqa: BLE001  # as at the end of an interpreter
        traceback.print_exc()
    finally:
        os._exit(status)


def _run_bridge(folder: Path, environment: dict[str, str], control: int, out: int, err: int) -> None:
    _enter(folder, environment, out, err)
    _be_bridge(control)


def _be_bridge(control: int) -> None:
    # A round of the garbage collector would copy all that is shared.
    _replace({_SETTLE: lambda _: gc.freeze(), _LOAD: load_on_a_thread})
    sys.argv = [_BRIDGE, str(control)]
    importlib.import_module(_BRIDGE).main()


def _enter(folder: Path, environment: dict[str, str], out: int, err: int) -> None:
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    if os.isatty(1):
        os.dup2(1, 0)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
