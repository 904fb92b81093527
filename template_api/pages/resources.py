"""The pages, rendered by jinja2 from the templates beside this module, which escape all.

They run on the server's threads and may be entered by several at once. The one door for jinja2.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from http import HTTPStatus
from importlib.resources import files
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import falcon
from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, StrictUndefined
from jinja2 import Template as Compiled
from markupsafe import Markup

from amqtt_rest_bridge.site import SCRIPT, SITE_FILES, site_file, site_template
from amqtt_rest_bridge.site.playground import FIRST_ROUTE, MOST_CHARACTERS, Playground, Trial, TrialResult, trial_of
from template_api import query
from template_api.errors import ApiError, ErrorCode, IndexNotReadyError
from template_api.library import TemplateLibrary
from template_api.pages.flows import drawing
from template_api.pages.markup import highlighted, rendered
from template_api.records import DEFAULT_LIMIT, Notebook, TemplateQuery
from template_api.replies import MAX_BODY_BYTES, Reply, ReplyCache, Resource
from template_api.snippets import excerpt, marked_text
from template_api.sources.template import lot_texts

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SAFE: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PAGES: Final = ("library", "template", "docs", "error", "playground")
HTML: Final = "text/html; charset=utf-8"
_ASSETS: Final = {"library.js": SCRIPT, "docs.js": SCRIPT}
_MOST_VALUES: Final = 30
_MOST_RENDERED: Final = 500_000  # characters of a page, 1.5 s of CPU; the cells that follow are shown as they are
_FACETS: Final = {
    "categories": ("Category", "category_id"),
    "difficulties": ("Difficulty", "difficulty"),
    "tags": ("Tags", "tag_ids"),
    "routes": ("Route types", "route_ids"),
    "broker_versions": ("Broker versions", "broker_version_ids"),
}


class Pages:
    """The pages of a library; links begin with the path of `base_url`."""

    def __init__(self, library: TemplateLibrary, base_url: str, cache: ReplyCache, *, playground: bool = True) -> None:
        self._library = library
        self._base_url = base_url
        self._cache = cache
        self._templates = _compiled(urlsplit(base_url).path, playground=playground)
        self._playground = Playground(at_once=1) if playground else None

    def resources(self) -> Mapping[str, Resource]:
        """Return what answers each path; the playground takes POST too."""
        folder = files("template_api.pages").joinpath("static")
        assets = {name: (folder.joinpath(name).read_bytes(), kind) for name, kind in _ASSETS.items()}
        assets |= {name: (site_file(name), kind) for name, kind in SITE_FILES.items()}
        found = {
            "/": Resource(self._found, cache=self._cache),
            "/templates/{id_or_slug}": Resource(self._template, cache=self._cache),
            "/docs": Resource(lambda _req: self._docs),
        }
        for name, (body, kind) in assets.items():
            found[f"/static/{name}"] = Resource(Reply(body, _SAFE, kind))
        if self._playground is not None:
            found["/playground"] = Resource(self._empty_playground, partial(self._tried, self._playground))
        return found

    def error_page(self, error: ApiError) -> Reply:
        """Return the page of an error."""
        return self._page("error", status=error.status, is_kept=False, error=error)

    @cached_property
    def _docs(self) -> Reply:
        """The page of the API's operations, rendered when it is first asked for."""
        about, paths = query.description()["info"]["description"], query.resolved(query.description()["paths"])
        return self._page("docs", about=about, paths=paths, base_url=self._base_url)

    def _found(self, req: falcon.Request) -> Reply:
        """Return the page of the templates that the query parameters ask for."""
        wanted = replace(query.search_query("/", req.query_string).query, limit=DEFAULT_LIMIT)
        page = self._library.find(wanted)
        try:
            known, counts = self._library.facets(), self._library.facet_counts(wanted)
        except IndexNotReadyError:  # the first seconds of a large library: better without facets than not at all
            known, counts = {}, {}
        first = replace(wanted, offset=0, place=None)
        following = page.place and replace(wanted, offset=page.place.shown, place=page.place)
        begun = wanted.offset if wanted.place is None else wanted.place.shown
        reply = self._page(
            "library",
            wanted=wanted,
            page=page,
            begun=begun,
            facets=_facets(known, counts, first),
            as_typed=_search_link(replace(first, exact=True)),
            kept=parse_qsl(query.query_string(replace(first, text="", exact=False))),  # filters and order
            next=following and _search_link(following),
            first=begun and _search_link(first),
            near=() if page.found or not known else self._library.near(wanted.text),
            all_of_text=_search_link(TemplateQuery(wanted.text)),
        )
        reply.searched, reply.total = wanted.text, page.total
        return reply

    def _template(self, _req: falcon.Request, id_or_slug: str) -> Reply:
        """Return the page of a template; raise `ApiError` where none that is published has this name."""
        template = self._library.get(id_or_slug) if id_or_slug.isprintable() else None
        if template is None:
            raise ApiError(
                ErrorCode.TEMPLATE_NOT_FOUND, "There is no published template here", hint="Search the library for it."
            )
        name = template.summary.slug or template.summary.id
        drawn = drawing(template.notebooks)
        allowed = " --allow-sample-credentials" if drawn.has_samples else ""
        return self._page(
            "template",
            template=template,
            summary=template.summary,
            drawing=drawn,
            notebooks=list(_with_cells(template.notebooks)),
            install=f"rest-bridge install {shlex.quote(name)} --from {shlex.quote(self._base_url)}{allowed}",
        )

    def _empty_playground(self, req: falcon.Request) -> Reply:
        """Return the playground with the definition of the template that is named, else with a first route."""
        name = req.get_param("template") or ""
        template = self._library.get(name) if name and name.isprintable() else None
        cells = [json.loads(notebook.cells) for notebook in template.notebooks] if template is not None else []
        definition = "\n\n".join(chain.from_iterable(map(lot_texts, cells))) or FIRST_ROUTE
        return self._page("playground", trial=Trial(definition[:MOST_CHARACTERS]), tried=None)

    def _tried(self, playground: Playground, req: falcon.Request) -> Reply:
        """Return what a definition would do; blocks a thread of the server meanwhile, one at most."""
        if req.get_header("Sec-Fetch-Site") not in (None, "none", "same-origin"):
            trial, tried = Trial(), TrialResult(trouble="A page of another site has sent this; nothing was tried.")
            return self._page("playground", status=HTTPStatus.FORBIDDEN, is_kept=False, trial=trial, tried=tried)
        trial = trial_of(req.bounded_stream.read(MAX_BODY_BYTES))
        tried = playground.run(trial)
        status = HTTPStatus.SERVICE_UNAVAILABLE if tried.is_busy else HTTPStatus.OK
        return self._page("playground", status=status, is_kept=False, trial=trial, tried=tried)

    def _page(self, name: str, *, status: HTTPStatus = HTTPStatus.OK, is_kept: bool = True, **values: Any) -> Reply:
        text = self._templates[name].render(**values)
        return Reply(text.encode("utf-8", "replace"), _SAFE, HTML, status, kept=is_kept)


@cache
def _compiled(root: str, *, playground: bool) -> Mapping[str, Compiled]:
    """Compile the templates of all pages, whose links begin with `root`; takes 30 ms."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("template_api.pages"), FunctionLoader(site_template)]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    )  # fmt: skip
    environment.filters |= {"markdown": rendered, "highlighted": highlighted, "json": _json}
    environment.globals.update(root=root, has_playground=playground, marked=marked_text, excerpt=excerpt, curl=_curl)
    return {name: environment.get_template(f"{name}.html") for name in _PAGES}


def _facets(
    known: Mapping[str, Sequence[Mapping[str, Any]]], counts: Mapping[str, int], first: TemplateQuery
) -> dict[str, list[dict[str, Any]]]:
    """Return the facets of the results that begin with the page `first`: the commonest values, and those chosen.

    The `link` of a value adds it to the filters, or takes it out when it is `chosen`.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for group, (title, member) in _FACETS.items():
        current = getattr(first, member)
        chosen = current if isinstance(current, frozenset) else {current}
        counted = [(counts.get(f"{member}:{each['id']}", 0), each) for each in known.get(group, ())]
        counted.sort(key=lambda value: -value[0])
        for number, (count, each) in enumerate(counted):
            is_chosen = each["id"] in chosen
            if is_chosen or (count and number < _MOST_VALUES):
                toggled = chosen ^ {each["id"]} if chosen is current else None if is_chosen else each["id"]
                changes: dict[str, Any] = {member: toggled}
                link = _search_link(replace(first, **changes))
                value = {"name": each["name"], "count": count, "link": link, "chosen": is_chosen}
                found.setdefault(title, []).append(value)
    return found


def _search_link(wanted: TemplateQuery) -> str:
    """Return the query of a link to the page that shows these templates, "?" when it shows all."""
    return f"?{query.query_string(wanted)}"


def _with_cells(notebooks: Iterable[Notebook]) -> Iterator[tuple[Notebook, list[tuple[str, Markup]]]]:
    """Yield notebooks with their cells: the language, empty for Markdown, and HTML, in which code is highlighted."""
    left = _MOST_RENDERED
    for notebook in notebooks:
        found = []
        for cell in json.loads(notebook.cells):
            text, language = _text(cell.get("value")), _text(cell.get("language")) or "text"
            left -= len(text)
            if left < 0:
                found.append((language, Markup.escape(text)))
            elif language.lower() in ("markdown", "md"):
                found.append(("", rendered(text)))
            else:
                found.append((language, highlighted(text, language)))
        yield notebook, found


def _text(value: object) -> str:
    """Return a free-form member of a cell as text."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, indent=2)


def _curl(url: str, operation: Mapping[str, Any]) -> str:
    """Return the command that makes the request that is tried; the page's script writes it alike."""
    asked = []
    for each in operation.get("parameters", ()):
        if each["in"] == "path":
            url = url.replace(f"{{{each['name']}}}", quote(each["example"], safe=""))
        elif each.get("required") or each["name"] == "q":
            asked.append((each["name"], each["example"]))
    command = f"curl {shlex.quote(f'{url}?{urlencode(asked)}' if asked else url)}"
    if "requestBody" not in operation:
        return command
    body = _json(operation["requestBody"]["content"]["application/json"]["example"])
    return f"{command} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
