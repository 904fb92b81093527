"""From a query string or a JSON body, read by the schema of `parameters`, to what is asked for. Pure.

What breaks the schema raises `ApiError`. A cursor is the place where a page ended, with a checksum that holds for one
search only, so that it cannot be used for another one. Query strings are as WSGI hands them over (bytes as Latin-1).
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from template_api.errors import ApiError, ErrorCode, did_you_mean
from template_api.parameters import (
    MOST_OFFSET,
    Filters,
    ListParameters,
    Parameters,
    SearchBody,
    SearchParameters,
    SuggestParameters,
)
from template_api.records import DEFAULT_LIMIT, Place, Sort, TemplateQuery, Word

LIST_PATH = "/api/templates"
SEARCH_PATH = "/api/search"
ID_LISTS = ("tag_ids", "route_ids", "broker_version_ids")
_CHECKSUM_BYTES: Final = 6
_MOST_SHOWN: Final = 10**9  # before the place of a cursor: more were forged
_MOST_LISTED: Final = 20  # in a header
_LONGEST_NAME: Final = 60
HEADER_LENGTH: Final = 4096  # a longer header would not pass every proxy
_BLANKS: Final = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_FLAGS: Final = {"true": True, "false": False}
_PATH: Final = re.compile(r"(?:field `(?P<missing>\w+)`.*|.* - at `\$\.(?P<path>[\w.]+).*)", re.DOTALL)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999, in microseconds since 1970."""
_Request = TypeVar("_Request", bound=msgspec.Struct)


class View(NamedTuple):
    """How results are shown: with `meta` beside them, with a snippet each, only some members of each."""

    meta: bool = False
    highlight: bool = False
    fields: frozenset[str] | None = None


class Asked(NamedTuple):
    """What a request asks for: which templates, how they are shown, and what it named that has no meaning here."""

    wanted: TemplateQuery
    view: View
    ignored: Sequence[str]


def list_query(query_string: str) -> Asked:
    """Read the query string of GET /api/templates."""
    given, ignored = _parameters(ListParameters, query_string)
    if not given.q.strip(_BLANKS):
        # Without q the specification applies neither the tag, nor the route, nor the version filter.
        given = msgspec.structs.replace(given, **dict.fromkeys(ID_LISTS))
    return _asked(given.q, given, given, ignored)


def search_query(query_string: str) -> Asked:
    """Read the query string of GET /api/search."""
    given, ignored = _parameters(SearchParameters, query_string)
    return _asked(given.q, given, given, ignored)


def page_query(query_string: str) -> TemplateQuery:
    """Read the query string of the library page: that of GET /api/templates, whose filters all work without q too."""
    given, _ = _parameters(ListParameters, query_string)
    return replace(_asked(given.q, given, given, ()).wanted, limit=DEFAULT_LIMIT)


def suggest_query(query_string: str) -> tuple[str, tuple[str, ...]]:
    """Return the text of GET /api/suggest and the names that mean nothing there; a blank `q` is an empty text."""
    given, ignored = _parameters(SuggestParameters, query_string)
    return given.q.strip(_BLANKS), ignored


def unknown_names(query_string: str) -> tuple[str, ...]:
    """Return the names in the query string of a request that takes no parameter."""
    return tuple(filter(None, _pairs(query_string)))


def query_string(wanted: TemplateQuery, view: View = View()) -> str:  # noqa: B008  # immutable
    """Return the query string of GET that asks for the same templates, shown alike."""
    lists = {name: ",".join(sorted(getattr(wanted, name))) for name in ID_LISTS}
    since = "" if wanted.updated_since is None else (_EPOCH + timedelta(microseconds=wanted.updated_since)).isoformat()
    given = {
        "q": wanted.text,
        "limit": wanted.limit,
        "offset": wanted.offset if wanted.offset <= MOST_OFFSET else 0,
        "category_id": wanted.category_id,
        "difficulty": wanted.difficulty,
        **lists,
        "exact": wanted.exact,
        "sort": wanted.sort if wanted.sort is not Sort.RELEVANCE else None,
        "updated_since": since.replace("+00:00", "Z"),
        "meta": view.meta,
        "highlight": view.highlight,
        "fields": ",".join(sorted(view.fields or ())),
        "cursor": wanted.place and cursor_text(wanted),
    }
    return urlencode({name: "true" if value is True else value for name, value in given.items() if value})


def body_query(body: bytes) -> Asked:
    """Read the body of POST /api/search."""
    try:
        document = msgspec.json.decode(body)
    except RecursionError as exc:
        raise ApiError(ErrorCode.INVALID_BODY, "the body is nested too deeply") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ApiError(ErrorCode.INVALID_BODY, f"the body is not JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise ApiError(ErrorCode.INVALID_BODY, "the body must be an object")
    filters = document.get("filters")
    known = Filters.__struct_fields__
    for name in filters if isinstance(filters, dict) else ():
        if name not in known:
            message = f"there is no filter {_shown(name)}{did_you_mean(name[:_LONGEST_NAME].lower(), known) or ''}"
            raise ApiError(ErrorCode.INVALID_PARAMETER, message, hint=f"Filters are {', '.join(known)}.")
    whole: dict[str, Any] = {}
    for name, value in document.items():
        is_whole = isinstance(value, float) and value.is_integer()  # 1.0 is an integer of JSON Schema
        whole[name] = int(value) if is_whole else value
    if isinstance(whole.get("fields"), str):
        whole["fields"] = _listed(whole["fields"])
    given = _read(SearchBody, whole, ErrorCode.INVALID_BODY)
    ignored = tuple(name for name in document if name not in SearchBody.__struct_fields__)
    return _asked(given.query, given, given.filters or Filters(), ignored)


def header_list(items: Iterable[str]) -> str:
    """Return the value of a header that lists items: twenty and 4,096 characters at most."""
    value = ""
    for number, item in enumerate(items):
        longer = f"{value}, {item}" if value else item
        if number == _MOST_LISTED or len(longer) > HEADER_LENGTH - len(", ..."):
            return f"{value}, ..."
        value = longer
    return value


def result_headers(ignored: Sequence[str], corrected: Sequence[Word] = ()) -> dict[str, str]:
    """Return the headers that name parameters without effect, and changed words, where there are any."""
    names = dict.fromkeys(name[:_LONGEST_NAME] for name in ignored)
    headers = {
        "X-Ignored-Parameters": header_list(quote(name, safe="", errors="replace") for name in names),
        "X-Search-Corrected": header_list(
            f"{quote(word.typed, safe='')}={quote(word.found, safe='')}" for word in corrected
        ),
    }
    return {name: value for name, value in headers.items() if value}


def cursor_text(wanted: TemplateQuery) -> str:
    """Return the cursor that leads to the place of a query, in the search that it belongs to."""
    place = wanted.place
    assert place is not None  # noqa: S101  # of a page that is not the last one
    packed = " ".join([str(place.shown), *place.keys]).encode()
    search = query_string(replace(wanted, limit=DEFAULT_LIMIT, offset=0, place=None)).encode()
    checksum = blake2b(packed + search, digest_size=_CHECKSUM_BYTES, person=b"cursor").digest()
    return urlsafe_b64encode(checksum + packed).rstrip(b"=").decode()


def _place(wanted: TemplateQuery, cursor: str) -> Place:
    """Return the place that a cursor leads to; a cursor of ours is the only text that decodes to what it encodes."""
    try:
        packed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))[_CHECKSUM_BYTES:].decode("ascii")
        shown, *keys = packed.split(" ")
        place = Place(int(shown), tuple(keys))
        if place.shown <= _MOST_SHOWN and packed.isprintable() and cursor_text(replace(wanted, place=place)) == cursor:
            return place
    except ValueError:
        pass
    raise ApiError(
        ErrorCode.INVALID_PARAMETER,
        "cursor must be what a page of the same search named as its next one",
        hint="Leave cursor out to begin with the first page.",
    )


def _asked(
    text: str, options: Parameters | SearchBody, filters: Parameters | Filters, ignored: tuple[str, ...]
) -> Asked:
    """Return what a request asks for; null is as good as left out, and so is a blank category."""
    since = None if options.updated_since is None else _microseconds(options.updated_since)
    wanted = TemplateQuery(
        text=text.strip(_BLANKS),
        limit=options.limit or DEFAULT_LIMIT,
        offset=options.offset or 0,
        category_id=str(filters.category_id or "").strip().lower() or None,
        difficulty=filters.difficulty,
        tag_ids=_ids(filters.tag_ids),
        route_ids=_ids(filters.route_ids),
        broker_version_ids=_ids(filters.broker_version_ids),
        exact=options.exact or False,
        sort=options.sort or Sort.RELEVANCE,
        updated_since=since,
    )
    if options.cursor:
        wanted = replace(wanted, place=_place(wanted, options.cursor))
    fields: Any = options.fields  # type: ignore[union-attr]  # both requests with options have it
    view = View(options.meta or False, options.highlight or False, None if fields is None else frozenset(fields))
    return Asked(wanted, view, ignored)


def _ids(items: Iterable[str] | None) -> frozenset[str]:
    """Return ids in lower case; blank ones are left out."""
    return frozenset(item.strip().lower() for item in items or () if item.strip())


def _parameters(schema: type[_Request], query_string: str) -> tuple[_Request, tuple[str, ...]]:
    """Return the known parameters, and the names of the others; of a repeated one the last counts."""
    given: dict[str, Any] = {}
    pairs = _pairs(query_string)
    for name, rule in _members(schema).items():
        if name not in pairs:
            continue
        text, kind = pairs[name], rule.get("anyOf", [rule])[0].get("type")
        given[name] = text
        try:
            text.encode()  # a lone surrogate, made of bytes that are not UTF-8, breaks databases and JSON writers
        except UnicodeEncodeError:
            hint = "Percent-encode the UTF-8 bytes of the value."
            raise ApiError(ErrorCode.INVALID_PARAMETER, f"{name} is not valid UTF-8", hint=hint) from None
        # "Plain digits" are ASCII ones, without sign, spaces or underscores, which int() would take.
        if kind == "integer" and text.isascii() and text.isdigit():
            given[name] = int(text[:9])
        elif kind == "boolean":
            given[name] = _FLAGS.get(text, text)
        elif kind == "array":
            given[name] = _listed(text)
    ignored = tuple(name for name in pairs if name and name not in schema.__struct_fields__)
    return _read(schema, given, ErrorCode.INVALID_PARAMETER), ignored


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _read(schema: type[_Request], given: Mapping[str, Any], code: ErrorCode) -> _Request:
    """Return a request that keeps its schema; else raise an error that says what is wrong, and what is allowed."""
    try:
        return msgspec.convert(given, schema)
    except msgspec.ValidationError as exc:
        found = _PATH.search(str(exc))
        if found is None or found["missing"]:
            name = "" if found is None else found["missing"]
            raise ApiError(code, f"{name} is required", hint=f"Add the search text as {name}.") from None
        path = found["path"]
    value: Any = given
    for part in path.split("."):
        value, allowed = value[part], _members(schema)[part]["title"]
    wrong = next((each for each in value if str(each) not in allowed), None) if isinstance(value, list) else value
    ending = ""
    if isinstance(wrong, str):
        _, of, words = allowed.partition(" of ")
        names = re.findall(r"\w+", words) if of and not allowed.startswith("text") else []
        ending = f", not {_shown(wrong)}{did_you_mean(wrong[:_LONGEST_NAME].lower(), names) or ''}"
    elif isinstance(wrong, int | float):
        ending = f", not {json.dumps(wrong)}"
    raise ApiError(code, f"{path} must be {allowed}{ending}")


@cache
def _members(schema: type[msgspec.Struct]) -> Mapping[str, Mapping[str, Any]]:
    """Return the JSON Schema of each member, those of `filters` among them; its title says what it must be."""
    _, components = msgspec.json.schema_components([schema])
    filters = components.get("Filters", {"properties": {}})
    return {**components[schema.__name__]["properties"], **filters["properties"]}


def _pairs(query_string: str) -> dict[str, str]:
    text = query_string.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
    return dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))


def _shown(value: str) -> str:
    """Return a value as messages show it: quoted, escaped, of at most 60 characters."""
    return json.dumps(value if len(value) <= _LONGEST_NAME else value[:_LONGEST_NAME] + "…")


def _microseconds(text: str) -> int:
    """Return a time as microseconds since 1970.

    A blank before the zone is a plus sign: that is what it becomes in a query string that does not encode it.
    """
    try:
        moment = datetime.fromisoformat(re.sub(r" (?=\d\d:\d\d$)", "+", text.upper()) if len(text) > 16 else text)
    except ValueError:
        rule = _members(ListParameters)["updated_since"]["title"]
        raise ApiError(ErrorCode.INVALID_PARAMETER, f"updated_since must be {rule}, not {_shown(text)}") from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return min(max(since // timedelta(microseconds=1), _YEARS[0]), _YEARS[1])


@cache
def description() -> dict[str, Any]:
    """Return the description of the API that is packaged; callers must not change it."""
    text = resources.files(__package__).joinpath("openapi.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])
