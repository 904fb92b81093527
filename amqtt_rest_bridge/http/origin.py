"""Where a request goes: origins (RFC 9110 section 4.3), targets of redirects, and the proxy on the way. Pure.

`client` uses it when it is made and for each redirect, not for each request.
"""

import contextlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from amqtt_rest_bridge.addresses import HOST_NAME, basic_credentials, in_url, is_loopback
from amqtt_rest_bridge.errors import ConfigurationError

DEFAULT_PORTS = {"http": 80, "https": 443}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MOST_REDIRECTS = 5
_UPGRADE = ("http", 80, "https", 443)  # the one redirect to another scheme and port that is followed

# Printable ASCII stays as it was written; the rest is not allowed in a request line (RFC 9112 section 3.2).
_KEPT = "".join(map(chr, range(0x21, 0x7F)))
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
        """Return the Host field's value: IPv6 in brackets, without its zone; the port unless it is the scheme's own."""
        return self.endpoint.removesuffix(f":{DEFAULT_PORTS[self.scheme]}")

    @property
    def endpoint(self) -> str:
        """Return host and port, always both, as CONNECT has them (RFC 9110 section 9.3.6)."""
        return f"{in_url(self.host.partition('%')[0])}:{self.port}"

    def __str__(self) -> str:
        """Return the origin as the start of a URL."""
        return f"{self.scheme}://{self.authority}"


def origin_of(parts: SplitResult) -> Origin:
    """Return the origin of a split URL.

    Raises:
        ValueError: the scheme is not http or https, or there is no usable host or port.
    """
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"its scheme is {parts.scheme or 'missing'}; http and https are allowed")
    port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
    if not port:
        raise ValueError("its port is 0")
    host = parts.hostname or ""
    if ":" in host:
        return Origin(parts.scheme, str(ipaddress.IPv6Address(host)), port)  # AddressValueError is a ValueError
    if not host.isascii():
        if _IDNA_DEVIATIONS & frozenset(host):
            raise ValueError(f"the host {host!r} is written differently by different software; use its xn-- form")
        host = host.encode("idna").decode()  # UnicodeError is a ValueError
    if not HOST_NAME.fullmatch(host):
        raise ValueError("it names no host" if not host else f"{host!r} is not a host name")
    return Origin(parts.scheme, host, port)


def printable(text: str) -> str:
    """Percent-encode what is not allowed in a request line, as UTF-8; everything else stays as it is."""
    return quote(text, safe=_KEPT)


def target_of(parts: SplitResult) -> str:
    """Return the path and query of a split URL, as a request line has them."""
    return printable((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def resolve(url: str, location: str) -> tuple[Origin, str] | None:
    """Resolve a Location field against `url`: origin and request target, None when it is unusable."""
    try:
        parts = urlsplit(urljoin(url, location))
        if parts.username is not None:
            return None
        return origin_of(parts), target_of(parts)
    except ValueError:
        return None


def may_follow(old: Origin, new: Origin) -> bool:
    """Return whether a redirect may be followed: to the same host and port, or to the HTTPS of the same host."""
    return new == old or (old.host == new.host and (old.scheme, old.port, new.scheme, new.port) == _UPGRADE)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy's origin and the Proxy-Authorization value for it, None when it needs none."""

    origin: Origin
    authorization: str | None = field(default=None, repr=False)


def find_proxy(target: Origin, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for an origin, None to connect directly; lower-case variables win over upper-case ones.

    Loopback addresses and `localhost` never go through a proxy, which could only reach itself there.

    Raises:
        ConfigurationError: the variable does not hold the address of an HTTP proxy.
    """
    name, text = _variable(f"{target.scheme}_proxy", environment)
    exempt = filter(None, map(str.strip, _variable("no_proxy", environment)[1].lower().split(",")))
    if not text or is_loopback(target.host) or any(_is_exempt(entry, target) for entry in exempt):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        proxy, authorization = origin_of(parts), None
        if parts.username is not None:
            authorization = basic_credentials(unquote(parts.username), unquote(parts.password or ""))
    except ValueError:
        # The variable's value stays out of the message, and the cause out of its log: it may hold a password.
        raise ConfigurationError(f"{name} is not the address of a proxy") from None
    if proxy.scheme != "http":
        raise ConfigurationError(f"{name} must begin with http://, also for https:// targets; no other kind is known")
    return Proxy(proxy, authorization)


def _variable(name: str, environment: Mapping[str, str]) -> tuple[str, str]:
    for spelling in (name, name.upper()):
        value = environment.get(spelling, "").strip()
        if value:
            return spelling, value
    return name.upper(), ""


def _is_exempt(entry: str, target: Origin) -> bool:
    """Return whether an entry of NO_PROXY covers a target.

    An entry is a name, which covers its subdomains too, an address, a network, or `*`. A name or address may have a
    port.
    """
    if entry == "*":
        return True
    address = _address(target.host)
    if "/" in entry:
        with contextlib.suppress(ValueError):
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        return False
    host, port = entry, ""
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        port = port.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    if port and port != str(target.port):
        return False
    if address is not None:
        return address == _address(host)
    name = host.removeprefix("*").strip(".")
    own = target.host.rstrip(".")
    return own == name or own.endswith(f".{name}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
