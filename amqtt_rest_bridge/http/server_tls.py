"""The certificate that the ports of server mode show: its files, and whether callers accept its dates."""

import logging
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


def _no_password() -> str:
    """Refuse an encrypted key instead of asking at the terminal."""
    raise ValueError("the key is encrypted")
