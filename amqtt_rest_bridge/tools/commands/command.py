"""Commands of MQTT clients: payloads are parsed to them, and their answers written. Pure.

Parsing is cheap for any payload, since it runs on the broker's loop. `execution` executes what it returns.

A payload is `-word arguments`, with `-requestId ID` as its last words where the client wants the envelope for an
answer. Without it the answer is a text, for the notebook extension. That extension takes any answer with the word
"success" for its own success, even an answer to another client. So no failure contains that word: in an envelope its
first letter is a JSON escape, in a text a soft hyphen splits it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from amqtt_rest_bridge.errors import Fault, on_one_line

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
_DEFINITION: Final = re.compile(
    r"(?:(?!DEFINE\b)(?P<named>[A-Za-z0-9_.-]++)\s+)?"
    r"(?P<text>(?>(?:\s++|//[^\n]*+|--[^\n]*+|/\*.*?\*/)*)DEFINE\b(?:\s+ROUTE\s+(?P<name>\S+))?.*)",
    re.IGNORECASE | re.DOTALL,
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_NAME_OF_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # a hidden file is not read; 255 bytes at most


@dataclass(frozen=True, slots=True)
class MqttCommand:
    """A command: its `word` as the client wrote it, its `name` as the envelope has it, such as `AddRoute`.

    `arguments` are as they were sent. `fault` says why a payload is not a command, None if it is one.
    """

    word: str
    name: str
    arguments: str
    request_id: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class AddedRoute:
    """The arguments of `-addRoute`: the route's name and text, and what precedes the text.

    `fault` says why they are not the definition of one route. If there is no name, the parser reports why.
    """

    name: str | None
    text: str
    before: str = ""
    fault: str | None = None


def parse_command(payload: bytes) -> MqttCommand:
    """Parse a payload. Of one that is too long only the beginning and the end are read."""
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
        return MqttCommand("command", "", on_one_line(text), request_id, fault)
    arguments = "" if is_long else text[word.end() :]
    name = "".join([part[0].upper() + part[1:] for part in word[1].split("-") if part])
    return MqttCommand(word[1], NAMES.get(name.lower(), name), arguments, request_id, fault)


def read_definition(arguments: str) -> AddedRoute:
    """Read `[NAME] DEFINE ROUTE ...`; comments may come before the definition."""
    found = _DEFINITION.fullmatch(arguments)
    if found is None:
        return AddedRoute(None, arguments, "", "write -addRoute and the whole definition, from DEFINE ROUTE on")
    named, name, text = found["named"] or "", found["name"], found["text"]
    before = arguments[: found.start("text")]
    if name is None or not _NAME.fullmatch(name):
        return AddedRoute(None, text, before)
    fault = None
    if named not in ("", name):
        fault = f"-addRoute names {on_one_line(named)}, and the definition {on_one_line(name)}"
    elif not is_name_of_file(name):
        fault = "such a route has a name of at most 200 characters, which begins with a letter, a digit or _"
    return AddedRoute(name, text, before, fault)


def is_name_of_file(name: str) -> bool:
    """Return whether a route of this name can have a file of its own."""
    return _NAME_OF_FILE.fullmatch(name) is not None


def subject_of(arguments: str) -> str:
    """Return the subject of a command, for its answer: the name in a definition, else the first word."""
    found = re.search(r"\bDEFINE\s+\w+\s+[\"']?([^\s\"']+)", arguments[:_TAIL], re.IGNORECASE)
    words = [found[1]] if found is not None else arguments[:_TAIL].split()[:1]
    return on_one_line(words[0]) if words else ""


_SUCCESS: Final = re.compile("s(?=uccess)", re.IGNORECASE)
_IN_TEXT: Final = re.compile("(?<=suc)(?=cess)", re.IGNORECASE)
_SOFT_HYPHEN: Final = "\u00ad"
_LIKE_A_PLACE: Final = re.compile(r"\((\d+),(\d+)\)")
_MOST_IN_A_TEXT: Final = 20
_LINE: Final = 200


class ReportedFault(TypedDict):
    """A fault of a text as the envelope has it; its place is counted in the arguments of the command."""

    message: str
    line: int
    column: int
    sourceLines: list[str]
    suggestions: list[str]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer to a command: a sentence, or the problems of a text. `route` is the route that it is about, if any."""

    message: str
    is_success: bool = True
    route: str | None = None
    data: Any = field(default_factory=dict)
    problems: tuple[ReportedFault, ...] = ()


def failure_answer(command: MqttCommand, subject: str, why: str) -> CommandAnswer:
    """Return the answer to a command that failed; it names its subject, and has the word error in it."""
    about = f" {subject}" if subject else ""
    return CommandAnswer(f"Error: {command.word}{about} failed: {why}", False, subject or None)


def refusal_answer(faults: Sequence[Fault], text: str, before: str = "") -> CommandAnswer:
    """Return the answer to a text with faults. Places are counted from `before`, which precedes the text."""
    lines = text.split("\n")
    problems: list[ReportedFault] = []
    for fault in faults:
        line, column = fault.position.line, fault.position.column
        source = lines[line - 1].rstrip("\r")[:_LINE] if line <= len(lines) else ""
        if line == 1:
            column += len(before) - (before.rfind("\n") + 1)
        problems.append({
            "message": fault.message,
            "line": line + before.count("\n"),
            "column": column,
            "sourceLines": [source],
            "suggestions": [] if fault.hint is None else [fault.hint],
        })  # fmt: skip
    return CommandAnswer(f"Parsing error: {_message_and_place(problems[0])}", False, problems=tuple(problems))


def write_answer(command: MqttCommand, answer: CommandAnswer) -> bytes:
    """Return the payload of an answer."""
    if command.request_id is None:
        lines = [answer.message]
        if answer.problems:
            first, *others = answer.problems
            more = others[: _MOST_IN_A_TEXT - 1]
            also = [" ".join(["also:", _message_and_place(one), *one["suggestions"]]) for one in more]
            hints = [*first["suggestions"], *also]
            if len(answer.problems) > _MOST_IN_A_TEXT:
                hints.append(f"{len(answer.problems) - _MOST_IN_A_TEXT} more are not listed")
            lines += ["Suggestions: " + "\n".join(hints)] if hints else []
        text = "\n".join(lines)
        return (text if answer.is_success else _IN_TEXT.sub(_SOFT_HYPHEN, text)).encode()
    envelope = {
        "success": answer.is_success,
        "command": command.name,
        "requestId": command.request_id,
        "message": answer.message,
        "entityType": None if answer.route is None else "Route",
        "entityName": answer.route,
        "data": answer.data,
        "errors": answer.problems or ([] if answer.is_success else [{"message": answer.message}]),
    }
    written = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    return (written if answer.is_success else _SUCCESS.sub(lambda letter: f"\\u{ord(letter[0]):04x}", written)).encode()


def _message_and_place(problem: ReportedFault) -> str:
    """Return message and place. The extension takes the first (LINE,COLUMN) of an answer for the place."""
    message = _LIKE_A_PLACE.sub(r"(\1, \2)", problem["message"])
    return f"{message} ({problem['line']},{problem['column']})"
