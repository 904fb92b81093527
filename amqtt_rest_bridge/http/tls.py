"""TLS of outgoing requests: which certificates a route trusts, which one it shows, and libcurl's settings for both.

Files are read here and passed to libcurl as bytes. The contents of a file that is removed stay in use; a file that has
changed is used for the next connection.
"""

import functools
import os
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pycurl

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.system import refuse_passphrase, regular_file

FileState = tuple[str, int, int, int]
"""By what a changed file is known: its path, time of change (ns), inode and size."""
Settings = tuple[tuple[int, Any], ...]
"""Options of a libcurl handle with their values."""

# Where systems keep their authorities. The wheel of libcurl only knows the place of the system that it was built on.
_AUTHORITIES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Red Hat, Fedora
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Which certificates a client trusts, and which one it sends; None for a file that is not set.

    `ca_file` replaces the system's authorities. Without `verify` any certificate is accepted. Files are PEM.
    """

    verify: bool = True
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """Return the files that are set, by the settings that name them."""
        named = {
            "CA_FILE": self.ca_file,
            "CLIENT_CERT_FILE": self.client_cert_file,
            "CLIENT_KEY_FILE": self.client_key_file,
        }
        return {setting: path for setting, path in named.items() if path}


class TlsSettings:
    """The settings of libcurl for some options. Files are read when they are first needed, and when they change."""

    def __init__(self, options: TlsOptions) -> None:
        self._options = options
        self._seen: tuple[FileState, ...] | None = None
        self._settings: Settings | None = None
        self._fault = ""

    def current(self) -> Settings:
        """Return the settings for a new connection; blocks while files that have changed are read.

        The last contents of a file stay in use while it is gone or cannot be used.

        Raises:
            ConfigurationError: A file cannot be used and none was before; the message names its setting and its path.
        """
        try:
            found = tuple(_state_of(setting, path) for setting, path in self._options.files.items())
            if found != self._seen:
                self._seen, options = found, self._options
                check_files(options)
                verify_host = 2 if options.verify else 0
                settings: Settings = (pycurl.SSL_VERIFYPEER, int(options.verify)), (pycurl.SSL_VERIFYHOST, verify_host)
                if options.ca_file:
                    settings += ((pycurl.CAINFO_BLOB, Path(options.ca_file).read_bytes()),)
                elif options.verify:
                    settings += _system_authorities()
                if options.client_cert_file:
                    key_file = options.client_key_file or options.client_cert_file
                    settings += ((pycurl.SSLCERT_BLOB, Path(options.client_cert_file).read_bytes()),)
                    settings += ((pycurl.SSLKEY_BLOB, Path(key_file).read_bytes()),)
                self._settings = settings
        except ConfigurationError as error:
            self._fault = str(error)
        if self._settings is None:
            raise ConfigurationError(self._fault)
        return self._settings


def check_files(options: TlsOptions) -> None:
    """Raise `ConfigurationError` for files that cannot be used; reads them."""
    for setting, path in options.files.items():
        _state_of(setting, path)  # OpenSSL would wait for ever for a FIFO
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.ca_file:
        try:
            context.load_verify_locations(cafile=options.ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise _unusable("CA_FILE", options.ca_file, error, "certificates in PEM form") from error
    if options.client_cert_file:
        certificate, key = options.client_cert_file, options.client_key_file
        for setting, path in options.files.items():
            try:
                with Path(path).open("rb"):  # only to learn which of the two cannot be read
                    pass
            except OSError as error:
                raise _unusable(setting, path, error, "a readable file") from error
        try:
            context.load_cert_chain(certificate, key, refuse_passphrase)
        except OSError as error:
            raise _unusable("CLIENT_CERT_FILE", certificate, error, "a certificate and its key in PEM form") from error
        except ValueError as error:
            why = f"CLIENT_KEY_FILE: {error}; only keys without a passphrase are supported"
            raise ConfigurationError(why) from error
    elif options.client_key_file:
        raise ConfigurationError("CLIENT_KEY_FILE is set without CLIENT_CERT_FILE")


@functools.cache
def _system_authorities() -> Settings:
    """Return the settings that trust the system's authorities; SSL_CERT_FILE wins over them."""
    named = os.environ.get("SSL_CERT_FILE")
    if not named and sys.platform in ("win32", "darwin"):
        return ((pycurl.SSL_OPTIONS, pycurl.SSLOPT_NATIVE_CA),)
    paths = (named, ssl.get_default_verify_paths().cafile, *_AUTHORITIES)
    file = next((path for path in paths if path and Path(path).is_file()), None)
    return () if file is None else ((pycurl.CAINFO, file),)


def _state_of(setting: str, path: str) -> FileState:
    try:
        status = regular_file(path)
    except OSError as error:
        raise _unusable(setting, path, error, "a readable file") from error
    return path, status.st_mtime_ns, status.st_ino, status.st_size


def _unusable(setting: str, path: str, error: OSError, expected: str) -> ConfigurationError:
    reason = (isinstance(error, ssl.SSLError) and error.reason) or error.strerror or type(error).__name__
    return ConfigurationError(f"{setting}: {path} cannot be used ({reason}); it must hold {expected}")
