"""The settings of the route language, one row each: checks, messages and tables of the reference come from here."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from amqtt_rest_bridge.model import AuthScheme, Method, OverloadPolicy, ResponseFormat, SignatureScheme


class BlockKind(StrEnum):
    """The blocks of a route, by what follows ADD."""

    CONFIG = "REST_API_CONFIG"
    ROUTE_CONFIG = "ROUTE_CONFIG"
    EVENT = "EVENT"


IGNORED_BLOCK = "MQTT_CONFIG"
"""A block of other brokers: accepted, with a notice."""


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
    HEADERS = "ADD lines below it"
    FILE = "PEM file"
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
class Parameter:
    """One setting.

    `default` is as it would be written, None when there is none; `example` is a value as a route file has it; `low` and
    `high` bound an integer or a size; the value of a `secret` one is masked wherever it would be shown.
    """

    name: str
    kind: Kind
    default: str | None
    applies: Applies
    meaning: str
    example: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    secret: bool = False

    @property
    def allowed(self) -> str:
        """Return what the value may be, for messages and tables."""
        if self.kind is Kind.BOOLEAN:
            return "true or false"
        if self.kind is Kind.INTEGER:
            return f"an integer from {self.low} to {self.high}"
        if self.kind is Kind.CHOICE:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        return self.kind.value


_C, _S, _B = Applies.CLIENT, Applies.SERVER, Applies.BOTH
_TEXT, _BOOL, _INT = Kind.STRING, Kind.BOOLEAN, Kind.INTEGER

_CONFIG = (
    Parameter(
        "BASE_ADDRESS", Kind.ADDRESS, None, _C,
        "what every ENDPOINT is appended to; required by ENABLE_CLIENT; USE_SSL sets a missing scheme",
        '"https://api.example.com/v2"',
    ),
    Parameter("ENABLE_CLIENT", _BOOL, "false", _C, "messages send requests", '"true"'),
    Parameter(
        "REQUEST_TIMEOUT", _INT, "30", _B,
        "seconds that one attempt may take, from connecting to the last byte; how long a REPLY_TOPIC is waited for",
        "'10'",
        low=1, high=3600,
    ),
    Parameter(
        "DEFAULT_CONTENT_TYPE", _TEXT, "application/json", _B,
        "Content-Type of a body when HEADERS has none; decides how placeholders in BODY and PAYLOAD are escaped",
        '"text/plain"',
    ),
    Parameter("ENABLE_SERVER", _BOOL, "false", _S, "requests are published", '"true"'),
    Parameter(
        "SERVER_PORT", _INT, "8080", _S, "port to listen on; routes may share one; 0 means a free one",
        "'8443'",
        low=0, high=65535,
    ),
    Parameter(
        "USERNAME", _TEXT, None, _B,
        "user name of Basic credentials, with PASSWORD: sent with requests; asked of callers when client mode is off",
        '"bridge"',
    ),
    Parameter("PASSWORD", _TEXT, None, _B, "password of Basic credentials", 'GET SECRET "api-password"', secret=True),
    Parameter(
        "AUTH_SCHEME", Kind.CHOICE, "basic", _C,
        "how USERNAME and PASSWORD are sent: as Basic credentials, or as a digest of the server's challenge (RFC 7616)",
        '"digest"', choices=tuple(AuthScheme),
    ),
    Parameter(
        "USE_SSL", _BOOL, "false", _B,
        "client: https for a BASE_ADDRESS without a scheme; server: the start fails without server_certfile",
        '"true"',
    ),
    Parameter(
        "IGNORE_CERT_ERRORS", _BOOL, "false", _C,
        "do not verify the server's certificate; not for production",
        '"true"',
    ),
    Parameter("ENABLE_CORS", _BOOL, "false", _S, "send CORS headers and refuse origins that are not listed", '"true"'),
    Parameter(
        "CORS_ORIGINS", Kind.ORIGINS, "*", _S,
        "origins that may call; * means all",
        '"https://dashboard.example.com"',
    ),
    Parameter(
        "AUTHORIZATION", Kind.HEADER_VALUE, None, _C, "value of the Authorization header of every request",
        '"Bearer " + GET SECRET "api-token"', secret=True,
    ),
    Parameter(
        "OAUTH2_TOKEN_URL", Kind.ADDRESS, None, _C,
        "where an access token is fetched with the two settings below (client credentials grant) and sent as Bearer "
        "with every request; renewed before it expires, and once after a 401",
        '"https://id.example.com/oauth/token"',
    ),
    Parameter("OAUTH2_CLIENT_ID", _TEXT, None, _C, "who asks for the token", '"mqtt-bridge"'),
    Parameter("OAUTH2_CLIENT_SECRET", _TEXT, None, _C, "its password", 'GET SECRET "client-secret"', secret=True),
    Parameter("OAUTH2_SCOPE", _TEXT, None, _C, "scopes to ask for, with spaces between", '"measurements:write"'),
    Parameter(
        "OAUTH2_AUDIENCE", _TEXT, None, _C,
        "audience to ask for, where the server wants one",
        '"https://api.example.com"',
    ),
    Parameter("CA_FILE", Kind.FILE, None, _C, "authorities to trust instead of the system's", '"ca.pem"'),
    Parameter("CLIENT_CERT_FILE", Kind.FILE, None, _C, "certificate to present to the server", '"client.pem"'),
    Parameter("CLIENT_KEY_FILE", Kind.FILE, None, _C, "its key, when it is not in the same file", '"client.key"'),
    Parameter("RETRIES", _INT, "3", _C, "how often a failed request is tried again", "'5'", low=0, high=100),
    Parameter("SERVER_USERNAME", _TEXT, None, _S, "user name that callers must send, in any route", '"shop"'),
    Parameter(
        "SERVER_PASSWORD", _TEXT, None, _S,
        "password that callers must send",
        'GET SECRET "shop-password"', secret=True,
    ),
    Parameter(
        "SERVER_TOKEN", Kind.TOKENS, None, _S,
        "callers must send one of these as `Authorization: Bearer ...` or in SERVER_TOKEN_HEADER; several for rotation",
        'GET SECRET "caller-tokens"',
        secret=True,
    ),
    Parameter(
        "SERVER_TOKEN_HEADER", Kind.HEADER_NAME, None, _S,
        "header that may hold the token too, as in X-API-Key",
        '"X-API-Key"',
    ),
)  # fmt: skip  # a table reads best as a table

_EVENT = (
    Parameter(
        "SOURCE_TOPIC", Kind.FILTER, None, _B,
        "client: the messages that send the request; server: a read event, which answers with the latest payload",
        '"plant/+/alert"',
    ),
    Parameter(
        "DESTINATION_TOPIC", Kind.TOPIC_TEMPLATE, None, _B,
        "client: where the response is published; server: where the request's data is published",
        '"tickets/{topic.2}/opened"',
    ),
    Parameter(
        "METHOD", Kind.CHOICE, None, _B, "method of the request; server mode has no PATCH",
        '"POST"', choices=tuple(Method)
    ),
    Parameter(
        "ENDPOINT", Kind.TEMPLATE, None, _B,
        "client: path to call, appended to BASE_ADDRESS; server: path to expose, `{name}` segments allowed",
        '"/machines/{topic.2}"',
    ),
    Parameter("BODY", Kind.TEMPLATE, None, _C, "body of the request", "'{\"level\": {value.json.level}}'"),
    Parameter(
        "WHEN", Kind.CONDITION, None, _B,
        "client: a message for which it is false sends nothing; server: a request for which it is false publishes "
        "nothing and is answered 200 `{\"status\": \"ignored\"}`",
        "'{value.json.level} >= 3'",
    ),
    Parameter(
        "EVERY", Kind.DURATION, None, _C,
        "also run at this interval, with an empty payload and the topic `$schedule/<route>/<event>`; without "
        "SOURCE_TOPIC only so",
        '"15m"',
    ),
    Parameter(
        "ON_CHANGE", Kind.TEMPLATE, None, _C,
        "a message for which this text is the last one of its topic sends nothing; messages of one topic are finished "
        "one after the other",
        '"{value.json.state}"',
    ),
    Parameter("ON_CHANGE_FOR", Kind.DURATION, None, _C, "after this time the same text is sent again", '"1h"'),
    Parameter("RETRY_ON", Kind.STATUSES, None, _C, "retry these statuses too, for any method", '"500, 502-504"'),
    Parameter("HEADERS", Kind.HEADERS, None, _C, "headers of the request, in their order", 'ADD Accept "text/csv"'),
    Parameter(
        "RESPONSE_FORMAT", Kind.CHOICE, "body", _C,
        "publish only the body of the response, or a JSON envelope with its status and headers",
        '"envelope"',
        choices=tuple(ResponseFormat),
    ),
    Parameter("RETAIN", _BOOL, "false", _B, "retain what is published", '"true"'),
    Parameter(
        "ERROR_TOPIC", Kind.TOPIC, None, _C,
        "where failures go instead of DESTINATION_TOPIC",
        '"tickets/failed"',
    ),
    Parameter(
        "FAILURE_PAYLOAD", _BOOL, "false", _C,
        "failures also hold `payload` and `payload_encoding` of the message, for `rest-bridge replay`",
        '"true"',
    ),
    Parameter("ORDERED", _BOOL, "false", _C, "finish the messages of one topic one after the other", '"true"'),
    Parameter(
        "PAYLOAD", Kind.TEMPLATE, None, _B,
        "what is published instead of the body: of the response (client), of the request (server)",
        "'{response.json.price}'",
    ),
    Parameter(
        "RESPONSE_CONTENT_TYPE", _TEXT, "application/json", _B,
        "decides how placeholders are escaped in PAYLOAD (client) and RESPONSE (server); the answer's Content-Type",
        '"text/plain"',
    ),
    Parameter(
        "RESPONSE", Kind.TEMPLATE, None, _S,
        "body of the answer instead of `{\"status\": \"published\", ...}`",
        "'{\"accepted\": {body.json.id}}'",
    ),
    Parameter(
        "RESPONSE_STATUS", _INT, "200", _S, "status of the answer once the request is published",
        "'202'", low=200, high=299,
    ),
    Parameter(
        "REPLY_TOPIC", Kind.TOPIC_TEMPLATE, None, _S,
        "wait for a message there and answer the request with its payload",
        '"replies/{request_id}"',
    ),
    Parameter(
        "SIGNATURE_SECRET", _TEXT, None, _B,
        "key of an HMAC-SHA256 over the body: client: sign the request; server: refuse what is not signed with it, in "
        "read events the HMAC of the empty body",
        'GET SECRET "webhook-secret"', secret=True,
    ),
    Parameter(
        "SIGNATURE_HEADER", Kind.HEADER_NAME, "X-Hub-Signature-256", _B,
        "header that holds the signature",
        '"X-Signature"',
    ),
    Parameter(
        "SIGNATURE_SCHEME", Kind.CHOICE, "hmac", _S,
        "whose webhooks SIGNATURE_SECRET verifies; all but hmac have headers of their own and sign a timestamp, which "
        "may be 5 minutes off",
        '"slack"', choices=tuple(SignatureScheme),
    ),
)  # fmt: skip

_ROUTE_CONFIG = (
    Parameter(
        "OVERLOAD_CAPACITY", _INT, "10000", _C, "messages that may be queued and in flight",
        "'1000'", low=1, high=1_000_000,
    ),
    Parameter(
        "OVERLOAD_BYTES", Kind.SIZE, "64MiB", _C,
        "payloads of messages that may be queued and in flight; one message is taken where nothing is queued",
        '"256MiB"',
        low=1, high=1 << 40,
    ),
    Parameter(
        "OVERLOAD_POLICY", Kind.CHOICE, "balanced", _C,
        "balanced: refuse new messages when full; realtime: when no worker is free; lossless: keep them on disk, "
        "and refuse new ones when full",
        '"lossless"', choices=tuple(OverloadPolicy),
    ),
    Parameter(
        "OVERLOAD_TIMEOUT", _INT, "0", _C,
        "milliseconds that balanced waits for room before it refuses a message; OVERLOAD_CAPACITY and OVERLOAD_BYTES "
        "more may wait",
        "'2000'",
        low=0, high=3_600_000,
    ),
    Parameter(
        "RATE_LIMIT", Kind.RATE, None, _C,
        "requests are spaced evenly, so that the server sees no more than this; they wait in the queue",
        '"10/s"',
    ),
    Parameter(
        "BREAKER", Kind.BREAKER, None, _C,
        "so many failures of the target (no connection, TLS, timeout, 502 to 504) within the time open the breaker: "
        "one message every 5 s tries the target, lossless and retried ones wait, others fail with `target_down`",
        '"5 per 30s"',
    ),
)  # fmt: skip

PARAMETERS: Mapping[BlockKind, Mapping[str, Parameter]] = MappingProxyType(
    {
        BlockKind.CONFIG: MappingProxyType({row.name: row for row in _CONFIG}),
        BlockKind.EVENT: MappingProxyType({row.name: row for row in _EVENT}),
        BlockKind.ROUTE_CONFIG: MappingProxyType({row.name: row for row in _ROUTE_CONFIG}),
    }
)
