"""Makes routes of definitions, each by itself, then compares those of all files. Reports every fault of every file.

Loading holds the interpreter, for half a millisecond a line. So `reload` runs this module as a program, in a process of
its own. Its argument has the paths; it reads the texts that were parsed before and those to try from standard input,
and writes the result and the texts now in use to standard output, pickled. `load` is pure, but for reading secrets.
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
from amqtt_rest_bridge.lot.parameters import BlockKind
from amqtt_rest_bridge.lot.parsed_texts import ParsedText, ParsedTexts
from amqtt_rest_bridge.lot.sources import Report, Source, in_order, read
from amqtt_rest_bridge.lot.writer import write_definition
from amqtt_rest_bridge.system import FileState, leave_no_core_file

MOST_FAULTS: Final = 200
"""So many faults of texts to try are returned, those of the texts first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A name or an endpoint (`key`) of a definition, which no other definition of all files may have.

    `definition` is the place of the definition. If an earlier one has the key, `refused` is reported, and the route of
    this definition is left out.
    """

    key: tuple[str, object]
    definition: Position
    refused: Fault


@dataclass(frozen=True, slots=True)
class LoadedText:
    """The definitions of one text, each by itself: routes without errors, faults, and what `join` compares.

    `without_define` are the faults of lines that look like a route without DEFINE. `definitions` is the number of those
    of our type. `files` are as in `LoadResult`.
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
    """Read route definitions and check them, each by itself and together. Never raises for what a text holds.

    `environment` is what GET reads; texts that are in `parsed` are not parsed again.
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
    """Join texts, in the order of their files, and add the faults of names, endpoints and loops of several files."""
    faults = [fault for text in texts for fault in text.faults]
    first: dict[tuple[str, object], Fault] = {}
    refused: set[tuple[str, Position]] = set()
    for claim in (claim for text in texts for claim in text.claims):
        here, other = claim.refused, first.setdefault(claim.key, claim.refused)
        if (here.path, here.position) != (other.path, other.position):
            hint = f"the first is in {other.path}:{other.position.line}:{other.position.column}"
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
    """Return what a message calls a definition."""
    return f"route {definition.name}" if definition.name is not None else "this route"


class _TextLoader:
    """Reads the definitions of one text, one after the other."""

    def __init__(self, source: Source, environment: Environment) -> None:
        self.routes: list[Route] = []
        self.claims: list[Claim] = []
        self.events: list[PlacedEvent] = []
        self.endpoints: list[PlacedEndpoint] = []
        self.report = Report(source.path, source.text)
        self._environment = environment

    def read(self, definition: Definition) -> None:
        before = self.report.errors
        route = self._read_definition(definition)
        if route is not None and self.report.errors == before and not definition.is_faulty:
            self.routes.append(route)

    def _read_definition(self, definition: Definition) -> Route | None:
        """Return the route of a definition, None if there is nothing to make it of; faults are reported."""
        report = self.report
        if definition.name is not None:
            self._claim(definition, ("route", definition.name), definition, f"there are two routes {definition.name}")
        blocks = [BlockSettings(block, report, self._environment) for block in definition.blocks]
        events = [one for one in blocks if one.block.kind is BlockKind.EVENT]
        by_kind = {one.block.kind: one for one in blocks}
        settings, shaping = by_kind.get(BlockKind.CONFIG), by_kind.get(BlockKind.ROUTE_CONFIG)
        route_config = RouteConfig() if shaping is None else read_route_config(shaping)
        if settings is None:
            if BlockKind.CONFIG not in definition.broken:
                hint = 'write ADD REST_API_CONFIG, and below it WITH ENABLE_CLIENT "true" or WITH ENABLE_SERVER "true"'
                report.error(
                    FaultCode.MISSING, definition.offset, f"{title_of(definition)} has no REST_API_CONFIG", hint
                )
            return None
        config, name = read_config(settings), definition.name or ""
        read = [(event, read_event(event, config, name)) for event in events]
        for of, event in read:
            title = "" if event is None else f"{title_of(definition)}, event {event.name}"
            if isinstance(event, ClientEvent):
                places = {name: of.range(name) for name in ("DESTINATION_TOPIC", "ERROR_TOPIC", "ENDPOINT")}
                self.events.append(PlacedEvent(event, config, title, report.path, places))
            elif event is not None and "SERVER_PORT" not in settings.failed:
                self.endpoints += [PlacedEndpoint(event, config.server_port, title)] if event.destination_topic else []
                key = ("endpoint", (config.server_port, event.method, forms.endpoint_shape(event.endpoint)))
                message = f"{event.method} {of.texts['ENDPOINT'].shown} on port {config.server_port} is exposed twice"
                self._claim(definition, key, of.block, message)
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

    def _claim(self, of: Definition, key: tuple[str, object], at: Definition | Block, message: str) -> None:
        refused = self.report.fault(Severity.ERROR, FaultCode.DUPLICATE, at.offset, message)
        self.claims.append(Claim(key, self.report.position(of.offset), refused))


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
    """Load files and return the result and the texts that the next time need not be parsed; blocks.

    Args:
        arguments: JSON of `paths`, `may_be_empty` and `secrets_dir`.
        known: Texts that were parsed before, as `ParsedTexts.dump` writes them.
        instead: Texts to try in the place of files, see `sources.read`: then there are at most `MOST_FAULTS` faults.

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
    # The faults of the texts to try come first; if there are too many, errors are preferred.
    faults, more = result.faults, list[Fault]()
    if len(faults) > MOST_FAULTS:
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
