"""Route files are loaded at the start, and again when they change. A process of its own parses them.

Parsing takes 0.5 ms a line. On a thread it would hold the interpreter lock and delay every client. So a short-lived
process runs `lot.loader`, and the loop only takes the result.

`bridge` loads the first routes (`load_first_apart`) and keeps a `Reloader`; `rest-bridge serve --check` and the plugin
load them in their own process (`load_first`).
"""

import asyncio
import json
import logging
import os
import pickle
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.child_process import own_code
from amqtt_rest_bridge.engine.requests import RequestBuilder
from amqtt_rest_bridge.engine.status_reporter import ReloadFailure
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, Fault, RouteFilesError, Severity
from amqtt_rest_bridge.http.client import client_for, tls_of
from amqtt_rest_bridge.http.tls import TlsOptions, check_files
from amqtt_rest_bridge.lot.model import LoadResult, Route
from amqtt_rest_bridge.lot.sources import find_route_files, in_order
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.system import FileState, file_state
from amqtt_rest_bridge.times import Backoff, woken

log = logging.getLogger(__name__)

Fingerprint = frozenset[FileState]

_TRIAL_SECONDS: Final = 10
_LOOKS: Final = Backoff(longest=16)  # in looks: between two tries of a reload that failed for a reason that may pass


@dataclass(frozen=True, slots=True)
class FirstLoad:
    """Loaded routes, the texts that were parsed for them, and the files as they were before they were read.

    `parsed` is as `ParsedTexts.dump` writes it. `seen` are the route files, `beside` files that the routes refer to.
    """

    routes: tuple[Route, ...]
    parsed: bytes
    seen: Fingerprint
    beside: Fingerprint


def load_first(settings: Settings) -> FirstLoad:
    """Load the route files of checked settings in this process, and log every fault; blocks.

    Raises:
        RouteFilesError: A route file has an error.
        ConfigurationError: A file cannot be read, or a route cannot be run.
    """
    from amqtt_rest_bridge.lot import loader, sources  # which a worker's own process has no memory for
    from amqtt_rest_bridge.lot.evaluation import Environment
    from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts

    paths, parsed = settings.route_paths, ParsedTexts()
    seen = fingerprint(paths)
    texts = sources.read(paths, settings.optional_paths)
    loaded = loader.load(texts, Environment(os.environ, Path(settings.secrets_dir)), parsed)
    routes = usable_routes(loaded, settings)
    check_routes(routes, settings)
    return FirstLoad(routes, parsed.dump(), seen, loaded.files)


async def load_first_apart(settings: Settings) -> FirstLoad:
    """Load the route files of a configuration in a process of its own; otherwise as `load_first`."""
    seen, apart = await asyncio.to_thread(fingerprint, settings.route_paths), SubprocessLoader(settings)
    loaded = await apart.load()
    routes = usable_routes(loaded, settings)
    await asyncio.to_thread(check_routes, routes, settings)
    return FirstLoad(routes, apart.parsed, seen, loaded.files)


async def run_loader(argument: str, texts: bytes) -> tuple[int, bytes, bytes]:
    """Run `lot.loader` in an interpreter of its own, which is killed if the caller is cancelled.

    Returns its status, and what it wrote to standard output and standard error.
    """
    command, environment = own_code("amqtt_rest_bridge.lot.loader")
    running = await asyncio.create_subprocess_exec(
        *command,
        argument,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        output, errors = await running.communicate(texts)
    finally:
        if running.returncode is None:  # the broker stops
            running.kill()
            await running.communicate()  # asyncio warns of pipes that outlive their loop
    return running.returncode or 0, output, errors


class SubprocessLoader:
    """Loads route files; a text that was there the last time is not parsed again.

    Args:
        settings: Those of the configuration, of which some say what is loaded.
        parsed: Texts that were parsed before, as `ParsedTexts.dump` writes them.
    """

    def __init__(self, settings: Settings, parsed: bytes = b"") -> None:
        wanted = {"paths": settings.route_paths, "may_be_empty": settings.optional_paths}
        self._argument = json.dumps(wanted | {"secrets_dir": settings.secrets_dir})
        self.parsed = parsed
        """The texts that were loaded last."""

    async def load(self, instead: Mapping[str, str | None] | None = None) -> LoadResult:
        """Load the files as they are now, with variables and secrets as they are now.

        `instead` are texts to try in the place of files, see `sources.read`: then there are at most `MOST_FAULTS`.

        Raises:
            ConfigurationError: The process failed; the message is the last line of its stderr.
        """
        status, output, errors = await run_loader(self._argument, pickle.dumps((instead, self.parsed)))
        if status:
            reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise ConfigurationError(reason or "the loader failed")
        result: LoadResult
        result, self.parsed = pickle.loads(output)  # noqa: S301  # our own process
        return result


def usable_routes(loaded: LoadResult, settings: Settings) -> tuple[Route, ...]:
    """Log every fault and return the routes.

    Raises:
        RouteFilesError: There is an error among the faults. A missing setting is one: the spool for a lossless route,
            the certificate for one with USE_SSL and server events.
    """
    needed = [fault for route in loaded.routes for fault in settings.faults_of(route)]
    faults = in_order([*loaded.faults, *needed])
    for fault in faults:
        log.log(fault.severity.level, "%s", fault)
    errors = tuple(fault for fault in faults if fault.severity is Severity.ERROR)
    if errors:
        raise RouteFilesError(errors)
    return loaded.routes


def check_routes(routes: Iterable[Route], settings: Settings) -> None:
    """Raise `ConfigurationError` for the first route that cannot run."""
    for route, error in routes_that_cannot_run(routes, settings):
        raise ConfigurationError(f"route {route.name}: {error}") from error


def routes_that_cannot_run(routes: Iterable[Route], settings: Settings) -> Iterator[tuple[Route, ConfigurationError]]:
    """Return the routes whose calls could not be sent, with the reason; reads each set of TLS files once."""
    largest, faults = int(settings.max_response_bytes), dict[TlsOptions, ConfigurationError | None]()
    for route in routes:
        config = route.config
        if not route.client_events:
            continue
        try:
            RequestBuilder(route, route.client_events[0], max_body_bytes=int(settings.max_body_bytes))
            for server in filter(None, (config.base_address, config.oauth2_token_url)):
                client_for(config, server, max_response_bytes=largest, environment=os.environ)
            tls = tls_of(config)
            if tls not in faults:
                faults[tls] = None
                try:
                    check_files(tls)
                except ConfigurationError as error:
                    faults[tls] = error
            if (fault := faults[tls]) is not None:
                raise fault
        except ConfigurationError as error:
            yield route, error


class _FilesChangedError(Exception):
    """The route files have changed since they were looked at, so they may have been read in part."""


class Reloader:
    """Watch route files and hand each changed set to `use`.

    A file that is written in place can be read while it is empty or cut off, which would remove its routes. So a file
    that is shorter than the one in use, or gone, counts once two looks in a row have found it the same, and files that
    change while they are read are read again after the next look.

    A reload that fails for the contents of the files waits until they change. One that fails for another reason (a port
    is taken, descriptors are used up, a file cannot be read) is tried again after 1, 2, 4 ... 16 looks.

    Args:
        settings: Those of the configuration.
        use: Awaited on the loop with what was loaded; raises `BridgeError` for what cannot be used.
        first: What was loaded at the start, so that a reload parses changed files alone.
        note: Called on the loop with the failure of each reload, None for one that succeeded.
    """

    def __init__(
        self,
        settings: Settings,
        use: Callable[[LoadResult], Awaitable[None]],
        first: FirstLoad,
        note: Callable[[ReloadFailure | None], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._paths = settings.route_paths
        self._loader = SubprocessLoader(settings, first.parsed)
        self._turn = asyncio.Lock()  # what was read earlier must not be used later
        self._use = use
        self._note = note
        self._routes = first.routes  # in use
        self._beside = first.beside  # files that the routes refer to, as they were at the last load
        self._read = first.seen | first.beside  # all files, as they were then
        self._asked = asyncio.Event()
        self._watches = self._has_ended = False
        self._failures = 0  # in a row, for reasons that may pass
        self._looks_left = 0.0  # until the next try after such a failure
        self._reported: str | None = None  # why the last try failed
        self._faults: tuple[Fault, ...] = ()  # that the last try logged

    async def run(self, seconds: float) -> None:
        """Reload on changes, found every `seconds` (0: never), and on request, until cancelled."""
        self._watches = seconds > 0
        look: Fingerprint = frozenset()
        while True:
            is_asked = await woken(self._asked, seconds or None)
            before = look
            try:
                look = await asyncio.to_thread(fingerprint, self._paths, self._beside)
            except OSError as error:  # a folder that is gone in the middle of the look
                if str(error) != self._reported:
                    log.info("route files could not be looked at: %s", error)
                self._reported = str(error)
                continue
            if is_asked or look != self._read:
                sizes = {path: size for path, size, *_ in look}
                is_less = any(sizes.get(path, -1) < size for path, size, *_ in self._read)  # a file is shorter, or gone
                if is_less and look != before and not is_asked:
                    continue
                self._failures, self._reported, self._faults = 0, None, ()
            else:
                self._looks_left -= 1
                if not self._failures or self._looks_left > 0:
                    continue
            try:
                await self.reload(None if is_asked else look)
            except _FilesChangedError:
                log.info("route files changed while they were read: they are read again")

    async def reload(self, look: Fingerprint | None = None) -> ReloadFailure | None:
        """Load the files now and use them. On a failure nothing changes; it is logged and returned.

        `look` is how `run` has found the files: if they have changed since, `_FilesChangedError` is raised.
        """
        async with self._turn:
            failure = await self._reload(look)
        if self._has_ended:
            return ReloadFailure(time.time(), 0, "the bridge stops")
        self._note(failure)
        return failure

    def end(self) -> None:
        """Use nothing from now on: new routes would open the ports again, which are closed."""
        self._has_ended = True

    async def trial(self, instead: Mapping[str, str | None]) -> LoadResult:
        """Load the files with other texts in the place of some, without using them; see `sources.read`.

        Raises:
            BridgeError: The files cannot be read, or the routes cannot be run.
            TimeoutError: It takes longer than ten seconds.
        """
        async with self._turn, asyncio.timeout(_TRIAL_SECONDS):
            loaded = await self._loader.load(instead)
        await asyncio.to_thread(check_routes, loaded.routes, self._settings)
        return loaded

    @property
    def used(self) -> FirstLoad:
        """Return the routes in use and what was read for them, for another reloader to begin with."""
        return FirstLoad(self._routes, self._loader.parsed, self._read, self._beside)

    async def _reload(self, look: Fingerprint | None) -> ReloadFailure | None:
        """Load and use the files; return why that failed."""
        try:
            beside = self._beside
            self._read = await asyncio.to_thread(fingerprint, self._paths, beside) if look is None else look
            loaded = await self._loader.load()
            if look is not None and look != await asyncio.to_thread(fingerprint, self._paths, beside):
                raise _FilesChangedError  # noqa: TRY301  # for `run`
            self._beside = loaded.files
            self._read = (self._read - beside) | loaded.files
            await asyncio.to_thread(check_routes, loaded.routes, self._settings)
            known, self._faults = self._faults, loaded.faults
            if loaded.faults == known and not loaded.has_errors:
                loaded = replace(loaded, faults=())  # an earlier try has logged these warnings
            if not self._has_ended:
                await self._use(loaded)
                self._routes = loaded.routes
        except RouteFilesError as error:
            self._failures = 0
            log.error("reload failed, keeping the current routes: %d error(s) in the route files", len(error.faults))  # noqa: TRY400  # as below
            first = " ".join(str(error.faults[0]).split())
            return ReloadFailure(time.time(), len(error.faults), first)
        except _FilesChangedError:
            raise
        except (BridgeError, OSError) as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001  # `_failed` logs it
            return self._failed(repr(error), error)
        self._failures = 0
        return None

    def _failed(self, why: str, unexpected: Exception | None = None) -> ReloadFailure:
        """Return a failure that may pass; log each reason once."""
        self._failures += 1
        self._looks_left = _LOOKS.delay(self._failures)
        if why != self._reported:
            again = "it is retried" if self._watches else "SIGHUP retries it"
            log.error("reload failed, keeping the current routes: %s; %s", why, again, exc_info=unexpected)
        self._reported = why
        return ReloadFailure(time.time(), 0, why)

    def ask(self) -> None:
        """Reload soon, whether or not a file changed (SIGHUP); on the loop."""
        self._asked.set()


def fingerprint(paths: Sequence[str], beside: Fingerprint = frozenset()) -> Fingerprint:
    """Describe the route files, and those beside them, as they are now. Blocks for a look at every folder."""
    found = {file_state(path) for path, *_ in beside}
    for path in map(Path, paths):
        # A folder that cannot be listed is left out: loading it reports why.
        files = find_route_files(path, []) if path.is_dir() else [path]
        for file in files:
            state = file_state(str(file))
            if state[1] >= 0:
                found.add(state)
    return frozenset(found)
