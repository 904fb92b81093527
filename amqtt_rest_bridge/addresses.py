"""Hosts, as URLs and ports name them, and the credentials in front of them. Pure; any thread."""

import ipaddress
import re
from base64 import b64encode
from typing import Final

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST_NAME: Final = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
"""A name of RFC 1123 section 2.1, and _, which private networks use."""


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


def basic_credentials(username: str, password: str) -> str:
    """Return the value of Authorization for a user name and password (RFC 7617 section 2)."""
    return f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"
