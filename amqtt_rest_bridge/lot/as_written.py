"""The routes of a text as they are written: settings by name, and what GET reads as `{env.X}` and `{secret.X}`. Pure.

The template API draws routes from this; it checks no value.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amqtt_rest_bridge.lot.definitions import HEADERS, Block
from amqtt_rest_bridge.lot.grammar.parsing import Piece, unescape
from amqtt_rest_bridge.lot.parameters import BlockKind
from amqtt_rest_bridge.lot.parsed_texts import parse_text

_QUOTES = "'\""


@dataclass(frozen=True, slots=True)
class EventText:
    """An event: its settings, and its headers in their order."""

    name: str
    settings: dict[str, str]
    headers: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RouteText:
    """A route: the settings of its REST_API_CONFIG, and its events."""

    name: str
    config: dict[str, str] = field(default_factory=dict)
    events: list[EventText] = field(default_factory=list)


def routes_in(text: str) -> Iterator[RouteText]:
    """Yield the routes of type REST_API that can be read to their end; settings have their names in capitals."""
    for definition in parse_text(text).definitions:
        if definition.name is None or definition.is_faulty:
            continue
        route = RouteText(definition.name)
        for block in definition.blocks:
            if block.kind is BlockKind.CONFIG:
                route.config.update(_settings(block))
            elif block.kind is BlockKind.EVENT:
                headers = [(_written([line.name]), _written(line.pieces)) for line in block.headers]
                route.events.append(EventText(block.name, _settings(block), headers))
        yield route


def _settings(block: Block) -> dict[str, str]:
    return {name: _written(node.pieces) for name, node in block.settings.items() if name != HEADERS}


def _written(pieces: Iterable[Piece]) -> str:
    """Join strings, words and what GET reads; times keep their blanks."""
    parts = [
        f"{{{piece.source.lower()}.{piece.text.strip(_QUOTES)}}}"
        if piece.source
        else unescape(piece.text[1:-1] if piece.is_string else piece.text)
        for piece in pieces
    ]
    return "".join(parts)
