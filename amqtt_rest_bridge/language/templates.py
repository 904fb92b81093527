"""Values with placeholders to `PlaceholderText`, with what is wrong or looks wrong in them."""

import json

from amqtt_rest_bridge.errors import CallFailed
from amqtt_rest_bridge.language import syntax
from amqtt_rest_bridge.language.report import Report
from amqtt_rest_bridge.language.suggest import closest
from amqtt_rest_bridge.language.syntax import Refused
from amqtt_rest_bridge.language.values import Value
from amqtt_rest_bridge.placeholders import PLACEHOLDERS, Mode, Place, PlaceholderText, parse, suspects
from amqtt_rest_bridge.topics import check_topic_name

_BODIES = (Place.JSON, Place.FORM, Place.TEXT)


def read_template(name: str, value: Value, place: Place, mode: Mode, report: Report) -> PlaceholderText | None:
    """Parse a value with placeholders and check its literal text; None when it cannot stand in its place.

    `name` is the setting's or header's, for messages.
    """
    try:
        template = parse(value.parts, place, mode)
        _check_literal(template, value)
    except CallFailed as failed:
        report.error(value.offset, f"{name}: {failed.message}", failed.hint)
        return None
    except Refused as refused:
        report.error(value.offset, value.hide(f"{name} {refused.message}"), refused.hint)
        return None
    _warn_of_misspelt(value, place, mode, report)
    if place is Place.JSON:
        _warn_of_broken_json(name, template, value, report)
    return template


def _check_literal(template: PlaceholderText, value: Value) -> None:
    literal = "".join([piece for piece in template.pieces if isinstance(piece, str)])
    if template.place is Place.ENDPOINT:
        syntax.check_client_endpoint(literal.strip() if template.is_constant else literal)
    elif template.place is Place.HEADER and syntax.has_control(literal):
        raise Refused("holds a control character, which a header cannot carry", "write the value on one line")
    elif template.place is Place.TOPIC:
        sample = "".join([piece if isinstance(piece, str) else "x" for piece in template.pieces])
        if reason := check_topic_name(sample):
            raise Refused(f'"{value.shown}" {reason}')


def _warn_of_broken_json(name: str, template: PlaceholderText, value: Value, report: Report) -> None:
    """Warn when the body is no JSON whatever the placeholders bring."""
    sample = "".join(
        [piece if isinstance(piece, str) else "x" if piece.quoted else "0" for piece in template.pieces]
    )
    try:
        if sample:
            json.loads(sample)
    except (ValueError, RecursionError) as error:
        reason = error.msg.lower() if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        hint = "set the content type (HEADERS or DEFAULT_CONTENT_TYPE) if it is not meant to be JSON"
        report.warning(value.offset, f"{name} is not JSON: {reason}", hint)


def _warn_of_misspelt(value: Value, place: Place, mode: Mode, report: Report) -> None:
    for piece in value.pieces:
        if not piece.is_string and piece.text[:3].upper() == "GET":
            continue
        for offset, name in suspects(piece.text, mode):
            meant = _meant(name, mode)
            if meant is None and place not in _BODIES:
                meant = f"value.json.{name}" if mode is Mode.CLIENT else f"body.json.{name}"
            if meant is not None:
                message = f"{{{name}}} is no placeholder in {mode} mode and stays as text"
                report.warning(piece.offset + offset, message, f"did you mean {{{meant}}}?")


def _meant(name: str, mode: Mode) -> str | None:
    """Guess the placeholder behind a misspelt name: its first dotted parts come close to one that exists."""
    parts = name.split(".")
    raw = "value" if mode is Mode.CLIENT else "body"
    known = {own: kind for kind in PLACEHOLDERS if mode in kind.modes for own in kind.names}
    for count in range(min(2, len(parts)), 0, -1):
        head, tail = ".".join(parts[:count]), parts[count:]
        found = closest(head, known)
        if found is None:
            continue
        if tail and known[found].root == "payload":
            return ".".join([raw, "json", *tail])
        if tail and known[found].argument is None:
            return found
        return ".".join([found, *(tail or ([] if known[found].alone else ["x"]))])
    if name.lower() in ("payload", "value", "body", "payload.json", "value.json", "body.json"):
        return name.lower().replace("payload", raw).replace("body", raw)
    return raw if closest(name, ["payload", "value", "body"]) else None
