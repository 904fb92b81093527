"""Values with placeholders to `PlaceholderText`, with what is wrong or looks wrong in them."""

import json
import re

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.language.report import Report, closest
from amqtt_rest_bridge.language.settings import Value
from amqtt_rest_bridge.placeholders import (
    PLACEHOLDERS,
    LoneBackslashError,
    Mode,
    Place,
    Placeholder,
    PlaceholderKind,
    PlaceholderText,
    Suspect,
    dot_segments,
    parse,
    recognise,
    suspects,
)
from amqtt_rest_bridge.topics import check_topic_name

_BRACKETS = re.compile(r"\[\s*['\"]?([^\[\]'\"]*)['\"]?\s*\]")
_CLIENT_SYNONYMS = {"message": "payload", "msg": "payload", "json": "value.json", "csv": "payload.csv"}
_SYNONYMS = {
    Mode.CLIENT: _CLIENT_SYNONYMS,
    Mode.RESULT: _CLIENT_SYNONYMS,
    Mode.SERVER: {"message": "body", "msg": "body", "json": "body.json"},
}
_BODIES = (Place.JSON, Place.FORM, Place.TEXT)


def read_template(name: str, value: Value, place: Place, mode: Mode, report: Report) -> PlaceholderText | None:
    """Parse a value with placeholders and check its literal text; None when it is not allowed there.

    `name` is the setting's or header's, for messages.
    """
    misspelt = _warn_of_misspelt(value, place, mode, report)
    try:
        template = parse(value.parts, place, mode)
        _check_literal(template, value)
    except CallError as failed:
        report.error(value.offset, f"{name}: {failed.message}")
        return None
    except LoneBackslashError as error:
        hint = r"write \\\\ in the file: a backslash of JSON is two, and each of them is two in a string of the file"
        report.error(value.offset, f"{name} {error}", hint)
        return None
    except FormError as refused:
        report.error(value.offset, value.hide(f"{name} {refused.message}"), refused.hint)
        return None
    if place is Place.ENDPOINT:  # in server mode it is not a template
        warn_of_dot_segments(name, _sample(template), value.offset, report)
    if place is Place.JSON and not misspelt:
        _warn_of_broken_json(name, template, value, report)
    return template


def _sample(template: PlaceholderText) -> str:
    """Return the text with any word for each placeholder."""
    return "".join([piece if isinstance(piece, str) else "x" for piece in template.pieces])


def _check_literal(template: PlaceholderText, value: Value) -> None:
    sample = _sample(template)
    if template.place is Place.ENDPOINT:
        forms.check_client_endpoint(sample)
    elif template.place is Place.HEADER and forms.has_control(sample):
        raise FormError("holds a control character, which a header cannot carry", "write the value on one line")
    elif template.place is Place.TOPIC and (reason := check_topic_name(sample)):
        raise FormError(f'"{value.shown}" {reason}')


def warn_of_dot_segments(name: str, path: str, offset: int, report: Report) -> None:
    """Warn of a `.` or `..` that is written as a segment: it is sent as it is, and servers differ in what they do."""
    if dot_segments(path):
        message = f"{name} has a segment . or ..: it is sent as written, and servers resolve or refuse it"
        report.warning(offset, message, "write the path that is meant")


def _warn_of_broken_json(name: str, template: PlaceholderText, value: Value, report: Report) -> None:
    """Warn when the body is not JSON with any values of its placeholders, or with their defaults."""
    sample = "".join([piece if isinstance(piece, str) else _json_sample(piece) for piece in template.pieces])
    lines = [line for line in sample.split("\n") if line.strip()]
    try:
        if sample and not (len(lines) > 1 and all(map(_is_json, lines))):  # one a line, as application/x-ndjson has it
            json.loads(sample)
    except (ValueError, RecursionError) as error:
        reason = error.msg.lower() if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        hint = "if it is not meant to be JSON, say so with a Content-Type header or DEFAULT_CONTENT_TYPE"
        report.warning(value.offset, f"{name} is not JSON: {reason}", hint)


def _json_sample(placeholder: Placeholder) -> str:
    return "x" if placeholder.quoted else "0" if placeholder.default is None else placeholder.default


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _warn_of_misspelt(value: Value, place: Place, mode: Mode, report: Report) -> bool:
    found = False
    for piece in value.pieces:
        if piece.source:
            continue
        for suspect in suspects(piece.text, mode):
            warning = explain(suspect, place, mode)
            if warning is not None:
                report.warning(piece.offset + suspect.offset, *warning)
                found = True
    return found


def explain(suspect: Suspect, place: Place, mode: Mode) -> tuple[str, str | None] | None:
    """Return message and hint for what looks like a placeholder, None when it may be meant as text."""
    return _explain_foreign(suspect, mode) or _explain(suspect, place, mode)


def _explain_foreign(suspect: Suspect, mode: Mode) -> tuple[str, str | None] | None:
    """Return message and hint for a placeholder that is written as another language does, None for any other."""
    name = suspect.name
    if recognise(name, mode) is None:
        return None
    if (dotted := _dotted(name)) != name:
        return f"{{{name}}} asks for a key that holds brackets", f"did you mean {{{dotted}}}?"
    if suspect.written.startswith("${"):
        hint = f'write {{{name}}}, or "$" + "{{{name}}}" if the $ is meant'
        return f"{suspect.written}: the $ stays as text", hint
    return f"{suspect.written}: the outer braces stay as text", f"did you mean {{{name}}}?"


def _explain(suspect: Suspect, place: Place, mode: Mode) -> tuple[str, str | None] | None:
    """Return message and hint for a text that is not a placeholder, None when it may be meant as text."""
    name = suspect.name.strip()
    written = suspect.written.replace(suspect.name, name)
    if mode is Mode.CLIENT and name.startswith("response.") and recognise(name, Mode.RESULT):
        message = f"{written} stays as text: the request is sent before there is a response"
        return message, "PAYLOAD and DESTINATION_TOPIC may hold it"
    other = Mode.CLIENT if mode is Mode.SERVER else Mode.SERVER
    there = recognise(name, other)
    if there is not None:
        own = next((kind for kind in _kinds(mode) if kind.root == there.root), None)
        hint = f"write {{{'.'.join([own.names[0], *([there.argument] if there.argument else [])])}}}" if own else None
        return f"{written} exists only in {other} mode and stays as text", hint
    message = f"{written} is not a placeholder and stays text"
    dotted = _dotted(name)
    meant = dotted if recognise(dotted, mode) else _meant(dotted, mode)
    if meant is not None:
        return message, f"did you mean {{{meant}}}?"
    if written[0] == "$" and name.isupper():
        return message, f"{{env.{name}}} is an environment variable"
    if suspect.written != f"{{{suspect.name}}}":
        return message, f"did you mean {{{'body' if mode is Mode.SERVER else 'value'}.json.{name}}}?"
    if place is Place.JSON or (place in _BODIES and name != suspect.name):
        return None  # JSON, and GraphQL with its spaces, may hold any words in braces; the others hardly do
    if mode is not Mode.SERVER:
        return message, f"{{value.json.{name}}} is a field of the payload"
    return message, f"{{path.{name}}} is a segment of ENDPOINT, {{query.{name}}} a query parameter"


def _dotted(name: str) -> str:
    """Return `a.0.b` for `a[0].b`."""
    return _BRACKETS.sub(r".\1", name)


def _meant(name: str, mode: Mode) -> str | None:
    """Guess the placeholder behind a misspelt name: its first one or two dotted parts come close to one that exists."""
    known = {own: kind for kind in reversed(_kinds(mode)) for own in kind.names}
    parts = name.split(".")
    if synonym := _SYNONYMS[mode].get(parts[0].lower()):
        return _completed(synonym, known[synonym], parts[1:])
    if len(parts) > 1 and parts[0] in known:
        first = known[parts[0]]
        if first.root == "payload":
            if closest(parts[1], ["csv"]) and mode is not Mode.SERVER:
                return f"{parts[0]}.csv.{parts[2] if parts[2:] and parts[2].isdecimal() else 0}"
            tail = parts[2:] if closest(parts[1], ["json"]) else parts[1:]
            return ".".join([parts[0], "json", *tail])
        if first.root == "topic":
            return "topic.1"
    for count in range(min(2, len(parts)), 0, -1):
        found = closest(".".join(parts[:count]), [own for own in known if own.count(".") == count - 1])
        if found is not None:
            return _completed(found, known[found], parts[count:])
    return None


def _completed(found: str, kind: PlaceholderKind, tail: list[str]) -> str:
    if tail and kind.root == "payload":
        return ".".join([found, "json", *tail])
    if kind.root == "csv":
        return f"{found}.{tail[0] if tail and tail[0].isdecimal() else 0}"
    if tail and kind.root == "topic":
        return "topic.1"
    if tail and kind.argument is None:
        return found
    return ".".join([found, *(tail or ([] if kind.alone else ["x"]))])


def _kinds(mode: Mode) -> list[PlaceholderKind]:
    return [kind for kind in PLACEHOLDERS if mode in kind.modes]
