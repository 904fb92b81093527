"""Answers to bytes: the envelope for a command with a request id, else a text as the notebook extension reads it. Pure.

That extension takes any answer that holds the word "success" for one, also an answer to another client. So no failure
holds it: in an envelope its first letter is written as an escape of JSON, in a text a soft hyphen parts it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from amqtt_rest_bridge.errors import Fault
from amqtt_rest_bridge.tools.commands.command import Command

_WORD: Final = re.compile("s(?=uccess)", re.IGNORECASE)
_IN_TEXT: Final = re.compile("(?<=suc)(?=cess)", re.IGNORECASE)
_SOFT_HYPHEN: Final = "\u00ad"
_LIKE_A_PLACE: Final = re.compile(r"\((\d+),(\d+)\)")
_MOST_IN_A_TEXT: Final = 20
_LINE: Final = 200


class Problem(TypedDict):
    """A fault of a text that was sent, at its place in the arguments of the command, as the envelope has it."""

    message: str
    line: int
    column: int
    sourceLines: list[str]
    suggestions: list[str]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What a command is answered: a sentence, or problems; `route` is the name that it is about."""

    message: str
    is_success: bool = True
    route: str | None = None
    data: Any = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def failure(command: Command, subject: str, why: str) -> CommandAnswer:
    """Return the answer to a command that changed nothing; it names what it is about, and holds the word error."""
    about = f" {subject}" if subject else ""
    return CommandAnswer(f"Error: {command.word}{about} failed: {why}", False, subject or None)


def refusal(faults: Sequence[Fault], text: str, before: str = "") -> CommandAnswer:
    """Return the answer to a text with faults; `before` comes before it in the arguments, and counts."""
    lines = text.split("\n")
    problems = tuple([_problem(fault, lines, before) for fault in faults])
    return CommandAnswer(f"Parsing error: {_shown(problems[0])}", False, problems=problems)


def write(command: Command, answer: CommandAnswer) -> bytes:
    """Return the payload of an answer."""
    if command.request_id is None:
        text = _text(answer)
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
    return (written if answer.is_success else _WORD.sub(lambda letter: f"\\u{ord(letter[0]):04x}", written)).encode()


def _text(answer: CommandAnswer) -> str:
    lines = [answer.message]
    if answer.problems:
        first, *more = answer.problems
        hints = [*first["suggestions"]]
        hints += [" ".join(["also:", _shown(one), *one["suggestions"]]) for one in more[: _MOST_IN_A_TEXT - 1]]
        if len(answer.problems) > _MOST_IN_A_TEXT:
            hints.append(f"{len(answer.problems) - _MOST_IN_A_TEXT} more are not listed")
        lines += ["Suggestions: " + "\n".join(hints)] if hints else []
    return "\n".join(lines)


def _shown(problem: Problem) -> str:
    """Write message and place; the extension takes the first (LINE,COLUMN) for the place."""
    message = _LIKE_A_PLACE.sub(r"(\1, \2)", problem["message"])
    return f"{message} ({problem['line']},{problem['column']})"


def _problem(fault: Fault, lines: Sequence[str], before: str) -> Problem:
    line, column = fault.position.line, fault.position.column
    source = lines[line - 1].rstrip("\r")[:_LINE] if line <= len(lines) else ""
    if line == 1:
        column += len(before) - (before.rfind("\n") + 1)
    return {
        "message": fault.message,
        "line": line + before.count("\n"),
        "column": column,
        "sourceLines": [source],
        "suggestions": [] if fault.hint is None else [fault.hint],
    }
