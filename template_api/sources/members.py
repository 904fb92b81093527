"""The kinds of members that a template has: texts, slugs, dates, addresses, and what classifies templates. Pure.

Null and blank members count as left out.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, PrivateAttr, model_validator

SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,199}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MOST_MEMBERS = 1000
_DEEPEST = 100  # Python reads and writes JSON recursively, and answers hold free-form objects some levels down


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
    """Return a value as JSON; raise `ValueError` where it is nested too deeply, has too much in it or what JSON lacks.

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
    return storable(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID in its usual form, 8-4-4-4-12 hexadecimal digits."""
    return _UUID.fullmatch(text) is not None


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


def several(value: Any) -> Any:
    """Return a list; a single text or object is a list of one."""
    return [value] if isinstance(value, str | Mapping) else value


Text = Annotated[str, AfterValidator(storable)]
Slug = Annotated[Text, AfterValidator(_slug)]
Identifier = Annotated[Text, AfterValidator(lambda text: text.lower() if is_uuid(text) else _slug(text))]
"""A UUID, or a slug."""
Time = Annotated[Text, AfterValidator(_time)]


class Written(BaseModel, coerce_numbers_to_str=True, str_strip_whitespace=True):
    """Base class: numbers are read as text, members that are null or blank as left out, a plain text as a name.

    A blank title is kept: it is one, in collections that hold texts without titles.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, given: Any) -> Any:
        members = given if isinstance(given, Mapping) else {"name": given}
        blank = {key for key, held in members.items() if isinstance(held, str) and not held.strip()} - {"title"}
        return {key: held for key, held in members.items() if held is not None and key not in blank}


class NamedSource(Written, extra="allow"):
    """A category, tag, route or broker version: a plain name, or an object that may have further members.

    The slug is its identity; an `id` of another form than a UUID is the slug.
    """

    name: Text = ""
    slug: Text = ""
    id: Text | None = None
    _is_plain: bool = PrivateAttr(default=False)

    @property
    def members(self) -> dict[str, Any] | None:
        """The further members; None of a plain name, which says nothing of them."""
        return None if self._is_plain else self.model_extra

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self._is_plain = self.model_fields_set == {"name"}
        if self.id is not None:
            self.slug, self.id = (self.slug, self.id.lower()) if is_uuid(self.id) else (self.slug or self.id, None)
        self.name = self.name or self.slug
        self.slug = self.slug.lower() or slug_of(self.name)
        if not self.name or not 0 < len(self.slug.encode()) <= 2000:  # PostgreSQL indexes no long text
            raise ValueError("must hold names, or objects with a name, of at most 2000 bytes")
        json_text(self.model_extra, _MOST_MEMBERS)
        return self


def once(named: Iterable[NamedSource]) -> list[NamedSource]:
    """Return the first of each slug."""
    first: dict[str, NamedSource] = {}
    for each in named:
        first.setdefault(each.slug, each)
    return list(first.values())


NamedSources = Annotated[list[NamedSource], BeforeValidator(several), AfterValidator(once)]
