"""Makes the configurations and events of the model from blocks, and checks settings that depend on each other.

`loader` calls it for each block of a route, first for REST_API_CONFIG; `evaluation` has read the values. A client event
sends requests. A server event answers requests: it publishes, waits for a reply, or reads the last message of a topic.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from amqtt_rest_bridge.addresses import is_loopback
from amqtt_rest_bridge.errors import FaultCode
from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.condition_reader import read_condition
from amqtt_rest_bridge.lot.evaluation import BlockSettings, Value, place_in
from amqtt_rest_bridge.lot.forms import FormError
from amqtt_rest_bridge.lot.loops import warn_of_own_loop
from amqtt_rest_bridge.lot.masking import is_credential
from amqtt_rest_bridge.lot.model import (
    AuthScheme,
    ClientEvent,
    Method,
    RestApiConfig,
    RouteConfig,
    ServerEvent,
    Signature,
    SignatureScheme,
)
from amqtt_rest_bridge.lot.placeholders.conditions import Condition
from amqtt_rest_bridge.lot.placeholders.kinds import Mode, Placeholder
from amqtt_rest_bridge.lot.placeholders.text import Fixed, Place, PlaceholderText, place_of
from amqtt_rest_bridge.lot.schemas import Schema, SchemaFileError
from amqtt_rest_bridge.lot.schemas import read as read_schema
from amqtt_rest_bridge.lot.texts import (
    names_in,
    placeholder_text_of,
    read_placeholder_text,
    warn_of_dot_segments,
    warn_of_foreign_levels,
)
from amqtt_rest_bridge.spelling import closest, question
from amqtt_rest_bridge.topics import schedule_topic

_USER_INFO = re.compile(r"(?<=//)[^/@]*@|^[^/@]*@")
_LOGINS = (("USERNAME", "PASSWORD"), ("SERVER_USERNAME", "SERVER_PASSWORD"))
_BRACES = r"\{[^{}]*\}|[{}][^{}/]*"  # a pair of braces, or a single brace and the rest of its topic level
_SINGLE_HEADERS = ("authorization", "content-type", "host", "user-agent")
_UNUSED_BY_READ_EVENTS = (
    *("PAYLOAD", "REPLY_TOPIC", "RETAIN", "QOS", "WHEN", "SCHEMA_FILE", "DEDUPE_KEY"),
    *("RESPONSE", "RESPONSE_STATUS", "RESPONSE_CONTENT_TYPE"),
)
"""Settings of server events that have no effect in a read event, which answers with the last message of a topic."""


# REST_API_CONFIG and ROUTE_CONFIG.


def read_config(settings: BlockSettings) -> RestApiConfig:
    """Check the settings of REST_API_CONFIG; return a config even if it has faults, so that events can be checked."""
    client, server = _is_on(settings, "ENABLE_CLIENT"), _is_on(settings, "ENABLE_SERVER")
    _check_base_address(settings, client=client)
    settings.secrets.update(settings.values.get("SERVER_TOKEN", ()))
    _check_credentials(settings, client=client, server=server)
    _check_token_url(settings)
    if settings.values.get("IGNORE_CERT_ERRORS"):
        message = "IGNORE_CERT_ERRORS is true: machines on the way can read and change what is sent"
        settings.warning(
            FaultCode.INSECURE, "IGNORE_CERT_ERRORS", message, "set CA_FILE to trust a certificate of your own"
        )
    settings.check_rules([mode for mode, is_on in ((Mode.CLIENT, client), (Mode.SERVER, server)) if is_on])
    return settings.build(RestApiConfig, enable_client=client, enable_server=server)


def _check_base_address(settings: BlockSettings, *, client: bool) -> None:
    """Check BASE_ADDRESS, which client mode needs, and write it with the scheme that USE_SSL sets."""
    if not settings.may_have("BASE_ADDRESS") and client and settings.has("ENABLE_CLIENT"):
        message, hint = (
            "BASE_ADDRESS is missing: ENABLE_CLIENT is true",
            'as in WITH BASE_ADDRESS "https://api.example.com"',
        )
        settings.report.error(FaultCode.MISSING, settings.block.offset, message, hint)
    address: str | None = settings.values.get("BASE_ADDRESS")
    if address is not None:
        try:
            use_ssl = bool(settings.values.get("USE_SSL", False))
            address = settings.values["BASE_ADDRESS"] = forms.read_address(address.strip(), use_ssl=use_ssl)
            warn_of_dot_segments("BASE_ADDRESS", address, settings.offset("BASE_ADDRESS"), settings.report)
        except FormError as refused:
            _refuse_url(settings, "BASE_ADDRESS", refused)


def _check_token_url(settings: BlockSettings) -> None:
    """Check OAUTH2_TOKEN_URL, and warn if it is plain http."""
    token_url: str | None = settings.values.get("OAUTH2_TOKEN_URL")
    if token_url is not None:
        try:
            forms.check_url(token_url)
            if _is_cleartext(token_url):
                message = "OAUTH2_TOKEN_URL is plain http: anyone on the way can read the client's secret"
                settings.warning(FaultCode.INSECURE, "OAUTH2_TOKEN_URL", message, "write https://")
        except FormError as refused:
            _refuse_url(settings, "OAUTH2_TOKEN_URL", refused)


def _is_on(settings: BlockSettings, name: str) -> bool:
    """Return whether a mode is on.

    A setting whose value cannot be read counts as on, unless its text is no, off, 0 or empty.
    """
    if name not in settings.failed:
        return bool(settings.values.get(name, False))
    setting = settings.block.settings.get(name)
    return setting is None or setting.pieces[0].text.strip("'\"").lower() not in ("no", "off", "0", "")


def _refuse_url(settings: BlockSettings, name: str, refused: FormError) -> None:
    """Report a URL in a wrong form, without the credentials in it."""
    shown = _USER_INFO.sub("***@", settings.texts[name].shown)
    settings.invalid(name, f'"{shown}" {refused.message}', refused.hint)


def _check_credentials(settings: BlockSettings, *, client: bool, server: bool) -> None:
    """Report user names and passwords that cannot be sent or are empty, and callers that need no credentials."""
    for name in (name for pair in _LOGINS for name in pair if name in settings.texts):
        if forms.has_control(settings.texts[name].text):
            settings.invalid(name, "holds a control character, which a header cannot carry")
    for user, _ in _LOGINS:
        if ":" in settings.values.get(user, ""):  # RFC 7617 section 2
            settings.invalid(user, "holds a colon, which ends the user name in Basic credentials")
    caller_logins = {"SERVER_USERNAME", "SERVER_TOKEN"} & settings.values.keys()
    if client and server and settings.has("USERNAME") and not caller_logins:
        hint = "set SERVER_USERNAME and SERVER_PASSWORD to ask them"
        message = "USERNAME is sent with requests, but callers of server mode are not asked for it"
        settings.warning(FaultCode.DOUBTFUL, "USERNAME", message, hint)
    # An empty PASSWORD is allowed if it is written as "": some APIs want it. Credentials of callers must not be empty.
    of_callers = ("SERVER_USERNAME", "SERVER_PASSWORD", *(() if client else _LOGINS[0]))
    for name in (*_LOGINS[0], *_LOGINS[1], "AUTHORIZATION"):
        if name in settings.failed or name not in settings.texts or settings.texts[name].text:
            continue
        label = next((part.label for part in settings.texts[name].parts if isinstance(part, Fixed)), None)
        if label is not None:
            settings.invalid(name, f"is empty: {label} holds nothing", "put a value into it")
        elif name in of_callers:
            settings.invalid(name, "is empty", "it would admit callers without a password")


def warn_of_cleartext(settings: BlockSettings, events: Iterable[BlockSettings]) -> None:
    """Warn of credentials that are sent over plain http to another machine."""
    address: str = settings.values.get("BASE_ADDRESS", "")  # with the scheme that USE_SSL sets
    sends = _is_on(settings, "ENABLE_CLIENT") and "BASE_ADDRESS" not in settings.failed
    if not sends or not _is_cleartext(address):
        return
    reason, hint = "anyone on the way can read it", "write https:// in BASE_ADDRESS"
    if "://" not in settings.texts["BASE_ADDRESS"].text:
        reason = "BASE_ADDRESS has no scheme and USE_SSL is not true"
        hint = "write https:// before the address or set USE_SSL"
    for name, value in _credentials(settings, events):
        settings.report.warning(FaultCode.INSECURE, value.offset, f"{name} is sent over plain http: {reason}", hint)


def _is_cleartext(url: str) -> bool:
    """Return whether a URL is plain http to another machine. Its host may be invalid."""
    return url.startswith("http://") and not is_loopback(urlsplit(url).hostname or "")


def _credentials(settings: BlockSettings, events: Iterable[BlockSettings]) -> Iterator[tuple[str, Value]]:
    """Yield the credentials that requests of a route carry, by name: what is called like one, or holds a secret."""
    digest = settings.values.get("AUTH_SCHEME") == AuthScheme.DIGEST  # it does not reveal the password
    for name in ("AUTHORIZATION", "USERNAME", "OAUTH2_CLIENT_SECRET"):
        if name in settings.texts and not (digest and name == "USERNAME"):
            yield "the access token" if name == "OAUTH2_CLIENT_SECRET" else name, settings.texts[name]
    for event in events:
        for header, value in event.headers:
            if is_credential(header.text) or value.secrets:
                yield f"the header {header.shown}", value
        endpoint, body = event.texts.get("ENDPOINT"), event.texts.get("BODY")
        if endpoint is not None:
            query = re.split("[?&]", endpoint.text)[1:]
            if endpoint.secrets or any(is_credential(item.partition("=")[0]) for item in query):
                yield "a credential in ENDPOINT", endpoint
        if body is not None and body.secrets:
            yield "a secret in BODY", body


def read_route_config(settings: BlockSettings) -> RouteConfig:
    """Return the capacity and policy of a route; what is missing or at fault has its default."""
    settings.check_rules([Mode.CLIENT])
    return settings.build(RouteConfig)


# Events.


def read_event(settings: BlockSettings, config: RestApiConfig, route: str) -> ClientEvent | ServerEvent | None:
    """Check and build an event of a route; None if no mode is on, or a setting that it needs is missing or at fault.

    If both modes are on, an event with SOURCE_TOPIC or EVERY is a client event.
    """
    if "QOS" in settings.values:
        settings.values["QOS"] = int(settings.values["QOS"])
    has_trigger = settings.may_have("SOURCE_TOPIC") or settings.may_have("EVERY")
    if config.enable_client and (has_trigger or not config.enable_server):
        return _read_client_event(settings, config, route)
    return _read_server_event(settings, config) if config.enable_server else None


# Client events.


def _read_client_event(settings: BlockSettings, config: RestApiConfig, route: str) -> ClientEvent | None:
    """Check and build an event that sends requests: its required settings, headers, texts, then rules and warnings."""
    values = settings.values
    settings.warn_of_unused(Mode.CLIENT)
    if "EVERY" in values and not settings.may_have("SOURCE_TOPIC"):
        values["SOURCE_TOPIC"] = schedule_topic(route, settings.block.name)
    needed: dict[str, str | None] = {"METHOD": None, "ENDPOINT": None}  # with their hints
    if not settings.may_have("EVERY"):
        hint = None if config.enable_server else 'for a server event, set ENABLE_SERVER "true" in REST_API_CONFIG'
        needed["SOURCE_TOPIC"] = hint
    has_all = settings.require(Mode.CLIENT, needed)
    mode = Mode.BATCH if settings.may_have("BATCH_SIZE") else Mode.CLIENT
    if mode is Mode.BATCH:
        _check_batch(settings)
    headers = _read_headers(settings, mode)
    for name in filter(settings.texts.__contains__, ("SOURCE_TOPIC", "ENDPOINT")):
        warn_of_foreign_levels(name, settings.texts[name], Mode.CLIENT, settings.report)
    texts = _read_texts(settings, config, mode)
    settings.check_rules([Mode.CLIENT])
    _warn_of_body(settings, headers, texts["BODY"])
    differs = "write what is to differ, as in {payload} or {value.json.state}"
    for name, effect in (("ON_CHANGE", "of each topic"), ("DEDUPE_KEY", "within DEDUPE_FOR")):
        _warn_of_constant(settings, name, texts[name], f"only the first message {effect} is sent", differs)
    templates = texts | {"WHEN": read_condition(settings, Mode.CLIENT)}
    for name, template in templates.items():
        if template is not None:
            _check_levels(settings, name, template, settings.offset(name))
    published = {"DESTINATION_TOPIC": texts["DESTINATION_TOPIC"], "ERROR_TOPIC": values.get("ERROR_TOPIC")}
    warn_of_own_loop(settings, published)
    signature, schema = _read_signature(settings), _read_schema(settings)
    if not has_all or texts["ENDPOINT"] is None or "SOURCE_TOPIC" not in values:
        return None
    fields: dict[str, Any] = {name.lower(): template for name, template in templates.items()}
    fields |= {"name": settings.block.name, "headers": headers, "signature": signature, "schema_file": schema}
    return settings.build(ClientEvent, **fields)


def _check_batch(settings: BlockSettings) -> None:
    """Refuse placeholders of a single message outside of BATCH_ITEM, and a BODY without the items of the batch."""
    texts = [(name, settings.texts[name]) for name in ("ENDPOINT", "BODY") if name in settings.texts]
    results = [(name, settings.texts[name]) for name in ("DESTINATION_TOPIC", "PAYLOAD") if name in settings.texts]
    headers = [(f"header {name.shown}", value) for name, value in settings.headers]
    for name, value in (*texts, *headers, *results):
        found = names_in(value, Mode.CLIENT)
        if found:
            message = f"{name} uses {{{found[0]}}}, but a batch has many messages"
            settings.report.error(FaultCode.PLACEHOLDER, value.offset, message, "write it in BATCH_ITEM")
            settings.failed.add(name)
    body = settings.texts.get("BODY")
    if body is None and "BODY" in settings.failed:
        return  # its quotes are wrong, as has been reported
    if body is None or not {"batch", "batch.lines"} & {*names_in(body, Mode.BATCH)}:
        hint = "write {batch} or {batch.lines} in BODY"
        settings.invalid("BATCH_SIZE", "is set, but BODY does not hold the messages", hint)


def _read_headers(settings: BlockSettings, mode: Mode) -> tuple[tuple[str, PlaceholderText], ...]:
    """Check the lines below WITH HEADERS; return those that can be sent."""
    report, written = settings.report, settings.block.settings.get("HEADERS")
    headers: list[tuple[str, PlaceholderText]] = []
    seen: set[str] = set()
    if written is not None and not settings.block.headers and "HEADERS" not in settings.failed:
        hint = "write ADD <name> <value> lines below it"
        report.warning(FaultCode.NO_EFFECT, written.offset, "HEADERS has no header below it", hint)
    for name, value in settings.headers:
        lower = name.text.lower()
        template = read_placeholder_text(f"header {name.shown}", value, Place.HEADER, mode, report)
        if not forms.is_header_name(name.text):
            message, hint = f'"{name.shown}" is not a header name', "letters, digits and - are safe"
            report.error(FaultCode.INVALID_NAME, name.offset, message, hint)
        elif lower in forms.OWN_HEADERS:
            report.error(
                FaultCode.INVALID_VALUE, name.offset, f"the header {name.text} is set by the connection", "leave it out"
            )
        elif lower in seen and lower in _SINGLE_HEADERS:
            report.error(FaultCode.DUPLICATE, name.offset, f"the header {name.text} is set twice", "a request has one")
        elif template is not None:
            _check_levels(settings, f"header {name.text}", template, value.offset)
            headers.append((name.text, template))
        seen.add(lower)
    return tuple(headers)


def _read_texts(settings: BlockSettings, config: RestApiConfig, mode: Mode) -> dict[str, PlaceholderText | None]:
    """Return the settings of a client event that hold placeholders, by name; `mode` is that of its request."""
    given = (value.text for name, value in settings.headers if name.text.lower() == "content-type")
    places = {
        "ENDPOINT": (Place.ENDPOINT, mode),
        "BODY": (place_of(next(given, config.default_content_type)), mode),
        "DESTINATION_TOPIC": (Place.TOPIC, Mode.RESULT),
        "PAYLOAD": (place_of(settings.value("RESPONSE_CONTENT_TYPE")), Mode.RESULT),
        "ON_CHANGE": (Place.TEXT, Mode.CLIENT),
        "DEDUPE_KEY": (Place.TEXT, Mode.CLIENT),
    }
    texts = {name: placeholder_text_of(settings, name, place, of) for name, (place, of) in places.items()}
    body = texts["BODY"]
    holds_json = body is not None and (body.place is Place.JSON or "batch" in body.names)
    item_place = Place.JSON if holds_json else Place.TEXT
    return texts | {"BATCH_ITEM": placeholder_text_of(settings, "BATCH_ITEM", item_place, Mode.CLIENT)}


def _warn_of_body(
    settings: BlockSettings, headers: tuple[tuple[str, PlaceholderText], ...], body: PlaceholderText | None
) -> None:
    """Warn of a request without a body whose PAYLOAD may be meant as one, of a GET with a body, and of its type."""
    payload, method = settings.texts.get("PAYLOAD"), settings.values.get("METHOD")
    is_empty = method in ("POST", "PUT", "PATCH") and not settings.may_have("BODY")
    if is_empty and payload is not None and "{response." not in payload.text:
        message = f"PAYLOAD is what is published of the response; this {method} is sent without a body"
        settings.warning(FaultCode.DOUBTFUL, "PAYLOAD", message, "write BODY for what is sent")
    if body is not None and method == Method.GET:
        message, hint = "a GET with a BODY: many servers refuse or ignore it", "write POST, or leave BODY out"
        settings.warning(FaultCode.DOUBTFUL, "BODY", message, hint)
    _warn_of_unknown_type(settings, headers, body)


def _warn_of_unknown_type(
    settings: BlockSettings, headers: tuple[tuple[str, PlaceholderText], ...], body: PlaceholderText | None
) -> None:
    """Warn of a media type that holds a placeholder, so that it is not known at load how BODY is escaped."""
    if body is None or body.place is not Place.TEXT or body.is_constant or body.is_raw:
        return
    for name, template in headers:
        # The parameters after the ; do not matter.
        of_type = takewhile(lambda piece: isinstance(piece, Placeholder) or ";" not in piece, template.pieces)
        if name.lower() == "content-type" and any(isinstance(piece, Placeholder) for piece in of_type):
            # `PreparedEvent` fails a call whose type proves to need escaping.
            message = f"{name} takes its type from a placeholder: BODY counts as plain text, JSON and forms are refused"
            hint = "write the type in the file, as in application/json, in an event for each type"
            offset = next(value.offset for header, value in settings.headers if header.text == name)
            settings.report.warning(FaultCode.DOUBTFUL, offset, message, hint)


def _check_levels(settings: BlockSettings, name: str, template: PlaceholderText | Condition, offset: int) -> None:
    """Refuse `{topic.5}` when no topic that SOURCE_TOPIC matches has five levels."""
    source: str = settings.values.get("SOURCE_TOPIC", "#")
    levels = source.count("/") + 1
    for written in template.names:
        number = written.removeprefix("topic.")
        if number != written and not source.endswith("#") and int(number) > levels:
            message = f"{name} uses {{{written}}}, but topics of SOURCE_TOPIC end with level {levels}"
            settings.report.error(FaultCode.PLACEHOLDER, offset, message)


# Server events.


def _read_server_event(settings: BlockSettings, config: RestApiConfig) -> ServerEvent | None:
    """Check and build an event that callers request: it publishes, or it is a read event.

    A read event has METHOD GET and a SOURCE_TOPIC, and answers with the last message of this topic.
    """
    values = settings.values
    if settings.has("SOURCE_TOPIC") and settings.has("DESTINATION_TOPIC"):
        message = "not exposed: it has SOURCE_TOPIC and DESTINATION_TOPIC, but ENABLE_CLIENT is not true"
        hint = 'WITH ENABLE_CLIENT "true" in REST_API_CONFIG makes it a client event'
        settings.report.warning(FaultCode.NO_EFFECT, settings.block.offset, message, hint)
        return None
    reads = settings.may_have("SOURCE_TOPIC") and values.get("METHOD", Method.GET) == Method.GET
    settings.warn_of_unused(Mode.SERVER)
    needed: dict[str, str | None] = {"METHOD": None, "ENDPOINT": None}  # with their hints
    if reads:
        _warn_in_read_event(settings)
    else:
        why = "only an event with METHOD GET answers with what its SOURCE_TOPIC brings"
        if not settings.may_have("SOURCE_TOPIC"):
            why = "an event without SOURCE_TOPIC is a server event, as ENABLE_SERVER is true"
        needed["DESTINATION_TOPIC"] = why if config.enable_client or settings.may_have("SOURCE_TOPIC") else None
    has_all = settings.require(Mode.SERVER, needed)
    if values.get("METHOD") == Method.PATCH:
        settings.invalid("METHOD", "must be GET, POST, PUT or DELETE in server mode, not PATCH")
    segments = _read_segments(settings)
    published: dict[str, Any] = _read_server_texts(settings, config, segments)
    read_topic = _parse_read_topic(settings, segments) if reads else None
    settings.check_rules([Mode.SERVER], _UNUSED_BY_READ_EVENTS if reads else ())
    effect = "only the first request within DEDUPE_FOR is published"
    differs = "write what is to differ, as in {header.webhook-id} or {body.json.id}"
    _warn_of_constant(settings, "DEDUPE_KEY", published["dedupe_key"], effect, differs)
    signature, schema = _read_signature(settings), None if reads else _read_schema(settings)
    published["when"] = read_condition(settings, Mode.SERVER)
    _check_segments(settings, "WHEN", published["when"], segments)
    reply, destination = published["reply_topic"], published["destination_topic"]
    if reply is not None and destination is not None and reply.source == destination.source:
        settings.invalid("REPLY_TOPIC", "is DESTINATION_TOPIC: a request would be taken for its own reply")
    if not has_all or settings.failed.intersection(needed):
        return None
    fields: dict[str, Any] = dict.fromkeys(published) if reads else published | {"source_topic": None}
    fields |= {"name": settings.block.name, "signature": signature, "schema_file": schema, "read_topic": read_topic}
    return settings.build(ServerEvent, **fields)


def _warn_in_read_event(settings: BlockSettings) -> None:
    """Warn of settings that have no effect in a read event, and of levels of other languages in its SOURCE_TOPIC."""
    for name in filter(settings.values.__contains__, _UNUSED_BY_READ_EVENTS):
        message = f"{name} has no effect in an event that answers with what its SOURCE_TOPIC brings"
        settings.warning(FaultCode.NO_EFFECT, name, message)
    topic = settings.texts.get("SOURCE_TOPIC")
    if topic is not None and "{" not in topic.text:
        warn_of_foreign_levels("SOURCE_TOPIC", topic, Mode.SERVER, settings.report)


def _read_segments(settings: BlockSettings) -> tuple[str, ...] | None:
    """Return the names of the `{name}` segments of ENDPOINT, None if it is missing or at fault."""
    endpoint = settings.texts.get("ENDPOINT")
    if endpoint is None:
        return None
    warn_of_foreign_levels("ENDPOINT", endpoint, Mode.SERVER, settings.report)
    try:
        return forms.read_server_endpoint(endpoint.text)
    except FormError as refused:
        settings.invalid("ENDPOINT", f'"{endpoint.shown}" {refused.message}', refused.hint)
        return None


def _read_server_texts(
    settings: BlockSettings, config: RestApiConfig, segments: tuple[str, ...] | None
) -> dict[str, PlaceholderText | None]:
    """Return the settings of a server event that hold placeholders, by field of the model."""
    texts: dict[str, PlaceholderText | None] = {}
    for name, place in (
        ("DESTINATION_TOPIC", Place.TOPIC),
        ("PAYLOAD", place_of(config.default_content_type)),
        ("REPLY_TOPIC", Place.TOPIC),
        ("DEDUPE_KEY", Place.TEXT),
        ("RESPONSE", place_of(settings.value("RESPONSE_CONTENT_TYPE"))),
    ):
        texts[name.lower()] = template = placeholder_text_of(settings, name, place, Mode.SERVER)
        _check_segments(settings, name, template, segments)
    return texts


def _check_segments(
    settings: BlockSettings, name: str, template: PlaceholderText | Condition | None, segments: tuple[str, ...] | None
) -> None:
    """Refuse `{path.x}` if ENDPOINT has no segment `{x}`. Do nothing if the `segments` are not known."""
    if segments is None or template is None:
        return
    end = 0
    for written in dict.fromkeys(template.names):
        segment = written.removeprefix("path.")
        if segment != written and segment not in segments:
            meant = closest(segment, segments)
            hint: str = f"write {{{segment}}} in ENDPOINT"
            if meant:
                hint = question(f"{{path.{meant}}}", f"path.{meant}")
            message = f"{name} uses {{{written}}}, but ENDPOINT has no segment {{{segment}}}"
            pattern = rf"(?<={{){re.escape(written)}(?=[|}}])"
            place, end = place_in(settings.texts[name], pattern, settings.report, end)
            settings.error(FaultCode.PLACEHOLDER, name, message, hint, (place, end))


def _parse_read_topic(settings: BlockSettings, segments: tuple[str, ...] | None) -> PlaceholderText | None:
    """Return the SOURCE_TOPIC of a read event as a text with placeholders, None if it has none."""
    name = "SOURCE_TOPIC"
    topic = settings.texts.get(name)
    if topic is None or name in settings.failed or not (written := re.findall(_BRACES, topic.text)):
        return None
    end = 0
    for one in written:
        place, end = place_in(topic, re.escape(one), settings.report, end)
        inside = one.strip("{}")
        if one != f"{{{inside}}}" or not inside.startswith("path."):
            meant = closest(inside.removeprefix("path."), segments or ())
            hint: str = "{path.x} is filled in there, with a segment {x} of ENDPOINT"
            if meant:
                hint = question(f"{{path.{meant}}}")
            message = f"SOURCE_TOPIC of a read event cannot hold {one}: it would never be filled"
            settings.error(FaultCode.PLACEHOLDER, name, message, hint, (place, end))
    template = placeholder_text_of(settings, name, Place.TOPIC, Mode.SERVER)
    _check_segments(settings, name, template, segments)
    return template


# For both kinds of events.


def _warn_of_constant(settings: BlockSettings, name: str, text: PlaceholderText | None, effect: str, hint: str) -> None:
    """Warn of a text without placeholders, which is the same for all messages although it should tell them apart."""
    if text is not None and text.is_constant:
        settings.warning(FaultCode.DOUBTFUL, name, f"{name} has no placeholder: {effect}", hint)


def _read_signature(settings: BlockSettings) -> Signature | None:
    """Read SIGNATURE_SECRET, SIGNATURE_HEADER and SIGNATURE_SCHEME; None when bodies are not signed."""
    secret = settings.values.get("SIGNATURE_SECRET")
    if secret is None:
        return None
    if not secret:
        settings.invalid("SIGNATURE_SECRET", "is empty", "such a signature proves nothing")
    scheme = SignatureScheme(settings.value("SIGNATURE_SCHEME"))
    if scheme is SignatureScheme.STANDARD_WEBHOOKS and not forms.is_base64(secret.removeprefix("whsec_")):
        settings.invalid("SIGNATURE_SECRET", "is not whsec_ and Base64, as standard-webhooks has it")
    return Signature(secret, settings.value("SIGNATURE_HEADER"), scheme)


def _read_schema(settings: BlockSettings) -> Schema | None:
    """Read SCHEMA_FILE; None when it is missing or at fault."""
    name = "SCHEMA_FILE"
    value = settings.texts.get(name)
    if value is None:
        return None
    if settings.may_have("EVERY"):
        message = "SCHEMA_FILE refuses what EVERY runs: its payload is empty, which is not JSON"
        settings.warning(FaultCode.DOUBTFUL, name, message, "write an event of its own for the schedule")
    try:
        return read_schema(value.text, settings.report.files)
    except SchemaFileError as error:
        settings.invalid(name, f'"{value.shown}": {error}', error.hint)
        return None
