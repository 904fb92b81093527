"""The WSGI application: its routes, its error handlers, and what holds for every answer: request id, CORS, access log.

All of it runs on the server's threads.
"""

import json
import logging
import re
import time
import uuid
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import falcon
import msgspec

from template_api import query
from template_api.errors import ApiError, DatabaseUnavailableError, ErrorCode, IndexNotReadyError
from template_api.library import TemplateLibrary
from template_api.pages.resources import Pages
from template_api.replies import JSON, Reply, ReplyCache, Resource
from template_api.resources import Answers

log = logging.getLogger(__name__)

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
_PAGES = ("/", "/templates/{id_or_slug}", "/docs", "/playground")
_FAILURES: dict[str | None, ErrorCode] = {
    **dict.fromkeys(("/api/templates", "/api/search", "/api/suggest", "/api/facets", "/"), ErrorCode.SEARCH_FAILED),
    "/api/templates/{id_or_slug}": ErrorCode.TEMPLATE_UNAVAILABLE,
    "/templates/{id_or_slug}": ErrorCode.TEMPLATE_UNAVAILABLE,
    "/ready": ErrorCode.LIBRARY_UNAVAILABLE,
}
REQUEST_ID = "X-Request-ID"
_EXPOSED = "ETag, Link, Retry-After, X-Ignored-Parameters, X-Search-Corrected, X-Total-Count, X-Request-ID"
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def create_app(
    library: TemplateLibrary,
    base_url: str = DEFAULT_BASE_URL,
    access_log: logging.Logger | None = None,
    *,
    log_empty_searches: bool = False,
    playground: bool = True,
) -> falcon.App[falcon.Request, falcon.Response]:
    """Return the API over a library as a WSGI application.

    Args:
        library: what the API reads; its opener closes it.
        base_url: the public address, from which a template without a `url` of its own gets one.
        access_log: gets one line of JSON for each request, at INFO; None logs none.
        log_empty_searches: log the searches that find nothing, at INFO.
        playground: serve `/playground`, which tries the definitions of callers.
    """
    address = base_url.rstrip("/")
    cache = ReplyCache(library, log_empty=log_empty_searches)
    answers = Answers(library, address, cache)
    pages = Pages(library, address, cache, playground=playground)
    description = Reply(msgspec.json.encode(query.description()))
    resources = {
        "/api/templates": Resource(answers.listed, cache=cache),
        "/api/templates/{id_or_slug}": Resource(answers.template, cache=cache),
        "/api/search": Resource(answers.searched, answers.posted, cache),
        "/api/suggest": Resource(answers.suggestions, cache=cache),
        "/api/facets": Resource(answers.facets, cache=cache),
        "/openapi.json": Resource(lambda _req: description),
        "/health": Resource(answers.health),
        "/ready": Resource(answers.ready),
        "/metrics": Resource(answers.metrics),
        **pages.resources(),
    }
    cross_origin: Any = falcon.CORSMiddleware(allow_origins="*", expose_headers=_EXPOSED)
    app = falcon.App(middleware=[Requests(access_log), cross_origin])
    for path, resource in resources.items():
        app.add_route(path, resource)

    def send_error(req: falcon.Request, resp: falcon.Response, exc: Exception, _fields: dict[str, object]) -> None:
        """Send status, code, message and hint; an internal error shows nothing of its cause."""
        error = exc if isinstance(exc, ApiError) else _translated(req, exc)
        if req.uri_template in _PAGES:
            pages.error_page(error).send(req, resp)
        else:
            resp.status, resp.content_type = error.status, JSON
            members: dict[str, object] = {"code": error.code, "message": error.message, "hint": error.hint}
            if req.method == "POST" and req.path == query.SEARCH_PATH:
                document = {"error": error.message, **members}
            else:
                document = {"error": members}
            # A path may hold what UTF-8 cannot carry, so nothing but ASCII is written here.
            resp.data = json.dumps(document, separators=(",", ":")).encode()
        resp.set_headers(error.headers)

    for kind in (Exception, falcon.HTTPError):  # Falcon has a handler of its own for the second
        app.add_error_handler(kind, send_error)
    return app


def _translated(req: falcon.Request, exc: Exception) -> ApiError:
    """Return the error response to an exception; log what is a fault of ours."""
    if isinstance(exc, falcon.HTTPNotFound):
        return ApiError(ErrorCode.NOT_FOUND)
    if isinstance(exc, falcon.HTTPMethodNotAllowed):
        allowed = dict(exc.headers or ())["Allow"]
        return ApiError(
            ErrorCode.METHOD_NOT_ALLOWED,
            f"{req.method} is not allowed here",
            hint=f"Use one of {allowed}.",
            headers={"Allow": allowed},
        )
    if isinstance(exc, falcon.HTTPError) and exc.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiError(ErrorCode.INVALID_REQUEST)
    if isinstance(exc, IndexNotReadyError):
        return ApiError(ErrorCode.SEARCH_NOT_READY, headers={"Retry-After": "1"})
    asked = f"{req.method} {quote(req.path)}"  # a line break in a decoded path would begin a line of its own
    if isinstance(exc, DatabaseUnavailableError):
        log.error("request %s: %s: %s", request_id(req), asked, exc)
    else:
        log.error("request %s: %s failed", request_id(req), asked, exc_info=exc)
    return ApiError(_FAILURES.get(req.uri_template, ErrorCode.INTERNAL_ERROR))


class Requests:
    """Name the id of each request in its response, and write one line of JSON for it where there is a logger.

    The line holds time, request_id, client, method, path, query, status, bytes and milliseconds, never a body.
    """

    def __init__(self, logger: logging.Logger | None) -> None:
        self._logger = logger

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Start the clock."""
        req.context.began = time.perf_counter()

    def process_response(self, req: falcon.Request, resp: falcon.Response, _resource: object, _succeeded: bool) -> None:
        """Name the id that the log names too, and write the line."""
        resp.set_header(REQUEST_ID, request_id(req))
        if self._logger is None:
            return
        now = time.perf_counter()  # Falcon refuses some requests before they are begun
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "request_id": request_id(req),
            "client": req.remote_addr,
            "method": req.method,
            "path": req.path,
            "query": req.query_string,
            "status": resp.status_code,
            "bytes": len(resp.data or b""),
            "milliseconds": round((now - getattr(req.context, "began", now)) * 1000, 3),
        }
        self._logger.info("%s", json.dumps(line))


def request_id(req: falcon.Request) -> str:
    """Return the id of a request: the caller's own when it sent a plain one, else a fresh one."""
    if not hasattr(req.context, "id"):
        sent = req.get_header(REQUEST_ID)
        req.context.id = sent if sent and _VALID_ID.fullmatch(sent) else str(uuid.uuid4())
    return str(req.context.id)
