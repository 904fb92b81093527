"""From a query string or a JSON body to what is asked for: pure functions, run by the thread that serves the request.

Values are read by the rows of `parameters`, from which the schemas of `openapi.json` are made too. A cursor is the
place where a page ended, with a checksum that holds for one search only, so that it cannot be used for another one.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, wraps
from hashlib import blake2b
from importlib import resources
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode

from template_api.errors import INVALID_BODY, INVALID_PARAMETER, ApiError, did_you_mean
from template_api.parameters import MOST_OFFSET, Operation, parameters_of, shown, time_text
from template_api.records import DEFAULT_LIMIT, Place, Sort, TemplateQuery

LIST_PATH = "/api/templates"
SEARCH_PATH = "/api/search"
MAX_BODY_BYTES = 65536
ID_LISTS = ("tag_ids", "route_ids", "broker_version_ids")
_CACHED_LENGTH = 512  # longer requests are rare and parsed each time, so that the caches stay small
_CHECKSUM_BYTES: Final = 6
_MOST_SHOWN: Final = 10**9  # before the place of a cursor: more were forged
_MOST_NAMES = 20  # of ignored parameters, in a header
_LONGEST_NAME = 60
_HEADER_LENGTH = 4096  # a longer header would not pass every proxy
_Given = TypeVar("_Given", str, bytes)


class View(NamedTuple):
    """How results are shown: with `meta` beside them, with a snippet each, only some members of each."""

    meta: bool = False
    highlight: bool = False
    fields: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for: which templates, how they are shown, and what it said that has no meaning here."""

    wanted: TemplateQuery
    view: View
    ignored: tuple[str, ...] = ()


def _remembered(read: Callable[[_Given], Asked]) -> Callable[[_Given], Asked]:
    """Keep the queries that were read last: most callers ask for the same ones."""
    cached = lru_cache(maxsize=1024)(read)

    @wraps(read)
    def read_or_recall(given: _Given) -> Asked:
        return cached(given) if len(given) <= _CACHED_LENGTH else read(given)

    return read_or_recall


@_remembered
def list_query(query_string: str) -> Asked:
    """Read the query string of GET /api/templates, as WSGI hands it over (bytes as Latin-1).

    Raises:
        ApiError: a parameter breaks its rule.
    """
    given, ignored = _parameters(Operation.LIST, query_string)
    # Without q the specification applies neither the tag, nor the route, nor the version filter.
    rows = parameters_of(Operation.LIST)
    usable = {name: value for name, value in given.items() if given.get("q") or not rows[name].needs_text}
    return _asked(given.get("q", ""), usable, ignored)


@_remembered
def search_query(query_string: str) -> Asked:
    """Read the query string of GET /api/search, as WSGI hands it over (bytes as Latin-1).

    Raises:
        ApiError: `q` is missing or blank, or a parameter breaks its rule.
    """
    given, ignored = _parameters(Operation.SEARCH, query_string)
    return _asked(given["q"], given, ignored)


def page_query(query_string: str) -> TemplateQuery:
    """Read the query string of the library page: that of GET /api/templates, whose filters all work without q too.

    Raises:
        ApiError: a parameter breaks its rule.
    """
    given, _ = _parameters(Operation.LIST, query_string)
    return replace(_asked(given.get("q", ""), given, ()).wanted, limit=DEFAULT_LIMIT)


def suggest_query(query_string: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of GET /api/suggest and the names that mean nothing there; a blank `q` is an empty text.

    Raises:
        ApiError: `q` is missing or breaks its rule.
    """
    given, ignored = _parameters(Operation.SUGGEST, query_string)
    return given["q"], ignored


def unknown_names(query_string: str) -> tuple[str, ...]:
    """Return the names in the query string of a request that takes no parameter."""
    return tuple(filter(None, _pairs(query_string)))


def query_string(wanted: TemplateQuery, view: View | None = None) -> str:
    """Return the query string of GET that asks for the same templates, shown alike."""
    given: dict[str, object] = {"q": wanted.text} if wanted.text else {}
    given["limit"] = wanted.limit
    if wanted.offset <= MOST_OFFSET:
        given["offset"] = wanted.offset
    given |= {name: value for name in ("category_id", "difficulty") if (value := getattr(wanted, name))}
    given |= {name: ",".join(sorted(ids)) for name in ID_LISTS if (ids := getattr(wanted, name))}
    if wanted.exact:
        given["exact"] = "true"
    if wanted.sort is not Sort.RELEVANCE:
        given["sort"] = wanted.sort.value
    if wanted.updated_since is not None:
        given["updated_since"] = time_text(wanted.updated_since)
    if view is not None:
        given |= {name: "true" for name in ("meta", "highlight") if getattr(view, name)}
        given |= {"fields": ",".join(sorted(view.fields))} if view.fields else {}
    if wanted.place is not None:
        given["cursor"] = cursor_text(wanted)
    return urlencode(given)


@_remembered
def body_query(body: bytes) -> Asked:
    """Read the JSON body of POST /api/search.

    Raises:
        ApiError: the body is not JSON, or a member breaks its rule.
        ApiError: there is no filter of a name in `filters`.
    """
    document = _json(body)
    if not isinstance(document, dict):
        raise INVALID_BODY.error("the body must be an object")
    rows = parameters_of(Operation.POST)
    filters = document.get("filters")
    if not isinstance(filters, dict | None):
        raise INVALID_BODY.error("filters must be an object")
    known = [name for name, row in rows.items() if row.filters]
    for name in filters or ():
        if name not in known:
            near = did_you_mean(name[:_LONGEST_NAME].lower(), known) or ""
            raise INVALID_PARAMETER.error(
                f"there is no filter {shown(name)}{near}", hint=f"Filters are {', '.join(known)}."
            )
    given: dict[str, Any] = {}
    for name, row in rows.items():
        held = (filters or {}) if row.filters else document
        if name not in held and row.required:
            raise INVALID_BODY.error(f"{name} is required")
        try:
            given[name] = row.of_json(held.get(name))
        except ValueError as exc:
            raise INVALID_BODY.error(f"{'filters.' if row.filters else ''}{exc}") from None
        if not _is_unicode(given[name]):
            raise INVALID_BODY.error("the body holds a lone surrogate, which is not Unicode text")
    ignored = tuple(name for name in document if name != "filters" and (name not in rows or rows[name].filters))
    return _asked(given.pop("query"), given, ignored)


def ignored_header(names: Iterable[str]) -> str:
    """Return the value of X-Ignored-Parameters: at most twenty names and 4,096 characters, percent-encoded."""
    value = ""
    for number, name in enumerate(dict.fromkeys(name[:_LONGEST_NAME] for name in names)):
        longer = f"{value}{', ' if value else ''}{quote(name, safe='', errors='replace')}"
        if number == _MOST_NAMES or len(longer) > _HEADER_LENGTH - len(", ..."):
            return f"{value}, ..."
        value = longer
    return value


def corrected_header(corrected: Iterable[tuple[str, str]]) -> str:
    """Return the value of X-Search-Corrected: `from=to` of as many words as a header of 4,096 characters holds."""
    value = ""
    for typed, found in corrected:
        longer = f"{value}{', ' if value else ''}{quote(typed, safe='')}={quote(found, safe='')}"
        if len(longer) <= _HEADER_LENGTH:
            value = longer
    return value


def cursor_text(wanted: TemplateQuery) -> str:
    """Return the cursor that leads to the place of a query, in the search that it belongs to."""
    place = wanted.place
    assert place is not None  # noqa: S101  # of a page that is not the last one
    packed = " ".join([str(place.shown), *place.keys]).encode()
    return urlsafe_b64encode(_checksum(wanted, packed) + packed).rstrip(b"=").decode()


def _place(wanted: TemplateQuery, cursor: str) -> Place:
    """Return the place that a cursor leads to; a cursor of ours is the only text that decodes to what it encodes.

    Raises:
        ApiError: it is not a cursor of this search.
    """
    try:
        packed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))[_CHECKSUM_BYTES:]
        shown, *keys = packed.decode("ascii").split(" ")
        place = Place(int(shown), tuple(keys))
    except ValueError:
        raise _foreign_cursor() from None
    if place.shown > _MOST_SHOWN or cursor_text(replace(wanted, place=place)) != cursor:
        raise _foreign_cursor()
    return place


def _foreign_cursor() -> ApiError:
    return INVALID_PARAMETER.error(
        "cursor must be what a page of the same search named as its next one",
        hint="Leave cursor out to begin with the first page.",
    )


def _checksum(wanted: TemplateQuery, packed: bytes) -> bytes:
    """Return what ties a place to a search: to all of the query but where a page begins and ends."""
    filters = [sorted(getattr(wanted, name)) for name in ID_LISTS]
    same = (wanted.text, wanted.category_id, wanted.difficulty, filters, wanted.exact, wanted.sort.value)
    search = json.dumps([*same, wanted.updated_since]).encode()
    return blake2b(packed + search, digest_size=_CHECKSUM_BYTES, person=b"cursor").digest()


def _asked(text: str, given: Mapping[str, Any], ignored: tuple[str, ...]) -> Asked:
    """Return what a request asks for, of the values that it gave."""
    wanted = TemplateQuery(
        text=text,
        sort=Sort(given.get("sort") or Sort.RELEVANCE),
        exact=given.get("exact") or False,
        **{name: given[name] for name in ("limit", "offset", "updated_since") if given.get(name) is not None},
        **{name: given[name] for name in ("category_id", "difficulty", *ID_LISTS) if given.get(name)},
    )
    if given.get("cursor"):
        wanted = replace(wanted, place=_place(wanted, given["cursor"]))
    view = View(given.get("meta") or False, given.get("highlight") or False, given.get("fields"))
    return Asked(wanted, view, ignored)


def _parameters(operation: Operation, query_string: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the values of the known parameters, and the names of the others; of a repeated one the last counts."""
    rows = parameters_of(operation)
    pairs = _pairs(query_string)
    given: dict[str, Any] = {}
    for name, row in rows.items():
        if name in pairs:
            if not _is_unicode(pairs[name]):
                hint = "Percent-encode the UTF-8 bytes of the value."
                raise INVALID_PARAMETER.error(f"{name} is not valid UTF-8", hint=hint)
            try:
                given[name] = row.of_text(pairs[name])
            except ValueError as exc:
                raise INVALID_PARAMETER.error(str(exc)) from None
        elif row.required:
            raise INVALID_PARAMETER.error(
                f"{name} is required", hint=f"Add the search text as the query parameter {name}."
            )
    return given, tuple(name for name in pairs if name and name not in rows)


def _pairs(query_string: str) -> dict[str, str]:
    text = query_string.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
    return dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as exc:
        raise INVALID_BODY.error(f"the body is not valid UTF-8 at byte {exc.start}") from exc
    except RecursionError as exc:
        raise INVALID_BODY.error("the body is nested too deeply") from exc
    except json.JSONDecodeError as exc:
        raise INVALID_BODY.error(f"the body is not JSON: {exc.msg} at line {exc.lineno} column {exc.colno}") from exc
    except ValueError as exc:  # an integer of more than 4,300 digits
        raise INVALID_BODY.error("the body holds a number that is too long") from exc


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's parser takes and RFC 8259 section 6 does not."""
    raise INVALID_BODY.error(f"the body is not JSON: {name} is not a JSON value")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that comes twice: parsers disagree on which one counts (RFC 8259 section 4)."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise INVALID_BODY.error(f"the member {shown(name)} comes twice in one object")
        members[name] = value
    return members


def _is_unicode(value: object) -> bool:
    """Return whether a value's texts can be encoded: a lone surrogate breaks database drivers and JSON writers."""
    try:
        (value if isinstance(value, str) else "".join(value) if isinstance(value, frozenset) else "").encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def description_text() -> bytes:
    """Return the text of `openapi.json` as it is packaged."""
    return resources.files(__package__).joinpath("openapi.json").read_bytes()


@cache
def description() -> dict[str, Any]:
    """Return the parsed description; callers must not change it."""
    return cast("dict[str, Any]", json.loads(description_text()))
