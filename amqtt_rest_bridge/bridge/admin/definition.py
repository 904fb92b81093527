"""A route's definition as text, in the route language, from the model: what is in use, whatever its file says by now.

Secrets are masked. Settings that have their defaults are left out.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from amqtt_rest_bridge.masking import MASK, mask, mask_header
from amqtt_rest_bridge.model import ClientEvent, Route, ServerEvent
from amqtt_rest_bridge.placeholders import PlaceholderText


def definition(route: Route) -> str:
    """Return the definition of a route."""
    lines = [f"DEFINE ROUTE {route.name} WITH TYPE REST_API", "    ADD REST_API_CONFIG"]
    lines += _settings(route.config, route)
    shaped = list(_settings(route.route_config, route))
    if shaped:
        lines += ["    ADD ROUTE_CONFIG", *shaped]
    events: list[ClientEvent | ServerEvent] = [*route.client_events, *route.server_events]
    for event in events:
        lines += [f"    ADD EVENT {event.name}", *_settings(event, route), *_headers(event, route)]
    return "\n".join(lines)


def _settings(values: Any, route: Route) -> Iterator[str]:
    for field in fields(values):
        value = getattr(values, field.name)
        if field.name in ("name", "headers") or value == _default(field):
            continue
        if is_dataclass(value) and not isinstance(value, (type, PlaceholderText)):
            prefix = f"{field.name.upper()}_"
            yield from (line.replace("WITH ", f"WITH {prefix}", 1) for line in _settings(value, route))
        else:
            text = MASK if not field.repr else mask(_text(value), route.secrets)
            yield f'        WITH {field.name.upper()} "{text}"'


def _headers(event: ClientEvent | ServerEvent, route: Route) -> Iterator[str]:
    headers = event.headers if isinstance(event, ClientEvent) else ()
    if headers:
        yield "        WITH HEADERS"
    for name, value in headers:
        yield f'            ADD "{name}" "{mask_header(name, value.source, route.secrets)}"'


def _default(field: Field[Any]) -> Any:
    return field.default if field.default is not MISSING else MISSING


def _text(value: Any) -> str:
    match value:
        case PlaceholderText():
            return value.source
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(_text(one) for one in value)
        case _:
            return str(value)
