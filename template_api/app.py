"""The WSGI application: its routes and its error handlers, in one visible place."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import falcon

from template_api.errors import (
    ApiError,
    DatabaseUnavailableError,
    IndexNotReadyError,
    InternalError,
    InvalidRequestError,
    LibraryUnavailableError,
    MethodNotAllowedError,
    NotFoundError,
    SearchFailedError,
    SearchNotReadyError,
    TemplateUnavailableError,
)
from template_api.library import TemplateLibrary
from template_api.middleware import AccessLog, Cors, RequestId, allowed_methods, request_id
from template_api.pages.resources import Asset, DocsPage, LibraryPage, Pages, TemplatePage
from template_api.replies import JSON, error_body
from template_api.resources import Answers, Description, Facets, Health, OneTemplate, Search, Suggest, Templates

log = logging.getLogger(__name__)

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
_PAGES = ("/", "/templates/{id_or_slug}", "/docs")
_NAMED = ("/api/templates/{id_or_slug}", "/templates/{id_or_slug}", "/static/{name}")
_FAILURES: dict[str | None, Callable[[], ApiError]] = {
    "/api/templates": SearchFailedError,
    "/api/templates/{id_or_slug}": TemplateUnavailableError,
    "/api/search": SearchFailedError,
    "/api/suggest": SearchFailedError,
    "/api/facets": SearchFailedError,
    "/health": LibraryUnavailableError,
    "/": SearchFailedError,
    "/templates/{id_or_slug}": TemplateUnavailableError,
}


def create_app(
    library: TemplateLibrary, base_url: str = DEFAULT_BASE_URL, access_log: logging.Logger | None = None
) -> falcon.App[falcon.Request, falcon.Response]:
    """Return the API over a library as a WSGI application.

    Args:
        library: what the API reads; its opener closes it.
        base_url: the public address, from which a template without a `url` of its own gets one.
        access_log: gets one line of JSON for each request, at INFO; None logs none.
    """
    answers, pages = Answers(library, base_url.rstrip("/")), Pages(library, base_url.rstrip("/"))
    resources: dict[str, object] = {
        "/api/templates": Templates(answers),
        "/api/templates/{id_or_slug}": OneTemplate(answers),
        "/api/search": Search(answers),
        "/api/suggest": Suggest(answers),
        "/api/facets": Facets(answers),
        "/openapi.json": Description(),
        "/health": Health(answers),
        "/": LibraryPage(pages),
        "/templates/{id_or_slug}": TemplatePage(pages),
        "/docs": DocsPage(pages),
        "/static/{name}": Asset(),
    }
    middleware: list[Any] = [RequestId(), Cors()]
    if access_log is not None:
        middleware.append(AccessLog(access_log))
    app = falcon.App(middleware=middleware)
    for path, resource in resources.items():
        app.add_route(path, resource)
    errors = _Errors(resources, pages)
    for kind in (Exception, falcon.HTTPError):  # Falcon has a handler of its own for the second
        app.add_error_handler(kind, errors.handle)
    return app


class _Errors:
    """Map each exception of a request to the error body of the specification."""

    def __init__(self, resources: dict[str, object], pages: Pages) -> None:
        self._resources = resources
        self._pages = pages

    def handle(self, req: falcon.Request, resp: falcon.Response, exc: Exception, _params: dict[str, object]) -> None:
        """Send status, code, message and hint; an internal error shows nothing of its cause."""
        error = exc if isinstance(exc, ApiError) else self._translated(req, exc)
        resp.status = error.status
        if req.uri_template in _PAGES:
            self._pages.send_error(req, resp, error)
        else:
            resp.content_type = JSON
            resp.data = error_body(error, req.method, req.path)
        if isinstance(error, MethodNotAllowedError):
            resp.set_header("Allow", ", ".join(error.allowed))
        elif isinstance(error, SearchNotReadyError):
            resp.set_header("Retry-After", "1")

    def _translated(self, req: falcon.Request, exc: Exception) -> ApiError:
        if isinstance(exc, falcon.HTTPError) and exc.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return self._refusal(req, exc)
        if isinstance(exc, IndexNotReadyError):
            return SearchNotReadyError()
        asked = f"{req.method} {quote(req.path)}"  # a line break in a decoded path would begin a line of its own
        if isinstance(exc, DatabaseUnavailableError):
            log.error("request %s: %s: %s", request_id(req), asked, exc)
        else:
            log.error("request %s: %s failed", request_id(req), asked, exc_info=exc)
        return _FAILURES.get(req.uri_template, InternalError)()

    def _refusal(self, req: falcon.Request, exc: falcon.HTTPError) -> ApiError:
        """Return Falcon's own refusals as our errors: an unknown path, a method that the path or HTTP does not have."""
        # Falcon refuses some requests before it looks up their path.
        folder, _, name = req.path.rpartition("/")
        path = next((each for each in _NAMED if name and each.rpartition("/")[0] == folder), req.path)
        resource = self._resources.get(path)
        if exc.status_code == HTTPStatus.NOT_FOUND or resource is None:
            return NotFoundError("This API has no such path")
        if exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED or req.method not in falcon.HTTP_METHODS:
            return MethodNotAllowedError(req.method, allowed_methods(resource))
        return InvalidRequestError("The request is not well-formed")
