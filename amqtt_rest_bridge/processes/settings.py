"""The plugin's settings, checked, and what follows from them and the routes. Pure but for the log."""

import ipaddress
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Final

from amqtt_rest_bridge.errors import ConfigurationError, Fault, RouteFilesError, Severity
from amqtt_rest_bridge.language.loader import LoadResult
from amqtt_rest_bridge.model import BridgeSettings, OverloadPolicy, Route
from amqtt_rest_bridge.sizes import FORM, read_size, size_text

log = logging.getLogger(__name__)

_LEVELS: Final = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.NOTICE: logging.INFO}
_LARGEST_MESSAGE: Final = 268_435_455  # MQTT 3.1.1 section 2.2.3
_HIGHEST_PORT: Final = 65_535
_TOKEN: Final = re.compile(r"[\x21-\x7e]{16,}")
_SIZES: Final = (
    ("max_body_bytes", 0, _LARGEST_MESSAGE),
    ("max_message_bytes", 1, _LARGEST_MESSAGE),
    ("max_response_bytes", 0, _LARGEST_MESSAGE),
    ("queue_bytes", 1, 1 << 40),
)
_RANGES: Final = (
    ("processes", 0, 64),
    ("workers", 1, 1024),
    ("reload_seconds", 0, 86_400),
    ("status_seconds", 0, 86_400),
    ("start_seconds", 1, 3600),
)

SettingFault = tuple[tuple[str, ...], str]
"""The names of the settings that a fault is about, and what is wrong with them."""


@dataclass
class Settings:
    """The plugin's settings in the broker's configuration; `..._seconds` are seconds.

    `..._bytes` are sizes: bytes, or a text such as `64MiB`, which becomes bytes where it can be read.
    """

    routes: str | list[str] | None = None
    server_host: str = "127.0.0.1"
    server_certfile: str | None = None
    server_keyfile: str | None = None
    secrets_dir: str = "/run/secrets"
    max_body_bytes: int | str = 262_144
    max_message_bytes: int | str = 4 << 20
    max_response_bytes: int | str = 262_144
    queue_bytes: int | str = 256 << 20
    processes: int = 1
    workers: int = 64
    reload_seconds: float = 2
    status_seconds: float = 30
    start_seconds: float = 30
    spool: str | None = None
    access_log: str | None = None
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    admin_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Read sizes that are texts."""
        for name, _, _ in _SIZES:
            value = getattr(self, name)
            if isinstance(value, str) and (size := read_size(value)) is not None:
                setattr(self, name, size)

    @property
    def confirms(self) -> bool:
        """Return whether requests of server mode are answered only when the broker has acknowledged them."""
        return False

    def setting_faults(self) -> Iterator[SettingFault]:
        """Return everything that is wrong with the values, in the order in which they are checked."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) and not isinstance(one.default, bool):  # which Python counts as 0 and 1
                yield (one.name,), f"the setting {one.name} is {str(value).lower()}; write a number"
        yield from _server_faults(self)
        yield from _admin_faults(self)
        for name, least, most in _SIZES:
            value = getattr(self, name)
            if isinstance(value, str):
                yield (name,), f'the setting {name} is "{value}", which is not a size; {FORM}'
            elif not least <= value <= most:
                allowed = f"{least} to {most} bytes ({size_text(most)})" if most % 1024 == 0 else f"{least} to {most}"
                yield (name,), f"the setting {name} is {value}; allowed is {allowed}"
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                yield (name,), f"the setting {name} is {value}; allowed is {least} to {most}"

    def faults_of(self, route: Route) -> Iterator[Fault]:
        """Return the settings that a route needs and that are missing."""
        if self.spool is None and route.route_config.overload_policy is OverloadPolicy.LOSSLESS:
            yield _needs_spool(route)
        config = route.config
        is_served = config.enable_server and bool(route.server_events)
        if self.server_certfile is None and config.use_ssl and is_served:
            yield _needs_certificate(route)


def check_settings(settings: Settings) -> None:
    """Raise `ConfigurationError` for the first setting that cannot be used."""
    for _, message in settings.setting_faults():
        raise ConfigurationError(message)


def _server_faults(settings: Settings) -> Iterator[SettingFault]:
    if not settings.server_host.strip():
        yield ("server_host",), "the setting server_host is empty; write 127.0.0.1, or 0.0.0.0 for every network"
    if not settings.routes:
        yield ("routes",), "the setting routes is missing: name a file or folder of route definitions"
    if (settings.server_certfile is None) != (settings.server_keyfile is None):
        both = ("server_certfile", "server_keyfile")
        yield both, "server_certfile and server_keyfile belong together: set both, or none"


def _admin_faults(settings: Settings) -> Iterator[SettingFault]:
    if settings.admin_port is not None and not 0 <= settings.admin_port <= _HIGHEST_PORT:
        yield ("admin_port",), f"the setting admin_port is {settings.admin_port}; allowed is 0 to {_HIGHEST_PORT}"
    if settings.admin_token is not None and not _TOKEN.fullmatch(settings.admin_token):
        message = "the setting admin_token must be 16 or more visible ASCII characters without spaces"
        yield ("admin_token",), message
    if settings.admin_token is None and not is_loopback(settings.admin_host):
        message = (
            f"the setting admin_host is {settings.admin_host}, which other machines can reach: "
            "set admin_token, or leave it at 127.0.0.1"
        )
        yield ("admin_host", "admin_token"), message


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host that a port listens on."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bridge_settings(settings: Settings) -> BridgeSettings:
    """Return the plugin's settings that a bridge process needs."""
    return BridgeSettings(
        workers=settings.workers,
        max_body_bytes=int(settings.max_body_bytes),
        max_response_bytes=int(settings.max_response_bytes),
        server_certfile=settings.server_certfile,
        server_keyfile=settings.server_keyfile,
        access_log=settings.access_log,
        recorded=settings.admin_port is not None,
        admin_token=settings.admin_token,
        confirms=settings.confirms,
    )


def route_paths(settings: Settings) -> list[str]:
    """Return the configured files and folders."""
    return [settings.routes] if isinstance(settings.routes, str) else settings.routes or []


def server_ports(routes: Iterable[Route]) -> set[int]:
    """Return the ports that server mode needs."""
    return {route.config.server_port for route in routes if route.config.enable_server and route.server_events}


def usable_routes(loaded: LoadResult, settings: Settings) -> tuple[Route, ...]:
    """Log every fault and give the routes.

    Raises:
        RouteFilesError: There is an error among the faults; a route that needs a setting which is missing is one: a
            lossless route the spool, one with USE_SSL and server events the certificate.
    """
    faults = [*loaded.faults, *(fault for route in loaded.routes for fault in settings.faults_of(route))]
    for fault in faults:
        log.log(_LEVELS[fault.severity], "%s", fault)
    errors = tuple(fault for fault in faults if fault.severity is Severity.ERROR)
    if errors:
        raise RouteFilesError(errors)
    return loaded.routes


def _needs_certificate(route: Route) -> Fault:
    plain = "where a proxy before the bridge has the certificate"
    if route.config.base_address is not None:
        plain = "and begin BASE_ADDRESS with https://"
    return Fault(
        route.path,
        route.position,
        Severity.ERROR,
        f'route {route.name} has USE_SSL "true" and server events, which need the plugin\'s setting server_certfile',
        f"set server_certfile and server_keyfile; or leave USE_SSL out, {plain}",
    )


def _needs_spool(route: Route) -> Fault:
    return Fault(
        route.path,
        route.position,
        Severity.ERROR,
        f'route {route.name} has OVERLOAD_POLICY "lossless", which needs the plugin\'s setting spool',
        "set spool to a file, for example spool: spool.db",
    )
