"""Masking of secrets in what servers send back and in what is logged, shown and published. Pure; any thread.

A `Masker` is prepared once for each route; `secret_search` finds secrets in whatever form they come. What a request
carries beside the secrets of its route, such as a token that a message brought in, is masked for that request only.
Successful results are not looked at.
"""

import base64
import contextlib
import functools
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote_plus, unquote

from amqtt_rest_bridge.addresses import basic_credentials
from amqtt_rest_bridge.lot.model import RestApiConfig, Route
from amqtt_rest_bridge.lot.placeholders.kinds import Placeholder
from amqtt_rest_bridge.lot.secret_search import MASK, masked, masked_text

# A secret of one or two letters is in most texts; masking it would mask everything else. Programs read what is
# published: there a short word is more often itself than a secret.
_SHORTEST: Final = 3
_SHORTEST_PUBLISHED: Final = 6
_NO_CREDENTIALS: Final = ("idempotency-key", "www-authenticate", "proxy-authenticate")
_CREDENTIAL_WORDS: Final = ("auth", "cookie", "credential", "key", "password", "secret", "signature", "token")
_ADDRESSES: Final = frozenset(
    {"location", "content-location", "refresh", "referer", "link", "x-original-uri", "x-original-url"}
    | {"x-forwarded-uri", "x-rewrite-url"}  # proxies repeat the whole target in these
)
_CARRIED: Final = frozenset({"header", "property", "query"})
_QUERY_VALUE = re.compile(r"([?&;])([^=&;#\s]{1,200})=([^&;#\s\"'<>]+)")


class Masker:
    """Writes `***` for secrets, in whatever form they come.

    Args:
        secrets: Texts that are never shown, if they have three characters or more.
        in_addresses: Texts that are not shown in URLs, such as the values of environment variables.
    """

    __slots__ = ("_in_addresses", "_secrets")

    def __init__(self, secrets: Iterable[str], in_addresses: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secret for secret in secrets if len(secret) >= _SHORTEST)
        self._in_addresses = self._secrets.union(value for value in in_addresses if len(value) >= _SHORTEST)

    def including(self, secrets: Iterable[str]) -> "Masker":
        """Return a masker of these secrets, too, such as those of one request."""
        return Masker(self._secrets.union(secrets), self._in_addresses)

    def text(self, text: str) -> str:
        """Mask secrets in a text."""
        return masked_text(text, self._secrets)

    def address(self, text: str) -> str:
        """Mask secrets in a URL or a message that quotes one; values of variables and parameters like `token` too."""
        return _QUERY_VALUE.sub(
            lambda found: f"{found[1]}{found[2]}={MASK}" if is_credential_parameter(found[2]) else found[0],
            masked_text(text, self._in_addresses),
        )

    def header(self, name: str, value: str) -> str:
        """Mask the whole value of a header that by its name carries credentials, and secrets in any other.

        The scheme of an Authorization stays: `Bearer ***`.
        """
        lower = name.lower()
        if lower in ("authorization", "proxy-authorization") and " " in value.strip():
            return f"{self.text(value.split()[0])} {MASK}"
        if is_credential(name):
            return MASK
        return self.address(value) if lower in _ADDRESSES else self.text(value)

    def value(self, placeholder: Placeholder, text: str) -> str:
        """Mask secrets in a value that a message quotes; the whole of one that by its name is a credential."""
        name = placeholder.argument or ""
        is_carried = placeholder.root in _CARRIED and (is_credential(name) or is_credential_parameter(name))
        return MASK if is_carried else self.address(text)

    def body(self, body: bytes, *, shown: bool = False) -> bytes:
        """Mask secrets of six characters or more in a body, with `shown` of three or more; JSON stays JSON."""
        return masked(body, [secret for secret in self._secrets if shown or len(secret) >= _SHORTEST_PUBLISHED])

    def __repr__(self) -> str:
        """Return nothing of the secrets."""
        return f"<Masker of {len(self._secrets)} secrets>"


NO_SECRETS: Final = Masker(())


def masker_of(route: Route) -> Masker:
    """Return the masker of a route, prepared once: of its secrets, and of what is made of them to be sent."""
    return _masker(route.secrets, route.in_addresses, route.config)


@functools.lru_cache(maxsize=4096)
def _masker(secrets: frozenset[str], in_addresses: frozenset[str], config: RestApiConfig) -> Masker:
    pairs = [(config.username, config.password), (config.server_username, config.server_password)]
    if config.oauth2_client_id is not None and config.oauth2_client_secret is not None:
        pairs.append((quote_plus(config.oauth2_client_id), quote_plus(config.oauth2_client_secret)))
    sent = credentials_of([("Authorization", config.authorization or "")])
    return Masker(secrets.union(sent, *(basic_parts(f"{user}:{word}") for user, word in pairs if word)), in_addresses)


def masked_path(path: str, secrets: Iterable[str]) -> str:
    """Mask secrets of any route in a path that led to no endpoint, however it is percent-encoded.

    Of all secrets, which may be thousands, few are in a path: only these are looked for in all forms.
    """
    decoded = unquote(path)
    held = [secret for secret in secrets if len(secret) >= _SHORTEST and (secret in path or secret in decoded)]
    shown = masked_text(path, held)
    if any(secret in unquote(shown) for secret in held):  # encoded as no encoder does
        shown = masked_text(decoded, held)
    return shown


def is_credential(name: str) -> bool:
    """Return whether a header or variable, by its name, carries a credential."""
    lower = name.lower()
    return any(word in lower for word in _CREDENTIAL_WORDS) and lower not in _NO_CREDENTIALS


def is_credential_parameter(name: str) -> bool:
    """Return whether a query parameter, by its name, carries a credential: such as `api_key` or `X-Amz-Signature`."""
    decoded = unquote(name).lower()
    return "sig" in decoded or is_credential(decoded)


def credentials_of(headers: Iterable[tuple[str, str]], url: str = "") -> frozenset[str]:
    """Return the credentials in a request, by the names of headers and query parameters: whole, and their parts.

    Headers that hold addresses, such as Referer, have query parameters too.
    """
    found: set[str] = set()
    addresses = [url]
    for name, value in headers:
        if name.lower() in _ADDRESSES:
            addresses.append(value)
        if is_credential(name):
            scheme, _, rest = value.partition(" ")
            credentials = rest.strip() or scheme
            found |= {value, credentials, *re.findall(r"""=\s*"?([^\s;,"=]+)""", value)}
            if scheme.lower() == "basic":
                with contextlib.suppress(ValueError):
                    found |= basic_parts(base64.b64decode(rest).decode())
    for parameter in (one for address in addresses for one in _QUERY_VALUE.finditer(address)):
        if is_credential_parameter(parameter[2]):
            found |= {parameter[3], unquote(parameter[3])}
    return frozenset(found)


def basic_parts(pair: str) -> frozenset[str]:
    """Return what is secret of Basic credentials `user:password`: the password, and how both are sent."""
    user, _, password = pair.partition(":")
    return frozenset({password, basic_credentials(user, password).removeprefix("Basic ")})
