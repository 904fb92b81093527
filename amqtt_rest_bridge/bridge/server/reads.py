"""Read events: what a GET is answered with from the newest messages of topics, at once or as a stream.

One topic (with `{path.x}` another one for each request) answers with its payload; a filter with wildcards with a JSON
object of topic to payload. A request only chooses among the topics that the event's filter has matched, so no value in
its path leads to another one.

A stream holds of its messages only the number of the last one that it sent: what its caller has not read is not
gathered for it. Its next piece has what came since then, as far as that is kept for all, else what is newest. So its
memory is bounded, a port that has fallen behind sends the more at once, and callers who read alike share the bytes.
"""

import json
import secrets
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from amqtt_rest_bridge.bridge.server.broker_access import BrokerAccess, TopicPayload, is_not_modified
from amqtt_rest_bridge.bridge.server.request import EventRequest, cannot_fill, error
from amqtt_rest_bridge.catalogue import ANSWER_TOO_LARGE, NO_MESSAGE
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http import exchange as http
from amqtt_rest_bridge.http.event_stream import HEADERS, RETRY, Pulse, event_of
from amqtt_rest_bridge.http.exchange import RefusedError
from amqtt_rest_bridge.http_server import Headers, Response
from amqtt_rest_bridge.link.newest import MOST_TOPICS, Newest
from amqtt_rest_bridge.model import Route, ServerEvent
from amqtt_rest_bridge.topics import has_wildcards, loggable, matcher_of

_INSTANCE: Final = secrets.token_hex(4)  # the numbers of changes are those of this process
_NOTHING: Final = -1  # the number of a change before the first one
_TOO_MANY: Final = f"has matched more than {MOST_TOPICS} topics, or 16 MiB of topics and payloads"
_REMOVED: Final = "null"
_MOST_PIECES: Final = 8  # of one filter that are kept for readers who are alike; callers choose where theirs begin
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")

ReadBody = Callable[[EventRequest], bytes]
"""Return a request's body; raises `RefusedError` for one without the signature that its event requires."""


class Reading:
    """Answers the requests of one read event.

    Args:
        route: Of the event.
        event: It has a `read_filter`.
        broker: Has the messages.
        read_body: Checks the signature that the event may require.
        max_response_bytes: A larger object is not answered.
    """

    def __init__(
        self, route: Route, event: ServerEvent, broker: BrokerAccess, read_body: ReadBody, max_response_bytes: int
    ) -> None:
        self.name = route.name, event.name
        self.definition = route.config, event
        self.broker = broker
        self.filter = event.read_filter or ""
        self._event = event
        self._read_body = read_body
        self._largest = max_response_bytes
        self._shared: WeakValueDictionary[str, _Topics] = WeakValueDictionary()  # in use by streams, by their filters
        source = event.source_topic or ""
        self._topics = None if event.read_topic is not None else self._topics_of(source)

    def respond(self, request: EventRequest) -> Response:
        """Answer with what is newest, or begin a stream."""
        body = self._read_body(request)
        topics = self._topics
        if topics is None and self._event.read_topic is not None:
            try:
                topics = self._topics_of(self._event.read_topic.fill(request.values(body)))
            except CallError as failure:
                raise cannot_fill(failure) from failure
        assert topics is not None  # noqa: S101  # one of both
        if self._event.stream:
            return self._streamed(request, topics)
        payload = topics.answer(self.broker.newest(self.filter))
        headers = (("ETag", payload.entity_tag), ("Cache-Control", "no-cache"))
        if is_not_modified(request.headers.get("if-none-match"), payload.entity_tag):
            return Response("304 Not Modified", headers)
        return payload_answer(payload, headers)

    def _topics_of(self, topic: str) -> "_Topic | _Topics":
        if not has_wildcards(topic):
            return _Topic(topic)
        topics = self._shared.get(topic)
        if topics is None:
            topics = self._shared[topic] = _Topics(topic, self._largest, is_all=topic == self.filter)
        return topics

    def _streamed(self, request: EventRequest, topics: "_Topic | _Topics") -> Response:
        if request.method == "HEAD":
            return Response("200 OK", HEADERS)
        stream = Reader(self, topics, request)
        if not self.broker.follow(self.filter, stream):
            raise RefusedError(http.overloaded("The bridge has as many streams open as it can serve"))
        return Response("200 OK", HEADERS, stream=stream)


def payload_answer(payload: TopicPayload, headers: Headers = ()) -> Response:
    """Return the answer that has a payload."""
    # Any client may have published the payload: a browser must not take text for a page.
    own = (("Content-Type", payload.content_type), _NO_SNIFFING)
    return Response("200 OK", (*headers, *own), payload.payload)


class _Piece(NamedTuple):
    """Events of a stream, none where nothing is to be shown, and the number of the last change that they show."""

    number: int
    written: bytes


class _Pieces(dict[tuple[int, int], _Piece]):
    """Pieces that lead from one number to another, the present one; few of them."""

    def keep(self, seen: int, piece: _Piece) -> _Piece:
        """Keep a piece for the next reader."""
        if len(self) >= _MOST_PIECES or any(key[1] != piece.number for key in self):
            self.clear()
        self[seen, piece.number] = piece
        return piece


class _Topic:
    """One topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._pieces = _Pieces()

    def concerns(self, topic: str) -> bool:
        return topic == self._topic

    def answer(self, newest: Newest[TopicPayload]) -> TopicPayload:
        """Return its payload; raises `RefusedError` (404) where there is none."""
        payload = newest.get(self._topic)
        if payload is None:
            shown = loggable(self._topic)
            if newest.is_complete:
                raise error(NO_MESSAGE, f"No message has been seen on {shown} yet")
            raise error(NO_MESSAGE, f"No message is kept of {shown}: {loggable(newest.topic_filter)} {_TOO_MANY}")
        return payload

    def seen(self, newest: Newest[TopicPayload], last_id: str) -> int:
        """Return the number of the change that a caller has seen who names the id of its last event."""
        payload = newest.get(self._topic)
        return payload.number if payload is not None and payload.entity_tag == f'"{last_id}"' else _NOTHING

    def piece(self, newest: Newest[TopicPayload], seen: int) -> _Piece | None:
        """Return what is new since that change, None for nothing."""
        payload = newest.get(self._topic)
        if payload is None or payload.number <= seen:
            return None
        new = [payload]
        if seen != _NOTHING:
            new = [one for topic, one in newest.since(lambda one: one.number > seen)[1] if topic == self._topic] or new
        number = new[-1].number
        if len(new) == 1:
            return _Piece(number, new[0].event)
        kept = self._pieces.get((seen, number))
        return kept or self._pieces.keep(seen, _Piece(number, b"".join(one.event for one in new)))


class _Topics:
    """The topics that a filter with wildcards matches, in one JSON object."""

    def __init__(self, topic_filter: str, largest: int, *, is_all: bool) -> None:
        self._filter = topic_filter
        self._largest = largest
        self._is_all = is_all
        self._matches = matcher_of(topic_filter)
        self._answer: tuple[int, TopicPayload] | None = None  # and the number of the change that it shows
        self._pieces = _Pieces()

    def concerns(self, topic: str) -> bool:
        return self._is_all or self._matches(topic) is not None

    def answer(self, newest: Newest[TopicPayload]) -> TopicPayload:
        """Return the object; raises `RefusedError` (503) where it is too large."""
        return self._answered(newest)[1]

    def _answered(self, newest: Newest[TopicPayload]) -> tuple[int, TopicPayload]:
        made = self._answer
        if made is None or made[0] != newest.number:
            number, seen = newest.seen()
            members = ((topic, one) for topic, one in seen if one and self.concerns(topic))
            made = self._answer = number, TopicPayload(self._object(newest, members).encode())
        return made

    def seen(self, newest: Newest[TopicPayload], last_id: str) -> int:
        of, _, number = last_id.rpartition("-")
        # Decision: numbers of another filter, or of this one before a reload took it away, say nothing of what is here.
        if of != f"{_INSTANCE}-{newest.series}" or not (number.isascii() and number.isdigit() and len(number) < 19):
            return _NOTHING
        return int(number) if int(number) <= newest.number else _NOTHING

    def piece(self, newest: Newest[TopicPayload], seen: int) -> _Piece | None:
        number = newest.number
        if number == seen:
            return None
        kept = self._pieces.get((seen, number))
        if kept is not None:
            return kept
        if seen == _NOTHING:
            number, whole = self._answered(newest)
            return self._pieces.keep(seen, _Piece(number, self._event(newest, number, whole.payload.decode())))
        number, topics = newest.since(lambda one: one.number > seen)
        changes = [one for one in topics if self.concerns(one[0])]
        if newest.is_complete and not changes:
            return _Piece(number, b"")
        objects: list[dict[str, TopicPayload]] = [{}]
        for topic, one in changes:
            if topic in objects[-1]:
                objects.append({})
            objects[-1][topic] = one
        numbers = [max(one.number for one in each.values()) for each in objects[:-1]]
        written = (
            self._event(newest, shown, self._object(newest, each.items()))
            for shown, each in zip((*numbers, number), objects, strict=True)
        )
        return self._pieces.keep(seen, _Piece(number, b"".join(written)))

    def _event(self, newest: Newest[TopicPayload], number: int, text: str) -> bytes:
        return event_of(text, f"{_INSTANCE}-{newest.series}-{number}")

    def _object(self, newest: Newest[TopicPayload], members: Iterable[tuple[str, TopicPayload]]) -> str:
        shown = loggable(self._filter)
        if not newest.is_complete:
            raise error(ANSWER_TOO_LARGE, f"{shown} {_TOO_MANY}")
        written: list[str] = []
        size = 0
        for topic, one in members:  # of 16 MiB no more is written than may be answered
            written.append(f"{json.dumps(topic, ensure_ascii=False)}: {one.json if one else _REMOVED}")
            size += len(written[-1])
            if size > self._largest:
                break
        else:
            text = f"{{{', '.join(written)}}}"
            if len(text.encode()) <= self._largest:
                return text
        message = f"The messages on {shown} take more than the {self._largest} bytes of max_response_bytes"
        raise error(ANSWER_TOO_LARGE, message)


class Reader:
    """The stream of one caller; fulfils `http_server.Stream` and `broker_access.Follows`."""

    def __init__(self, reading: Reading, topics: _Topic | _Topics, request: EventRequest) -> None:
        self.name = reading.name
        self.definition = reading.definition
        self._reading = reading
        self._topics = topics
        self._wake = request.wake
        self._pulse = Pulse(request.clock)
        self._has_ended = False
        newest = reading.broker.newest(reading.filter)
        self._seen, number = topics.seen(newest, request.headers.get("last-event-id", "")), newest.number
        first = topics.piece(newest, self._seen)
        self._seen, self._first = (number, RETRY) if first is None else (first.number, RETRY + first.written)

    def changed(self, topic: str) -> None:
        """Wake the stream where the topic is one of its own; any thread."""
        if self._topics.concerns(topic):
            self._wake()

    def end(self) -> None:
        """End the stream; any thread."""
        self._has_ended = True
        self._wake()

    def begin(self, wake: Callable[[], None]) -> None:
        """No-op: `wake` was given before."""

    def take(self) -> bytes | float:
        """Return what the caller has not been sent."""
        if self._has_ended:
            return b""
        if self._first:
            first, self._first = self._first, b""
            return self._pulse.of(first)
        try:
            piece = self._topics.piece(self._reading.broker.newest(self._reading.filter), self._seen)
        except RefusedError:  # the next request of this caller is answered with it
            return b""
        if piece is None:
            return self._pulse.of(b"")
        self._seen = piece.number
        return self._pulse.of(piece.written)

    def close(self) -> None:
        """Cease to follow."""
        self._reading.broker.unfollow(self._reading.filter, self)
