"""The settings of the route language, one row each, by block (`PARAMETERS`).

Checks, messages, completion in editors and the tables of the reference come from these rows. The default of a setting
is that of its field in `model`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from amqtt_rest_bridge import sizes
from amqtt_rest_bridge.lot.model import (
    NO_CONTENT,
    AuthScheme,
    ClientEvent,
    Method,
    OverloadPolicy,
    ResponseFormat,
    RestApiConfig,
    RouteConfig,
    ServerEvent,
    Signature,
    SignatureScheme,
)
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.times import SECONDS

ROUTE_TYPE = "REST_API"
"""The type of our routes."""


class BlockKind(StrEnum):
    """The blocks of a route, by what follows ADD."""

    CONFIG = "REST_API_CONFIG"
    ROUTE_CONFIG = "ROUTE_CONFIG"
    EVENT = "EVENT"


USER_NAMES = ("USERNAME", "SERVER_USERNAME")
"""Settings that are part of a credential, and not shown with it."""
IGNORED_BLOCK = "MQTT_CONFIG"
"""A block of other brokers: accepted, with a notice."""
BLOCK_NAMES = (*BlockKind, IGNORED_BLOCK)
HEADERS = "HEADERS"


class Kind(StrEnum):
    """What a value has to be."""

    STRING = "string"
    TEMPLATE = "string with placeholders"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    CHOICE = "choice"
    TOPIC = "topic name"
    TOPIC_TEMPLATE = "topic name with placeholders"
    FILTER = "topic filter"
    ADDRESS = "http or https address"
    ORIGINS = "origins, comma-separated"
    HEADER_NAME = "header name"
    HEADER_VALUE = "header value"
    MEDIA_TYPE = "media type"
    HEADERS = "ADD lines below it"
    FILE = "PEM file"
    SCHEMA = "JSON Schema file"
    CONDITION = "condition"
    TOKENS = "tokens, comma-separated"
    DURATION = "a number with s, m, h or d, at least 1s"
    SIZE = "a size: a number with KiB, MiB or GiB, or plain bytes"
    RATE = "a number of requests per s, m, h or d, as in 5/s"
    BREAKER = "a number of failures per time, as in 5 per 30s"
    STATUSES = "statuses from 400 to 599, as in 500, 502-504"


class Applies(StrEnum):
    """In which mode a setting has an effect."""

    CLIENT = "client"
    SERVER = "server"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Rule:
    """Another setting of the block that a setting requires or excludes, with any value or one of these `values`.

    It counts in the modes that it `applies` to, and where the setting itself has the value `having`, "" for any; `hint`
    is that of its fault. One that is not `strict` is a warning: the setting has no effect.
    """

    name: str
    values: tuple[str, ...] = ()
    hint: str | None = None
    applies: Applies = Applies.BOTH
    strict: bool = True
    having: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One setting.

    `example` is a value as a route file has it; `low` and `high` bound an integer or a size; `unit` is that of an
    integer that is a time; `choices` are its values with the meaning of each; the value of a `secret` one is masked
    wherever it would be shown. `placeholders` are the modes whose placeholders it may hold; `portable` settings are
    those of the specified language, all others are extensions of it. `default` is that of the field of its name in the
    model, as it would be written in a file; None without one. `rest-bridge help` and editors also show `details`, and
    `example_below`, the lines after the example.
    """

    name: str
    kind: Kind
    applies: Applies
    meaning: str
    example: str
    low: int = 0
    high: int = 0
    unit: str = ""
    example_below: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    secret: bool = False
    placeholders: tuple[Mode, ...] = ()
    requires: tuple[Rule, ...] = ()
    excludes: tuple[Rule, ...] = ()
    portable: bool = False
    default: str | None = None

    @property
    def allowed(self) -> str:
        """Return what the value may be, for messages and tables."""
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.kind is Kind.INTEGER:
            numbers = f"from {self.low} to {self.high}"
            return f"{self.unit}, a whole number {numbers}" if self.unit else f"an integer {numbers}"
        if self.kind is Kind.CHOICE:
            *others, last = self.choices
            return f"{', '.join(others)} or {last}"
        return self.kind.value

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the details, what each choice means, and what the setting requires and excludes, one clause each."""
        requires = [rule for rule in self.requires if rule.name != self.name]
        return (
            *self.details,
            *(f"{choice}: {meaning}" for choice, meaning in self.choices.items()),
            *_clauses("requires", (rule for rule in requires if rule.strict)),
            *_clauses("no effect without", (rule for rule in requires if not rule.strict)),
            *_clauses("excludes", (rule for rule in self.excludes if rule.strict)),
            *_clauses("no effect with", (rule for rule in self.excludes if not rule.strict)),
        )


def _clauses(verb: str, rules: Iterable[Rule]) -> Iterator[str]:
    """Yield rules as one clause for each case that they count in: `requires X and Y "z" (client)`."""
    by_case: dict[str, list[str]] = {}
    for rule in rules:
        values = " or ".join(f'"{value}"' for value in rule.values)
        case = ", ".join(filter(None, ("" if rule.applies is Applies.BOTH else rule.applies, rule.having)))
        by_case.setdefault(case, []).append(f"{rule.name} {values}".rstrip())
    for case, names in by_case.items():
        yield f"{verb} {' and '.join(names)}" + (f" ({case})" if case else "")


_C, _S, _B = Applies.CLIENT, Applies.SERVER, Applies.BOTH
_TEXT, _BOOL, _INT = Kind.STRING, Kind.BOOLEAN, Kind.INTEGER

_BASIC = "Basic credentials are made of both"
_ONE_HEADER = "a request has one Authorization header"
_SERVER = Rule("ENABLE_SERVER", ("true",), strict=False)
_NEEDED = "the grant needs address, id and secret"
_GRANT = tuple(Rule(f"OAUTH2_{name}", hint=_NEEDED) for name in ("TOKEN_URL", "CLIENT_ID", "CLIENT_SECRET"))
_OWN_HEADER = tuple(Rule(name, hint=_ONE_HEADER, applies=_C) for name in ("AUTHORIZATION", "USERNAME"))
_NO_CONTENT = tuple(str(status) for status in sorted(NO_CONTENT))
_REPLIED = (Rule("REPLY_TOPIC", hint="the answer is what comes on REPLY_TOPIC", applies=_S, strict=False),)

_CONFIG = (
    Parameter(
        "BASE_ADDRESS", Kind.ADDRESS, _C,
        "what every ENDPOINT is appended to; required by ENABLE_CLIENT",
        '"https://api.example.com/v2"', portable=True,
    ),
    Parameter("ENABLE_CLIENT", _BOOL, _C, "messages send requests", '"true"', portable=True),
    Parameter(
        "REQUEST_TIMEOUT", _INT, _B,
        "for one whole attempt; for a reply on REPLY_TOPIC",
        "'10'", low=1, high=3600, unit="seconds", portable=True,
    ),
    Parameter(
        "DEFAULT_CONTENT_TYPE", Kind.MEDIA_TYPE, _B,
        "Content-Type of a body when HEADERS has none; decides the escaping in BODY and PAYLOAD",
        '"text/plain"', portable=True,
    ),
    Parameter("ENABLE_SERVER", _BOOL, _S, "requests are published", '"true"', portable=True),
    Parameter(
        "SERVER_PORT", _INT, _S, "port to listen on; 0 means a free one",
        "'8443'", low=0, high=65535, portable=True,
    ),
    Parameter(
        "USERNAME", _TEXT, _B,
        "user name, with PASSWORD: sent with requests; asked of callers when client mode is off",
        '"bridge"', portable=True, requires=(Rule("PASSWORD", hint=_BASIC),),
    ),
    Parameter(
        "PASSWORD", _TEXT, _B, "password of USERNAME", 'GET SECRET "api-password"', secret=True, portable=True,
        requires=(Rule("USERNAME", hint=_BASIC),),
    ),
    Parameter(
        "AUTH_SCHEME", Kind.CHOICE, _C,
        "how USERNAME and PASSWORD are sent",
        '"digest"',
        choices={
            AuthScheme.BASIC: "as Basic credentials",
            AuthScheme.DIGEST: "as a digest of the server's challenge (RFC 7616)",
        },
        requires=(
            Rule("USERNAME", hint="a digest is made of USERNAME and PASSWORD", having=AuthScheme.DIGEST),
            Rule(
                "ENABLE_CLIENT", ("true",), "callers of server mode send Basic credentials or a token",
                strict=False, having=AuthScheme.DIGEST,
            ),
        ),
    ),
    Parameter(
        "USE_SSL", _BOOL, _B,
        "client: https for a BASE_ADDRESS without a scheme; server: the start fails without server_certfile",
        '"true"', portable=True,
    ),
    Parameter(
        "IGNORE_CERT_ERRORS", _BOOL, _C,
        "do not verify certificates; not for production",
        '"true"', portable=True,
    ),
    Parameter(
        "ENABLE_CORS", _BOOL, _S, "send CORS headers and refuse origins that are not listed", '"true"', portable=True,
        requires=(_SERVER,),
    ),
    Parameter(
        "CORS_ORIGINS", Kind.ORIGINS, _S,
        "origins that may call; * means all",
        '"https://dashboard.example.com"', portable=True,
        requires=(Rule("ENABLE_CORS", ("true",), applies=_S, strict=False),),
    ),
    Parameter(
        "AUTHORIZATION", Kind.HEADER_VALUE, _C, "Authorization header of every request",
        '"Bearer " + GET SECRET "api-token"', secret=True, excludes=(Rule("USERNAME", hint=_ONE_HEADER, applies=_C),),
    ),
    Parameter(
        "OAUTH2_TOKEN_URL", Kind.ADDRESS, _C,
        "where an access token is fetched (client credentials grant); it is sent as Bearer",
        '"https://id.example.com/oauth/token"', requires=_GRANT, excludes=_OWN_HEADER,
    ),
    Parameter("OAUTH2_CLIENT_ID", _TEXT, _C, "who asks for the token", '"mqtt-bridge"', requires=_GRANT),
    Parameter(
        "OAUTH2_CLIENT_SECRET", _TEXT, _C, "its password", 'GET SECRET "client-secret"', secret=True, requires=_GRANT,
    ),
    Parameter(
        "OAUTH2_SCOPE", _TEXT, _C, "scopes to ask for, with spaces between", '"measurements:write"', requires=_GRANT,
    ),
    Parameter(
        "OAUTH2_AUDIENCE", _TEXT, _C,
        "audience to ask for",
        '"https://api.example.com"', requires=_GRANT,
    ),
    Parameter("CA_FILE", Kind.FILE, _C, "authorities to trust instead of the system's", '"ca.pem"'),
    Parameter("CLIENT_CERT_FILE", Kind.FILE, _C, "certificate to present to the server", '"client.pem"'),
    Parameter(
        "CLIENT_KEY_FILE", Kind.FILE, _C, "its key, when it is not in the same file", '"client.key"',
        requires=(Rule("CLIENT_CERT_FILE"),),
    ),
    Parameter(
        "RETRIES", _INT, _C,
        "how many more times a failed request is tried: if it got no connection, 429 or 503; GET, PUT and DELETE also "
        "if it got 502, 504 or a broken connection",
        "'5'", low=0, high=100,
    ),
    Parameter(
        "SERVER_USERNAME", _TEXT, _S, "user name that callers must send", '"shop"',
        requires=(Rule("SERVER_PASSWORD", hint=_BASIC), _SERVER),
    ),
    Parameter(
        "SERVER_PASSWORD", _TEXT, _S,
        "password that callers must send",
        'GET SECRET "shop-password"', secret=True, requires=(Rule("SERVER_USERNAME", hint=_BASIC),),
    ),
    Parameter(
        "SERVER_TOKEN", Kind.TOKENS, _S,
        "callers must send one of these as `Authorization: Bearer ...` or in SERVER_TOKEN_HEADER",
        'GET SECRET "caller-tokens"', secret=True, requires=(_SERVER,),
    ),
    Parameter(
        "SERVER_TOKEN_HEADER", Kind.HEADER_NAME, _S,
        "header that may hold the token too",
        '"X-API-Key"', requires=(Rule("SERVER_TOKEN"),),
    ),
)  # fmt: skip  # a table reads best as a table

_EVENT = (
    Parameter(
        "SOURCE_TOPIC", Kind.FILTER, _B,
        "client: the messages that send the request; server: a read event, which answers with the latest payload; "
        "`{path.x}` is a segment of ENDPOINT",
        '"plant/+/alert"', portable=True,
    ),
    Parameter(
        "DESTINATION_TOPIC", Kind.TOPIC_TEMPLATE, _B,
        "client: where the response is published; server: where the request's data is published",
        '"tickets/{topic.2}/opened"', portable=True, placeholders=(Mode.RESULT, Mode.SERVER),
    ),
    Parameter(
        "METHOD", Kind.CHOICE, _B, "method of the request",
        '"POST"',
        choices={
            Method.GET: "read",
            Method.POST: "create or start something",
            Method.PUT: "replace",
            Method.DELETE: "remove",
            Method.PATCH: "change a part; client mode only",
        },
        portable=True,
    ),
    Parameter(
        "ENDPOINT", Kind.TEMPLATE, _B,
        "client: path to call; server: path to expose, `{name}` segments allowed",
        '"/machines/{topic.2}"', portable=True, placeholders=(Mode.CLIENT,),
    ),
    Parameter(
        "BODY", Kind.TEMPLATE, _C, "body of the request", "'{\"level\": {value.json.level}}'", portable=True,
        placeholders=(Mode.CLIENT,),
    ),
    Parameter(
        "SCHEMA_FILE", Kind.SCHEMA, _B,
        "JSON Schema (2020-12); what does not match fails with `schema_mismatch` (client) or is answered 400 "
        "`invalid_body` (server)",
        '"order.schema.json"',
    ),
    Parameter(
        "WHEN", Kind.CONDITION, _B,
        "where it is false, a message sends nothing, and a request publishes nothing",
        "'{value.json.level} >= 3'", placeholders=(Mode.CLIENT, Mode.SERVER),
        details=(
            "operators: =, !=, <, <=, >, >=, IN ('a', 1), LIKE 'pump-%', NOT IN, NOT LIKE, EXISTS {value.json.x}",
            "joined by NOT, AND, OR, in this order of precedence, and by parentheses",
            "values: placeholders, numbers, texts in quotes, true, false, null",
            "rules: amqtt_rest_bridge/lot/SHAPING.md, Conditions",
        ),
    ),
    Parameter(
        "EVERY", Kind.DURATION, _C,
        "also run at this interval, with an empty payload and the topic `$schedule/<route>/<event>`; without "
        "SOURCE_TOPIC only so",
        '"15m"',
    ),
    Parameter(
        "ON_CHANGE", Kind.TEMPLATE, _C,
        "a message whose text is the last one of its topic sends nothing; messages of one topic are finished one "
        "after the other",
        '"{value.json.state}"', placeholders=(Mode.CLIENT,),
    ),
    Parameter(
        "ON_CHANGE_FOR", Kind.DURATION, _C, "after this time the same text is sent again", '"1h"',
        requires=(Rule("ON_CHANGE", applies=_C, strict=False),),
    ),
    Parameter(
        "BATCH_SIZE", _INT, _C,
        "up to so many messages become one request, with `{batch}` or `{batch.lines}` in BODY",
        "'500'", low=1, high=10_000, example_below=("WITH BODY '{\"items\": {batch}}'",),
        excludes=(Rule("ON_CHANGE", applies=_C, hint="a message of a batch has no result of its own"),),
    ),
    Parameter(
        "BATCH_SECONDS", _INT, _C, "how long a batch waits for more messages",
        "'5'", low=1, high=3600, unit="seconds", requires=(Rule("BATCH_SIZE", applies=_C, strict=False),),
    ),
    Parameter(
        "BATCH_ITEM", Kind.TEMPLATE, _C, "what a message is in a batch, instead of its payload",
        "'{\"topic\": {topic}, \"value\": {value.json.v}}'", placeholders=(Mode.CLIENT,),
        requires=(Rule("BATCH_SIZE", applies=_C, strict=False),),
    ),
    Parameter(
        "BATCH_SPLIT", _BOOL, _C,
        "halve a refused batch (400, 413, 422) until the bad item is alone",
        '"true"', requires=(Rule("BATCH_SIZE", applies=_C, strict=False),),
    ),
    Parameter(
        "DEDUPE_KEY", Kind.TEMPLATE, _B,
        "if this text was seen within DEDUPE_FOR, a message sends nothing, and a request publishes nothing",
        '"{value.json.id}"', placeholders=(Mode.CLIENT, Mode.SERVER),
        excludes=(Rule("BATCH_SIZE", applies=_C, hint="a message of a batch has no result of its own"),),
    ),
    Parameter(
        "DEDUPE_FOR", Kind.DURATION, _B, "how long a DEDUPE_KEY is known", '"1d"',
        requires=(Rule("DEDUPE_KEY", strict=False),),
    ),
    Parameter(
        "RETRY_ON", Kind.STATUSES, _C, "retry these statuses too, beside those of RETRIES, with any METHOD",
        '"500, 502-504"',
    ),
    Parameter(
        "HEADERS", Kind.HEADERS, _C, "headers of the request, in their order", 'ADD Accept "text/csv"', portable=True,
        example_below=('    ADD Authorization "Bearer " + GET SECRET "api-token"',),
        placeholders=(Mode.CLIENT,),
    ),
    Parameter(
        "RESPONSE_FORMAT", Kind.CHOICE, _C,
        "what is published of a response",
        '"envelope"',
        choices={
            ResponseFormat.BODY: "its body, or what PAYLOAD makes of it",
            ResponseFormat.ENVELOPE: "a JSON object with its status, headers and body",
        },
    ),
    Parameter(
        "STREAM", _BOOL, _S,
        "a read event sends its latest value, then each new one, as server-sent events",
        '"true"',
        requires=(Rule("SOURCE_TOPIC", hint="a GET with SOURCE_TOPIC reads, any other event publishes", strict=False),),
    ),
    Parameter("RETAIN", _BOOL, _B, "retain what is published", '"true"'),
    Parameter(
        "QOS", Kind.CHOICE, _B,
        "the highest QoS of what is published, failures too; otherwise that of each subscription (of a worker: up "
        "to 1)",
        '"1"',
        choices={
            "0": "not kept for a subscriber that is away",
            "1": "at least once",
            "2": "exactly once, to subscriptions of QoS 2",
        },
    ),
    Parameter(
        "ERROR_TOPIC", Kind.TOPIC, _C,
        "where failures go instead of DESTINATION_TOPIC",
        '"tickets/failed"',
    ),
    Parameter(
        "FAILURE_PAYLOAD", _BOOL, _C,
        "failures also hold the message, for `rest-bridge replay`",
        '"true"',
    ),
    Parameter("ORDERED", _BOOL, _C, "finish the messages of one topic one after the other", '"true"'),
    Parameter(
        "PAYLOAD", Kind.TEMPLATE, _B,
        "what is published instead of the body of the response or request",
        "'{response.json.price}'", placeholders=(Mode.RESULT, Mode.SERVER),
        requires=(Rule("DESTINATION_TOPIC", applies=_C, strict=False),),
        excludes=(Rule("RESPONSE_FORMAT", (ResponseFormat.ENVELOPE,), "a result has one form", _C),),
    ),
    Parameter(
        "RESPONSE_CONTENT_TYPE", Kind.MEDIA_TYPE, _B,
        "decides the escaping in PAYLOAD (client) and RESPONSE (server); the answer's Content-Type",
        '"text/plain"',
        requires=(Rule("PAYLOAD", applies=_C, strict=False), Rule("RESPONSE", applies=_S, strict=False)),
        excludes=_REPLIED,
    ),
    Parameter(
        "RESPONSE", Kind.TEMPLATE, _S,
        "body of the answer instead of `{\"status\": \"published\", ...}`",
        "'{\"accepted\": {body.json.id}}'", placeholders=(Mode.SERVER,),
        excludes=(*_REPLIED, Rule("RESPONSE_STATUS", _NO_CONTENT, "such an answer has no body", _S)),
    ),
    Parameter(
        "RESPONSE_STATUS", _INT, _S, "status of the answer once the request is published",
        "'202'", low=200, high=299, excludes=_REPLIED,
    ),
    Parameter(
        "REPLY_TOPIC", Kind.TOPIC_TEMPLATE, _S,
        "wait for a message there and answer the request with its payload",
        '"replies/{request_id}"', placeholders=(Mode.SERVER,),
    ),
    Parameter(
        "SIGNATURE_SECRET", _TEXT, _B,
        "key of an HMAC-SHA256 over the body: client: sign the request; server: refuse what is not signed with it",
        'GET SECRET "webhook-secret"', secret=True,
    ),
    Parameter(
        "SIGNATURE_HEADER", Kind.HEADER_NAME, _B,
        "header that holds the signature",
        '"X-Signature"',
        requires=(
            Rule("SIGNATURE_SECRET", strict=False),
            Rule("SIGNATURE_SCHEME", (SignatureScheme.HMAC,), "the others have headers of their own", _S, strict=False),
        ),
    ),
    Parameter(
        "SIGNATURE_SCHEME", Kind.CHOICE, _S,
        "whose webhooks SIGNATURE_SECRET verifies; timestamps may be 5 minutes off",
        '"slack"',
        choices={
            SignatureScheme.HMAC: "HMAC-SHA256 of the body, in SIGNATURE_HEADER",
            SignatureScheme.SLACK: "X-Slack-Signature and X-Slack-Request-Timestamp",
            SignatureScheme.STRIPE: "Stripe-Signature",
            SignatureScheme.STANDARD_WEBHOOKS: "webhook-id, webhook-timestamp and webhook-signature",
        },
        # Strict, because an endpoint that is meant to check signatures would be open.
        requires=(Rule("SIGNATURE_SECRET", hint="without it nothing is checked"),),
    ),
)  # fmt: skip

_ROUTE_CONFIG = (
    Parameter(
        "OVERLOAD_CAPACITY", _INT, _C, "messages that may be queued and in flight",
        "'1000'", low=1, high=1_000_000,
    ),
    Parameter(
        "OVERLOAD_BYTES", Kind.SIZE, _C,
        "payloads of messages queued and in flight; one message is taken where nothing is queued",
        '"256MiB"', low=1, high=1 << 40,
    ),
    Parameter(
        "OVERLOAD_POLICY", Kind.CHOICE, _C,
        "what happens to messages that come faster than the server answers",
        '"lossless"',
        choices={
            OverloadPolicy.BALANCED: "refuse new messages when full",
            OverloadPolicy.REALTIME: "refuse new messages when no worker is free",
            OverloadPolicy.LOSSLESS: "keep messages on disk, and refuse new ones when full",
        },
    ),
    Parameter(
        "OVERLOAD_TIMEOUT", _INT, _C,
        "how long balanced waits for room; OVERLOAD_CAPACITY and OVERLOAD_BYTES more may wait",
        "'2000'", low=0, high=3_600_000, unit="milliseconds",
        requires=(Rule("OVERLOAD_POLICY", (OverloadPolicy.BALANCED,), "only balanced waits for room", strict=False),),
    ),
    Parameter(
        "RATE_LIMIT", Kind.RATE, _C,
        "requests are spaced evenly, and wait in the queue",
        '"10/s"',
    ),
    Parameter(
        "BREAKER", Kind.BREAKER, _C,
        "so many failures of the target (no connection, TLS, timeout, 502 to 504) within the time open the breaker: "
        "lossless and retried messages wait, others fail with `target_down`",
        '"5 per 30s"',
    ),
)  # fmt: skip


def _table(rows: Iterable[Parameter], *models: type) -> Mapping[str, Parameter]:
    """Return rows by name, each with the default that the model has for it."""
    values = {field.name.upper(): field.default for model in models for field in fields(model)}
    values |= {f"SIGNATURE_{field.name.upper()}": field.default for field in fields(Signature)}
    return MappingProxyType({row.name: replace(row, default=_written(row.kind, values[row.name])) for row in rows})


def _written(kind: Kind, value: Any) -> str | None:
    """Return a value of the model as a file has it; None for none."""
    if value is None or value == () or value is MISSING:
        return None
    if kind is Kind.SIZE:
        return sizes.size_text(value).replace(" ", "")
    if kind is Kind.DURATION:
        unit = max((unit for unit, seconds in SECONDS.items() if value % seconds == 0), key=lambda unit: SECONDS[unit])
        return f"{value // SECONDS[unit]}{unit}"
    return ",".join(value) if isinstance(value, tuple) else str(value).lower() if kind is Kind.BOOLEAN else str(value)


PARAMETERS: Mapping[BlockKind, Mapping[str, Parameter]] = MappingProxyType(
    {
        BlockKind.CONFIG: _table(_CONFIG, RestApiConfig),
        BlockKind.EVENT: _table(_EVENT, ServerEvent, ClientEvent),
        BlockKind.ROUTE_CONFIG: _table(_ROUTE_CONFIG, RouteConfig),
    }
)

CREDENTIALS: Final = [one.name for settings in PARAMETERS.values() for one in settings.values() if one.secret]
"""The settings that hold a secret."""
