"""Which placeholders there are, what a name between braces means, and what looks like one but is not. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """Which placeholders a text may hold: those of a message, a request, a message and its response, or a batch."""

    CLIENT = "client"
    SERVER = "server"
    RESULT = "result"
    BATCH = "batch"


RAW = "payload"
"""Root of `{payload}`, `{value}` and `{body}`: the bytes as they came."""

RAW_RESPONSE = "response.body"
"""Root of `{response.body}`: the bytes of the response."""

BATCH, BATCH_LINES = "batch", "batch.lines"
"""Roots of the items of a batch: as a JSON array, and one a line."""

RAWS = (RAW, RAW_RESPONSE, BATCH, BATCH_LINES)
_ANY_ARGUMENT = re.compile(r"\.([NxX]|a\.b\.0)\Z")


@dataclass(frozen=True, slots=True)
class PlaceholderKind:
    """One row of the table of placeholders, as they are `written`.

    `root` is its canonical name. `argument` is the pattern of the text behind a name and a dot, None if there is none.
    `names` are the names without argument. `alone`: a name may be used without argument.
    """

    written: tuple[str, ...]
    root: str
    modes: tuple[Mode, ...]
    meaning: str
    argument: str | None = None
    names: tuple[str, ...] = field(init=False)
    alone: bool = field(init=False)

    def __post_init__(self) -> None:
        """Derive the names."""
        names = dict.fromkeys(_ANY_ARGUMENT.sub("", one[1:-1]) for one in self.written)
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "alone", any(f"{{{name}}}" in self.written for name in names))


_CLIENT, _SERVER, _ALL = (Mode.CLIENT, Mode.RESULT), (Mode.SERVER,), tuple(Mode)
_BOTH, _RESULT, _BATCH = (*_CLIENT, *_SERVER), (Mode.RESULT,), (Mode.BATCH,)

PLACEHOLDERS: tuple[PlaceholderKind, ...] = (
    PlaceholderKind(
        ("{payload}", "{value}"), RAW, _CLIENT,
        "the payload of the message; as the whole BODY, byte for byte",
    ),
    PlaceholderKind(
        ("{value.json}", "{payload.json}", "{value.json.a.b.0}"), "json", _CLIENT,
        "the payload's JSON, serialised compactly, or one field of it: dots go into objects, numbers into arrays, "
        "a key that itself holds dots is tried first", r".+",
    ),
    PlaceholderKind(
        ("{payload.csv.N}", "{value.csv.N}"), "csv", _CLIENT,
        "the Nth field of the payload's first CSV record (RFC 4180), counted from 0", r"0|[1-9][0-9]{0,3}",
    ),
    PlaceholderKind(
        ("{source_topic}", "{topic}"), "topic", _CLIENT,
        "the topic of the message; its slashes are kept in ENDPOINT and DESTINATION_TOPIC",
    ),
    PlaceholderKind(("{topic.N}",), "level", _CLIENT, "the Nth level of the topic, counted from 1", r"[1-9][0-9]{0,4}"),
    PlaceholderKind(
        ("{property.x}",), "property", _CLIENT,
        "the user property x of the message (MQTT 5, so with workers only); the last one when it is repeated", r".+",
    ),
    PlaceholderKind(
        ("{body}",), RAW, _SERVER,
        "the body of the request (empty when it has none); as the whole PAYLOAD, byte for byte",
    ),
    PlaceholderKind(
        ("{body.json}", "{body.json.a.b.0}"), "json", _SERVER,
        "the body's JSON, serialised compactly, or one field of it", r".+",
    ),
    PlaceholderKind(
        ("{query.x}",), "query", _SERVER,
        "the query parameter x, percent-decoded; the last one when it is repeated", r".+",
    ),
    PlaceholderKind(
        ("{path.x}",), "path.x", _SERVER,
        "the `{x}` segment of ENDPOINT, percent-decoded", r"[A-Za-z0-9_.-]+",
    ),
    PlaceholderKind(("{path}",), "path", _SERVER, "the path of the request, percent-decoded"),
    PlaceholderKind(
        ("{header.x}",), "header", _SERVER,
        "the request header x, in any case", r"[!#$%&'*+.^_`|~0-9A-Za-z-]+",
    ),
    PlaceholderKind(("{method}",), "method", _SERVER, "the method of the request"),
    PlaceholderKind(("{request_id}",), "request_id", _SERVER, "a UUID that is different for every request"),
    PlaceholderKind(
        ("{response.body}",), RAW_RESPONSE, _RESULT,
        "the body of the response; as the whole PAYLOAD, byte for byte",
    ),
    PlaceholderKind(
        ("{response.json}", "{response.json.a.b.0}"), "response.json", _RESULT,
        "the JSON of the response's body, serialised compactly, or one field of it", r".+",
    ),
    PlaceholderKind(("{response.status}",), "response.status", _RESULT, "the status of the response"),
    PlaceholderKind(
        ("{response.header.x}",), "response.header", _RESULT,
        "the header x of the response, in any case; repeated ones are joined by `, `", r".+",
    ),
    PlaceholderKind(
        ("{timestamp}",), "timestamp", _BOTH,
        "when the broker received the message or request: RFC 3339 in UTC, as `2026-01-31T12:00:00.123Z`",
    ),
    PlaceholderKind(("{timestamp.unix}",), "timestamp.unix", _BOTH, "the same in seconds since 1970"),
    PlaceholderKind(("{timestamp.unix_ms}",), "timestamp.unix_ms", _BOTH, "the same in milliseconds since 1970"),
    PlaceholderKind(
        ("{batch}",), BATCH, _BATCH,
        "the items of a batch as a JSON array: JSON as JSON, others as strings",
    ),
    PlaceholderKind(("{batch.lines}",), BATCH_LINES, _BATCH, "the items of a batch, one a line"),
    PlaceholderKind(("{batch.size}",), "batch.size", _BATCH, "how many they are"),
    PlaceholderKind(("{env.X}",), "env", _ALL, "the environment variable X, read at load", r"[A-Za-z0-9_.-]+"),
    PlaceholderKind(
        ("{secret.X}",), "secret", _ALL, "the secret X (a file in secrets_dir), read at load",
        r"[A-Za-z0-9_.-]+",
    ),
)  # fmt: skip  # a table reads best as a table

AT_LOAD = ("env", "secret")
"""Roots that are filled at load; the others are filled for each message or request."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One placeholder in a text: `name` as written, `root` and `argument` what it means.

    `quoted`: it is inside a JSON string literal; `argument` of a `{header.x}` is in lower case. `default` is the text
    of `{name|text}`, which takes the place of a value that is missing or null; None without one.
    """

    name: str
    root: str
    argument: str = ""
    quoted: bool = False
    default: str | None = None

    @property
    def written(self) -> str:
        """Return it as it is written, with its braces and default."""
        return f"{{{self.name}}}" if self.default is None else f"{{{self.name}|{self.default}}}"


def recognise(text: str, mode: Mode) -> Placeholder | None:
    """Return the placeholder that a text between braces is in this mode, None when it is none."""
    name, bar, default = text.partition("|")
    instead = default if bar else None
    for kind in PLACEHOLDERS:
        for own in kind.names if mode in kind.modes else ():
            if name == own and kind.alone:
                return Placeholder(name, kind.root, default=instead)
            head, tail = name[: len(own) + 1], name[len(own) + 1 :]
            if head == f"{own}." and kind.argument is not None and re.fullmatch(kind.argument, tail):
                argument = tail.lower() if kind.root.endswith("header") else tail
                return Placeholder(name, kind.root, argument, default=instead)
    return None


# What looks like a placeholder.


_SUSPECT = re.compile(r"(?P<dollar>\$?)(?P<open>\{\{?)(?P<name>[^{}\"\x00-\x1f]{1,256})(?P<close>\}\}?)")
_NAMES = "payload|message|value|topic|source_topic"
_FOREIGN = re.compile(  # $payload, %payload%, @payload, <payload>, [payload], %s
    rf"(?<![\w$%@\\])(?:\$(?P<shell>{_NAMES})(?![\w:({{])|%(?P<windows>{_NAMES})%|@(?P<at>{_NAMES})(?!\w)"
    rf"|<(?P<tag>{_NAMES})>|\[(?P<index>{_NAMES})\]|%(?P<printf>s)(?!\w))"
)
_OPEN = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*+)([^{}\"\x00-\x1f]{0,256}+)(?!\})")
_QUOTED_KEY = re.compile(  # {value.json["id"]}
    r"\{([A-Za-z_][\w.-]*(?:\[\d{1,9}\][\w.-]*)*\[\"[^\"\[\]{}]{1,64}\"\][^{}\x00-\x1f]{0,128})\}"
)
_WORD = re.compile(r"\s*(?:\$\.)?[A-Za-z_][A-Za-z0-9_.-]*(?:\[[^\[\]]{1,64}\][A-Za-z0-9_.-]*)*\s*")


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that looks like a misspelt placeholder: `written` at `offset`, `name` in its braces.

    Both are without the `default`, which is `|TEXT` or "".
    `whole`: it is the whole of a string within the text, as in `{"city": "{city}"}`. `closed`: its brace is.
    """

    offset: int
    written: str
    name: str
    whole: bool = False
    default: str = ""
    closed: bool = True

    @property
    def has_spaced_bar(self) -> bool:
        """Return whether a space is beside its bar, as other languages allow it: here it belongs to name or default."""
        return _has_spaced_bar(self.name, self.default)

    @property
    def end(self) -> int:
        """Return the offset behind it."""
        return self.offset + len(self.written) + len(self.default)


def _has_spaced_bar(name: str, default: str) -> bool:
    return bool(default) and (name[-1:].isspace() or re.match(r"\|\s+\S", default) is not None)


def suspects(text: str, mode: Mode) -> Iterator[Suspect]:
    """Find what looks like a placeholder but is not one in this mode, or is one in the syntax of another language.

    Found are `${name}`, `{{name}}`, `{name[0]}` and `{name["x"]}` of any name, `$payload`, `%payload%`, `@payload`,
    `<payload>` and `[payload]` of the names in `_NAMES`, and a `{name` whose brace is not closed.
    """
    for match in _FOREIGN.finditer(text):
        name = "payload" if match["printf"] else str(match[match.lastgroup or 0])
        if not match["tag"] or f"</{name}>" not in text:  # XML
            yield Suspect(match.start(), match[0], name)
    for match in _SUSPECT.finditer(text):
        name, bar, text_instead = match["name"].partition("|")
        doubled = match["open"] == "{{" and match["close"] == "}}"
        known = recognise(name, mode) is not None
        foreign = doubled or bool(match["dollar"]) or "[" in name or _has_spaced_bar(name, bar + text_instead)
        if foreign if known else _WORD.fullmatch(name):
            written = f"{{{{{name}}}}}" if doubled else f"{{{name}}}"
            start = match.start("open") + (match["open"] == "{{" and not doubled)
            if match["dollar"] and (doubled or match["open"] == "{"):
                written, start = f"${written}", match.start()
            behind = text[match.end() : match.end() + 1]
            whole = text[match.start() - 1 : match.start()] == '"' and behind in ('"', "\\")
            yield Suspect(start, written, name, whole, bar + text_instead)
    for match in _QUOTED_KEY.finditer(text):
        yield Suspect(match.start(), match[0], match[1])
    for match in _OPEN.finditer(text):
        name, behind = match[1], text[match.end(1) : match.end(1) + 1]
        # A word alone has many meanings, as in GraphQL: it counts where a text, a level or a member ends.
        if _QUOTED_KEY.match(text, match.start()):
            continue
        if recognise(name, mode) and ("." in name or behind in ("", *"\"'\\,/&?")):
            yield Suspect(match.start(), f"{{{name}", name, closed=False)
