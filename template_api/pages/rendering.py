"""The pages as HTML: jinja2 over the templates beside this module, which escape everything. The one door for jinja2."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2 import Template as Compiled

from template_api import openapi
from template_api.errors import ApiError
from template_api.pages import shown
from template_api.pages.markdown import rendered
from template_api.query import ID_LISTS, MOST_OFFSET
from template_api.records import Page, Template, TemplateQuery
from template_api.replies import Reply

Known = Mapping[str, Sequence[Mapping[str, Any]]]
"""What there is to filter by, as `TemplateLibrary.facets` returns it."""
HTML: Final = "text/html; charset=utf-8"
_ASSETS: Final = {
    "library.css": "text/css; charset=utf-8",
    "library.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


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
        description = openapi.description()
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


_PAGES: Final = ("library", "template", "docs", "error")
