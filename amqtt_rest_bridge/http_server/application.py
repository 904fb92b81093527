"""What the server and its application hand each other: requests, and answers that are complete or pending. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from amqtt_rest_bridge.http_server.refusals import Headers, Refusal

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")  # absolute-form, RFC 9112 section 3.2.2

Labels = tuple[tuple[str, str], ...]  # of an answer: fields of its line in the access log


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came, its body complete.

    Texts hold the octets that were sent as Latin-1, since HTTP leaves their encoding open (RFC 9110 section 5.5).
    `target` and `query` are as in the request line; names of `headers` are in lower case, values of repeated ones
    joined by commas; `remote` is the address of the peer. With a `refusal` the server did not read the request to its
    end or does not admit it: the application only adds the endpoint's own headers, such as CORS headers.
    """

    id: str
    method: str
    target: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""
    refusal: Refusal | None = None
    remote: str = ""


def path_of(target: str) -> str:
    """Return the path, as sent, out of a request target (RFC 9112 section 3.2)."""
    if not target.startswith("/"):
        authority = _AUTHORITY.match(target)
        if authority:
            target = target[authority.end() :]
            if not target.startswith("/"):
                target = "/" + target
    return target.partition("?")[0]


class Stream(Protocol):
    """A body that comes piece by piece, such as server-sent events. Every method is called on the port's thread.

    The next piece is taken once the one before has left, so a caller that does not read holds one piece here.
    """

    def take(self) -> bytes | float:
        """Return the next piece, b"" at the end, or the seconds after which to ask again although nothing woke it."""
        ...

    def close(self) -> None:
        """Release what is held: the connection has been closed, or the body has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer, or with a `stream` the beginning of one.

    The server adds Content-Length, Date, Connection and X-Request-ID. `code` is an error's, for the access log, where
    `labels` become fields. The end of the connection is that of a stream (RFC 9112 section 6.3); `wake`, which the
    application got with the request, has the stream asked for its next piece. The answer to a HEAD has none.
    `request_id` replaces the server's; `content_length` is that of the body which an answer to HEAD leaves out.
    """

    status: str
    headers: Headers = ()
    body: bytes = b""
    code: str | None = None
    labels: Labels = ()
    stream: Stream | None = None
    request_id: str | None = None
    content_length: int | None = None


def refused(refusal: Refusal, headers: Headers = (), labels: Labels = ()) -> Response:
    """Return a refusal as an answer, with `headers` before its own."""
    content_type = ("Content-Type", "application/json")
    return Response(refusal.status, (*headers, *refusal.headers, content_type), refusal.body, refusal.code, labels)


Refuse = Callable[[Request], Response]
"""Make the answer to a request with a `refusal` that the application does not get, or failed on."""


class Pending(Protocol):
    """An answer that has to wait. Every method is called on the port's thread and must not block."""

    def resume(self) -> Response | float:
        """Begin or continue: return the answer, or the seconds after which to resume it although nothing woke it.

        Called once to begin, then after each wake and each of those times, also when nothing has changed.
        """
        ...

    def refuse(self, refusal: Refusal) -> Response:
        """Return the answer of a request that is not begun, because too many wait; called instead of `resume`."""
        ...

    def caller_left(self) -> None:
        """Note that the caller has closed its side of the connection; `resume` follows. Called once at most.

        It may be gone, or have ended its sending only and wait for the answer (RFC 9293 section 3.6): TCP does not
        tell which.
        """
        ...

    def cancel(self) -> None:
        """Release what is held: the connection has been closed. Called at any time before the answer."""
        ...


class Application(Protocol):
    """What answers the requests of a port."""

    def answer(self, request: Request, wake: Callable[[], None]) -> Response | Pending:
        """Answer a request; called once for each, on the port's thread, and must not block.

        `wake` schedules the next `resume` of a pending answer; any thread may call it, at any time and more than once.
        """
        ...
