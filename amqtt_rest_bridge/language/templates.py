"""Values with placeholders to `PlaceholderText`, with what is wrong or looks wrong in them."""

import json

from amqtt_rest_bridge.errors import CallFailed
from amqtt_rest_bridge.language import syntax
from amqtt_rest_bridge.language.report import Report
from amqtt_rest_bridge.language.suggest import closest
from amqtt_rest_bridge.language.syntax import Refused
from amqtt_rest_bridge.language.values import Value
from amqtt_rest_bridge.placeholders import (
    PLACEHOLDERS,
    LoneBackslash,
    Mode,
    Place,
    PlaceholderKind,
    PlaceholderText,
    parse,
    recognise,
    suspects,
)
from amqtt_rest_bridge.topics import check_topic_name

_BODIES = (Place.JSON, Place.FORM, Place.TEXT)


def read_template(name: str, value: Value, place: Place, mode: Mode, report: Report) -> PlaceholderText | None:
    """Parse a value with placeholders and check its literal text; None when it cannot stand in its place.

    `name` is the setting's or header's, for messages.
    """
    misspelt = _warn_of_misspelt(value, place, mode, report)
    try:
        template = parse(value.parts, place, mode)
        _check_literal(template, value)
    except CallFailed as failed:
        report.error(value.offset, f"{name}: {failed.message}")
        return None
    except LoneBackslash as error:
        hint = r"write \\\\ in the file: a backslash of JSON is two, and each of them is two in a string of the file"
        report.error(value.offset, f"{name} {error}", hint)
        return None
    except Refused as refused:
        report.error(value.offset, value.hide(f"{name} {refused.message}"), refused.hint)
        return None
    if place is Place.JSON and not misspelt:
        _warn_of_broken_json(name, template, value, report)
    return template


def _check_literal(template: PlaceholderText, value: Value) -> None:
    sample = "".join([piece if isinstance(piece, str) else "x" for piece in template.pieces])
    if template.place is Place.ENDPOINT:
        syntax.check_client_endpoint(sample)
    elif template.place is Place.HEADER and syntax.has_control(sample):
        raise Refused("holds a control character, which a header cannot carry", "write the value on one line")
    elif template.place is Place.TOPIC and (reason := check_topic_name(sample)):
        raise Refused(f'"{value.shown}" {reason}')


def _warn_of_broken_json(name: str, template: PlaceholderText, value: Value, report: Report) -> None:
    """Warn when the body is no JSON whatever the placeholders bring."""
    sample = "".join([piece if isinstance(piece, str) else "x" if piece.quoted else "0" for piece in template.pieces])
    try:
        if sample:
            json.loads(sample)
    except (ValueError, RecursionError) as error:
        reason = error.msg.lower() if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        hint = "if it is not meant to be JSON, say so with a Content-Type header or DEFAULT_CONTENT_TYPE"
        report.warning(value.offset, f"{name} is not JSON: {reason}", hint)


def _warn_of_misspelt(value: Value, place: Place, mode: Mode, report: Report) -> bool:
    found = False
    for piece in value.pieces:
        if not piece.is_string and piece.text[:3].upper() == "GET":
            continue
        for offset, name in suspects(piece.text, mode):
            warning = _explain(name, place, mode)
            if warning is not None:
                report.warning(piece.offset + offset, *warning)
                found = True
    return found


def _explain(name: str, place: Place, mode: Mode) -> tuple[str, str | None] | None:
    """Give message and hint for something in braces that is no placeholder; None when it may well be meant as text."""
    other = Mode.SERVER if mode is Mode.CLIENT else Mode.CLIENT
    there = recognise(name, other)
    if there is not None:
        own = next((kind for kind in _kinds(mode) if kind.root == there.root), None)
        hint = f"write {{{'.'.join([own.names[0], *([there.argument] if there.argument else [])])}}}" if own else None
        return f"{{{name}}} exists only in {other} mode and stays as text", hint
    message = f"{{{name}}} is no placeholder and stays as text"
    if meant := _meant(name, mode):
        return message, f"did you mean {{{meant}}}?"
    if place in _BODIES:  # a body may hold any words in braces, the others hardly do
        return None
    if mode is Mode.CLIENT:
        return message, f"{{value.json.{name}}} is a field of the payload"
    return message, f"{{path.{name}}} is a segment of ENDPOINT, {{query.{name}}} a query parameter"


def _meant(name: str, mode: Mode) -> str | None:
    """Guess the placeholder behind a misspelt name: its first one or two dotted parts come close to one that exists."""
    known = {own: kind for kind in reversed(_kinds(mode)) for own in kind.names}
    parts = name.split(".")
    if len(parts) > 1 and parts[0] in known:
        first = known[parts[0]]
        if first.root == "payload":
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
    if tail and kind.root == "topic":
        return "topic.1"
    if tail and kind.argument is None:
        return found
    return ".".join([found, *(tail or ([] if kind.alone else ["x"]))])


def _kinds(mode: Mode) -> list[PlaceholderKind]:
    return [kind for kind in PLACEHOLDERS if mode in kind.modes]
