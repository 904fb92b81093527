"""What a template may hold: models that check and normalise what its author wrote in YAML or JSON. Pure.

Pydantic finds all faults of a template in one pass. Null and blank members count as left out.
"""

import json
import re
import unicodedata
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from template_api.records import Difficulty, Status

SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,199}")
_NAMES = ("filename", "file", "name")  # members that name a notebook
_MOST_MEMBERS = 1000
_MOST_NOTEBOOKS = 1000  # of a template; aliases of YAML can list each of many names for each of many roles
_DEEPEST = 100  # Python reads and writes JSON recursively, and answers hold free-form objects some levels down
_LONGEST_URL = 2000
_LONGEST_SHOWN = 60  # of a value, in a message


@dataclass(frozen=True, slots=True)
class NamedSource:
    """The names of a category, tag, route or broker version; the slug is its identity.

    `members` is the JSON of the other members of the object that its author wrote, None of a plain name.
    """

    name: str
    slug: str
    id: str | None = None
    members: str | None = None


def storable(text: str) -> str:
    """Return a text; raise `ValueError` for what no database keeps: NUL or a lone surrogate."""
    if "\0" in text:
        raise ValueError("holds the character NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which is not Unicode text") from None
    return text


def json_text(value: object, most: int | None = None) -> str:
    """Return a value of JSON or YAML as JSON; raise `ValueError` where it is nested too deeply, or has too much in it.

    `most` is how many objects, lists and values it may have: aliases of YAML multiply them.
    """
    level, count = [value], 0
    for _ in range(_DEEPEST + 1):  # without recursion
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = list(islice(chain.from_iterable(inner), most))
        count += len(level)
        if most is not None and count >= most:
            raise ValueError(f"holds more than {most} values")
    if level:
        raise ValueError(f"is nested more than {_DEEPEST} deep")
    return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID in its usual form, 8-4-4-4-12 hexadecimal digits."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def slug_of(name: str) -> str:
    """Return the slug of a name: lower case, words joined by hyphens; `C++` and `C#` stay apart."""
    text = unicodedata.normalize("NFKC", name).lower().replace("+", " plus ").replace("#", " sharp ")
    return re.sub(r"[^\w.]+|_+", "-", text).strip("-.")


def time_text(moment: datetime) -> str:
    """Return a time in UTC as the library keeps it: RFC 3339 with microseconds, so that texts sort like times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _slug(text: str) -> str:
    if not SLUG.fullmatch(text):  # it is unencoded in URLs
        raise ValueError("must be at most 200 letters, digits and . _ ~ -, beginning with a letter or digit")
    return text


def _time(text: str) -> str:
    """Return a date or time (RFC 3339, UTC when it names no zone) in a form that sorts as text."""
    try:
        moment = datetime.fromisoformat(text)
        return time_text(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise ValueError("must be a date such as 2026-01-31T12:00:00Z") from None


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and text.isascii()
    except ValueError:
        is_usable = False
    if not is_usable or not text.isprintable() or " " in text or len(text) > _LONGEST_URL:
        raise ValueError(f"must be an http or https address of at most {_LONGEST_URL} characters")
    return text


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _several(value: Any) -> Any:
    """Return a list; a single text or object is a list of one."""
    return [value] if isinstance(value, str | Mapping) else value


Text = Annotated[str, AfterValidator(storable)]
_Slug = Annotated[Text, AfterValidator(_slug)]


class _Written(BaseModel, coerce_numbers_to_str=True, str_strip_whitespace=True):
    """Base class: numbers are read as text, members that are null or blank as left out, a plain text as a name."""

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, given: Any) -> Any:
        members = given if isinstance(given, Mapping) else {"name": given}
        return {key: held for key, held in members.items() if held is not None and not _is_blank(held)}


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


class _Named(_Written, extra="allow"):
    name: Text = ""
    slug: Text = ""
    id: Text = ""


def _named(given: Any) -> NamedSource:
    """Read a name, or an object with `name` and perhaps `slug`, `id` and others; an `id` of a word is the slug."""
    if isinstance(given, list):
        raise ValueError("must name one thing, not several")  # noqa: TRY004  # pydantic takes this one for a fault
    try:
        written = _Named.model_validate(given)
    except ValidationError as exc:
        raise ValueError(next(reason for _, reason in reasons(exc))) from None
    id_ = written.id.lower() if is_uuid(written.id) else None
    slug = written.slug or ("" if id_ else written.id)
    name = written.name or slug
    slug = slug or slug_of(name)
    if not name or not slug:
        raise ValueError("must hold names, or objects with a name")
    members = json_text(written.model_extra, _MOST_MEMBERS) if isinstance(given, Mapping) else None
    return NamedSource(name, slug, id_, members)


def once(named: Iterable[NamedSource]) -> list[NamedSource]:
    """Return the first of each slug."""
    first: dict[str, NamedSource] = {}
    for each in named:
        first.setdefault(each.slug, each)
    return list(first.values())


class InputSource(_Written, extra="forbid"):
    """Something that a template says that it asks for."""

    name: Annotated[Text, Field(pattern=r"^[A-Za-z0-9_.-]{1,200}$")]
    secret: bool = False
    example: Annotated[Text, Field(max_length=500)] | None = None


class Listed(_Written):
    """A notebook as the template lists it, with its cells in a `.jsonl` file."""

    name: Annotated[
        Text, Field(min_length=1, max_length=255, validation_alias=AliasChoices("filename", "file", "name"))
    ]
    role: Annotated[Text, Field(max_length=255)] | None = None
    is_primary: bool = Field(default=False, validation_alias=AliasChoices("is_primary", "primary"))
    cells: Any = None


def _unlike(inputs: list[InputSource]) -> list[InputSource]:
    names = [each.name for each in inputs]
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise ValueError(f"names {twice!r} twice")
    return inputs


def _with_roles(given: Any) -> Any:
    """Return a list of file names or objects; `notebooks` may also map roles to one of these, or to a list of them."""
    listed = _several(given)
    if isinstance(given, Mapping) and given.keys().isdisjoint(_NAMES):
        pairs = ((role, one) for role, held in given.items() for one in (held if isinstance(held, list) else [held]))
        listed = [
            {**(one if isinstance(one, Mapping) else {"name": one}), "role": role}
            for role, one in islice(pairs, _MOST_NOTEBOOKS + 1)
            if one not in (None, "")
        ]
    if isinstance(listed, list) and len(listed) > _MOST_NOTEBOOKS:
        raise ValueError(f"must name at most {_MOST_NOTEBOOKS} files")
    return listed


_OneNamed = Annotated[NamedSource, BeforeValidator(_named)]
_AllNamed = Annotated[list[_OneNamed], BeforeValidator(_several), AfterValidator(once)]
_Description = Annotated[Text, Field(max_length=5000)]


class Members(_Written):
    """The members of a template."""

    id: Annotated[Text, AfterValidator(lambda text: text.lower() if is_uuid(text) else _slug(text))] | None = None
    slug: _Slug | None = None
    title: Annotated[Text, Field(max_length=500)] | None = None
    summary: _Description | None = None
    short_description: _Description | None = None
    category: _OneNamed | None = None
    difficulty: Annotated[Difficulty, BeforeValidator(_lower)] | None = None
    tags: _AllNamed | None = None
    primitives: _AllNamed = []
    protocols: _AllNamed = []
    services: _AllNamed = []
    routes: _AllNamed = []
    broker_version: _OneNamed | None = None
    verified_broker_version: _OneNamed | None = None
    status: Annotated[Status, BeforeValidator(_lower)] = Status.PUBLISHED
    published_at: Annotated[Text, AfterValidator(_time)] | None = None
    notebooks: Annotated[list[Listed], BeforeValidator(_with_roles)] = []
    url: Annotated[Text, AfterValidator(_url)] | None = None
    inputs: Annotated[list[InputSource], BeforeValidator(_several), AfterValidator(_unlike)] = []
    content: Annotated[str, StringConstraints(strip_whitespace=False), AfterValidator(storable)] = ""


_REASONS = {
    "string_type": "must be text",
    "string_unicode": "holds a lone surrogate, which is not Unicode text",
    "too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must be that of a variable or secret: letters, digits and . _ -, as in API_TOKEN",
    "enum": "must be one of {expected}, not {given!r}",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false, not {given!r}",
    "list_type": "must be a list",
    "missing": "is required",
    "extra_forbidden": "is unknown; members are name, secret, example",
}
"""What is wrong, by the type that pydantic has for it."""


def reasons(exc: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the member of each fault, and what is wrong with it; entries of lists are counted from 1."""
    for fault in exc.errors(include_url=False):
        key, *inner = map(str, (each if isinstance(each, str) else f"entry {each + 1}:" for each in fault["loc"]))
        reason = fault["msg"].removeprefix("Value error, ")
        if known := _REASONS.get(fault["type"]):
            given = fault["input"][:_LONGEST_SHOWN] if isinstance(fault["input"], str) else "a list or an object"
            reason = known.format(**fault.get("ctx", {}), given=given)
        yield key, " ".join([key, *inner, reason])
