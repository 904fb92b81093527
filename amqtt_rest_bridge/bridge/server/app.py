"""The routes of one port as a Falcon WSGI application: requests in, publications and answers out.

Nothing here does I/O; the engine comes in as an `Outlet`, time and ids as parameters. Runs on the listener's thread
and, where an answer has to wait, on a thread of the listener that may wait.

What passes between the listener and this application in the WSGI environment (`server_request` has the names):

* `bridge.request_id` (in): the request's id, a UUID; without it the application makes one.
* `bridge.no_wait` (in): true when this thread must not wait. Where the answer would have to, `MustWait` is raised,
  nothing has been published, and the listener calls again from a thread that may.
* `bridge.refusal` (in): a `RequestRefused`; the listener could not read the request to its end, and only asks for the
  answer with the headers that belong to the endpoint.
* `bridge.route`, `bridge.event`, `bridge.code` (out): whose request it was, the code of an error; for the access log.
"""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import falcon

from amqtt_rest_bridge.bridge.broker_port import Outlet, Overloaded, Reply, Served, ShuttingDown
from amqtt_rest_bridge.bridge.server.callers import cors_for, credentials_for
from amqtt_rest_bridge.bridge.server.endpoints import EndpointTable, Methods, path_of
from amqtt_rest_bridge.bridge.server.refusals import (
    STATUS_LINES,
    ErrorCode,
    RequestRefused,
    internal_error,
    invalid_request,
)
from amqtt_rest_bridge.bridge.server.reply_turns import ReplyTurns
from amqtt_rest_bridge.bridge.server.request import CODE, EVENT, REFUSAL, REQUEST_ID, ROUTE, Request
from amqtt_rest_bridge.bridge.server.responders import JSON, Answer, MustWait, responder_for
from amqtt_rest_bridge.masking import mask
from amqtt_rest_bridge.model import Route, ServerEvent

__all__ = ["MustWait", "Outlet", "Overloaded", "Reply", "ShuttingDown", "create_app", "new_request_id"]

log = logging.getLogger(__name__)

_ALL_METHODS: Final = "DELETE, GET, HEAD, OPTIONS, POST, PUT"


def new_request_id() -> str:
    """Make a request's id: a random UUID (RFC 9562 version 4)."""
    return str(uuid.uuid4())


def create_app(
    routes: Sequence[Route],
    outlet: Outlet,
    *,
    max_body_bytes: int = 262_144,
    clock: Callable[[], float] = time.time,
    new_id: Callable[[], str] = new_request_id,
    turns: ReplyTurns | None = None,
) -> falcon.App[falcon.Request, falcon.Response]:
    """Build the application of the routes that share a port.

    Args:
        routes: in any order; one without ENABLE_SERVER adds nothing.
        outlet: the engine.
        max_body_bytes: larger bodies and filled payloads are answered with 413.
        clock: gives Unix time in seconds.
        new_id: gives a UUID for a request that comes without one.
        turns: whose turn it is on reply topics; shared by the applications of all ports, and by those before a reload.

    Raises:
        ConfigurationError: two events have the same method and path; the loader refuses such routes before.
    """
    turns = turns or ReplyTurns()
    table = EndpointTable(
        (event.endpoint, event.method.value, _Endpoint(route, event, outlet, turns, max_body_bytes))
        for route in routes
        if route.config.enable_server
        for event in route.server_events
    )
    app = falcon.App()
    app.add_sink(_Port(table, clock, new_id).answer, "")  # any path, also the * of OPTIONS
    app.add_error_handler(Exception, _answer_failure)
    app.add_error_handler(MustWait, _pass_on)
    app.add_error_handler(falcon.HTTPError, _answer_falcon)
    return app


class _Endpoint:
    """One server event with everything about it that does not change from request to request."""

    def __init__(
        self, route: Route, event: ServerEvent, outlet: Outlet, turns: ReplyTurns, max_body_bytes: int
    ) -> None:
        self.route = route.name
        self.event = event.name
        self.cors = cors_for(route.config)
        self._credentials = credentials_for(route.name, route.config)
        self._respond = responder_for(route, event, outlet, turns, max_body_bytes)
        self._outlet = outlet
        self._served = Served(route.name, event.name, f"{event.method} {mask(event.endpoint, route.secrets)}")

    def respond(self, request: Request, resp: falcon.Response) -> None:
        """Answer a request and count it; raises `RequestRefused` for one that gets an error."""
        environ = request.environ
        environ[ROUTE], environ[EVENT] = self.route, self.event
        try:
            self._admit(environ, resp)
            answer = self._respond(request)
        except RequestRefused as refused:
            self._outlet.answered(self._served, refused.status, refused.code, refused.message)
            raise
        except MustWait:
            raise
        except Exception as error:
            code = ErrorCode.INTERNAL_ERROR
            self._outlet.answered(self._served, STATUS_LINES[code], code, str(error))
            raise
        _put(resp, answer)
        self._outlet.answered(self._served, answer.status, None, None)

    def _admit(self, environ: dict[str, Any], resp: falcon.Response) -> None:
        """Settle who calls and whether the listener could read the request; raises `RequestRefused`."""
        if self.cors is not None:
            resp.set_headers(self.cors.answer_headers(environ.get("HTTP_ORIGIN")))
        if self._credentials is not None:
            self._credentials.check(environ.get("HTTP_AUTHORIZATION"))
        if REFUSAL in environ:
            raise environ[REFUSAL]


class _Port:
    """What happens to a request before it is known whose it is."""

    def __init__(self, table: EndpointTable[_Endpoint], clock: Callable[[], float], new_id: Callable[[], str]) -> None:
        self._table = table
        self._clock = clock
        self._new_id = new_id

    def answer(self, req: falcon.Request, resp: falcon.Response, **_: str) -> None:
        """Answer any request: Falcon's sink for the whole port."""
        environ = req.env
        request_id = environ.get(REQUEST_ID) or self._new_id()
        resp.set_header("X-Request-ID", request_id)
        try:
            self._answer(environ, request_id, resp)
        except RequestRefused as refused:
            environ[CODE] = refused.code
            _put_refusal(resp, refused)

    def _answer(self, environ: dict[str, Any], request_id: str, resp: falcon.Response) -> None:
        method = environ["REQUEST_METHOD"]
        target = environ.get("REQUEST_URI") or environ.get("RAW_URI") or environ["PATH_INFO"]
        if target == "*" and method == "OPTIONS":  # about the port as a whole, RFC 9110 section 9.3.7
            return _put(resp, _options_answer(_ALL_METHODS))
        path = path_of(target)
        methods = self._table.find(path)
        if methods is None:
            raise environ.get(REFUSAL) or RequestRefused(
                ErrorCode.NOT_FOUND,
                "No endpoint has this path",
                "Compare the path with the routes' ENDPOINTs: letters, case and a slash at the end all count",
            )
        match = methods.by_method.get(method)
        if match is None:
            return _answer_other_method(environ, methods, resp)
        request = Request(environ, path, match.parameters, request_id, self._clock())
        return match.target.respond(request, resp)


def _answer_other_method(environ: dict[str, Any], methods: Methods[_Endpoint], resp: falcon.Response) -> None:
    """Answer OPTIONS, a preflight (Fetch, CORS protocol) among them, and refuse methods that have no event."""
    if environ["REQUEST_METHOD"] != "OPTIONS":
        raise RequestRefused(
            ErrorCode.METHOD_NOT_ALLOWED,
            "The endpoint does not take this method",
            f"Use one of: {methods.allow}",
            (("Allow", methods.allow),),
        )
    _put(resp, _options_answer(methods.allow))
    origin = environ.get("HTTP_ORIGIN")
    asked = methods.by_method.get(environ.get("HTTP_ACCESS_CONTROL_REQUEST_METHOD", ""))
    if origin is not None and asked is not None and asked.target.cors is not None:
        wanted = environ.get("HTTP_ACCESS_CONTROL_REQUEST_HEADERS")
        resp.set_headers(asked.target.cors.preflight_headers(origin, methods.allow, wanted))


def _options_answer(allow: str) -> Answer:
    return Answer(status="204 No Content", content_type="", headers=(("Allow", allow),))


def _put(resp: falcon.Response, answer: Answer) -> None:
    resp.status = answer.status
    resp.data = answer.body
    if answer.content_type:
        resp.content_type = answer.content_type
    if answer.headers:
        resp.set_headers(answer.headers)


def _put_refusal(resp: falcon.Response, refused: RequestRefused) -> None:
    resp.set_headers(refused.headers)
    resp.status = refused.status
    resp.content_type = JSON
    resp.data = refused.body


def _answer_failure(req: falcon.Request, resp: falcon.Response, error: Exception, _params: Any) -> None:
    """Answer a request that our own code failed on; the log tells all, the caller nothing of the inside."""
    log.error("Server mode failed on request %s", resp.get_header("X-Request-ID"), exc_info=error)
    req.env[CODE] = ErrorCode.INTERNAL_ERROR
    _put_refusal(resp, internal_error())


def _answer_falcon(req: falcon.Request, resp: falcon.Response, _error: Exception, _params: Any) -> None:
    """Answer what Falcon itself refuses: its method WEBSOCKET, which is none of HTTP's."""
    req.env[CODE] = ErrorCode.INVALID_REQUEST
    resp.set_header("X-Request-ID", req.env.get(REQUEST_ID) or new_request_id())
    _put_refusal(resp, invalid_request("The request's method is not one of HTTP", f"Use one of: {_ALL_METHODS}"))


def _pass_on(_req: falcon.Request, _resp: falcon.Response, error: Exception, _params: Any) -> NoReturn:
    """Let the listener have what is meant for it."""
    raise error
