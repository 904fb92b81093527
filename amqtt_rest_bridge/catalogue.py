"""The catalogue of answers: one row a code, what it means, its HTTP status, and what to do next.

Failures of calls, error answers of server mode and of the admin port, log lines, pages and commands take their texts
from here; the tables of the reference are made of it (`python -m tests.documents.tables`). A row's `anchor` is its
place in the reference, and the code as messages name it: `timeout` of a failure, `401 unauthorized` of an answer. A
code that has several causes has a variant of its row for each, with the hint that fits; the message, which holds the
facts, is written where they are known. Pure, next to the bottom: any thread may use it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Self

from amqtt_rest_bridge.errors import CallError, FailureCode


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """A code with its meaning (one clause) and `hint`, what to do next."""

    code: str
    meaning: str
    hint: str

    def hinting(self, hint: str) -> Self:
        """Return the row for one of its causes, with the hint that fits."""
        return replace(self, hint=hint)


@dataclass(frozen=True, slots=True)
class FailureRow(CatalogueRow):
    """A code of client mode."""

    code: FailureCode

    @property
    def anchor(self) -> str:
        """Return its place in the reference."""
        return self.code.value

    def error(self, message: str, *, hint: str | None = None, unsent: bool = False) -> CallError:
        """Return the failure with this code; `hint` replaces the row's where it holds facts of the call."""
        return CallError(self.code, message, self.hint if hint is None else hint, unsent=unsent)


@dataclass(frozen=True, slots=True)
class AnswerRow(CatalogueRow):
    """A code of an error answer.

    Args:
        status: Its status line.
        published: Whether the request has published something, as the reference has it.
        for_operator: What an operator does about it, where `hint` is for its caller.
    """

    status: str
    published: str = "no"
    for_operator: str | None = None

    @property
    def anchor(self) -> str:
        """Return its place in the reference."""
        return f"{self.status[:3]}-{self.code}"


# Client mode: `error.code` of the failure payload.

TIMEOUT: Final = FailureRow(
    FailureCode.TIMEOUT,
    "the attempt took longer than REQUEST_TIMEOUT; the message says in which step",
    "look at the server's load; check host, port and firewalls when it was the connection; raise REQUEST_TIMEOUT",
)
TIMEOUT_CONNECTING: Final = TIMEOUT.hinting(
    "Check host and port in BASE_ADDRESS and firewalls on the way; REQUEST_TIMEOUT may be too small."
)
TIMEOUT_ANSWERING: Final = TIMEOUT.hinting("Check that the server is not overloaded, or raise REQUEST_TIMEOUT.")

CONNECTION_FAILED: Final = FailureRow(
    FailureCode.CONNECTION_FAILED,
    "refused, unknown host, connection broken, or the answer is not HTTP/1.1",
    "check BASE_ADDRESS and that the server runs; `expects TLS`: set USE_SSL; behind a proxy: its address and "
    "credentials",
)
UNKNOWN_HOST: Final = CONNECTION_FAILED.hinting("Check BASE_ADDRESS and this machine's name server.")
CONNECTION_REFUSED: Final = CONNECTION_FAILED.hinting("Check that the server runs, and the port in BASE_ADDRESS.")
UNREACHABLE: Final = CONNECTION_FAILED.hinting(
    "Check BASE_ADDRESS, the network of this machine and firewalls on the way."
)
PROXY_REFUSED: Final = CONNECTION_FAILED.hinting(
    "Check that the proxy may reach this server, its credentials in HTTPS_PROXY, and NO_PROXY."
)
CONNECTION_ENDED: Final = CONNECTION_FAILED.hinting(
    "Check the server's log: it, or something on the way, ended the connection."
)
PLAIN_CONNECTION_ENDED: Final = CONNECTION_FAILED.hinting(
    f"{CONNECTION_ENDED.hint} If this port speaks TLS, set USE_SSL or write https:// into BASE_ADDRESS."
)
TLS_CONNECTION_ENDED: Final = CONNECTION_FAILED.hinting(
    f"{CONNECTION_ENDED.hint} If the server asks for a client certificate, set CLIENT_CERT_FILE."
)
TLS_EXPECTED: Final = CONNECTION_FAILED.hinting("Set USE_SSL or write https:// into BASE_ADDRESS.")
UNREADABLE_BODY: Final = CONNECTION_FAILED.hinting("Check the server, and proxies on the way.")
NOT_HTTP: Final = CONNECTION_FAILED.hinting("Check the port in BASE_ADDRESS, and the server.")
FAULT_OF_THE_BRIDGE: Final = CONNECTION_FAILED.hinting("The broker's log has the details; please report them.")

TLS_FAILED: Final = FailureRow(
    FailureCode.TLS_FAILED,
    "the certificate is refused, or no TLS came about",
    "unknown authority or self-signed: CA_FILE; wrong host: the name in BASE_ADDRESS; expired: a new one, and both "
    "clocks; `does not speak TLS`: USE_SSL",
)
TLS_FILES: Final = TLS_FAILED.hinting(
    "Put the file where the route's definition has it; it is read again for the next call."
)
NO_TLS: Final = TLS_FAILED.hinting(
    "Check that the server speaks TLS on this port: USE_SSL, and http:// or https:// in BASE_ADDRESS."
)
PLAIN_PORT: Final = TLS_FAILED.hinting(
    "Write http:// into BASE_ADDRESS and leave USE_SSL out, or give the port for TLS."
)
CLIENT_CERTIFICATE: Final = TLS_FAILED.hinting(
    "Set CLIENT_CERT_FILE and CLIENT_KEY_FILE to a certificate that this server accepts."
)
TLS_VERSION: Final = TLS_FAILED.hinting("The server must offer TLS 1.2 or newer.")
TLS_HANDSHAKE: Final = TLS_FAILED.hinting(
    "The server may want a client certificate (CLIENT_CERT_FILE), or offer no cipher that this machine has."
)
CERTIFICATE: Final = TLS_FAILED.hinting("Check the server's certificate, and CA_FILE.")
_OTHER_HOST: Final = TLS_FAILED.hinting("Write the name that the certificate is made for into BASE_ADDRESS.")
CERTIFICATES: Final[Mapping[int, FailureRow]] = MappingProxyType(
    {
        9: TLS_FAILED.hinting("It is not valid yet: check this machine's clock."),
        10: TLS_FAILED.hinting("The server needs a new certificate; check this machine's clock too."),
        18: TLS_FAILED.hinting("Put the certificate into a file and name it in CA_FILE."),
        19: TLS_FAILED.hinting("Put the certificate of that authority into a file and name it in CA_FILE."),
        20: TLS_FAILED.hinting(
            "Name the certificate of its authority in CA_FILE, or configure the server to send its whole chain."
        ),
        62: _OTHER_HOST,
        64: _OTHER_HOST,
    }
)
"""OpenSSL's X509_V_ERR_* of the cases that an operator meets."""

HTTP_STATUS: Final = FailureRow(
    FailureCode.HTTP_STATUS,
    "the server answered 400 or above",
    "401, 403: credentials; 404: BASE_ADDRESS and ENDPOINT; 405: METHOD; 415: content type; `body` holds what the "
    "server said, secrets of the route masked",
)
STATUS_EXPLAINED: Final = HTTP_STATUS.hinting(
    "Change BODY, HEADERS or ENDPOINT of the event to what the server expects."
)
STATUS_OF_THE_SERVER: Final = HTTP_STATUS.hinting("The server has a problem of its own: look into its log.")
STATUS_EXPECTS_TLS: Final = HTTP_STATUS.hinting(
    "The server expects TLS on this port: set USE_SSL or write https:// into BASE_ADDRESS."
)
NO_DIGEST: Final = HTTP_STATUS.hinting('AUTH_SCHEME "digest" needs a server that offers Digest with qop auth.')
STATUSES: Final[Mapping[int, FailureRow]] = MappingProxyType(
    {
        400: HTTP_STATUS.hinting("Check BODY, HEADERS and ENDPOINT of the event against what the server expects."),
        401: HTTP_STATUS.hinting("Check USERNAME and PASSWORD, AUTHORIZATION, or the Authorization header in HEADERS."),
        403: HTTP_STATUS.hinting("The server accepts these credentials, but not for this request: check their rights."),
        404: HTTP_STATUS.hinting("Check BASE_ADDRESS and ENDPOINT."),
        405: HTTP_STATUS.hinting("Check METHOD: the server does not take it at this ENDPOINT."),
        407: HTTP_STATUS.hinting(
            "The proxy asks for credentials: put them into HTTP_PROXY as http://user:password@proxy:port."
        ),
        413: HTTP_STATUS.hinting("The server takes no body of this size."),
        415: HTTP_STATUS.hinting("Check DEFAULT_CONTENT_TYPE or the Content-Type header of the event."),
        421: HTTP_STATUS.hinting("Check BASE_ADDRESS and the Host header of the event."),
        429: HTTP_STATUS.hinting("The server takes fewer requests than arrive: slow the publishers down."),
    }
)

OAUTH2_FAILED: Final = FailureRow(
    FailureCode.OAUTH2_FAILED,
    "the server of OAUTH2_TOKEN_URL issued no token; the message says why",
    "400, 401: OAUTH2_CLIENT_ID, OAUTH2_CLIENT_SECRET, OAUTH2_SCOPE; otherwise as for the codes above, at that server",
)
TOKEN_REFUSED: Final = OAUTH2_FAILED.hinting(
    "Check OAUTH2_TOKEN_URL, OAUTH2_CLIENT_ID, OAUTH2_CLIENT_SECRET, OAUTH2_SCOPE and OAUTH2_AUDIENCE."
)
NOT_A_TOKEN: Final = OAUTH2_FAILED.hinting(
    "Check OAUTH2_TOKEN_URL: it must answer with JSON that holds access_token and token_type Bearer."
)

TARGET_DOWN: Final = FailureRow(
    FailureCode.TARGET_DOWN,
    "the BREAKER of the route is open: its target failed too often, and is tried every 5 s by one message",
    "find out why the target is down; only lossless messages, and those tried before, are sent once it has answered",
)
BREAKER_OPEN: Final = TARGET_DOWN.hinting("Find out why the target is down. Lossless messages wait for it.")

RESPONSE_TOO_LARGE: Final = FailureRow(
    FailureCode.RESPONSE_TOO_LARGE, "body or headers above their bounds", "ask for less, or raise `max_response_bytes`"
)
RESPONSE_HEAD_TOO_LARGE: Final = RESPONSE_TOO_LARGE.hinting("Check what the server sends.")
RESPONSE_BODY_TOO_LARGE: Final = RESPONSE_TOO_LARGE.hinting("Ask the server for less, or raise max_response_bytes.")

REDIRECT_REFUSED: Final = FailureRow(
    FailureCode.REDIRECT_REFUSED,
    "a redirect to another host or port, of a method other than GET, or the sixth",
    "write the final address into BASE_ADDRESS and ENDPOINT",
)
REDIRECTED_METHOD: Final = REDIRECT_REFUSED.hinting("Write the final address into BASE_ADDRESS and ENDPOINT.")
REDIRECTED_TOO_OFTEN: Final = REDIRECT_REFUSED.hinting(
    "The server redirects in a circle, or ENDPOINT should name the final path."
)
REDIRECTED_ELSEWHERE: Final = REDIRECT_REFUSED.hinting(
    "If that server is meant, write it into BASE_ADDRESS; its credentials would go there too."
)

PLACEHOLDER_UNRESOLVED: Final = FailureRow(
    FailureCode.PLACEHOLDER_UNRESOLVED,
    "a placeholder has no value in this message",
    "send the field, or correct its name in the route",
)
BINARY_VALUE: Final = PLACEHOLDER_UNRESOLVED.hinting(
    "Binary data can only be the whole body, or part of one that is neither JSON nor a form."
)
MISSING_FIELD: Final = PLACEHOLDER_UNRESOLVED.hinting(
    "Send that field, or correct the name in the route; names are case-sensitive."
)
MISSING_RESPONSE: Final = PLACEHOLDER_UNRESOLVED.hinting("See why the server did not answer.")
MISSING_LEVEL: Final = PLACEHOLDER_UNRESOLVED.hinting("Use a lower number or a longer topic.")
MISSING_PROPERTY: Final = PLACEHOLDER_UNRESOLVED.hinting(
    "Publish with that user property (MQTT 5, names are case-sensitive), run the route in a worker, or write a default."
)
MISSING_CSV_FIELD: Final = PLACEHOLDER_UNRESOLVED.hinting(
    "Send that field, or use a lower number; fields are counted from 0."
)

INVALID_VALUE: Final = FailureRow(
    FailureCode.INVALID_VALUE,
    "a value is not allowed in the place of its placeholder (line break in a header, `..` in a path, `/` in a topic)",
    "send another value",
)
OTHER_VALUE: Final = INVALID_VALUE.hinting("Send another value.")
FLATTER_VALUE: Final = INVALID_VALUE.hinting("Send a flatter value.")
WHOLE_CHARACTERS: Final = INVALID_VALUE.hinting("Send whole characters.")
NO_LINE_BREAKS: Final = INVALID_VALUE.hinting("Send text without line breaks.")
NO_TOPIC_CHARACTERS: Final = INVALID_VALUE.hinting(
    "Send a value without /, +, #, control characters and noncharacters."
)
TYPE_OF_BODY: Final = INVALID_VALUE.hinting(
    "Write the type in the route file, in an event for each type, or make {payload} alone the BODY."
)

TOO_LARGE: Final = FailureRow(
    FailureCode.PAYLOAD_TOO_LARGE,
    "the message exceeds `max_message_bytes`, or the filled body `max_body_bytes`",
    "send less, or raise that setting",
)
MESSAGE_TOO_LARGE: Final = TOO_LARGE.hinting("send a smaller message, or raise max_message_bytes")
REQUEST_TOO_LARGE: Final = TOO_LARGE.hinting("Send a smaller payload, or raise max_body_bytes of the plugin.")

SCHEMA_MISMATCH: Final = FailureRow(
    FailureCode.SCHEMA_MISMATCH,
    "the payload does not match SCHEMA_FILE; the message names every fault with its JSON Pointer, 20 at most",
    "send what the schema describes, or correct the schema",
)
SCHEMA_FAULTS: Final = SCHEMA_MISMATCH.hinting("Send what the schema describes, or correct the schema.")

OVERLOADED: Final = FailureRow(
    FailureCode.OVERLOADED,
    "the route had no room for the message",
    "publish slower, raise OVERLOAD_CAPACITY, OVERLOAD_BYTES or `queue_bytes`, as the message says, or find out why "
    "the server is slow",
)
ROUTE_FULL: Final = OVERLOADED.hinting(
    "send more slowly, raise OVERLOAD_CAPACITY, or find out why the HTTP server answers slowly"
)
ROUTE_BYTES_FULL: Final = OVERLOADED.hinting(
    "send more slowly, raise OVERLOAD_BYTES, or find out why the HTTP server answers slowly"
)
QUEUE_BYTES_FULL: Final = OVERLOADED.hinting(
    "send more slowly, raise queue_bytes, or find out why the HTTP server answers slowly"
)
NO_FREE_WORKER: Final = OVERLOADED.hinting(
    'send more slowly, raise the plugin\'s workers, or use OVERLOAD_POLICY "balanced" to queue messages'
)
ROUTE_REMOVED: Final = OVERLOADED.hinting("publish it again once a route takes it")
TOO_MANY_HOPS: Final = OVERLOADED.hinting(
    "look for routes whose DESTINATION_TOPIC matches the SOURCE_TOPIC of an earlier one"
)
DISK_FULL: Final = OVERLOADED.hinting("make room on the disk of the plugin's spool")

BRIDGE_RESTARTED: Final = FailureRow(
    FailureCode.BRIDGE_RESTARTED,
    "the bridge process ended while it held the message",
    'see the broker\'s log for the reason; OVERLOAD_POLICY "lossless" sends such messages again',
)

FAILURES: Final[Mapping[str, FailureRow]] = MappingProxyType(
    {
        row.code.value: row
        for row in (
            TIMEOUT, CONNECTION_FAILED, TLS_FAILED, HTTP_STATUS, OAUTH2_FAILED, TARGET_DOWN, RESPONSE_TOO_LARGE,
            REDIRECT_REFUSED, PLACEHOLDER_UNRESOLVED, INVALID_VALUE, SCHEMA_MISMATCH, TOO_LARGE, OVERLOADED,
            BRIDGE_RESTARTED,
        )
    }
)  # fmt: skip
"""The codes of client mode, in the order of the reference."""

# Server mode, its HTTP server, and the admin port: `error.code` of an answer.

_BAD, _UNAVAILABLE, _UNAUTHORIZED = "400 Bad Request", "503 Service Unavailable", "401 Unauthorized"
_SEND_AGAIN: Final = "Send it again after the seconds in Retry-After"

INVALID_REQUEST: Final = AnswerRow(
    "invalid_request",
    "not HTTP as RFC 9112 has it, folded header lines, Content-Length together with Transfer-Encoding, no or two Host "
    "headers or one that is not a host, a path or query that cannot be decoded or holds control characters, a "
    "placeholder without a value, a value that would change the topic, a connection closed before its turn on a reply "
    "topic",
    "Send a request as RFC 9112 has it; an HTTP library does",
    _BAD,
    for_operator="Compare what the caller sends with the placeholders of the event",
)
NOT_A_PATH: Final = INVALID_REQUEST.hinting("Send the path of an endpoint")
FRAGMENT: Final = INVALID_REQUEST.hinting("Write '#' as %23")
BAD_ESCAPE: Final = INVALID_REQUEST.hinting("Write '%' as %25")
PATH_NOT_UTF_8: Final = INVALID_REQUEST.hinting("Percent-encode the path's UTF-8 bytes")
CONTROL_CHARACTER: Final = INVALID_REQUEST.hinting("Leave it out")
BAD_QUERY: Final = INVALID_REQUEST.hinting("Percent-encode the UTF-8 bytes of names and values")
CALLER_LEFT: Final = INVALID_REQUEST.hinting("Keep the connection open in both directions until the answer has come")
NOT_A_FILTER: Final = INVALID_REQUEST.hinting("Write a topic filter of MQTT")
NOT_A_QUERY: Final = INVALID_REQUEST.hinting("The reference of the admin port lists what each path takes")
NOT_A_RETRY: Final = INVALID_REQUEST.hinting('Send JSON: {"route": "...", "code": "..."} or {"ids": ["..."]}')

INVALID_BODY: Final = AnswerRow(
    "invalid_body",
    "the body does not match SCHEMA_FILE; the message names every fault with its JSON Pointer, 20 at most",
    "Send what the schema describes",
    _BAD,
)

UNAUTHORIZED: Final = AnswerRow(
    "unauthorized",
    "credentials missing or wrong (with `WWW-Authenticate`)",
    "Send the credentials that `WWW-Authenticate` names",
    _UNAUTHORIZED,
    for_operator="Compare the caller's credentials with those of the route: SERVER_TOKEN, SERVER_USERNAME and "
    "SERVER_PASSWORD, or USERNAME and PASSWORD where client mode is off",
)
ADMIN_TOKEN: Final = UNAUTHORIZED.hinting(
    "Send admin_token as Authorization: Bearer ..., or as the password in a browser, with any name"
)

INVALID_SIGNATURE: Final = AnswerRow(
    "invalid_signature",
    "the signature header does not match the body",
    "Sign the body, byte for byte, with the secret that the route's SIGNATURE_SECRET holds",
    _UNAUTHORIZED,
    for_operator="Compare the caller's secret with SIGNATURE_SECRET, and how it signs with SIGNATURE_SCHEME",
)
INVALID_SCHEME: Final = INVALID_SIGNATURE.hinting(
    "Sign as the route's SIGNATURE_SCHEME does, timestamp and body byte for byte, with the secret of SIGNATURE_SECRET"
)
SIGNED_TOO_LONG_AGO: Final = INVALID_SIGNATURE.hinting("Set both clocks right; sign a request again that is sent again")

ORIGIN_NOT_ALLOWED: Final = AnswerRow(
    "origin_not_allowed",
    "`ENABLE_CORS` is on and the request's Origin is not listed",
    "Ask the operator to add the origin, with its scheme and port, to CORS_ORIGINS",
    "403 Forbidden",
    for_operator="Add the origin of these pages to CORS_ORIGINS if they may use this route",
)
ADMIN_ORIGIN: Final = ORIGIN_NOT_ALLOWED.hinting("Open the status page itself")
NO_ADMIN_TOKEN: Final = AnswerRow(
    "no_admin_token",
    "admin port only: a retry, and the setting `admin_token` is not set",
    "Set admin_token in the bridge's configuration, start it again, and send the token",
    "403 Forbidden",
)
CANNOT_RETRY: Final = AnswerRow(
    "cannot_retry",
    "admin port only: the message of the run cannot be sent again, or is being sent",
    "Define its route and event again, or send the message to another one",
    "409 Conflict",
)
RETRY_RUNS: Final = CANNOT_RETRY.hinting("Wait until that has ended: its run says what came of it")

NOT_FOUND: Final = AnswerRow(
    "not_found",
    "no endpoint has this path",
    "Compare the path with the routes' ENDPOINTs: letters, case and a slash at the end all count",
    "404 Not Found",
)
NO_PAGE: Final = NOT_FOUND.hinting("The status page is at /")
NO_ROUTE: Final = NOT_FOUND.hinting("GET /api/routes lists them")
NO_RUN: Final = NOT_FOUND.hinting("GET /api/runs lists those that are known: of each route the last 100 failures")
STILL_RETRIED: Final = NO_RUN.hinting("It can be shown and sent again once it has ended")

NO_MESSAGE: Final = AnswerRow(
    "no_message",
    "a read event before the first message",
    "Repeat the request after something was published there",
    "404 Not Found",
    for_operator="Find out why nothing is published on SOURCE_TOPIC, or publish it retained",
)
METHOD_NOT_ALLOWED: Final = AnswerRow(
    "method_not_allowed",
    "the endpoint has other methods (in `Allow`)",
    "Use one of those in `Allow`",
    "405 Method Not Allowed",
)
ADMIN_METHOD: Final = METHOD_NOT_ALLOWED.hinting("Use GET")
RETRY_METHOD: Final = METHOD_NOT_ALLOWED.hinting("Use POST")

REQUEST_TIMEOUT: Final = AnswerRow(
    "request_timeout",
    "the request did not come as a whole within 30 s",
    "Send it faster",
    "408 Request Timeout",
    for_operator="Look at the network between the caller and this machine",
)
PAYLOAD_TOO_LARGE: Final = AnswerRow(
    "payload_too_large",
    "the body, or what PAYLOAD makes of it, is over `max_body_bytes`; answered as soon as Content-Length says so",
    "Send less, or ask the operator to raise max_body_bytes",
    "413 Content Too Large",
    for_operator="Raise max_body_bytes, or have the caller send less",
)
UNSUPPORTED_MEDIA_TYPE: Final = AnswerRow(
    "unsupported_media_type",
    "the body has a Content-Encoding",
    "Send the body as it is, without Content-Encoding",
    "415 Unsupported Media Type",
    for_operator="Have the caller send its body without Content-Encoding",
)
MISDIRECTED_REQUEST: Final = AnswerRow(
    "misdirected_request",
    "admin port only: without `admin_token`, the Host is not this machine",
    "Use http://127.0.0.1 or http://localhost; for other names set admin_token",
    "421 Misdirected Request",
)
HEADERS_TOO_LARGE: Final = AnswerRow(
    "headers_too_large",
    "request line and headers are over 64 KiB",
    "Send fewer or shorter headers",
    "431 Request Header Fields Too Large",
)
INTERNAL_ERROR: Final = AnswerRow(
    "internal_error",
    "a fault of the bridge; the log has it under the request id",
    "Send the operator the value of X-Request-ID: the log has the reason",
    "500 Internal Server Error",
)
NOT_IMPLEMENTED: Final = AnswerRow(
    "not_implemented", "a Transfer-Encoding other than chunked", "Send the body plain or chunked", "501 Not Implemented"
)
NO_ROOM: Final = AnswerRow(
    "overloaded",
    "no room within a second, too many waiting requests, or too many connections (with `Retry-After`)",
    _SEND_AGAIN,
    _UNAVAILABLE,
    for_operator="Find out what keeps the broker or its subscribers busy",
)
TOO_MANY_FOLLOW: Final = NO_ROOM.hinting("End another rest-bridge trace, or close the status pages in another browser")
BROKER_UNAVAILABLE: Final = AnswerRow(
    "broker_unavailable",
    "the broker is away, or has not acknowledged the message within 10 s (with `Retry-After`)",
    "Send it again later; where doing it twice does harm, let the subscribers tell repeated ones apart",
    _UNAVAILABLE,
    "unknown: sent, but not acknowledged",
    for_operator="Look at the broker, and at the connection to it",
)
SHUTTING_DOWN: Final = AnswerRow(
    "shutting_down", "the bridge is closing (with `Retry-After`)", _SEND_AGAIN, _UNAVAILABLE
)
PORT_CLOSED: Final = SHUTTING_DOWN.hinting("Connect to the port that the route has now")

ANSWER_TOO_LARGE: Final = AnswerRow(
    "response_too_large", "the messages of a read event take more than `max_response_bytes`, or are too many to keep",
    "Read an endpoint with a narrower SOURCE_TOPIC, or raise max_response_bytes", _UNAVAILABLE,
)  # fmt: skip
REPLY_TIMEOUT: Final = AnswerRow(
    "reply_timeout",
    "no reply within REQUEST_TIMEOUT",
    "See whether something that replies is subscribed; a reply that comes now is dropped",
    "504 Gateway Timeout",
    "**yes**",
    for_operator="Check that what replies runs, and replies on REPLY_TOPIC within REQUEST_TIMEOUT",
)
STOPPED_BEFORE_REPLY: Final = REPLY_TIMEOUT.hinting(
    "The responder may have received it: repeat the request only where that does no harm"
)

ANSWERS: Final[Mapping[str, AnswerRow]] = MappingProxyType(
    {
        row.code: row
        for row in (
            INVALID_REQUEST, INVALID_BODY, UNAUTHORIZED, INVALID_SIGNATURE, ORIGIN_NOT_ALLOWED, NO_ADMIN_TOKEN,
            NOT_FOUND, NO_MESSAGE, METHOD_NOT_ALLOWED, CANNOT_RETRY, REQUEST_TIMEOUT, PAYLOAD_TOO_LARGE,
            UNSUPPORTED_MEDIA_TYPE,
            MISDIRECTED_REQUEST, HEADERS_TOO_LARGE, INTERNAL_ERROR, NOT_IMPLEMENTED, NO_ROOM, BROKER_UNAVAILABLE,
            SHUTTING_DOWN, ANSWER_TOO_LARGE, REPLY_TIMEOUT,
        )
    }
)  # fmt: skip
"""The codes of error answers, in the order of the reference."""
