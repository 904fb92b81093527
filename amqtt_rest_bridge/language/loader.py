"""Definitions to routes: each by itself, then what only all files together can tell. Gathers every fault of every file.

Pure but for reading secrets. It takes 0.5 ms for a line: it must not run on the broker's loop once the broker serves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from amqtt_rest_bridge.errors import Fault, FaultCode, Position, Severity, visible
from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.configs import read_config, read_route_config, warn_of_cleartext
from amqtt_rest_bridge.language.definitions import ROUTE_TYPE, ParsedTexts
from amqtt_rest_bridge.language.evaluation import BlockSettings, Environment
from amqtt_rest_bridge.language.events import read_event
from amqtt_rest_bridge.language.loops import PlacedEvent, loop_warnings
from amqtt_rest_bridge.language.parameters import BlockKind
from amqtt_rest_bridge.language.reading import Block, Definition
from amqtt_rest_bridge.language.sources import Report, Source, in_order
from amqtt_rest_bridge.language.writer import write_definition
from amqtt_rest_bridge.masking import Masker
from amqtt_rest_bridge.model import ClientEvent, RestApiConfig, Route, RouteConfig, ServerEvent
from amqtt_rest_bridge.system import FileState


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The routes without errors, in the order of their files, and all faults, sorted.

    `files` are those beside the route files that were read: when one of them changes, the routes do.
    """

    routes: tuple[Route, ...]
    faults: tuple[Fault, ...]
    files: frozenset[FileState] = frozenset()

    @property
    def has_errors(self) -> bool:
        """Return whether anything keeps a route from working."""
        return any(fault.severity is Severity.ERROR for fault in self.faults)


def load(sources: Iterable[Source], environment: Environment, parsed: ParsedTexts | None = None) -> LoadResult:
    """Read route definitions and check them, each by itself and together. Never raises for what a text holds.

    `environment` is what GET reads; texts that are in `parsed` are not parsed again.
    """
    loader = _Loader(environment, parsed or ParsedTexts())
    for source in sources:
        loader.read(source)
    loader.finish()
    return LoadResult(tuple(loader.routes), in_order(loader.faults), frozenset(loader.files))


def title_of(definition: Definition) -> str:
    """Return what a message calls a definition."""
    return f"route {definition.name}" if definition.name is not None else "this route"


class _Loader:
    """What is known over all files: routes by name, endpoints by port."""

    def __init__(self, environment: Environment, parsed: ParsedTexts) -> None:
        self.routes: list[Route] = []
        self.faults: list[Fault] = []
        self.files: set[FileState] = set()
        self._environment = environment
        self._parsed = parsed
        self._first: dict[tuple[str, object], tuple[str, Position]] = {}
        self._events: list[PlacedEvent] = []
        self._without_define: list[tuple[str, Position, str]] = []
        self._definitions = 0

    def read(self, source: Source) -> None:
        self.faults += source.faults
        report = Report(source.path, source.text)
        parsed = self._parsed.parse(source.text)
        self.faults += [replace(fault, path=source.path) for fault in parsed.faults]
        self._without_define += [(source.path, position, name) for position, name in parsed.without_define]
        self._definitions += len(parsed.definitions)
        for definition in parsed.definitions:
            before = report.errors
            route = self._read_definition(definition, report)
            if route is not None and report.errors == before and not definition.is_faulty:
                self.routes.append(route)
        self.faults += report.faults
        self.files |= report.files

    def finish(self) -> None:
        """Report what only all files together can tell."""
        severity = Severity.WARNING if self._definitions else Severity.ERROR
        for path, position, name in self._without_define:
            message = visible(f"ROUTE {name} is skipped: DEFINE is missing before it")
            end = Position(position.line, position.column + len("ROUTE"))
            hint = visible(f"write DEFINE ROUTE {name} WITH TYPE {ROUTE_TYPE}")
            self.faults.append(Fault(path, position, severity, message, hint, FaultCode.MISSING_KEYWORD, end))
        self.faults += loop_warnings(self._events)

    def _read_definition(self, definition: Definition, report: Report) -> Route | None:
        if definition.name is not None and (hint := self._first_place("route", definition.name, definition, report)):
            report.error(FaultCode.DUPLICATE, definition.offset, f"there are two routes {definition.name}", hint)
        route_config, shaping = RouteConfig(), None
        if definition.route_config is not None:
            shaping = BlockSettings(definition.route_config, report, self._environment)
            route_config = read_route_config(shaping)
        events = [BlockSettings(block, report, self._environment) for block in definition.events]
        if definition.config is None:
            if BlockKind.CONFIG not in definition.broken:
                hint = 'write ADD REST_API_CONFIG, and below it WITH ENABLE_CLIENT "true" or WITH ENABLE_SERVER "true"'
                report.error(
                    FaultCode.MISSING, definition.offset, f"{title_of(definition)} has no REST_API_CONFIG", hint
                )
            return None
        settings = BlockSettings(definition.config, report, self._environment)
        config, name = read_config(settings), definition.name or ""
        read = [(event, read_event(event, config, name)) for event in events]
        for of, event in read:
            if isinstance(event, ClientEvent):
                places = {topic: of.range(topic) for topic in ("DESTINATION_TOPIC", "ERROR_TOPIC")}
                title = f"{title_of(definition)}, event {event.name}"
                self._events.append(PlacedEvent(event, title, report.path, places))
            elif event is not None and "SERVER_PORT" not in settings.failed:
                self._check_endpoint(event, of, config.server_port)
        _warn_of_idleness(definition, settings, config, [event for _, event in read])
        warn_of_cleartext(settings, events)
        secrets: frozenset[str] = frozenset().union(settings.secrets, *(event.secrets for event in events))
        return Route(
            name=name,
            config=config,
            client_events=tuple(event for _, event in read if isinstance(event, ClientEvent)),
            server_events=tuple(event for _, event in read if isinstance(event, ServerEvent)),
            route_config=route_config,
            path=report.path,
            position=report.position(definition.offset),
            secrets=secrets,
            in_addresses=frozenset().union(settings.in_addresses, *(event.in_addresses for event in events)),
            definition=write_definition(name, settings, shaping, events, Masker(secrets)),
        )

    def _check_endpoint(self, event: ServerEvent, settings: BlockSettings, port: int) -> None:
        key = (port, event.method, forms.endpoint_shape(event.endpoint))
        if hint := self._first_place("endpoint", key, settings.block, settings.report):
            message = f"{event.method} {settings.texts['ENDPOINT'].shown} on port {port} is exposed twice"
            settings.report.error(FaultCode.DUPLICATE, settings.block.offset, message, hint)

    def _first_place(self, noun: str, key: object, at: Definition | Block, report: Report) -> str | None:
        """Return the hint of what has a name, or an endpoint, that was used before; None for the first use."""
        here = (report.path, report.position(at.offset))
        path, first = self._first.setdefault((noun, key), here)
        return None if (path, first) == here else f"the first is in {path}:{first.line}:{first.column}"


def _warn_of_idleness(
    definition: Definition,
    settings: BlockSettings,
    config: RestApiConfig,
    events: Sequence[ClientEvent | ServerEvent | None],
) -> None:
    """Warn of a route that does nothing, and of a port that is not opened; an event that is None has a fault."""
    report, title = settings.report, title_of(definition)
    if not config.enable_client and not config.enable_server:
        hint = 'set ENABLE_CLIENT "true", ENABLE_SERVER "true" or both in REST_API_CONFIG'
        report.warning(FaultCode.NO_ROUTE, definition.offset, f"{title} does nothing: both modes are off", hint)
    elif BlockKind.EVENT in definition.broken:
        return
    elif not events:
        report.warning(
            FaultCode.NO_ROUTE, definition.offset, f"{title} does nothing: it has no event", "write ADD EVENT <name>"
        )
    elif settings.values.get("ENABLE_SERVER") and all(isinstance(event, ClientEvent) for event in events):
        hint = "leave it out, or write an event that has METHOD and ENDPOINT, and no SOURCE_TOPIC"
        settings.warning(
            FaultCode.NO_EFFECT, "ENABLE_SERVER", "ENABLE_SERVER opens no port: the route has no server event", hint
        )
