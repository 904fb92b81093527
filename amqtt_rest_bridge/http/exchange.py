"""Requests and their answers: what a port and its application hand each other, and how an answer is written. Pure."""

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec import Struct

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import AnswerRow
from amqtt_rest_bridge.errors import BridgeError

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")  # absolute-form, RFC 9112 section 3.2.2
_NO_LENGTH: Final = ("204", "304")

Headers = tuple[tuple[str, str], ...]
Labels = tuple[tuple[str, str], ...]
"""Of an answer: fields of its line in the access log."""

RETRY_AFTER: Final[Headers] = (("Retry-After", "1"),)


class Caller(Protocol):
    """The peer that waits for an answer."""

    has_left: bool
    """It has closed its side: it is gone, or still waits for its answer (RFC 9293 section 3.6); TCP does not tell."""

    def when_left(self, action: Callable[[], None]) -> None:
        """Call `action` once it has left. The last action that was given counts."""
        ...


class Present:
    """A caller that stays."""

    has_left = False

    def when_left(self, action: Callable[[], None]) -> None:
        """Never call it."""


_PRESENT: Final = Present()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer of a request that is not served; `headers` are added to it."""

    code: str
    status: str
    message: str
    hint: str
    headers: Headers = ()

    @property
    def body(self) -> bytes:
        """Return the answer's body, JSON in UTF-8."""
        error = {"code": self.code, "message": self.message, "hint": self.hint}
        return json.dumps({"error": error}).encode()


class Request(Struct, frozen=True):
    """A request as it came, its body complete.

    Texts hold the octets that were sent as Latin-1, since HTTP leaves their encoding open (RFC 9110 section 5.5).
    `target` and `query` are as in the request line; names of `headers` are in lower case, values of repeated ones are
    joined by commas; `remote` is the address of the peer. With a `refusal` the server has not read the request to its
    end, or does not admit it: the application only adds the endpoint's own headers, such as CORS headers.
    """

    id: str
    method: str
    target: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    refusal: Refusal | None = None
    remote: str = ""
    caller: Caller = _PRESENT


class Stream(Protocol):
    """A body that comes piece by piece, such as server-sent events.

    The next piece is taken once the one before has left, so a caller that does not read holds one piece here.
    """

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin: `wake` has the next piece taken. It may be called at any time and more than once."""
        ...

    def take(self) -> bytes | float:
        """Return the next piece, b"" at the end, or the seconds after which to ask again although nothing woke it."""
        ...

    def close(self) -> None:
        """Release what is held: the connection has been closed, or the body has ended."""
        ...


class Response(Struct, frozen=True):
    """An answer, or with a `stream` the beginning of one.

    The server adds Content-Length, Date, Connection and X-Request-ID. `code` is an error's, for the access log, where
    `labels` become fields. A stream ends with its connection (RFC 9112 section 6.3); the answer to a HEAD has none.
    """

    status: str
    headers: Headers = ()
    body: bytes = b""
    code: str | None = None
    labels: Labels = ()
    stream: Stream | None = None


Answer = Response | Coroutine[Any, Any, Response]
"""An answer, or what makes one that has to wait."""


class Application(Protocol):
    """What answers the requests of a port."""

    def answer(self, request: Request) -> Answer:
        """Answer a request, or return the coroutine that does; called once for each, and must not block.

        A coroutine is not begun where too many answers wait already; the request comes once more then, with a refusal.
        """
        ...


def path_of(target: str) -> str:
    """Return the path, as sent, out of a request target (RFC 9112 section 3.2)."""
    if not target.startswith("/") and (authority := _AUTHORITY.match(target)):
        target = target[authority.end() :]
        if not target.startswith("/"):
            target = "/" + target
    return target.partition("?")[0]


def takes_gzip(accept_encoding: str | None) -> bool:
    """Return whether an Accept-Encoding field takes gzip (RFC 9110 section 12.5.3).

    A weight of 0 forbids a coding; `*` holds for those that are not named.
    """
    if not accept_encoding:
        return False
    taken: dict[str, bool] = {}
    for item in "".join(accept_encoding.lower().split()).split(","):
        coding, _, weight = item.partition(";")
        taken.setdefault(coding, not weight or weight.removeprefix("q=").strip("0.") != "")
    return taken.get("gzip", taken.get("x-gzip", taken.get("*", False)))


def write_head(response: Response, request_id: str, now: int, version: str = "1.1", *, close: bool) -> bytes:
    """Return the head of an answer; `now` is Unix time.

    Raises `ValueError` for a header value that would break the answer or cannot be written.
    """
    length = None if response.status[:3] in _NO_LENGTH or response.stream is not None else len(response.body)
    head = _fields(response.status, response.headers, length, version, close)
    return b"%bX-Request-ID: %b\r\n%b\r\n" % (head, request_id.encode(), _date(now))


@lru_cache(maxsize=64)  # most answers are alike; one may have 64 KiB of headers, which came from its caller
def _fields(status: str, headers: Headers, length: int | None, version: str, close: bool) -> bytes:
    lines = [f"HTTP/{version} {status}"]
    for name, value in headers:
        if "\n" in value or "\r" in value or not value.isascii():
            raise ValueError(f"the value of {name} does not fit into a header")
        lines.append(f"{name}: {value}")
    if length is not None:
        lines.append(f"Content-Length: {length}")
    if close:
        lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    return "\r\n".join([*lines, ""]).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


# Error answers: by the catalogue's rows, and those of the server itself.


class RefusedError(BridgeError):
    """A request gets an error answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refuse(row: AnswerRow, message: str, headers: Headers = (), *, hint: str | None = None) -> Refusal:
    """Return the answer of a row; `headers` go with it, `hint` replaces the row's where it holds facts."""
    return Refusal(row.code, row.status, message, row.hint if hint is None else hint, headers)


def refused(refusal: Refusal, headers: Headers = (), labels: Labels = ()) -> Response:
    """Return a refusal as an answer, with `headers` before its own."""
    content_type = ("Content-Type", "application/json")
    return Response(refusal.status, (*headers, *refusal.headers, content_type), refusal.body, refusal.code, labels)


def invalid_request(message: str) -> Refusal:
    """Refuse a request that is not HTTP."""
    return refuse(catalogue.INVALID_REQUEST, message)


def request_timeout(seconds: float) -> Refusal:
    """Refuse a request of which only a part came in time."""
    return refuse(catalogue.REQUEST_TIMEOUT, f"The request did not arrive within {seconds:g} seconds")


def too_large(limit: int) -> Refusal:
    """Refuse a body of more than `limit` bytes."""
    return refuse(catalogue.PAYLOAD_TOO_LARGE, f"The request's body is over the limit of {limit} bytes")


def headers_too_large(limit: int) -> Refusal:
    """Refuse a request line and headers of more than `limit` bytes together."""
    message = f"The request line and headers are over the limit of {limit} bytes"
    return refuse(catalogue.HEADERS_TOO_LARGE, message)


def internal_error() -> Refusal:
    """Answer a request on which the server or its application failed, without a word of the cause."""
    return refuse(catalogue.INTERNAL_ERROR, "The bridge failed on this request")


def overloaded(message: str = "The bridge serves as many requests as it can; this one was not published") -> Refusal:
    """Refuse a request for which there is no room."""
    return refuse(catalogue.NO_ROOM, message, RETRY_AFTER)


def shutting_down() -> Refusal:
    """Refuse a request that came while the port closes."""
    return refuse(catalogue.SHUTTING_DOWN, "The bridge is shutting down; this request was not published", RETRY_AFTER)
