"""The graph of the routes: topic to route to server, endpoint to route to topic. Pure: names to places in a drawing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.masking import masker_of
from amqtt_rest_bridge.model import Route

_ROW: Final = 34
_TOP: Final = 30
_COLUMNS: Final = (10, 330, 650)
_WIDTH: Final = 240
_LONGEST: Final = 32  # characters that fit into a box
MOST_ROUTES: Final = 200


@dataclass(frozen=True, slots=True)
class Box:
    """A name in the drawing; `shown` is cut to the width of the box, `kind` is "route" or "end"."""

    x: int
    y: int
    text: str
    shown: str
    kind: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes, the curves between them (as SVG paths), and the size of it all."""

    boxes: tuple[Box, ...]
    curves: tuple[str, ...]
    width: int
    height: int


def edges(route: Route) -> list[tuple[str, str, str]]:
    """Return where each event of a route begins and ends: (from, route, to); secrets are masked."""
    found: dict[tuple[str, str, str], None] = {}
    masker = masker_of(route)
    for client in route.client_events:
        found[client.source_topic, route.name, masker.address(_server(route.config.base_address))] = None
    for server in route.server_events:
        endpoint = masker.address(f"{server.method} :{route.config.server_port}{server.endpoint}")
        if server.destination_topic is None:
            found[server.source_topic or "", route.name, endpoint] = None
        else:
            found[endpoint, route.name, masker.text(server.destination_topic.source)] = None
    return list(found)


def drawing(routes: Iterable[Route]) -> Drawing:
    """Draw the first `MOST_ROUTES` routes."""
    lines = [edge for route in list(routes)[:MOST_ROUTES] for edge in edges(route)]
    places: list[dict[str, int]] = [{}, {}, {}]
    for edge in lines:
        for column, name in zip(places, edge, strict=True):
            column.setdefault(name, _TOP + _ROW * len(column))
    boxes = tuple(
        Box(x, y, name, _cut(name), "route" if x == _COLUMNS[1] else "end")
        for x, column in zip(_COLUMNS, places, strict=True)
        for name, y in column.items()
    )
    curves = tuple(dict.fromkeys(curve for edge in lines for curve in _curves(places, edge)))
    height = _TOP + _ROW * max((len(column) for column in places), default=0)
    return Drawing(boxes, curves, _COLUMNS[2] + _WIDTH + 10, max(height, _TOP + _ROW))


def _curves(places: list[dict[str, int]], edge: tuple[str, str, str]) -> Iterator[str]:
    for left in (0, 1):
        x1, y1 = _COLUMNS[left] + _WIDTH, places[left][edge[left]]
        x2, y2 = _COLUMNS[left + 1], places[left + 1][edge[left + 1]]
        middle = (x1 + x2) // 2
        yield f"M{x1} {y1 + 12} C{middle} {y1 + 12} {middle} {y2 + 12} {x2} {y2 + 12}"


def _server(base_address: str | None) -> str:
    return "/".join((base_address or "").split("/", 3)[:3])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
