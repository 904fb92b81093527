"""Schema files, read with all that they refer to, and what a payload has against a schema. Any thread.

A schema's `$ref` leads to a place in its file, or to a file of its folder: nothing is fetched, and no link of the file
system leads out. What is wrong with a schema is found when it is read, not with the first payload.

A payload may be hostile. So faults name places in it and never its values. A check takes `MOST_SECONDS` of processor
time at most, even with patterns such as `(a+)+$` and with schemas that branch at each level. A payload that is nested
too deeply for the checker has a fault that says so.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

import regex
from attrs import evolve
from jsonschema import Draft202012Validator, FormatChecker, ValidationError, _utils
from jsonschema.exceptions import SchemaError
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY
from referencing import Registry
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.lot.schemas import SchemaFileError
from amqtt_rest_bridge.system import FileState, file_state, regular_file

MOST_FAULTS: Final = 20
MOST_SECONDS: Final = 1.0
"""Of processor time to check a payload."""
_SHORT: Final = 100  # characters of a text for which other threads can wait
_ends = ContextVar("_ends", default=math.inf)  # the processor time of this thread at which a check is given up
_MOST_BYTES: Final = 1 << 20  # of a file
_MOST_FILES: Final = 64
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_OUTSIDE: Final = "a $ref is looked up in the file itself and in files of its folder; nothing is fetched"
_LONGEST: Final = 100  # characters of a pointer, or of a value of the schema


class SchemaReader:
    """Read a schema; `seen` gets each file that was looked at, as it was then."""

    def __init__(self, path: str, seen: set[FileState]) -> None:
        self._path = Path(path)
        self._folder = self._path.absolute().parent.resolve()
        self._seen = seen
        self._texts: dict[str, str] = {}
        self._resources: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # of files, by their contents
        self._applied: dict[int, set[int]] = {}  # by schema: those that check the same value ($ref, allOf)

    def documents(self) -> tuple[tuple[str, str], ...]:
        """Return URI and text of each file, the schema's own first; raises `SchemaFileError`."""
        text, contents = self._read(self._path, "it")
        # A $ref is relative to the $id of the schema, if it has one.
        own = contents.get("$id", "") if isinstance(contents, dict) else ""
        uri = urljoin(self._folder.joinpath(self._path.name).as_uri(), own)
        root = self._keep(uri, text, contents, "")
        empty: Any = Registry(retrieve=self._retrieve)  # type: ignore[call-arg]  # of a class that attrs makes
        try:
            self._follow(REGISTRY.combine(empty).with_resource(uri, root).resolver(base_uri=uri), root)
            TopologicalSorter(self._applied).prepare()
        except CycleError:
            raise SchemaFileError("its $ref leads back to itself, so that no check would end") from None
        except RecursionError:  # hundreds of $ref, each of which leads to the next
            raise SchemaFileError("it is nested too deeply") from None
        return tuple(self._texts.items())

    def _retrieve(self, uri: str) -> Any:
        """Return what a `$ref` leads to that is not in its file; the library asks."""
        if uri in self._resources:
            return self._resources[uri]
        file = Path(unquote(urlsplit(uri).path)).resolve() if uri.startswith("file:") else self._folder
        if not file.is_relative_to(self._folder) or file == self._folder or len(self._texts) >= _MOST_FILES:
            raise NoSuchResource(uri)
        name = shown(str(file.relative_to(self._folder)))
        return self._keep(uri, *self._read(file, name), f" of {name}")

    def _keep(self, uri: str, text: str, contents: Any, name: str) -> Any:
        self._names[id(contents)] = name
        self._texts[uri], self._resources[uri] = text, DRAFT202012.create_resource(contents)
        return self._resources[uri]

    def _read(self, file: Path, name: str) -> tuple[str, Any]:
        """Return text and contents of a file that holds a schema; `name` begins the messages."""
        text = self._text_of(file, name)
        try:
            contents = parse(text)
            Draft202012Validator.check_schema(contents, format_checker=FormatChecker(formats=()))
        except (ValueError, RecursionError) as error:
            raise SchemaFileError(f"{name} is not JSON: {fault_of(error)}") from None
        except SchemaError as error:
            fault = f"{pointer_of(error.absolute_path)}: {shown(error.message)}"
            raise SchemaFileError(f"{name} is not a JSON Schema: {fault}") from None
        dialect = contents.get("$schema", _DIALECT) if isinstance(contents, dict) else _DIALECT
        if dialect.rstrip("#") != _DIALECT:
            raise SchemaFileError(f"{name} is written for {shown(dialect)}", f'write "$schema": "{_DIALECT}"')
        return text, contents

    def _text_of(self, file: Path, name: str) -> str:
        """Return the text of a file; `name` begins the messages."""
        self._seen.add(file_state(str(file)))
        try:
            regular_file(file)
            with file.open("rb") as opened:
                content = opened.read(_MOST_BYTES + 1)
            text = content.decode()
        except UnicodeDecodeError:
            raise SchemaFileError(f"{name} is not UTF-8 text") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = str(getattr(error, "strerror", None) or error).lower()
            is_missing = name == "it" and isinstance(error, FileNotFoundError)
            hint = "relative paths begin at the working directory" if is_missing else None
            raise SchemaFileError(f"{name} cannot be read: {reason}", hint) from None
        if len(content) > _MOST_BYTES:
            raise SchemaFileError(f"{name} is larger than 1 MiB")
        return text

    def _follow(self, resolver: Any, resource: Any) -> None:
        """Look up whatever a schema refers to, and compile its patterns."""
        contents = resource.contents
        if not isinstance(contents, dict) or id(contents) in self._applied:
            return
        applied = self._applied[id(contents)] = {id(one) for one in contents.get("allOf", ())}
        for pattern in (*filter(None, [contents.get("pattern")]), *contents.get("patternProperties", ())):
            search_of(pattern)
        for name in ("$ref", "$dynamicRef"):
            if name in contents:
                found = self._lookup(resolver, contents[name])
                if name == "$ref":
                    applied.add(id(found.contents))
                self._follow(found.resolver, DRAFT202012.create_resource(found.contents))
        for inner in resource.subresources():
            self._follow(resolver.in_subresource(inner), inner)

    def _lookup(self, resolver: Any, ref: str) -> Any:
        """Return what a `$ref` leads to."""
        try:
            return resolver.lookup(ref)
        except Unresolvable as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, SchemaFileError):  # of a file that was found
                    raise cause from None
                cause = cause.__cause__ or cause.__context__
        of_file = self._names.get(id(resolver.lookup("#").contents), "")
        raise SchemaFileError(f"{'the' if of_file else 'its'} $ref {shown(ref)}{of_file} leads nowhere", _OUTSIDE)


def checker_of(documents: tuple[tuple[str, str], ...]) -> Callable[[bytes], list[str]]:
    """Compile a schema that `SchemaReader` has returned."""
    resources = [(uri, DRAFT202012.create_resource(json.loads(text))) for uri, text in documents]
    registry: Any = Registry().with_resources(resources)
    # By its URI, so that what it refers to is looked up beside it.
    validator = _Validator({"$ref": documents[0][0]}, registry=registry)

    def check(payload: bytes) -> list[str]:
        try:
            instance = parse(payload.decode())
        except (ValueError, RecursionError) as error:
            return [f"(root) is not JSON: {fault_of(error)}"]
        faults: dict[str, None] = {}
        try:
            with bounded(MOST_SECONDS):
                for found in validator.iter_errors(instance):
                    faults[f"{pointer_of(found.absolute_path)} {_text_of(found)}"] = None
                    if len(faults) > MOST_FAULTS:
                        return [*islice(faults, MOST_FAULTS), "and more"]
        except RecursionError:
            faults["(root) is nested too deeply"] = None
        except TooLongError:
            faults[f"(root) cannot be checked within {MOST_SECONDS:g} s"] = None
        except ArithmeticError:
            faults["(root) holds a number that cannot be checked"] = None
        return list(faults)

    return check


# The bound. `re` cannot be given up: `(a+)+$` against thirty letters would hold the interpreter lock for minutes.
# `regex` can, and has the classes of Unicode (`\p{L}`) that schemas may use.


class TooLongError(Exception):
    """A check has used up its time."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Make `go_on` and `matches` raise `TooLongError` after so much processor time."""
    token = _ends.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _ends.reset(token)


def go_on() -> float:
    """Return the seconds that are left; raises `TooLongError` where there are none."""
    left = _ends.get() - time.thread_time()
    if left <= 0:
        raise TooLongError
    return left


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text, within the time that is left."""
    left = go_on()
    try:
        timeout = None if left == math.inf else left
        return search_of(pattern)(text, timeout=timeout, concurrent=len(text) > _SHORT) is not None
    except TimeoutError:
        raise TooLongError from None


# Keywords: those of the library, but for those that would not keep the bound.


_KEYWORDS: Final[dict[str, Any]] = dict(Draft202012Validator.VALIDATORS)


def _keyword(name: str) -> Callable[[Any], None]:
    """Use a function for a keyword, in place of the library's."""

    def use(check: Any) -> None:
        _KEYWORDS[name] = check

    return use


@_keyword("pattern")
def _pattern(validator: Any, value: str, instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not matches(value, instance):
        yield ValidationError("")


@_keyword("properties")
def _properties(validator: Any, value: Mapping[str, Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for key, schema in value.items():
            if key in instance:
                yield from _member(validator, instance[key], schema, key)


@_keyword("patternProperties")
def _pattern_properties(validator: Any, value: Mapping[str, Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, schema in value.items():
            for key, item in instance.items():
                if matches(pattern, key):
                    yield from _member(validator, item, schema, key)


@_keyword("additionalProperties")
def _additional_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, item in instance.items():
            if key not in known and not any(matches(one, key) for one in patterns):
                yield from _member(validator, item, value, key)


def _member(validator: Any, item: Any, schema: Any, key: str) -> Iterator[ValidationError]:
    if schema is False:  # the library does not name the place
        yield ValidationError("", path=(key,))
    else:
        yield from validator.descend(item, schema, path=key)


@_keyword("uniqueItems")
def _unique_items(validator: Any, value: bool, instance: Any, _: Any) -> Iterator[ValidationError]:
    # The library compares objects pair by pair: 20,000 of them take minutes.
    if value and validator.is_type(instance, "array") and len({_key(one) for one in instance}) < len(instance):
        yield ValidationError("")


def _key(value: Any) -> Any:
    """Return what is equal for equal JSON values, and can be in a set: 1 is 1.0, but not true."""
    if isinstance(value, dict):
        return "{", frozenset((name, _key(item)) for name, item in value.items())
    if isinstance(value, list):
        return "[", tuple(_key(item) for item in value)
    return ("b", value) if isinstance(value, bool) else value


def _bounded(keyword: Any) -> Any:
    """Return a keyword that raises `TooLongError` once the time of the check is used up."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        go_on()
        return keyword(validator, value, instance, schema)

    return check


_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: _bounded(keyword) for name, keyword in _KEYWORDS.items()}
)
# unevaluatedProperties compares names with patterns in there, by `re`, which cannot be given up.
_utils.re = SimpleNamespace(search=matches)  # type: ignore[attr-defined]
# The library's own takes the class that $schema names, whose keywords keep no bound.
_Validator.evolve = evolve


# Faults, made of the schema and of places in the payload; never of its values.

_FAULTS: Final[Mapping[str, str]] = {
    "properties": "is not allowed",
    "patternProperties": "is not allowed",
    "additionalProperties": "is not allowed",
    "type": "is not of type {}",
    "enum": "is none of {}",
    "const": "is not {}",
    "minimum": "is less than {}",
    "maximum": "is more than {}",
    "exclusiveMinimum": "is not more than {}",
    "exclusiveMaximum": "is not less than {}",
    "multipleOf": "is not a multiple of {}",
    "minLength": "is shorter than {} characters",
    "maxLength": "is longer than {} characters",
    "pattern": "does not match the pattern {}",
    "items": "has too many items",
    "minItems": "has fewer than {} items",
    "maxItems": "has more than {} items",
    "uniqueItems": "holds an item twice",
    "contains": "has too few items that match contains",
    "minContains": "has too few items that match contains",
    "maxContains": "has too many items that match contains",
    "minProperties": "has fewer than {} members",
    "maxProperties": "has more than {} members",
    "dependentRequired": "lacks a member that another one of it needs",
    "unevaluatedProperties": "has members that the schema does not know",
    "unevaluatedItems": "has items that the schema does not know",
    "anyOf": "matches no schema of anyOf",
    "oneOf": "does not match exactly one schema of oneOf",
    "not": "matches the schema of not",
}


def _text_of(error: ValidationError) -> str:
    """Return what is wrong, as it follows the place in a fault."""
    keyword: Any = error.validator
    value: Any = error.validator_value
    instance: Any = error.instance
    if not isinstance(keyword, str):  # the whole schema is false
        return "is not allowed"
    if keyword == "required":
        return f"lacks {', '.join([shown(name) for name in value if name not in instance])}"
    if keyword == "type" and isinstance(value, list):
        return f"is not of type {', '.join(value[:-1])} or {value[-1]}"
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _FAULTS.get(keyword, f"does not satisfy {shown(keyword)}").replace("{}", shown(written))


# Texts.


def parse(text: str) -> Any:
    """Return the value of a text of JSON; raises ValueError or RecursionError, see `fault_of`."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def fault_of(error: Exception) -> str:
    """Return why a text is not JSON, without a part of it."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at line {error.lineno}, column {error.colno}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else re.sub(r":.*", "", str(error))


@lru_cache(maxsize=4096)
def search_of(pattern: str) -> Callable[..., Any]:
    """Return the search of a pattern; raises `SchemaFileError` for one that cannot be read."""
    try:
        search: Callable[..., Any] = regex.compile(pattern).search
    except (regex.error, OverflowError) as error:
        raise SchemaFileError(f"its pattern {shown(pattern)} cannot be read: {error}") from None
    return search


def pointer_of(path: Iterable[object]) -> str:
    """Return a JSON Pointer (RFC 6901) as it is shown."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in path]
    return shown("".join([f"/{part}" for part in parts])) or "(root)"


def shown(text: str) -> str:
    """Return a text as a fault may show it."""
    return on_one_line(text, _LONGEST)
