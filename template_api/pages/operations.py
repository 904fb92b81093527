"""The operations of `openapi.json` as `/docs` shows them: parameters to try, a curl line, an example answer. Pure."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup

from template_api.pages.markup import highlighted, rendered

_BOUNDS: Final = {"minimum": "at least", "maximum": "at most", "maxLength": "longest", "default": "default"}
_ALWAYS_TRIED: Final = ("q",)  # beside what is required


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; `value` is what it is tried with, `choices` are all that is allowed where that is a closed set."""

    name: str
    place: str
    required: bool
    allowed: str
    description: Markup
    example: str
    value: str
    choices: Sequence[str]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `body` is an example of its JSON body, `answer` of what it answers."""

    id: str
    method: str
    path: str
    summary: str
    description: Markup
    parameters: Sequence[Parameter]
    body: str
    schema: str
    curl: str
    answer: Markup
    responses: Sequence[tuple[str, Markup]]


def operations(description: Mapping[str, Any], base_url: str) -> Iterator[Operation]:
    """Yield the operations of an OpenAPI description, in its order."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            responses = {status: _resolved(description, each) for status, each in operation["responses"].items()}
            parameters = [
                _parameter(description, _resolved(description, each)) for each in operation.get("parameters", ())
            ]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            body = _json(content["example"]) if content else ""
            yield Operation(
                id=operation["operationId"],
                method=method.upper(),
                path=path,
                summary=operation["summary"],
                description=rendered(operation.get("description", ""), below=2),
                parameters=parameters,
                body=body,
                schema=_json(_resolved(description, content["schema"])) if content else "",
                curl=_curl(f"{base_url}{path}", parameters, body),
                answer=_answer(responses["200"]["content"]),
                responses=[(status, rendered(each["description"], below=2)) for status, each in responses.items()],
            )


def _parameter(description: Mapping[str, Any], given: Mapping[str, Any]) -> Parameter:
    schema, required = _resolved(description, given["schema"]), given.get("required", False)
    choices = ["true", "false"] if schema["type"] == "boolean" else schema.get("enum", [])
    allowed = [schema.get("format") or schema["type"], *([" | ".join(schema["enum"])] if "enum" in schema else [])]
    allowed += [f"{label} {_text(schema[name])}" for name, label in _BOUNDS.items() if name in schema]
    example = _text(given.get("example", ""))
    return Parameter(
        name=given["name"],
        place=given["in"],
        required=required,
        allowed=", ".join(allowed),
        description=rendered(given.get("description", ""), below=2),
        example=example,
        value=example if required or given["name"] in _ALWAYS_TRIED else "",
        choices=choices,
    )


def _curl(url: str, parameters: Sequence[Parameter], body: str) -> str:
    """Return the command that makes the request that is tried; the page's script writes it alike."""
    for each in parameters:
        url = url.replace(f"{{{each.name}}}", quote(each.value, safe="")) if each.place == "path" else url
    query = urlencode([(each.name, each.value) for each in parameters if each.place == "query" and each.value])
    address = shlex.quote(f"{url}?{query}" if query else url)
    return f"curl {address}" + (f" -H 'Content-Type: application/json' -d {shlex.quote(body)}" if body else "")


def _answer(content: Mapping[str, Any]) -> Markup:
    media_type, shown = next(iter(content.items()))
    example = shown["example"]
    return Markup.escape(example) if isinstance(example, str) else highlighted(_json(example), media_type[-4:])


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _resolved(description: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a reference inside the description leads to."""
    while "$ref" in given:
        target: Any = description
        for name in given["$ref"].removeprefix("#/").split("/"):
            target = target[name.replace("~1", "/").replace("~0", "~")]
        given = target
    return given
