"""TLS settings of a route as a context: whose certificates are believed, and which one is shown. Used at load."""

import functools
import ssl
from typing import NoReturn

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.model import RestApiConfig


def client_context(config: RestApiConfig) -> ssl.SSLContext:
    """Make the context of a route; routes without files share one, because reading the system's authorities takes long.

    Decision: CA_FILE replaces the system's authorities, so that a private authority is the only one believed.

    Raises:
        ConfigurationError: a file cannot be used; the message names its setting.
    """
    verify = not config.ignore_cert_errors
    if not has_files(config):
        return _shared_context(verify)
    context = _context(verify, config.ca_file)
    if config.client_cert_file:
        _load_certificate(context, config.client_cert_file, config.client_key_file)
    elif config.client_key_file:
        raise ConfigurationError("CLIENT_KEY_FILE is set without CLIENT_CERT_FILE")
    return context


def has_files(config: RestApiConfig) -> bool:
    """Tell that a route names files for TLS, which have to be read before it can run."""
    return bool(config.ca_file or config.client_cert_file or config.client_key_file)


@functools.cache
def _shared_context(verify: bool) -> ssl.SSLContext:  # the key of the cache
    return _context(verify, None)


def _context(verify: bool, ca_file: str | None) -> ssl.SSLContext:  # private, called twice
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise _unusable("CA_FILE", ca_file, error, "certificates in PEM form") from error
    elif verify:
        context.load_default_certs()
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    for setting, path in (("CLIENT_CERT_FILE", certificate), ("CLIENT_KEY_FILE", key)):
        if path:
            try:
                with open(path, "rb"):  # noqa: PTH123  # only to learn which of the two cannot be read
                    pass
            except OSError as error:
                raise _unusable(setting, path, error, "a readable file") from error
    try:
        context.load_cert_chain(certificate, key, _refuse_password)
    except OSError as error:
        raise _unusable("CLIENT_CERT_FILE", certificate, error, "a certificate and its key in PEM form") from error


def _refuse_password() -> NoReturn:
    raise ConfigurationError("CLIENT_KEY_FILE is encrypted; only keys without a passphrase are supported")


def _unusable(setting: str, path: str, error: OSError, expected: str) -> ConfigurationError:
    reason = (isinstance(error, ssl.SSLError) and error.reason) or error.strerror or type(error).__name__
    return ConfigurationError(f"{setting}: {path} cannot be used ({reason}); it must hold {expected}")
