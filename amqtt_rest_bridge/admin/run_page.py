"""What the page of a run makes of its JSON object: a time line, JSON that folds, and commands for a shell. Pure.

`json_objects.whole_run_object` makes the object, `templates/run.html` the page.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from amqtt_rest_bridge.errors import CONTROL
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.settings import Settings

_CURL_OWN: Final = frozenset({"host", "content-length", "accept-encoding", "user-agent", "connection"})
"""Headers that curl sends by itself."""
_DEEPEST: Final = 32
_MOST_LINES: Final = 1000
"""Of JSON; a text that needs more, or is nested more deeply, is shown as it is."""
_UNFOLDED_LINES: Final = 24  # lines of an object or array


@dataclass(frozen=True, slots=True)
class Bar:
    """A try on the time line of a run, in hundredths of its width."""

    left: float
    width: float


def time_line(tries: Sequence[Mapping[str, Any]], waited_ms: float | None) -> tuple[list[Bar], float]:
    """Return where the tries of a run are, and the seconds from its message to the end of the last one.

    `waited_ms` is what the message waited, which is before the first one or between them.
    """
    ends = [datetime.fromisoformat(one["time"]).timestamp() for one in tries]
    begins = [end - one["ms"] / 1000 for end, one in zip(ends, tries, strict=True)]
    took_ms = sum(one["ms"] for one in tries)
    end = max(ends, default=0.0)
    begin = min([*begins, end - ((waited_ms or 0) + took_ms) / 1000])
    seconds = end - begin
    scale = 100 / (seconds or 1.0)
    bars = [
        Bar(round((start - begin) * scale, 2), round(max(0.5, (end - start) * scale), 2))
        for start, end in zip(begins, ends, strict=True)
    ]
    return [Bar(min(bar.left, 100 - bar.width), bar.width) for bar in bars], seconds


def tries_text(run: Mapping[str, Any], started: float) -> str:
    """Return how often a run was tried; if its message came before the bridge started, how often since."""
    count, end = len(run["tries"]), datetime.fromisoformat(run["time"]).timestamp()
    text = f"{count} {'try' if count == 1 else 'tries'}"
    came = end - ((run["waited_ms"] or 0) + (run["took_ms"] or 0)) / 1000
    return f"{text} since the restart" if came < started <= end else text


# JSON as lines, of which a template makes folding elements. Names (also those that occur twice), order and numbers stay
# as they were written.


class Line(NamedTuple):
    """A member or an item of JSON.

    `kind` is `string`, `number` or `word`, or for an object or array `open` and `close`. `text` is the value, or the
    number of members or items. `is_open` says whether an object or array is unfolded at first.
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
    """Return the lines of an object or array that is not empty; no lines for any other text."""
    try:
        value = json.loads(
            text, object_pairs_hook=_Members, parse_float=_Number, parse_int=_Number, parse_constant=_Number
        )
        lines = list(_lines("", value, 0))
    except (ValueError, RecursionError):
        return []
    return lines if 1 < len(lines) <= _MOST_LINES else []


def _lines(name: str, value: Any, depth: int) -> Iterator[Line]:
    """Yield the lines of a member or an item; raises `RecursionError` beyond `_DEEPEST`."""
    match value:
        case _Number():
            yield Line("number", name, value)
        case str():
            yield Line("string", name, json.dumps(value, ensure_ascii=False))
        case []:
            yield Line("word", name, "{}" if isinstance(value, _Members) else "[]")
        case list():
            if depth == _DEEPEST:
                raise RecursionError
            if isinstance(value, _Members):
                noun, parts = "{{ {} member{} }}", [(json.dumps(key, ensure_ascii=False), one) for key, one in value]
            else:
                noun, parts = "[ {} item{} ]", [(str(number), one) for number, one in enumerate(value)]
            inner = [line for part in parts for line in _lines(*part, depth + 1)]
            count = noun.format(len(value), "" if len(value) == 1 else "s")
            yield Line("open", name, count, is_open=depth == 0 or len(inner) <= _UNFOLDED_LINES)
            yield from inner
            yield Line("close")
        case _:
            yield Line("word", name, {None: "null", True: "true", False: "false"}[value])


# A run as lines for a shell.


def curl_line(run: Mapping[str, Any], route: Route | None) -> str | None:
    """Return a curl command for the request of a run, None if it sent none or the body is not shown whole.

    A request of server mode has no host, so the command sends it to the port of the route on this machine.
    """
    request = run["request"]
    if not request or request.get("is_cut") or request.get("body_encoding") == "base64":
        return None
    url = request["url"]
    if url.startswith("/"):
        if route is None:
            return None
        url = f"http://127.0.0.1:{route.config.server_port}{url}"
    words = ["curl", "-i", "-g", "-X", request["method"], url]
    for name, value in request["headers"]:
        if name.lower() not in _CURL_OWN:
            words += ["-H", f"{name}: {value}" if value else f"{name};"]  # `NAME:` would leave the header out
    if request.get("body"):
        words += ["--data-raw", request["body"]]
    return _shell_line(words)


def try_line(run: Mapping[str, Any], route: Route | None, secrets_dir: str = Settings.secrets_dir) -> str | None:
    """Return a `rest-bridge try` command for the message of a call, None for a request or a message not shown whole."""
    message = run["message"]
    if route is None or not message or "path" in run or message["payload"] is None or message["is_cut"]:
        return None
    if message["payload_encoding"] == "base64":
        return None
    options = {"--topic": message["topic"], "--payload": message["payload"]}
    if secrets_dir != Settings.secrets_dir:
        options["--secrets-dir"] = secrets_dir
    return _shell_line(["rest-bridge", "try", route.path, *(word for pair in options.items() for word in pair)])


def _shell_line(words: Sequence[str]) -> str | None:
    """Return a line for a shell with each word quoted, so that no text of a message is read as a command.

    Returns None if a word holds NUL, which no shell accepts. Control characters could end a paste, so they are escaped
    as bash and zsh read them. Secrets are masked: a reader fills them in before sending the line.
    """
    quoted = []
    for word in words:
        if "\0" in word:
            return None
        if CONTROL.search(word) is None:
            quoted.append(shlex.quote(word))
        else:
            text = word.replace("\\", "\\\\").replace("'", "\\'")
            text = CONTROL.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in found[0].encode()), text)
            quoted.append(f"$'{text}'")
    return " ".join(quoted)
