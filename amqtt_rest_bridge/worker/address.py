"""The broker of a worker: its address, password and TLS, from the worker's settings. Blocks for files."""

import os
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.mqtt.values import Address, load_tls, parse_url
from amqtt_rest_bridge.settings import PASSWORD_VARIABLE, SettingFault, WorkerSettings, check_settings

_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")


def address_faults(settings: WorkerSettings) -> Iterator[SettingFault]:
    """Return what is wrong with the address, the password and the certificates; reads them."""
    for names, read in ((("broker",), _url), (("password_secret",), _password), (_TLS_FILES, _tls)):
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
    return replace(_url(settings), password=_password(settings), tls=_tls(settings))


def _url(settings: WorkerSettings) -> Address:
    url = parse_url(settings.broker)
    if url is None or url.path is not None:  # a WebSocket
        raise ConfigurationError("the setting broker must be mqtt://[USER@]HOST[:PORT], or mqtts:// for TLS")
    if url.password is not None:
        raise ConfigurationError(
            f"the setting broker holds a password: put it into the environment variable {PASSWORD_VARIABLE}, "
            "or name a file of secrets_dir in password_secret"
        )
    return url


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
    return load_tls(settings.broker.lower().startswith("mqtts:"), files, "broker: mqtts://...")
