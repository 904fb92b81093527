"""From a query string or a JSON body to a `TemplateQuery`: pure functions, run by the thread that serves the request.

Requests are validated against the schemas of the packaged `openapi.json`: what the description promises and what
requests are checked against is one text, so the two cannot drift apart.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache, wraps
from importlib import resources
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import parse_qsl, urlencode

from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.protocols import Validator

from template_api.errors import InvalidBodyError, InvalidParameterError
from template_api.records import DEFAULT_LIMIT, TemplateQuery

LIST_PATH = "/api/templates"
SEARCH_PATH = "/api/search"
SUGGEST_PATH = "/api/suggest"
MOST_OFFSET = 10_000
MAX_BODY_BYTES = 65536
ID_LISTS = ("tag_ids", "route_ids", "broker_version_ids")
_CACHED_LENGTH = 512  # longer requests are rare and parsed each time, so that the caches stay small
# What is blank, as the pattern of q in `openapi.json` has it: engines disagree on what \s means.
_BLANKS = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_DIGITS = re.compile(r"[0-9]{1,9}")
_SHOWN_LENGTH = 60
_TYPES = {"string": "text", "array": "a list of texts", "object": "an object", "null": "null"}
_Given = TypeVar("_Given", str, bytes)


def _remembered(read: Callable[[_Given], TemplateQuery]) -> Callable[[_Given], TemplateQuery]:
    """Keep the queries that were read last: most callers ask for the same ones."""
    cached = lru_cache(maxsize=1024)(read)

    @wraps(read)
    def read_or_recall(given: _Given) -> TemplateQuery:
        return cached(given) if len(given) <= _CACHED_LENGTH else read(given)

    return read_or_recall


@_remembered
def list_query(query_string: str) -> TemplateQuery:
    """Read the query string of GET /api/templates, as WSGI hands it over (bytes as Latin-1).

    Raises:
        InvalidParameterError: a parameter breaks its rule.
    """
    given = _parameters(LIST_PATH, query_string)
    return _get_query(given.get("q", "").strip(_BLANKS), given)


@_remembered
def search_query(query_string: str) -> TemplateQuery:
    """Read the query string of GET /api/search, as WSGI hands it over (bytes as Latin-1).

    Raises:
        InvalidParameterError: `q` is missing or blank, or a parameter breaks its rule.
    """
    given = _parameters(SEARCH_PATH, query_string)
    return _get_query(_required_text(given), given)


def page_query(query_string: str) -> TemplateQuery:
    """Read the query string of the library page: that of GET /api/templates, whose filters all work without q too.

    Raises:
        InvalidParameterError: a parameter breaks its rule.
    """
    given = _parameters(LIST_PATH, query_string)
    return replace(_get_query(given.get("q", "").strip(_BLANKS), given, filtered=True), limit=DEFAULT_LIMIT)


def suggest_text(query_string: str) -> str:
    """Read the query string of GET /api/suggest, as WSGI hands it over; a blank `q` is an empty text.

    Raises:
        InvalidParameterError: `q` is missing or breaks its rule.
    """
    return _required_text(_parameters(SUGGEST_PATH, query_string))


def query_string(wanted: TemplateQuery) -> str:
    """Return the query string of GET that asks for the same templates."""
    given: dict[str, object] = {"q": wanted.text} if wanted.text else {}
    given |= {"limit": wanted.limit, "offset": wanted.offset}
    given |= {name: value for name in ("category_id", "difficulty") if (value := getattr(wanted, name))}
    given |= {name: ",".join(sorted(ids)) for name in ID_LISTS if (ids := getattr(wanted, name))}
    return urlencode(given)


@_remembered
def body_query(body: bytes) -> TemplateQuery:
    """Read the JSON body of POST /api/search.

    Raises:
        InvalidBodyError: the body is not JSON, or a member breaks its rule.
    """
    document = _json(body)
    for error in body_validator(SEARCH_PATH).iter_errors(document):
        where = ".".join(map(str, error.absolute_path)) or "the body"
        is_missing = error.validator == "required"
        raise InvalidBodyError("query is required" if is_missing else f"{where} must be {_allowed(error.schema)}")
    text = document["query"].strip(_BLANKS)
    filters = document.get("filters") or {}
    ids = {name: _ids(filters.get(name) or ()) for name in ID_LISTS}
    if not _is_unicode("".join([text, filters.get("category_id") or "", *itertools.chain(*ids.values())])):
        raise InvalidBodyError("the body holds a lone surrogate, which is not Unicode text")
    return TemplateQuery(
        text=text,
        limit=int(document.get("limit") or DEFAULT_LIMIT),
        offset=int(document.get("offset") or 0),
        # Decision: a blank category_id does not filter, like the blank items of the id lists.
        category_id=(filters.get("category_id") or "").strip().lower() or None,
        difficulty=filters.get("difficulty"),
        **ids,
    )


def _required_text(given: Mapping[str, str]) -> str:
    if "q" not in given:
        raise InvalidParameterError("q is required", "Add the search text as the query parameter q.")
    return given["q"].strip(_BLANKS)


def _get_query(text: str, given: Mapping[str, str], *, filtered: bool = False) -> TemplateQuery:
    # Without q the specification applies neither the tag, nor the route, nor the version filter.
    filters = {name: _ids(given.get(name, "").split(",")) for name in ID_LISTS} if text or filtered else {}
    category_id = given.get("category_id")
    return TemplateQuery(
        text=text,
        limit=int(given.get("limit", DEFAULT_LIMIT)),
        offset=int(given.get("offset", 0)),
        category_id=category_id and category_id.lower(),
        difficulty=given.get("difficulty"),
        **filters,
    )


def _parameters(path: str, query_string: str) -> dict[str, str]:
    """Return the checked values of the known parameters; of a repeated one the last counts."""
    validators = parameter_validators(path)
    text = query_string.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
    pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
    given = {name: value for name, value in pairs if name in validators}
    for name, value in given.items():
        if not _is_unicode(value):
            raise InvalidParameterError(f"{name} is not valid UTF-8", "Percent-encode the UTF-8 bytes of the value.")
        schema: Any = validators[name].schema
        typed: Any = value
        if schema["type"] == "integer":
            # Decision: "plain digits" are ASCII ones, without sign, spaces or underscores, which int() would take.
            typed = int(value) if _DIGITS.fullmatch(value) else None
        if not validators[name].is_valid(typed):
            raise InvalidParameterError(f"{name} must be {_allowed(schema)}, not {_shown(value)}")
    return given


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as exc:
        raise InvalidBodyError(f"the body is not valid UTF-8 at byte {exc.start}") from exc
    except RecursionError as exc:
        raise InvalidBodyError("the body is nested too deeply") from exc
    except json.JSONDecodeError as exc:
        raise InvalidBodyError(f"the body is not JSON: {exc.msg} at line {exc.lineno} column {exc.colno}") from exc
    except ValueError as exc:  # an integer of more than 4,300 digits
        raise InvalidBodyError("the body holds a number that is too long") from exc


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's parser takes and RFC 8259 section 6 does not."""
    raise InvalidBodyError(f"the body is not JSON: {name} is not a JSON value")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that comes twice: parsers disagree on which one counts (RFC 8259 section 4)."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidBodyError(f"the member {_shown(twice)} comes twice in one object")
    return members


def _allowed(schema: Any) -> str:
    """Return in words what a schema of `openapi.json` allows."""
    if "enum" in schema:
        return "one of " + ", ".join(each for each in schema["enum"] if each is not None)
    if schema.get("format") == "uuid":
        return "a UUID"
    if "minimum" in schema:
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    if "maxLength" in schema:
        blank = "not blank and " if "pattern" in schema else ""
        return f"text, {blank}of at most {schema['maxLength']} characters"
    types = schema["type"]
    return " or ".join(_TYPES[each] for each in ([types] if isinstance(types, str) else types))


def _shown(value: str) -> str:
    return json.dumps(value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH] + "…")


def _ids(items: Iterable[str]) -> frozenset[str]:
    return frozenset(item.strip().lower() for item in items if item.strip())


def _is_unicode(text: str) -> bool:
    """Return whether the text can be encoded: a lone surrogate breaks database drivers and JSON writers."""
    try:
        text.encode()
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


@cache
def parameter_validators(path: str) -> dict[str, Validator]:
    """Return the validator of each query parameter of GET `path`, by name; its `schema` is what it checks."""
    parameters = description()["paths"][path]["get"]["parameters"]
    return {each["name"]: Draft202012Validator(each["schema"]) for each in parameters if each["in"] == "query"}


@cache
def body_validator(path: str) -> Validator:
    """Return the validator of the JSON body of POST `path`; its schema must not hold references."""
    content = description()["paths"][path]["post"]["requestBody"]["content"]
    return cast("Validator", _BodyValidator(content["application/json"]["schema"]))


def _items(validator: Validator, items: Any, instance: Any, _schema: object) -> Iterator[ValidationError]:
    """Check the items of a list as `items` of JSON Schema does; jsonschema takes 9 us for a text, this one 0.1 us."""
    if isinstance(instance, list):
        for index, item in enumerate(instance):
            if items != _TEXT or not isinstance(item, str):
                yield from validator.descend(item, items, path=index)  # type: ignore[attr-defined]  # not in the protocol


_TEXT = {"type": "string"}
_BodyValidator = validators.extend(Draft202012Validator, {"items": _items})  # type: ignore[no-untyped-call]
