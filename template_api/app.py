"""The WSGI application: its paths and their answers, its error handlers, request ids, CORS, the access log.

All of it runs on the server's threads; several may be in it at once.
"""

import json
import logging
import re
import time
import uuid
from dataclasses import asdict, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import falcon
import msgspec

from template_api import query
from template_api.errors import ApiError, DatabaseUnavailableError, ErrorCode, IndexNotReadyError
from template_api.library import TemplateLibrary
from template_api.pages.resources import Pages
from template_api.query import ApiRequest
from template_api.records import Page, Summary
from template_api.replies import JSON, MAX_BODY_BYTES, Reply, ReplyCache, Resource
from template_api.snippets import snippet

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
_HEALTHY = Reply(b'{"status":"ok"}', kept=False)
_SUMMARY = [name for name in query.description()["components"]["schemas"]["SummaryField"]["enum"] if name != "snippet"]
_SHOWN_LENGTH = 80
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
    resources = {
        "/api/templates": Resource(answers.results, cache=cache),
        "/api/templates/{id_or_slug}": Resource(answers.template, cache=cache),
        "/api/search": Resource(answers.results, answers.posted, cache),
        "/api/suggest": Resource(answers.suggestions, cache=cache),
        "/api/facets": Resource(answers.facets, cache=cache),
        "/openapi.json": Resource(Reply(msgspec.json.encode(query.description()))),
        "/health": Resource(_HEALTHY),
        "/ready": Resource(answers.ready),
        "/metrics": Resource(lambda _req: cache.metrics()),
        **pages.resources(),
    }
    cross_origin: Any = falcon.CORSMiddleware(allow_origins="*", expose_headers=_EXPOSED)
    app = falcon.App(middleware=[RequestMiddleware(access_log), cross_origin])
    for path, resource in resources.items():
        app.add_route(path, resource)

    def send_error(req: falcon.Request, resp: falcon.Response, exc: Exception, _fields: dict[str, object]) -> None:
        """Send status, code, message and hint; an internal error shows nothing of its cause."""
        error = _error_of(req, exc)
        if req.uri_template in _PAGES:
            pages.error_page(error).send(req, resp)
        else:
            resp.status, resp.content_type = error.status, JSON
            members: dict[str, object] = {"code": error.code, "message": error.message, "hint": error.hint}
            is_posted = req.method == "POST" and req.path == query.SEARCH_PATH
            document = {"error": error.message, **members} if is_posted else {"error": members}
            # ASCII only: the message may quote a path that cannot be written as UTF-8.
            resp.data = json.dumps(document, separators=(",", ":")).encode()
        resp.set_headers(error.headers)

    for kind in (Exception, falcon.HTTPError):  # Falcon has a handler of its own for the second
        app.add_error_handler(kind, send_error)
    return app


def _error_of(req: falcon.Request, exc: Exception) -> ApiError:
    """Return the error response for an exception; log the exception if it is a fault of this program or database."""
    match exc:
        case ApiError():
            return exc
        case falcon.HTTPNotFound():
            return ApiError(ErrorCode.NOT_FOUND)
        case falcon.HTTPMethodNotAllowed():
            allow = dict(exc.headers or ())["Allow"]
            message, hint = f"{req.method} is not allowed here", f"Use one of {allow}."
            return ApiError(ErrorCode.METHOD_NOT_ALLOWED, message, hint=hint, headers={"Allow": allow})
        case falcon.HTTPError() if exc.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return ApiError(ErrorCode.INVALID_REQUEST)
        case IndexNotReadyError():
            return ApiError(ErrorCode.SEARCH_NOT_READY, headers={"Retry-After": "1"})
    fault = None if isinstance(exc, DatabaseUnavailableError) else exc  # a database error needs no stack trace
    # The path is quoted, since a line break in it would begin another line of the log.
    log.error("request %s: %s %s: %s", request_id(req), req.method, quote(req.path), exc, exc_info=fault)
    return ApiError(_FAILURES.get(req.uri_template, ErrorCode.INTERNAL_ERROR))


class Answers:
    """The answers of the API from the library; `cache` keeps the answers to POST, and counts searches."""

    def __init__(self, library: TemplateLibrary, base_url: str, cache: ReplyCache) -> None:
        self._library = library
        self._base_url = base_url
        self._cache = cache

    def results(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/templates and /api/search."""
        return self._search_reply(query.search_query(req.path, req.query_string), req.path)

    def posted(self, req: falcon.Request) -> Reply:
        """Return the answer of POST /api/search: the results for the query in its body, JSON of at most 64 KiB."""
        # Falcon's own media handlers take a media type in lower case only.
        media_type = (req.content_type or "").partition(";")[0].strip().lower()
        coding = (req.get_header("Content-Encoding") or "identity").strip().lower()
        if media_type != JSON or coding != "identity":
            raise ApiError(ErrorCode.UNSUPPORTED_MEDIA_TYPE)
        body: bytes = req.bounded_stream.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES or (req.content_length or 0) > MAX_BODY_BYTES:
            raise ApiError(ErrorCode.PAYLOAD_TOO_LARGE)

        def make() -> Reply:
            return self._search_reply(query.body_query(body), query.SEARCH_PATH, kept=False)

        return self._cache.reply(req.path, body, make)

    def _search_reply(self, request: ApiRequest, path: str, *, kept: bool = True) -> Reply:
        """Return the templates that a request asks for, in the form that GET of `path` has.

        Headers have the total, the corrected words, and a link to the next page, which is always a GET. GET /api/search
        refuses a blank query, so a POST with one gets no link.
        """
        template_query = request.query
        page = self._library.find(template_query)
        headers = query.result_headers(request.ignored, page.corrected) | {"X-Total-Count": str(page.total)}
        following = page.place and replace(template_query, offset=page.place.shown, place=page.place)
        if following and (path == query.LIST_PATH or template_query.text):
            target = f"{urlsplit(self._base_url).path}{path}?{query.query_string(following, request)}"
            if len(target) <= query.HEADER_LENGTH:
                headers["Link"] = f'<{target}>; rel="next"'
        document: dict[str, Any] = {"results": self._results(page, request, path)}
        if request.meta:
            document["meta"] = {
                "total": page.total,
                "corrected": [{"from": word.typed, "to": word.found} for word in page.corrected],
                "ignored": page.ignored,
                "facets": self._library.facets(template_query),
                **({"next_cursor": query.cursor_text(following)} if following else {}),
            }
        return Reply(msgspec.json.encode(document), headers, kept=kept, searched=template_query.text, total=page.total)

    def _results(self, page: Page[Summary], request: ApiRequest, path: str) -> list[dict[str, Any]]:
        results = []
        for each in page.found:
            result = _members(each.template, self._base_url)
            if path != query.LIST_PATH:
                result["content"] = each.template.content
                result["score"] = round(each.score, 6)
                result["matched"] = [
                    word.typed if word.typed == word.found
                    else {"typed": word.typed, "found": word.found, **({"synonym": True} if word.is_synonym else {})}
                    for word in each.matched
                ]  # fmt: skip
            if request.highlight:
                result["snippet"] = snippet(each)
            if request.fields is not None:
                chosen = {*request.fields, "snippet"}  # present only if `highlight` was asked for
                result = {name: value for name, value in result.items() if name in chosen}
            results.append(result)
        return results

    def suggestions(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/suggest: titles that complete a text."""
        request = query.search_query(req.path, req.query_string)
        found, corrected = self._library.suggest(request.query.text)
        suggestions = [{"text": each.title, "slug": each.slug or each.id} for each in found]
        headers = query.result_headers(request.ignored, corrected)
        return Reply(msgspec.json.encode({"suggestions": suggestions}), headers)

    def facets(self, req: falcon.Request) -> Reply:
        """Return the answer of GET /api/facets: what templates are classified by, with counts."""
        headers = query.result_headers(query.unknown_names(req.query_string))
        return Reply(msgspec.json.encode(self._library.facets()), headers)

    def template(self, req: falcon.Request, id_or_slug: str) -> Reply:
        """Return the answer of GET /api/templates/{idOrSlug}: one template with the latest cells of its notebooks."""
        template = self._library.get(id_or_slug) if id_or_slug.isprintable() else None
        if template is None:
            message = f'No published template has the id or slug "{id_or_slug[:_SHOWN_LENGTH]}"'
            raise ApiError(ErrorCode.TEMPLATE_NOT_FOUND, message)
        members = _members(template.summary, self._base_url)
        # In the specification a single template has all members of a summary except this one.
        del members["broker_version"]
        members["content"] = template.summary.content
        members["notebooks"] = [
            {name: value for name, value in asdict(each).items() if value is not None}
            | {"cells": msgspec.Raw(each.cells.encode())}
            for each in template.notebooks
        ]
        headers = query.result_headers(query.unknown_names(req.query_string))
        return Reply(msgspec.json.encode({"template": members}), headers)

    def ready(self, _req: falcon.Request) -> Reply:
        """Return the answer of GET /ready."""
        self._library.check()
        return _HEALTHY


def _members(summary: Summary, base_url: str) -> dict[str, Any]:
    """Return the members of a template in a list: all of its summary but the Markdown text."""
    members = {name: getattr(summary, name) for name in _SUMMARY}
    members["url"] = summary.url or f"{base_url}/templates/{summary.slug or summary.id}"
    if summary.difficulty is None:
        del members["difficulty"]
    return members


class RequestMiddleware:
    """Adds the id of each request to its response, and logs one line of JSON for it if there is a logger.

    The line holds time, request_id, client, method, path, query, status, bytes and milliseconds, never a body.
    """

    def __init__(self, logger: logging.Logger | None) -> None:
        self._logger = logger

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Start the clock."""
        req.context.began = time.perf_counter()

    def process_response(self, req: falcon.Request, resp: falcon.Response, _resource: object, _succeeded: bool) -> None:
        """Set the header with the request's id, and write the line."""
        resp.set_header(REQUEST_ID, request_id(req))
        if self._logger is None:
            return
        now = time.perf_counter()  # some requests have no `began`: Falcon refuses them earlier
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
    """Return the id of a request: the one that the caller sent, if it is valid, else a new one."""
    if not hasattr(req.context, "id"):
        sent = req.get_header(REQUEST_ID)
        req.context.id = sent if sent and _VALID_ID.fullmatch(sent) else str(uuid.uuid4())
    return str(req.context.id)
