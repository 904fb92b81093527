"""Whether a topic with placeholders can match a topic filter. Pure text in, text out.

A placeholder counts as exactly one level whose text is unknown; `{topic}` and `{source_topic}` as the topics that the
event's own SOURCE_TOPIC matches, `{topic.N}` as their Nth level.
"""

import re
from collections.abc import Iterator
from typing import Final

from amqtt_rest_bridge.placeholders.names import Placeholder
from amqtt_rest_bridge.placeholders.text import PlaceholderText

_ONE: Final = "\x01"  # any text within a level; no topic holds control characters
_MANY: Final = "\x02"  # any number of levels, none too


def pattern(topic: PlaceholderText | str, source: str) -> str:
    """Return a topic with marks for what a message fills in.

    Args:
        topic: What is published to.
        source: The SOURCE_TOPIC of the event that publishes.
    """
    if isinstance(topic, str):
        return topic
    return "".join([piece if isinstance(piece, str) else _mark(piece, source) for piece in topic.pieces])


def may_match(topic_filter: str, topic: str) -> bool:
    """Return whether a topic filter matches a topic that `pattern` made, for at least one message."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return _levels_match(topic_filter.split("/"), list(_levels(topic)))


def _mark(placeholder: Placeholder, source: str) -> str:
    levels = source.split("/")
    if placeholder.root == "topic":
        return "/".join([{"+": _ONE, "#": _MANY}.get(level, level) for level in levels])
    number = int(placeholder.argument) if placeholder.root == "level" else 0
    known = 0 < number <= len(levels) and levels[number - 1] not in ("+", "#")
    return levels[number - 1] if known else _ONE


def _levels_match(wanted: list[str], levels: list[str]) -> bool:
    """Run the filter over the pattern's levels, with all places it may have come to."""
    places = _with_skipped({0}, levels)
    for level in wanted:
        if level == "#":
            return bool(places)  # "sport/#" matches "sport" too: MQTT 3.1.1 section 4.7.1.2
        following = {place for place in places if place < len(levels) and levels[place] == _MANY}
        following |= {place + 1 for place in places if place < len(levels) and _level_matches(level, levels[place])}
        places = _with_skipped(following, levels)
    return len(levels) in places


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
