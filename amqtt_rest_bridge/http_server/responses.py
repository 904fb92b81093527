"""Answers as bytes: what a WSGI application made, written as HTTP/1.1 (RFC 9112). Pure; any thread."""

import time
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, NamedTuple
from wsgiref.types import WSGIApplication

from amqtt_rest_bridge.bridge.server.refusals import RequestRefused

_NAMES: Final = {
    "content-type": "Content-Type",
    "content-length": "Content-Length",
    "x-request-id": "X-Request-ID",
    "X-Request-ID": "X-Request-ID",
    "etag": "ETag",
    "www-authenticate": "WWW-Authenticate",
}

_COPIED_BYTES: Final = 16_384  # of a body, to send it together with its head; larger ones are sent as they are


class Made(NamedTuple):
    """An answer as the application made it."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes


def call(app: WSGIApplication, environ: dict[str, Any]) -> Made:
    """Call a WSGI application and take its whole answer (PEP 3333); raises `ValueError` for one that cannot be sent."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], _exc_info: Any = None, /) -> Any:
        started.append((status, headers))

    body = b"".join(app(environ, start_response))
    status, headers = started[-1]
    for name, value in headers:
        if "\n" in value or "\r" in value or not value.isascii():
            raise ValueError(f"the value of {name} does not fit into a header")
    return Made(status, headers, body)


def made_of(refusal: RequestRefused, request_id: str) -> Made:
    """Make the answer to what the application cannot be asked about."""
    headers = [*refusal.headers, ("Content-Type", "application/json"), ("X-Request-ID", request_id)]
    return Made(refusal.status, headers, refusal.body)


def answer_pieces(request: Any, *, close: bool) -> tuple[bytes, ...]:
    """Write the answer that was made for a parsed request: in one piece, one packet mostly, unless it is large."""
    made: Made = request.made
    version = "1.0" if request.is_understood and request.version == "1.0" else "1.1"
    head = answer_head(made, version, close=close)
    if request.command == "HEAD":
        return (head,)
    return (head + made.body,) if len(made.body) <= _COPIED_BYTES else (head, made.body)


def answer_head(made: Made, version: str, *, close: bool) -> bytes:
    """Write an answer's head.

    waitress's own takes three times as long, and closes the connection after every 204 and 304 (3.0.2).
    """
    lines = [f"HTTP/{version} {made.status}"]
    has_length = made.status[:3] in ("204", "304")
    for name, value in made.headers:
        lines.append(f"{_NAMES.get(name) or name.title()}: {value}")
        has_length = has_length or name == "content-length"
    if not has_length:
        lines.append(f"Content-Length: {len(made.body)}")
    lines.append(_date(int(time.time())))
    if close:
        lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}"
