"""Which proxy a request goes through: HTTP_PROXY, HTTPS_PROXY and NO_PROXY of an environment. Pure."""

import ipaddress
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http_client.origin import Origin, origin_of


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy's origin and the Proxy-Authorization value for it, None when it asks for none."""

    origin: Origin
    authorization: str | None = field(default=None, repr=False)


def find_proxy(target: Origin, environment: Mapping[str, str]) -> Proxy | None:
    """Choose the proxy for an origin, None to connect directly; lower-case variables win over upper-case ones.

    Decision: loopback addresses and `localhost` never go through a proxy, which could only reach itself there.

    Raises:
        ConfigurationError: the variable does not hold the address of an HTTP proxy.
    """
    name, text = _variable(f"{target.scheme}_proxy", environment)
    if not text or _is_loopback(target.host) or _is_exempt(target, _variable("no_proxy", environment)[1]):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        proxy = Proxy(origin_of(parts), _credentials(parts.username, parts.password))
    except ValueError:
        # The variable's value stays out of the message, and the cause out of its log: it may hold a password.
        raise ConfigurationError(f"{name} is not the address of a proxy") from None
    if proxy.origin.scheme != "http":
        raise ConfigurationError(f"{name} must begin with http://, also for https:// targets; no other kind is known")
    return proxy


def _variable(name: str, environment: Mapping[str, str]) -> tuple[str, str]:
    for spelling in (name, name.upper()):
        value = environment.get(spelling, "").strip()
        if value:
            return spelling, value
    return name.upper(), ""


def _credentials(username: str | None, password: str | None) -> str | None:
    if username is None:
        return None
    pair = f"{unquote(username)}:{unquote(password or '')}"
    return "Basic " + b64encode(pair.encode()).decode()


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is not None:
        return address.is_loopback
    name = host.rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def _is_exempt(target: Origin, no_proxy: str) -> bool:
    return any(_matches(entry.strip().lower(), target) for entry in no_proxy.split(",") if entry.strip())


def _matches(entry: str, target: Origin) -> bool:
    """Match `*`, a name with its subdomains, an address or a network; a name or address may have a port."""
    if entry == "*":
        return True
    address = _address(target.host)
    if "/" in entry:
        return address is not None and _in_network(address, entry)
    host, port = _split_port(entry)
    if port is not None and port != str(target.port):
        return False
    if address is not None:
        return address == _address(host)
    name = host.removeprefix("*").strip(".")
    own = target.host.rstrip(".")
    return own == name or own.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, str | None]:
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        return host, port.removeprefix(":") or None
    host, colon, port = entry.rpartition(":")
    return (host, port) if colon and ":" not in host else (entry, None)


def _in_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address, entry: str) -> bool:
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
