"""One request and its answer: what the server and its application hand each other, and how it is asked and answered.

An answer is complete, or pending: then it is resumed when something woke it or its time is over. Of those `limit` wait
at a time; one more is refused before it has begun, so that nothing of it has been done. On the port's thread, `wake`
excepted.
"""

import itertools
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache, partial
from typing import Any, Final, Protocol

from msgspec import Struct

from amqtt_rest_bridge.http.exchange import (
    Headers,
    Refusal,
    Response,
    internal_error,
    overloaded,
)
from amqtt_rest_bridge.http_server.channel_loop import Timer

log = logging.getLogger(__name__)

_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")  # absolute-form, RFC 9112 section 3.2.2
_COPIED_BYTES: Final = 16_384  # of a body, to send it together with its head; larger ones are sent as they are

Labels = tuple[tuple[str, str], ...]  # of an answer: fields of its line in the access log


class Request(Struct, frozen=True):
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


class Waiting:
    """Room for the pending answers of a port.

    Args:
        limit: how many may wait.
        later: calls an action after so many seconds, on the port's thread.
        soon: calls an action in the next turn of the port's thread; from any thread.
    """

    def __init__(
        self,
        limit: int,
        later: Callable[[float, Callable[[], None]], Timer],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._limit = limit
        self.later = later
        self.soon = soon
        self.exchanges: set[Exchange] = set()
        # A random start and a number: a whole random UUID for each request takes 2 us, a fortieth of all that it takes.
        self._prefix = str(uuid.uuid4())[:24]
        self._numbers = itertools.count(1)

    def request_id(self) -> str:
        """Return the id of the next request, a UUID that no other request has."""
        return f"{self._prefix}{next(self._numbers):012x}"

    @property
    def is_full(self) -> bool:
        """Return whether no more may wait."""
        return len(self.exchanges) >= self._limit


class Exchange:
    """A request with the answer that is being made.

    Args:
        parser: the request; see `RequestParser`.
        waiting: where it may wait.
        on_answer: called when a pending answer is complete.
        refuse: makes the answer to a request that the application does not get, or fails on.
        remote: the address of the peer.
    """

    def __init__(
        self,
        parser: Any,
        waiting: Waiting,
        on_answer: "Callable[[Exchange], None]",
        refuse: Refuse,
        remote: str = "",
    ) -> None:
        self.parser = parser
        self.request_id = waiting.request_id()
        self.began = time.monotonic()
        self.response: Response | None = None
        self.on_wake: Callable[[], None] | None = None
        """What a wake does once the answer is a stream; on any thread."""
        self._waiting = waiting
        self._on_answer = on_answer
        self._refuse = refuse
        self._remote = remote
        self._pending: Pending | None = None
        self._timer: Timer | None = None

    def ask(self, app: Application, refusal: Refusal | None) -> None:
        """Call the application, with a refusal only for the headers of its answer; sets a complete `response`."""
        if refusal is not None and not self.parser.is_understood:
            self._refused(refusal)
        else:
            self._attempt(partial(self._ask, app, refusal))

    def wake(self) -> None:
        """Schedule the next step of a pending answer or a stream; from any thread."""
        if self.on_wake is None:
            self._waiting.soon(self._woken)
        else:
            self.on_wake()

    def caller_left(self) -> None:
        """Notify a pending answer that its caller has closed its side of the connection."""
        if self._pending is not None:
            self._pending.caller_left()
            self._woken()

    def fail(self, error: Exception) -> None:
        """Answer with an internal error instead."""
        log.error("The application failed on request %s", self.request_id, exc_info=error)
        self._end_waiting()
        self._refused(internal_error())

    def cancel(self) -> None:
        """Cancel a pending answer."""
        if self._pending is not None:
            self._pending.cancel()
            self._end_waiting()

    def _ask(self, app: Application, refusal: Refusal | None) -> None:
        parser = self.parser
        headers = {name.lower().replace("_", "-"): value for name, value in parser.headers.items()}
        body = parser.get_body_stream().read() if refusal is None and parser.body_rcv is not None else b""
        parser.close()  # so that an answer that waits does not hold the body twice
        answer = app.answer(
            Request(
                self.request_id,
                parser.command,
                parser.request_uri,
                parser.query,
                headers,
                body,
                refusal,
                self._remote,
            ),
            self.wake,
        )
        if isinstance(answer, Response):
            self.response = answer
        elif self._waiting.is_full:
            self.response = answer.refuse(overloaded())
        else:
            self._waiting.exchanges.add(self)
            self._pending = answer
            self._resume(answer)

    def _refused(self, refusal: Refusal) -> None:
        method, target = self.parser.asked
        self.response = self._refuse(Request(self.request_id, method, target, "", {}, b"", refusal, self._remote))

    def _woken(self) -> None:
        if self._pending is not None:
            self._attempt(partial(self._resume, self._pending))
            if self.response is not None:
                self._on_answer(self)
        elif self.on_wake is not None:
            self.on_wake()

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # it is logged
            self.fail(error)

    def _resume(self, pending: Pending) -> None:
        if self._timer is not None:
            self._timer.cancel()
        outcome = pending.resume()
        if isinstance(outcome, Response):
            self.response = outcome
            self._end_waiting()
        else:
            self._timer = self._waiting.later(outcome, self._woken)

    def _end_waiting(self) -> None:
        self._pending = None
        self._waiting.exchanges.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def response_pieces(
    response: Response, request_id: str, *, method: str = "GET", version: str = "1.1", close: bool
) -> tuple[bytes, ...]:
    """Return an answer in one piece, one packet mostly, unless it is large.

    Raises `ValueError` for a header value that would break the answer or cannot be written.
    """
    head = _head(response, request_id, version, close=close)
    if method == "HEAD":
        return (head,)
    body = response.body
    return (head + body,) if len(body) <= _COPIED_BYTES else (head, body)


def _head(response: Response, request_id: str, version: str, *, close: bool) -> bytes:
    """Write an answer's head.

    waitress's own takes three times as long, and closes the connection after every 204 and 304 (3.0.2).
    """
    lines = [f"HTTP/{version} {response.status}"]
    for name, value in response.headers:
        if "\n" in value or "\r" in value or not value.isascii():
            raise ValueError(f"the value of {name} does not fit into a header")
        lines.append(f"{name}: {value}")
    if response.status[:3] not in ("204", "304") and response.stream is None:
        length = len(response.body)
        lines.append(f"Content-Length: {length}")
    lines.append(f"X-Request-ID: {request_id}")
    lines.append(_date(int(time.time())))
    if close:
        lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}"
