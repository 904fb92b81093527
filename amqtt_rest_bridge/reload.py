"""Route files are loaded at the start, and again when they change. A process of its own parses them.

Parsing takes 0.5 ms a line. On a thread it would hold the interpreter lock and delay every client. So a short-lived
process runs `lot.loader`, and the loop only takes the result.

`bridge` loads the first routes (`load_first_in_child`) and has a `Reloader` for later changes. With `processes: 0` the
first routes are loaded in the broker's own process (`load_first`).
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
"""The states of files at one time. A load is due when a later look finds other states."""

_TRIAL_SECONDS: Final = 10
_LOOKS: Final = Backoff(longest=16)  # how many looks until a reload is tried again that has failed for a passing reason


@dataclass(frozen=True, slots=True)
class LoadedRoutes:
    """Loaded routes, with what a reload needs to find out which files have changed since.

    `parsed` are the texts, as `ParsedTexts.dump` writes them. `route_files` are the states of the route files before
    they were read, `referenced` those of other files that the routes refer to.
    """

    routes: tuple[Route, ...]
    parsed: bytes
    route_files: Fingerprint
    referenced: Fingerprint


def load_first(settings: Settings) -> LoadedRoutes:
    """Load the route files of checked settings in this process, and log every fault; blocks.

    Raises:
        RouteFilesError: A route file has an error.
        ConfigurationError: A file cannot be read, or a route cannot be run.
    """
    from amqtt_rest_bridge.lot import loader, sources  # here, to save their memory in a worker
    from amqtt_rest_bridge.lot.evaluation import Environment
    from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts

    paths, parsed = settings.route_paths, ParsedTexts()
    route_files = fingerprint(paths)
    texts = sources.read(paths, settings.optional_paths)
    loaded = loader.load(texts, Environment(os.environ, Path(settings.secrets_dir)), parsed)
    routes = usable_routes(loaded, settings)
    check_routes(routes, settings)
    return LoadedRoutes(routes, parsed.dump(), route_files, loaded.files)


async def load_first_in_child(settings: Settings) -> LoadedRoutes:
    """Do what `load_first` does, but parse the files in a process of its own."""
    route_files = await asyncio.to_thread(fingerprint, settings.route_paths)
    loader = SubprocessLoader(settings)
    loaded = await loader.load()
    routes = usable_routes(loaded, settings)
    await asyncio.to_thread(check_routes, routes, settings)
    return LoadedRoutes(routes, loader.parsed, route_files, loaded.files)


class SubprocessLoader:
    """Loads route files. A text that the last load has parsed is not parsed again.

    Args:
        settings: Name the files and folders.
        parsed: Texts that were parsed before, as `ParsedTexts.dump` writes them.
    """

    def __init__(self, settings: Settings, parsed: bytes = b"") -> None:
        wanted = {"paths": settings.route_paths, "may_be_empty": settings.optional_paths}
        self._argument = json.dumps(wanted | {"secrets_dir": settings.secrets_dir})
        self.parsed = parsed
        """The texts that the last load has parsed."""

    async def load(self, replacements: Mapping[str, str | None] | None = None) -> LoadResult:
        """Load the files with the present variables and secrets.

        `replacements` are texts to try in the place of files, see `sources.read`. With them at most `MOST_FAULTS`
        faults are returned.

        Raises:
            ConfigurationError: The process failed; the message is the last line of its stderr.
        """
        status, output, errors = await run_loader(self._argument, pickle.dumps((replacements, self.parsed)))
        if status:
            reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise ConfigurationError(reason or "the loader failed")
        result: LoadResult
        result, self.parsed = pickle.loads(output)  # noqa: S301  # our own process
        return result


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
        if running.returncode is None:  # the caller was cancelled
            running.kill()
            await running.communicate()  # asyncio warns of pipes that outlive their loop
    return running.returncode or 0, output, errors


def usable_routes(loaded: LoadResult, settings: Settings) -> tuple[Route, ...]:
    """Log every fault and return the routes.

    Raises:
        RouteFilesError: There is an error among the faults. A setting that a route needs and that is missing is an
            error: the spool for a lossless route, the certificate for a route with USE_SSL and server events.
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
    """Looks at the route files again and again, and hands their routes to `use` when a file has changed.

    A program that writes a file in place leaves it empty or cut off for a moment; to read it then would remove its
    routes. So after a file has become shorter, or has gone, the files are read only when two looks in a row have found
    them the same. Files that change while they are read are read again after the next look.

    If a reload fails because of the contents of the files, the next one is when they change. If it fails for another
    reason (a port is taken, descriptors are used up, a file cannot be read), it is tried again after 1, 2, 4 ... 16
    looks.

    Args:
        settings: Name the files and folders.
        use: Awaited on the loop with what was loaded; raises `BridgeError` if that cannot be used.
        first: What was loaded at the start, so that a reload parses only changed files.
        report: Called on the loop after each reload, with its failure, or None if it succeeded.
    """

    def __init__(
        self,
        settings: Settings,
        use: Callable[[LoadResult], Awaitable[None]],
        first: LoadedRoutes,
        report: Callable[[ReloadFailure | None], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._paths = settings.route_paths
        self._loader = SubprocessLoader(settings, first.parsed)
        self._turn = asyncio.Lock()  # one load at a time, so that an older one is never used after a newer one
        self._use = use
        self._report = report
        self._routes = first.routes  # in use
        # The states of files before the last load, successful or not.
        self._referenced = first.referenced
        self._all_files = first.route_files | first.referenced
        self._asked = asyncio.Event()
        self._watches = False  # looks are made without being asked
        self._has_ended = False
        self._failures = 0  # in a row, for reasons that may pass
        self._looks_left = 0.0  # until the next try after such a failure
        self._logged_reason: str | None = None  # why the last try failed
        self._logged_faults: tuple[Fault, ...] = ()  # of the last try

    async def run(self, seconds: float) -> None:
        """Reload on changes, found every `seconds` (0: never), and on request, until cancelled."""
        self._watches = seconds > 0
        look: Fingerprint = frozenset()
        while True:
            is_asked = await woken(self._asked, seconds or None)
            before = look
            try:
                look = await asyncio.to_thread(fingerprint, self._paths, self._referenced)
            except OSError as error:  # a folder was removed during the look
                if str(error) != self._logged_reason:
                    log.info("route files could not be looked at: %s", error)
                self._logged_reason = str(error)
                continue
            has_changed = look != self._all_files
            if has_changed and not is_asked and look != before and self._lacks_content(look):
                continue  # wait for a second look that finds the same
            if has_changed or is_asked:
                self._failures, self._logged_reason, self._logged_faults = 0, None, ()
            elif not self._is_retry_due():
                continue
            try:
                await self.reload(None if is_asked else look)
            except _FilesChangedError:
                log.info("route files changed while they were read: they are read again")

    def _lacks_content(self, look: Fingerprint) -> bool:
        """Return whether a file is shorter than at the last load, or gone: perhaps it is being written."""
        sizes = {path: size for path, size, *_ in look}
        return any(sizes.get(path, -1) < size for path, size, *_ in self._all_files)

    def _is_retry_due(self) -> bool:
        """Count a look, and return whether a reload that has failed is to be tried again now."""
        self._looks_left -= 1
        return self._failures > 0 and self._looks_left <= 0

    def ask(self) -> None:
        """Reload soon, even if no file has changed (SIGHUP); on the loop."""
        self._asked.set()

    async def reload(self, look: Fingerprint | None = None) -> ReloadFailure | None:
        """Load the files now and use them. A failure changes nothing; it is logged and returned.

        `look` is how `run` has found the files: if they have changed since, `_FilesChangedError` is raised.
        """
        async with self._turn:
            failure = await self._load_and_use(look)
        if self._has_ended:
            return ReloadFailure(time.time(), 0, "the bridge stops")
        self._report(failure)
        return failure

    async def _load_and_use(self, look: Fingerprint | None) -> ReloadFailure | None:
        """Load and use the files; return why that failed."""
        try:
            before = self._referenced
            self._all_files = await asyncio.to_thread(fingerprint, self._paths, before) if look is None else look
            loaded = await self._loader.load()
            if look is not None and look != await asyncio.to_thread(fingerprint, self._paths, before):
                raise _FilesChangedError  # noqa: TRY301  # for `run`
            self._referenced = loaded.files
            self._all_files = (self._all_files - before) | loaded.files
            await asyncio.to_thread(check_routes, loaded.routes, self._settings)
            logged, self._logged_faults = self._logged_faults, loaded.faults
            if loaded.faults == logged and not loaded.has_errors:
                loaded = replace(loaded, faults=())  # an earlier try has logged these warnings
            if not self._has_ended:
                await self._use(loaded)
                self._routes = loaded.routes
        except RouteFilesError as error:
            self._failures = 0
            log.error("reload failed, keeping the current routes: %d error(s) in the route files", len(error.faults))  # noqa: TRY400  # the faults have been logged
            first = " ".join(str(error.faults[0]).split())
            return ReloadFailure(time.time(), len(error.faults), first)
        except _FilesChangedError:
            raise
        except (BridgeError, OSError) as error:
            return self._passing_failure(str(error))
        except Exception as error:  # noqa: BLE001  # `_passing_failure` logs it
            return self._passing_failure(repr(error), error)
        self._failures = 0
        return None

    def _passing_failure(self, why: str, unexpected: Exception | None = None) -> ReloadFailure:
        """Count and return a failure that may pass by itself; log each reason once."""
        self._failures += 1
        self._looks_left = _LOOKS.delay(self._failures)
        if why != self._logged_reason:
            again = "it is retried" if self._watches else "SIGHUP retries it"
            log.error("reload failed, keeping the current routes: %s; %s", why, again, exc_info=unexpected)
        self._logged_reason = why
        return ReloadFailure(time.time(), 0, why)

    async def trial(self, replacements: Mapping[str, str | None]) -> LoadResult:
        """Load the files with other texts in the place of some, without using them; see `sources.read`.

        Raises:
            BridgeError: The files cannot be read, or the routes cannot be run.
            TimeoutError: It takes longer than ten seconds.
        """
        async with self._turn, asyncio.timeout(_TRIAL_SECONDS):
            loaded = await self._loader.load(replacements)
        await asyncio.to_thread(check_routes, loaded.routes, self._settings)
        return loaded

    @property
    def routes_in_use(self) -> LoadedRoutes:
        """Return the routes in use and what was read for them, for another reloader to begin with."""
        return LoadedRoutes(self._routes, self._loader.parsed, self._all_files, self._referenced)

    def end(self) -> None:
        """Use nothing from now on: new routes would open the ports again, which are closed."""
        self._has_ended = True


def fingerprint(paths: Sequence[str], referenced: Fingerprint = frozenset()) -> Fingerprint:
    """Describe the route files, and the files that they refer to, as they are now. Blocks while folders are listed."""
    found = {file_state(path) for path, *_ in referenced}
    for path in map(Path, paths):
        # A folder that cannot be listed has no files here: loading it reports why.
        files = find_route_files(path, []) if path.is_dir() else [path]
        for file in files:
            state = file_state(str(file))
            if state[1] >= 0:
                found.add(state)
    return frozenset(found)
