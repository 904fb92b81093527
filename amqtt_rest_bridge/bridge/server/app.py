"""The application of one port: finds the endpoint of a request, admits its caller, has its event answered and counts.

Nothing here does I/O; the broker comes in as a `BrokerAccess`, clocks as parameters. Runs on the port's thread.

Why not Falcon, on which the template API is built: WSGI cannot leave an answer pending, so each that waits would hold
a thread or be asked for twice, and of Falcon one sink for all paths was used. A request takes 51 us CPU without both,
62 with them (POST of 100 bytes, 16 connections).
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.bridge.server.broker_access import BrokerAccess, TopicPayload, Wake
from amqtt_rest_bridge.bridge.server.reads import payload_answer
from amqtt_rest_bridge.bridge.server.request import (
    EventRequest,
    IgnoredError,
    error,
    readable,
)
from amqtt_rest_bridge.bridge.server.responders import ReplyTurns, Steps, responder_for
from amqtt_rest_bridge.catalogue import METHOD_NOT_ALLOWED, NOT_FOUND
from amqtt_rest_bridge.engine.server.callers import WrongCredentialError, cors_for, credentials_for
from amqtt_rest_bridge.engine.server.endpoint_table import EndpointTable, Methods
from amqtt_rest_bridge.engine.server.openapi import PATH, describe
from amqtt_rest_bridge.http.exchange import RefusedError, internal_error
from amqtt_rest_bridge.http_server import Headers, Pending, Refusal, Request, Response, path_of
from amqtt_rest_bridge.http_server.exchange import refused
from amqtt_rest_bridge.http_server.wrong_credentials import WrongCredentials
from amqtt_rest_bridge.link.frames import SKIPPED
from amqtt_rest_bridge.masking import masker_of
from amqtt_rest_bridge.model import Route, ServerEvent
from amqtt_rest_bridge.records.bridge_records import LONGEST, Failure, RawRequest, ServedEvent
from amqtt_rest_bridge.settings import BridgeSettings

log = logging.getLogger(__name__)

_DEFAULTS: Final = BridgeSettings()
_ALL_METHODS: Final = "DELETE, GET, HEAD, OPTIONS, POST, PUT"
_IGNORED: Final = Response("200 OK", (("Content-Type", "application/json"),), b'{"status": "ignored"}')


class RouteApplication:
    """Answers the requests of the routes that share a port; see `http_server.Application`.

    Args:
        routes: in any order; one without ENABLE_SERVER adds nothing.
        broker: where requests are published, and their answers counted.
        settings: max_body_bytes: larger bodies and filled payloads are answered with 413; max_response_bytes: larger
            objects of topics with 503; openapi: whether GET /openapi.json is answered; an endpoint GET /openapi.json
            wins, one like `/{x}` does not.
        clock: returns Unix time in seconds.
        monotonic: returns the time by which pending answers wait.
        turns: the turns on reply topics; shared by the applications of all ports, and by those before a reload.
        wrong_credentials: answers wrong credentials; shared likewise.
        port: that callers connect to.

    Raises:
        ConfigurationError: two events have the same method and path; the loader refuses such routes before.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        broker: BrokerAccess,
        settings: BridgeSettings = _DEFAULTS,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        turns: ReplyTurns | None = None,
        wrong_credentials: WrongCredentials | None = None,
        port: int = 0,
    ) -> None:
        turns, wrong_credentials = turns or ReplyTurns(), wrong_credentials or WrongCredentials(monotonic)
        self._answers = broker.answers
        self._port = port
        self._clock = clock
        self._monotonic = monotonic
        self._records = broker.records
        served = [route for route in routes if route.config.enable_server]
        own = any(event.endpoint == PATH and event.method == "GET" for route in served for event in route.server_events)
        self._description = describe(routes) if settings.openapi and not own else None
        self._table = EndpointTable(
            (
                event.endpoint,
                event.method.value,
                _Endpoint(route, event, broker, turns, wrong_credentials, port, settings),
            )
            for route in served
            for event in route.server_events
        )

    def answer(self, request: Request, wake: Wake) -> Response | Pending:
        """Answer a request, or begin to; see `Application.answer`."""
        try:
            return self._answer(request, wake)
        except RefusedError as failure:  # by no endpoint
            path, status = readable(path_of(request.target)), failure.refusal.status
            self._answers.unmatched(self._port, request.method, path, status)
            refusal, answer = failure.refusal, refused(failure.refusal)
            if self._records is not None:
                self._records.unmatched(request, answer, (refusal.code, refusal.message, refusal.hint))
            return answer

    def _answer(self, request: Request, wake: Wake) -> Response | Pending:
        if request.target == "*" and request.method == "OPTIONS":  # about the port as a whole, RFC 9110 section 9.3.7
            return _options_answer(_ALL_METHODS)
        path = path_of(request.target)
        if path == PATH and self._description is not None and request.method in ("GET", "HEAD"):
            return payload_answer(TopicPayload(self._description))
        methods = self._table.find(path)
        if methods is None:
            if request.refusal is not None:
                raise RefusedError(request.refusal)
            raise error(NOT_FOUND, "No endpoint has this path")
        match = methods.by_method.get(request.method)
        if match is None:
            return self._answer_other_method(request, path, methods, wake)
        found = EventRequest(request, path, match.parameters, self._clock(), wake, self._monotonic)
        return match.target.answer(found)

    def _answer_other_method(self, request: Request, path: str, methods: "Methods[_Endpoint]", wake: Wake) -> Response:
        """Answer OPTIONS, including preflights (Fetch, CORS protocol), and refuse methods that have no event."""
        if request.method != "OPTIONS":
            message, allow = "The endpoint does not take this method", (("Allow", methods.allow),)
            raise error(METHOD_NOT_ALLOWED, message, allow, hint=f"Use one of: {methods.allow}")
        origin = request.headers.get("origin")
        asked = methods.by_method.get(request.headers.get("access-control-request-method", ""))
        if origin is None or asked is None or asked.target.cors is None:
            return _options_answer(methods.allow)
        wanted = request.headers.get("access-control-request-headers")
        try:
            return _options_answer(methods.allow, asked.target.cors.preflight_headers(origin, methods.allow, wanted))
        except RefusedError as failure:  # the page sends no request then, so its endpoint has refused it here
            found = EventRequest(request, path, asked.parameters, self._clock(), wake, self._monotonic)
            return asked.target.failed(found, failure)


class _Endpoint:
    """One server event with everything about it that does not change from request to request."""

    def __init__(
        self,
        route: Route,
        event: ServerEvent,
        broker: BrokerAccess,
        turns: ReplyTurns,
        wrong_credentials: WrongCredentials,
        port: int,
        settings: BridgeSettings,
    ) -> None:
        self.cors = cors_for(route.config)
        self._credentials = credentials_for(route.name, route.config)
        self._respond = responder_for(route, event, broker, turns, settings)
        self._answers = broker.answers
        self._wrong_credentials = wrong_credentials
        self._port = port
        self._records = broker.records
        if self._records is not None:
            self._recent = self._records.recent(route.name)
        self._of = route, event
        self._masker = masker_of(route)
        self._served = ServedEvent(route.name, event.name, f"{event.method} {self._masker.address(event.endpoint)}")
        self._labels = (("route", route.name), ("event", event.name))

    def answer(self, request: EventRequest) -> Response | Pending:
        """Answer a request and count it, or begin to."""
        try:
            self._admit(request)
            answer = self._respond(request)
        except WrongCredentialError as failure:
            request.http = replace(request.http, body=b"")  # not held while the answer waits
            refusal = partial(self.failed, request, failure.with_traceback(None))  # whose frames hold it too
            return self._wrong_credentials.refuse(request.http.remote, self._port, refusal)
        except Exception as failure:  # noqa: BLE001  # it is logged
            return self.failed(request, failure)
        return self.done(request, answer) if isinstance(answer, Response) else _PendingAnswer(self, request, answer)

    def _admit(self, request: EventRequest) -> None:
        if self.cors is not None:
            request.answer_headers = self.cors.answer_headers(request.headers.get("origin"))
        if self._credentials is not None:
            self._credentials.check(request.headers)
        if request.http.refusal is not None:
            raise RefusedError(request.http.refusal)

    def done(self, request: EventRequest, answer: Response, kind: str = "request") -> Response:
        """Count a good answer, or of the kind SKIPPED one that publishes nothing; return it with its headers."""
        headers = (*request.answer_headers, *answer.headers)
        labelled = Response(answer.status, headers, answer.body, None, self._labels, answer.stream)
        return self._noted(request, labelled, None, kind)

    def failed(self, request: EventRequest, failure: Exception, instead: Refusal | None = None) -> Response:
        """Count and return the answer to a request that was refused or ignored, or on which our own code failed.

        The log has the cause of the latter, the response has not. `instead` is answered, and the failure counted, where
        there is no room to answer with that.
        """
        if isinstance(failure, IgnoredError):
            return self.done(request, _IGNORED, SKIPPED)
        if isinstance(failure, RefusedError):
            refusal, message = failure.refusal, failure.refusal.message
        else:
            log.error("Server mode failed on request %s", request.http.id, exc_info=failure)
            refusal, message = internal_error(), self._masker.address(str(failure))
        answer = refused(instead or refusal, request.answer_headers, self._labels)
        return self._noted(request, answer, (refusal.code, message, refusal.hint), "request")

    def _noted(self, request: EventRequest, answer: Response, failure: Failure | None, kind: str) -> Response:
        """Count an answer, and record it for the admin port: one value is made for both."""
        http, publication, began = request.http, request.publication, request.timestamp
        seconds, target = request.clock() - request.began, http.target
        if len(target) > LONGEST:
            target = self._masker.address(path_of(target))[:LONGEST]
        topic = None if publication is None else publication.topic[:LONGEST]
        raw = RawRequest(
            began + seconds, kind, self._of, self._served, http.id, topic, http.method, target, answer.status, failure,
            seconds,
        )  # fmt: skip
        self._answers.count(raw)
        if self._records is not None:
            if failure is None and not self._records.takes_all:
                self._recent.append(raw)
            else:
                self._records.request(raw, http, answer, publication, began)
        return answer


class _PendingAnswer:
    """An answer that waits, as steps of a generator; see `http_server.Pending`."""

    def __init__(self, endpoint: _Endpoint, request: EventRequest, steps: Steps) -> None:
        self._endpoint = endpoint
        self._request = request
        self._steps = steps

    def resume(self) -> Response | float:
        try:
            return next(self._steps)
        except StopIteration as end:
            answer: Response = end.value
            return self._endpoint.done(self._request, answer)
        except Exception as failure:  # noqa: BLE001  # it is logged
            return self._endpoint.failed(self._request, failure)

    def refuse(self, refusal: Refusal) -> Response:
        return self._endpoint.failed(self._request, RefusedError(refusal))

    def caller_left(self) -> None:
        self._request.caller_left = True

    def cancel(self) -> None:
        self._steps.close()


def _options_answer(allow: str, headers: Headers = ()) -> Response:
    return Response("204 No Content", (("Allow", allow), *headers))
