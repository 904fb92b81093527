"""The protocol of the link: every frame and every value that travels between the broker and a bridge process.

Values and their bytes live here, no I/O; both processes use them, on any thread, a decoder on one at a time. The
journey of a message on the link:

    broker process                          bridge process
    Calls      [DispatchedCall, ...]   ->   sends the HTTP requests
               Waiting                 <-   between two tries of a call
    publishes  [CallResult, ...]       <-   Results
    CreditReturn                       ->   may send more publications

and of a request in server mode: `Publications` carries its publication to the broker, `Replies` and `Latest` bring the
messages that it is answered with, `Served` counts the answers.

The frames of the admin port are in `link.admin_frames`.

Frames arrive in the order in which they were sent. On the wire a frame is a four-byte length (little-endian) and a
MessagePack array that begins with the frame's tag. msgspec encodes and decodes eight calls of 100 bytes in 0.4 us
each, objects included; marshalled tuples, which have no names, take the same 0.4 us. Times are seconds, sizes bytes.
"""

import struct
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from amqtt_rest_bridge.admin.numbers import Durations
from amqtt_rest_bridge.link.admin_frames import EndedRequest, FromAdmin, ToAdmin
from amqtt_rest_bridge.model import Message, Pairs, Publication
from amqtt_rest_bridge.records.values import Evidence

INITIAL_CREDITS: Final = 512
"""Credits of a bridge process that starts: some 8 MiB of publications on their way to the broker at most."""


SKIPPED: Final = "skipped"
"""Code of a call, or of a request of server mode, for which WHEN is false: it has ended, and nothing was sent."""

CREDIT_BYTES: Final = 16_384
"""For so many bytes a credit more is taken."""

CHUNK: Final = 256 * 1024
"""Bytes that are read, or written, at once."""
_LENGTH: Final = struct.Struct("<I")
_encoder: Final = msgspec.msgpack.Encoder()


def credits_for(payload: bytes) -> int:
    """Return the credits of a publication: one, and one more for every 16 KiB of payload."""
    return 1 + len(payload) // CREDIT_BYTES


# Values inside frames.


class DispatchedCall(Struct, frozen=True, array_like=True):
    """A call on its way to a bridge process.

    `id` is the broker's number for it, in every frame about this call. `event` is the number of its client event, see
    `NumberedRoute`. `idempotency_key` is None unless its route is lossless. The run id is made of the key,
    or of `id`, see `RunIds`.
    """

    id: int
    event: int
    message: Message
    idempotency_key: str | None


class CallResult(Struct, frozen=True, array_like=True):
    """The end of a call: `code` is None for a success, `SKIPPED`, or a `FailureCode` that `message` explains.

    `status` is the HTTP status, None without a response. `took` are the seconds that its requests took, `waited` the
    others since the broker received the message: for a worker, a turn, a token, the next try. `publication` is the
    result or the failure payload, None when the event names no topic for it. `evidence` is what the broker process
    keeps of the call, beside its message; None where it keeps nothing. `also` are the other calls of a batch that has
    succeeded: they end in the same way, without a publication.
    """

    call: int
    status: int | None
    code: str | None
    message: str
    waited: float
    took: float
    publication: Publication | None
    evidence: Evidence | None = None
    also: list[int] = []


class FailedTry(Struct, frozen=True, array_like=True):
    """A try of a call has failed, and another one follows: what `CallError` says, without secrets.

    `status` is the HTTP status, None without a response. `also` are the other calls of a batch, which it was for too.
    """

    code: str
    message: str
    hint: str
    status: int | None
    also: list[int] = []


class TopicMessage(Struct, frozen=True, array_like=True):
    """A payload that was published on `topic`.

    `correlation` is its Correlation Data, `trace` the trace context among its user properties.
    """

    topic: str
    payload: bytes
    correlation: bytes | None = None
    trace: Pairs = ()


class ReadMessage(Struct, frozen=True, array_like=True):
    """The newest message on a topic that the filter of a read event matches; see `newest.Newest.put`."""

    topic_filter: str
    topic: str
    payload: bytes


class RequestCount(Struct, frozen=True, array_like=True):
    """Requests that a server event has answered with this status since the last report.

    `code` is that of an error, else None; `message` goes with it, and `run` is the id of the last one.
    """

    route: str
    event: str
    status: str
    count: int
    code: str | None = None
    message: str | None = None
    run: str | None = None


class RequestTimes(Struct, frozen=True, array_like=True):
    """How long a server event took to answer since the last report.

    Those of callers that were refused are left out, as are those for which WHEN is false.
    """

    route: str
    event: str
    took: Durations


WELL: Final = "."
CALLER_REFUSED: Final = "c"
NOT_SERVED: Final = "x"
MOST_REPLY_BYTES: Final = 8 << 20
"""Replies on their way to one bridge process, and one reply more.

Decision: beyond this bound replies are dropped, and log and status tell; messages of read events only skip.
"""
HEALTH_WINDOW: Final = 20
"""Health looks at so many of the last calls of a route, and of its last requests of server mode."""


class RouteAnswers(Struct, frozen=True, array_like=True):
    """Requests that a route has answered since the last report.

    `failed` are those that the route could not serve, the last of them with `code` and `message`. `skipped` are those
    for which WHEN is false. `refused` are callers' mistakes, the last of them answered with `refusal` (`401
    unauthorized`). `recent` has a character for each of the last 20: `WELL`, `CALLER_REFUSED` or `NOT_SERVED`.
    `seconds` are the times of the last ones that were served well, some of them where they are many.
    """

    answered: int
    failed: int
    code: str
    message: str
    skipped: int = 0
    refused: int = 0
    refusal: str = ""
    recent: str = ""
    seconds: list[float] = []


UNMATCHED_PATHS: Final = 32
"""How many paths of a port a report counts each for itself."""


class UnmatchedCount(Struct, frozen=True, array_like=True):
    """Requests to a path of a port that led to no endpoint; `excess` of `count` may have gone to other paths."""

    port: int
    method: str
    path: str
    status: int
    count: int
    excess: int


class EventAnswers(Struct, frozen=True, array_like=True):
    """Requests that a server event has answered since the last report; `line` describes the last one, for the log.

    They have the first digit of their status in common, and whether the bridge, the broker or a reply was at fault.
    """

    route: str
    event: str
    status_class: int
    count: int
    line: str
    is_failure: bool = False


class StalledPort(Struct, frozen=True, array_like=True):
    """A port whose thread has taken no turn since the last `Ping`: SERVER_PORT, and the port that is bound for it."""

    configured: int
    bound: int


# Broker to bridge process.


class UseRoutes(Struct, frozen=True, array_like=True, tag=1):
    """Replace all routes and serve these ports; answered by `Ready`, or by `Failed`.

    `pickled` holds `BridgeSettings` and a tuple of `NumberedRoute`. `ports` are configured SERVER_PORTs.
    """

    pickled: bytes
    ports: list[int]


class Listen(Struct, frozen=True, array_like=True, tag=2):
    """Use these listening sockets: one for each configured port travels beside the bytes, in this order."""

    ports: list[int]


class Calls(Struct, frozen=True, array_like=True, tag=3):
    """Run these calls, in order of arrival."""

    calls: list[DispatchedCall]


class Replies(Struct, frozen=True, array_like=True, tag=4):
    """Messages that requests of server mode may wait for."""

    messages: list[TopicMessage]


class CreditReturn(Struct, frozen=True, array_like=True, tag=5):
    """Return credits of publications that the broker has published."""

    credits: int


class Stop(Struct, frozen=True, array_like=True, tag=6):
    """Start nothing more, and finish within `grace` seconds; answered by `Stopped`."""

    grace: float


class Ping(Struct, frozen=True, array_like=True, tag=7):
    """Request `Pong`, sent once every port has taken a turn, or `Stalled`."""


class Latest(Struct, frozen=True, array_like=True, tag=8):
    """The newest messages of read events."""

    messages: list[ReadMessage]


class Confirmed(Struct, frozen=True, array_like=True, tag=15):
    """The broker has these `Publications`; those that are `refused` it does not have, or may not have."""

    numbers: list[int]
    refused: list[int]


class InGroup(Struct, frozen=True, array_like=True, tag=16):
    """What holds for a worker of a group from now on.

    So many `workers` share each RATE_LIMIT. Calls of ORDERED events begin until `ordered_until`, by `times.lease_time`;
    beyond it they wait for the next such frame: another worker may have their slots.
    """

    workers: int
    ordered_until: float


class Claimed(Struct, frozen=True, array_like=True, tag=19):
    """What became of a `Claim`: `answer` is that of a key that was seen, None for a claim that is granted."""

    claim: int
    answer: bytes | None


class Withdraw(Struct, frozen=True, array_like=True, tag=18):
    """Begin none of these calls, and no other try of them; each is answered by `Returned`, or by its end.

    Calls of an earlier frame that are not among them have ended.
    """

    calls: list[int]


# Bridge process to broker.


class Claim(Struct, frozen=True, array_like=True, tag=45):
    """Work on a `key` of DEDUPE_KEY, unless it was seen; answered by `Claimed`, once no other claim has it."""

    claim: int
    key: bytes


class PublishOnce(Struct, frozen=True, array_like=True, tag=46):
    """Publish; then the key of a claim was seen for so many `seconds`, and is answered with `answer`.

    One frame, so that a bridge process which ends has done both or nothing. `number` is as in `Publications`.
    """

    publication: Publication
    key: bytes
    seconds: float
    answer: bytes
    number: int = 0


class Settle(Struct, frozen=True, array_like=True, tag=47):
    """End a claim: the key was seen and has this `answer`, or with None was not seen."""

    key: bytes
    seconds: float
    answer: bytes | None


class Ready(Struct, frozen=True, array_like=True, tag=20):
    """The routes of the last `UseRoutes` are in use."""


class Failed(Struct, frozen=True, array_like=True, tag=21):
    """The bridge process cannot start and ends; `reason` is a sentence for the operator."""

    reason: str


class Results(Struct, frozen=True, array_like=True, tag=22):
    """These calls have ended."""

    results: list[CallResult]


class Publications(Struct, frozen=True, array_like=True, tag=23):
    """Publish what requests of server mode brought.

    `first` is the number of the first one, which the others follow; `Confirmed` answers each. 0: no answer is wanted.
    """

    publications: list[Publication]
    first: int = 0


class Waiting(Struct, frozen=True, array_like=True, tag=24):
    """A call begins (`change` is 1) to wait for its next try, or without `for_try` for its turn; it is due (-1).

    With `let_go` the bridge process does not keep the payload meanwhile: when it is due, the call is sent again.
    `failed` is the try because of which it waits.
    """

    call: int
    change: int
    for_try: bool = True
    let_go: bool = False
    failed: FailedTry | None = None


class Served(Struct, frozen=True, array_like=True, tag=25):
    """What server mode answered since the last such frame.

    `events` only when the broker logs at INFO, `requests` and `times` only when there is an admin port. `unmatched` are
    the most frequent paths, `unmatched_totals` all requests that led to no endpoint, by port.
    """

    routes: dict[str, RouteAnswers]
    events: list[EventAnswers]
    requests: list[RequestCount] = []
    times: list[RequestTimes] = []
    unmatched: list[UnmatchedCount] = []
    unmatched_totals: dict[int, int] = {}


class Log(Struct, frozen=True, array_like=True, tag=26):
    """A log record: level, name of its logger, formatted text."""

    level: int
    logger: str
    text: str


class Stopped(Struct, frozen=True, array_like=True, tag=27):
    """All that finished within the grace has been sent."""


class Returned(Struct, frozen=True, array_like=True, tag=28):
    """A call has not ended: it was withdrawn, or is lossless and its event no longer exists in the bridge process."""

    call: int


class Pong(Struct, frozen=True, array_like=True, tag=30):
    """Every port has taken a turn."""


class Stalled(Struct, frozen=True, array_like=True, tag=31):
    """These ports have taken no turn since the last `Ping`."""

    ports: list[StalledPort]


class Unserved(Struct, frozen=True, array_like=True, tag=32):
    """All ports that the bridge process cannot serve, by SERVER_PORT, and why; before each `Ready` and on a change."""

    reasons: dict[int, str]


class BreakerChange(Struct, frozen=True, array_like=True, tag=36):
    """The breaker of a route has opened, for this `reason`, or with None has closed."""

    route: str
    reason: str | None


class StreamReaders(Struct, frozen=True, array_like=True, tag=37):
    """How many streams (STREAM) the bridge process serves now, by route; those of other routes have none."""

    routes: dict[str, int]


ToBridge = (
    UseRoutes
    | Listen
    | Calls
    | Replies
    | CreditReturn
    | Stop
    | Ping
    | Latest
    | Confirmed
    | Claimed
    | InGroup
    | Withdraw
    | ToAdmin
)
ToBroker = (
    Ready
    | Failed
    | Results
    | Publications
    | Claim
    | PublishOnce
    | Settle
    | Waiting
    | Served
    | Log
    | Stopped
    | Returned
    | Pong
    | Stalled
    | Unserved
    | BreakerChange
    | StreamReaders
    | EndedRequest
    | FromAdmin
)
Frame = ToBridge | ToBroker


def encode_parts(frame: Frame) -> tuple[bytes, bytes]:
    """Return the length and the body of a frame as two objects: joining 40 MB copies them, which takes 10 ms."""
    try:
        body = _encoder.encode(frame)
    except UnicodeEncodeError:
        # An error message may quote half a surrogate pair, from a server's JSON or a file name.
        body = _encoder.encode(_without_surrogates(msgspec.to_builtins(frame, builtin_types=(bytes,))))
    return _LENGTH.pack(len(body)), body


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame on the link."""
    return b"".join(encode_parts(frame))


F = TypeVar("F", ToBridge, ToBroker)


class FrameDecoder(Generic[F]):
    """Cut a stream of bytes into frames of one direction; `types` is their union.

    The frames of the other direction, or bytes that are not a frame, raise `msgspec.DecodeError`.
    """

    def __init__(self, types: Any) -> None:
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[F] = msgspec.msgpack.Decoder(types)

    def feed(self, data: bytes | memoryview) -> list[F]:
        """Add bytes and return the frames that are complete, in order."""
        buffer = self._buffer
        buffer += data
        frames: list[F] = []
        start, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while size - start >= 4:
                end = start + 4 + _LENGTH.unpack_from(view, start)[0]
                if end > size:
                    break
                with view[start + 4 : end] as body:
                    frames.append(self._decoder.decode(body))
                start = end
        del buffer[:start]
        return frames


def _without_surrogates(value: Any) -> Any:
    """Write surrogates in all texts as escapes."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
