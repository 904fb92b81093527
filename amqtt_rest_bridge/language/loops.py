"""Warnings of client events that lead back to themselves: what one publishes can match what another is triggered by.

In a topic that is published a placeholder counts as exactly one level whose text is unknown; `{topic}` and
`{source_topic}` as the topics that the event's own SOURCE_TOPIC matches, `{topic.N}` as their Nth level.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final

from amqtt_rest_bridge.errors import Fault, FaultCode, Position, Severity
from amqtt_rest_bridge.language.evaluation import BlockSettings
from amqtt_rest_bridge.model import ClientEvent
from amqtt_rest_bridge.placeholders import Placeholder, PlaceholderText
from amqtt_rest_bridge.topics import TopicIndex

_MAX_CYCLES: Final = 50
_MAX_EDGES: Final = 20_000  # where everything triggers everything, each event's own loop is warned of anyway
_ONE: Final = "\x01"  # any text within a level; no topic holds control characters
_HINT: Final = "publish to another topic"
_MANY: Final = "\x02"  # any number of levels, none too


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """A client event, its name in messages, and where its topics are in the text."""

    event: ClientEvent
    title: str
    path: str
    places: dict[str, tuple[Position, Position]]


def warn_of_own_loop(settings: BlockSettings, topics: Mapping[str, PlaceholderText | str | None]) -> None:
    """Warn of an event that publishes, by one of these settings, to its own SOURCE_TOPIC."""
    trigger = settings.values.get("SOURCE_TOPIC")
    for name, topic in topics.items():
        if trigger and topic is not None and may_match(trigger, topic_pattern(topic, trigger)):
            message = f"{name} matches SOURCE_TOPIC: each result triggers the event again, until the chain is cut"
            settings.warning(FaultCode.LOOP, name, message, _HINT)


def loop_warnings(placed: Sequence[PlacedEvent]) -> Iterator[Fault]:
    """Yield a warning for each loop through several events."""
    for cycle in _find_loops([one.event for one in placed]):
        first, second = placed[cycle[0]], placed[cycle[1]]
        topics = _published(first.event)
        name = next(name for name in topics if may_match(second.event.source_topic, topics[name]))
        through = ", ".join(placed[number].title for number in cycle[1:])
        message = f"{name} leads back to SOURCE_TOPIC through {through}, round and round until the chain is cut"
        place, end = first.places[name]
        yield Fault(first.path, place, Severity.WARNING, message, _HINT, FaultCode.LOOP, end)


def _find_loops(events: Sequence[ClientEvent]) -> Iterator[list[int]]:
    """Yield loops through several events, each as their numbers in turn, at most 50.

    Only what surely matches counts: a level that a message fills in is taken for one that no filter names.
    """
    index = TopicIndex([(event.source_topic, number) for number, event in enumerate(events)])
    followers: dict[int, set[int]] = {}
    edges = 0
    for number, event in enumerate(events):
        followers[number] = {other for topic in _published(event).values() for other in index[topic]} - {number}
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


def _published(event: ClientEvent) -> dict[str, str]:
    """Return what an event publishes to, by the setting that says so, as `topic_pattern` makes it."""
    topics = {"DESTINATION_TOPIC": event.destination_topic, "ERROR_TOPIC": event.error_topic}
    return {name: topic_pattern(topic, event.source_topic) for name, topic in topics.items() if topic is not None}


def topic_pattern(topic: PlaceholderText | str, source: str) -> str:
    """Return what is published to with marks for what a message fills in; `source` is the event's SOURCE_TOPIC."""
    if isinstance(topic, str):
        return topic
    return "".join([piece if isinstance(piece, str) else _mark(piece, source) for piece in topic.pieces])


def may_match(topic_filter: str, topic: str) -> bool:
    """Return whether a topic filter matches a topic that `topic_pattern` made, for at least one message."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    levels = list(_levels(topic))
    places = _with_skipped({0}, levels)  # that the filter may have come to in the levels
    for wanted in topic_filter.split("/"):
        if wanted == "#":
            return bool(places)  # "sport/#" matches "sport" too: MQTT 3.1.1 section 4.7.1.2
        following = {place for place in places if place < len(levels) and levels[place] == _MANY}
        following |= {place + 1 for place in places if place < len(levels) and _level_matches(wanted, levels[place])}
        places = _with_skipped(following, levels)
    return len(levels) in places


def _mark(placeholder: Placeholder, source: str) -> str:
    levels = source.split("/")
    if placeholder.root == "topic":
        return "/".join([{"+": _ONE, "#": _MANY}.get(level, level) for level in levels])
    number = int(placeholder.argument) if placeholder.root == "level" else 0
    known = 0 < number <= len(levels) and levels[number - 1] not in ("+", "#")
    return levels[number - 1] if known else _ONE


def _with_skipped(places: set[int], levels: list[str]) -> set[int]:
    """Return places with those behind a `_MANY` that counts as no level."""
    found = set(places)
    for place in places:
        while place < len(levels) and levels[place] == _MANY:
            place += 1  # noqa: PLW2901
            found.add(place)
    return found


def _level_matches(wanted: str, level: str) -> bool:
    if wanted == "+" or level == _MANY:
        return True
    return re.fullmatch(".*".join(map(re.escape, level.split(_ONE))), wanted) is not None


def _levels(topic: str) -> Iterator[str]:
    """Split a pattern into its levels; `_MANY` is a level of its own."""
    for level in topic.split("/"):
        head, many, tail = level.partition(_MANY)
        if not many or level == _MANY:
            yield level
            continue
        if head:
            yield head + _ONE
        yield _MANY
        if tail:
            yield _ONE + tail.replace(_MANY, _ONE)
