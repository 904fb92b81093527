"""Payloads to commands. Pure, and cheap enough for the broker's loop whatever a payload holds.

A payload is `-word arguments`, with `-requestId ID` as its last words where the client wants the envelope.
"""

import re
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.errors import on_one_line

COMMAND_TOPIC: Final = "$SYS/Coreflux/Command"
OUTPUT_TOPIC: Final = "$SYS/Coreflux/Command/Output"
ROOT: Final = "$SYS/Coreflux"
MAX_BYTES: Final = 256 << 10
"""Longer payloads are refused: 6,000 lines or so, which take three seconds to parse."""

_KNOWN: Final = (
    "AddRoute", "RemoveRoute", "RemoveAllRoutes", "ListRoutes", "ListEntities", "RouteCode", "CheckRouteConnection",
    "ConnectionStatus", "LotDiagnostic", "ListTemplates", "ListEnv", "ListSecrets", "GetPendingStatus", "ListProjects",
)  # fmt: skip
NAMES: Final = {name.lower(): name for name in _KNOWN}
"""The commands that are executed, by their names in lower case."""

# At the end of the payload, on a line of its own or not: the line before may be a comment.
_REQUEST_ID: Final = re.compile(rb"(?:^|\s)--?request-?id\s{1,64}(\S{1,128})\s{0,64}$", re.IGNORECASE)
_TAIL: Final = 512
_WORD: Final = re.compile(r"\s*(-{1,2}[A-Za-z][A-Za-z-]{0,63})(?:\s|$)")
_ROUTE: Final = re.compile(r"DEFINE\s+ROUTE\s+(\S+)", re.IGNORECASE)
_SPACE: Final = re.compile(r"(?:\s+|//[^\n]*|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_DEFINE: Final = re.compile(r"DEFINE\b", re.IGNORECASE)
_NAMED: Final = re.compile(r"([A-Za-z0-9_.-]+)\s+")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_NAME_OF_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # a hidden file is not read; 255 bytes at most


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it came: `word` as the client wrote it, `name` as the envelope has it, such as `AddRoute`.

    `fault` is why it cannot be a command of anything; `arguments` are as they were sent.
    """

    word: str
    name: str
    arguments: str
    request_id: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """What `-addRoute` brings: the route's name and text, and what comes before the text in the arguments.

    `fault` is why the arguments cannot be a definition of one route. Without a name, the parser reports why.
    """

    name: str | None
    text: str
    before: str = ""
    fault: str | None = None


def parse(payload: bytes) -> Command:
    """Parse a payload; of one that is too long only both ends are looked at."""
    found = _REQUEST_ID.search(payload[-_TAIL:])
    request_id = found and found[1].decode("utf-8", "replace")
    is_long = len(payload) > MAX_BYTES
    end = len(payload) if found is None else len(payload) - min(_TAIL, len(payload)) + found.start()
    fault = f"a command has at most {MAX_BYTES >> 10} KiB" if is_long else None
    try:
        text = payload[:end].decode() if not is_long else payload[:_TAIL].decode("utf-8", "replace")
    except UnicodeDecodeError:
        text, fault = payload[:_TAIL].decode("utf-8", "replace"), "a command is UTF-8 text"
    word = _WORD.match(text)
    if word is None:
        fault = fault or "a command begins with - and its name, such as -listRoutes"
        return Command("command", "", on_one_line(text), request_id, fault)
    arguments = "" if is_long else text[word.end() :]
    name = "".join([part[0].upper() + part[1:] for part in word[1].split("-") if part])
    return Command(word[1], NAMES.get(name.lower(), name), arguments, request_id, fault)


def read_definition(arguments: str) -> Definition:
    """Read `[NAME] DEFINE ROUTE ...`; comments may come before the definition."""
    at, before, named = _behind_space(arguments, 0), "", ""
    if not _DEFINE.match(arguments, at) and (word := _NAMED.match(arguments)) is not None:
        named, before = word[1], word[0]
        at = _behind_space(arguments, len(before))
    text = arguments[len(before) :]
    if not _DEFINE.match(arguments, at):
        return Definition(None, text, before, "write -addRoute and the whole definition, from DEFINE ROUTE on")
    found = _ROUTE.match(arguments, at)
    if found is None or not _NAME.fullmatch(found[1]):
        return Definition(None, text, before)
    name = found[1]
    fault = None
    if named not in ("", name):
        fault = f"-addRoute names {on_one_line(named)}, and the definition {on_one_line(name)}"
    elif not is_name_of_file(name):
        fault = "such a route has a name of at most 200 characters, which begins with a letter, a digit or _"
    return Definition(name, text, before, fault)


def is_name_of_file(name: str) -> bool:
    """Return whether a route of this name can have a file of its own."""
    return _NAME_OF_FILE.fullmatch(name) is not None


def _behind_space(text: str, at: int) -> int:
    """Return where white space and comments end."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def subject_of(arguments: str) -> str:
    """Return what a command is about, for its answer: the name in a definition, else its first word."""
    found = re.search(r"\bDEFINE\s+\w+\s+[\"']?([^\s\"']+)", arguments[:_TAIL], re.IGNORECASE)
    words = [found[1]] if found is not None else arguments[:_TAIL].split()[:1]
    return on_one_line(words[0]) if words else ""
