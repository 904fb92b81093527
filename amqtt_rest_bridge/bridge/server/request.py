"""A request of server mode: its WSGI environment, read piece by piece as far as its event needs. Any thread."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from amqtt_rest_bridge.bridge.server.endpoints import decode_path
from amqtt_rest_bridge.bridge.server.refusals import (
    ErrorCode,
    RequestRefused,
    invalid_request,
    too_large,
)
from amqtt_rest_bridge.placeholders import RequestValues

REQUEST_ID: Final = "bridge.request_id"
NO_WAIT: Final = "bridge.no_wait"
REFUSAL: Final = "bridge.refusal"
ROUTE: Final = "bridge.route"
EVENT: Final = "bridge.event"
CODE: Final = "bridge.code"

_CONTROL: Final = re.compile("[\x00-\x20\x7f]")
_WITHOUT_PREFIX: Final = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}


class Request:
    """One request; `path` and `query` are as sent, `timestamp` is Unix time in seconds."""

    __slots__ = ("environ", "method", "parameters", "path", "query", "request_id", "timestamp")

    def __init__(
        self, environ: dict[str, Any], path: str, parameters: Mapping[str, str], request_id: str, timestamp: float
    ) -> None:
        self.environ = environ
        self.method: str = environ["REQUEST_METHOD"]
        self.path = path
        self.query: str = environ.get("QUERY_STRING", "")
        self.parameters = parameters
        self.request_id = request_id
        self.timestamp = timestamp

    @property
    def may_wait(self) -> bool:
        """Say whether this thread may block for an answer."""
        return not self.environ.get(NO_WAIT)

    def header(self, name: str) -> str | None:
        """Give a header's value, several joined by commas, None when it was not sent."""
        key = name.upper().replace("-", "_")
        value = self.environ.get(key if key in _WITHOUT_PREFIX else f"HTTP_{key}")
        return None if value is None else str(value)

    def body(self, limit: int) -> bytes:
        """Read the body.

        Raises `RequestRefused`: 413 for more than `limit` bytes, 415 for an encoded one (RFC 9110 section 8.4), since
        subscribers would get bytes whose encoding they are not told.
        """
        environ = self.environ
        encoding = environ.get("HTTP_CONTENT_ENCODING")
        if encoding and encoding.lower() != "identity":
            raise RequestRefused(
                ErrorCode.UNSUPPORTED_MEDIA_TYPE,
                "The request's body has a Content-Encoding",
                "Send the body as it is, without Content-Encoding",
                (("Accept-Encoding", "identity"),),
            )
        length = environ.get("CONTENT_LENGTH")
        if not length or length == "0":
            return b""
        if int(length) > limit:
            raise too_large(limit)
        body: bytes = environ["wsgi.input"].read(int(length))
        return body

    def query_parameters(self) -> dict[str, list[str]]:
        """Read the query string as a form (a repeated name has several values); raises `RequestRefused` (400)."""
        if not self.query:
            return {}
        try:
            query = self.query.encode("latin-1").decode()  # WSGI hands the bytes over as Latin-1 (PEP 3333)
            parameters = parse_qs(query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as error:
            raise _query_refused() from error
        if _CONTROL.search(query):
            raise _query_refused()
        return parameters

    def parameters_object(self) -> bytes:
        """Write path and query parameters as one JSON object.

        Decision: where both have a name the path's counts, since the route's author chose it.
        """
        if not self.query and not self.parameters:
            return b"{}"
        query = {name: values[0] if len(values) == 1 else values for name, values in self.query_parameters().items()}
        return json.dumps({**query, **self.parameters}, ensure_ascii=False, separators=(",", ":")).encode()

    def values(self, body: bytes) -> RequestValues:
        """Give what placeholders are filled with."""
        return RequestValues(
            method=self.method,
            path="/" + "/".join(decode_path(self.path)),
            path_parameters=self.parameters,
            query=self.query_parameters(),
            headers=_headers(self.environ),
            body=body,
            timestamp=self.timestamp,
            request_id=self.request_id,
        )


def _query_refused() -> RequestRefused:
    return invalid_request(
        "The request's query string is not UTF-8 or holds control characters",
        "Percent-encode the UTF-8 bytes of names and values",
    )


def _headers(environ: Mapping[str, Any]) -> dict[str, str]:
    headers = {_WITHOUT_PREFIX[key]: _text(environ[key]) for key in _WITHOUT_PREFIX if environ.get(key)}
    for key, value in environ.items():
        if key.startswith("HTTP_"):
            headers[key[5:].lower().replace("_", "-")] = _text(value)
    return headers


def _text(value: str) -> str:
    """Decode a header value: UTF-8 where it is, else Latin-1 (RFC 9110 section 5.5 leaves it open)."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
