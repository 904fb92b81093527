"""The operations of `openapi.json` as `/docs` shows them: parameters to try, a curl line, an example answer. Pure."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup

from template_api.pages.markup import highlighted

_BOUNDS: Final = {"minimum": "at least", "maximum": "at most", "maxLength": "longest", "default": "default"}
_ALWAYS_TRIED: Final = ("q",)  # beside what is required


def operations(description: Mapping[str, Any], base_url: str) -> Iterator[Mapping[str, Any]]:
    """Yield the operations of an OpenAPI description, in its order: their members, and what the page makes of them.

    These are `method` and `path`; `body`, an example of its JSON body, and `schema` of that, both empty without one;
    `curl`, the command that makes the request that is tried; `answer`, an example of it. A parameter has `allowed`,
    `choices` where all that is allowed is a closed set, and `value`, what it is tried with.
    """
    for path, methods in description["paths"].items():
        for method, given in methods.items():
            operation = _resolved(description, given)
            parameters = list(map(_parameter, operation.get("parameters", ())))
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            body = _json(content["example"]) if content else ""
            yield operation | {
                "method": method.upper(),
                "path": path,
                "parameters": parameters,
                "body": body,
                "schema": _json(content["schema"]) if content else "",
                "curl": _curl(f"{base_url}{path}", parameters, body),
                "answer": _answer(operation["responses"]["200"]["content"]),
            }


def _parameter(given: Mapping[str, Any]) -> Mapping[str, Any]:
    schema, example = given["schema"], _text(given.get("example", ""))
    allowed = [schema.get("format") or schema["type"], *([" | ".join(schema["enum"])] if "enum" in schema else [])]
    allowed += [f"{label} {_text(schema[name])}" for name, label in _BOUNDS.items() if name in schema]
    return {
        "required": False,
        **given,
        "allowed": ", ".join(allowed),
        "choices": ["true", "false"] if schema["type"] == "boolean" else schema.get("enum", []),
        "example": example,
        "value": example if given.get("required") or given["name"] in _ALWAYS_TRIED else "",
    }


def _curl(url: str, parameters: Sequence[Mapping[str, Any]], body: str) -> str:
    """Return the command that makes the request that is tried; the page's script writes it alike."""
    for each in parameters:
        url = url.replace(f"{{{each['name']}}}", quote(each["value"], safe="")) if each["in"] == "path" else url
    query = urlencode([(each["name"], each["value"]) for each in parameters if each["in"] == "query" and each["value"]])
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


def _resolved(description: Mapping[str, Any], value: Any) -> Any:
    """Return a part of the description with what its references lead to in their place."""
    if isinstance(value, list):
        return [_resolved(description, each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" not in value:
        return {name: _resolved(description, each) for name, each in value.items()}
    target: Any = description
    for name in value["$ref"].removeprefix("#/").split("/"):
        target = target[name]
    return _resolved(description, target)
