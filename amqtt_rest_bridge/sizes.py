"""Sizes as users write them: `64MiB`, or plain bytes. Pure; any thread may use it."""

import re
from typing import Final

_UNITS: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*(KiB|MiB|GiB)?", re.IGNORECASE)

FORM: Final = "write 64MiB, 512KiB, 1GiB or plain bytes"
"""The hint for a text that is not a size."""


def read_size(text: str) -> int | None:
    """Return the bytes of a size such as `64MiB`, None where the text is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNITS[(found[2] or "").lower()]


def size_text(size: int) -> str:
    """Write a size for a message: `64 MiB` where it is a whole number of a unit, else `1000 bytes`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return "1 byte" if size == 1 else f"{size} bytes"
