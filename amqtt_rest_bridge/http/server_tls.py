"""TLS of a port: its certificate, and the transport between a socket and a `connection`. Nothing of HTTP."""

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.system import refuse_passphrase, regular_file

if TYPE_CHECKING:
    from amqtt_rest_bridge.http.connection import Connection
    from amqtt_rest_bridge.http.server import Port

log = logging.getLogger(__name__)

_RECORD_BYTES: Final = 16_384

_OUT_OF_TIME: Final = (9, 10)  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate with its chain, and its private key."""

    certfile: str
    keyfile: str

    def load(self) -> ssl.SSLContext:
        """Return a context of the files for TLS 1.2 or newer; raises `ConfigurationError` if they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # which a caller can ask for again and again
        context.set_alpn_protocols(["http/1.1"])
        try:
            for path in (self.certfile, self.keyfile):
                regular_file(path)  # OpenSSL would wait for ever for a FIFO
            context.load_cert_chain(self.certfile, self.keyfile, password=refuse_passphrase)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"server_certfile {self.certfile} and server_keyfile {self.keyfile} cannot be used: {error}; "
                "use a PEM certificate and its unencrypted PEM key"
            ) from error
        return context

    def check_dates(self) -> None:
        """Log a warning if the certificate is not valid now; raises like `load`.

        A client in memory that trusts the certificate does a handshake: `ssl` has no other way to check the dates.
        """
        context, trusting = self.load(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname = False
        trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        trusting.load_verify_locations(self.certfile)
        to_caller, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = trusting.wrap_bio(to_caller, to_server)
        server = context.wrap_bio(to_server, to_caller, server_side=True)
        for side in (caller, server, caller):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as refused:
                if refused.verify_code in _OUT_OF_TIME:
                    why = refused.verify_message
                    log.warning("callers refuse server_certfile %s: %s; put a new one in its place", self.certfile, why)
                return


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """TLS for one connection of a port: the protocol of its socket's transport, and the transport of its connection.

    It replaces asyncio's own TLS for three reasons:

    - Memory stays small. asyncio encrypts an answer as a whole, and has a buffer of 256 KiB for each connection: 500
      callers that read none of their answers of 36 kB take 231 MB with it, 42 MB here.
    - Handshakes, which need up to a millisecond of processor time each, are done in turns.
    - A peer that has closed its sending side still gets its answer.
    """

    def __init__(self, port: "Port", connection: "Connection", context: ssl.SSLContext) -> None:
        super().__init__()
        self._port = port
        self._connection = connection
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._socket: asyncio.Transport | None = None
        self._has_shaken_hands = False
        self._is_queued = False  # for a step of the handshake
        self._is_paused = False  # the connection takes nothing, so nothing is decrypted
        self._is_discarding = False  # our side is closed: received bytes are dropped without decryption
        self._socket_is_full = False
        self._unsent: deque[memoryview] = deque()  # written by the connection and not encrypted
        self._is_full = False  # the connection was asked to pause writing
        self._is_closing = False

    # What the socket's transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._socket = cast("asyncio.Transport", transport)
        self._socket.set_write_buffer_limits(0)
        self._connection.begin_handshake(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end to the connection."""
        self._unsent.clear()
        self._connection.connection_lost(error)

    def get_buffer(self, _hint: int) -> memoryview:
        """Return what to receive into."""
        return self._port.buffer

    def buffer_updated(self, count: int) -> None:
        """Decrypt the received bytes; before the handshake is done, queue its next step."""
        if self._is_discarding:
            self._connection.receive(bytes(count))
            return
        self._received.write(self._port.buffer[:count])
        if self._has_shaken_hands:
            self._decrypt()
        elif not self._is_queued:
            self._is_queued = True
            self._port.handshakes.append(self)
            self._port.schedule()
            self._pause()

    def eof_received(self) -> bool:
        """Report that the peer sends nothing more; return whether the socket stays open for an answer."""
        return self._has_shaken_hands and self._connection.eof_received()

    def pause_writing(self) -> None:
        """Stop encrypting until the socket's buffer is empty."""
        self._socket_is_full = True

    def resume_writing(self) -> None:
        """Encrypt and send the rest."""
        self._socket_is_full = False
        self._encrypt()

    # Handshake, decryption and encryption.

    def take_turn(self) -> None:
        """Do a step of the handshake."""
        self._is_queued = False
        if self.is_closing():
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._write_encrypted()
            self._resume()
        except ssl.SSLError as error:
            log.debug("A TLS handshake with %s failed: %s", self._connection.remote, error)
            self._write_encrypted()  # with an alert that says why
            self._close_socket()
        else:
            self._has_shaken_hands = True
            self._connection.end_handshake()
            self._write_encrypted()
            self._resume()

    def _decrypt(self) -> None:
        while not (self._is_paused or self._is_closing or self._is_discarding):
            try:
                data = self._tls.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                log.debug("The TLS of %s broke: %s", self._connection.remote, error)
                self.abort()
                return
            if not data:  # the peer has ended its side
                if not self._connection.eof_received():
                    self.close()
                return
            self._connection.receive(data)
        self._write_encrypted()  # TLS 1.3 answers an update of the key

    def _encrypt(self) -> None:
        """Encrypt and send, as far as the peer takes it."""
        while self._unsent and not self._socket_is_full:
            piece = self._unsent.popleft()
            sent = self._tls.write(piece[:_RECORD_BYTES])
            if sent < len(piece):
                self._unsent.appendleft(piece[sent:])
            self._write_encrypted()
        if self._unsent or self._socket_is_full:
            if not self._is_full:
                self._is_full = True
                self._connection.pause_writing()
            return
        if self._is_closing:
            if self._socket is not None and not self._socket.is_closing():
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()  # RFC 8446 section 6.1: close_notify; that of the peer is not awaited
                self._write_encrypted()
                self._socket.close()
        elif self._is_full:
            self._is_full = False
            self._connection.resume_writing()

    def _write_encrypted(self) -> None:
        if self._socket is not None and self._to_send.pending:
            self._socket.write(self._to_send.read())

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()

    # What the connection calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the data behind those that wait."""
        if data:
            self._unsent.append(memoryview(data))
            self._encrypt()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limits are always 0, so `pause_writing` is called as soon as bytes wait."""

    def get_write_buffer_size(self) -> int:
        """Return the bytes that have not left."""
        waiting = 0 if self._socket is None else self._socket.get_write_buffer_size()
        return sum(map(len, self._unsent)) + waiting

    def pause_reading(self) -> None:
        """Stop decrypting and reading the socket."""
        self._is_paused = True
        self._pause()

    def _pause(self) -> None:
        if self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read again; bytes that have come already are decrypted in the next iteration of the loop."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._socket is None or self.is_closing():
            return
        if self._has_shaken_hands:
            self._decrypt()
        if not self._is_paused and not self._socket.is_closing():
            self._socket.resume_reading()

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def write_eof(self) -> None:
        """Close our side behind what was written, and discard what the peer sends from now on."""
        self._is_discarding = True
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._write_encrypted()
        if self._socket is not None:
            self._socket.write_eof()

    def close(self) -> None:
        """Close once all waiting bytes have left."""
        if not self._is_closing:
            self._is_closing = True
            if not self._has_shaken_hands:
                self._close_socket()
            else:
                self._encrypt()

    def abort(self) -> None:
        """Close at once; waiting bytes are dropped."""
        self._is_closing = True
        self._unsent.clear()
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        """Return whether it is being closed."""
        return self._is_closing or self._socket is None or self._socket.is_closing()
