"""Hosts, as URLs and ports name them, and the credentials in front of them. Pure; any thread."""

import errno
import ipaddress
import os
import re
import socket
from base64 import b64encode
from typing import Final

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST_NAME: Final = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
"""A name of RFC 1123 section 2.1, and _, which private networks use."""
_UNPRIVILEGED: Final = 1024  # Linux' default of net.ipv4.ip_unprivileged_port_start


def is_loopback(host: str) -> bool:
    """Return whether a host, a name or an address without brackets, is this machine and no other can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        name = host.rstrip(".")
        return name == "localhost" or name.endswith(".localhost")  # RFC 6761 section 6.3


def in_url(host: str) -> str:
    """Return a host as URLs have it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def why_not_bound(error: OSError, port: int, setting: str) -> str:
    """Return why a TCP port could not be bound, and what to do next.

    Args:
        error: What `bind` raised, or the search for the host's address.
        port: The port that was asked for.
        setting: Which setting names it, such as `admin_port`.
    """
    # asyncio puts the address into strerror once more; a name that cannot be resolved has no errno of the system.
    if error.errno is None or error.errno < 0 or isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).partition(" (while")[0]
    why = os.strerror(error.errno)
    if error.errno == errno.EADDRINUSE:
        return f"{why}; set {setting} to another port, or end the program that has it: ss -ltnp 'sport = :{port}'"
    if error.errno == errno.EACCES and port < _UNPRIVILEGED:
        return f"{why}; set {setting} to a port from {_UNPRIVILEGED}: lower ones need CAP_NET_BIND_SERVICE"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{why}; name an address of this machine: ip -br address lists them"
    return why


def basic_credentials(username: str, password: str) -> str:
    """Return the value of Authorization for a user name and password (RFC 7617 section 2)."""
    return f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"
