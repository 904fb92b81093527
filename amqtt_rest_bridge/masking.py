"""Masking of secrets in logs, errors and payloads. Pure: text in, text out."""

import functools
import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

MASK = "***"
_SHORTEST = 3  # Decision: a secret of one or two letters is in most texts; masking it would mask everything else
_CREDENTIAL_WORDS = ("auth", "cookie", "credential", "key", "password", "secret", "token")
_BASE64 = "[A-Za-z0-9+/_-]"


def mask(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text, in each form in which a server may send back what it was sent.

    These are: as it is, percent-encoded, in a JSON string, in HTML, in hexadecimal digits, and in Base64, of either
    alphabet and also as a part of what was encoded, as a password is in the credentials of Basic.
    """
    spans = [found.span() for secret in secrets if len(secret) >= _SHORTEST for found in _finder(secret).finditer(text)]
    parts, end = [], 0
    for start, stop in sorted(spans):
        if start >= end:
            parts += [text[end:start], MASK]
        end = max(end, stop)
    return "".join([*parts, text[end:]])


@functools.lru_cache(maxsize=1024)
def _finder(secret: str) -> re.Pattern[str]:
    """Return the pattern that finds a secret in all its forms."""
    in_json = json.dumps(secret, ensure_ascii=False)[1:-1]
    texts = {secret, html.escape(secret), in_json, in_json.replace("/", "\\/")}
    data = secret.encode(errors="surrogatepass")
    coded = {json.dumps(secret)[1:-1], quote(data, safe=""), quote(data), quote_plus(data), data.hex()}
    longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
    without_case = sorted(map(re.escape, coded), key=len, reverse=True)  # hexadecimal digits are written in either
    return re.compile("|".join([*longest_first, *(f"(?i:{form})" for form in without_case), *_in_base64(data)]))


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield a pattern for each of the three offsets of data in what is encoded (RFC 4648 section 4).

    Characters at its ends hold bits of the data around it too: any character matches there.
    """
    for before in range(3):
        first, beyond = -(-before * 8 // 6), (before + len(data)) * 8
        sure = b64encode(bytes(before) + data).decode()[first : beyond // 6]
        yield (
            (f"{_BASE64}?" if before else "")
            + "".join([_IN_BASE64.get(char, char) for char in sure])
            + (f"{_BASE64}?(?:=|%3[Dd])*" if beyond % 6 else "")
        )


_IN_BASE64 = {"+": r"(?:[+-]|%2[Bb])", "/": r"(?:\\?/|_|%2[Ff])"}


def mask_header(name: str, value: str, secrets: Iterable[str]) -> str:
    """Mask the whole value of a header that by its name carries credentials, and secrets in any other.

    The scheme of an Authorization stays: `Bearer ***`.
    """
    lower = name.lower()
    if lower in ("authorization", "proxy-authorization") and " " in value.strip():
        return f"{mask(value.split()[0], secrets)} {MASK}"
    return MASK if is_credential(name) else mask(value, secrets)


def is_credential(name: str) -> bool:
    """Return whether a header or variable, by its name, carries a credential."""
    lower = name.lower()
    return any(word in lower for word in _CREDENTIAL_WORDS) and lower != "idempotency-key"
