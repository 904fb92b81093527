"""The API's HTTP server: the port of the package's HTTP server, and the form of its refusals.

Requests are parsed, bounded and sent by `amqtt_rest_bridge.http_server`; the application runs behind its WSGI door.
"""

import socket
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from amqtt_rest_bridge.http_server import HttpServer, Limits, Request, Response, WsgiDoor, path_info
from template_api import errors
from template_api.app import CORS_FIELDS
from template_api.config import DEFAULT_THREADS
from template_api.query import MAX_BODY_BYTES
from template_api.replies import JSON, error_body

_GRACE_SECONDS = 5  # what running requests get to finish in at a stop
_LIMITS = Limits(
    slow_seconds=30,  # for a request to arrive whole, or a caller that reads nothing of its answer
    idle_seconds=30,  # a connection between requests
    waiting=1000,
    connections=1000,  # below the 1,024 files that a process may usually have open
)


class Server:
    """Serve one WSGI application on one listening socket, until `stop`.

    Args:
        app: the application.
        listening: a bound socket; closed at the end.
        threads: how many requests are answered at once.
        limits: of connections.
    """

    def __init__(
        self, app: Any, listening: socket.socket, threads: int = DEFAULT_THREADS, limits: Limits = _LIMITS
    ) -> None:
        self._listening = listening
        address = listening.getsockname()
        self.port: int = address[1]
        self._stops: SimpleQueue[None] = SimpleQueue()  # its `put` may be called by a signal handler
        self._door = WsgiDoor(app, threads, address[:2], _refused)
        self._http = HttpServer(listening, self._door, max_body_bytes=MAX_BODY_BYTES, limits=limits, refuse=_refused)

    def run(self) -> None:
        """Serve until `stop`, then wait up to 5 s for running requests."""
        self._http.start()
        self._stops.get()
        self._listening.close()  # else who connects waits for an answer until the end
        self._http.stop(_GRACE_SECONDS)
        self._door.close(1)

    def stop(self) -> None:
        """Stop `run`; may be called from any thread and from a signal handler."""
        self._stops.put(None)


_REFUSALS: Mapping[str, Callable[[str], errors.ApiError]] = {
    "invalid_request": errors.InvalidRequestError,
    "request_timeout": errors.RequestTimeoutError,
    "payload_too_large": lambda _text: errors.PayloadTooLargeError(f"The body is larger than {MAX_BODY_BYTES} bytes"),
    "headers_too_large": errors.HeadersTooLargeError,
    "not_implemented": errors.UnsupportedTransferError,
    "overloaded": lambda _text: errors.OverloadedError("Too many connections are open"),
    "shutting_down": lambda _text: errors.ShuttingDownError("The server is shutting down"),
}


def _refused(request: Request) -> Response:
    """Return the server's own refusals in the form of this API."""
    refusal = request.refusal
    assert refusal is not None  # noqa: S101  # it is refused
    known = _REFUSALS.get(refusal.code)
    error = known(refusal.message) if known is not None else errors.InternalError()
    body = error_body(error, request.method, path_info(request.target))
    fields = (("Content-Type", JSON), *CORS_FIELDS, *refusal.headers)
    return Response(f"{error.status.value} {error.status.phrase}", fields, body)
