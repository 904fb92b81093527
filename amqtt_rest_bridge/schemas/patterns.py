r"""Patterns of schemas, searched within a bound of processor time. Any thread; each check has a time of its own.

`re` cannot be given up: `(a+)+$` against thirty letters would hold the interpreter lock for minutes. `regex` can, and
has the classes of Unicode (`\p{L}`) that schemas may use.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from amqtt_rest_bridge.schemas import SchemaFileError
from amqtt_rest_bridge.schemas.texts import shown

_SHORT: Final = 100  # characters of a text for which other threads can wait

_ends = ContextVar("_ends", default=math.inf)  # the processor time of this thread at which a check is given up


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


@lru_cache(maxsize=4096)
def search_of(pattern: str) -> Callable[..., Any]:
    """Return the search of a pattern; raises `SchemaFileError` for one that cannot be read."""
    import regex

    try:
        search: Callable[..., Any] = regex.compile(pattern).search
    except (regex.error, OverflowError) as error:
        raise SchemaFileError(f"its pattern {shown(pattern)} cannot be read: {error}") from None
    return search
