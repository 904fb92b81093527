"""Executes commands, which change routes by files in a folder, or report on them. Event loop only.

`CommandQueue` brings one command at a time. A definition is first loaded on trial, together with all other route
files. If it has no error there, it is written to a file. It is reported as added once a reload has loaded it.
"""

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from amqtt_rest_bridge.engine.status_reporter import ReloadFailure
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, FaultCode, Severity, on_one_line
from amqtt_rest_bridge.lot.model import LoadResult, Route
from amqtt_rest_bridge.lot.reference import template
from amqtt_rest_bridge.lot.settings_table import IGNORED_BLOCK, ROUTE_TYPE
from amqtt_rest_bridge.tools.commands.command import (
    CommandAnswer,
    MqttCommand,
    failure_answer,
    is_name_of_file,
    read_definition,
    refusal_answer,
    subject_of,
)

log = logging.getLogger(__name__)

_STAGED: Final = ".command-{pid}.new"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MODE: Final = 0o640  # a definition may hold credentials
_OTHERS: Final = "models, actions, rules, scripts, panels, projects or users"
_ALWAYS: Final = {
    "ListTemplates": CommandAnswer(ROUTE_TYPE, data=[ROUTE_TYPE]),
    "GetPendingStatus": CommandAnswer("Nothing waits: routes are loaded whole, or not at all."),
    "ListProjects": CommandAnswer("No projects: this broker runs routes only.", data=[]),
}
_NOTHING_ELSE: Final = f"this broker runs routes of type {ROUTE_TYPE} only: it has no {_OTHERS}"


class RunsRoutes(Protocol):
    """The program that runs the routes, as far as commands need it."""

    @property
    def by_name(self) -> Mapping[str, Route]:
        """Return the present routes."""

    async def reload(self) -> ReloadFailure | None:
        """Read the route files again now. After a failure, which is logged and returned, the present routes stay."""

    async def trial(self, instead: Mapping[str, str | None]) -> LoadResult:
        """Return what a reload would load with some texts in the place of files; see `Reloader.trial`."""

    def report(self, route: str) -> None:
        """Publish the status of a present route now, if statuses are published."""

    def status(self, route: str) -> dict[str, Any]:
        """Return the status of a present route as it is now."""
        ...


class RefusedError(BridgeError):
    """A command cannot be executed; nothing has changed."""


class FolderError(BridgeError):
    """The path of a route's file is taken by something that no command wrote."""


class RouteFolder:
    """The folder of the files that commands write, one for each route; every method may raise `OSError`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def prepare(self) -> None:
        """Make the folder if it is missing; raises `ConfigurationError` if there can be none."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigurationError(f"the setting coreflux cannot keep routes in {self._path}: {why}") from error

    def path_of(self, name: str) -> str:
        """Return the path of a route's file as the loader names it; nothing is read."""
        return str(self._path / f"{name}.lot")

    def is_path_of(self, name: str, path: str) -> bool:
        """Return whether a path is that of a route's file, by whatever links."""
        return os.path.realpath(path) == f"{os.path.realpath(self._path)}/{name}.lot"

    def read(self, name: str) -> str | None:
        """Return the text of a route's file, None if there is none; raises `FolderError` for a link or a folder."""
        path = Path(self.path_of(name))
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise FolderError(f"{path} is not a regular file: no command wrote it, and none changes it")
            return path.read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None

    def change(self, texts: Mapping[str, str | None]) -> None:
        """Write the files of routes, or remove them (None). After an `OSError` some of them may have changed."""
        for name, text in texts.items():
            path = Path(self.path_of(name))
            if text is None:
                path.unlink(missing_ok=True)
            else:
                self._write(path, text.encode("utf-8", "surrogateescape"))
        with contextlib.suppress(FileNotFoundError):  # so that a power cut undoes no rename or removal
            folder = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

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


class Execution:
    """Executes commands, one at a time.

    Args:
        service: Loads and runs the routes.
        folder: Keeps those that commands add.
    """

    def __init__(self, service: RunsRoutes, folder: RouteFolder) -> None:
        self._service = service
        self._folder = folder

    async def answer(self, command: MqttCommand) -> CommandAnswer:
        """Execute a command and return its answer; a failure is an answer too."""
        subject = subject_of(command.arguments)
        if command.fault is not None:
            return failure_answer(command, subject, command.fault)
        try:
            return await self._execute(command)
        except RefusedError as error:
            return failure_answer(command, subject, str(error))
        except TimeoutError:
            return failure_answer(command, subject, "it takes longer than ten seconds to read this")
        except (BridgeError, OSError) as error:
            return failure_answer(command, subject, getattr(error, "strerror", None) or str(error))
        except Exception as error:
            log.exception("the command %s failed", command.word)
            return failure_answer(command, subject, f"{type(error).__name__}, which the log explains")

    async def _execute(self, command: MqttCommand) -> CommandAnswer:
        """Execute a command; raises `RefusedError` or what its steps raise."""
        match command.name:
            case "AddRoute":
                return await self._add(command)
            case "RemoveRoute":
                return await self._remove(command)
            case "RemoveAllRoutes":
                names = await asyncio.to_thread(self._added_names)
                for name in names:
                    await asyncio.to_thread(self._is_added_file, name)
                if names:
                    await self._change(dict.fromkeys(names))
                return CommandAnswer("removed all routes successfully", data={"removed": names})
            case "LotDiagnostic":
                kind, _, rest = command.arguments.strip().partition(" ")
                if kind.lower() != "route":
                    raise RefusedError(_NOTHING_ELSE)
                route = self._route_named(rest)
                loaded = await self._service.trial({})
                found = [str(one) for one in loaded.faults if one.path == route.path]
                status = self._service.status(route.name)
                data = {"place": _place(route), "definition": route.definition, "faults": found, "status": status}
                message = "\n".join([f"Route '{route.name}': {status['health']}, {status['connection']}.", *found])
                return CommandAnswer(message, route=route.name, data=data)
            case "CheckRouteConnection":  # by its last calls: this command sends no request
                route = self._route_named(command.arguments)
                status = self._service.status(route.name)
                return CommandAnswer(f"Route '{route.name}': {status['connection']}.", route=route.name, data=status)
            case "RouteCode" if command.arguments.strip().upper() == ROUTE_TYPE:
                return CommandAnswer(template(), data=template())
            case name if name in _ALWAYS:
                return _ALWAYS[name]
        return await self._execute_list(command)

    async def _execute_list(self, command: MqttCommand) -> CommandAnswer:
        """Execute a command that lists something."""
        statuses = map(self._service.status, self._routes)
        match command.name:
            case "ListRoutes":
                rows = _rows_of(statuses, "name", "type", "connection", "health")
                return _listed("route", rows, "{name} ({type}): {connection}, {health}")
            case "ConnectionStatus":
                return _listed("route", _rows_of(statuses, "name", "connection", "last_error"), "{name}: {connection}")
            case "ListEntities":
                own = set(await asyncio.to_thread(self._added_names))
                origins = {name: "adhoc" if name in own else _place(route) for name, route in self._routes.items()}
                rows = [{"name": name, "type": "Route", "origin": origin} for name, origin in origins.items()]
                return _listed("route", rows, "{name}: {origin}")
            case "ListEnv" | "ListSecrets" as name:
                loaded = await self._service.trial({})
                noun, names = ("variable", loaded.variables) if name == "ListEnv" else ("secret", loaded.secrets)
                return _listed(noun, [{"name": one} for one in sorted(names)], "{name}")
        raise RefusedError(_NOTHING_ELSE)

    async def _add(self, command: MqttCommand) -> CommandAnswer:
        """Add a route, or replace one that a command has added."""
        definition = read_definition(command.arguments)
        if definition.fault is not None:
            raise RefusedError(definition.fault)
        name = definition.name
        if name is not None:
            await asyncio.to_thread(self._is_added_file, name)
        place = self._folder.path_of(name or "command")
        loaded = await self._service.trial({place: definition.text})
        faults = [one for one in loaded.faults if one.path == place]
        # A definition of which a reload would skip a part is refused; only MQTT_CONFIG may be skipped.
        left_out = [
            one for one in faults if one.code is FaultCode.SKIPPED and not one.message.startswith(IGNORED_BLOCK)
        ]
        if refused := [one for one in faults if one.severity is Severity.ERROR or one in left_out]:
            return refusal_answer(refused, definition.text, definition.before)
        # An error in any other file keeps all routes from being loaded.
        if (error := next((one for one in loaded.faults if one.severity is Severity.ERROR), None)) is not None:
            raise RefusedError(f"another file has an error, so no routes can be loaded: {str(error).splitlines()[0]}")
        if name is None or [route.name for route in loaded.routes if route.path == place] != [name]:
            raise RefusedError("one command adds one route")
        await self._change({name: definition.text})
        warnings = [str(one).partition(": ")[2] for one in faults]
        data = {"warnings": warnings} if warnings else {}
        return CommandAnswer(f"Route '{name}' added successfully.", route=name, data=data)

    async def _remove(self, command: MqttCommand) -> CommandAnswer:
        """Remove a route that a command has added."""
        name = command.arguments.strip()
        if len(name.split()) != 1:
            raise RefusedError("write -removeRoute and the name of a route")
        route = self._routes.get(name)
        is_file = is_name_of_file(name) and await asyncio.to_thread(self._is_added_file, name)
        if route is None and not is_file:
            shown = on_one_line(name)
            return CommandAnswer(f"Route '{shown}' not found.", False, shown)
        if route is not None and not self._folder.is_path_of(name, route.path):
            raise RefusedError(f"it is defined in {_place(route)}, which no command changes")
        await self._change({name: None})
        return CommandAnswer(f"Route '{name}' removed successfully.", route=name)

    async def _change(self, texts: Mapping[str, str | None]) -> None:
        """Change files and reload; restore the files if that fails."""
        before = {name: await asyncio.to_thread(self._folder.read, name) for name in texts}
        try:
            await asyncio.to_thread(self._folder.change, texts)
            failed = await self._service.reload()
        except OSError:
            await self._restore(before)
            raise
        if failed is not None:
            await self._restore(before)
            await self._service.reload()
            raise RefusedError(f"the routes cannot be loaded: {failed.message}")

    async def _restore(self, texts: Mapping[str, str | None]) -> None:
        """Write the earlier texts of files; a failure is logged."""

        def restore() -> None:
            changed = {name: text for name, text in texts.items() if self._folder.read(name) != text}
            self._folder.change(changed)

        try:
            await asyncio.to_thread(restore)
        except (BridgeError, OSError):
            log.exception("route files of the setting coreflux could not be restored: %s", ", ".join(texts))

    def _is_added_file(self, name: str) -> bool:
        """Return whether a command wrote the file of a route; False without a file. Blocks.

        Raises:
            RefusedError: There is a file, which no command wrote, or which is that of another route.
            FolderError: A link or a folder has its path.
        """
        text = self._folder.read(name)
        if text is None:
            return False
        for other in self._routes.values():
            if other.name != name and self._folder.is_path_of(name, other.path):
                raise RefusedError(f"the file of {name} would be that of route {other.name}, {_place(other)}")
        if read_definition(text).name != name:
            raise RefusedError(f"{self._folder.path_of(name)} does not begin with this route: no command wrote it")
        return True

    def _added_names(self) -> list[str]:
        """Return the names of the present routes that commands have added. Blocks."""
        return [name for name, route in self._routes.items() if self._folder.is_path_of(name, route.path)]

    @property
    def _routes(self) -> Mapping[str, Route]:
        return self._service.by_name

    def _route_named(self, arguments: str) -> Route:
        name = arguments.strip()
        if name not in self._routes:
            raise RefusedError(f"Route '{on_one_line(name)}' not found.")
        return self._routes[name]


def _rows_of(statuses: Iterable[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: status[name] for name in names} for status in statuses]


def _place(route: Route) -> str:
    return f"{on_one_line(route.path, 200)}:{route.position.line}:{route.position.column}"


def _listed(noun: str, rows: list[dict[str, Any]], line: str) -> CommandAnswer:
    count = f"{len(rows)} {noun}{'' if len(rows) == 1 else 's'}"
    lines = [f"{count}:" if rows else f"{count}.", *[line.format(**row) for row in rows]]
    return CommandAnswer("\n".join(lines), data=rows)
