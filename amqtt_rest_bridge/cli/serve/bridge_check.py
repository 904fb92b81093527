"""`rest-bridge serve --check` beyond types: the bridge's settings, certificate files and route files. Main thread."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from amqtt_rest_bridge.bridge.client.http_options import unusable_routes
from amqtt_rest_bridge.errors import ConfigurationError, RouteFilesError
from amqtt_rest_bridge.http_server.tls import TlsFiles
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.processes.settings import Settings, bridge_settings, check_settings, route_paths, usable_routes

log = logging.getLogger(__name__)


def is_sound(settings: Settings, place: str) -> bool:
    """Log everything that would keep the bridge from starting, without binding a port or starting a process.

    Args:
        settings: The plugin's settings.
        place: Where they are, as `path:line:column`, for the log.
    """
    wrong = list(_wrong_settings(settings))
    for message in wrong:
        log.error("%s: error: %s", place, message)
    try:
        texts = sources.read(route_paths(settings))
        loaded = loader.load(texts, environment=os.environ, secrets_dir=Path(settings.secrets_dir))
        unusable = [
            f"{route.path}:{route.position.line}:{route.position.column}: error: route {route.name}: {error}"
            for route, error in unusable_routes(usable_routes(loaded, settings), bridge_settings(settings), os.environ)
        ]
    except ConfigurationError as error:
        unusable = [f"{place}: error: {error}"]
    except RouteFilesError:  # each has been logged
        return False
    for line in unusable:
        log.error("%s", line)
    return not (wrong or unusable)


def _wrong_settings(settings: Settings) -> Iterator[str]:
    try:
        check_settings(settings)
        if settings.server_certfile is not None and settings.server_keyfile is not None:
            TlsFiles(settings.server_certfile, settings.server_keyfile).load()
    except ConfigurationError as error:
        yield str(error)
    if settings.spool is not None and not Path(settings.spool).absolute().parent.is_dir():
        yield f"the folder of the setting spool does not exist: {settings.spool}"
