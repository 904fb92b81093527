"""Hot reload: notice changed route files and load them, never on the broker's loop and never in its interpreter.

Parsing computes for 0.1 ms a line; in a thread of the broker process it would take the interpreter lock from the loop
and every client would feel it. So a short-lived process parses, and the loop only takes the result.
"""

import asyncio
import json
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, RouteFilesError
from amqtt_rest_bridge.language.loader import LoadResult
from amqtt_rest_bridge.language.sources import find_route_files
from amqtt_rest_bridge.model import Route

log = logging.getLogger(__name__)

Fingerprint = frozenset[tuple[str, int, int, int]]


class Reloader:
    """Watch route files and hand each changed set to `apply`.

    Args:
        paths: Files and folders, as configured.
        secrets_dir: Where GET SECRET reads.
        apply: Called on the loop with what was loaded; raises `BridgeError` for what cannot be used.
        check: Called before on a thread; raises `BridgeError` for routes that no bridge process could run.
    """

    def __init__(
        self,
        paths: Sequence[str],
        secrets_dir: str,
        apply: Callable[[LoadResult], None],
        check: Callable[[Sequence[Route]], None],
    ) -> None:
        self._paths = paths
        self._secrets_dir = secrets_dir
        self._apply = apply
        self._check = check
        self._seen = fingerprint(paths)
        self._asked = asyncio.Event()
        self._listens = False

    async def run(self, seconds: float) -> None:
        """Look every `seconds` (0: never) and whenever asked, until cancelled."""
        while True:
            forced = await self._ask(seconds or None)
            try:
                seen = await asyncio.to_thread(fingerprint, self._paths)
            except OSError as error:  # a folder that is gone in the middle of the look
                log.info("route files could not be looked at: %s", error)
                continue
            if forced or seen != self._seen:
                self._seen = seen
                await self.reload()

    async def reload(self) -> None:
        """Load now; a set with errors, or one that cannot be used, changes nothing and is logged."""
        try:
            loaded = await load_apart(self._paths, self._secrets_dir)
            await asyncio.to_thread(self._check, loaded.routes)
            self._apply(loaded)
        except RouteFilesError as error:
            log.error("routes not reloaded, those in use go on: %d error(s) in the route files", len(error.faults))  # noqa: TRY400  # as below
        except BridgeError as error:
            log.error("routes not reloaded: %s", error)  # noqa: TRY400  # the reason is the whole story
        except Exception:
            log.exception("routes not reloaded")

    def ask(self) -> None:
        """Reload soon, whether or not a file changed (SIGHUP); on the loop."""
        self._asked.set()

    def listen_to_sighup(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reload on SIGHUP, where the loop runs on the main thread; elsewhere signals belong to somebody else."""
        try:
            loop.add_signal_handler(signal.SIGHUP, self.ask)
            self._listens = True
        except (RuntimeError, ValueError):
            log.debug("SIGHUP does not reload: this loop is not on the main thread")

    def stop_listening(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave SIGHUP to whoever had it."""
        if self._listens:
            loop.remove_signal_handler(signal.SIGHUP)
            self._listens = False

    async def _ask(self, seconds: float | None) -> bool:
        try:
            await asyncio.wait_for(self._asked.wait(), seconds)
        except TimeoutError:
            return False
        self._asked.clear()
        return True


def fingerprint(paths: Sequence[str]) -> Fingerprint:
    """Describe the route files as they are: path, size, time of change, inode. Blocks for a look at every folder."""
    found: set[tuple[str, int, int, int]] = set()
    for path in map(Path, paths):
        files = find_route_files(path, _no_listing) if path.is_dir() else [path]
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue
            found.add((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return frozenset(found)


def _no_listing(_error: OSError) -> None:
    """Leave out a folder that cannot be listed: loading it reports why."""


async def load_apart(paths: Sequence[str], secrets_dir: str) -> LoadResult:
    """Load route files in a process of their own.

    Raises:
        ConfigurationError: The process failed; the message is the end of what it said.
    """
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "amqtt_rest_bridge.language.apart",
        json.dumps({"paths": list(paths), "secrets_dir": secrets_dir}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
    )
    try:
        output, errors = await running.communicate()
    finally:
        if running.returncode is None:  # the broker stops
            running.kill()
    if running.returncode:
        raise ConfigurationError(errors.decode(errors="replace").strip().rpartition("\n")[2] or "the loader failed")
    result: LoadResult = pickle.loads(output)  # noqa: S301  # our own process
    return result
