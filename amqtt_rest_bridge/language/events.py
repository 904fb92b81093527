"""EVENT blocks to events: in client mode they send requests, in server mode they publish, read or wait for a reply."""

from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.language.parameters import PARAMETERS, Applies, BlockKind
from amqtt_rest_bridge.language.report import closest
from amqtt_rest_bridge.language.settings import TypedBlock
from amqtt_rest_bridge.language.templates import read_template
from amqtt_rest_bridge.model import ClientEvent, Method, ResponseFormat, RestApiConfig, ServerEvent, Signature
from amqtt_rest_bridge.placeholders import Mode, Place, PlaceholderText, may_match, pattern, place_of


def mode_of(block: TypedBlock, config: RestApiConfig) -> Mode | None:
    """Return the mode in which an event runs, None when its route has neither."""
    if config.enable_client and config.enable_server:
        return Mode.CLIENT if "SOURCE_TOPIC" in block else Mode.SERVER
    if config.enable_client:
        return Mode.CLIENT
    return Mode.SERVER if config.enable_server else None


def require(block: TypedBlock, mode: Mode, hints: dict[str, str | None]) -> bool:
    """Report what an event of a mode lacks, with its hint; return whether every setting is present and usable."""
    for name, hint in hints.items():
        if name not in block:
            block.report.error(block.block.offset, f"{name} is missing: a {mode} event needs it", hint)
    return all(name in block.values and name not in block.failed for name in hints)


def warn_of_unused(block: TypedBlock, mode: Mode) -> None:
    """Warn of settings that mean nothing in a mode."""
    for name, setting in block.block.settings.items():
        if setting.parameter.applies not in (Applies.BOTH, Applies(mode)):
            block.report.warning(setting.offset, f"{name} has no effect in {mode} mode")


def read_setting(block: TypedBlock, name: str, place: Place, mode: Mode) -> PlaceholderText | None:
    """Read a setting with placeholders; None when it is missing or at fault."""
    value = block.texts.get(name)
    if value is None or name in block.failed:
        return None
    template = read_template(name, value, place, mode, block.report)
    if template is None:
        block.failed.add(name)
    return template


def read_signature(block: TypedBlock) -> Signature | None:
    """Read SIGNATURE_SECRET and SIGNATURE_HEADER; None when bodies are not signed."""
    secret = block.values.get("SIGNATURE_SECRET")
    if secret is None:
        if "SIGNATURE_HEADER" in block.values and "SIGNATURE_SECRET" not in block:
            block.warning("SIGNATURE_HEADER", "SIGNATURE_HEADER has no effect without SIGNATURE_SECRET")
        return None
    if not secret:
        block.error("SIGNATURE_SECRET", "SIGNATURE_SECRET is empty", "such a signature proves nothing")
    default = PARAMETERS[BlockKind.EVENT]["SIGNATURE_HEADER"].default or ""
    return Signature(secret, block.values.get("SIGNATURE_HEADER", default))


def read_content_type(block: TypedBlock) -> str:
    """Read RESPONSE_CONTENT_TYPE: the type of what PAYLOAD makes of a response, or RESPONSE of a request."""
    name = "RESPONSE_CONTENT_TYPE"
    text: str = block.values.get(name, PARAMETERS[BlockKind.EVENT][name].default or "")
    if not forms.is_media_type(text):
        message = f'{name} "{block.texts[name].shown}" is no media type'
        block.error(name, message, "as in application/json or text/plain; charset=utf-8")
    return text


_SINGLE_HEADERS = ("authorization", "content-type", "host", "user-agent")


def read_client_event(block: TypedBlock, config: RestApiConfig) -> ClientEvent | None:
    """Check and build a client event; None when something it needs is missing or at fault."""
    values = block.values
    warn_of_unused(block, Mode.CLIENT)
    hint = None if config.enable_server else 'for a server event, set ENABLE_SERVER "true" in REST_API_CONFIG'
    complete = require(block, Mode.CLIENT, {"SOURCE_TOPIC": hint, "METHOD": None, "ENDPOINT": None})
    headers = _read_headers(block)
    endpoint = read_setting(block, "ENDPOINT", Place.ENDPOINT, Mode.CLIENT)
    body = read_setting(block, "BODY", place_of(_content_type(block, config)), Mode.CLIENT)
    _warn_of_unknown_type(block, headers, body)
    destination = read_setting(block, "DESTINATION_TOPIC", Place.TOPIC, Mode.RESULT)
    payload = read_setting(block, "PAYLOAD", place_of(read_content_type(block)), Mode.RESULT)
    _check_result(block)
    signature = read_signature(block)
    if body is not None and values.get("METHOD") == Method.GET:
        block.warning("BODY", "a GET with a BODY: many servers refuse or ignore it", "write POST, or leave BODY out")
    filled = {"ENDPOINT": endpoint, "BODY": body, "DESTINATION_TOPIC": destination, "PAYLOAD": payload}
    for name, template in filled.items():
        if template is not None:
            _check_levels(block, name, template)
    _warn_of_loops(block, destination)
    if not complete or endpoint is None:
        return None
    return ClientEvent(
        name=block.block.name,
        source_topic=values["SOURCE_TOPIC"],
        method=Method(values["METHOD"]),
        endpoint=endpoint,
        body=body,
        headers=headers,
        destination_topic=destination,
        error_topic=values.get("ERROR_TOPIC"),
        response_format=ResponseFormat(values.get("RESPONSE_FORMAT", ResponseFormat.BODY)),
        retain=values.get("RETAIN", False),
        ordered=values.get("ORDERED", False),
        signature=signature,
        payload=payload,
    )


def _check_result(block: TypedBlock) -> None:
    """Report settings of the result that contradict each other or have no effect."""
    if block.has("PAYLOAD") and block.values.get("RESPONSE_FORMAT") == ResponseFormat.ENVELOPE:
        block.error("PAYLOAD", "PAYLOAD and RESPONSE_FORMAT envelope are both set", "a result has one form")
    for name, needed in (("PAYLOAD", "DESTINATION_TOPIC"), ("RESPONSE_CONTENT_TYPE", "PAYLOAD")):
        if name in block.values and needed not in block:
            block.warning(name, f"{name} has no effect without {needed}")


def _content_type(block: TypedBlock, config: RestApiConfig) -> str:
    for name, value in block.headers:
        if name.text.lower() == "content-type":
            return value.text
    return config.default_content_type


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
    if "HEADERS" in block.block.settings and not block.block.headers:
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


def _check_levels(block: TypedBlock, name: str, template: PlaceholderText, offset: int | None = None) -> None:
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


def read_server_event(block: TypedBlock, config: RestApiConfig) -> ServerEvent | None:
    """Check and build a server event; None when something is missing or at fault, or when it is not exposed."""
    values = block.values
    if block.has("SOURCE_TOPIC") and block.has("DESTINATION_TOPIC"):
        message = "not exposed: it has SOURCE_TOPIC and DESTINATION_TOPIC, but ENABLE_CLIENT is not true"
        hint = 'WITH ENABLE_CLIENT "true" in REST_API_CONFIG makes it a client event'
        block.report.warning(block.block.offset, message, hint)
        return None
    reads = "SOURCE_TOPIC" in block and values.get("METHOD", Method.GET) == Method.GET
    _warn_of_unused(block, reads=reads)
    needed = {"METHOD": None, "ENDPOINT": None} | ({} if reads else {"DESTINATION_TOPIC": _hint(block, config)})
    complete = require(block, Mode.SERVER, needed)
    if values.get("METHOD") == Method.PATCH:
        block.error("METHOD", "METHOD must be GET, POST, PUT or DELETE in server mode, not PATCH")
    segments = _read_segments(block)
    destination = _template(block, "DESTINATION_TOPIC", Place.TOPIC, segments)
    payload = _template(block, "PAYLOAD", place_of(config.default_content_type), segments)
    reply = _template(block, "REPLY_TOPIC", Place.TOPIC, segments)
    signature = read_signature(block)
    if reply is not None and destination is not None and reply.source == destination.source:
        block.error("REPLY_TOPIC", "REPLY_TOPIC is DESTINATION_TOPIC: a request would be taken for its own reply")
    if not complete or block.failed.intersection(needed):
        return None
    return ServerEvent(
        name=block.block.name,
        method=Method(values["METHOD"]),
        endpoint=values["ENDPOINT"],
        destination_topic=destination,
        payload=None if reads else payload,
        reply_topic=None if reads else reply,
        source_topic=values.get("SOURCE_TOPIC") if reads else None,
        retain=values.get("RETAIN", False),
        signature=signature,
    )


def _hint(block: TypedBlock, config: RestApiConfig) -> str | None:
    """Return why an event without DESTINATION_TOPIC is taken for one that publishes."""
    if "SOURCE_TOPIC" in block:
        return "only an event with METHOD GET answers with what its SOURCE_TOPIC brings"
    return "an event without SOURCE_TOPIC is a server event, as ENABLE_SERVER is true" if config.enable_client else None


def _warn_of_unused(block: TypedBlock, *, reads: bool) -> None:
    warn_of_unused(block, Mode.SERVER)
    for name in ("PAYLOAD", "REPLY_TOPIC", "RETAIN"):
        if reads and name in block.values:
            message = f"{name} has no effect in an event that answers with what its SOURCE_TOPIC brings"
            block.warning(name, message)


def _read_segments(block: TypedBlock) -> tuple[str, ...] | None:
    """Return the names of ENDPOINT's `{name}` segments; None when they cannot be known."""
    endpoint = block.texts.get("ENDPOINT")
    if endpoint is None:
        return None
    try:
        return forms.read_server_endpoint(endpoint.text)
    except FormError as refused:
        block.error("ENDPOINT", f'ENDPOINT "{endpoint.shown}" {refused.message}', refused.hint)
        return None


def _template(block: TypedBlock, name: str, place: Place, segments: tuple[str, ...] | None) -> PlaceholderText | None:
    template = read_setting(block, name, place, Mode.SERVER)
    if template is None or segments is None:
        return template
    for written in template.names:
        segment = written.removeprefix("path.")
        if segment != written and segment not in segments:
            meant = closest(segment, segments)
            hint = f"did you mean {{path.{meant}}}?" if meant else f"write {{{segment}}} in ENDPOINT"
            block.error(name, f"{name} uses {{{written}}}, but ENDPOINT has no segment {{{segment}}}", hint)
    return template
