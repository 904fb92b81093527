"""Where a request goes: origins (RFC 9110 section 4.3), base addresses and redirect targets.

Pure; used when a route is loaded and for each redirect, never for each message.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from amqtt_rest_bridge.errors import ConfigurationError

DEFAULT_PORTS = {"http": 80, "https": 443}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 5

# Printable ASCII stays as the author wrote it; the rest cannot stand in a request line (RFC 9112 section 3.2).
_KEPT = "".join(map(chr, range(0x21, 0x7F)))
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
# Python's codec is IDNA 2003, which makes another name of these than IDNA 2008 does (RFC 5894 section 7.2).
_IDNA_DEVIATIONS = frozenset("ßς\u200c\u200d")


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a server; `host` is a lower-case A-label name or an IP address without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Give the Host field's value: IPv6 in brackets, without its zone; the port unless it is the scheme's own."""
        return self.endpoint.removesuffix(f":{DEFAULT_PORTS[self.scheme]}")

    @property
    def endpoint(self) -> str:
        """Give host and port, always both, as CONNECT asks for them (RFC 9110 section 9.3.6)."""
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        """Give the origin as the start of a URL."""
        return f"{self.scheme}://{self.authority}"


def split_base_address(text: str) -> tuple[Origin, str]:
    """Split BASE_ADDRESS into its origin and its path, the path without a trailing slash.

    Decisions: credentials in it are refused, because addresses appear in logs; so are a query and a fragment, because
    ENDPOINT follows the path.

    Raises:
        ConfigurationError: it is not the http or https URL of a host.
    """
    if "?" in text or "#" in text:
        raise ConfigurationError("BASE_ADDRESS cannot hold a query or a fragment; write the query into ENDPOINT")
    try:
        parts = urlsplit(text)
        if parts.username is not None:
            raise ConfigurationError("BASE_ADDRESS holds credentials; set USERNAME and PASSWORD instead")
        return origin_of(parts), printable(parts.path).rstrip("/")
    except ValueError as error:
        raise ConfigurationError(f"BASE_ADDRESS is not an address: {error}") from error


def origin_of(parts: SplitResult) -> Origin:
    """Take the origin out of a split URL.

    Raises:
        ValueError: the scheme is not http or https, or there is no usable host or port.
    """
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"its scheme is {parts.scheme or 'missing'}; http and https are allowed")
    port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
    if not port:
        raise ValueError("its port is 0")
    return Origin(parts.scheme, _ascii_host(parts.hostname or ""), port)


def printable(text: str) -> str:
    """Percent-encode what cannot stand in a request line, as UTF-8; everything else stays as it is."""
    return quote(text, safe=_KEPT)


def resolve(url: str, location: str) -> tuple[Origin, str] | None:
    """Say where a Location field points, seen from `url`: origin and request target; None when it is unusable."""
    try:
        parts = urlsplit(urljoin(url, location))
        if parts.username is not None:
            return None
        query = f"?{parts.query}" if parts.query else ""
        return origin_of(parts), printable((parts.path or "/") + query)
    except ValueError:
        return None


def may_follow(old: Origin, new: Origin) -> bool:
    """Tell whether a redirect stays with the server that the operator named: same host and port, or its own HTTPS."""
    return new == old or (old.host == new.host and (old.scheme, old.port, new.scheme, new.port) == _UPGRADE)


_UPGRADE = ("http", 80, "https", 443)


def _ascii_host(host: str) -> str:
    if ":" in host:
        return str(ipaddress.IPv6Address(host))  # AddressValueError is a ValueError
    if not host.isascii():
        if _IDNA_DEVIATIONS & frozenset(host):
            raise ValueError(f"the host {host!r} is written differently by different software; use its xn-- form")
        host = host.encode("idna").decode()  # UnicodeError is a ValueError
    if not _HOST_NAME.fullmatch(host):
        raise ValueError("it names no host" if not host else f"{host!r} is not a host name")
    return host
