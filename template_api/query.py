"""Reads what a request asks for from its query string or JSON body, by the schemas of `openapi.json`. Pure.

A value that its schema refuses raises `ApiError`, whose message has the schema's `x-allowed`: what the value must be. A
cursor has the place where a page ended, and a checksum of its search, so that another search refuses it. Query strings
are as WSGI passes them: bytes as Latin-1.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from jsonschema import Draft202012Validator, FormatChecker

from template_api.errors import ApiError, ErrorCode, did_you_mean
from template_api.records import DEFAULT_LIMIT, Place, Sort, TemplateQuery, Word

LIST_PATH = "/api/templates"
SEARCH_PATH = "/api/search"
_ID_LISTS: Final = ("tag_ids", "route_ids", "broker_version_ids")
_MOST_OFFSET: Final = 10_000  # beyond it a link has a cursor, but no offset
_CHECKSUM_BYTES: Final = 6
_MOST_SHOWN: Final = 10**9  # templates before the place of a cursor; a cursor with more is forged
_MOST_LISTED: Final = 20  # in a header
_LONGEST_NAME: Final = 60
HEADER_LENGTH: Final = 4096  # a longer header would not pass every proxy
_BLANKS: Final = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_FLAGS: Final = {"true": True, "false": False}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999, in microseconds since 1970."""


class ApiRequest(NamedTuple):
    """What a request asks for: templates, and how they are shown. `ignored` are parameters without a meaning here.

    `meta` shows totals and facets beside the results, `highlight` a snippet in each, `fields` only these members.
    """

    query: TemplateQuery
    ignored: Sequence[str] = ()
    meta: bool = False
    highlight: bool = False
    fields: frozenset[str] | None = None


def search_query(path: str, query_string: str) -> ApiRequest:
    """Read the query string of a GET that takes a text; the library's page has the parameters of the list."""
    given, ignored = _parameters(LIST_PATH if path == "/" else path, query_string)
    if path == LIST_PATH and not given.get("q", "").strip(_BLANKS):
        # Without q the specification applies neither the tag, nor the route, nor the version filter.
        ignored = (*ignored, *(name for name in _ID_LISTS if given.get(name)))
        given |= dict.fromkeys(_ID_LISTS)
    return _request(given.get("q", ""), given, given, ignored)


def body_query(body: bytes) -> ApiRequest:
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
    if isinstance(document.get("fields"), str):
        document["fields"] = _items(document["fields"])
    _check("post", SEARCH_PATH, document)
    ignored = tuple(name for name in document if name not in _schema("post", SEARCH_PATH)["properties"])
    return _request(document["query"], document, filters or {}, ignored)


def unknown_names(query_string: str) -> tuple[str, ...]:
    """Return the names in the query string of a request that takes no parameter."""
    return tuple(filter(None, _pairs(query_string)))


def _parameters(path: str, query_string: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the known parameters, and the names of the others. If one is repeated, the last value counts."""
    pairs, given = _pairs(query_string), dict[str, Any]()
    known = _schema("get", path)["properties"]
    for name in [name for name in known if name in pairs]:
        given[name] = text = pairs[name]
        try:
            text.encode()  # fails for a lone surrogate, which `_pairs` makes of a byte that is not UTF-8
        except UnicodeEncodeError:
            hint = "Percent-encode the UTF-8 bytes of the value."
            raise ApiError(ErrorCode.INVALID_PARAMETER, f"{name} is not valid UTF-8", hint=hint) from None
        kind = known[name].get("type")
        # ASCII digits alone: int() would also take a sign, spaces and underscores.
        if kind == "integer" and text.isascii() and text.isdigit():
            given[name] = int(text[:9])
        elif kind == "boolean":
            given[name] = _FLAGS.get(text, text)
    _check("get", path, given)
    return given, tuple(name for name in pairs if name and name not in known)


def _pairs(query_string: str) -> dict[str, str]:
    text = query_string.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
    return dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))


def _request(text: str, options: Mapping[str, Any], filters: Mapping[str, Any], ignored: tuple[str, ...]) -> ApiRequest:
    """Return what a request asks for. Null means the default, and a blank category means none."""
    since, fields = options.get("updated_since"), options.get("fields")
    ids: dict[str, Any] = {name: frozenset(map(str.lower, _items(filters.get(name) or ()))) for name in _ID_LISTS}
    query = TemplateQuery(
        text=text.strip(_BLANKS),
        limit=int(options.get("limit") or DEFAULT_LIMIT),
        offset=int(options.get("offset") or 0),
        category_id=(filters.get("category_id") or "").strip().lower() or None,
        difficulty=filters.get("difficulty"),
        **ids,
        exact=bool(options.get("exact")),
        sort=Sort(options.get("sort") or Sort.RELEVANCE),
        updated_since=since and min(max((_moment(since) - _EPOCH) // _MICROSECOND, _YEARS[0]), _YEARS[1]),
    )
    if options.get("cursor"):
        query = replace(query, place=_place(query, options["cursor"]))
    chosen = None if fields is None else frozenset(_items(fields))
    return ApiRequest(query, ignored, bool(options.get("meta")), bool(options.get("highlight")), chosen)


def _place(query: TemplateQuery, cursor: str) -> Place:
    """Return the place in a cursor; raise `ApiError` unless `cursor_text` makes the same cursor of the place."""
    try:
        packed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))[_CHECKSUM_BYTES:].decode("ascii")
        shown, *keys = packed.split(" ")
        place = Place(int(shown), tuple(keys))
        if place.shown <= _MOST_SHOWN and packed.isprintable() and cursor_text(replace(query, place=place)) == cursor:
            return place
    except ValueError:
        pass
    raise ApiError(
        ErrorCode.INVALID_PARAMETER,
        "cursor must be what a page of the same search named as its next one",
        hint="Leave cursor out to begin with the first page.",
    )


def _items(given: str | Sequence[str]) -> list[str]:
    """Return the items of a list, or of a text with commas between them, without blank items."""
    items = given.split(",") if isinstance(given, str) else given
    return [item.strip() for item in items if item.strip()]


def _moment(text: str) -> datetime:
    """Return a time. A blank before its zone is the `+` of a query string that did not encode it."""
    moment = datetime.fromisoformat(re.sub(r" (?=\d\d:\d\d$)", "+", text.upper()) if len(text) > 16 else text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _check(method: str, path: str, given: Mapping[str, Any]) -> None:
    """Raise `ApiError` for the first member that its schema refuses; the message says what is allowed."""
    fault = next(_validator(method, path).iter_errors(given), None)
    if fault is None:
        return
    code = ErrorCode.INVALID_BODY if method == "post" else ErrorCode.INVALID_PARAMETER
    while fault.context:  # the schema is "null or X": report what X refuses
        fault = fault.context[0]
    wrong, members = fault.instance, fault.schema.get("properties", {})
    if fault.validator == "required":
        [name] = fault.schema["required"]
        raise ApiError(code, f"{name} is required", hint=f"Add the search text as {name}.")
    if fault.validator == "additionalProperties":
        name = next(each for each in wrong if each not in members)
        message = f"there is no filter {_quoted(name)}{did_you_mean(name[:_LONGEST_NAME].lower(), members) or ''}"
        raise ApiError(ErrorCode.INVALID_PARAMETER, message, hint=f"Filters are {', '.join(members)}.")
    where = [part for part in fault.absolute_path if isinstance(part, str)]
    rule = _schema(method, path)
    for name in where:
        rule = rule.get("oneOf", [rule])[0]["properties"][name]
    raise ApiError(code, f"{'.'.join(where)} must be {rule['x-allowed']}{_not_given(wrong, rule['x-allowed'])}")


def _not_given(wrong: Any, allowed: str) -> str:
    """Return the end of a message: the wrong value, of a list its first wrong item, and a word like it."""
    words = re.findall(r"\w+", allowed.partition(" of ")[2]) if re.match("one of|some of", allowed) else []
    if isinstance(wrong, str):
        wrong = next((each for each in _items(wrong) if words and each not in words), wrong)
        return f", not {_quoted(wrong)}{did_you_mean(wrong[:_LONGEST_NAME].lower(), words) or ''}"
    return f", not {json.dumps(wrong)}" if isinstance(wrong, int | float) else ""


def _quoted(value: str) -> str:
    """Return a value for a message: quoted, escaped, at most 60 characters."""
    return json.dumps(value if len(value) <= _LONGEST_NAME else value[:_LONGEST_NAME] + "…")


def query_string(query: TemplateQuery, request: ApiRequest | None = None) -> str:
    """Return the query string of GET for these templates, shown as `request` asks."""
    since = "" if query.updated_since is None else (_EPOCH + query.updated_since * _MICROSECOND).isoformat()
    given = {
        "q": query.text,
        "limit": query.limit if query.limit != DEFAULT_LIMIT else None,
        "offset": query.offset if query.offset <= _MOST_OFFSET else 0,
        "category_id": query.category_id,
        "difficulty": query.difficulty,
        **{name: ",".join(sorted(getattr(query, name))) for name in _ID_LISTS},
        "exact": query.exact,
        "sort": query.sort if query.sort is not Sort.RELEVANCE else None,
        "updated_since": since.replace("+00:00", "Z"),
        "meta": request and request.meta,
        "highlight": request and request.highlight,
        "fields": request and ",".join(sorted(request.fields or ())),
        "cursor": query.place and cursor_text(query),
    }
    return urlencode({name: "true" if value is True else value for name, value in given.items() if value})


def cursor_text(query: TemplateQuery) -> str:
    """Return the cursor for the place of a query: the base64 of a checksum and the place."""
    place = query.place
    assert place is not None  # noqa: S101  # of a page that is not the last one
    packed = " ".join([str(place.shown), *place.keys]).encode()
    search = query_string(replace(query, limit=DEFAULT_LIMIT, offset=0, place=None)).encode()
    checksum = blake2b(packed + search, digest_size=_CHECKSUM_BYTES, person=b"cursor").digest()
    return urlsafe_b64encode(checksum + packed).rstrip(b"=").decode()


def result_headers(ignored: Sequence[str], corrected: Sequence[Word] = ()) -> dict[str, str]:
    """Return the headers that name ignored parameters and corrected words, each only if there are any.

    A header lists at most twenty, in at most 4,096 characters.
    """
    names = dict.fromkeys(quote(name[:_LONGEST_NAME], safe="", errors="replace") for name in ignored)
    changed = [f"{quote(word.typed, safe='')}={quote(word.found, safe='')}" for word in corrected]
    headers = {}
    for header, items in (("X-Ignored-Parameters", list(names)), ("X-Search-Corrected", changed)):
        listed = ", ".join(items[:_MOST_LISTED])
        if len(items) > _MOST_LISTED or len(listed) > HEADER_LENGTH - len(", ..."):
            listed = f"{listed[: HEADER_LENGTH - len(', ...')].rpartition(', ')[0]}, ..."
        if items:
            headers[header] = listed
    return headers


@cache
def description() -> dict[str, Any]:
    """Return the OpenAPI description of the API; callers must not change it."""
    text = resources.files(__package__).joinpath("openapi.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])


def resolved(value: Any) -> Any:
    """Return a part of the description, with each reference replaced by what it refers to."""
    if isinstance(value, list):
        return [resolved(each) for each in value]
    if not isinstance(value, dict):
        return value
    members = {name: resolved(each) for name, each in value.items() if name != "$ref"}
    if "$ref" not in value:
        return members
    target: Any = description()
    for name in value["$ref"].removeprefix("#/").split("/"):
        target = target[name]
    return resolved(target) | members


@cache
def _schema(method: str, path: str) -> dict[str, Any]:
    """Return the schema of the body of POST, or of the query parameters of GET."""
    operation = resolved(description()["paths"][path][method])
    if method == "post":
        body: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
        return body
    known = {each["name"]: each for each in operation["parameters"] if each["in"] == "query"}
    return {
        "properties": {name: each["schema"] for name, each in known.items()},
        "required": [name for name, each in known.items() if each["required"]],
    }


@cache
def _validator(method: str, path: str) -> Draft202012Validator:
    formats = FormatChecker(["uuid"])
    formats.checks("date-time", ValueError)(lambda given: not isinstance(given, str) or bool(_moment(given)))
    return Draft202012Validator(_schema(method, path), format_checker=formats)
