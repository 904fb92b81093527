"""The members of one template as its author wrote them; faults name the file, the line and the member.

Pure: texts and numbers in, checked values out. Reading continues after a fault, so that all are reported at once.
"""

import json
import re
import unicodedata
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, islice
from typing import Any
from urllib.parse import urlsplit

from template_api.errors import SourceError, did_you_mean, visible
from template_api.records import Difficulty, Input, Status

SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,199}")
INPUT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_INPUT = ("name", "secret", "example")
_NAMED = ("name", "slug", "id")
_MOST_MEMBERS = 1000
_DEEPEST = 100  # Python reads and writes JSON recursively, and answers hold free-form objects some levels down
_LONGEST_INPUT = 60  # shown in a message
_LONGEST_EXAMPLE = 500
_LONGEST_URL = 2000
_TRUE, _FALSE = {"true", "yes", "1"}, {"false", "no", "0", ""}


@dataclass(frozen=True, slots=True)
class NamedSource:
    """The names of a category, tag, route or broker version; the slug is its identity.

    `members` is the JSON of the other members of the object that its author wrote, None of a plain name.
    """

    name: str
    slug: str
    id: str | None = None
    members: str | None = None


def _time(text: str) -> str | None:
    """Return a date or time (RFC 3339, UTC when it names no zone) in a form that sorts as text."""
    try:
        moment = datetime.fromisoformat(text)
        return time_text(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def _url(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and text.isascii()
    except ValueError:
        return None
    return text if usable and text.isprintable() and " " not in text and len(text) <= _LONGEST_URL else None


_Rule = tuple[Callable[[str], str | None], str]


def _one_of(words: type[StrEnum]) -> _Rule:
    rule = f"be one of {', '.join(words)}, not {{!r}}"
    return (lambda text: text.lower() if text.lower() in list(words) else None), rule


def _at_most(length: int) -> _Rule:
    return (lambda text: text if len(text) <= length else None), f"have at most {length} characters"


_RULES: Mapping[str, _Rule] = {
    "title": _at_most(500),
    "summary": _at_most(5000),
    "short_description": _at_most(5000),
    # A slug is unencoded in URLs.
    "slug": (
        lambda text: text if SLUG.fullmatch(text) else None,
        "be at most 200 letters, digits and . _ ~ -, beginning with a letter or digit",
    ),
    "difficulty": _one_of(Difficulty),
    "status": _one_of(Status),
    "published_at": (_time, "be a date such as 2026-01-31T12:00:00Z, not {!r}"),
    "url": (_url, f"be an http or https address of at most {_LONGEST_URL} characters, not {{!r}}"),
}
"""For each key a function that reads its text, None if it breaks the rule, and the rule: "it must ..."."""


class Fields:
    """Read the members of one template; `faults` are the errors of those read so far, `warnings` what else is odd.

    `lines` has the line of each key, where known; `line` is used for the others.
    """

    def __init__(self, path: str, members: Mapping[str, Any], lines: Mapping[str, int], line: int = 1) -> None:
        self.path = path
        self.members = members
        self.warnings: list[str] = []
        self._faults: dict[str, SourceError] = {}
        self._lines = lines
        self._line = line

    def checked(self, instead: Any, read: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what `read` returns; when it raises `SourceError`, note that and return `instead`."""
        try:
            return read(*arguments, **named)
        except SourceError as exc:
            self.note(exc)
            return instead

    @property
    def faults(self) -> tuple[SourceError, ...]:
        """The faults: those of this file by line, then those of other files."""

        def place(fault: SourceError) -> tuple[bool, int]:
            path, _, line = fault.where.rpartition(":")
            return (False, int(line)) if path == self.path and line.isdecimal() else (True, 0)

        return tuple(sorted(self._faults.values(), key=place))

    def note(self, fault: SourceError) -> None:
        """Add a fault, once."""
        self._faults.setdefault(str(fault), fault)

    def warn(self, key: str, text: str) -> None:
        """Add a warning."""
        self.warnings.append(visible(f"{self.where(key)}: warning: {text}"))

    def where(self, key: str | None = None) -> str:
        """Return `path:line` of a key, or of the template."""
        return f"{self.path}:{self._lines.get(key or '', self._line)}"

    def fault(self, key: str, reason: str) -> SourceError:
        """Return the error for a key."""
        return SourceError(self.where(key), f"{key} {reason}")

    def fail(self, key: str, reason: str) -> None:
        """Add a fault of a key."""
        self.note(self.fault(key, reason))

    def text(self, key: str, rule: str | None = None) -> str | None:
        """Return a text without blanks around it, by the rule of its key or of another one.

        It is None when it is absent, blank or breaks the rule.
        """
        value: str = self.checked("", self._plain_text, key, self.members.get(key))
        read, wanted = _RULES.get(rule or key, (str, ""))
        found = read(value) if value else None
        if value and found is None:
            self.fail(key, f"must {wanted.format(value[:_LONGEST_URL])}")
        return found

    def items(self, key: str) -> Sequence[Any]:
        """Return a list; a single text or object is a list of one."""
        value = self.members.get(key)
        if value is None or value == "":
            return ()
        if isinstance(value, str | Mapping):
            return (value,)
        if not isinstance(value, Sequence):
            self.fail(key, "must be a list")
            return ()
        return value

    def named(self, key: str) -> NamedSource | None:
        """Return what a key names, or None when it is absent or blank."""
        named = self.all_named(key)
        if len(named) > 1:
            self.fail(key, "must name one thing, not several")
            return None
        return named[0] if named else None

    def all_named(self, key: str) -> tuple[NamedSource, ...]:
        """Return the things that a key names, each slug once, in their order; none when one of them has a fault."""
        named: dict[str, NamedSource] = {}
        for item in self.items(key):
            each = self.checked(None, self._one_named, key, item)
            if each is None:
                return ()
            named.setdefault(each.slug, each)
        return tuple(named.values())

    def flag(self, key: str, value: object) -> bool:
        """Return a boolean, which YAML hands over as a word."""
        word = self.checked("", self._plain_text, key, str(value) if isinstance(value, bool) else value).lower()
        if word not in _TRUE | _FALSE:
            self.fail(key, f"must be true or false, not {word!r}")
        return word in _TRUE

    def inputs(self, key: str) -> tuple[Input, ...]:
        """Return what a template says that it asks for; a fault names the entry, counted from 1."""
        found: dict[str, Input] = {}
        for number, item in enumerate(self.items(key), 1):
            each = self.checked(None, self._one_input, key, number, item)
            if each is not None and found.setdefault(each.name, each) is not each:
                self.fail(key, f"entry {number}: {each.name!r} comes twice")
        return tuple(found.values())

    def _one_input(self, key: str, number: int, item: object) -> Input:
        """Read a name, or an object with `name` and perhaps `secret` and `example`."""
        given = item if isinstance(item, Mapping) else {"name": item}
        for member in given:
            if member not in _INPUT:
                hint = did_you_mean(str(member), _INPUT) or f"; members are {', '.join(_INPUT)}"
                raise self.fault(key, f"entry {number}: there is no {member!r}{hint}")
        name = self._plain_text(key, given.get("name"))
        if not INPUT_NAME.fullmatch(name):
            reason = "name must be that of a variable or secret: letters, digits and . _ -, as in API_TOKEN"
            raise self.fault(key, f"entry {number}: {reason}, not {name[:_LONGEST_INPUT]!r}")
        example = self._plain_text(key, given.get("example"))
        if len(example) > _LONGEST_EXAMPLE:
            raise self.fault(key, f"entry {number}: example must have at most {_LONGEST_EXAMPLE} characters")
        return Input(name, self.flag(key, given.get("secret")), example or None)

    def _one_named(self, key: str, item: object) -> NamedSource:
        """Read a name, or an object with `name` and perhaps `slug`, `id` and others; an `id` of a word is the slug."""
        given = item if isinstance(item, Mapping) else {"name": item}
        name, slug, id_ = (self._plain_text(key, given.get(member)) for member in _NAMED)
        if id_ and not is_uuid(id_):
            slug, id_ = slug or id_, ""
        name = name or slug
        slug = slug or slug_of(name)
        if not name or not slug:
            raise self.fault(key, "must hold names, or objects with a name")
        others = {member: value for member, value in given.items() if member not in _NAMED}
        members = json_text(self.where(key), key, others, _MOST_MEMBERS) if given is item else None
        return NamedSource(name, slug, id_.lower() or None, members)

    def _plain_text(self, key: str, value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise self.fault(key, "must be text")
        check_storable(self.where(key), key, value)
        return value.strip()


def check_storable(where: str, what: str, text: str) -> None:
    """Raise `SourceError` for text that a database cannot keep: NUL or a lone surrogate."""
    if "\0" in text:
        raise SourceError(where, f"{what} holds the character NUL")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise SourceError(where, f"{what} holds a lone surrogate, which is not Unicode text") from exc


def json_text(where: str, what: str, value: object, most: int | None = None) -> str:
    """Return a value of JSON or YAML as JSON; raise `SourceError` where it is nested too deeply, or has too much in it.

    `most` is how many objects, lists and values it may have: aliases of YAML multiply them.
    """
    level, count = [value], 0
    for _ in range(_DEEPEST + 1):  # without recursion
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = list(islice(chain.from_iterable(inner), most))
        count += len(level)
        if most is not None and count >= most:
            raise SourceError(where, f"{what} holds more than {most} values")
    if level:
        raise SourceError(where, f"{what} is nested more than {_DEEPEST} deep")
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    check_storable(where, what, text)
    return text


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
