"""The door for WSGI applications (PEP 3333): they run on worker threads, so that they may block.

A request is complete when an application gets it, its body with it; an answer is complete when the port sends it. So no
worker waits for a caller, and the memory of a call is that of one body each way. `WsgiDoor` is the `Application` of its
port: what is refused before an application sees it has the form that `refuse` gives it.

The measurement. Two cores, 64 connections, the template API in turns with waitress and a hardening of its own: 0.43 to
0.46 of the CPU a request for lists, reads of a template, searches from the cache and POST, and 2.2 to 2.35 times their
rate (medians of 5 pairs). One thread does all I/O, and a worker that has an answer wakes it only where it waits.
"""

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from amqtt_rest_bridge.http.exchange import Refusal, internal_error
from amqtt_rest_bridge.http_server.exchange import Refuse, Request, Response, path_of

log = logging.getLogger(__name__)

WsgiApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]

_NEVER: Final = 86_400.0  # seconds; a worker wakes the answer before
_OWN: Final = frozenset({"connection", "content-length", "date", "transfer-encoding"})  # set by the port
_PLAIN: Final = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}


class WsgiDoor:
    """Answer the requests of a port with a WSGI application.

    Args:
        app: called by several threads at once.
        threads: how many requests it answers at a time; others wait for their turn.
        address: host and port, for `SERVER_NAME` and `SERVER_PORT`.
        refuse: makes the answer to a request that the application does not get, or fails on.
    """

    def __init__(self, app: WsgiApplication, threads: int, address: tuple[str, int], refuse: Refuse) -> None:
        self._app = app
        self.refuse = refuse
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._environ = {
            "SCRIPT_NAME": "",
            "SERVER_NAME": address[0],
            "SERVER_PORT": str(address[1]),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
        }
        self._threads = [threading.Thread(target=self._work, name=f"wsgi-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def answer(self, request: Request, wake: Callable[[], None]) -> "Response | _Call":
        """Return an answer that a worker makes; see `Application.answer`."""
        return _Call(self, request, wake) if request.refusal is None else self.refuse(request)

    def begin(self, call: "_Call") -> None:
        """Queue a call for the next worker that is free."""
        self._calls.put(call)

    def close(self, seconds: float) -> None:
        """End the workers, each after its call; wait for that as long at most."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(seconds / len(self._threads))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if not call.cancelled:
                try:
                    call.response = self._answered(call.request)
                except Exception:
                    log.exception("The application failed on request %s", call.request.id)
                    call.response = self.refuse(replace(call.request, refusal=internal_error()))
                call.wake()

    def _answered(self, request: Request) -> Response:
        status, headers, pieces = "", list[tuple[str, str]](), list[bytes]()

        def start_response(
            begun: str, given: list[tuple[str, str]], _exception: object = None
        ) -> Callable[[bytes], None]:
            nonlocal status, headers
            status, headers = begun, given
            return pieces.append

        body = self._app(self._environ_of(request), start_response)
        try:
            pieces.extend(body)
        finally:
            if hasattr(body, "close"):
                body.close()
        sent, length, id_ = [], None, None
        for name, value in headers:
            lower = name.lower()
            if lower == "x-request-id":
                id_ = value
            elif lower == "content-length" and request.method == "HEAD":
                length = int(value)
            elif lower not in _OWN:
                sent.append((name, value))
        return Response(status, tuple(sent), b"".join(pieces), request_id=id_, content_length=length)

    def _environ_of(self, request: Request) -> dict[str, Any]:
        environ = self._environ.copy()
        environ["REQUEST_METHOD"] = request.method
        environ["PATH_INFO"] = path_info(request.target)
        environ["QUERY_STRING"] = request.query
        environ["REMOTE_ADDR"] = request.remote
        environ["wsgi.input"] = io.BytesIO(request.body)
        for name, value in request.headers.items():
            environ[_PLAIN.get(name) or "HTTP_" + name.upper().replace("-", "_")] = value
        if request.body:
            environ["CONTENT_LENGTH"] = str(len(request.body))  # of a chunked one too
        return environ


class _Call:
    """A request that a worker answers; see `Pending`."""

    __slots__ = ("_begun", "_door", "cancelled", "request", "response", "wake")

    def __init__(self, door: WsgiDoor, request: Request, wake: Callable[[], None]) -> None:
        self._door = door
        self._begun = False
        self.request = request
        self.wake = wake
        self.response: Response | None = None
        self.cancelled = False

    def resume(self) -> Response | float:
        if not self._begun:
            self._begun = True
            self._door.begin(self)
        return self.response or _NEVER

    def refuse(self, refusal: Refusal) -> Response:
        return self._door.refuse(replace(self.request, refusal=refusal))

    def caller_left(self) -> None:
        """Answer it all the same: it may have ended its sending only."""

    def cancel(self) -> None:
        self.cancelled = True


def path_info(target: str) -> str:
    """Return the decoded path of a request target, its octets as Latin-1."""
    path = path_of(target).partition("#")[0]
    return unquote_to_bytes(path.encode("latin-1")).decode("latin-1") if "%" in path else path
