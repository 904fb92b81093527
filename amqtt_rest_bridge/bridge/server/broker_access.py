"""Server mode's side of the broker: publish, wait for a reply, read the latest payload of a topic, count the answers.

The broker itself is in the other process, behind the link. What it hears of answers is one `Served` every half second.

Nothing here blocks. What takes time (room at the broker, a reply) calls `wake` once it has come: on any thread,
possibly before the method that was given it returns, and `wake` must not block either. Any thread may call.
"""

import hashlib
import json
import logging
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Final, Protocol

from msgspec.structs import replace

from amqtt_rest_bridge.admin.numbers import BUCKETS, Durations
from amqtt_rest_bridge.bridge.claims import KeyClaims
from amqtt_rest_bridge.catalogue import SHUTTING_DOWN
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.http.event_stream import event_of
from amqtt_rest_bridge.link.bridge_end import Entry
from amqtt_rest_bridge.link.frames import (
    CALLER_REFUSED,
    HEALTH_WINDOW,
    NOT_SERVED,
    SKIPPED,
    UNMATCHED_PATHS,
    WELL,
    EventAnswers,
    RequestCount,
    RequestTimes,
    RouteAnswers,
    Served,
    StreamReaders,
    ToBroker,
    UnmatchedCount,
)
from amqtt_rest_bridge.link.frequent import Frequent
from amqtt_rest_bridge.link.newest import Newest
from amqtt_rest_bridge.model import EventName, Pairs, Publication, RestApiConfig, Route, ServerEvent
from amqtt_rest_bridge.records.bridge_records import LONGEST_METHOD, BridgeRecords, RawRequest, ServedEvent
from amqtt_rest_bridge.records.runs import NOT_SERVED_CODES

log = logging.getLogger(__name__)

Wake = Callable[[], None]
Once = tuple[bytes, float, bytes]
"""Key, seconds and answer of a claim that ends with a publication; see `link.frames.PublishOnce`."""

MOST_FOLLOWERS: Final = 2_000
"""Streams of a bridge process."""

_JSON_STARTS: Final = frozenset(b'{["-0123456789tfn')
_JSON_SPACE: Final = b" \t\r\n"

_NO_ANSWERS: Final = RouteAnswers(0, 0, "", "")
_STOPPING: Final = SHUTTING_DOWN.code
_MOST_TIMES: Final = 200  # of a route in one report
_COUNTED_TOGETHER: Final = 64  # answers: one by one each takes 2.2 us, together 1.2
_LONGEST_PATH: Final = 1000
_QUERY: Final = re.compile("[?#]|%3[fF]|%23")  # callers put credentials there, and encode it by mistake


class ShuttingDownError(BridgeError):
    """The bridge is closing; nothing has been published."""


class SendsPublications(Protocol):
    """The way of publications to the broker; see `link.bridge_end.BridgeEnd`."""

    def publish(self, publication: Publication) -> bool:
        """Send a publication; return False when there is no room for it now."""
        ...

    def enqueue(self, publication: Publication, wake: Wake, *, confirmed: bool, once: Once | None = None) -> Entry:
        """Send a publication as soon as there is room."""
        ...

    def end_turn(self) -> None:
        """Send what `enqueue` has gathered."""
        ...

    def send_in_order(self, frame: ToBroker) -> None:
        """Send a frame after all that came before it."""
        ...

    def withdraw(self, entry: Entry) -> bool:
        """Remove one that waits; return False when it does not (any more)."""
        ...


class Follows(Protocol):
    """A stream of the newest messages of a filter."""

    name: EventName
    definition: tuple[RestApiConfig, ServerEvent]
    """Of the event; a stream of an earlier one ends."""

    def changed(self, topic: str) -> None:
        """Take note of a message; on any thread, must not block."""
        ...

    def end(self) -> None:
        """End the stream, likewise."""
        ...


class AwaitedReply:
    """One request that waits for its reply; under the lock of `BrokerAccess`, but for reading.

    `correlation` is the Correlation Data that it was published with, None without. A reply has the same, or with
    `takes_unmarked` none: a wrong one is another request's.
    """

    __slots__ = ("_takes_unmarked", "_wake", "correlation", "dismissed", "payload", "trace")

    def __init__(self, wake: Wake, correlation: bytes | None = None, *, takes_unmarked: bool = True) -> None:
        self.payload: bytes | None = None
        self.trace: Pairs = ()
        self.dismissed = False
        self.correlation = correlation
        self._takes_unmarked = takes_unmarked
        self._wake = wake

    def is_for(self, correlation: bytes | None) -> bool:
        """Return whether a message with this Correlation Data, None for none, may be the reply."""
        if self.correlation is None or correlation is None:
            return self._takes_unmarked
        return correlation == self.correlation

    def arrive(self, payload: bytes, trace: Pairs = ()) -> None:
        """Store a message and its trace context; only the first counts."""
        if self.payload is None and not self.dismissed:
            self.payload, self.trace = payload, trace
            self._wake()

    def dismiss(self) -> None:
        """End the waiting without a message."""
        if self.payload is None:
            self.dismissed = True
            self._wake()


class TopicPayload:
    """A message's payload for any number of answers; what they need of it is made once, for the first one.

    `number` is that of the change of its `Newest` with which it came.
    """

    def __init__(self, payload: bytes, number: int = 0) -> None:
        self.payload = payload
        self.number = number

    def __len__(self) -> int:
        return len(self.payload)

    @cached_property
    def json(self) -> str:
        """Return the payload as JSON: as it is where it is JSON, else as a string."""
        text = self.payload.decode(errors="replace")
        return text if self.content_type == "application/json" else json.dumps(text, ensure_ascii=False)

    @cached_property
    def event(self) -> bytes:
        """Return the payload as a server-sent event, whose id is the same for the same bytes."""
        return event_of(self.payload.decode(errors="replace"), self.entity_tag.strip('"'))

    @cached_property
    def content_type(self) -> str:
        """Return the media type; see `content_type_of`."""
        return content_type_of(self.payload)

    @cached_property
    def entity_tag(self) -> str:
        """Return the entity tag; see `entity_tag_of`."""
        return entity_tag_of(self.payload)


def content_type_of(payload: bytes) -> str:
    """Return a payload's media type by its content: JSON (RFC 8259), else UTF-8 text, else octets."""
    start = payload.lstrip(_JSON_SPACE)[:1]
    try:
        if start and start[0] in _JSON_STARTS:
            json.loads(payload.decode(), parse_constant=_refuse_constant)
            return "application/json"
    except UnicodeDecodeError:
        return "application/octet-stream"
    except (ValueError, RecursionError):
        pass
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "application/octet-stream" if "\0" in text else "text/plain; charset=utf-8"


def entity_tag_of(payload: bytes) -> str:
    """Return a strong entity tag (RFC 9110 section 8.8.3): the same for the same bytes in every process."""
    return f'"{hashlib.blake2b(payload, digest_size=16).hexdigest()}"'


def is_not_modified(if_none_match: str | None, entity_tag: str) -> bool:
    """Return whether the caller has this entity already (If-None-Match, weak comparison, RFC 9110 section 13.1.2)."""
    if not if_none_match:
        return False
    given = [item.strip().removeprefix("W/") for item in if_none_match.split(",")]
    return entity_tag in given or given == ["*"]


def _refuse_constant(_name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError


class BrokerAccess:
    """Publish, and wait for messages: the latest payloads of read events, and replies.

    `answers` counts what requests were answered with. `records` is where they are recorded for the admin port, None
    without one; the same while the bridge runs. With `is_mqtt_5` the broker acknowledges publications, and
    messages have properties.
    """

    is_mqtt_5 = False

    def __init__(self, link: SendsPublications) -> None:
        self.claims = KeyClaims(link.send_in_order)
        self.answers = Answers()
        self.records: BridgeRecords | None = None
        self.closing = False
        self._streams = True
        self._link = link
        self._reads: dict[str, Newest[TopicPayload]] = {}  # by watched filter
        self._followers: dict[str, set[Follows]] = {}  # by filter, likewise
        self._readers: Counter[str] = Counter()  # of streams, by route
        self._reported: Mapping[str, int] = {}
        self._watches = False  # what comes before the first routes, after a restart, is theirs
        self._lock = threading.Lock()
        self.awaited: dict[str, list[AwaitedReply]] = {}
        """The requests that wait for a reply, by its topic; changed under the lock."""

    def publish(self, publication: Publication) -> bool:
        """Send a publication if there is room; once this returns true the broker has it, even if this process dies.

        False too where the broker's acknowledgement has to be waited for, see `enqueue`.

        Raises `ShuttingDownError` when the bridge closes.
        """
        if self.closing:
            raise ShuttingDownError("the bridge is shutting down")
        return not self.is_mqtt_5 and self._link.publish(publication)

    def enqueue(self, publication: Publication, wake: Wake, once: Once | None = None) -> Entry:
        """Send a publication as soon as there is room, in order of arrival.

        `wake` is called once it was sent late, and once its outcome is known later. `once` is the claim that it ends.

        Raises `ShuttingDownError` when the bridge closes.
        """
        if self.closing:
            raise ShuttingDownError("the bridge is shutting down")
        return self._link.enqueue(publication, wake, confirmed=self.is_mqtt_5, once=once)

    def withdraw(self, queued: Entry) -> bool:
        """Take back a publication that waits for room; return False when it was sent, or taken back before."""
        return self._link.withdraw(queued)

    def end_turn(self) -> None:
        """Send what was enqueued since the last call; by a port's thread, before it waits."""
        self._link.end_turn()

    def watch(self, filters: Iterable[str]) -> None:
        """Store the newest messages of these topic filters from now on, and of no others."""
        self._reads = {one: self._reads.get(one) or Newest(one) for one in filters}
        self._watches = True

    def changed(self, topic_filter: str, topic: str, payload: bytes) -> None:
        """Store the newest message on a topic of a filter; drop that of one that is not watched any more."""
        newest = self._reads.get(topic_filter)
        if newest is None:
            if self._watches:
                return
            newest = self._reads[topic_filter] = Newest(topic_filter)
        newest.put(topic, TopicPayload(payload, newest.number + 1))
        for follower in tuple(self._followers.get(topic_filter, ())):
            follower.changed(topic)

    def follow(self, topic_filter: str, follower: Follows) -> bool:
        """Call a follower for each change of a filter; return False when there are too many."""
        with self._lock:
            if not self._streams or self._readers.total() >= MOST_FOLLOWERS:
                return False
            self._followers.setdefault(topic_filter, set()).add(follower)
            self._readers[follower.name[0]] += 1
            return True

    def unfollow(self, topic_filter: str, follower: Follows) -> None:
        """Do not call a follower any more."""
        with self._lock:
            self._followers[topic_filter].remove(follower)
            self._readers[follower.name[0]] -= 1

    def take_readers(self) -> StreamReaders | None:
        """Return how many streams are open, None where that is what the last call returned."""
        with self._lock:
            self._readers = +self._readers
            readers = dict(self._readers)
        if readers == self._reported:
            return None
        self._reported = readers
        return StreamReaders(readers)

    def end_streams(self, present: Iterable[Route] = ()) -> None:
        """End the streams of events that are not defined like this any more; without routes all, and take no others."""
        definitions = {
            (route.name, event.name): (route.config, event) for route in present for event in route.server_events
        }
        with self._lock:
            self._streams = bool(definitions)
            for follower in [one for followers in self._followers.values() for one in followers]:
                if definitions.get(follower.name) != follower.definition:
                    follower.end()

    def seen(self, topic: str, payload: bytes, correlation: bytes | None = None, trace: Pairs = ()) -> None:
        """Pass a message that may be a reply to the requests that wait for it."""
        with self._lock:
            for reply in self.awaited.get(topic, ()):
                if reply.is_for(correlation):
                    reply.arrive(payload, trace)

    def newest(self, topic_filter: str) -> Newest[TopicPayload]:
        """Return the newest messages seen on a watched filter, by topic."""
        return self._reads.get(topic_filter) or Newest(topic_filter)

    @contextmanager
    def expect(
        self, topic: str, wake: Wake, correlation: bytes | None = None, *, takes_unmarked: bool = True
    ) -> Iterator[AwaitedReply]:
        """Wait for the first reply on `topic` from entering on, until leaving; it or a dismissal calls `wake`.

        For the rest see `AwaitedReply`.
        """
        reply = AwaitedReply(wake, correlation, takes_unmarked=takes_unmarked)
        with self._lock:
            self.awaited.setdefault(topic, []).append(reply)
        try:
            yield reply
        finally:
            with self._lock:
                self.awaited[topic].remove(reply)
                if not self.awaited[topic]:
                    del self.awaited[topic]

    def dismiss(self) -> None:
        """End the waiting of every request, without a reply."""
        with self._lock:
            for replies in self.awaited.values():
                for reply in replies:
                    reply.dismiss()


# Answers.


_Kind = tuple[ServedEvent, str, str | None]
"""What answers are counted by: event, status line, and the code of an error."""


class Answers:
    """Count answers: one number for each kind, from which `take` makes what the broker wants to know."""

    def __init__(self) -> None:
        self.recorded = False
        """Whether requests are reported by status too, and their times by event, for the admin port."""
        self._lock = threading.Lock()
        self._noted: deque[RawRequest] = deque()  # see `count`
        self._begin()
        self._has_lines, self._has_all_lines = log.isEnabledFor(logging.WARNING), log.isEnabledFor(logging.INFO)

    def _begin(self) -> None:
        self._counts: dict[_Kind, int] = {}  # the kind of the last answer at the end
        self._ids: dict[_Kind, str] = {}  # of the last request
        self._messages: dict[_Kind, str] = {}
        self._recent: dict[str, deque[_Kind]] = {}
        self._seconds: dict[str, deque[float]] = {}  # of those that were served well
        self._times: defaultdict[ServedEvent, Durations] = defaultdict(Durations)
        self._unmatched: dict[int, Frequent[tuple[str, str, int]]] = {}
        self._unmatched_totals: dict[int, int] = {}

    def count(self, raw: RawRequest) -> None:
        """Count an answer by its status line and, of an error, its code and message; add up its duration.

        Called once for every request that led to an event.
        """
        self._noted.append(raw)
        if len(self._noted) >= _COUNTED_TOGETHER:
            with self._lock:
                self._add_up()

    def _add_up(self) -> None:
        """Count what was noted; under the lock."""
        while self._noted:
            raw = self._noted.popleft()
            served, failure, seconds = raw.served, raw.failure, raw.seconds
            code, message = (None if raw.kind == "request" else raw.kind, None) if failure is None else failure[:2]
            kind = served, raw.status, code
            self._counts[kind] = self._counts.pop(kind, 0) + 1
            self._ids[kind] = raw.run
            if message is not None:
                self._messages[kind] = message
            recent = self._recent.get(served.route)
            if recent is None:
                recent = self._recent[served.route] = deque(maxlen=HEALTH_WINDOW)
                self._seconds[served.route] = deque(maxlen=_MOST_TIMES)
            recent.append(kind)
            if code is None:
                self._seconds[served.route].append(seconds)
            if self.recorded and (code is None or code in NOT_SERVED_CODES):
                self._times[served].add(seconds, BUCKETS)

    def unmatched(self, port: int, method: str, path: str, status: str) -> None:
        """Count a request that led to no endpoint: the port that it came to, its path and its answer's status line."""
        with self._lock:
            self._unmatched_totals[port] = self._unmatched_totals.get(port, 0) + 1
            paths = self._unmatched.setdefault(port, Frequent(UNMATCHED_PATHS))
            paths.add((method[:LONGEST_METHOD], _QUERY.split(path[:_LONGEST_PATH], 1)[0], int(status[:3])))

    def take(self) -> Served:
        """Return what was counted by route and event, with the log's lines by event, and reset the counts."""
        with self._lock:
            self._add_up()
            counts, ids, messages, recent = self._counts, self._ids, self._messages, self._recent
            seconds, times = self._seconds, self._times
            unmatched, unmatched_totals = self._unmatched, self._unmatched_totals
            self._begin()
        routes = {
            route: replace(answers, recent=_outcomes(recent[route]), seconds=list(seconds[route]))
            for route, answers in _routes(counts, messages).items()
        }
        return Served(
            routes,
            _lines(counts, ids, failures_only=not self._has_all_lines) if self._has_lines else [],
            [_request_count(kind, count, ids[kind], messages.get(kind)) for kind, count in counts.items()]
            if self.recorded
            else [],
            [RequestTimes(one.route, one.event, took) for one, took in times.items()],
            [
                UnmatchedCount(port, *key, count, excess)
                for port, paths in unmatched.items()
                for key, count, excess in paths.counts()
            ],
            unmatched_totals,
        )


def _outcomes(kinds: Iterable[_Kind]) -> str:
    """Write each answer as one character.

    Decision: an answer of a bridge or port that closes says nothing of the route's health.
    """
    return "".join(
        WELL if code is None or code == SKIPPED else NOT_SERVED if code in NOT_SERVED_CODES else CALLER_REFUSED
        for _, _, code in kinds
        if code != _STOPPING
    )


def _routes(counts: Mapping[_Kind, int], messages: Mapping[_Kind, str]) -> dict[str, RouteAnswers]:
    routes: dict[str, RouteAnswers] = {}
    for kind, count in counts.items():
        served, status, code = kind
        answers = routes.get(served.route, _NO_ANSWERS)
        if code is None:
            answers = replace(answers, answered=answers.answered + count)
        elif code == SKIPPED:
            answers = replace(answers, skipped=answers.skipped + count)
        elif code in NOT_SERVED_CODES:
            message = messages.get(kind, "")
            answers = replace(answers, failed=answers.failed + count, code=str(code), message=message)
        elif code != _STOPPING:
            answers = replace(answers, refused=answers.refused + count, refusal=f"{status[:3]} {code}")
        routes[served.route] = answers
    return routes


def _request_count(kind: _Kind, count: int, request_id: str, message: str | None) -> RequestCount:
    served, status, code = kind
    shown = None if code in (SKIPPED, _STOPPING) else code
    return RequestCount(served.route, served.event, status[:3], count, shown, message, request_id)


def _lines(counts: Mapping[_Kind, int], ids: Mapping[_Kind, str], *, failures_only: bool) -> list[EventAnswers]:
    totals: dict[tuple[ServedEvent, int, bool], int] = {}
    texts: dict[tuple[ServedEvent, int, bool], str] = {}
    for kind, count in counts.items():
        served, status, code = kind
        if failures_only and code not in NOT_SERVED_CODES:
            continue
        line = served, int(status[0]), code in NOT_SERVED_CODES
        totals[line] = totals.get(line, 0) + count
        error = "" if code is None else f" {code}"
        texts[line] = f"answered {served.request} with {status[:3]}{error}, run {ids[kind]}"
    return [
        EventAnswers(one.route, one.event, of, total, texts[one, of, bad], bad)
        for (one, of, bad), total in totals.items()
    ]
