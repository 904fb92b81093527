"""The forms in which `rest-bridge check` prints faults: lines, JSON, SARIF, and the annotations of GitHub. Pure."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from amqtt_rest_bridge.cli import without_controls
from amqtt_rest_bridge.errors import Fault, Position, Severity, utf_8
from amqtt_rest_bridge.lot.masking import is_credential
from amqtt_rest_bridge.lot.settings_table import PARAMETERS
from amqtt_rest_bridge.lot.sources import split_cell
from amqtt_rest_bridge.system import own_version

_WORD = re.compile(r"[\w-]+")
_SECRET = {name for rows in PARAMETERS.values() for name, row in rows.items() if row.secret}
_TAB = 4
_LONGEST_LINE = 4_000  # characters; a longer line is not shown: it would be searched for credentials at each fault
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def text_of(fault: Fault, texts: Mapping[str, str], columns: int | None = None) -> str:
    """Return a fault as text; with the width of a terminal, its line of the file is below the message."""
    first, *others = str(fault).split("\n")
    excerpt = _excerpt(fault, texts[fault.path], columns) if columns and fault.path in texts else ()
    return "\n".join([first, *excerpt, *others])


def _excerpt(fault: Fault, text: str, columns: int) -> Iterator[str]:
    """Yield the line of a fault, cut to a width, and carets below it; nothing for one that may hold a credential."""
    from rich.cells import cell_len  # which no other form needs

    place, end = fault.position, fault.end
    lines = text.split("\n", place.line)
    line = lines[place.line - 1].rstrip("\r") if place.line <= len(lines) else ""
    if (
        not line.strip()
        or len(line) > _LONGEST_LINE
        or any(word.upper() in _SECRET or is_credential(word) for word in _WORD.findall(line))
    ):
        return
    begin = place.column - 1
    behind = end.column - 1 if end.line == place.line else len(line)
    pieces = [" " * _TAB if character == "\t" else without_controls(character) for character in line]
    widths = [cell_len(piece) for piece in pieces]
    # A line that is too wide is shown from a third of the width before the fault on.
    start = max(0, begin - columns // 3) if sum(widths) > columns - 2 else 0
    shown, marks = "", ""
    for number in range(start, len(pieces)):
        if len(marks) + widths[number] > columns - 2:
            break
        shown += pieces[number]
        marks += ("^" if begin <= number < max(behind, begin + 1) else " ") * widths[number]
    yield f"  {shown.rstrip()}"
    yield f"  {marks.rstrip() or '^'}"


def json_of(faults: Sequence[Fault]) -> str:
    """Return faults as a JSON array of objects; `uri` names the file byte by byte, a cell as its fragment."""
    objects = [
        {
            **{"path": utf_8(one.path), "uri": _uri(one.path)},
            **{"line": one.position.line, "column": one.position.column},
            **{"end_line": one.end.line, "end_column": one.end.column, "severity": one.severity, "code": one.code},
            **{"message": one.message, "hint": one.hint, "replacement": one.replacement},
        }
        for one in faults
    ]
    return json.dumps(objects, indent=2, ensure_ascii=False)


def _uri(path: str) -> str:
    """Return a path as a relative reference (RFC 3986), whatever bytes its names are made of."""
    file, cell = split_cell(path)
    fragment = f"#{cell}" if cell else ""
    return quote(file.replace("\\", "/") if os.name == "nt" else file, errors="surrogateescape") + fragment


# GitHub: https://docs.github.com/actions/reference/workflow-commands-for-github-actions


def github_of(fault: Fault) -> str:
    """Return a fault as a workflow command, which GitHub shows in the file, for a cell at the top of its notebook."""
    file, place, end, message = _in_file(fault)
    properties: dict[str, object] = {"file": utf_8(file), "line": place.line, "endLine": end.line}
    if place.line == end.line:  # GitHub takes no columns for more than one line
        properties |= {"col": place.column, "endColumn": end.column}
    properties["title"] = fault.code
    written = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in properties.items())
    return f"::{fault.severity} {written}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    """Escape as `escapeData` of GitHub's toolkit does, and with `:,` as its `escapeProperty`."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _in_file(fault: Fault) -> tuple[str, Position, Position, str]:
    """Return file, place, end, and message with hint. A fault in a cell has the notebook's top for a place."""
    message = f"{fault.message}\nhint: {fault.hint}" if fault.hint else fault.message
    file, cell = split_cell(fault.path)
    if not cell:
        return fault.path, fault.position, fault.end, message
    top, place = Position(1, 1), fault.position
    return file, top, top, f"cell {cell}, line {place.line}, column {place.column}: {message}"


# SARIF 2.1.0.


def sarif_of(faults: Sequence[Fault]) -> str:
    """Return faults as one run of SARIF, with a fix for each replacement."""
    codes = sorted({fault.code for fault in faults})
    rules = [{"id": code, "shortDescription": {"text": code.meaning}} for code in codes]
    driver = {"name": "rest-bridge", "version": own_version(), "rules": rules}
    results = []
    for fault in faults:
        file, place, end, message = _in_file(fault)
        artifact = {"uri": _uri(file)}
        region = {"startLine": place.line, "startColumn": place.column, "endLine": end.line, "endColumn": end.column}
        result: dict[str, Any] = {
            "ruleId": fault.code,
            "ruleIndex": codes.index(fault.code),
            "level": "note" if fault.severity is Severity.NOTICE else str(fault.severity),
            "message": {"text": message},
            "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
        }
        if fault.replacement is not None and file == fault.path:
            change = {"deletedRegion": region, "insertedContent": {"text": fault.replacement}}
            fix = {"artifactChanges": [{"artifactLocation": artifact, "replacements": [change]}]}
            result["fixes"] = [fix | {"description": {"text": fault.hint}}]
        results.append(result)
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)
