"""The pages: one Falcon resource for each, rendered by jinja2 from the templates beside this module, which escape all.

They run on the server's threads and may be entered by several at once. The one door for jinja2.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

import falcon
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2 import Template as Compiled

from template_api import query
from template_api.errors import ApiError, IndexNotReadyError, TemplateNotFoundError
from template_api.library import TemplateLibrary
from template_api.pages import shown
from template_api.pages.markup import rendered
from template_api.query import ID_LISTS, MOST_OFFSET
from template_api.records import Page, Template, TemplateQuery
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
_PAGES: Final = ("library", "template", "docs", "error")
Known = Mapping[str, Sequence[Mapping[str, Any]]]
"""What there is to filter by, as `TemplateLibrary.facets` returns it."""
HTML: Final = "text/html; charset=utf-8"
_ASSETS: Final = {
    "library.css": "text/css; charset=utf-8",
    "library.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


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

        def make() -> Reply:
            page = self._library.find(wanted)
            try:
                return self._renderer.library(wanted, page, self._known(), self._library.facet_counts(wanted))
            except IndexNotReadyError:  # the first seconds of a large library: better without facets than not at all
                return self._renderer.library(wanted, page, {}, {})

        return self._cache.reply(self._library.edition, wanted, make)

    def template(self, id_or_slug: str) -> Reply:
        """Return the page of a template.

        Raises:
            TemplateNotFoundError: no published template has this id or slug.
        """

        def make() -> Reply:
            template = self._library.get(id_or_slug) if id_or_slug.isprintable() else None
            if template is None:
                raise TemplateNotFoundError("There is no published template here", "Search the library for it.")
            return self._renderer.template(template)

        return self._cache.reply(self._library.edition, id_or_slug, make)

    def send_error(self, request: falcon.Request, response: falcon.Response, error: ApiError) -> None:
        """Send the page of an error."""
        response.set_headers(_SAFE)
        send_whole(request, response, self._renderer.error(error))

    def _known(self) -> Known:
        """Return what there is to filter by, read once for an edition: each letter that is typed asks for a page."""
        edition = self._library.edition
        if self._read[0] != edition:
            self._read = (edition, self._library.facets())
        return self._read[1]


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


@cache
def _compiled(root: str) -> Mapping[str, Compiled]:
    """Compile the templates of all pages, whose links begin with `root`; takes 30 ms."""
    environment = Environment(
        loader=PackageLoader("template_api.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals |= {"root": root, "template_path": lambda one: root + shown.template_path(one)}
    return {name: environment.get_template(f"{name}.html") for name in _PAGES}


class Renderer:
    """Render the pages of one library.

    Args:
        base_url: the public address, without a trailing slash; links of the pages begin with its path.
    """

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._templates = _compiled(urlsplit(base_url).path)

    def library(self, wanted: TemplateQuery, page: Page, known: Known, counts: Mapping[str, int]) -> Reply:
        """Return the page that lists templates; `counts` as `TemplateLibrary.facet_counts` returns them."""
        # The filters that a search from this page keeps, as fields of its form.
        kept = {name: getattr(wanted, name) for name in ("category_id", "difficulty")}
        kept |= {name: ",".join(sorted(getattr(wanted, name))) for name in ID_LISTS}
        following, preceding = wanted.offset + wanted.limit, max(0, wanted.offset - wanted.limit)
        return self._page(
            "library",
            wanted=wanted,
            page=page,
            facets=shown.facets(known, counts, wanted),
            corrections=shown.corrections(page.found),
            kept=[(name, value) for name, value in kept.items() if value],
            next=following < page.total
            and following <= MOST_OFFSET
            and shown.search_link(replace(wanted, offset=following)),
            previous=wanted.offset > 0 and shown.search_link(replace(wanted, offset=preceding)),
        )

    def template(self, template: Template) -> Reply:
        """Return the page of one template."""
        summary = template.summary
        return self._page(
            "template",
            summary=summary,
            content=rendered(summary.content, below=1),
            notebooks=[(notebook, list(shown.cells(notebook))) for notebook in template.notebooks],
            install=shown.install_line(summary, self._base_url),
        )

    def docs(self) -> Reply:
        """Return the page that describes the API."""
        description = query.description()
        about = rendered(description["info"].get("description", ""), below=1)
        return self._page("docs", about=about, operations=list(shown.operations(description)), base_url=self._base_url)

    def error(self, error: ApiError) -> Reply:
        """Return the page of an error."""
        return self._page("error", error=error)

    def _page(self, name: str, **values: Any) -> Reply:
        return Reply(self._templates[name].render(**values).encode("utf-8", "replace"), media_type=HTML)


def assets() -> Mapping[str, Reply]:
    """Return the style sheet, the script and the icon, by name."""
    folder = files("template_api.pages").joinpath("static")
    return {name: Reply(folder.joinpath(name).read_bytes(), media_type=kind) for name, kind in _ASSETS.items()}

