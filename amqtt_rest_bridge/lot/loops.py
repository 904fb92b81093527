"""Warnings of client events that lead back to themselves: what one publishes can match what another is triggered by.

What a placeholder in a published topic will be filled with is not known here. It counts as one level with any text;
`{topic}` and `{source_topic}` count as the topics that the event's own SOURCE_TOPIC matches, `{topic.N}` as the Nth
level of these.

A loop may also lead through a server event of the same routes, which a request of a client event reaches. Such a loop
is never cut, as HTTP carries no hops.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final
from urllib.parse import urlsplit

from amqtt_rest_bridge.addresses import is_loopback
from amqtt_rest_bridge.errors import Fault, FaultCode, Position, Severity
from amqtt_rest_bridge.lot.evaluation import BlockSettings
from amqtt_rest_bridge.lot.model import ClientEvent, RestApiConfig, ServerEvent
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText
from amqtt_rest_bridge.topics import TopicIndex, widest_filter

_MAX_CYCLES: Final = 50
_MAX_EDGES: Final = 20_000  # where everything triggers everything, each event's own loop is warned of anyway
_ONE: Final = "\x01"  # any text within a level; no topic holds control characters
_HINT: Final = "publish to another topic"
_MANY: Final = "\x02"  # zero or more levels
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """A client event, its route's configuration, its name in messages, and where its settings are in the text."""

    event: ClientEvent
    config: RestApiConfig
    title: str
    path: str
    places: dict[str, tuple[Position, Position]]


@dataclass(frozen=True, slots=True)
class PlacedEndpoint:
    """A server event that publishes, its port, and its name in messages."""

    event: ServerEvent
    port: int
    title: str


def warn_of_own_loop(settings: BlockSettings, topics: Mapping[str, PlaceholderText | str | None]) -> None:
    """Warn of an event that publishes, by one of these settings, to its own SOURCE_TOPIC."""
    trigger = settings.values.get("SOURCE_TOPIC")
    for name, topic in topics.items():
        if trigger and topic is not None and may_match(trigger, topic_pattern(topic, trigger)):
            message = f"{name} matches SOURCE_TOPIC: each result triggers the event again, until the chain is cut"
            settings.warning(FaultCode.LOOP, name, message, _HINT)


def loop_warnings(placed: Sequence[PlacedEvent], endpoints: Sequence[PlacedEndpoint]) -> Iterator[Fault]:
    """Yield a warning for each loop through several events, or through endpoints of these routes."""
    # By port, method and path, whose {name} segments match one segment.
    index = TopicIndex(
        [(f"{one.port}/{one.event.method}{widest_filter(one.event.endpoint)}", one) for one in endpoints]
    )
    ports = {one.port for one in endpoints}
    ways = [_ways_of(one, index, ports) for one in placed]
    for cycle in _find_loops([one.event for one in placed], ways):
        first = placed[cycle[0]]
        names: list[str] = []
        through: list[str] = []
        for number, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            source = placed[following].event.source_topic
            # An event alone is in a loop only by its ENDPOINT: see `warn_of_own_loop` for its topics.
            candidates = ways[number] if len(cycle) > 1 else ("ENDPOINT",)
            names.append(next(name for name in candidates if may_match(source, ways[number][name][0])))
            through += [title for title in (ways[number][names[-1]][1],) if title is not None]
            through += [placed[following].title] if following != cycle[0] else []
        is_cut = "ENDPOINT" not in names
        end = "until the chain is cut" if is_cut else "without end: HTTP carries no count of the routes passed"
        message = f"{names[0]} leads back to SOURCE_TOPIC through {', '.join(through)}, round and round {end}"
        place, last = first.places[names[0]]
        yield Fault(first.path, place, Severity.WARNING, message, _HINT, FaultCode.LOOP, last)


_Ways = Mapping[str, tuple[str, str | None]]
"""The topic patterns that an event publishes to, by setting.

ENDPOINT is one of them, with the title of the endpoint, if the request leads to an endpoint of these routes.
"""


def _ways_of(placed: PlacedEvent, index: TopicIndex[PlacedEndpoint], ports: Collection[int]) -> _Ways:
    """Return what an event publishes to, itself or by an endpoint that its request surely leads to."""
    event = placed.event
    topics = {"DESTINATION_TOPIC": event.destination_topic, "ERROR_TOPIC": event.error_topic}
    ways: dict[str, tuple[str, str | None]] = {
        name: (topic_pattern(topic, event.source_topic), None) for name, topic in topics.items() if topic is not None
    }
    base = urlsplit(placed.config.base_address or "")
    port = base.port or _PORTS.get(base.scheme, 0)
    if port in ports and is_loopback(base.hostname or ""):
        path = topic_pattern(event.endpoint, event.source_topic).partition("?")[0].lstrip("/")
        for called in index[f"{port}/{event.method}{base.path.rstrip('/')}/{path}"]:
            if called.event.destination_topic is not None:
                ways["ENDPOINT"] = topic_pattern(called.event.destination_topic, ""), called.title
                break
    return ways


def _find_loops(events: Sequence[ClientEvent], ways: Sequence[_Ways]) -> Iterator[list[int]]:
    """Yield loops through several events or an endpoint, each as the numbers of events in turn, at most 50.

    Only sure matches count: a level that a message fills in matches no filter that names a level.
    """
    index = TopicIndex([(event.source_topic, number) for number, event in enumerate(events)])
    followers: dict[int, set[int]] = {}
    edges = 0
    for number, published in enumerate(ways):
        # An event that publishes to its own SOURCE_TOPIC is warned of by itself.
        direct = {other for topic, title in published.values() if title is None for other in index[topic]} - {number}
        followers[number] = direct | {other for topic, title in published.values() if title for other in index[topic]}
        edges += len(followers[number])
        if edges > _MAX_EDGES:
            return
    for _ in range(_MAX_CYCLES):
        try:
            TopologicalSorter(followers).prepare()
        except CycleError as error:
            cycle: list[int] = error.args[1][:0:-1]  # prepare() names predecessors: turn it round
            first = cycle.index(min(cycle))
            yield cycle[first:] + cycle[:first]
            del followers[cycle[first]]
        else:
            return


def topic_pattern(topic: PlaceholderText | str, source: str) -> str:
    """Return a topic with marks in the place of what a message fills in; `source` is the event's SOURCE_TOPIC."""
    if isinstance(topic, str):
        return topic
    levels = source.split("/")
    pieces: list[str] = []
    for piece in topic.pieces:
        if isinstance(piece, str):
            pieces.append(piece)
        elif piece.root == "topic":
            pieces.append("/".join([{"+": _ONE, "#": _MANY}.get(level, level) for level in levels]))
        else:
            number = int(piece.argument) if piece.root == "level" else 0
            known = 0 < number <= len(levels) and levels[number - 1] not in ("+", "#")
            pieces.append(levels[number - 1] if known else _ONE)
    return "".join(pieces)


def may_match(topic_filter: str, topic: str) -> bool:
    """Return whether a topic filter matches a topic that `topic_pattern` made, for at least one message."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    levels = [_MANY if _MANY in level else level for level in topic.split("/")]
    places = _with_skipped({0}, levels)  # that the filter may have come to in the levels
    for wanted in topic_filter.split("/"):
        if wanted == "#":
            return bool(places)  # "sport/#" matches "sport" too: MQTT 3.1.1 section 4.7.1.2
        following = {place for place in places if place < len(levels) and levels[place] == _MANY}
        for place in places:
            if place < len(levels) and (
                wanted == "+"
                or levels[place] == _MANY
                or re.fullmatch(".*".join(map(re.escape, levels[place].split(_ONE))), wanted)
            ):
                following.add(place + 1)
        places = _with_skipped(following, levels)
    return len(levels) in places


def _with_skipped(places: set[int], levels: list[str]) -> set[int]:
    """Return the places, and those that follow if each `_MANY` between them counts as no level."""
    found = set(places)
    for place in places:
        while place < len(levels) and levels[place] == _MANY:
            place += 1  # noqa: PLW2901
            found.add(place)
    return found
