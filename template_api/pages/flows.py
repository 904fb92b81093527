"""What a template's page draws of its routes: where each event begins, what it sends and where it ends. Pure.

All is read from the text of the cells that the page shows. An event is not drawn if its modes depend on a variable, or
if it lacks a setting that it needs; the page says how many routes are not drawn.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Final, NamedTuple

from markupsafe import Markup

from amqtt_rest_bridge.lot.parsed_texts import WrittenEvent, WrittenRoute, routes_in
from template_api.records import Notebook
from template_api.sources.template import defined_routes, lot_texts

_PLACEHOLDER: Final = re.compile(
    r"\{(?:payload|value|source_topic|topic|timestamp|env|secret|property|response|body|query|path|header|method"
    r"|request_id)(?:[.|][^{}\n]{0,256})?\}"
)
_DEFAULT: Final = re.compile(r"\{(?:env|secret)\.[^{}|]*\|([^{}]*)\}")
_ASKED: Final = re.compile(r"\{(env|secret)\.([^{}|]+)")
_FILLED: Final = re.compile(r"\{[^{}\s]+\}")
_SEGMENT: Final = re.compile(r"\{[^{}/\n]{1,256}\}")
_SIGNATURES: Final = {
    "slack": "X-Slack-Signature", "stripe": "Stripe-Signature", "standard-webhooks": "webhook-signature",
}  # fmt: skip
_MOST: Final = 100  # events; the routes of the cells that follow are only counted
_MOST_READ: Final = 100_000  # characters, 0.3 s of processor time; likewise
_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH")


class Step(NamedTuple):
    """One box of a drawing: its `kind` (topic, time, route, http), what it says, and what leads to it."""

    kind: str
    text: Markup
    note: str = ""


@dataclass(frozen=True, slots=True)
class Flow:
    """What one event does: its boxes in order, where failures go, the PAYLOAD that it publishes, and its request.

    The request is one that the event takes or sends: its line, headers and body, with their placeholders marked.
    """

    event: str
    steps: Sequence[Step]
    line: Markup
    headers: Sequence[tuple[str, Markup]]
    published: Markup | None
    body: Markup | None = None
    failed: Markup | None = None
    is_taken: bool = False


class Drawing(NamedTuple):
    """What the routes of a template do, and the variables (`env`) and secrets that they ask for, by name.

    `missing` is how many routes are not drawn, or not with all of their events. With `has_samples` their text holds a
    credential, which `rest-bridge install` refuses unless it is allowed.
    """

    flows: Sequence[Flow]
    missing: int
    asked: Mapping[str, str]
    has_samples: bool = False


def drawing(notebooks: Iterable[Notebook]) -> Drawing:
    """Return what the routes in the cells of notebooks do."""
    found: list[Flow] = []
    missing, left = 0, _MOST_READ
    asked: dict[str, str] = {}
    has_samples = False
    for text in chain.from_iterable(lot_texts(json.loads(notebook.cells)) for notebook in notebooks):
        left -= len(text)
        whole = 0
        for route in routes_in(text) if len(found) < _MOST and left >= 0 else ():
            drawn = list(flows(route))
            found += drawn
            headers = (pair for event in route.events for pair in event.headers)
            for _, written in chain(route.config.items(), *(event.settings.items() for event in route.events), headers):
                asked |= {name: source for source, name in _ASKED.findall(written)}
            for credential in route.credentials:  # one that everybody can read, also as a default
                plain = _DEFAULT.sub(r"\1", credential)
                has_samples = has_samples or bool(plain and not _FILLED.search(plain))
            whole += len(drawn) == len(route.events)
        missing += max(0, defined_routes(text).count("REST_API") - whole)
    return Drawing(found, missing, asked, has_samples)


def flows(route: WrittenRoute) -> Iterator[Flow]:
    """Yield what the events of a route do, in their order."""
    client, server = (_switch(route.config, name) for name in ("ENABLE_CLIENT", "ENABLE_SERVER"))
    if client is None or server is None:
        return
    for event in route.events:
        if event.settings.get("METHOD", "").upper() not in _METHODS or "ENDPOINT" not in event.settings:
            continue
        is_triggered = bool({"SOURCE_TOPIC", "EVERY"} & event.settings.keys())
        if client and (is_triggered or not server):
            if is_triggered and route.config.get("BASE_ADDRESS", "").strip():
                yield _sent(route, event)
        elif server:
            reads = "SOURCE_TOPIC" in event.settings
            if reads is not ("DESTINATION_TOPIC" in event.settings) and not (reads and _method(event) != "GET"):
                yield _taken(route, event)


def _sent(route: WrittenRoute, event: WrittenEvent) -> Flow:
    """Return what an event does that a message or its schedule triggers."""
    given, config = event.settings, route.config
    address = config["BASE_ADDRESS"].strip()
    if "://" not in address and not address.startswith("{"):
        address = f"{'https' if _switch(config, 'USE_SSL') else 'http'}://{address}"
    line = marked(f"{_method(event)} {address.rstrip('/')}/{given['ENDPOINT'].lstrip('/')}")
    steps = []
    if "SOURCE_TOPIC" in given:
        steps.append(Step("topic", marked(given["SOURCE_TOPIC"]), "a message on"))
    if "EVERY" in given:
        steps.append(Step("time", marked(given["EVERY"]), "or every" if steps else "every"))
    steps += [_route(route, event), Step("http", line, "sends")]
    if "DESTINATION_TOPIC" in given:
        envelope = given.get("RESPONSE_FORMAT", "").lower() == "envelope"
        what = "PAYLOAD" if "PAYLOAD" in given else "status, headers and body" if envelope else "the response's body"
        steps.append(Step("topic", marked(given["DESTINATION_TOPIC"]), f"publishes {what} on"))
    headers = [(name, marked(value)) for name, value in event.headers]
    named = {name.lower() for name, _ in headers}
    if "BODY" in given and "content-type" not in named:
        headers.append(("Content-Type", marked(config.get("DEFAULT_CONTENT_TYPE", "application/json"))))
    if "authorization" not in named:
        if "AUTHORIZATION" in config:
            headers.append(("Authorization", marked(config["AUTHORIZATION"])))
        elif {"USERNAME", "PASSWORD"} <= config.keys():
            headers.append(("Authorization", _made("Basic ", "USERNAME and PASSWORD")))
        elif "OAUTH2_TOKEN_URL" in config:
            headers.append(("Authorization", _made("Bearer ", f"a token of {config['OAUTH2_TOKEN_URL']}")))
    texts = [marked(given[name]) if name in given else None for name in ("BODY", "PAYLOAD", "ERROR_TOPIC")]
    body, payload, failed = texts
    return Flow(event.name, steps, line, headers + _signature(given), payload, body, failed)


def _taken(route: WrittenRoute, event: WrittenEvent) -> Flow:
    """Return what an event does that a request triggers."""
    given, config, method = event.settings, route.config, _method(event)
    endpoint = marked(given["ENDPOINT"], _SEGMENT)
    port = marked(config.get("SERVER_PORT", "8080"))
    address, published = Markup("{} :{}{}").format(method, port, endpoint), None
    if "SOURCE_TOPIC" in given:  # in the direction of the message, as the flow of the bridge's pages
        topic = Step("topic", marked(given["SOURCE_TOPIC"]), "the latest message on")
        steps = [topic, _route(route, event), Step("http", address, "answers")]
    else:
        steps = [Step("http", address, "a request"), _route(route, event)]
        published = marked(given["PAYLOAD"]) if "PAYLOAD" in given else None
        what = "the request's body" if published is None else "PAYLOAD"
        steps.append(Step("topic", marked(given["DESTINATION_TOPIC"]), f"publishes {what} on"))
        if "REPLY_TOPIC" in given:
            steps.append(Step("topic", marked(given["REPLY_TOPIC"]), "answers with the next message on"))
    admitting = []
    if {"SERVER_USERNAME", "SERVER_PASSWORD"} & config.keys():
        admitting.append(_made("Basic ", "SERVER_USERNAME and SERVER_PASSWORD"))
    elif not _switch(config, "ENABLE_CLIENT") and {"USERNAME", "PASSWORD"} & config.keys():
        admitting.append(_made("Basic ", "USERNAME and PASSWORD"))
    if "SERVER_TOKEN" in config:
        admitting.append(_made("Bearer ", "SERVER_TOKEN"))
    headers = [("Host", Markup("127.0.0.1:{}").format(port))]
    if admitting:
        headers.append(("Authorization", Markup(" or ").join(admitting)))
    line = Markup("{} {}").format(method, endpoint)
    return Flow(event.name, steps, line, headers + _signature(given), published, is_taken=True)


def marked(text: str, placeholder: re.Pattern[str] = _PLACEHOLDER) -> Markup:
    """Return a text as HTML, its placeholders in `span` elements of the class `filled`."""
    return Markup(placeholder.sub(r'<span class="filled">\g<0></span>', escape(text)))  # noqa: S704


def _made(before: str, what: str) -> Markup:
    return Markup('{}<span class="filled">{}</span>').format(before, what)


def _method(event: WrittenEvent) -> str:
    return event.settings["METHOD"].upper()


def _switch(config: Mapping[str, str], name: str) -> bool | None:
    """Return whether a mode is on, None when that cannot be read from the text."""
    return {"true": True, "false": False}.get(config.get(name, "false").strip().lower())


def _route(route: WrittenRoute, event: WrittenEvent) -> Step:
    when = event.settings.get("WHEN")
    return Step("route", Markup.escape(route.name), f"only when {when}" if when else "")


def _signature(given: Mapping[str, str]) -> list[tuple[str, Markup]]:
    if "SIGNATURE_SECRET" not in given:
        return []
    own = _SIGNATURES.get(given.get("SIGNATURE_SCHEME", "hmac").lower())
    made = _made("", "signature of the body") if own else _made("sha256=", "HMAC of the body")
    return [(own or given.get("SIGNATURE_HEADER", "X-Hub-Signature-256"), made)]
