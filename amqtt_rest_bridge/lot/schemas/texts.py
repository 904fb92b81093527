"""Texts of JSON to values, patterns to searches, and what is shown of them: bounded, on one line. Pure."""

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.lot.schemas import SchemaFileError

_LONGEST: Final = 100  # characters of a pointer, or of a value of the schema


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
    import regex

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
