"""`GET /openapi.json`: the endpoints of a port as OpenAPI 3.1, made of the definitions of its routes. Pure.

It is answered to any caller and holds no credentials: which ones an endpoint asks for, never what they are.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import NO_CONTENT, Method, Route, ServerEvent
from amqtt_rest_bridge.lot.placeholders.kinds import Placeholder
from amqtt_rest_bridge.system import own_version
from amqtt_rest_bridge.topics import NONCHARACTERS, has_wildcards

PATH: Final = "/openapi.json"

_Json = dict[str, Any]

_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f"
_NO_LEVEL: Final = f"/+#{_CONTROL}{NONCHARACTERS}"
_IN_TOPIC: Final[_Json] = {"type": "string", "minLength": 1, "pattern": f"^[^${_NO_LEVEL}][^{_NO_LEVEL}]*$"}
_IN_PATH: Final[_Json] = {"type": "string", "minLength": 1, "pattern": f"^[^{_CONTROL}]+$"}
_NO_PARAMETERS: Final = ("accept", "authorization", "content-type")  # OpenAPI 3.1 section 4.8.12.2.1
_ANY_TYPE: Final[_Json] = {name: {} for name in ("application/json", "text/plain", "application/octet-stream")}
_ERROR: Final[_Json] = {
    "description": "Refused; `error.code` says why",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_ERROR_SCHEMA: Final[_Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
        }
    },
}


def describe(routes: Sequence[Route]) -> bytes:
    """Return the description of the routes that share a port, JSON in UTF-8."""
    paths: dict[str, _Json] = {}
    schemes: _Json = {}
    for route in routes:
        masker, config = masker_of(route), route.config
        security: dict[str, _Json] = {}  # what callers may send, one of them, by its name
        if config.server_username is not None or (config.username is not None and not config.enable_client):
            security["password"] = {"type": "http", "scheme": "basic"}
        if config.server_token:
            security["token"] = {"type": "http", "scheme": "bearer"}
        if config.server_token and config.server_token_header is not None:
            name = re.sub("[^A-Za-z0-9_-]", "_", config.server_token_header)
            security[f"token-{name}"] = {"type": "apiKey", "in": "header", "name": config.server_token_header}
        schemes |= security
        for event in route.server_events if config.enable_server else ():
            operation = _operation(route, event)
            if security:
                operation["security"] = [{name: []} for name in security]
            paths.setdefault(masker.address(event.endpoint), {})[event.method.lower()] = operation
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Endpoints of amqtt_rest_bridge", "version": own_version()},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Error": _ERROR_SCHEMA},
            "responses": {"Error": _ERROR},
            **({"securitySchemes": schemes} if schemes else {}),
        },
    }
    # A schema may hold halves of surrogate pairs, which have no form in UTF-8 but their escapes.
    return json.dumps(document, indent=2).encode()


def _operation(route: Route, event: ServerEvent) -> _Json:
    """Return the description of one event: what it takes, and what it answers."""
    point = ":" if "." in route.name + event.name else "."  # event X.A of route H is not event A of route H.X
    name = f"{route.name}{point}{event.name}"
    summary = "Publish, and answer with the reply" if event.reply_topic is not None else "Publish"
    if event.read_filter is not None:
        summary = "Follow what is published" if event.stream else "Read what was published last"
    operation: _Json = {"operationId": name, "tags": [route.name], "summary": summary}
    if parameters := list(_parameters(event)):
        operation["parameters"] = parameters
    if event.method in (Method.POST, Method.PUT):
        operation["requestBody"] = _request_body(route, event)
    operation["responses"] = _responses(event) | {"default": {"$ref": "#/components/responses/Error"}}
    return operation


def _placeholders(event: ServerEvent) -> Iterator[tuple[Placeholder, bool]]:
    """Yield the placeholders of an event, each with whether it is a part of a topic."""
    topics = event.destination_topic, event.reply_topic, event.read_topic
    for texts, is_topic in ((topics, True), ((event.payload, event.response), False)):
        for text in filter(None, texts):
            yield from ((one, is_topic) for one in text.placeholders)


def _parameters(event: ServerEvent) -> Iterator[_Json]:
    """Yield the parameters of an event: of its path, those of query and headers that it uses, and its signature."""
    used = list(_placeholders(event))
    in_topics = {one.name for one, is_topic in used if is_topic}
    for name in re.findall(r"\{([^{}]+)\}", event.endpoint):
        schema = _IN_TOPIC if f"path.{name}" in in_topics else _IN_PATH
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    names = dict.fromkeys(one.name for one, _ in used)
    for written in names:
        place, _, name = written.partition(".")
        if place in ("query", "header") and name.lower() not in _NO_PARAMETERS:
            required = any(one.name == written and one.default is None for one, _ in used)
            schema = _IN_TOPIC if written in in_topics else {"type": "string"}
            yield {"name": name, "in": place, "required": required, "schema": schema}
    if event.signature is not None:
        schema = {"type": "string"}
        yield {"name": event.signature.header, "in": "header", "required": False, "schema": schema}


def _request_body(route: Route, event: ServerEvent) -> _Json:
    """Return the body that an event takes: by SCHEMA_FILE, or with the fields that its placeholders name."""
    if event.schema_file is not None:
        (_, text), *others = event.schema_file.documents
        schema = json.loads(text)
        if others:  # their addresses are those of this machine
            schema = {"description": "A JSON Schema of several files"}
        elif isinstance(schema, dict):
            schema = {"$id": f"urn:rest-bridge:{route.name}:{event.name}"} | schema
        return {"required": True, "content": {"application/json": {"schema": schema}}}
    used = [one for one, _ in _placeholders(event) if one.name.startswith("body.json")]
    if not used:
        return {"content": {"*/*": {"schema": {}}}}
    required = [one.name.split(".")[2:] for one in used if one.default is None]  # without names: the whole body
    return {"required": True, "content": {"application/json": {"schema": _object(required)}}}


def _object(fields: Iterable[Sequence[str]]) -> _Json:
    """Return the schema of JSON that has these members, each by the names that lead to it."""
    by_name: dict[str, list[Sequence[str]]] = {}
    for first, *others in filter(None, fields):
        by_name.setdefault(first, []).append(others)
    if not by_name or any(name.isdigit() for name in by_name):  # a digit may be an index or a name
        return {}
    members = {name: _object(others) for name, others in by_name.items()}
    return {"type": "object", "required": list(members), "properties": members}


def _responses(event: ServerEvent) -> _Json:
    """Return the good answers of an event, by status."""
    if event.stream:
        content: _Json = {"text/event-stream": {"schema": {"type": "string"}}}
        return {"200": {"description": "What was published last", "content": content}}
    if event.read_filter is not None:
        is_object = has_wildcards(event.source_topic or "")
        content = {"application/json": {"schema": {"type": "object"}}} if is_object else dict(_ANY_TYPE)
        return {
            "200": {"description": "What was published last", "content": content},
            "304": {"description": "Not modified: If-None-Match names the ETag"},
        }
    if event.reply_topic is not None:
        return {"200": {"description": "The reply", "content": dict(_ANY_TYPE)}}
    published: _Json = {"description": "Published"}
    if event.response is not None:
        published["content"] = {event.response_content_type: {}}
    elif event.response_status not in NO_CONTENT:
        members = {"status": {"type": "string"}, "topic": {"type": "string"}}
        schema = {"type": "object", "required": ["status"], "properties": members}
        published["content"] = {"application/json": {"schema": schema}}
    responses = {str(event.response_status): published}
    if event.when is not None:
        ignored = {"schema": {"type": "object", "required": ["status"]}}
        answer = responses.setdefault("200", {"description": "Not published: WHEN is false", "content": {}})
        answer["content"].setdefault("application/json", ignored)
    return responses
