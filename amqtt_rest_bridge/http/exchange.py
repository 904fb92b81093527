"""Requests and answers: the values that a port (`server`) and its application exchange.

The application of server mode is `engine.server_mode`, that of the admin port `admin.app`.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec import Struct

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import AnswerRow
from amqtt_rest_bridge.errors import BridgeError

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")  # absolute-form, RFC 9112 section 3.2.2

Headers = tuple[tuple[str, str], ...]
Labels = tuple[tuple[str, str], ...]
"""Of an answer: fields of its line in the access log."""

RETRY_AFTER: Final[Headers] = (("Retry-After", "1"),)


class Caller:
    """The peer that waits for an answer. A peer of this base class never leaves; those of a port are connections."""

    has_left = False
    """Whether it has closed its side. It may still wait for its answer: TCP does not say (RFC 9293 section 3.6)."""

    def when_left(self, action: Callable[[], None]) -> None:
        """Call `action` once the peer has left. A later call replaces the action."""


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

    Texts are decoded as Latin-1, since HTTP leaves their encoding open (RFC 9110 section 5.5).

    Args:
        id: The value of X-Request-ID in the answer.
        method: As sent.
        target: As in the request line.
        query: The part of `target` behind the question mark.
        headers: Values by name in lower case; those of a repeated header are joined by commas.
        body: All of it.
        refusal: Why the server has not read the request to its end, or does not admit it. The application then only
            adds the endpoint's own headers, such as CORS headers.
        remote: The address of the peer.
        caller: The peer.
        may_wait: False if too many answers of the port are being made. A request that has to wait is refused then.
    """

    id: str
    method: str
    target: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    refusal: Refusal | None = None
    remote: str = ""
    caller: Caller = Caller()
    may_wait: bool = True


class ResponseStream(Protocol):
    """A body that comes piece by piece, such as server-sent events.

    The next piece is taken once the one before has left, so a caller that does not read holds one piece here.
    """

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin. `wake` asks for the next piece to be taken, and may be called at any time and more than once."""
        ...

    def take(self) -> bytes | float:
        """Return the next piece, b"" at the end, or in how many seconds to ask again if `wake` is not called before."""
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
    stream: ResponseStream | None = None


class Later(Struct):
    """An answer that `make` returns once `awaited` is done. If `awaited` is cancelled, there is no answer."""

    awaited: "asyncio.Future[Any]"
    make: Callable[[], Response]


Answer = Response | Later | Coroutine[Any, Any, Response]
"""An answer, or what makes one that has to wait."""


async def response_of(answer: Answer) -> Response:
    """Return an answer once it has been made."""
    if isinstance(answer, Later):
        with contextlib.suppress(Exception):
            await answer.awaited
        return answer.make()
    return answer if isinstance(answer, Response) else await answer


class Application(Protocol):
    """What answers the requests of a port."""

    def answer(self, request: Request) -> Answer:
        """Return the answer of a request, or what makes it. Called once for each request; must not block."""
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


# Error answers: by the catalogue's rows, and those of the server itself.


class RequestRefusedError(BridgeError):
    """A request gets an error answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refuse(row: AnswerRow, message: str, headers: Headers = (), *, hint: str | None = None) -> Refusal:
    """Return the refusal of a row of the catalogue, with these headers. `hint` replaces that of the row."""
    return Refusal(row.code, row.status, message, row.hint if hint is None else hint, headers)


def refused(refusal: Refusal, headers: Headers = (), labels: Labels = ()) -> Response:
    """Return a refusal as an answer, with `headers` before its own."""
    content_type = ("Content-Type", "application/json")
    return Response(refusal.status, (*headers, *refusal.headers, content_type), refusal.body, refusal.code, labels)


def too_large(limit: int) -> Refusal:
    """Refuse a body of more than `limit` bytes."""
    return refuse(catalogue.PAYLOAD_TOO_LARGE, f"The request's body is over the limit of {limit} bytes")


def overloaded(message: str = "The bridge serves as many requests as it can; this one was not published") -> Refusal:
    """Refuse a request for which there is no room."""
    return refuse(catalogue.NO_ROOM, message, RETRY_AFTER)


FAILED: Final = refuse(catalogue.INTERNAL_ERROR, "The bridge failed on this request")
"""The server or its application failed. The log has the cause; the caller does not learn it."""
SHUTTING_DOWN: Final = refuse(
    catalogue.SHUTTING_DOWN, "The bridge is shutting down; this request was not published", RETRY_AFTER
)
"""The request came while the port closes."""
