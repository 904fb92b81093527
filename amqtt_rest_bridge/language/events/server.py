"""EVENT blocks to server events, which publish, read or wait for a reply. Pure."""

from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.events.common import (
    read_content_type,
    read_setting,
    read_signature,
    require,
    warn_of_unused,
)
from amqtt_rest_bridge.language.events.conditions import ParseCondition, read_condition
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.language.report import closest
from amqtt_rest_bridge.language.settings import TypedBlock
from amqtt_rest_bridge.model import Method, RestApiConfig, ServerEvent
from amqtt_rest_bridge.placeholders import Mode, Place, PlaceholderText, place_of


def read_server_event(block: TypedBlock, config: RestApiConfig, parse: ParseCondition) -> ServerEvent | None:
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
    content_type = read_content_type(block)
    response = _template(block, "RESPONSE", place_of(content_type), segments)
    _check_answer(block)
    signature = read_signature(block)
    when = read_condition(block, Mode.SERVER, parse)
    if when is not None:
        _check_segments(block, "WHEN", when.names, segments)
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
        when=None if reads else when,
        response=None if reads else response,
        response_status=values.get("RESPONSE_STATUS", 200),
        response_content_type=content_type,
    )


_ANSWER = ("RESPONSE", "RESPONSE_STATUS", "RESPONSE_CONTENT_TYPE")
_NO_CONTENT = (204, 205)  # statuses without a body, RFC 9110 section 15.3


def _check_answer(block: TypedBlock) -> None:
    """Report settings of the answer that contradict each other or have no effect."""
    if "REPLY_TOPIC" in block.values:
        for name in _ANSWER:
            if name in block.values:
                block.warning(name, f"{name} has no effect: the answer is what comes on REPLY_TOPIC")
    elif "RESPONSE_CONTENT_TYPE" in block.values and "RESPONSE" not in block:
        block.warning("RESPONSE_CONTENT_TYPE", "RESPONSE_CONTENT_TYPE has no effect without RESPONSE")
    if "RESPONSE" in block.values and block.values.get("RESPONSE_STATUS") in _NO_CONTENT:
        status = block.values["RESPONSE_STATUS"]
        block.error("RESPONSE", f"RESPONSE is set, but an answer with status {status} has no body")


def _hint(block: TypedBlock, config: RestApiConfig) -> str | None:
    """Return why an event without DESTINATION_TOPIC is taken for one that publishes."""
    if "SOURCE_TOPIC" in block:
        return "only an event with METHOD GET answers with what its SOURCE_TOPIC brings"
    return "an event without SOURCE_TOPIC is a server event, as ENABLE_SERVER is true" if config.enable_client else None


def _warn_of_unused(block: TypedBlock, *, reads: bool) -> None:
    warn_of_unused(block, Mode.SERVER)
    for name in ("PAYLOAD", "REPLY_TOPIC", "RETAIN", "WHEN", *_ANSWER):
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
