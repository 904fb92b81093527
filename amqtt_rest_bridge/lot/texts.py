"""Texts with placeholders, parsed and checked for the place that they are used in. Pure; `blocks` calls it."""

import json
import re
from typing import Final

from amqtt_rest_bridge.errors import CallError, FaultCode, Severity
from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.evaluation import BlockSettings, Value, place_in
from amqtt_rest_bridge.lot.forms import FormError
from amqtt_rest_bridge.lot.hints import explain_broken_json, explain_suspect
from amqtt_rest_bridge.lot.masking import is_credential, is_credential_parameter
from amqtt_rest_bridge.lot.placeholders.kinds import BATCH, Mode, recognise, suspects
from amqtt_rest_bridge.lot.placeholders.text import (
    Fixed,
    LoneBackslashError,
    Place,
    PlaceholderText,
    dot_segments,
    parse,
)
from amqtt_rest_bridge.lot.sources import Report
from amqtt_rest_bridge.spelling import Question, question
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name

_LONGEST: Final = 200  # characters of a query parameter that are looked at


def placeholder_text_of(settings: BlockSettings, name: str, place: Place, mode: Mode) -> PlaceholderText | None:
    """Parse a setting with placeholders; None when it is missing or at fault."""
    value = settings.texts.get(name)
    if value is None or name in settings.failed:
        return None
    template = read_placeholder_text(name, value, place, mode, settings.report)
    if template is None:
        settings.failed.add(name)
    return template


def names_in(value: Value, mode: Mode) -> tuple[str, ...]:
    """Return the placeholders of a mode in a value, whatever is wrong with it."""
    return parse(value.parts, Place.TEXT, mode).names


def read_placeholder_text(name: str, value: Value, place: Place, mode: Mode, report: Report) -> PlaceholderText | None:
    """Parse a value with placeholders and check its literal text; None when it is not allowed there.

    `name` is the setting's or header's, for messages.
    """
    errors = report.errors
    misspelt = _report_misspelt(name, value, place, mode, report)
    if report.errors > errors:
        return None
    try:
        template = parse(value.parts, place, mode)
        _check_literal(name, template, value, mode)
    except CallError as failed:
        report.error(FaultCode.PLACEHOLDER, value.offset, f"{name}: {failed.message}")
        return None
    except LoneBackslashError as error:
        hint = r"write \\\\ in the file: a backslash of JSON is two, and each of them is two in a string of the file"
        report.error(FaultCode.PLACEHOLDER, value.offset, f"{name} {error}", hint)
        return None
    except FormError as refused:
        report.error(FaultCode.INVALID_VALUE, value.offset, value.hide(f"{name} {refused.message}"), refused.hint)
        return None
    if place is Place.ENDPOINT:  # in server mode it is not a template
        warn_of_dot_segments(name, _sample(template), value.offset, report)
    if place is Place.JSON:
        _warn_of_quoted_batch(template, name, value, report)
    if place is Place.JSON and not misspelt:
        _warn_of_broken_json(template, name, value, mode, report)
    return template


def _warn_of_quoted_batch(template: PlaceholderText, name: str, value: Value, report: Report) -> None:
    """Warn of a JSON string that is `{batch}` alone: an array is meant, and the string would hold its text."""
    if any(not isinstance(piece, str) and piece.root == BATCH and piece.quoted for piece in template.pieces):
        begin, end = place_in(value, r'\\?"\{batch\}\\?"', report, 0)
        if begin != value.offset:
            message = f"{name} has {{batch}} in quotes: it is sent as one text, not as an array"
            report.warning(FaultCode.DOUBTFUL, begin, message, "write {batch} without quotes around it", end=end)


def _sample(template: PlaceholderText) -> str:
    """Return the text with any word for each placeholder."""
    return "".join([piece if isinstance(piece, str) else "x" for piece in template.pieces])


def _check_literal(name: str, template: PlaceholderText, value: Value, mode: Mode) -> None:
    """Raise `FormError` if the text, with any word for each placeholder, does not have the form of its place."""
    sample = _sample(template)
    if template.place is Place.ENDPOINT:
        forms.check_client_endpoint(sample)
    elif template.place is Place.HEADER:
        forms.read_header_value(sample)
    elif template.place is Place.TOPIC and name == "SOURCE_TOPIC":
        if reason := check_topic_filter(sample):
            raise FormError(f'"{value.shown}" {reason}')
    elif template.place is Place.TOPIC and (reason := check_topic_name(sample)):
        hint = "a level of the message's topic is {topic.1}, {topic.2}, ..."
        if mode is Mode.SERVER:
            hint = "write what is the caller's own in its place: {request_id}, or {path.x}, a segment of ENDPOINT"
        raise FormError(f'"{value.shown}" {reason}', hint if set("+#") & set(sample) else None)


def warn_of_foreign_levels(name: str, value: Value, mode: Mode, report: Report) -> None:
    """Warn of wildcards and placeholders of other languages in a topic filter or path, such as `:id` and `*`."""
    if name != "ENDPOINT" and re.search(r",\s", value.text):
        message = f"{name} is one filter, with the comma in it"
        report.warning(FaultCode.OTHER_SYNTAX, value.offset, message, "write an event for each filter")
    end = 0
    for level, written, word in forms.foreign_levels(value.text):
        place, end = place_in(value, rf"(?<![^/\"']){re.escape(written)}(?![^/?\"'])", report, end)
        message = f"{name} has the level {written}, which matches only that text"
        hint: str = f"write + for a level that may be anything; its text is {{topic.{level}}}"
        if written.startswith("*"):
            hint = "write + for one level that may be anything, or # at the end for all that follow"
        if name == "ENDPOINT":
            if "{" in written or ("<" in written and mode is Mode.CLIENT):
                continue  # a placeholder or segment; no URL
            effect = "is sent as it is written" if mode is Mode.CLIENT else "matches only that text"
            message = f"ENDPOINT has the segment {written}, which {effect}"
            hint = f"write {{{word or 'name'}}} for a segment that may be anything"
            if mode is Mode.CLIENT and recognise(word, mode):
                hint = question(f"{{{word}}}")
            elif mode is Mode.CLIENT:
                field = f"{{value.json.{word or 'name'}}}"
                hint = f"write {field} for a field of the payload, {{topic.2}} for a level of the topic"
        report.warning(FaultCode.OTHER_SYNTAX, place, message, hint, end=end)


def warn_of_dot_segments(name: str, path: str, offset: int, report: Report) -> None:
    """Warn of a `.` or `..` that is written as a segment: it is sent as it is, and servers differ in what they do."""
    if dot_segments(path):
        message = f"{name} has a segment . or ..: it is sent as written, and servers resolve or refuse it"
        report.warning(FaultCode.DOUBTFUL, offset, message, "write the path that is meant")


def _warn_of_broken_json(template: PlaceholderText, name: str, value: Value, mode: Mode, report: Report) -> None:
    """Warn when the body is not JSON with any values of its placeholders, or with their defaults."""
    sample, length = "", 0
    places: list[int] = []  # the position in the text of each character of the sample
    for piece in template.pieces:
        if isinstance(piece, str):
            inserted, written = piece, piece
            places += range(length, length + len(piece))
        else:
            inserted = "x" if piece.quoted else "0" if piece.default is None else piece.default
            written = piece.written
            places += [length] * len(inserted)
        sample += inserted
        length += len(written)
    begin = 0
    is_line_json = _fault_of_json(sample.strip().partition("\n")[0]) is None
    for text in re.findall(".*\n?", sample) if is_line_json else [sample]:  # lines as application/x-ndjson has them
        fault = _fault_of_json(text) if text.strip() else None
        if fault is not None:
            if any(isinstance(part, Fixed) and not part.needs_escape for part in value.parts):
                fault = ValueError()  # what GET has read may be JSON's own text, which is not shown
            position, reason, hint = explain_broken_json(text, fault, mode)
            place = value.file_offset([*places, length][begin + position])
            report.warning(FaultCode.NOT_JSON, place, f"{name} is not JSON: {reason}", hint)
            return
        begin += len(text)


def _fault_of_json(text: str) -> Exception | None:
    """Return why a text is not JSON, None if it is."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return error
    return None


def _report_misspelt(name: str, value: Value, place: Place, mode: Mode, report: Report) -> bool:
    """Warn of texts that look like placeholders; return whether there is one.

    `${TOKEN}` is an error in a header or query parameter that carries a credential by its name.
    """
    found = False
    for piece in value.pieces:
        if piece.source:
            continue
        for suspect in suspects(piece.text, mode):
            warning = explain_suspect(suspect, place, mode)
            if warning is None:
                continue
            (message, hint), severity, found = warning, Severity.WARNING, True
            if isinstance(hint, Question):
                hint = hint if suspect.has_spaced_bar else question(hint.meant, f"{hint.meant[:-1]}{suspect.default}}}")
            variable = suspect.name.strip()
            is_of_shell = suspect.written.startswith("${")
            is_variable = (is_of_shell or variable.isupper()) and recognise(suspect.name, mode) is None
            is_secret = place is Place.HEADER and is_credential(name.removeprefix("header "))
            if place is Place.ENDPOINT:
                before = piece.text[max(0, suspect.offset - _LONGEST) : suspect.offset]
                parameter, equals, _ = re.split("[?&]", before)[-1].partition("=")
                is_secret = bool(equals) and is_credential_parameter(parameter)
            if is_variable and is_secret:
                severity = Severity.ERROR if is_of_shell else Severity.WARNING
                hint = f"write {{env.{variable}}} for an environment variable, {{secret.{variable}}} for a secret"
            begin, end = piece.offset + suspect.offset, piece.offset + suspect.end
            report.note(severity, FaultCode.PLACEHOLDER, begin, message, hint, end=end)
    return found
