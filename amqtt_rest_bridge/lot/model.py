"""What a loaded route is, and the messages and requests that it makes of each other: immutable values, no I/O."""

import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec import Struct

from amqtt_rest_bridge.errors import Fault, Position, Severity
from amqtt_rest_bridge.lot.placeholders.conditions import Condition
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText
from amqtt_rest_bridge.lot.schemas import Schema
from amqtt_rest_bridge.system import FileState
from amqtt_rest_bridge.topics import widest_filter

_RUNS: Final = uuid.UUID("0b1d4a52-6f0e-5c55-9d5c-3a1b8e6f4c27")  # the namespace of ids that are made of keys


HEALTHS: Final = ("Red", "Yellow", "Green")
"""Of a route; the worst first."""


def severity_of(health: Any) -> int:
    """Return the place of a health in `HEALTHS`, 0 for the worst; one behind the last for anything else."""
    return HEALTHS.index(health) if health in HEALTHS else len(HEALTHS)


class Method(StrEnum):
    """Request methods of RFC 9110 section 9.3 and RFC 5789; server mode has no PATCH."""

    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    DELETE = "DELETE"
    PATCH = "PATCH"


IDEMPOTENT: Final = frozenset({Method.GET, Method.PUT, Method.DELETE})
"""Methods whose requests may be repeated (RFC 9110 section 9.2.2)."""
NO_CONTENT: Final = (204, 205)
"""Statuses whose responses have no body (RFC 9110 section 15.3)."""
EventName = tuple[str, str]
"""A route's name and its event's: what stays the same when a reload changes the definition."""


class OverloadPolicy(StrEnum):
    """What a route does with a message it has no room for (ROUTE_CONFIG, OVERLOAD_POLICY)."""

    BALANCED = "balanced"
    REALTIME = "realtime"
    LOSSLESS = "lossless"


class AuthScheme(StrEnum):
    """How USERNAME and PASSWORD are sent with requests."""

    BASIC = "basic"
    DIGEST = "digest"


class SignatureScheme(StrEnum):
    """How a signed request says what was signed, and when."""

    HMAC = "hmac"
    SLACK = "slack"
    STRIPE = "stripe"
    STANDARD_WEBHOOKS = "standard-webhooks"


class ResponseFormat(StrEnum):
    """What a client event publishes for a response: its body alone, or the JSON envelope."""

    BODY = "body"
    ENVELOPE = "envelope"


@dataclass(frozen=True, slots=True)
class RestApiConfig:
    """The REST_API_CONFIG block of a route; defaults are those of the route language.

    `base_address` always has a scheme and no trailing slash; times are seconds. Secrets are kept out of `repr`.
    """

    base_address: str | None = None
    enable_client: bool = False
    request_timeout: int = 30
    default_content_type: str = "application/json"
    enable_server: bool = False
    server_port: int = 8080
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    auth_scheme: AuthScheme = AuthScheme.BASIC
    use_ssl: bool = False
    ignore_cert_errors: bool = False
    enable_cors: bool = False
    cors_origins: tuple[str, ...] = ("*",)
    authorization: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    retries: int = 3
    server_username: str | None = field(default=None, repr=False)
    server_password: str | None = field(default=None, repr=False)
    server_token: tuple[str, ...] = field(default=(), repr=False)
    server_token_header: str | None = None
    oauth2_token_url: str | None = None
    oauth2_client_id: str | None = None
    oauth2_client_secret: str | None = field(default=None, repr=False)
    oauth2_scope: str | None = None
    oauth2_audience: str | None = None

    @property
    def server(self) -> str:
        """Return scheme, host and port of `base_address`: "http://host:8080"; "" without one."""
        return "/".join((self.base_address or "").split("/", 3)[:3])


class BreakerRule(NamedTuple):
    """So many failures of the target within so many seconds open the breaker of a route (BREAKER)."""

    failures: int
    seconds: int


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """The ROUTE_CONFIG block: how many messages, and bytes of payloads, may be queued and in flight, and what follows.

    `overload_timeout` is in milliseconds. `rate_limit` is the seconds from one request to the next, None for no limit.
    """

    overload_capacity: int = 10_000
    overload_policy: OverloadPolicy = OverloadPolicy.BALANCED
    overload_timeout: int = 0
    rate_limit: float | None = None
    overload_bytes: int = 64 << 20
    breaker: BreakerRule | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """HMAC-SHA256 over a body: checked in server mode, made in client mode (SIGNATURE_SECRET, SIGNATURE_HEADER).

    The schemes beside `hmac` sign a timestamp too, have headers of their own, and exist in server mode alone.
    """

    secret: str = field(repr=False)
    header: str = "X-Hub-Signature-256"
    scheme: SignatureScheme = SignatureScheme.HMAC


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """A message on `source_topic` (a topic filter) sends a request; its result goes to `destination_topic`.

    `payload` and `destination_topic` may hold placeholders of the response. `every` is the seconds from one run to the
    next; an event that only runs so has its `schedule_topic` as `source_topic`. `retry_on` are statuses.
    `on_change_for` are seconds, None for any time. `qos` is that of its `Publication`s.
    """

    name: str
    source_topic: str
    method: Method
    endpoint: PlaceholderText
    body: PlaceholderText | None = None
    headers: tuple[tuple[str, PlaceholderText], ...] = ()
    destination_topic: PlaceholderText | None = None
    error_topic: str | None = None
    response_format: ResponseFormat = ResponseFormat.BODY
    retain: bool = False
    qos: int | None = None
    ordered: bool = False
    signature: Signature | None = None
    payload: PlaceholderText | None = None
    when: Condition | None = None
    every: int | None = None
    retry_on: tuple[int, ...] = ()
    failure_payload: bool = False
    batch_size: int | None = None
    batch_seconds: int = 1
    batch_item: PlaceholderText | None = None
    batch_split: bool = False
    on_change: PlaceholderText | None = None
    on_change_for: int | None = None
    dedupe_key: PlaceholderText | None = None
    dedupe_for: int = 600
    schema_file: Schema | None = None

    @property
    def is_in_order(self) -> bool:
        """Return whether calls of one topic run one after the other: ON_CHANGE has to know how the last one ended."""
        return self.ordered or self.on_change is not None

    @property
    def texts(self) -> tuple[PlaceholderText, ...]:
        """Return its texts with placeholders."""
        texts = (
            *(self.endpoint, self.body, self.destination_topic, self.payload, self.on_change, self.dedupe_key),
            *(text for _, text in self.headers),
        )
        return tuple(text for text in texts if text is not None)


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """A request to `endpoint` with `method` is published to `destination_topic`.

    `endpoint` begins with `/` and may hold `{name}` segments. A read event has `source_topic` (a topic filter) and no
    `destination_topic`: it answers with the latest payload seen there, or with those of all topics that a filter with
    wildcards matches. `{path.x}` in it is filled in for each request: then it is parsed in `read_topic`. `response` is
    the body of the answer once the request is published, None for the usual one.
    """

    name: str
    method: Method
    endpoint: str
    destination_topic: PlaceholderText | None = None
    payload: PlaceholderText | None = None
    reply_topic: PlaceholderText | None = None
    source_topic: str | None = None
    read_topic: PlaceholderText | None = None
    stream: bool = False
    retain: bool = False
    qos: int | None = None
    signature: Signature | None = None
    when: Condition | None = None
    response: PlaceholderText | None = None
    response_status: int = 200
    response_content_type: str = "application/json"
    schema_file: Schema | None = None
    dedupe_key: PlaceholderText | None = None
    dedupe_for: int = 600

    @property
    def read_filter(self) -> str | None:
        """Return the filter of all topics that a read event may answer from, None for other events."""
        if self.source_topic is None or self.destination_topic is not None:
            return None
        return self.source_topic if self.read_topic is None else widest_filter(self.source_topic)


@dataclass(frozen=True, slots=True)
class Route:
    """One `DEFINE ROUTE ... WITH TYPE REST_API`, checked; `path` and `position` are those of its DEFINE.

    For masking: `secrets` are the values that GET SECRET, `{secret.X}`, passwords, tokens and signing secrets brought
    in, `in_addresses` those of GET ENV and `{env.X}` in URLs. `definition` is its text, in one layout, without secrets.
    """

    name: str
    config: RestApiConfig
    client_events: tuple[ClientEvent, ...] = ()
    server_events: tuple[ServerEvent, ...] = ()
    route_config: RouteConfig = RouteConfig()
    path: str = field(default="", compare=False)
    position: Position = field(default=Position(1, 1), compare=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    in_addresses: frozenset[str] = field(default=frozenset(), repr=False)
    definition: str = field(default="", repr=False, compare=False)

    @property
    def is_lossless(self) -> bool:
        """Return whether calls are kept until they have succeeded (OVERLOAD_POLICY)."""
        return self.route_config.overload_policy is OverloadPolicy.LOSSLESS


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The routes without errors, in the order of their files, and all faults, sorted.

    `files` are those beside the route files that were read: when one of them changes, the routes do.
    `variables` and `secrets` are the names that GET reads, where the environment recorded them.
    """

    routes: tuple[Route, ...]
    faults: tuple[Fault, ...]
    files: frozenset[FileState] = frozenset()
    variables: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        """Return whether anything keeps a route from working."""
        return any(fault.severity is Severity.ERROR for fault in self.faults)


Pairs = tuple[tuple[str, str], ...]
"""Names and values in their order; a name may be there more than once."""


def values_of(pairs: Pairs, name: str) -> list[str]:
    """Return the values of a header or user property, whose `name` is in lower case, in their order."""
    return [value for given, value in pairs if given.lower() == name]


class MessageProperties(Struct, frozen=True, array_like=True):
    """What MQTT 5 says of a message beside topic and payload, as far as it is carried.

    `user` are the user properties, `correlation` is the Correlation Data, `response_topic` the topic of a reply.
    """

    user: Pairs = ()
    correlation: bytes | None = None
    response_topic: str | None = None


class Message(Struct, frozen=True, array_like=True):
    """An application message; `timestamp` is when the broker first received it, Unix time in seconds.

    `properties` is None for a message without any, as all messages of amqtt are. `sent_again` is when it was retried or
    replayed, None for any other message: what it waits counts from then.
    """

    topic: str
    payload: bytes
    timestamp: float
    properties: MessageProperties | None = None
    sent_again: float | None = None

    @property
    def user(self) -> Pairs:
        """Return the user properties."""
        return () if self.properties is None else self.properties.user


class HttpRequest(Struct, frozen=True):
    """A request ready to be sent: absolute URL, headers in their order, `body` None when there is none."""

    method: Method
    url: str
    headers: Pairs = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response read to its end; `headers` as received, `body` after content decoding, `elapsed` in seconds.

    `credentials` were sent beside the request's own, and are here for masking: an access token, a digest, those for a
    proxy.
    """

    status: int
    reason: str
    headers: Pairs
    body: bytes
    elapsed: float
    credentials: frozenset[str] = field(default=frozenset(), repr=False, compare=False)


class Publication(Struct, frozen=True, array_like=True):
    """A payload on its way to the broker's subscribers; `retain` keeps it for later ones too.

    `qos` is the highest QoS that it is delivered with, None for that of each subscription (of a worker: up to 1).
    """

    topic: str
    payload: bytes
    retain: bool = False
    properties: MessageProperties | None = None
    qos: int | None = None


class Capture(StrEnum):
    """Which calls are kept with message, request and response: the setting `capture`."""

    FAILURES = "failures"
    ALL = "all"
    NONE = "none"


class Try(Struct, frozen=True, array_like=True):
    """One try of a call: when it ended (Unix time), what came of it, the milliseconds of its requests."""

    time: float
    status: int | None
    code: str | None
    ms: float


RunKey = int | str
"""What a run id is made of: the number of a call in its bridge, or the Idempotency-Key of a lossless call."""


@dataclass(frozen=True, slots=True)
class RunIds:
    """The ids of the calls of one bridge, UUIDs. A call has a number until its id is needed.

    `unique_keys` is whether an Idempotency-Key is a UUID of one call, as the spool makes them. Then it is the id of the
    call, over restarts too; a publisher's own key may be that of several calls.
    """

    prefix: str = field(default_factory=lambda: str(uuid.uuid4())[:24])
    unique_keys: bool = True

    def of(self, run: RunKey, route: str, event: str) -> str:
        """Return the id of a call as text."""
        if isinstance(run, int):
            return f"{self.prefix}{run:012x}"
        return run if self.unique_keys else str(uuid.uuid5(_RUNS, "\0".join((route, event, run))))
