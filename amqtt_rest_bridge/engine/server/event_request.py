"""A request to a server event: its parts as answers and texts with placeholders need them."""

import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.engine.server.endpoint_table import decode_path
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http.exchange import Headers, RefusedError, Request, refuse, too_large
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.lot.placeholders import PlaceholderText, RequestValues

_CONTROL_OR_SPACE: Final = re.compile("[\x00-\x20\x7f]")


class EventRequest:
    """One request. `path` is as sent; `parameters` are the texts of the endpoint's `{name}` segments, decoded.

    `timestamp` is when it came in Unix seconds, `began` in monotonic ones; `port` is the one that its caller connected
    to.
    """

    __slots__ = (
        *(
            "_values",
            "answer_headers",
            "began",
            "http",
            "parameters",
            "path",
            "port",
            "publication",
            "skipped",
            "timestamp",
        ),
    )

    def __init__(
        self, http: Request, path: str, parameters: Mapping[str, str], timestamp: float, began: float, port: int
    ) -> None:
        self.http = http
        self.path = path
        self.parameters = parameters
        self.timestamp = timestamp
        self.began = began
        self.port = port
        self.publication: Publication | None = None
        """What the request publishes, once that is known."""
        self.skipped: tuple[str, str] | None = None
        """Code and sentence of why it publishes nothing, if so."""
        self.answer_headers: Headers = ()
        """Those that go with every answer of the endpoint."""
        self._values: RequestValues | None = None

    def check_body(self, limit: int) -> None:
        """Raise `RefusedError` for a body that is not published.

        413 for more than `limit` bytes, 415 for an encoded one (RFC 9110 section 8.4): subscribers could not see how.
        """
        encoding = self.http.headers.get("content-encoding")
        if encoding and encoding.lower() != "identity":
            message = "The request's body has a Content-Encoding"
            accepted = (("Accept-Encoding", "identity"),)
            raise RefusedError(refuse(catalogue.UNSUPPORTED_MEDIA_TYPE, message, accepted))
        if len(self.http.body) > limit:
            raise RefusedError(too_large(limit))

    def drop_body(self) -> None:
        """Hold the body no longer."""
        self.http = replace(self.http, body=b"")
        self._values = None

    def content(self) -> bytes:
        """Return what is published without PAYLOAD: the body, or without one the parameters as one JSON object.

        Decision: where path and query have a name the path's counts, since the route's author chose it.
        """
        if self.http.body:
            return self.http.body
        if not self.http.query and not self.parameters:
            return b"{}"
        query = {name: values[0] if len(values) == 1 else values for name, values in self._query().items()}
        return json.dumps({**query, **self.parameters}, ensure_ascii=False, separators=(",", ":")).encode()

    def values(self) -> RequestValues:
        """Return what placeholders are filled with; raises `RefusedError` (400)."""
        if self._values is None:
            http = self.http
            self._values = RequestValues(
                method=http.method,
                path="/" + "/".join(decode_path(self.path)),
                path_parameters=self.parameters,
                query=self._query(),
                headers={name: readable(value) for name, value in http.headers.items()},
                payload=http.body,
                timestamp=self.timestamp,
                request_id=http.id,
            )
        return self._values

    def fill(self, text: PlaceholderText) -> str:
        """Fill a topic; raises `RefusedError` (400) where a value is missing or spoils it."""
        try:
            return text.fill(self.values())
        except CallError as failure:
            raise _cannot_fill(failure) from failure

    def fill_bytes(self, text: PlaceholderText) -> bytes:
        """Fill a payload; raises `RefusedError` (400) likewise."""
        try:
            return text.fill_bytes(self.values())
        except CallError as failure:
            raise _cannot_fill(failure) from failure

    def _query(self) -> dict[str, list[str]]:
        """Read the query string as a form; a repeated name has several values."""
        if not self.http.query:
            return {}
        try:
            query = self.http.query.encode("latin-1").decode()  # the bytes that were sent
            parameters = parse_qs(query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as failure:
            raise _query_refused() from failure
        if _CONTROL_OR_SPACE.search(query):
            raise _query_refused()
        return parameters


def readable(value: str) -> str:
    """Decode a header value or target: UTF-8 where it is, else Latin-1 (RFC 9110 section 5.5 leaves it open)."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _cannot_fill(failure: CallError) -> RefusedError:
    return RefusedError(refuse(catalogue.INVALID_REQUEST, failure.message, hint=failure.hint))


def _query_refused() -> RefusedError:
    message = "The request's query string is not UTF-8 or holds control characters"
    return RefusedError(refuse(catalogue.BAD_QUERY, message))
