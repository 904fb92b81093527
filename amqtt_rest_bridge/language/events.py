"""EVENT blocks to events: client events send requests; server events publish, read or wait for a reply. Pure."""

import re
from typing import Any

from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.language.parameters import PARAMETERS, BlockKind
from amqtt_rest_bridge.language.settings import TypedBlock, read_template, warn_of_foreign
from amqtt_rest_bridge.language.when import read_condition
from amqtt_rest_bridge.model import (
    ClientEvent,
    Method,
    ResponseFormat,
    RestApiConfig,
    ServerEvent,
    Signature,
    SignatureScheme,
)
from amqtt_rest_bridge.placeholders import Condition, Mode, Place, PlaceholderText, may_match, pattern, place_of
from amqtt_rest_bridge.spelling import closest
from amqtt_rest_bridge.topics import schedule_topic


def read_event(
    block: TypedBlock, config: RestApiConfig, route: str
) -> ClientEvent | ServerEvent | None:
    """Check and build an event of a route; None when it has no mode, or something it needs is missing or at fault.

    With both modes on, an event that messages or its schedule trigger is a client event.
    """
    triggered = "SOURCE_TOPIC" in block or "EVERY" in block
    if config.enable_client and (triggered or not config.enable_server):
        return _read_client_event(block, config, route)
    return _read_server_event(block, config) if config.enable_server else None


_SINGLE_HEADERS = ("authorization", "content-type", "host", "user-agent")


def _read_client_event(
    block: TypedBlock, config: RestApiConfig, route: str
) -> ClientEvent | None:
    values = block.values
    block.warn_of_unused(Mode.CLIENT)
    if "EVERY" in values and "SOURCE_TOPIC" not in block:
        values["SOURCE_TOPIC"] = schedule_topic(route, block.block.name)
    hint = None if config.enable_server else 'for a server event, set ENABLE_SERVER "true" in REST_API_CONFIG'
    source = {} if "EVERY" in block else {"SOURCE_TOPIC": hint}
    complete = block.require(Mode.CLIENT, source | {"METHOD": None, "ENDPOINT": None})
    headers = _read_headers(block)
    for name in filter(block.texts.__contains__, ("SOURCE_TOPIC", "ENDPOINT")):
        warn_of_foreign(name, block.texts[name], Mode.CLIENT, block.report)
    endpoint = block.template("ENDPOINT", Place.ENDPOINT, Mode.CLIENT)
    given = (value.text for name, value in block.headers if name.text.lower() == "content-type")
    body = block.template("BODY", place_of(next(given, config.default_content_type)), Mode.CLIENT)
    _warn_of_unknown_type(block, headers, body)
    destination = block.template("DESTINATION_TOPIC", Place.TOPIC, Mode.RESULT)
    payload = block.template("PAYLOAD", place_of(_read_content_type(block)), Mode.RESULT)
    _check_result(block)
    signature = _read_signature(block)
    when = read_condition(block, Mode.CLIENT)
    if body is not None and values.get("METHOD") == Method.GET:
        block.warning("BODY", "a GET with a BODY: many servers refuse or ignore it", "write POST, or leave BODY out")
    filled = {"ENDPOINT": endpoint, "BODY": body, "DESTINATION_TOPIC": destination, "PAYLOAD": payload, "WHEN": when}
    for name, template in filled.items():
        if template is not None:
            _check_levels(block, name, template)
    _warn_of_loops(block, destination)
    if not complete or endpoint is None or "SOURCE_TOPIC" not in values:
        return None
    read = {name.lower(): template for name, template in filled.items()}
    own: dict[str, Any] = {"name": block.block.name, "headers": headers, "signature": signature}
    return ClientEvent(**block.members_of(ClientEvent) | read | own)


def _check_result(block: TypedBlock) -> None:
    """Report settings of the result that contradict each other or have no effect."""
    payload, method = block.texts.get("PAYLOAD"), block.values.get("METHOD")
    sends = method in ("POST", "PUT", "PATCH") and "BODY" not in block
    if payload is not None and sends and "{response." not in payload.text:
        message = f"PAYLOAD is what is published of the response; this {method} is sent without a body"
        block.warning("PAYLOAD", message, "write BODY for what is sent")
    if block.has("PAYLOAD") and block.values.get("RESPONSE_FORMAT") == ResponseFormat.ENVELOPE:
        block.error("PAYLOAD", "PAYLOAD and RESPONSE_FORMAT envelope are both set", "a result has one form")
    block.warn_of_lone("PAYLOAD", "DESTINATION_TOPIC")
    block.warn_of_lone("RESPONSE_CONTENT_TYPE", "PAYLOAD")


def _warn_of_unknown_type(
    block: TypedBlock, headers: tuple[tuple[str, PlaceholderText], ...], body: PlaceholderText | None
) -> None:
    """Warn when the type of a BODY that holds values is not known before a message comes."""
    if body is None or body.place is not Place.TEXT or body.is_constant or body.is_raw:
        return
    for name, template in headers:
        if name.lower() == "content-type" and _has_placeholder_in_type(template):
            # Decision: `PreparedEvent` fails a call whose type proves to need escaping.
            message = f"{name} takes its type from a placeholder: BODY counts as plain text, JSON and forms are refused"
            hint = "write the type in the file, as in application/json, in an event for each type"
            offset = next(value.offset for header, value in block.headers if header.text == name)
            block.report.warning(offset, message, hint)


def _has_placeholder_in_type(content_type: PlaceholderText) -> bool:
    for piece in content_type.pieces:
        if not isinstance(piece, str):
            return True
        if ";" in piece:  # parameters follow, which do not matter
            return False
    return False


def _read_headers(block: TypedBlock) -> tuple[tuple[str, PlaceholderText], ...]:
    report = block.report
    headers: list[tuple[str, PlaceholderText]] = []
    seen: set[str] = set()
    if "HEADERS" in block.block.settings and not block.block.headers and "HEADERS" not in block.failed:
        message = "HEADERS has no header below it"
        report.warning(block.block.settings["HEADERS"].offset, message, "write ADD <name> <value> lines below it")
    for name, value in block.headers:
        lower = name.text.lower()
        template = read_template(f"header {name.shown}", value, Place.HEADER, Mode.CLIENT, report)
        if not forms.is_token(name.text):
            report.error(name.offset, f'"{name.shown}" is not a header name', "letters, digits and - are safe")
        elif lower in forms.OWN_HEADERS:
            report.error(name.offset, f"the header {name.text} is set by the connection", "leave it out")
        elif lower in seen and lower in _SINGLE_HEADERS:
            report.error(name.offset, f"the header {name.text} is set twice", "a request has one")
        elif template is not None:
            _check_levels(block, f"header {name.text}", template, value.offset)
            headers.append((name.text, template))
        seen.add(lower)
    return tuple(headers)


def _check_levels(
    block: TypedBlock, name: str, template: PlaceholderText | Condition, offset: int | None = None
) -> None:
    """Refuse `{topic.5}` when no topic that SOURCE_TOPIC matches has five levels."""
    source: str = block.values.get("SOURCE_TOPIC", "#")
    levels = source.count("/") + 1
    for written in template.names:
        number = written.removeprefix("topic.")
        if number != written and not source.endswith("#") and int(number) > levels:
            message = f"{name} uses {{{written}}}, but topics of SOURCE_TOPIC end with level {levels}"
            block.report.error(block.offset(name) if offset is None else offset, message)


def _warn_of_loops(block: TypedBlock, destination: PlaceholderText | None) -> None:
    source: str | None = block.values.get("SOURCE_TOPIC")
    topics = {"DESTINATION_TOPIC": destination, "ERROR_TOPIC": block.values.get("ERROR_TOPIC")}
    for name, topic in topics.items():
        if source and topic is not None and may_match(source, pattern(topic, source)):
            message = f"{name} matches SOURCE_TOPIC: each result triggers the event again, until the chain is cut"
            block.warning(name, message, "publish to another topic")


def _read_server_event(block: TypedBlock, config: RestApiConfig) -> ServerEvent | None:
    values = block.values
    if block.has("SOURCE_TOPIC") and block.has("DESTINATION_TOPIC"):
        message = "not exposed: it has SOURCE_TOPIC and DESTINATION_TOPIC, but ENABLE_CLIENT is not true"
        hint = 'WITH ENABLE_CLIENT "true" in REST_API_CONFIG makes it a client event'
        block.report.warning(block.block.offset, message, hint)
        return None
    reads = "SOURCE_TOPIC" in block and values.get("METHOD", Method.GET) == Method.GET
    block.warn_of_unused(Mode.SERVER)
    for name in filter(values.__contains__, ("PAYLOAD", "REPLY_TOPIC", "RETAIN", "WHEN", *_ANSWER) if reads else ()):
        block.warning(name, f"{name} has no effect in an event that answers with what its SOURCE_TOPIC brings")
    needed = {"METHOD": None, "ENDPOINT": None} | ({} if reads else {"DESTINATION_TOPIC": _hint(block, config)})
    complete = block.require(Mode.SERVER, needed)
    if values.get("METHOD") == Method.PATCH:
        block.error("METHOD", "METHOD must be GET, POST, PUT or DELETE in server mode, not PATCH")
    if reads:
        _check_read_topic(block)
    segments = _read_segments(block)
    destination = _template(block, "DESTINATION_TOPIC", Place.TOPIC, segments)
    payload = _template(block, "PAYLOAD", place_of(config.default_content_type), segments)
    reply = _template(block, "REPLY_TOPIC", Place.TOPIC, segments)
    response = _template(block, "RESPONSE", place_of(_read_content_type(block)), segments)
    _check_answer(block)
    signature = _read_signature(block)
    when = read_condition(block, Mode.SERVER)
    if when is not None:
        _check_segments(block, "WHEN", when.names, segments)
    if reply is not None and destination is not None and reply.source == destination.source:
        block.error("REPLY_TOPIC", "REPLY_TOPIC is DESTINATION_TOPIC: a request would be taken for its own reply")
    if not complete or block.failed.intersection(needed):
        return None
    published = {"payload": payload, "reply_topic": reply, "response": response, "when": when}
    read = dict.fromkeys(published) if reads else published | {"source_topic": None}
    read |= {"name": block.block.name, "destination_topic": destination, "signature": signature}
    return ServerEvent(**block.members_of(ServerEvent) | read)


def _check_read_topic(block: TypedBlock) -> None:
    """Refuse braces in SOURCE_TOPIC of a read event: no value is filled in, and no topic holds them as written."""
    topic = block.texts.get("SOURCE_TOPIC")
    if topic is None:
        return
    if found := re.search(r"\{[^{}]*\}", topic.text):
        message = f"SOURCE_TOPIC of a read event cannot hold {found[0]}: no value is filled in there"
        block.error("SOURCE_TOPIC", message, "write an event for each topic, each with an ENDPOINT of its own")
    else:
        warn_of_foreign("SOURCE_TOPIC", topic, Mode.SERVER, block.report)


_ANSWER = ("RESPONSE", "RESPONSE_STATUS", "RESPONSE_CONTENT_TYPE")
_NO_CONTENT = (204, 205)  # statuses without a body, RFC 9110 section 15.3


def _check_answer(block: TypedBlock) -> None:
    """Report settings of the answer that contradict each other or have no effect."""
    if "REPLY_TOPIC" in block.values:
        for name in _ANSWER:
            if name in block.values:
                block.warning(name, f"{name} has no effect: the answer is what comes on REPLY_TOPIC")
    else:
        block.warn_of_lone("RESPONSE_CONTENT_TYPE", "RESPONSE")
    if "RESPONSE" in block.values and block.values.get("RESPONSE_STATUS") in _NO_CONTENT:
        status = block.values["RESPONSE_STATUS"]
        block.error("RESPONSE", f"RESPONSE is set, but an answer with status {status} has no body")


def _hint(block: TypedBlock, config: RestApiConfig) -> str | None:
    """Return why an event without DESTINATION_TOPIC is taken for one that publishes."""
    if "SOURCE_TOPIC" in block:
        return "only an event with METHOD GET answers with what its SOURCE_TOPIC brings"
    return "an event without SOURCE_TOPIC is a server event, as ENABLE_SERVER is true" if config.enable_client else None


def _read_segments(block: TypedBlock) -> tuple[str, ...] | None:
    """Return the names of ENDPOINT's `{name}` segments; None when they cannot be known."""
    endpoint = block.texts.get("ENDPOINT")
    if endpoint is None:
        return None
    warn_of_foreign("ENDPOINT", endpoint, Mode.SERVER, block.report)
    try:
        return forms.read_server_endpoint(endpoint.text)
    except FormError as refused:
        block.error("ENDPOINT", f'ENDPOINT "{endpoint.shown}" {refused.message}', refused.hint)
        return None


def _template(block: TypedBlock, name: str, place: Place, segments: tuple[str, ...] | None) -> PlaceholderText | None:
    template = block.template(name, place, Mode.SERVER)
    if template is not None:
        _check_segments(block, name, template.names, segments)
    return template


def _check_segments(
    block: TypedBlock, name: str, written_names: tuple[str, ...], segments: tuple[str, ...] | None
) -> None:
    """Refuse `{path.x}` that is not a segment of ENDPOINT; its `segments` are None when they cannot be known."""
    if segments is None:
        return
    for written in written_names:
        segment = written.removeprefix("path.")
        if segment != written and segment not in segments:
            meant = closest(segment, segments)
            hint = f"did you mean {{path.{meant}}}?" if meant else f"write {{{segment}}} in ENDPOINT"
            block.error(name, f"{name} uses {{{written}}}, but ENDPOINT has no segment {{{segment}}}", hint)


def _read_signature(block: TypedBlock) -> Signature | None:
    """Read SIGNATURE_SECRET, SIGNATURE_HEADER and SIGNATURE_SCHEME; None when bodies are not signed."""
    secret = block.values.get("SIGNATURE_SECRET")
    if secret is None:
        block.warn_of_lone("SIGNATURE_HEADER", "SIGNATURE_SECRET")
        if "SIGNATURE_SCHEME" in block.values and "SIGNATURE_SECRET" not in block:
            # A fault, because an endpoint that is meant to check signatures would be open.
            message = "SIGNATURE_SCHEME checks nothing without SIGNATURE_SECRET"
            block.error("SIGNATURE_SCHEME", message, "add SIGNATURE_SECRET, or leave SIGNATURE_SCHEME out")
        return None
    if not secret:
        block.error("SIGNATURE_SECRET", "SIGNATURE_SECRET is empty", "such a signature proves nothing")
    scheme = SignatureScheme(block.values.get("SIGNATURE_SCHEME", SignatureScheme.HMAC))
    if scheme is not SignatureScheme.HMAC and "SIGNATURE_HEADER" in block.values:
        message = f"SIGNATURE_HEADER has no effect: SIGNATURE_SCHEME {scheme} has headers of its own"
        block.warning("SIGNATURE_HEADER", message)
    if scheme is SignatureScheme.STANDARD_WEBHOOKS and not forms.is_base64(secret.removeprefix("whsec_")):
        block.error("SIGNATURE_SECRET", "SIGNATURE_SECRET is not whsec_ and Base64, as standard-webhooks has it")
    default = PARAMETERS[BlockKind.EVENT]["SIGNATURE_HEADER"].default
    return Signature(secret, str(block.values.get("SIGNATURE_HEADER", default)), scheme)


def _read_content_type(block: TypedBlock) -> str:
    """Read RESPONSE_CONTENT_TYPE: the type of what PAYLOAD makes of a response, or RESPONSE of a request."""
    name = "RESPONSE_CONTENT_TYPE"
    block.check_media_type(name)
    return str(block.values.get(name, PARAMETERS[BlockKind.EVENT][name].default))
