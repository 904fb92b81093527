"""`rest-bridge serve --check` beyond values: the bridge's certificate files, folders and route files. Main thread."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.bridge.client.senders import unusable_routes
from amqtt_rest_bridge.errors import ConfigurationError, RouteFilesError
from amqtt_rest_bridge.http_server.tls import TlsFiles
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.language.evaluation import Environment
from amqtt_rest_bridge.processes.reload import usable_routes
from amqtt_rest_bridge.settings import SettingFault, Settings, bridge_settings

log = logging.getLogger(__name__)


_ROUTES_NEED: Final = frozenset({"routes", "secrets_dir", "spool", "server_certfile"})


def is_sound(
    settings: Settings, place: Callable[[tuple[str, ...]], str], invalid: frozenset[str] = frozenset()
) -> bool:
    """Log what would keep the bridge from starting besides the values of its settings; start nothing, bind no port.

    Args:
        settings: The plugin's settings.
        place: Returns where settings of some names are, as `path:line:column`, for the log.
        invalid: The names of settings whose values have faults and were left out; what follows from them is not
            checked.
    """
    wrong = [fault for fault in _file_faults(settings) if invalid.isdisjoint(fault[0])]
    for names, message in wrong:
        log.error("%s: error: %s", place(names), message)
    are_loadable = bool(settings.routes) and invalid.isdisjoint(_ROUTES_NEED)
    return not wrong if not are_loadable else _routes_are_sound(settings, place) and not wrong


def _routes_are_sound(settings: Settings, place: Callable[[tuple[str, ...]], str]) -> bool:
    sizes = ("max_body_bytes", "max_response_bytes")
    unreadable = {name: getattr(Settings, name) for name in sizes if isinstance(getattr(settings, name), str)}
    settings = replace(settings, **unreadable)  # what cannot be read is reported with the other values
    try:
        texts = sources.read(settings.route_paths)
        loaded = loader.load(texts, Environment(os.environ, Path(settings.secrets_dir)))
        unusable = [
            f"{route.path}:{route.position.line}:{route.position.column}: error: route {route.name}: {error}"
            for route, error in unusable_routes(usable_routes(loaded, settings), bridge_settings(settings), os.environ)
        ]
    except ConfigurationError as error:
        unusable = [f"{place(('routes',))}: error: {error}"]
    except RouteFilesError:  # each has been logged
        return False
    for line in unusable:
        log.error("%s", line)
    return not unusable


def _file_faults(settings: Settings) -> Iterator[SettingFault]:
    if settings.server_certfile is not None and settings.server_keyfile is not None:
        try:
            TlsFiles(settings.server_certfile, settings.server_keyfile).load()
        except ConfigurationError as error:
            yield ("server_certfile", "server_keyfile"), str(error)
    if settings.spool is not None and not Path(settings.spool).absolute().parent.is_dir():
        yield ("spool",), f"the folder of the setting spool does not exist: {settings.spool}"
