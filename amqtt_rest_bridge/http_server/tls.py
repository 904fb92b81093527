"""TLS for server mode's connections, driven by the port's I/O loop like plain ones. Nothing of HTTP.

Why a TLS-aware channel and not a TLS front before a plain server: handshake, reading and writing are steps that the
loop takes when the socket is ready, as it does for plain connections. A peer that stalls in the middle of one holds a
descriptor and nothing else, and no byte is copied through another socket or thread.
"""

import contextlib
import errno
import logging
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.system import regular_file

log = logging.getLogger(__name__)

_OUT_OF_TIME: Final = (9, 10)  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate with its chain, and its private key."""

    certfile: str
    keyfile: str

    def load(self) -> ssl.SSLContext:
        """Read the files into a context for TLS 1.2 or newer; raises `ConfigurationError` when they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.sslsocket_class = _TlsSocket
        try:
            for path in (self.certfile, self.keyfile):
                regular_file(path)  # OpenSSL would wait for ever for a FIFO
            context.load_cert_chain(self.certfile, self.keyfile, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"server_certfile {self.certfile} and server_keyfile {self.keyfile} cannot be used: {error}; "
                "use a PEM certificate and its unencrypted PEM key"
            ) from error
        return context

    def check_dates(self) -> None:
        """Warn of a certificate that is not valid now; raises like `load`."""
        if (why := _out_of_time(self.load(), self.certfile)) is not None:
            log.warning("callers refuse server_certfile %s: %s; put a new one in its place", self.certfile, why)


def _out_of_time(context: ssl.SSLContext, certfile: str) -> str | None:
    """Return why a certificate is not valid now, None if it is: in the words of a caller that trusts it.

    A handshake in memory tells, as Python has no other public way to ask for the dates of a certificate.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(certfile)
    to_caller, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller, server = trusting.wrap_bio(to_caller, to_server), context.wrap_bio(to_server, to_caller, server_side=True)
    for side in (caller, server, caller):
        try:
            side.do_handshake()
        except ssl.SSLCertVerificationError as refused:
            return refused.verify_message if refused.verify_code in _OUT_OF_TIME else None
        except ssl.SSLWantReadError:
            continue
    return None


class _TlsSocket(ssl.SSLSocket):
    """A TLS socket that raises `EWOULDBLOCK`, like a plain one, where it waits for its peer."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError(errno.EWOULDBLOCK, "the TLS connection waits for its peer") from error

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:  # type: ignore[override]  # bytes are all we send
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError(errno.EWOULDBLOCK, "the TLS connection waits for its peer") from error

    def close(self) -> None:
        """Announce to the peer that nothing follows (RFC 8446 section 6.1), without waiting, and close."""
        with contextlib.suppress(OSError, ValueError):
            self.unwrap()
        super().close()


def secure(sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Wrap an accepted connection in TLS, before the handshake; `sock` must not be used any more.

    Raises `OSError` for a connection that has ended already.
    """
    sock.getpeername()  # ssl (3.11) loses the descriptor of one that has
    sock.setblocking(False)
    return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


def _no_password() -> str:
    """Refuse an encrypted key instead of asking at the terminal."""
    raise ValueError("the key is encrypted")
