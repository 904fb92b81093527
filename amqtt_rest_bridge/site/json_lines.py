"""JSON as lines that a template makes folding elements of. Pure; any thread.

Names, order and numbers stay as they were written, names that occur twice too: what is shown is what was sent.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_DEEPEST: Final = 32
_MOST: Final = 1000
"""Lines; a text that needs more, or is nested more deeply, is shown as it is."""
_UNFOLDED: Final = 24


class Line(NamedTuple):
    """A member or an item.

    `kind` is `open` or `close` of an object or array, else of the value: `string`, `number` or `word`. `text` is the
    value, or how much is in it; `is_open` whether what is in it is seen at first.
    """

    kind: str
    name: str = ""
    text: str = ""
    is_open: bool = False


class _Members(list[tuple[str, Any]]):
    """An object: its members in order."""


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def json_lines(text: str) -> list[Line]:
    """Return the lines of an object or array; none where it is empty, and where the text is anything else."""
    try:
        value = json.loads(
            text, object_pairs_hook=_Members, parse_float=_Number, parse_int=_Number, parse_constant=_Number
        )
        lines = list(_lines("", value, 0))
    except (ValueError, RecursionError):
        return []
    return lines if 1 < len(lines) <= _MOST else []


def _lines(name: str, value: Any, depth: int) -> Iterator[Line]:
    if not isinstance(value, list) or not value:
        yield _leaf(name, value)
        return
    if depth == _DEEPEST:
        raise RecursionError
    if isinstance(value, _Members):
        count = f"{{ {len(value)} member{'' if len(value) == 1 else 's'} }}"
        parts = [(json.dumps(key, ensure_ascii=False), one) for key, one in value]
    else:
        count = f"[ {len(value)} item{'' if len(value) == 1 else 's'} ]"
        parts = [(str(number), one) for number, one in enumerate(value)]
    inner = [line for part in parts for line in _lines(*part, depth + 1)]
    yield Line("open", name, count, is_open=depth == 0 or len(inner) <= _UNFOLDED)
    yield from inner
    yield Line("close")


def _leaf(name: str, value: Any) -> Line:
    if isinstance(value, _Number):
        return Line("number", name, value)
    if isinstance(value, str):
        return Line("string", name, json.dumps(value, ensure_ascii=False))
    if isinstance(value, list):
        return Line("word", name, "{}" if isinstance(value, _Members) else "[]")
    return Line("word", name, {None: "null", True: "true", False: "false"}[value])
