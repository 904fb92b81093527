"""The request that a call sends, and what it publishes of a good response. Pure.

`event` has a `RequestBuilder` for each client event, and calls `result_of` for a response below 300.

A trace context (`traceparent`, `tracestate` and `baggage`) is passed on without a setting: from the user properties of
a message to the headers of its request, and from the headers of a request or response to the message that it becomes.
amqtt does not pass it on, since messages of MQTT 3.1.1 have no properties.
"""

import base64
import json
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from amqtt_rest_bridge.addresses import basic_credentials
from amqtt_rest_bridge.catalogue import REQUEST_TOO_LARGE, TYPE_OF_BODY
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.origin import Origin, origin_of, printable
from amqtt_rest_bridge.lot.model import (
    AuthScheme,
    ClientEvent,
    HttpRequest,
    HttpResponse,
    Message,
    MessageProperties,
    Method,
    Pairs,
    Publication,
    ResponseFormat,
    RestApiConfig,
    Route,
    values_of,
)
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, PlaceholderText, ResponseBody, ResultValues, place_of
from amqtt_rest_bridge.system import own_version

_BODY_METHODS = frozenset({Method.POST, Method.PUT, Method.PATCH})  # have a Content-Length even without a body
# Left out of HEADERS: the bridge itself computes the length.
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

TRACE_NAMES: Final = frozenset(("traceparent", "tracestate", "baggage"))
"""The headers, and user properties, of a trace context."""

# The syntax of the three headers: W3C Trace Context sections 3.2 and 3.3, W3C Baggage section 3.3.
_PARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?"
)
_STATE_MEMBER: Final = re.compile(r"([a-z0-9][a-z0-9_*/@-]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_MOST_CHARACTERS: Final = 8192  # of a list, as many as W3C Baggage section 3.3.2 asks for
_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE: Final = r"[!#-+\--:<-\[\]-~]*"
_BAGGAGE_MEMBER: Final = re.compile(f"{_NAME}[ \t]*=[ \t]*{_VALUE}")
_BAGGAGE_PROPERTY: Final = re.compile(f"{_NAME}(?:[ \t]*=[ \t]*{_VALUE})?")
_SPACE: Final = " \t"


class RequestBuilder:
    """Builds the requests of an event from messages. What is the same for all messages is computed once.

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME cannot be used.
    """

    def __init__(self, route: Route, event: ClientEvent, *, max_body_bytes: int) -> None:
        origin, path = split_base_address(route.config.base_address or "")
        self._base = f"{origin}{path}/"
        self._method = event.method
        self._max_body_bytes = max_body_bytes
        self._endpoint = event.endpoint
        source = event.endpoint.source
        self._leading_slashes = len(source) - len(source.lstrip("/"))
        self._begins_with_topic = source.startswith(("{topic}", "{source_topic}"))
        self._constant_url = self._url_for(MessageValues(b"", 0.0, topic="")) if event.endpoint.is_constant else None
        destination = event.destination_topic
        self._destination: str | PlaceholderText | None = None
        if destination is not None and not destination.needs_response:
            self._destination = _filled_if_constant(destination)
        self._body = event.body
        self._has_length = event.body is not None or event.method in _BODY_METHODS
        # Headers of the bridge come before and after those of HEADERS. A name in HEADERS replaces that of the bridge.
        names = frozenset(name.lower() for name, _ in event.headers)
        first = _headers_before(origin.authority, names)
        own = [(name, _filled_if_constant(text)) for name, text in event.headers if name.lower() not in _FRAMING]
        last = _headers_after(route.config, names, has_body=event.body is not None)
        self._first_headers, self._event_headers, self._last_headers = first, own, last
        constant = tuple((name, text) for name, text in own if isinstance(text, str))
        self._constant_headers = (*first, *constant, *last) if len(constant) == len(own) else None
        self._takes_idempotency_key = "idempotency-key" not in names
        # Trace headers that are not taken from the message.
        self._trace_left_out = names | {"tracestate"} if "traceparent" in names else names
        # How values are escaped in BODY. The Content-Type decides it, so a value in that header must not change it.
        self._body_place = None
        if event.body is not None and not event.body.is_constant and not event.body.is_raw:
            self._body_place = event.body.place

    def build(self, values: MessageValues, idempotency_key: str | None = None) -> HttpRequest:
        """Build the request of a message. Stages may add headers to it, such as a signature.

        An Idempotency-Key in HEADERS wins over `idempotency_key`, a traceparent in HEADERS over that of the message.

        Raises:
            CallError: `placeholder_unresolved`, `invalid_value` or `payload_too_large`.
        """
        url = self._constant_url or self._url_for(values)
        text = self._body
        body = None if text is None else values.payload if text.is_payload else text.fill_bytes(values)
        if body is not None and len(body) > self._max_body_bytes:
            message = f"the request body has {len(body)} bytes, max_body_bytes allows {self._max_body_bytes}"
            raise REQUEST_TOO_LARGE.error(message, unsent=True)
        headers = self._filled_headers(values) if self._constant_headers is None else self._constant_headers
        if self._has_length:
            headers = (*headers, ("Content-Length", str(len(body or b""))))
        if idempotency_key is not None and self._takes_idempotency_key:
            headers = (*headers, ("Idempotency-Key", idempotency_key))
        if values.user:
            headers = (*headers, *(pair for pair in trace_of(values.user) if pair[0] not in self._trace_left_out))
        return HttpRequest(self._method, url, headers, body)

    def _filled_headers(self, values: MessageValues) -> Pairs:
        """Return HEADERS filled, between the headers of the bridge; raises `CallError` for a bad value."""
        filled = [(name, text if isinstance(text, str) else text.fill(values)) for name, text in self._event_headers]
        for name, value in filled if self._body_place is not None else ():
            # With another escaping a value could end the JSON string or the form field that it is in.
            if name.lower() == "content-type" and place_of(value) is not self._body_place:
                message = f"a value makes {name} a type under which BODY would have to be escaped in another way"
                raise TYPE_OF_BODY.error(message, unsent=True)
        return (*self._first_headers, *filled, *self._last_headers)

    def destination(self, values: MessageValues) -> str | None:
        """Return the topic of the result; None if there is no result, or the topic has values of the response.

        Raises:
            CallError: `placeholder_unresolved` or `invalid_value`.
        """
        topic = self._destination
        return topic.fill(values) if isinstance(topic, PlaceholderText) else topic

    def _url_for(self, values: MessageValues) -> str:
        """Return BASE_ADDRESS and ENDPOINT, filled, with one slash between them.

        Slashes at the beginning of ENDPOINT are dropped, also those of a topic that it begins with. Slashes after an
        empty value stay, so that no segment disappears.
        """
        filled = self._endpoint.fill(values)
        path = filled.lstrip("/") if self._begins_with_topic else filled[self._leading_slashes :]
        return self._base + printable(path.partition("#")[0])


def split_base_address(text: str) -> tuple[Origin, str]:
    """Split BASE_ADDRESS into its origin and its path, the path without a trailing slash.

    Credentials in it are refused, because addresses appear in logs; so are a query and a fragment, because
    ENDPOINT follows the path.

    Raises:
        ConfigurationError: it is not the http or https URL of a host.
    """
    if "?" in text or "#" in text:
        raise ConfigurationError("BASE_ADDRESS cannot hold a query or a fragment; write the query into ENDPOINT")
    try:
        parts = urlsplit(text)
        if parts.username is not None:
            raise ConfigurationError("BASE_ADDRESS holds credentials; set USERNAME and PASSWORD instead")
        return origin_of(parts), printable(parts.path).rstrip("/")
    except ValueError as error:
        raise ConfigurationError(f"BASE_ADDRESS is not an address: {error}") from error


def _filled_if_constant(text: PlaceholderText) -> str | PlaceholderText:
    """Return a text without placeholders as a string, any other text as it is."""
    return text.fill(MessageValues(b"", 0.0, topic="")) if text.is_constant else text


def _headers_before(authority: str, names: frozenset[str]) -> Pairs:
    """Return the bridge's headers before HEADERS, except those in `names`; Host is first (RFC 9110 section 7.2)."""
    agent = f"amqtt-rest-bridge/{own_version()}"
    offered = (("Host", authority), ("User-Agent", agent), ("Accept-Encoding", "gzip, deflate"))
    return tuple((name, value) for name, value in offered if name.lower() not in names)


def _headers_after(config: RestApiConfig, names: frozenset[str], *, has_body: bool) -> Pairs:
    """Return the bridge's headers after HEADERS, except those in `names`: content type and credentials.

    The credentials are AUTHORIZATION, or Basic (RFC 7617). Those of Digest are added by `http.digest` to each request.
    """
    headers: list[tuple[str, str]] = []
    if has_body and "content-type" not in names:
        headers.append(("Content-Type", config.default_content_type))
    username, authorization = config.username, config.authorization
    is_basic = config.password is not None and config.auth_scheme is not AuthScheme.DIGEST
    if authorization is None and username is not None and is_basic:
        if ":" in username:
            raise ConfigurationError("USERNAME cannot hold a colon (RFC 7617 section 2)")
        authorization = basic_credentials(username, config.password or "")
    if authorization is not None and "authorization" not in names:
        headers.append(("Authorization", authorization))
    return tuple(headers)


def has_own_authorization(request: HttpRequest) -> bool:
    """Return whether a request has an Authorization, by its route or HEADERS: then OAuth2 and Digest add none."""
    return bool(values_of(request.headers, "authorization"))


def added_scheme(config: RestApiConfig, request: HttpRequest) -> str | None:
    """Return the scheme of the Authorization that OAuth2 or Digest adds to a request, None if they add none."""
    if has_own_authorization(request):
        return None
    if config.oauth2_token_url is not None:
        return "Bearer"
    return "Digest" if config.auth_scheme is AuthScheme.DIGEST else None


def result_of(
    event: ClientEvent, message: Message, destination: str | None, response: HttpResponse
) -> Publication | None:
    """Return what a successful response publishes, None without DESTINATION_TOPIC.

    `destination` is the topic of the result, None if the topic has values of the response: it is filled here then.

    Raises:
        CallError: The response lacks a value of PAYLOAD or DESTINATION_TOPIC.
    """
    topic, payload = event.destination_topic, event.payload
    if topic is None:
        return None
    body = response.body
    if payload is not None or destination is None:
        values = result_values(message, response)
        destination = topic.fill(values) if destination is None else destination
        body = body if payload is None else payload.fill_bytes(values)
    if payload is None and event.response_format is ResponseFormat.ENVELOPE:
        body = envelope(response)
    return Publication(destination, body, event.retain, trace_properties(message, response), event.qos)


def message_values(message: Message) -> MessageValues:
    """Return the values of a message."""
    user = () if message.properties is None else message.properties.user
    return MessageValues(message.payload, message.timestamp, topic=message.topic, user=user)


def result_values(message: Message, response: HttpResponse) -> MessageValues:
    """Return the values that PAYLOAD and DESTINATION_TOPIC are filled with."""
    return ResultValues(
        message.payload, message.timestamp, topic=message.topic, user=message.user, status=response.status,
        headers=response.headers, response=ResponseBody(response.body, message.timestamp),
    )  # fmt: skip


def envelope(response: HttpResponse) -> bytes:
    """Serialise a response as one JSON object (RESPONSE_FORMAT "envelope"), as UTF-8."""
    headers: dict[str, str] = {}
    for name, value in response.headers:
        lower = name.lower()
        headers[lower] = f"{headers[lower]}, {value}" if lower in headers else value
    return _to_json(
        {
            "status": response.status,
            "reason": response.reason,
            "headers": headers,
            **body_members(response.body),
            "elapsed_ms": round(response.elapsed * 1000, 1),
        }
    ).encode("utf-8", "replace")


def body_members(body: bytes) -> dict[str, str]:
    """Return a body as the JSON members `body` and `body_encoding` (`utf-8`, or `base64` for other bytes)."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode("ascii"), "body_encoding": "base64"}


def trace_properties(message: Message, response: HttpResponse | None) -> MessageProperties | None:
    """Return the trace context of a result or failure: that of the response, else that of the message."""
    headers = () if response is None else response.headers
    if message.properties is None and TRACE_NAMES.isdisjoint(map(str.lower, dict(headers))):  # nearly always
        return None
    trace = trace_of(headers) or trace_of(message.user)
    return MessageProperties(trace) if trace else None


def trace_of(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Return the trace context in headers or user properties, () without one; names are compared in any case.

    Malformed values are dropped. A `tracestate` without a `traceparent` is dropped too.
    """
    found = [(name.lower(), value) for name, value in pairs if name.lower() in TRACE_NAMES]
    if not found:
        return ()
    parents, states, baggage = (
        [value.strip(_SPACE) for name, value in found if name == wanted]
        for wanted in ("traceparent", "tracestate", "baggage")
    )
    kept: list[tuple[str, str]] = []
    if len(parents) == 1 and _is_parent(parents[0]):
        kept.append(("traceparent", parents[0]))
        if _is_state(state := ",".join(states)):
            kept.append(("tracestate", state))
    if _is_baggage(carried := ",".join(baggage)):
        kept.append(("baggage", carried))
    return tuple(kept)


def _is_parent(value: str) -> bool:
    """Return whether a value is a `traceparent` (W3C Trace Context section 3.2); later versions may be longer."""
    match = _PARENT.fullmatch(value)
    return match is not None and (match[1] != "00" or match[2] is None)


def _is_state(value: str) -> bool:
    """Return whether a value is a `tracestate` (W3C Trace Context section 3.3): up to 32 members, each key once."""
    members = _members(value)
    keys = {match[1] for member in members if (match := _STATE_MEMBER.fullmatch(member)) is not None}
    return 0 < len(members) <= 32 and len(keys) == len(members)


def _is_baggage(value: str) -> bool:
    """Return whether a value is a `baggage` (W3C Baggage section 3.3): up to 180 members with their properties."""
    members = _members(value)
    for member in members:
        pair, *properties = (part.strip(_SPACE) for part in member.split(";"))
        if not (_BAGGAGE_MEMBER.fullmatch(pair) and all(map(_BAGGAGE_PROPERTY.fullmatch, properties))):
            return False
    return 0 < len(members) <= 180


def _members(value: str) -> list[str]:
    """Return the members of a list, without the empty ones; none of a list that is too long."""
    if len(value) > _MOST_CHARACTERS:
        return []
    return [stripped for member in value.split(",") if (stripped := member.strip(_SPACE))]
