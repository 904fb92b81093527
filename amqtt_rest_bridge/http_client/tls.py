"""TLS: whose certificates are trusted and which one is sent, as options and as contexts. Any thread."""

import functools
import ssl
from dataclasses import dataclass
from threading import Lock
from typing import Final, NoReturn
from weakref import WeakValueDictionary

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.system import regular_file

Identity = tuple[str, int, int, int]
"""A file as it is: path, time of change (ns), inode, size."""
Key = tuple[bool, Identity | None, Identity | None, Identity | None]

_MOST_FAULTS: Final = 1000


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
    def has_files(self) -> bool:
        """Return whether a file is set."""
        return bool(self.ca_file or self.client_cert_file or self.client_key_file)


class TlsContexts:
    """TLS contexts, made when they are first needed; clients with the same files and parameters share one.

    A file is read again only when it has changed: hundreds of clients may use the same large one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: WeakValueDictionary[Key, ssl.SSLContext] = WeakValueDictionary()
        self._faults: dict[Key, str] = {}  # of files that could be read and hold the wrong thing
        self._making: dict[Key, Lock] = {}

    def of(self, options: TlsOptions) -> ssl.SSLContext:
        """Return the context for these options; blocks for as long as reading its files takes, the first time.

        Decision: CA_FILE replaces the system's authorities, so that a private authority is the only one trusted.

        Raises:
            ConfigurationError: A file cannot be used; the message names its setting and its path.
        """
        if not options.has_files:
            return _shared_context(options.verify)
        key = _key(options)
        with self._lock:
            making = self._making.setdefault(key, Lock())
        try:
            with making:
                with self._lock:
                    fault, made = self._faults.get(key), self._made.get(key)
                if fault is not None:
                    raise ConfigurationError(fault)
                return made or self._make(key, options)
        finally:
            with self._lock:
                self._making.pop(key, None)

    def _make(self, key: Key, options: TlsOptions) -> ssl.SSLContext:
        try:
            context = _context_with_files(options)
        except ConfigurationError as error:
            if not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, ssl.SSLError):
                with self._lock:
                    if len(self._faults) >= _MOST_FAULTS:
                        self._faults.clear()
                    self._faults[key] = str(error)
            raise
        with self._lock:
            self._made[key] = context
        return context


def check_files(options: TlsOptions) -> None:
    """Raise `ConfigurationError` for files that cannot be used; reads them."""
    if options.has_files:
        _key(options)  # OpenSSL would wait for ever for a FIFO
        _context_with_files(options)


def _context_with_files(options: TlsOptions) -> ssl.SSLContext:
    context = _context(options.verify, options.ca_file)
    if options.client_cert_file:
        _load_certificate(context, options.client_cert_file, options.client_key_file)
    elif options.client_key_file:
        raise ConfigurationError("CLIENT_KEY_FILE is set without CLIENT_CERT_FILE")
    return context


def _key(options: TlsOptions) -> Key:
    return (
        options.verify,
        _identity("CA_FILE", options.ca_file),
        _identity("CLIENT_CERT_FILE", options.client_cert_file),
        _identity("CLIENT_KEY_FILE", options.client_key_file),
    )


def _identity(setting: str, path: str | None) -> Identity | None:
    if not path:
        return None
    try:
        status = regular_file(path)
    except OSError as error:
        raise _unusable(setting, path, error, "a readable file") from error
    return path, status.st_mtime_ns, status.st_ino, status.st_size


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
