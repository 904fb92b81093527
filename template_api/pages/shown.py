"""From the library's values to what the pages show: facets with links, cells, operations of the API. Pure."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from markupsafe import Markup

from template_api import query
from template_api.pages.markup import highlighted, rendered
from template_api.records import Notebook, TemplateQuery

_MOST_VALUES: Final = 30
_MOST_RENDERED: Final = 500_000  # characters, 1.5 s of CPU
_FACETS: Final = {
    "categories": ("Category", "category_id"),
    "difficulties": ("Difficulty", "difficulty"),
    "tags": ("Tags", "tag_ids"),
    "routes": ("Route types", "route_ids"),
    "broker_versions": ("Broker versions", "broker_version_ids"),
}


@dataclass(frozen=True, slots=True)
class FacetValue:
    """One value of a facet; `link` adds it to the filters, or takes it out when it is `chosen`."""

    name: str
    count: int
    link: str
    chosen: bool


def facets(
    known: Mapping[str, Sequence[Mapping[str, Any]]], counts: Mapping[str, int], wanted: TemplateQuery
) -> dict[str, Sequence[FacetValue]]:
    """Return the facets by their titles, with links from a page that shows the results of `wanted`.

    `counts` are of these results. A facet has its commonest values, and those that are chosen: so that they can be
    taken out, even where they leave nothing.
    """
    found: dict[str, Sequence[FacetValue]] = {}
    for group, (title, member) in _FACETS.items():
        current = getattr(wanted, member)
        chosen = current if isinstance(current, frozenset) else {current}
        counted = [(counts.get(f"{member}:{each['id']}", 0), each) for each in known.get(group, ())]
        counted.sort(key=lambda value: -value[0])
        shown = []
        for number, (count, each) in enumerate(counted):
            is_chosen = each["id"] in chosen
            if is_chosen or (count and number < _MOST_VALUES):
                toggled = chosen ^ {each["id"]} if chosen is current else None if is_chosen else each["id"]
                changes: dict[str, Any] = {member: toggled}
                link = search_link(replace(first_page(wanted), **changes))
                shown.append(FacetValue(each["name"], count, link, is_chosen))
        if shown:
            found[title] = shown
    return found


def search_link(wanted: TemplateQuery) -> str:
    """Return the query of a link to the page that shows these templates, "?" when it shows all."""
    return "?" + urlencode([pair for pair in parse_qsl(query.query_string(wanted)) if pair[0] != "limit"])


def kept_fields(wanted: TemplateQuery) -> list[tuple[str, str]]:
    """Return what a search from this page keeps, as fields of its form: filters and order."""
    pairs = parse_qsl(query.query_string(replace(first_page(wanted), text="", exact=False)))
    return [pair for pair in pairs if pair[0] != "limit"]


def first_page(wanted: TemplateQuery) -> TemplateQuery:
    """Return the query of the first page of the same search."""
    return replace(wanted, offset=0, place=None)


def with_cells(notebooks: Iterable[Notebook]) -> Iterator[tuple[Notebook, list[tuple[str, Markup]]]]:
    """Yield notebooks with their cells: the language, empty for Markdown, and HTML.

    Markdown is rendered below headings of level 2, code is highlighted.
    Beyond 500,000 characters of a page cells are shown as they are, as rendering them might take minutes.
    """
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


def operations(description: Mapping[str, Any], base_url: str) -> Iterator[Mapping[str, Any]]:
    """Yield the operations of an OpenAPI description, in its order: their members, and what the page makes of them.

    These are `method` and `path`; `body`, an example of its JSON body, and `schema` of that, both empty without one;
    `curl`, the command that makes the request that is tried; `answer`, an example of it.
    """
    for path, methods in description["paths"].items():
        for method, given in methods.items():
            operation = _resolved(description, given)
            parameters = operation.get("parameters", [])
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            body = _json(content["example"]) if content else ""
            kind, answered = next(iter(operation["responses"]["200"]["content"].items()))
            answer = answered["example"]
            yield operation | {
                "method": method.upper(),
                "path": path,
                "parameters": parameters,
                "body": body,
                "schema": _json(content["schema"]) if content else "",
                "curl": _curl(f"{base_url}{path}", parameters, body),
                "answer": Markup.escape(answer) if isinstance(answer, str) else highlighted(_json(answer), kind[-4:]),
            }


def _curl(url: str, parameters: Sequence[Mapping[str, Any]], body: str) -> str:
    """Return the command that makes the request that is tried; the page's script writes it alike."""
    asked = []
    for each in parameters:
        if each["in"] == "path":
            url = url.replace(f"{{{each['name']}}}", quote(each["example"], safe=""))
        elif each.get("required") or each["name"] == "q":
            asked.append((each["name"], each["example"]))
    address = shlex.quote(f"{url}?{urlencode(asked)}" if asked else url)
    return f"curl {address}" + (f" -H 'Content-Type: application/json' -d {shlex.quote(body)}" if body else "")


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _resolved(description: Mapping[str, Any], value: Any) -> Any:
    """Return a part of the description with what its references lead to in their place."""
    if isinstance(value, list):
        return [_resolved(description, each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" not in value:
        return {name: _resolved(description, each) for name, each in value.items()}
    target: Any = description
    for name in value["$ref"].removeprefix("#/").split("/"):
        target = target[name]
    return _resolved(description, target)
