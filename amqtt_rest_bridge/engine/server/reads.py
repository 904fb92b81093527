"""Read events: a GET is answered from the newest messages of topics, at once or as a stream.

`Reads` has the newest messages of each filter (`newest`), which `server_mode` passes on, and the open streams.
`ReadEvent` answers the requests of one event. `CallerStream` is one open stream. Both write what `_OneTopic` or
`_TopicsOfFilter` makes of the messages.

The answer for one topic is its payload; with `{path.x}` the request names the topic. The answer for a filter with
wildcards is a JSON object of payloads by topic. A request only chooses among topics that the event's filter has
matched, so no value in its path leads to another topic.

A stream holds the number of the last message that it has sent, but no messages. Its next *piece* has the messages since
then. If some of these are not kept any more, it has the newest message of each topic. So a slow caller costs no memory,
and callers that read equally fast share the bytes.
"""

import contextlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from amqtt_rest_bridge.catalogue import ANSWER_TOO_LARGE, NO_MESSAGE
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.engine.server.newest import MOST_TOPICS, NewestMessages, TopicPayload, payload_answer
from amqtt_rest_bridge.engine.statistics import RouteStatistics
from amqtt_rest_bridge.http.event_stream import STREAM_BEGINNING, STREAM_HEADERS, Pulse, event_of
from amqtt_rest_bridge.http.exchange import Request, RequestRefusedError, Response, overloaded, refuse
from amqtt_rest_bridge.lot.model import EventName, RestApiConfig, Route, ServerEvent
from amqtt_rest_bridge.topics import TopicIndex, has_wildcards, loggable, matcher_of

MOST_STREAMS: Final = 2_000

_INSTANCE: Final = secrets.token_hex(4)  # in the ids of events, since messages are numbered by each process
_NOTHING: Final = -1  # the number of the message that a caller has seen, before the first one
_TOO_MANY: Final = f"has matched more than {MOST_TOPICS} topics, or 16 MiB of topics and payloads"
_REMOVED: Final = "null"  # in a stream, for a topic whose retained message was removed
_MOST_PIECES: Final = 8  # of one filter that are kept for other callers; callers choose where theirs begin


class Reads:
    """The newest messages of all read events, by the topic filters of the events, and the streams that follow them.

    Args:
        statistics: Those of the routes by name, which show how many streams are open.
    """

    def __init__(self, statistics: Mapping[str, RouteStatistics]) -> None:
        self._statistics = statistics
        self.readers: Counter[str] = Counter()
        """How many streams are open, by route."""
        self._newest: dict[str, NewestMessages] = {}
        self._index: TopicIndex[NewestMessages] = TopicIndex(())
        self._streams: set[CallerStream] = set()
        # Streams that have sent everything, by the filter of their event, and by the topics that wake them.
        self._asleep: dict[str, dict[_ReadTopics, set[CallerStream]]] = {}
        self._takes_streams = True

    def watch(self, filters: Iterable[str]) -> None:
        """Keep the newest messages of these topic filters from now on, and of no others."""
        self._newest = {one: self._newest.get(one) or NewestMessages(one) for one in filters}
        self._index = TopicIndex(self._newest.items())

    def remember(self, topic: str, payload: bytes, *, retained: bool = False) -> bool:
        """Keep a message; return whether a read event has its topic.

        A `retained` one that is kept already is left out: it comes again with each subscription.
        """
        found = self._index[topic]
        for newest in found:
            if retained and (known := newest.topics.get(topic)) is not None and known.payload == payload:
                continue
            newest.put(topic, payload)
            asleep = self._asleep.get(newest.topic_filter)
            for topics in [one for one in asleep or () if one.concerns(topic)]:
                for stream in self._asleep[newest.topic_filter].pop(topics):
                    stream.wake()
        return bool(found)

    def newest(self, topic_filter: str) -> NewestMessages:
        """Return the newest messages of a filter that is watched, none of any other one."""
        return self._newest.get(topic_filter) or NewestMessages(topic_filter)

    @contextlib.contextmanager
    def resubscribing(self) -> Iterator[set[str]]:
        """Return a context manager of the filters of which messages were dropped. Its block subscribes them again.

        The broker then sends what is retained, so these filters count as complete, unless the block fails.
        """
        incomplete = [newest for newest in self._newest.values() if not newest.is_complete]
        for newest in incomplete:
            newest.is_complete = True  # until some are dropped again
        try:
            yield {newest.topic_filter for newest in incomplete}
        except BaseException:
            for newest in incomplete:
                newest.is_complete = False
            raise

    def add_stream(self, stream: "CallerStream") -> None:
        """Count a stream; raises `RequestRefusedError` (503) when there are too many."""
        if not self._takes_streams or len(self._streams) >= MOST_STREAMS:
            raise RequestRefusedError(overloaded("The bridge has as many streams open as it can serve"))
        self._streams.add(stream)
        self._count(stream.name[0], 1)

    def wake_later(self, stream: "CallerStream") -> None:
        """Wake a stream, which has sent everything, at the next message on one of its topics.

        Any other stream needs no waking: it takes its next piece when its caller has read the last one.
        """
        self._asleep.setdefault(stream.topic_filter, {}).setdefault(stream.topics, set()).add(stream)

    def remove_stream(self, stream: "CallerStream") -> None:
        """Forget a stream."""
        self._streams.remove(stream)
        self._count(stream.name[0], -1)
        by_topics = self._asleep.get(stream.topic_filter, {})
        if (asleep := by_topics.get(stream.topics)) is not None:
            asleep.discard(stream)
            if not asleep:
                del by_topics[stream.topics]

    def _count(self, route: str, change: int) -> None:
        self.readers[route] += change
        if (statistics := self._statistics.get(route)) is not None:
            statistics.open_streams = self.readers[route]

    def end_streams(self, present: Iterable[Route] = ()) -> None:
        """End the streams of events that these routes define otherwise; without routes end all, and begin none."""
        definitions = {
            (route.name, event.name): (route.config, event) for route in present for event in route.server_events
        }
        self._takes_streams = bool(definitions)
        for stream in tuple(self._streams):
            if definitions.get(stream.name) != stream.definition:
                stream.end()


class ReadEvent:
    """Answers the requests of one read event.

    Args:
        route: Of the event.
        event: It has a `read_filter`.
        reads: Has the messages.
        max_response_bytes: The bound of an answer for a filter.
        clock: Times the heartbeats of streams.
    """

    def __init__(
        self, route: Route, event: ServerEvent, reads: Reads, max_response_bytes: int, clock: Clock,
    ) -> None:  # fmt: skip
        self.name: EventName = route.name, event.name
        self.definition: tuple[RestApiConfig, ServerEvent] = route.config, event
        self.reads = reads
        self.filter = event.read_filter or ""
        self.clock = clock
        self._event = event
        self._largest = max_response_bytes
        # Those that streams use now, by topic or filter: callers of the same topics share the pieces.
        self._topics_in_use: WeakValueDictionary[str, _ReadTopics] = WeakValueDictionary()
        self._topics = None if event.read_topic is not None else self._topics_of(event.source_topic or "")

    def answer(self, request: Request, topic: str | None) -> Response:
        """Answer with the newest messages, or with a stream; `topic` is the topic that the request names, if any."""
        topics = self._topics if topic is None else self._topics_of(topic)
        assert topics is not None  # noqa: S101  # the event has one topic, or the request has named it
        if self._event.stream:
            if request.method == "HEAD":
                return Response("200 OK", STREAM_HEADERS)
            stream = CallerStream(self, topics, request.headers.get("last-event-id", ""))
            self.reads.add_stream(stream)
            return Response("200 OK", STREAM_HEADERS, stream=stream)
        payload = topics.answer(self.reads.newest(self.filter))
        headers = (("ETag", payload.entity_tag), ("Cache-Control", "no-cache"))
        if is_not_modified(request.headers.get("if-none-match"), payload.entity_tag):
            return Response("304 Not Modified", headers)
        return payload_answer(payload, headers)

    def _topics_of(self, topic: str) -> "_ReadTopics":
        topics = self._topics_in_use.get(topic)
        if topics is None:
            if has_wildcards(topic):
                topics = _TopicsOfFilter(topic, self._largest, is_all=topic == self.filter)
            else:
                topics = _OneTopic(topic)
            self._topics_in_use[topic] = topics
        return topics


def is_not_modified(if_none_match: str | None, entity_tag: str) -> bool:
    """Return whether the caller has this entity already (If-None-Match, weak comparison, RFC 9110 section 13.1.2)."""
    if not if_none_match:
        return False
    given = [item.strip().removeprefix("W/") for item in if_none_match.split(",")]
    return entity_tag in given or given == ["*"]


class CallerStream:
    """The stream of one caller; see `http.exchange.ResponseStream`."""

    def __init__(self, reading: ReadEvent, topics: "_ReadTopics", last_id: str) -> None:
        self.name = reading.name
        self.definition = reading.definition
        self.topic_filter = reading.filter
        self._reads = reading.reads
        self.topics = topics
        self._wake: Callable[[], None] = lambda: None
        self._pulse = Pulse(reading.clock.monotonic)
        self._has_ended = False
        newest = self._reads.newest(self.topic_filter)
        first = topics.next_piece(newest, topics.number_seen(newest, last_id))
        if first is None:
            first = _Piece(newest.number, b"")
        self._seen = first.number  # of the last message that was sent
        self._first = STREAM_BEGINNING + first.written

    def begin(self, wake: Callable[[], None]) -> None:
        """Keep what makes the connection of the caller take the next piece."""
        self._wake = wake

    def wake(self) -> None:
        """Make the connection take the next piece soon."""
        self._wake()

    def end(self) -> None:
        """End the stream."""
        self._has_ended = True
        self._wake()

    def take(self) -> bytes | float:
        """Return the next bytes for the caller, b"" at the end; or the seconds until something is due."""
        if self._has_ended:
            return b""
        if self._first:
            first, self._first = self._first, b""
            return self._pulse.beat(first)
        try:
            piece = self.topics.next_piece(self._reads.newest(self.topic_filter), self._seen)
        except RequestRefusedError:  # the next request of this caller is answered with it
            return b""
        if piece is None:
            self._reads.wake_later(self)
            return self._pulse.beat(b"")
        self._seen = piece.number
        return self._pulse.beat(piece.written)

    def close(self) -> None:
        """Forget the stream, whose connection has ended."""
        self._reads.remove_stream(self)


class _ReadTopics(Protocol):
    """The topics that a read event answers with: one topic, or those of a filter with wildcards."""

    def concerns(self, topic: str) -> bool:
        """Return whether messages on a topic are sent."""
        ...

    def answer(self, newest: NewestMessages) -> TopicPayload:
        """Return the body of an answer; raises `RequestRefusedError` (404, 503) for none, or one too large."""
        ...

    def number_seen(self, newest: NewestMessages, last_id: str) -> int:
        """Return the number of the last message that a caller has seen, by the id of the last event that it has."""
        ...

    def next_piece(self, newest: NewestMessages, seen: int) -> "_Piece | None":
        """Return what a stream sends after the message with the number `seen`, None if nothing has come since."""
        ...


class _Piece(NamedTuple):
    """The next bytes of a stream, and the number of the last message that they cover.

    The bytes are empty if none of these messages is on a topic of the caller.
    """

    number: int
    written: bytes


class _Pieces(dict[tuple[int, int], _Piece]):
    """The last pieces, which callers share, by the numbers of the message before a piece and of its last one."""

    def keep(self, seen: int, piece: _Piece) -> _Piece:
        """Keep a piece for the next caller, and return it."""
        if len(self) >= _MOST_PIECES or any(key[1] != piece.number for key in self):
            self.clear()
        self[seen, piece.number] = piece
        return piece


class _OneTopic:
    """One topic: the answer is its payload, and each message is one event of a stream."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._pieces = _Pieces()

    def concerns(self, topic: str) -> bool:
        return topic == self._topic

    def answer(self, newest: NewestMessages) -> TopicPayload:
        payload = newest.topics.get(self._topic)
        if payload is not None:
            return payload
        shown = loggable(self._topic)
        message = f"No message has been seen on {shown} yet"
        if not newest.is_complete:
            message = f"No message is kept of {shown}: {loggable(newest.topic_filter)} {_TOO_MANY}"
        raise RequestRefusedError(refuse(NO_MESSAGE, message))

    def number_seen(self, newest: NewestMessages, last_id: str) -> int:
        payload = newest.topics.get(self._topic)
        return payload.number if payload is not None and payload.entity_tag == f'"{last_id}"' else _NOTHING

    def next_piece(self, newest: NewestMessages, seen: int) -> _Piece | None:
        payload = newest.topics.get(self._topic)
        if payload is None or payload.number <= seen:
            return None
        unseen = [payload]
        if seen != _NOTHING:
            unseen = [payload for topic, payload in newest.since(seen) if topic == self._topic] or unseen
        number = unseen[-1].number
        if len(unseen) == 1:
            return _Piece(number, unseen[0].event)
        kept = self._pieces.get((seen, number))
        return kept or self._pieces.keep(seen, _Piece(number, b"".join(payload.event for payload in unseen)))


class _TopicsOfFilter:
    """The topics that a filter matches: the answer is a JSON object of their payloads, and so is each event."""

    def __init__(self, topic_filter: str, largest: int, *, is_all: bool) -> None:
        self._filter = topic_filter
        self._largest = largest
        self._is_all = is_all  # the filter is that of the event, so all its messages are sent
        self._matches = matcher_of(topic_filter)
        self._answer: tuple[int, TopicPayload] | None = None  # with the number of the last message in it
        self._pieces = _Pieces()

    def concerns(self, topic: str) -> bool:
        return self._is_all or self._matches(topic) is not None

    def answer(self, newest: NewestMessages) -> TopicPayload:
        made = self._answer
        if made is None or made[0] != newest.number:
            members = ((topic, payload) for topic, payload in newest.topics.items() if payload and self.concerns(topic))
            made = self._answer = newest.number, TopicPayload(self._json_object(newest, members).encode())
        return made[1]

    def number_seen(self, newest: NewestMessages, last_id: str) -> int:
        source, _, number = last_id.rpartition("-")
        # The id of another process, or from before a reload that dropped these messages: its number means nothing here.
        if source != f"{_INSTANCE}-{newest.series}":
            return _NOTHING
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            return _NOTHING
        return int(number) if int(number) <= newest.number else _NOTHING

    def next_piece(self, newest: NewestMessages, seen: int) -> _Piece | None:
        number = newest.number
        if number == seen:
            return None
        kept = self._pieces.get((seen, number))
        if kept is not None:
            return kept
        if seen == _NOTHING:
            written = self._event(newest, number, self.answer(newest).payload.decode())
        else:
            unseen = [(topic, payload) for topic, payload in newest.since(seen) if self.concerns(topic)]
            if newest.is_complete and not unseen:
                return _Piece(number, b"")
            written = b"".join(self._events(newest, unseen))
        return self._pieces.keep(seen, _Piece(number, written))

    def _events(self, newest: NewestMessages, unseen: Iterable[tuple[str, TopicPayload]]) -> Iterator[bytes]:
        """Yield events with these messages. A second message on a topic begins the next event."""
        objects: list[dict[str, TopicPayload]] = [{}]
        for topic, payload in unseen:
            if topic in objects[-1]:
                objects.append({})
            objects[-1][topic] = payload
        for members in objects[:-1]:
            number = max(payload.number for payload in members.values())
            yield self._event(newest, number, self._json_object(newest, members.items()))
        # The last id covers the messages on other topics too.
        yield self._event(newest, newest.number, self._json_object(newest, objects[-1].items()))

    def _event(self, newest: NewestMessages, number: int, text: str) -> bytes:
        """Return a text as a server-sent event, with the id from which `number_seen` reads the number."""
        return event_of(text, f"{_INSTANCE}-{newest.series}-{number}")

    def _json_object(self, newest: NewestMessages, members: Iterable[tuple[str, TopicPayload]]) -> str:
        """Return payloads by topic as a JSON object; raises `RequestRefusedError` (503) if it is too large."""
        shown = loggable(self._filter)
        if not newest.is_complete:
            raise RequestRefusedError(refuse(ANSWER_TOO_LARGE, f"{shown} {_TOO_MANY}"))
        written: list[str] = []
        size = 0
        for topic, payload in members:
            written.append(f"{json.dumps(topic, ensure_ascii=False)}: {payload.json if payload else _REMOVED}")
            size += len(written[-1])
            if size > self._largest:  # characters; so no more of 16 MiB is written than may be answered
                break
        else:
            text = f"{{{', '.join(written)}}}"
            if len(text.encode()) <= self._largest:
                return text
        message = f"The messages on {shown} take more than the {self._largest} bytes of max_response_bytes"
        raise RequestRefusedError(refuse(ANSWER_TOO_LARGE, message))
