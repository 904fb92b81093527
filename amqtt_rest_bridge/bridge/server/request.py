"""A request of server mode: its parts as events need them, and why it is refused. No I/O; on the port's thread."""

import json
import re
from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeVar
from urllib.parse import parse_qs

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.bridge.server.broker_access import Wake
from amqtt_rest_bridge.catalogue import AnswerRow
from amqtt_rest_bridge.engine.server.endpoint_table import decode_path
from amqtt_rest_bridge.errors import BridgeError, CallError
from amqtt_rest_bridge.http import exchange as http
from amqtt_rest_bridge.http.exchange import RefusedError
from amqtt_rest_bridge.http_server import Headers, Refusal, Request
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.placeholders import RequestValues

T = TypeVar("T")

_PARAMETER: Final = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_CONTROL_OR_SPACE: Final = re.compile("[\x00-\x20\x7f]")
_PCHAR: Final = "!$&'()*+,;=:@-._~"  # not encoded in a segment, RFC 3986 section 3.3


class IgnoredError(BridgeError):
    """WHEN is false for a request: it is answered, and publishes nothing."""


def error(row: AnswerRow, message: str, headers: Headers = (), *, hint: str | None = None) -> RefusedError:
    """Return the error with a row of the catalogue, see `http_server.refusals.refuse`."""
    return RefusedError(http.refuse(row, message, headers, hint=hint))


def cannot_fill(failure: CallError) -> RefusedError:
    """Return the error for a request that lacks, or whose value spoils, what a placeholder of the route needs."""
    return error(catalogue.INVALID_REQUEST, failure.message, hint=failure.hint)


def too_large(limit: int) -> RefusedError:
    """Return the error for a body of more than `limit` bytes."""
    return RefusedError(http.too_large(limit))


def overloaded() -> RefusedError:
    """Return the error for a request for which there is no room at the broker."""
    return RefusedError(
        http.overloaded("The bridge has more requests than the broker can take; this one was not published")
    )


def broker_unavailable() -> RefusedError:
    """Return the error for a request that the broker has not acknowledged; only a worker's."""
    message = "The MQTT broker is away or has not acknowledged this request; it may have been published"
    return error(catalogue.BROKER_UNAVAILABLE, message, http.RETRY_AFTER)


def port_closed() -> Refusal:
    """Refuse a request on a connection that is still open to a port which a reload took away."""
    message = "The routes were reloaded and none is served on this port any more; this request was not published"
    return http.refuse(catalogue.PORT_CLOSED, message, http.RETRY_AFTER)


class EventRequest:
    """One request; `path` and `query` are as sent, `timestamp` is Unix time in seconds.

    `wake` resumes its pending answer, `clock` is the monotonic time of `until`.
    """

    __slots__ = (
        *("answer_headers", "began", "caller_left", "clock", "headers", "http", "method"),
        *("parameters", "path", "publication", "query", "timestamp", "wake"),
    )

    def __init__(
        self,
        http: Request,
        path: str,
        parameters: Mapping[str, str],
        timestamp: float,
        wake: Wake,
        clock: Callable[[], float],
    ) -> None:
        self.http = http
        self.method = http.method
        self.headers = http.headers
        self.query = http.query
        self.path = path
        self.parameters = parameters
        self.timestamp = timestamp
        self.wake = wake
        self.clock = clock
        self.began = clock()
        self.caller_left = False
        self.publication: Publication | None = None  # what the request publishes, once that is known
        self.answer_headers: Headers = ()  # those that go with every answer of the endpoint

    def until(self, condition: Callable[[], bool], seconds: float) -> Generator[float, None, bool]:
        """Wait for a condition whose coming true calls `wake`; return false when it did not within `seconds`.

        Yields the seconds that are left each time that the pending answer has to wait.
        """
        deadline = self.clock() + seconds
        while not condition():
            remaining = deadline - self.clock()
            if remaining <= 0:
                return False
            yield remaining
        return True

    def body(self, limit: int) -> bytes:
        """Return the body.

        Raises `RefusedError`: 413 for more than `limit` bytes, 415 for an encoded one (RFC 9110 section 8.4), since
        subscribers could not see the encoding.
        """
        encoding = self.headers.get("content-encoding")
        if encoding and encoding.lower() != "identity":
            message = "The request's body has a Content-Encoding"
            raise error(catalogue.UNSUPPORTED_MEDIA_TYPE, message, (("Accept-Encoding", "identity"),))
        if len(self.http.body) > limit:
            raise too_large(limit)
        return self.http.body

    def query_parameters(self) -> dict[str, list[str]]:
        """Read the query string as a form (a repeated name has several values); raises `RefusedError` (400)."""
        if not self.query:
            return {}
        try:
            query = self.query.encode("latin-1").decode()  # the bytes that were sent
            parameters = parse_qs(query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as failure:
            raise _query_refused() from failure
        if _CONTROL_OR_SPACE.search(query):
            raise _query_refused()
        return parameters

    def parameters_object(self) -> bytes:
        """Return path and query parameters as one JSON object.

        Decision: where both have a name the path's counts, since the route's author chose it.
        """
        if not self.query and not self.parameters:
            return b"{}"
        query = {name: values[0] if len(values) == 1 else values for name, values in self.query_parameters().items()}
        return json.dumps({**query, **self.parameters}, ensure_ascii=False, separators=(",", ":")).encode()

    def values(self, body: bytes) -> RequestValues:
        """Return what placeholders are filled with."""
        return RequestValues(
            method=self.method,
            path="/" + "/".join(decode_path(self.path)),
            path_parameters=self.parameters,
            query=self.query_parameters(),
            headers={name: readable(value) for name, value in self.headers.items()},
            payload=body,
            timestamp=self.timestamp,
            request_id=self.http.id,
        )


def _query_refused() -> RefusedError:
    return error(catalogue.BAD_QUERY, "The request's query string is not UTF-8 or holds control characters")


def readable(value: str) -> str:
    """Decode a header value or target: UTF-8 where it is, else Latin-1 (RFC 9110 section 5.5 leaves it open)."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
