"""An amqtt plugin that turns an MQTT broker into an HTTP bridge, and what other programs may use of it.

The broker loads `amqtt_rest_bridge.plugin.RestBridgePlugin`. Other programs, such as editors and generators of routes,
load and check route files:

    >>> import amqtt_rest_bridge
    >>> loaded = amqtt_rest_bridge.load_routes("conf/routes")
    >>> [route.name for route in loaded.routes]
    ['TemplateSearch', 'WebhookIntake']
    >>> event = loaded.routes[0].client_events[0]
    >>> event.source_topic, event.method.value, event.endpoint.source
    ('templates/search', 'GET', '/api/search?q={payload}&limit=3')

The names of `__all__` are the public interface; everything else may move between two versions. They are imported when
they are first used: each broker and bridge process imports this package, and the parser costs 0.1 s of CPU to import.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqtt_rest_bridge.errors import (
        BridgeError,
        ConfigurationError,
        Fault,
        FaultCode,
        Position,
        RouteFilesError,
        Severity,
    )
    from amqtt_rest_bridge.lot.model import (
        ClientEvent,
        LoadResult,
        Method,
        OverloadPolicy,
        ResponseFormat,
        RestApiConfig,
        Route,
        RouteConfig,
        ServerEvent,
        Signature,
    )
    from amqtt_rest_bridge.lot.placeholders.text import PlaceholderText

    __version__: str

__all__ = [
    "BridgeError",
    "ClientEvent",
    "ConfigurationError",
    "Fault",
    "FaultCode",
    "LoadResult",
    "Method",
    "OverloadPolicy",
    "PlaceholderText",
    "Position",
    "ResponseFormat",
    "RestApiConfig",
    "Route",
    "RouteConfig",
    "RouteFilesError",
    "ServerEvent",
    "Severity",
    "Signature",
    "__version__",
    "load_routes",
]

_ERRORS = {"BridgeError", "ConfigurationError", "Fault", "FaultCode", "Position", "RouteFilesError", "Severity"}
_MODULES = {"PlaceholderText": "lot.placeholders.text"} | dict.fromkeys(_ERRORS, "errors")


def load_routes(
    *paths: str | Path,
    secrets_dir: str | Path = "/run/secrets",
    environment: Mapping[str, str] | None = None,
) -> "LoadResult":
    """Return the routes of route files, and what is worth a warning in them. Blocks: it reads files and parses.

    Args:
        paths: Files (`*.lot`, `*.lotnb`) and folders, which are searched at any depth, in sorted order.
        secrets_dir: The folder that GET SECRET reads.
        environment: What GET ENV reads; default: `os.environ`.

    Returns:
        `routes`, in the order of the files, and `faults`, the warnings and notices, sorted by place.

    Raises:
        RouteFilesError: A file has an error; `faults` holds every fault of every file, each with path, line, column,
            message and hint.
        ConfigurationError: A path is missing or cannot be read; the message names all such paths.
    """
    from amqtt_rest_bridge.errors import RouteFilesError
    from amqtt_rest_bridge.lot import loader, sources
    from amqtt_rest_bridge.lot.evaluation import Environment

    texts = sources.read([Path(path) for path in paths])
    variables = os.environ if environment is None else environment
    loaded = loader.load(texts, Environment(variables, Path(secrets_dir)))
    if loaded.has_errors:
        raise RouteFilesError(loaded.faults)
    return loaded


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name == "__version__":
        return import_module(f"{__name__}.system").own_version()
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'lot.model')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
