"""Loads route files: makes a route of each definition, then compares the routes of all files. Reports every fault.

Loading keeps the interpreter busy for half a millisecond a line. So `reload` runs this module as a program, in a
process of its own. Its argument has the paths. From standard input it reads the texts that were parsed before and the
texts to try; to standard output it writes the result and the texts now in use. Both are pickled. `load` is pure, except
that it reads secrets.
"""

import json
import os
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.errors import BridgeError, Fault, FaultCode, Position, Severity, visible
from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.blocks import read_config, read_event, read_route_config, warn_of_cleartext
from amqtt_rest_bridge.lot.definitions import Block, Definition
from amqtt_rest_bridge.lot.evaluation import BlockSettings, Environment
from amqtt_rest_bridge.lot.loops import PlacedEndpoint, PlacedEvent, loop_warnings
from amqtt_rest_bridge.lot.masking import Masker
from amqtt_rest_bridge.lot.model import ClientEvent, LoadResult, RestApiConfig, Route, RouteConfig, ServerEvent
from amqtt_rest_bridge.lot.parsed_texts import ParsedText, ParsedTexts
from amqtt_rest_bridge.lot.settings_table import BlockKind
from amqtt_rest_bridge.lot.sources import Report, Source, in_order, read
from amqtt_rest_bridge.lot.writer import write_definition
from amqtt_rest_bridge.system import FileState, leave_no_core_file

MOST_FAULTS: Final = 200
"""The most faults that are returned for texts to try. The faults of these texts come before those of other files."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A name or an endpoint (`key`) that only one definition of all files may have.

    `definition` is the position of the definition that has it. If an earlier definition has the same key, `fault` is
    reported, and the route of this definition is left out.
    """

    key: tuple[str, object]
    definition: Position
    fault: Fault


@dataclass(frozen=True, slots=True)
class LoadedText:
    """The definitions of one text, each checked by itself: routes without errors, faults, and what `join` compares.

    `without_define` are the faults of lines that look like a route without DEFINE. `definitions` is the number of
    definitions of our type. `files` are as in `LoadResult`.
    """

    routes: tuple[Route, ...] = ()
    faults: tuple[Fault, ...] = ()
    claims: tuple[Claim, ...] = ()
    events: tuple[PlacedEvent, ...] = ()
    endpoints: tuple[PlacedEndpoint, ...] = ()
    without_define: tuple[Fault, ...] = ()
    definitions: int = 0
    files: frozenset[FileState] = frozenset()


def load(sources: Iterable[Source], environment: Environment, parsed: ParsedTexts | None = None) -> LoadResult:
    """Read route definitions and check them: each by itself, then together. No text makes it raise.

    `environment` is what GET reads. Texts that are in `parsed` are not parsed again.
    """
    known = parsed or ParsedTexts()
    return join([load_text(source, known.parse(source.text), environment) for source in sources])


def load_text(source: Source, parsed: ParsedText, environment: Environment) -> LoadedText:
    """Read the definitions of one text, which is `parsed`, each by itself."""
    loader = _TextLoader(source, environment)
    for definition in parsed.definitions:
        loader.read(definition)
    return LoadedText(
        tuple(loader.routes),
        (*source.faults, *(replace(fault, path=source.path) for fault in parsed.faults), *loader.report.faults),
        tuple(loader.claims),
        tuple(loader.events),
        tuple(loader.endpoints),
        tuple(replace(fault, path=source.path) for fault in parsed.without_define),
        len(parsed.definitions),
        frozenset(loader.report.files),
    )


def join(texts: Sequence[LoadedText]) -> LoadResult:
    """Return the routes of all texts, in the order of their files, and all faults.

    The faults include those of several definitions together: a name or endpoint that two have, and loops.
    """
    faults = [fault for text in texts for fault in text.faults]
    first_faults: dict[tuple[str, object], Fault] = {}  # by key: of the claim that has it
    refused: set[tuple[str, Position]] = set()
    for claim in (claim for text in texts for claim in text.claims):
        here, first = claim.fault, first_faults.setdefault(claim.key, claim.fault)
        if (here.path, here.position) != (first.path, first.position):
            hint = f"the first is in {first.path}:{first.position.line}:{first.position.column}"
            faults.append(replace(here, hint=visible(hint)))
            refused.add((here.path, claim.definition))
    severity = Severity.WARNING if any(text.definitions for text in texts) else Severity.ERROR
    faults += [replace(fault, severity=severity) for text in texts for fault in text.without_define]
    faults += loop_warnings(
        [event for text in texts for event in text.events], [one for text in texts for one in text.endpoints]
    )
    routes = [route for text in texts for route in text.routes if (route.path, route.position) not in refused]
    files = frozenset(file for text in texts for file in text.files)
    return LoadResult(tuple(routes), in_order(faults), files)


def title_of(definition: Definition) -> str:
    """Return how messages name a definition."""
    return f"route {definition.name}" if definition.name is not None else "this route"


class _TextLoader:
    """Reads the definitions of one text, one after the other, into its lists."""

    def __init__(self, source: Source, environment: Environment) -> None:
        self.routes: list[Route] = []
        self.claims: list[Claim] = []
        self.events: list[PlacedEvent] = []
        self.endpoints: list[PlacedEndpoint] = []
        self.report = Report(source.path, source.text)
        self._environment = environment

    def read(self, definition: Definition) -> None:
        """Check a definition, and add its route if it has no error."""
        before = self.report.errors
        route = self._read_definition(definition)
        if route is not None and self.report.errors == before and not definition.is_faulty:
            self.routes.append(route)

    def _read_definition(self, definition: Definition) -> Route | None:
        """Return the route of a definition, None without a REST_API_CONFIG; faults are reported."""
        report = self.report
        if definition.name is not None:
            self._claim(definition, ("route", definition.name), definition, f"there are two routes {definition.name}")
        blocks = [BlockSettings(block, report, self._environment) for block in definition.blocks]
        event_blocks = [one for one in blocks if one.block.kind is BlockKind.EVENT]
        by_kind = {one.block.kind: one for one in blocks}
        settings, route_settings = by_kind.get(BlockKind.CONFIG), by_kind.get(BlockKind.ROUTE_CONFIG)
        route_config = RouteConfig() if route_settings is None else read_route_config(route_settings)
        if settings is None:
            if BlockKind.CONFIG not in definition.broken:
                hint = 'write ADD REST_API_CONFIG, and below it WITH ENABLE_CLIENT "true" or WITH ENABLE_SERVER "true"'
                report.error(
                    FaultCode.MISSING, definition.offset, f"{title_of(definition)} has no REST_API_CONFIG", hint
                )
            return None
        config, name = read_config(settings), definition.name or ""
        events = [read_event(block, config, name) for block in event_blocks]  # None for one with a fault
        for block, event in zip(event_blocks, events, strict=True):
            if isinstance(event, ClientEvent):
                self._add_client_event(definition, block, event, config)
            elif event is not None and "SERVER_PORT" not in settings.failed:
                self._add_server_event(definition, block, event, config)
        _warn_of_idleness(definition, settings, config, events)
        warn_of_cleartext(settings, event_blocks)
        secrets: frozenset[str] = frozenset().union(settings.secrets, *(block.secrets for block in event_blocks))
        return Route(
            name=name,
            config=config,
            client_events=tuple(event for event in events if isinstance(event, ClientEvent)),
            server_events=tuple(event for event in events if isinstance(event, ServerEvent)),
            route_config=route_config,
            path=report.path,
            position=report.position(definition.offset),
            secrets=secrets,
            in_addresses=frozenset().union(settings.in_addresses, *(block.in_addresses for block in event_blocks)),
            definition=write_definition(name, settings, route_settings, event_blocks, Masker(secrets)),
        )

    def _add_client_event(
        self, definition: Definition, block: BlockSettings, event: ClientEvent, config: RestApiConfig
    ) -> None:
        """Add a client event to those in which `join` searches loops."""
        ranges = {name: block.range(name) for name in ("DESTINATION_TOPIC", "ERROR_TOPIC", "ENDPOINT")}
        title = f"{title_of(definition)}, event {event.name}"
        self.events.append(PlacedEvent(event, config, title, self.report.path, ranges))

    def _add_server_event(
        self, definition: Definition, block: BlockSettings, event: ServerEvent, config: RestApiConfig
    ) -> None:
        """Add a server event to those in which `join` searches loops, and claim its endpoint."""
        port = config.server_port
        if event.destination_topic:
            title = f"{title_of(definition)}, event {event.name}"
            self.endpoints.append(PlacedEndpoint(event, port, title))
        key = ("endpoint", (port, event.method, forms.endpoint_shape(event.endpoint)))
        message = f"{event.method} {block.texts['ENDPOINT'].shown} on port {port} is exposed twice"
        self._claim(definition, key, block.block, message)

    def _claim(
        self, definition: Definition, key: tuple[str, object], reported_at: Definition | Block, message: str
    ) -> None:
        """Note that a definition has a key; `message` is that of the fault if another one has it."""
        fault = self.report.fault(Severity.ERROR, FaultCode.DUPLICATE, reported_at.offset, message)
        self.claims.append(Claim(key, self.report.position(definition.offset), fault))


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


# As a program, which `reload` runs.


def load_files(arguments: str, known: bytes, instead: Mapping[str, str | None] | None) -> tuple[LoadResult, bytes]:
    """Load files. Return the result, and the parsed texts for the next call. Blocks.

    Args:
        arguments: JSON of `paths`, `may_be_empty` and `secrets_dir`.
        known: Texts that were parsed before, as `ParsedTexts.dump` writes them.
        instead: Texts to try in place of files, see `sources.read`. Then at most `MOST_FAULTS` faults are returned.

    Raises:
        ConfigurationError: A path cannot be read.
    """
    wanted, parsed = json.loads(arguments), ParsedTexts(known)
    texts = read(wanted["paths"], wanted["may_be_empty"], instead)
    environment = Environment(os.environ, Path(wanted["secrets_dir"]))
    result = load(texts, environment, parsed)
    result = replace(result, variables=tuple(environment.variables), secrets=tuple(environment.secrets))
    if instead is None:
        return result, parsed.dump()
    faults, more = result.faults, list[Fault]()
    if len(faults) > MOST_FAULTS:
        # Keep faults of the texts to try rather than those of other files, and errors rather than warnings.
        by_weight = sorted(faults, key=lambda fault: (fault.path not in instead, fault.severity is not Severity.ERROR))
        last, message = by_weight[MOST_FAULTS - 1], f"{len(faults) - MOST_FAULTS + 1} more faults are not listed"
        more.append(Fault(last.path, Position(1, 1), last.severity, message))
        kept = set(by_weight[: MOST_FAULTS - 1])
        faults = tuple(fault for fault in faults if fault in kept)
    listed = (*sorted(faults, key=lambda fault: fault.path not in instead), *more)
    return replace(result, faults=listed), known if result.has_errors else parsed.dump()


def main() -> int:
    """Load what the argument names and write the pickled result; on an error write the reason to stderr, status 1."""
    leave_no_core_file()
    instead, known = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  # our own process
    try:
        loaded = load_files(sys.argv[1], known, instead)
    except BridgeError as error:
        print(error, file=sys.stderr)  # noqa: T201  # read by the broker
        return 1
    sys.stdout.buffer.write(pickle.dumps(loaded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
