"""From the library's values to what the pages show: facets with links, cells, the description of the API. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup

from template_api import query
from template_api.pages.markup import highlighted, rendered
from template_api.records import Notebook, TemplateQuery

_MOST_VALUES: Final = 30
_MOST_RENDERED: Final = 500_000  # characters, 1.5 s of CPU
_SINGLE: Final = {"categories": ("Category", "category_id"), "difficulties": ("Difficulty", "difficulty")}
_SEVERAL: Final = {
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


@dataclass(frozen=True, slots=True)
class Facet:
    """What templates are classified by: its commonest values, and those that are chosen."""

    title: str
    values: Sequence[FacetValue]


def facets(
    known: Mapping[str, Sequence[Mapping[str, Any]]], counts: Mapping[str, int], wanted: TemplateQuery
) -> list[Facet]:
    """Return the facets with links from a page that shows the results of `wanted`; `counts` are of these results.

    Decision: a value that would leave nothing is not offered; one that is chosen is, so that it can be taken out.
    """
    found: list[Facet] = []
    for group, (title, member) in {**_SINGLE, **_SEVERAL}.items():
        values = [
            _value(each, counts.get(f"{member}:{each['id']}", 0), member, wanted) for each in known.get(group, ())
        ]
        values = sorted((value for value in values if value.count or value.chosen), key=lambda value: -value.count)
        shown = [value for number, value in enumerate(values) if number < _MOST_VALUES or value.chosen]
        if shown:
            found.append(Facet(title, shown))
    return found


def _value(given: Mapping[str, Any], count: int, member: str, wanted: TemplateQuery) -> FacetValue:
    current, id_ = getattr(wanted, member), given["id"]
    chosen = id_ in current if isinstance(current, frozenset) else id_ == current
    toggled = current ^ {id_} if isinstance(current, frozenset) else None if chosen else id_
    changes: dict[str, Any] = {member: toggled}
    return FacetValue(given["name"], count, search_link(replace(first_page(wanted), **changes)), chosen)


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
    Decision: beyond 500,000 characters of a page cells are shown as they are, as rendering them might take minutes.
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
