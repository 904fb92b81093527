"""A request for which an endpoint has been found, read piece by piece as far as its event needs. Any thread."""

import json
import re
from collections.abc import Callable, Generator, Mapping
from typing import Final
from urllib.parse import parse_qs

from amqtt_rest_bridge.bridge.broker_port import Wake
from amqtt_rest_bridge.bridge.server.endpoints import decode_path
from amqtt_rest_bridge.bridge.server.refusals import RefusedError, error, too_large
from amqtt_rest_bridge.catalogue import BAD_QUERY, UNSUPPORTED_MEDIA_TYPE
from amqtt_rest_bridge.http_server import Headers, Request
from amqtt_rest_bridge.placeholders import RequestValues

_CONTROL: Final = re.compile("[\x00-\x20\x7f]")


class EventRequest:
    """One request; `path` and `query` are as sent, `timestamp` is Unix time in seconds.

    `wake` resumes its pending answer, `clock` is the monotonic time of `until`.
    """

    __slots__ = (
        *("answer_headers", "began", "caller_left", "clock", "headers", "http", "method"),
        *("parameters", "path", "query", "timestamp", "topic", "wake"),
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
        self.topic: str | None = None  # that the request is published on, once that is known
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
            raise error(UNSUPPORTED_MEDIA_TYPE, message, (("Accept-Encoding", "identity"),))
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
        if _CONTROL.search(query):
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
            body=body,
            timestamp=self.timestamp,
            request_id=self.http.id,
        )


def _query_refused() -> RefusedError:
    return error(BAD_QUERY, "The request's query string is not UTF-8 or holds control characters")


def readable(value: str) -> str:
    """Decode a header value or target: UTF-8 where it is, else Latin-1 (RFC 9110 section 5.5 leaves it open)."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
