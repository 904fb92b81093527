"""The options of the commands that connect to a broker: its address, TLS files, the password. Main thread."""

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.status_client import BrokerAddress

PASSWORD_VARIABLE: Final = "REST_BRIDGE_BROKER_PASSWORD"  # noqa: S105  # the name of a variable
DEFAULT_BROKER: Final = "mqtt://127.0.0.1:1883"
HELP: Final = f"""\
Name the user in the URL, and put the password into the environment variable {PASSWORD_VARIABLE}: URLs
are visible to other users of the machine. With mqtts:// and wss:// the broker's certificate is verified against the
system's authorities, or those of --ca-file.
"""

Broker = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="mqtt://, mqtts://, ws:// or wss://[USER[:PASSWORD]@]HOST[:PORT]; "
        "%XX in user name and password is decoded",
    ),
]
CaFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: authorities, PEM")]
CertFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: certificate of this client, PEM")]
KeyFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: its key, PEM")]


def address(broker: str, ca_file: str | None, cert_file: str | None, key_file: str | None) -> "BrokerAddress":
    """Return the broker's address with what is needed to connect; reads the TLS files and the password.

    Raises:
        ConfigurationError: An option cannot be used; the message holds no password.
    """
    from amqtt_rest_bridge.broker import status_client  # amqtt takes a second to import, which --help need not wait for

    tls = status_client.TlsFiles(ca_file, cert_file, key_file)
    return status_client.parse_address(broker, os.environ.get(PASSWORD_VARIABLE), tls)
