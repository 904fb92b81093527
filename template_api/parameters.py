"""The parameters of lists and searches, one row each: GET, POST, `openapi.json` and the README's table come from here.

Pure; any thread may call it. A value comes as text in a query string and as JSON in the body of POST. Both are read
here, by the kind of the row, into the value that `query` puts into a `TemplateQuery`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, Final, NoReturn

from template_api.errors import did_you_mean
from template_api.records import DEFAULT_LIMIT, Difficulty, Sort

MOST_OFFSET: Final = 10_000
LONGEST_CURSOR: Final = 2000
# What is blank, as the pattern of q has it: engines disagree on what \s means.
BLANKS: Final = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_NOT_BLANK: Final = "[^\\t\\n\\v\\f\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"
_UUID: Final = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:\d\d)?)?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_SHOWN_LENGTH: Final = 60
_FLAGS: Final = {"true": True, "false": False}


class Kind(StrEnum):
    """What a value has to be."""

    TEXT = "text"
    NUMBER = "whole number"
    FLAG = "true or false"
    CHOICE = "one word"
    UUID = "UUID"
    IDS = "ids"
    NAMES = "names"
    TIME = "date or time"


class Operation(StrEnum):
    """The requests that take parameters."""

    LIST = "GET /api/templates"
    SEARCH = "GET /api/search"
    POST = "POST /api/search"
    SUGGEST = "GET /api/suggest"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of some operations.

    `low` and `high` bound a number, `high` the characters of a text, which has the form of `pattern` where there is
    one; `choices` are the words of a choice or of names.
    `filters` says that it is a member of `filters` in the body of POST, `needs_text` that a list without `q` ignores
    it.
    """

    name: str
    kind: Kind
    meaning: str
    example: Any
    operations: tuple[Operation, ...] = (Operation.LIST, Operation.SEARCH, Operation.POST)
    default: Any = None
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    pattern: str = ""
    filters: bool = False
    needs_text: bool = False
    required: bool = False

    @property
    def allowed(self) -> str:
        """Return in words what the value may be, for messages and tables."""
        match self.kind:
            case Kind.TEXT if self.pattern:
                return "what a page of the same search named as its next one, or blank"
            case Kind.TEXT:
                return f"text, {'not blank and ' if self.low else ''}of at most {self.high} characters"
            case Kind.NUMBER:
                return f"a whole number from {self.low} to {self.high}"
            case Kind.CHOICE:
                return f"one of {', '.join(self.choices)}"
            case Kind.NAMES:
                return f"some of {', '.join(self.choices)}, separated by commas"
            case Kind.TIME:
                return "a date or time (RFC 3339) such as 2026-01-31T12:00:00Z"
            case Kind.UUID:
                return "a UUID"
            case Kind.IDS:
                return "a list of texts"
            case Kind.FLAG:
                return "true or false"

    def of_text(self, text: str) -> Any:
        """Read a value of a query string.

        Raises:
            ValueError: it breaks the rule of this parameter; the message says what is allowed, and what was given.
        """
        match self.kind:
            case Kind.NUMBER:
                # Decision: "plain digits" are ASCII ones, without sign, spaces or underscores, which int() would take.
                number = int(text) if _DIGITS.fullmatch(text) else -1
                return number if self.low <= number <= self.high else self._refuse(text)
            case Kind.FLAG:
                return _FLAGS[text] if text in _FLAGS else self._refuse(text)
            case Kind.UUID:
                return text.lower() if re.fullmatch(_UUID[1:-1], text) else self._refuse(text)
            case Kind.IDS:
                return ids(text.split(","))
            case Kind.NAMES:
                return self._names(text.split(","))
            case _:
                return self._of_any(text)

    def of_json(self, value: Any) -> Any:
        """Read a member of the body of POST; null is as good as left out.

        Raises:
            ValueError: as `of_text`, without what was given.
        """
        if value is None and not self.required:
            return self.default
        match self.kind:
            case Kind.NUMBER:  # 1.0 is an integer of JSON Schema
                is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
                return int(value) if is_whole and self.low <= value <= self.high else self._refuse()
            case Kind.FLAG:
                return value if isinstance(value, bool) else self._refuse()
            case Kind.IDS | Kind.NAMES if isinstance(value, list):
                wrong = next((at for at, item in enumerate(value) if not isinstance(item, str)), None)
                if wrong is not None:
                    raise ValueError(f"{self.name}.{wrong} must be text")
                return ids(value) if self.kind is Kind.IDS else self._names(value)
            case Kind.NAMES if isinstance(value, str):
                return self._names(value.split(","))
            case Kind.UUID if isinstance(value, str):
                # Decision: a blank category_id does not filter, like the blank items of the id lists.
                return value.strip().lower() or None
            case _ if isinstance(value, str) and self.kind is not Kind.IDS:
                return self._of_any(value)
            case _:
                return self._refuse()

    def schema(self, *, in_body: bool) -> dict[str, Any]:
        """Return the JSON Schema of the value, as a query parameter or as a member of the body of POST."""
        rule = self._rule(in_body=in_body)
        if in_body and not self.required:
            rule = {"anyOf": [rule, {"type": "null"}]} if "format" in rule else {**rule, "type": [rule["type"], "null"]}
            if "enum" in rule:
                rule["enum"] = [*rule["enum"], None]
        return rule if self.default is None else {**rule, "default": self.default}

    def _rule(self, *, in_body: bool) -> dict[str, Any]:
        match self.kind:
            case Kind.NUMBER:
                return {"type": "integer", "minimum": self.low, "maximum": self.high}
            case Kind.FLAG:
                return {"type": "boolean"}
            case Kind.CHOICE:
                return {"type": "string", "enum": list(self.choices)}
            case Kind.NAMES if in_body:
                return {"type": "array", "minItems": 1, "items": {"type": "string", "enum": list(self.choices)}}
            case Kind.NAMES:
                name = f"({'|'.join(self.choices)})"
                return {"type": "string", "pattern": f"^{name}(,{name})*$"}
            case Kind.UUID if not in_body:
                return {"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36, "pattern": _UUID}
            case Kind.IDS if in_body:
                return {"type": "array", "items": {"type": "string"}}
            case Kind.TIME:
                return {"type": "string", "format": "date-time"}
            case Kind.TEXT:
                not_blank = {"minLength": 1, "pattern": _NOT_BLANK} if self.low else {}
                form = {"pattern": self.pattern} if self.pattern else {}
                return {"type": "string", "maxLength": self.high, **not_blank, **form}
            case _:
                return {"type": "string"}

    def _of_any(self, text: str) -> Any:
        """Read a text whose form is the same in a query string and in JSON."""
        match self.kind:
            case Kind.CHOICE:
                return text if text in self.choices else self._refuse(text)
            case Kind.TIME:
                moment = _microseconds(text)
                return self._refuse(text) if moment is None else moment
            case _ if self.pattern:
                return text if len(text) <= self.high and re.fullmatch(self.pattern, text) else self._refuse(text)
            case _:
                stripped = text.strip(BLANKS)
                return stripped if len(text) <= self.high and (stripped or not self.low) else self._refuse(text)

    def _names(self, items: Iterable[str]) -> frozenset[str]:
        named = frozenset(item.strip() for item in items if item.strip())
        unknown = next(iter(sorted(named - set(self.choices))), "" if not named else None)
        if unknown is not None:
            self._refuse(unknown)
        return named

    def _refuse(self, given: str | None = None) -> NoReturn:
        """Raise the error that says what is allowed, what was given and what is near to it."""
        near = (did_you_mean(given[:_SHOWN_LENGTH].lower(), self.choices) or "") if given else ""
        ending = "" if given is None else f", not {shown(given)}{near}"
        raise ValueError(f"{self.name} must be {self.allowed}{ending}")


def ids(items: Iterable[str]) -> frozenset[str]:
    """Return ids in lower case; blank ones are left out."""
    return frozenset(item.strip().lower() for item in items if item.strip())


def shown(value: str) -> str:
    """Return a value as messages show it: quoted, escaped, of at most 60 characters."""
    return json.dumps(value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH] + "…")


def _microseconds(text: str) -> int | None:
    """Return a time as microseconds since 1970, None where it is none.

    A blank before the zone is a plus sign: that is what it becomes in a query string that does not encode it.
    """
    matched = _TIME.fullmatch(re.sub(r" (?=\d\d:\d\d$)", "+", text.upper()) if len(text) > 16 else text)
    if matched is None:
        return None
    day, clock, zone = matched.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}{zone or 'Z'}")
    except ValueError:
        return None
    return min(max((moment - _EPOCH) // timedelta(microseconds=1), _EARLIEST), _LATEST)


def time_text(microseconds: int) -> str:
    """Return a time since 1970 as a query string has it."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat().replace("+00:00", "Z")


_IN_LISTS: Final = (
    "id", "slug", "title", "short_description", "difficulty", "url", "category", "tags", "routes", "broker_version",
    "published_at", "updated_at",
)  # fmt: skip
_IN_RESULTS: Final = (*_IN_LISTS, "content", "score", "matched", "snippet")
_TAG: Final = "f2a1f6f3-77c6-5f0e-8a55-7f0d3a0c9e42"
_SEARCHES: Final = (Operation.SEARCH, Operation.POST)
_FIELDS: Final = "Only these members of each result."

PARAMETERS: Final = (
    Parameter(
        "q", Kind.TEXT, "Search text: titles, descriptions, tags, routes and content. Blank counts as omitted.",
        "weather", (Operation.LIST,), high=4000,
    ),
    Parameter("q", Kind.TEXT, "Search text.", "weather polliing", (Operation.SEARCH,), low=1, high=4000, required=True),
    Parameter(
        "query", Kind.TEXT, "Search text; blank for the most recent.", "weather polling", (Operation.POST,), high=4000,
        required=True,
    ),
    Parameter(
        "q", Kind.TEXT, "What has been typed so far; blank gives no suggestion.", "receive web", (Operation.SUGGEST,),
        high=200, required=True,
    ),
    Parameter("limit", Kind.NUMBER, "How many at most.", 10, default=DEFAULT_LIMIT, low=1, high=30),
    Parameter(
        "offset", Kind.NUMBER, "How many of the first ones to leave out; without effect beside `cursor`.", 20,
        default=0, high=MOST_OFFSET,
    ),
    Parameter(
        "cursor", Kind.TEXT, "The `next_cursor` of the page before.", "", default=None,
        high=LONGEST_CURSOR, pattern="^([A-Za-z0-9_-]{15,})?$",
    ),
    Parameter(
        "sort", Kind.CHOICE, "The order: best first, newest first, or by title. Without a text the newest are best.",
        "newest", default=Sort.RELEVANCE.value, choices=tuple(map(str, Sort)),
    ),
    Parameter("exact", Kind.FLAG, "Search for the words as typed: no corrections, no synonyms.", True, default=False),
    Parameter(
        "updated_since", Kind.TIME, "Only templates that changed in this library at this time or later.",
        "2026-01-31T12:00:00Z",
    ),
    Parameter(
        "meta", Kind.FLAG, "Add `meta` beside `results`: total, corrections, ignored words, facets, next cursor.", True,
        default=False,
    ),
    Parameter("fields", Kind.NAMES, _FIELDS, "id,title", (Operation.LIST,), choices=(*_IN_LISTS, "snippet")),
    Parameter("fields", Kind.NAMES, _FIELDS, "id,title,score", _SEARCHES, choices=_IN_RESULTS),
    Parameter(
        "highlight", Kind.FLAG, "Add `snippet` to each result: escaped text with the words found in `<mark>`.", True,
        default=False,
    ),
    Parameter(
        "category_id", Kind.UUID, "Only templates in this category.", "0b7c5a52-8b1f-5a56-8d8a-6f1f4f0f9d10",
        filters=True,
    ),
    Parameter(
        "difficulty", Kind.CHOICE, "Only templates of this difficulty.", "beginner",
        choices=tuple(map(str, Difficulty)), filters=True,
    ),
    Parameter("tag_ids", Kind.IDS, "Only templates with one of these tags.", _TAG, filters=True, needs_text=True),
    Parameter(
        "route_ids", Kind.IDS, "Only templates that use one of these routes.", "c7c1a1de-5d0a-5a7b-9c1e-1e6b8f9f2d33",
        filters=True, needs_text=True,
    ),
    Parameter(
        "broker_version_ids", Kind.IDS, "Only templates for one of these broker versions.",
        "9e3a7c64-1f27-5d11-a0a5-6d2b1c3e4f50", filters=True, needs_text=True,
    ),
)  # fmt: skip


@cache
def parameters_of(operation: Operation) -> Mapping[str, Parameter]:
    """Return the parameters of an operation by name, in the order of the table."""
    return {each.name: each for each in PARAMETERS if operation in each.operations}
