"""The broker's own listeners: their addresses and certificates, checked before the start. Main thread.

The types of amqtt's configuration are imported from here by what checks a configuration file.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType
from amqtt.errors import BrokerError

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.repairs.ipv6 import bare
from amqtt_rest_bridge.errors import BridgeError, reason

__all__ = [
    "BrokerConfig", "CannotListenError", "ListenerConfig", "ListenerType",
    "address_of", "bound_addresses", "certificate_fault", "probe",
]  # fmt: skip


class CannotListenError(BridgeError):
    """A listener's address cannot be bound; the message says which listener, which address and why."""

    def __init__(self, name: str, host: str | None, port: int, error: OSError) -> None:
        # asyncio puts the address into strerror once more; a name that cannot be resolved has no errno of the system.
        if error.errno is None or isinstance(error, socket.gaierror):
            why = error.strerror or str(error)
        else:
            why = os.strerror(error.errno)
        super().__init__(f"listener {name} cannot listen on {_shown(host or '*', port)}: {why}")


def probe(listeners: Mapping[str, ListenerConfig]) -> None:
    """Bind every address for a moment, as asyncio will.

    Raises:
        CannotListenError: One of them is taken, or none of this machine's.
    """
    for name, listener in listeners.items():
        if listener.type is ListenerType.EXTERNAL or listener.bind is None:
            continue
        host, port = address_of(listener)
        try:
            for sock, address in _sockets(host, port):
                with sock:
                    sock.bind(address)
        except OSError as error:
            raise CannotListenError(name, host, port, error) from error


def address_of(listener: ListenerConfig) -> tuple[str | None, int]:
    """Return host (None: all addresses; IPv6 without brackets) and port of a listener that has `bind`.

    Raises:
        ValueError: The port is not a number.
    """
    host, port = amqtt_broker.split_address(listener)
    return bare(host), port


def certificate_fault(listener: ListenerConfig) -> str | None:
    """Return why the certificate and key of a TLS listener cannot be used, None when they can; reads both files."""
    try:
        amqtt_broker.load_certificate(listener)
    except (BrokerError, OSError, ValueError) as error:  # ssl.SSLError is an OSError
        return reason(error)
    return None


def bound_addresses(broker: Broker) -> list[str]:
    """Return `host:port (name)` of every bound listener, with the port that was found where 0 was asked for."""
    return [
        f"{_shown(*sock.getsockname()[:2])} ({name})"
        for name, server in amqtt_broker.servers(broker)
        for sock in getattr(server.instance, "sockets", ())
    ]


def _sockets(host: str | None, port: int) -> Iterator[tuple[socket.socket, Any]]:
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:  # a kernel without IPv6; asyncio passes over it as well
            continue
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        yield sock, address


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
