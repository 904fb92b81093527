"""EVENT blocks to client and server events: what each mode needs, and what has no effect in it."""

from amqtt_rest_bridge.language import syntax
from amqtt_rest_bridge.language.parameters import PARAMETERS, Applies, BlockKind
from amqtt_rest_bridge.language.suggest import did_you_mean
from amqtt_rest_bridge.language.syntax import Refused
from amqtt_rest_bridge.language.templates import read_template
from amqtt_rest_bridge.language.typed import TypedBlock
from amqtt_rest_bridge.model import ClientEvent, Method, ResponseFormat, RestApiConfig, ServerEvent, Signature
from amqtt_rest_bridge.placeholders import Mode, Place, PlaceholderText, place_of
from amqtt_rest_bridge.topics import filter_matches

_SINGLE_HEADERS = ("authorization", "content-type", "host", "user-agent")


def mode_of(block: TypedBlock, config: RestApiConfig) -> Mode | None:
    """Tell in which mode an event runs; None when its route has neither."""
    if config.enable_client and config.enable_server:
        return Mode.CLIENT if "SOURCE_TOPIC" in block else Mode.SERVER
    if config.enable_client:
        return Mode.CLIENT
    return Mode.SERVER if config.enable_server else None


class EventReader:
    """Read one event of a route whose config is known."""

    def __init__(self, block: TypedBlock, config: RestApiConfig, mode: Mode) -> None:
        self._block = block
        self._config = config
        self._mode = mode

    def client_event(self) -> ClientEvent | None:
        """Check and build a client event; None after errors, or when something it needs is missing."""
        block, values = self._block, self._block.values
        self._warn_of_unused()
        complete = self._require("SOURCE_TOPIC", "METHOD", "ENDPOINT")
        headers = self._headers()
        endpoint = self._template("ENDPOINT", Place.ENDPOINT)
        body = self._template("BODY", place_of(self._content_type()))
        destination = self._template("DESTINATION_TOPIC", Place.TOPIC)
        signature = self._signature()
        if "BODY" in values and values.get("METHOD") == Method.GET:
            hint = "write POST, or leave BODY out"
            block.warning("BODY", "a GET with a BODY: many servers refuse or ignore it", hint)
        self._warn_of_loops(destination)
        if not complete or endpoint is None or headers is None:
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
        )

    def server_event(self) -> ServerEvent | None:
        """Check and build a server event; None after errors, when something is missing, or when it is not exposed."""
        block, values = self._block, self._block.values
        if "SOURCE_TOPIC" in block and "DESTINATION_TOPIC" in block:
            message = "not exposed: it has SOURCE_TOPIC and DESTINATION_TOPIC, but ENABLE_CLIENT is not true"
            hint = 'WITH ENABLE_CLIENT "true" in REST_API_CONFIG makes it a client event'
            block.report.warning(block.block.offset, message, hint)
            return None
        reads = "SOURCE_TOPIC" in block and values.get("METHOD", Method.GET) == Method.GET
        self._warn_of_unused(reads=reads)
        complete = self._require("METHOD", "ENDPOINT", *(() if reads else ("DESTINATION_TOPIC",)))
        if values.get("METHOD") == Method.PATCH:
            block.error("METHOD", "METHOD must be GET, POST, PUT or DELETE in server mode, not PATCH")
            complete = False
        names = self._segments()
        destination = self._template("DESTINATION_TOPIC", Place.TOPIC, names)
        payload = self._template("PAYLOAD", place_of(self._config.default_content_type), names)
        reply = self._template("REPLY_TOPIC", Place.TOPIC, names)
        signature = self._signature()
        if not complete or names is None:
            return None
        return ServerEvent(
            name=block.block.name,
            method=Method(values["METHOD"]),
            endpoint=values["ENDPOINT"],
            destination_topic=destination,
            payload=payload,
            reply_topic=reply,
            source_topic=values.get("SOURCE_TOPIC") if reads else None,
            retain=values.get("RETAIN", False),
            signature=signature,
        )

    def _require(self, *names: str) -> bool:
        """Report what an event of this mode lacks; tell whether every setting is there and usable."""
        block = self._block
        for name in names:
            if name not in block:
                hint = self._hint_for_missing(name)
                block.report.error(block.block.offset, f"{name} is missing: a {self._mode} event needs it", hint)
        return all(name in block.values and name not in block.failed for name in names)

    def _hint_for_missing(self, name: str) -> str | None:
        if name == "SOURCE_TOPIC" and not self._config.enable_server:
            return 'for a server event, set ENABLE_SERVER "true" in REST_API_CONFIG'
        if name == "DESTINATION_TOPIC" and "SOURCE_TOPIC" in self._block:
            return "only an event with METHOD GET answers with what its SOURCE_TOPIC brings"
        if name == "DESTINATION_TOPIC" and self._config.enable_client:
            return "an event without SOURCE_TOPIC is a server event, as ENABLE_SERVER is true"
        return None

    def _warn_of_unused(self, *, reads: bool = False) -> None:
        """Warn of settings that mean nothing in this mode."""
        block = self._block
        for name, setting in block.block.settings.items():
            unused = setting.parameter.applies not in (Applies.BOTH, Applies(self._mode))
            if unused or (reads and name in ("PAYLOAD", "REPLY_TOPIC", "RETAIN")):
                what = "an event that reads" if reads and not unused else f"{self._mode} mode"
                block.report.warning(setting.offset, f"{name} has no effect in {what}")

    def _template(self, name: str, place: Place, segments: tuple[str, ...] | None = None) -> PlaceholderText | None:
        value = self._block.texts.get(name)
        if value is None or name in self._block.failed:
            return None
        template = read_template(name, value, place, self._mode, self._block.report)
        for written in template.names if template is not None and segments is not None else ():
            segment = written.removeprefix("path.")
            if segment != written and segments is not None and segment not in segments:
                hint = did_you_mean(segment, segments) or f"write {{{segment}}} in ENDPOINT"
                self._block.error(name, f"{name} uses {{{written}}}, but ENDPOINT has no segment {{{segment}}}", hint)
        return template

    def _segments(self) -> tuple[str, ...] | None:
        endpoint = self._block.texts.get("ENDPOINT")
        if endpoint is None:
            return None
        try:
            return syntax.read_server_endpoint(endpoint.text)
        except Refused as refused:
            self._block.error("ENDPOINT", f'ENDPOINT "{endpoint.shown}" {refused.message}', refused.hint)
            return None

    def _content_type(self) -> str:
        for name, value in self._block.headers:
            if name.text.lower() == "content-type":
                return value.text
        return self._config.default_content_type

    def _headers(self) -> tuple[tuple[str, PlaceholderText], ...] | None:
        """Read the header lines; None when one cannot be sent."""
        report = self._block.report
        headers: list[tuple[str, PlaceholderText]] = []
        seen: set[str] = set()
        complete = True
        for name, value in self._block.headers:
            lower = name.text.lower()
            template = read_template(f"header {name.shown}", value, Place.HEADER, self._mode, report)
            if not syntax.is_token(name.text):
                report.error(name.offset, f'"{name.shown}" is no header name', "letters, digits and - are safe")
            elif lower in syntax.OWN_HEADERS:
                report.error(name.offset, f"the header {name.text} belongs to the connection", "leave it out")
            elif lower in seen and lower in _SINGLE_HEADERS:
                report.error(name.offset, f"the header {name.text} is set twice", "a request has one")
            elif template is not None:
                headers.append((name.text, template))
                seen.add(lower)
                continue
            complete = False
        return tuple(headers) if complete else None

    def _signature(self) -> Signature | None:
        block, values = self._block, self._block.values
        if "SIGNATURE_HEADER" in values and "SIGNATURE_SECRET" not in block:
            block.warning("SIGNATURE_HEADER", "SIGNATURE_HEADER has no effect without SIGNATURE_SECRET")
        if "SIGNATURE_SECRET" not in values:
            return None
        if not values["SIGNATURE_SECRET"]:
            block.error("SIGNATURE_SECRET", "SIGNATURE_SECRET is empty", "anyone could sign with it")
        header = values.get("SIGNATURE_HEADER") or PARAMETERS[BlockKind.EVENT]["SIGNATURE_HEADER"].default or ""
        return Signature(values["SIGNATURE_SECRET"], header)

    def _warn_of_loops(self, destination: PlaceholderText | None) -> None:
        source = self._block.values.get("SOURCE_TOPIC")
        topics = {"ERROR_TOPIC": self._block.values.get("ERROR_TOPIC")}
        if destination is not None:
            topics["DESTINATION_TOPIC"] = destination.source if destination.is_constant else None
            if destination.source in ("{topic}", "{source_topic}"):
                topics["DESTINATION_TOPIC"] = source
        for name, topic in topics.items():
            if source and topic and (topic == source or filter_matches(source, topic)):
                message = f"{name} matches SOURCE_TOPIC: each result triggers the event again, until the chain is cut"
                self._block.warning(name, message, "publish to another topic")
