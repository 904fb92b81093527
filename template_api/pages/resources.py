"""One Falcon resource for each page. They run on the server's threads and may be entered by several at once."""

from collections.abc import Hashable
from typing import Final

import falcon

from template_api import query
from template_api.errors import ApiError, IndexNotReadyError, TemplateNotFoundError
from template_api.library import TemplateLibrary
from template_api.pages.rendering import Known, Renderer, assets
from template_api.records import TemplateQuery
from template_api.replies import Reply, ReplyCache, send, send_whole

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SAFE: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)
_CACHED_BYTES: Final = 16 * 1024 * 1024
_CACHED_PAGES: Final = 1024


class Pages:
    """The pages of a library, rendered or from a cache of one edition of the library.

    Args:
        library: what is read.
        base_url: the public address, without a trailing slash.
    """

    def __init__(self, library: TemplateLibrary, base_url: str) -> None:
        self._library = library
        self._renderer = Renderer(base_url)
        self._cache = ReplyCache(_CACHED_BYTES, _CACHED_PAGES)
        self._read: tuple[Hashable, Known] = (None, {})
        self.docs = self._renderer.docs()

    def found(self, wanted: TemplateQuery) -> Reply:
        """Return the page of the templates that a query asks for."""
        return self._cache.reply(self._library.edition, wanted, lambda: self._found(wanted))

    def template(self, id_or_slug: str) -> Reply:
        """Return the page of a template.

        Raises:
            TemplateNotFoundError: no published template has this id or slug.
        """
        return self._cache.reply(self._library.edition, id_or_slug, lambda: self._template(id_or_slug))

    def send_error(self, request: falcon.Request, response: falcon.Response, error: ApiError) -> None:
        """Send the page of an error."""
        response.set_headers(_SAFE)
        send_whole(request, response, self._renderer.error(error))

    def _found(self, wanted: TemplateQuery) -> Reply:
        page = self._library.find(wanted)
        try:
            return self._renderer.library(wanted, page, self._known(), self._library.facet_counts(wanted))
        except IndexNotReadyError:  # the first seconds of a large library: a list without facets is better than none
            return self._renderer.library(wanted, page, {}, {})

    def _known(self) -> Known:
        """Return what there is to filter by, read once for an edition: each letter that is typed asks for a page."""
        edition = self._library.edition
        if self._read[0] != edition:
            self._read = (edition, self._library.facets())
        return self._read[1]

    def _template(self, id_or_slug: str) -> Reply:
        template = self._library.get(id_or_slug) if id_or_slug.isprintable() else None
        if template is None:
            raise TemplateNotFoundError("There is no published template here", "Search the library for it.")
        return self._renderer.template(template)


class LibraryPage:
    """GET /: search and browse templates."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the page of the templates that the query parameters ask for."""
        _send(req, resp, self._pages.found(query.page_query(req.query_string)))

    on_head = on_get


class TemplatePage:
    """GET /templates/{idOrSlug}: one template."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def on_get(self, req: falcon.Request, resp: falcon.Response, id_or_slug: str) -> None:
        """Send the page of a template."""
        _send(req, resp, self._pages.template(id_or_slug))

    on_head = on_get


class DocsPage:
    """GET /docs: the description of the API."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the page."""
        _send(req, resp, self._pages.docs)

    on_head = on_get


class Asset:
    """GET /static/{name}: what the pages load."""

    def __init__(self) -> None:
        self._assets = assets()

    def on_get(self, req: falcon.Request, resp: falcon.Response, name: str) -> None:
        """Send a style sheet, script or icon."""
        reply = self._assets.get(name)
        if reply is None:
            raise falcon.HTTPNotFound
        _send(req, resp, reply)

    on_head = on_get


def _send(request: falcon.Request, response: falcon.Response, reply: Reply) -> None:
    response.set_headers(_SAFE)
    send(request, response, reply)
