"""Topic names and topic filters of MQTT 3.1.1 section 4.7, and an index of filters. Pure; any thread may use it.

`TopicIndex` is looked into on the broker's loop, once for every message that passes through it.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import itemgetter
from typing import Generic, TypeVar

from amqtt_rest_bridge.errors import CONTROL, on_one_line

T = TypeVar("T")
_LOGGED = 200  # characters of a topic in a log line
_MOST_KNOWN = 1024  # topics whose values an index remembers
_LONGEST_KNOWN = 256  # characters of such a topic
MAX_TOPIC_BYTES = 65_535
"""MQTT 3.1.1 section 1.5.3: a string's length takes two bytes."""
_LAST_OF_PLANES = "".join([f"{chr(plane + 0xFFFE)}-{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)])
NONCHARACTERS = f"\ufdd0-\ufdef{_LAST_OF_PLANES}"
"""In a set of a regular expression, Unicode's noncharacters (MQTT 5.0 section 1.5.4): mosquitto ends the connection."""

_NONCHARACTER = re.compile(f"[{NONCHARACTERS}]")


def schedule_topic(route: str, event: str) -> str:
    """Return the topic of the messages that an event's own schedule (EVERY) makes."""
    return f"$schedule/{route}/{event}"


@lru_cache(maxsize=256)  # routes publish on the same topics again and again
def check_topic_name(text: str) -> str | None:
    """Return why `text` cannot be a topic name (what a message is published to), or None if it can."""
    if "+" in text or "#" in text:
        return f"holds the wildcard {'+' if '+' in text else '#'}, which only a topic filter may hold"
    return _check_text(text)


def check_topic_filter(text: str) -> str | None:
    """Return why `text` cannot be a topic filter (what is subscribed to), or None if it can."""
    levels = text.split("/")
    for number, level in enumerate(levels, start=1):
        if "#" in level and (level != "#" or number != len(levels)):
            return "has a # that is not alone in the last level"
        if "+" in level and level != "+":
            return "has a + that does not fill its level alone"
    return _check_text(text)


def has_wildcards(topic_filter: str) -> bool:
    """Return whether a valid topic filter may match more than one topic."""
    return "+" in topic_filter or topic_filter.endswith("#")


def widest_filter(text: str) -> str:
    """Return the filter that matches a topic or filter, whatever its placeholders are filled with."""
    return "/".join(["+" if "{" in level else level for level in text.split("/")])


def sample_topic(topic_filter: str) -> str:
    """Return a topic that a filter matches."""
    return topic_filter.replace("+", "x").replace("#", "x")


def loggable(topic: str) -> str:
    """Return a topic name for a log line: on one line and not endless, so that a publisher cannot forge a record."""
    return on_one_line(topic, _LOGGED)


def _check_text(text: str) -> str | None:
    """Return why a text can be neither topic nor filter."""
    if not text:
        return "is empty"
    # MQTT 3.1.1 section 1.5.3 forbids U+0000 and lets a receiver refuse the other control characters. Those would break
    # a log line, and no topic holds them on purpose.
    if CONTROL.search(text):
        return "holds a control character"
    if text.isascii() and len(text) <= MAX_TOPIC_BYTES:
        return None
    if _NONCHARACTER.search(text):
        return "holds a noncharacter of Unicode"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "has no UTF-8 form"
    return f"is {size} bytes long; at most {MAX_TOPIC_BYTES} are allowed" if size > MAX_TOPIC_BYTES else None


def filter_matches(topic_filter: str, topic: str) -> bool:
    """Return whether a valid topic filter matches a topic name (MQTT 3.1.1 sections 4.7.1 and 4.7.2)."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    levels = topic.split("/")
    wanted = topic_filter.split("/")
    for number, level in enumerate(wanted):
        if level == "#":
            return True
        if number == len(levels) or level not in ("+", levels[number]):
            # "sport/#" matches "sport" too: section 4.7.1.2.
            return False
    return len(levels) == len(wanted) or (len(levels) == len(wanted) - 1 and wanted[-1] == "#")


def matcher_of(topic_filter: str) -> Callable[[str], object]:
    """Return a function that says which names a valid filter matches: `filter_matches`, compiled for many names."""
    levels = topic_filter.split("/")
    rest = levels.pop() if levels[-1] == "#" else None
    written = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    if rest is not None:
        written = f"{written}(?:/.*)?" if levels else ".*"
    start = r"(?!\$)" if topic_filter[:1] in ("+", "#") else ""
    return re.compile(f"{start}{written}", re.DOTALL).fullmatch


class _Node(Generic[T]):
    """One level of the filters with wildcards; each leaf holds (insertion number, value) pairs."""

    __slots__ = ("children", "here", "plus", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.plus: _Node[T] | None = None
        self.here: list[tuple[int, T]] = []
        self.rest: list[tuple[int, T]] = []


class TopicIndex(dict[str, tuple[T, ...]]):
    """Find the values of all filters that match a topic, without testing every filter: `index[topic]`.

    It is built once from valid (filter, value) pairs, whose order is that of the values found. Filters without
    wildcards are one dictionary; the others are a trie, walked level by level. What was found for a topic is remembered
    for its next message. Threads may share it.
    """

    __slots__ = ("_depth", "_exact", "_root")

    def __init__(self, entries: Iterable[tuple[str, T]]) -> None:
        super().__init__()
        self._exact: dict[str, tuple[tuple[int, T], ...]] = {}
        self._root: _Node[T] | None = None
        self._depth = 0
        for number, (topic_filter, value) in enumerate(entries):
            if has_wildcards(topic_filter):
                self._add(topic_filter.split("/"), (number, value))
            else:
                self._exact[topic_filter] = (*self._exact.get(topic_filter, ()), (number, value))

    def _add(self, levels: list[str], entry: tuple[int, T]) -> None:
        """Add a filter with wildcards to the trie."""
        node = self._root = self._root or _Node()
        self._depth = max(self._depth, len(levels))
        for level in levels:
            if level == "#":
                node.rest.append(entry)
                return
            if level == "+":
                node.plus = node.plus or _Node()
                node = node.plus
            else:
                node = node.children.setdefault(level, _Node())
        node.here.append(entry)

    def __missing__(self, topic: str) -> tuple[T, ...]:
        wild = self._walk(self._root, topic) if self._root is not None else ()
        matching = sorted([*self._exact.get(topic, ()), *wild], key=itemgetter(0))
        found = tuple([value for _, value in matching])
        if len(topic) <= _LONGEST_KNOWN:
            if len(self) >= _MOST_KNOWN:
                self.clear()
            self[topic] = found
        return found

    def _walk(self, root: _Node[T], topic: str) -> list[tuple[int, T]]:
        """Return the entries of all filters with wildcards that match a topic."""
        # Levels below the deepest filter cannot matter, so a topic of 65,000 slashes costs no more than a short one.
        levels = topic.split("/", self._depth)
        if topic.startswith("$"):  # MQTT 3.1.1 section 4.7.2: a wildcard in the first level never matches these
            child = root.children.get(levels.pop(0))
            nodes = [child] if child is not None else []
        else:
            nodes = [root]
        found: list[tuple[int, T]] = []
        for level in levels:
            following = []
            for node in nodes:
                found += node.rest
                child = node.children.get(level)
                if child is not None:
                    following.append(child)
                if node.plus is not None:
                    following.append(node.plus)
            if not following:
                return found
            nodes = following
        for node in nodes:
            found += node.here
            found += node.rest
        return found
