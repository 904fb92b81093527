"""The broker of a worker: its address, password and TLS, from the worker's settings. Blocks for files."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.mqtt.values import Address
from amqtt_rest_bridge.settings import PASSWORD_VARIABLE, SettingFault, WorkerSettings, check_settings

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")


def address_faults(settings: WorkerSettings) -> Iterator[SettingFault]:
    """Return what is wrong with the address, the password and the certificates; reads them."""
    for names, read in ((("broker",), _server), (("password_secret",), _password), (_TLS_FILES, _tls)):
        try:
            read(settings)
        except ConfigurationError as error:
            yield names, str(error)


def broker_address(settings: WorkerSettings) -> Address:
    """Check the settings and return the broker's address; reads certificates and the password.

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
