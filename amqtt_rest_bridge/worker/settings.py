"""The settings of a worker: the plugin's, the broker, and the place in the group. Pure, but for files."""

import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from amqtt_rest_bridge.errors import ConfigurationError, Fault, Severity
from amqtt_rest_bridge.model import OverloadPolicy, Route
from amqtt_rest_bridge.processes.settings import SettingFault, Settings, check_settings
from amqtt_rest_bridge.worker.values import Address

PASSWORD_VARIABLE: Final = "REST_BRIDGE_BROKER_PASSWORD"  # noqa: S105  # the name of one
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")
_GROUP: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_RANGES: Final = (
    ("slots", 1, 1024),
    ("adopt_seconds", 1, 86_400),
    ("session_expiry", 60, 4_294_967_294),
)


@dataclass
class WorkerSettings(Settings):
    """The settings of `worker.yaml`; `spool` is not one of them: the broker keeps the messages of lossless routes."""

    broker: str = "mqtt://127.0.0.1:1883"
    group: str = ""
    slots: int = 1
    slot: int = 0
    adopt_seconds: float = 30
    session_expiry: int = 86_400
    password_secret: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def confirms(self) -> bool:
        """Return true: a broker elsewhere has what it has acknowledged."""
        return True

    def setting_faults(self) -> Iterator[SettingFault]:
        """Return everything that is wrong with the values; reads certificates and the password."""
        yield from super().setting_faults()
        if not _GROUP.fullmatch(self.group):
            message = "must be a name of 1 to 64 letters, digits, _ . or -: all workers of a group share it"
            yield ("group",), f"the setting group {message}"
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not least <= value <= most:
                yield (name,), f"the setting {name} is {value}; allowed is {least} to {most}"
        if not 0 <= self.slot < self.slots:
            yield ("slot",), f"the setting slot is {self.slot}; with slots: {self.slots} it is 0 to {self.slots - 1}"
        for names, read in ((("broker",), _server), (("password_secret",), _password), (_TLS_FILES, _tls)):
            try:
                read(self)
            except ConfigurationError as error:
                yield names, str(error)

    def faults_of(self, route: Route) -> Iterator[Fault]:
        """Return what a route needs that a worker has not."""
        is_lossless = route.route_config.overload_policy is OverloadPolicy.LOSSLESS
        yield from (fault for fault in super().faults_of(route) if not (is_lossless and "spool" in fault.message))
        for event in route.server_events:
            if event.reply_topic is not None and "request_id" not in event.reply_topic.names:
                yield Fault(
                    route.path, route.position, Severity.ERROR,
                    f"event {event.name} of route {route.name}: with workers a REPLY_TOPIC needs {{request_id}}",
                    "add a level {request_id}: every worker of the group receives all replies",
                )  # fmt: skip


def check_worker_settings(settings: WorkerSettings) -> Address:
    """Return the broker's address; reads certificates and the password.

    Raises:
        ConfigurationError: The first setting that cannot be used; the message holds no password.
    """
    check_settings(settings)
    scheme, host, port, username = _server(settings)
    shown = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return Address(host, port, username, _password(settings), _tls(settings), shown)


def _server(settings: WorkerSettings) -> tuple[str, str, int, str | None]:
    """Return scheme, host, port and user name of the setting broker."""
    try:
        parts = urlsplit(settings.broker)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in _PORTS or not host or port == 0 or parts.path not in ("", "/") or parts.query:
        raise ConfigurationError("the setting broker must be mqtt://[USER@]HOST[:PORT], or mqtts:// for TLS")
    if parts.password is not None:
        raise ConfigurationError(
            f"the setting broker holds a password: put it into the environment variable {PASSWORD_VARIABLE}, "
            "or name a file of secrets_dir in password_secret"
        )
    username = unquote(parts.username) if parts.username else None
    return parts.scheme, host, _PORTS[parts.scheme] if port is None else port, username


def _password(settings: WorkerSettings) -> str | None:
    if settings.password_secret is None:
        return os.environ.get(PASSWORD_VARIABLE)
    path = Path(settings.secrets_dir) / settings.password_secret
    if "/" in settings.password_secret:
        raise ConfigurationError("the setting password_secret must be the name of a file in secrets_dir, without /")
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the setting password_secret, {path}: {error}") from error


def _tls(settings: WorkerSettings) -> ssl.SSLContext | None:
    files = {name: getattr(settings, name) for name in _TLS_FILES}
    given = [name for name, value in files.items() if value is not None]
    if not settings.broker.lower().startswith("mqtts:"):
        if given:
            raise ConfigurationError(f"the setting {given[0]} needs TLS: write broker: mqtts://...")
        return None
    if (settings.cert_file is None) != (settings.key_file is None):
        raise ConfigurationError("cert_file and key_file belong together: set both, or none")
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.cert_file is not None:
            context.load_cert_chain(settings.cert_file, settings.key_file, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        names = ", ".join(f"{name} {files[name]}" for name in given)
        raise ConfigurationError(f"the TLS files of the broker cannot be used ({names}): {error}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; store it without a password")
