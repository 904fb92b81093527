"""What the tests of the route language share: loading a text, and routes as plain JSON values without defaults."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from amqtt_rest_bridge.errors import Fault, Position
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.lot.placeholders.conditions import Condition
from amqtt_rest_bridge.lot.placeholders.kinds import Placeholder
from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText
from amqtt_rest_bridge.lot.schemas import Schema
from amqtt_rest_bridge.lot.sources import Source

CASES = Path(__file__).parents[1] / "lot" / "cases"

ENVIRONMENT: Mapping[str, str] = {
    "API_HOST": "api.example.com:8000",
    "ON": "true",
    "SECONDS": "5",
    "TENANT": "acme",
    "SPACED": 'a b/"c"',
    "VERB": "put",
    "USER_NAME": "operator",
    "USER_PASSWORD": "from the environment",
    "LINES": "two\nlines",
    "NOT_UTF8": "caf\udce9",
    "EMPTY": "",
}
SECRETS: Mapping[str, bytes] = {
    "api-key": b"k3y\n",
    "signing": b"sign with this\r\n",
    "braces": b"{payload}",
    "quote": b'say "hi"\\',
    "lines": b"two\nlines\n",
    "binary": b"\xff\xfe",
    "empty": b"\n",
}
BASIC = """\
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "http://api.example.com"
        WITH ENABLE_CLIENT "true"
    ADD EVENT E
        WITH SOURCE_TOPIC "in"
        WITH METHOD "POST"
        WITH ENDPOINT "/x"
"""


def offset(text: str, position: Position) -> int:
    """Return how many characters precede a place."""
    return sum(len(one) + 1 for one in text.split("\n")[: position.line - 1]) + position.column - 1


def marked(source: Source, fault: Fault) -> str:
    """Return the text from the place of a fault to its end."""
    return source.text[offset(source.text, fault.position) : offset(source.text, fault.end)]


def corrected(source: Source, faults: Iterable[Fault]) -> Source:
    """Return a text with the replacements of its faults, the last one first."""
    text = source.text
    for place, end, replacement in sorted({(one.position, one.end, one.replacement) for one in faults}, reverse=True):
        text = text[: offset(text, place)] + str(replacement) + text[offset(text, end) :]
    return Source(source.path, text)


def write_secrets(folder: Path) -> Path:
    """Write the secrets that the cases refer to."""
    folder.mkdir(exist_ok=True)
    for name, content in SECRETS.items():
        (folder / name).write_bytes(content)
    return folder


def load_text(text: str, secrets_dir: Path = Path("/nowhere")) -> LoadResult:
    """Load one text as the file `t.lot`."""
    return load([Source("t.lot", text)], Environment(ENVIRONMENT, secrets_dir))


def messages(text: str) -> list[str]:
    """Load a text and give its faults as they are printed, hints on the same line."""
    return [str(fault).replace("\n", " | ") for fault in load_text(text).faults]


_OF_THE_TEXT = ("path", "position", "definition")


def plain(value: object) -> Any:
    """Turn a part of the model into JSON values; what has its default is left out, secrets are shown.

    A text with placeholders is its place and its pieces, with ⟨name⟩ for each placeholder.
    """
    if isinstance(value, PlaceholderText):
        pieces = [piece if isinstance(piece, str) else _shown(piece) for piece in value.pieces]
        return f"{value.place}: {''.join(pieces)}"
    if isinstance(value, Condition):
        return value.source
    if isinstance(value, Schema):
        return value.path
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in fields(value)
            if field.name not in _OF_THE_TEXT and not _is_default(field, getattr(value, field.name))
        }
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def _shown(placeholder: Placeholder) -> str:
    default = "" if placeholder.default is None else f"|{placeholder.default}"
    return f"⟨{placeholder.name}{default}⟩"


def _is_default(field: Any, value: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default is not MISSING and bool(value == default)
