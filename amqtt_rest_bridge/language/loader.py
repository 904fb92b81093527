"""Route files to the model. Gathers every fault of every file; pure but for reading secrets.

It takes 0.5 ms for a line, so it must not run on the broker's loop once the broker serves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Final, Self

from amqtt_rest_bridge.errors import Fault, Position, Severity, visible
from amqtt_rest_bridge.language import forms, written
from amqtt_rest_bridge.language.blocks import Block, Definition
from amqtt_rest_bridge.language.config import read_config, read_route_config, warn_of_cleartext
from amqtt_rest_bridge.language.definitions import ROUTE_TYPE, ParsedTexts
from amqtt_rest_bridge.language.evaluation import Environment
from amqtt_rest_bridge.language.events import read_event
from amqtt_rest_bridge.language.parameters import BlockKind
from amqtt_rest_bridge.language.settings import TypedBlock
from amqtt_rest_bridge.language.sources import Report, Source, in_order
from amqtt_rest_bridge.masking import Masker
from amqtt_rest_bridge.model import ClientEvent, RestApiConfig, Route, RouteConfig, ServerEvent
from amqtt_rest_bridge.placeholders import may_match, pattern
from amqtt_rest_bridge.topics import TopicIndex

_MAX_CYCLES: Final = 50
_MAX_EDGES: Final = 20_000  # where everything triggers everything, each event's own loop is warned of anyway


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The routes without errors, in the order of their files, and all faults, sorted."""

    routes: tuple[Route, ...]
    faults: tuple[Fault, ...]

    @property
    def has_errors(self) -> bool:
        """Return whether anything keeps a route from working."""
        return any(fault.severity is Severity.ERROR for fault in self.faults)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A client event, its name in messages, and where its topics are in the text."""

    event: ClientEvent
    title: str
    path: str
    places: dict[str, Position]

    @classmethod
    def of(cls, event: ClientEvent, definition: Definition, block: TypedBlock, report: Report) -> Self:
        places = {name: report.position(block.offset(name)) for name in ("DESTINATION_TOPIC", "ERROR_TOPIC")}
        return cls(event, f"{definition.title}, event {event.name}", report.path, places)


def load(sources: Iterable[Source], environment: Environment, parsed: ParsedTexts | None = None) -> LoadResult:
    """Read route definitions and check them, each by itself and together. Never raises for what a text holds.

    `environment` is what GET reads; texts that are in `parsed` are not parsed again.
    """
    loader = _Loader(environment, parsed or ParsedTexts())
    for source in sources:
        loader.read(source)
    loader.finish()
    return LoadResult(tuple(loader.routes), in_order(loader.faults))


class _Loader:
    """What is known over all files: routes by name, endpoints by port."""

    def __init__(self, environment: Environment, parsed: ParsedTexts) -> None:
        self.routes: list[Route] = []
        self.faults: list[Fault] = []
        self._environment = environment
        self._parsed = parsed
        self._first: dict[tuple[str, object], tuple[str, Position]] = {}
        self._events: list[_Placed] = []
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

    def finish(self) -> None:
        """Report what only all files together can tell."""
        severity = Severity.WARNING if self._definitions else Severity.ERROR
        for path, position, name in self._without_define:
            message = visible(f"ROUTE {name} is skipped: DEFINE is missing before it")
            hint = visible(f"write DEFINE ROUTE {name} WITH TYPE {ROUTE_TYPE}")
            self.faults.append(Fault(path, position, severity, message, hint))
        for cycle in _loops([placed.event for placed in self._events]):
            first, second = self._events[cycle[0]], self._events[cycle[1]]
            topics = _topics_of(first.event)
            name = next(name for name in topics if may_match(second.event.source_topic, topics[name]))
            through = ", ".join(self._events[number].title for number in cycle[1:])
            message = f"{name} leads back to SOURCE_TOPIC through {through}, round and round until the chain is cut"
            place = first.places[name]
            self.faults.append(Fault(first.path, place, Severity.WARNING, message, "publish to another topic"))

    def _read_definition(self, definition: Definition, report: Report) -> Route | None:
        if definition.name is not None and (hint := self._first_place("route", definition.name, definition, report)):
            report.error(definition.offset, f"there are two routes {definition.name}", hint)
        route_config, shaping = RouteConfig(), None
        if definition.route_config is not None:
            shaping = TypedBlock(definition.route_config, report, self._environment)
            route_config = read_route_config(shaping)
        events = [TypedBlock(block, report, self._environment) for block in definition.events]
        if definition.config is None:
            if BlockKind.CONFIG not in definition.broken:
                hint = 'write ADD REST_API_CONFIG, and below it WITH ENABLE_CLIENT "true" or WITH ENABLE_SERVER "true"'
                report.error(definition.offset, f"{definition.title} has no REST_API_CONFIG", hint)
            return None
        config_block = TypedBlock(definition.config, report, self._environment)
        config = read_config(config_block)
        client_events, server_events = self._read_events(definition, config, config_block, events, report)
        _warn_of_idle(definition, config, report)
        warn_of_cleartext(config_block, events)
        secrets: frozenset[str] = frozenset().union(config_block.secrets, *(event.secrets for event in events))
        name = definition.name or ""
        return Route(
            name=name,
            config=config,
            client_events=client_events,
            server_events=server_events,
            route_config=route_config,
            path=report.path,
            position=report.position(definition.offset),
            secrets=secrets,
            in_addresses=frozenset().union(config_block.in_addresses, *(event.in_addresses for event in events)),
            definition=written.definition(name, config_block, shaping, events, Masker(secrets)),
        )

    def _read_events(
        self,
        definition: Definition,
        config: RestApiConfig,
        config_block: TypedBlock,
        blocks: Iterable[TypedBlock],
        report: Report,
    ) -> tuple[tuple[ClientEvent, ...], tuple[ServerEvent, ...]]:
        client_events: list[ClientEvent] = []
        server_events: list[ServerEvent] = []
        for block in blocks:
            event = read_event(block, config, definition.name or "")
            if isinstance(event, ClientEvent):
                client_events.append(event)
                self._events.append(_Placed.of(event, definition, block, report))
            elif event is not None:
                server_events.append(event)
                key = (config.server_port, event.method, forms.endpoint_shape(event.endpoint))
                if "SERVER_PORT" not in config_block.failed and (
                    hint := self._first_place("endpoint", key, block.block, report)
                ):
                    shown = block.texts["ENDPOINT"].shown
                    message = f"{event.method} {shown} on port {config.server_port} is exposed twice"
                    report.error(block.block.offset, message, hint)
        return tuple(client_events), tuple(server_events)

    def _first_place(self, noun: str, key: object, at: Definition | Block, report: Report) -> str | None:
        """Return the hint of what has a name, or an endpoint, that was used before; None for the first use."""
        here = (report.path, report.position(at.offset))
        path, first = self._first.setdefault((noun, key), here)
        return None if (path, first) == here else f"the first is in {path}:{first.line}:{first.column}"


def _warn_of_idle(definition: Definition, config: RestApiConfig, report: Report) -> None:
    if not config.enable_client and not config.enable_server:
        hint = 'set ENABLE_CLIENT "true", ENABLE_SERVER "true" or both in REST_API_CONFIG'
        report.warning(definition.offset, f"{definition.title} does nothing: both modes are off", hint)
    elif not definition.events and BlockKind.EVENT not in definition.broken:
        message = f"{definition.title} does nothing: it has no event"
        report.warning(definition.offset, message, "write ADD EVENT <name>")


def _loops(events: Sequence[ClientEvent]) -> list[list[int]]:
    """Return loops through several events, each as their numbers in turn, at most 50.

    Only what surely matches counts: a level that a message fills in is taken for one that no filter names.
    """
    index = TopicIndex([(event.source_topic, number) for number, event in enumerate(events)])
    followers: dict[int, set[int]] = {}
    edges = 0
    for number, event in enumerate(events):
        found = {other for topic in _topics_of(event).values() for other in index.find(topic)} - {number}
        edges += len(found)
        if edges > _MAX_EDGES:
            return []
        followers[number] = found
    return list(_cycles(followers))


def _topics_of(event: ClientEvent) -> dict[str, str]:
    """Return what an event publishes to, by the setting that says so, as `pattern` makes it."""
    topics = {"DESTINATION_TOPIC": event.destination_topic, "ERROR_TOPIC": event.error_topic}
    return {name: pattern(topic, event.source_topic) for name, topic in topics.items() if topic is not None}


def _cycles(followers: dict[int, set[int]]) -> list[list[int]]:
    found: list[list[int]] = []
    while len(found) < _MAX_CYCLES:
        try:
            TopologicalSorter(followers).prepare()
        except CycleError as error:
            cycle: list[int] = error.args[1][:0:-1]  # prepare() names predecessors: turn it round
            first = cycle.index(min(cycle))
            found.append(cycle[first:] + cycle[:first])
            del followers[min(cycle)]
        else:
            break
    return found
