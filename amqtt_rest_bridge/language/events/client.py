"""EVENT blocks to client events, which send requests. Pure."""

from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.events.common import (
    read_content_type,
    read_setting,
    read_signature,
    require,
    warn_of_unused,
)
from amqtt_rest_bridge.language.events.conditions import ParseCondition, read_condition
from amqtt_rest_bridge.language.settings import TypedBlock
from amqtt_rest_bridge.language.templates import read_template
from amqtt_rest_bridge.model import ClientEvent, Method, ResponseFormat, RestApiConfig
from amqtt_rest_bridge.placeholders import Condition, Mode, Place, PlaceholderText, may_match, pattern, place_of
from amqtt_rest_bridge.topics import schedule_topic

_SINGLE_HEADERS = ("authorization", "content-type", "host", "user-agent")


def read_client_event(
    block: TypedBlock, config: RestApiConfig, route: str, parse: ParseCondition
) -> ClientEvent | None:
    """Check and build a client event of a route; None when something it needs is missing or at fault."""
    values = block.values
    warn_of_unused(block, Mode.CLIENT)
    if "EVERY" in values and "SOURCE_TOPIC" not in block:
        values["SOURCE_TOPIC"] = schedule_topic(route, block.block.name)
    hint = None if config.enable_server else 'for a server event, set ENABLE_SERVER "true" in REST_API_CONFIG'
    source = {} if "EVERY" in block else {"SOURCE_TOPIC": hint}
    complete = require(block, Mode.CLIENT, source | {"METHOD": None, "ENDPOINT": None})
    headers = _read_headers(block)
    endpoint = read_setting(block, "ENDPOINT", Place.ENDPOINT, Mode.CLIENT)
    body = read_setting(block, "BODY", place_of(_content_type(block, config)), Mode.CLIENT)
    _warn_of_unknown_type(block, headers, body)
    destination = read_setting(block, "DESTINATION_TOPIC", Place.TOPIC, Mode.RESULT)
    payload = read_setting(block, "PAYLOAD", place_of(read_content_type(block)), Mode.RESULT)
    _check_result(block)
    signature = read_signature(block)
    when = read_condition(block, Mode.CLIENT, parse)
    if body is not None and values.get("METHOD") == Method.GET:
        block.warning("BODY", "a GET with a BODY: many servers refuse or ignore it", "write POST, or leave BODY out")
    filled = {"ENDPOINT": endpoint, "BODY": body, "DESTINATION_TOPIC": destination, "PAYLOAD": payload, "WHEN": when}
    for name, template in filled.items():
        if template is not None:
            _check_levels(block, name, template)
    _warn_of_loops(block, destination)
    if not complete or endpoint is None or "SOURCE_TOPIC" not in values:
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
        when=when,
        every=values.get("EVERY"),
        retry_on=values.get("RETRY_ON", ()),
        failure_payload=values.get("FAILURE_PAYLOAD", False),
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
