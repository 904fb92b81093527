"""The drawing of the routes as boxes and arrows: topic, route, HTTP server, topic of the result, next route. Pure.

`edges` finds the arrows of the routes; `edges_around` leaves those that have to do with one box. `drawing` places the
boxes that the arrows join. Each topic is one box. Each event has a box of its route and a box of its server or
endpoint: if two events shared one, it would look as if messages could go from one event to the other.

A box is in the first column to the right of all boxes that lead to it. In a circle one arrow leads back to the left.
Secrets are masked.
"""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import ClientEvent, Route
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText
from amqtt_rest_bridge.lot.route_set import shown_endpoint
from amqtt_rest_bridge.topics import TopicIndex

MOST_ROUTES: Final = 200
_WIDTH: Final = 232
_GAP: Final = 56  # between columns
_PAGE_WIDTH: Final = 1216  # columns with long texts are wider as long as all of them fit into it
_ROW: Final = 40
_HEIGHT: Final = 32
_MARGIN: Final = 24
_CHARACTER: Final = 7.2  # the width of a character in the monospaced font; East Asian ones are twice as wide
_PADDING: Final = 24
_RATE: Final = 7  # characters of a route's box that are reserved for its rate, which may be empty now
_ANY: Final = "\x01"  # in the place of text that a message fills in; no topic holds control characters


class Node(NamedTuple):
    """What a box shows; `kind` is "topic", "route" or "http".

    `owner` distinguishes boxes with the same name. For a route with several events it is the event, for a server or
    endpoint it is the route, with such an event; otherwise it is "".
    """

    kind: str
    name: str
    owner: str = ""


class Edge(NamedTuple):
    """An arrow; `kind` is "way", "error" (to ERROR_TOPIC) or "chain" (from a topic to a filter that matches it)."""

    begin: Node
    end: Node
    kind: str


@dataclass(frozen=True, slots=True)
class Box:
    """A node in its place; `shown` is its text, cut to the `width`.

    Only the box of a route has a `health`, and an `event` if the route has several. The first box of a route has a
    `note` (its rate), and `has_rate`.
    """

    x: int
    y: int
    kind: str
    name: str
    shown: str
    link: str
    health: str = ""
    note: str = ""
    event: str = ""
    width: int = _WIDTH
    has_rate: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """What one route does, as a list for narrow pages.

    `before` are the boxes that lead to the route, `after` those that it leads to. `answers` are the topics to which
    answers of the servers in `after` go, `failures` the topics to which failures go.
    """

    route: Box
    before: Sequence[Box]
    after: Sequence[Box]
    answers: Sequence[Box]
    failures: Sequence[Box]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing: boxes, arrows as SVG paths with their kinds, its size; `ways` are the same as a list."""

    boxes: Sequence[Box]
    arrows: Sequence[tuple[str, str]]
    width: int
    height: int
    ways: Sequence[Way]


class RouteState(NamedTuple):
    """What the drawing shows of a route beside its name."""

    health: str
    rate: str


def edges(routes: Iterable[Route]) -> list[Edge]:
    """Return the arrows of these routes, each once."""
    found: dict[Edge, None] = {}
    published: list[tuple[Node, str]] = []
    filters: list[tuple[str, Node]] = []
    for route in routes:
        for edge, pattern in _route_edges(route):
            found[edge] = None
            if pattern is not None:
                published.append((edge.end, pattern))
        filters += [(event.source_topic, Node("topic", event.source_topic)) for event in route.client_events]
    index = TopicIndex(filters)
    for topic, pattern in published:
        for follower in index[pattern]:
            if follower != topic:
                found[Edge(topic, follower, "chain")] = None
    return list(found)


def _route_edges(route: Route) -> Iterator[tuple[Edge, str | None]]:
    """Yield the arrows of a route; with each arrow to a topic also the topic to match filters with (`_pattern`)."""
    masker, has_several = masker_of(route), len(route.client_events) + len(route.server_events) > 1
    for event in route.client_events:
        route_node = Node("route", route.name, event.name if has_several else "")
        server = Node("http", masker.address(route.config.server), "/".join(route_node[1:]))
        yield Edge(Node("topic", event.source_topic), route_node, "way"), None
        yield Edge(route_node, server, "way"), None
        if event.destination_topic is not None:
            result = Node("topic", masker.text(event.destination_topic.source))
            yield Edge(server, result, "way"), _pattern(event.destination_topic, event)
        if event.error_topic is not None:
            yield Edge(route_node, Node("topic", masker.text(event.error_topic)), "error"), event.error_topic
    for served in route.server_events:
        route_node = Node("route", route.name, served.name if has_several else "")
        address = masker.address(shown_endpoint(served.method, route.config.server_port, served.endpoint))
        endpoint = Node("http", address, "/".join(route_node[1:]))
        if served.destination_topic is None:
            yield Edge(Node("topic", served.source_topic or ""), route_node, "way"), None
            yield Edge(route_node, endpoint, "way"), None
            continue
        yield Edge(endpoint, route_node, "way"), None
        topic = Node("topic", masker.text(served.destination_topic.source))
        yield Edge(route_node, topic, "way"), _pattern(served.destination_topic, None)
        if served.reply_topic is not None:
            yield Edge(Node("topic", masker.text(served.reply_topic.source)), route_node, "way"), None


def _pattern(topic: PlaceholderText, event: ClientEvent | None) -> str:
    """Return a topic to match filters with: `{topic}` becomes SOURCE_TOPIC, any other placeholder unknown text."""
    source = "" if event is None else event.source_topic.replace("+", _ANY).replace("#", _ANY)
    return "".join(
        piece if isinstance(piece, str) else source if piece.root == "topic" else _ANY for piece in topic.pieces
    )


def edges_around(arrows: Sequence[Edge], focus: Node) -> list[Edge]:
    """Return the arrows of all ways that lead to a node or from it; all nodes with its kind and name count as it."""
    before = _reached([(edge.end, edge.begin) for edge in arrows], focus)
    after = _reached([(edge.begin, edge.end) for edge in arrows], focus)
    return [edge for edge in arrows if {edge.begin, edge.end} <= before or {edge.begin, edge.end} <= after]


def _reached(steps: Sequence[tuple[Node, Node]], focus: Node) -> set[Node]:
    """Return the nodes that can be reached from those with the kind and name of `focus`, these included."""
    following: dict[Node, list[Node]] = {}
    reached: set[Node] = set()
    for begin, end in steps:
        following.setdefault(begin, []).append(end)
        reached |= {node for node in (begin, end) if node[:2] == focus[:2]}
    open_nodes = list(reached)
    while open_nodes:
        for node in following.get(open_nodes.pop(), ()):
            if node not in reached:
                reached.add(node)
                open_nodes.append(node)
    return reached


def drawing(arrows: Sequence[Edge], states: Mapping[str, RouteState]) -> Drawing:
    """Draw the nodes of these arrows; `states` are those of the routes, by name."""
    columns = _columns(arrows)
    boxes = _boxes(columns, arrows, states)
    curves = [(_curve(boxes[edge.begin], boxes[edge.end]), edge.kind) for edge in arrows]
    right = max((box.x + box.width for box in boxes.values()), default=_MARGIN + _WIDTH)
    rows = max((len(nodes) for nodes in columns), default=1)
    return Drawing([*boxes.values()], curves, right + _MARGIN, rows * _ROW + 2 * _MARGIN, [*_ways(arrows, boxes)])


def _columns(arrows: Sequence[Edge]) -> list[list[Node]]:
    """Return the nodes of each column: to the right of all that lead to them. A circle begins at one of its nodes."""
    before: dict[Node, set[Node]] = {}
    after: dict[Node, list[Node]] = {}
    for edge in arrows:
        before.setdefault(edge.begin, set())
        before.setdefault(edge.end, set()).add(edge.begin)
        after.setdefault(edge.begin, []).append(edge.end)
    columns: list[list[Node]] = []
    numbers: dict[Node, int] = {}  # of the columns of those that have one
    waiting = dict(before)
    ready = [node for node, leading in waiting.items() if not leading]
    while waiting:
        node = ready.pop(0) if ready else next(iter(waiting))  # if none is ready, this one begins a circle
        if waiting.pop(node, None) is None:
            continue
        number = numbers[node] = max((numbers[one] + 1 for one in before[node] if one in numbers), default=0)
        if number == len(columns):
            columns.append([])
        columns[number].append(node)
        ready += [one for one in after.get(node, ()) if one in waiting and before[one] <= numbers.keys()]
    return columns


def _boxes(
    columns: Sequence[Sequence[Node]], arrows: Sequence[Edge], states: Mapping[str, RouteState]
) -> dict[Node, Box]:
    """Place the nodes of these columns, from left to right. The first box of a route shows its rate."""
    boxes: dict[Node, Box] = {}
    rated: set[str] = set()  # routes whose rate is shown
    x = _MARGIN
    for nodes, width in zip(columns, _widths(columns, states), strict=True):
        # Nodes are ordered by the average height of the boxes that lead to them, so that few arrows cross.
        heights: dict[Node, list[int]] = {}
        for edge in arrows:
            if edge.begin in boxes:
                heights.setdefault(edge.end, []).append(boxes[edge.begin].y)
        average = {node: sum(leading) / len(leading) for node, leading in heights.items()}
        for row, node in enumerate(sorted(nodes, key=lambda one: average.get(one, 0.0))):
            has_rate = node.kind == "route" and node.name not in rated
            boxes[node] = _box(node, x, _MARGIN + _ROW * row, width, states.get(node.name), has_rate=has_rate)
            if has_rate:
                rated.add(node.name)
        x += width + _GAP
    return boxes


def _widths(columns: Sequence[Sequence[Node]], states: Mapping[str, RouteState]) -> list[int]:
    """Return the width of each column: what its longest text needs, at most its share of the page."""
    widths = [_WIDTH] * len(columns)
    needed = [
        max(math.ceil((_length(_text(node)) + _reserved(node, states.get(node.name))) * _CHARACTER) for node in nodes)
        + _PADDING
        - _WIDTH
        for nodes in columns
    ]
    spare = max(_PAGE_WIDTH - 2 * _MARGIN - len(columns) * (_WIDTH + _GAP) + _GAP, 0)
    sharing = len(columns)
    # The column that needs least comes first, so that the others share what it leaves.
    for number in sorted(range(len(columns)), key=needed.__getitem__):
        more = max(min(needed[number], spare // sharing), 0)
        widths[number] += more
        spare -= more
        sharing -= 1
    return widths


def _curve(begin: Box, end: Box) -> str:
    """Return the SVG path of an arrow between two boxes."""
    x1, y1, x2, y2 = begin.x + begin.width, begin.y + _HEIGHT // 2, end.x, end.y + _HEIGHT // 2
    middle = (x1 + x2) // 2
    bend = f"{middle} {y1} {middle} {y2}"
    if x2 <= x1:  # the arrow of a circle, back to the left
        bend = f"{x1 + 64} {y1 + 40} {x2 - 64} {y2 + 40}"
    return f"M{x1} {y1}C{bend} {x2} {y2}"


def _ways(arrows: Sequence[Edge], boxes: Mapping[Node, Box]) -> Iterator[Way]:
    """Yield what each route does."""
    before: dict[Node, list[Edge]] = {}
    after: dict[Node, list[Edge]] = {}
    for edge in arrows:
        before.setdefault(edge.end, []).append(edge)
        after.setdefault(edge.begin, []).append(edge)
    for route in (node for node in boxes if node.kind == "route"):
        leaving = after.get(route, [])
        reached = [edge.end for edge in leaving if edge.kind == "way"]
        yield Way(
            boxes[route],
            [boxes[edge.begin] for edge in before.get(route, ())],
            [boxes[node] for node in reached],
            [boxes[edge.end] for node in reached if node.kind == "http" for edge in after.get(node, ())],
            [boxes[edge.end] for edge in leaving if edge.kind == "error"],
        )


def _text(node: Node) -> str:
    return f"{node.name}: {node.owner}" if node.kind == "route" and node.owner else node.name


def _reserved(node: Node, state: RouteState | None) -> int:
    """Return how many characters of a box are reserved for its rate."""
    return max(len(state.rate), _RATE) + 1 if node.kind == "route" and state is not None else 0


def _box(node: Node, x: int, y: int, width: int, state: RouteState | None, *, has_rate: bool) -> Box:
    is_route = node.kind == "route"
    note = state.rate if has_rate and state is not None else ""
    event = node.owner if is_route else ""
    shown = _cut(_text(node), int((width - _PADDING) / _CHARACTER) - _reserved(node, state))
    link = f"/routes/{quote(node.name, safe='')}" if is_route else focus_link(node)
    health = state.health if is_route and state is not None else ""
    return Box(x, y, node.kind, node.name, shown, link, health, note, event, width, has_rate)


def _cut(text: str, longest: int) -> str:
    """Cut the middle out of a text that is too long: topics and addresses differ most at their ends."""
    if _length(text) <= longest:
        return text
    head = tail = ""
    while _length(head + tail) < longest - 2:
        if len(head) <= len(tail):
            head = text[: len(head) + 1]
        else:
            tail = text[-len(tail) - 1 :]
    return f"{head}…{tail}"


def _length(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def focus_link(node: Node) -> str:
    """Return the address of the drawing around a node."""
    return f"/flow?{urlencode({node.kind: node.name})}"
