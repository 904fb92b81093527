"""What `rest-bridge serve --check` looks at beyond types: the bridge's settings, certificate files and route files."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from amqtt_rest_bridge.errors import ConfigurationError, RouteFilesError
from amqtt_rest_bridge.http_client.client import HttpSender
from amqtt_rest_bridge.http_client.tls import FileCheck
from amqtt_rest_bridge.http_server.tls import TlsFiles
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.model import Route
from amqtt_rest_bridge.processes.settings import Settings, check_settings, route_paths, usable_routes

log = logging.getLogger(__name__)


def is_sound(settings: Settings, place: str) -> bool:
    """Log everything that would keep the bridge from starting, without binding a port or starting a process.

    Args:
        settings: The plugin's settings.
        place: Where they stand, as `path:line:column`, for the log.
    """
    wrong = list(_wrong_settings(settings))
    for message in wrong:
        log.error("%s: error: %s", place, message)
    try:
        texts = sources.read(route_paths(settings))
        loaded = loader.load(texts, environment=os.environ, secrets_dir=Path(settings.secrets_dir))
        unusable = list(_unusable_senders(usable_routes(loaded, settings), settings))
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


def _unusable_senders(routes: tuple[Route, ...], settings: Settings) -> Iterator[str]:
    """Read the certificate files that routes name."""
    files = FileCheck()
    for route in (route for route in routes if route.client_events):
        try:
            limit = settings.max_response_bytes
            HttpSender(route.config, max_response_bytes=limit, environment=os.environ).close()
            files.look(route.config)
        except ConfigurationError as error:
            where = f"{route.path}:{route.position.line}:{route.position.column}"
            yield f"{where}: error: route {route.name}: {error}"
