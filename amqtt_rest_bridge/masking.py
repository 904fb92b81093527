"""Masking of secrets in logs, errors and payloads. Pure: text in, text out."""

import functools
import html
import html.entities
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
    """Replace secrets in a text: as they are, percent-encoded, in JSON, in HTML, in hexadecimal digits, in Base64."""
    return _without(text, [_common(secret) for secret in secrets if len(secret) >= _SHORTEST])


def mask_encoded(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text in all forms of all encoders.

    These are: as it is, in either case, percent-encoded, escaped in a JSON string or a Python literal, escaped in HTML,
    each of these twice too and for any of its characters; in hexadecimal digits; and in Base64, of either alphabet, in
    lines, and also as a part of what was encoded, as a password is in the credentials of Basic. The first use of a
    secret takes some 10 ms, so this is not for the broker's loop.
    """
    return _without(text, [_in_any_form(secret) for secret in secrets if len(secret) >= _SHORTEST])


def _without(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    spans = [found.span() for pattern in patterns for found in pattern.finditer(text)]
    parts, end = [], 0
    for start, stop in sorted(spans):
        if start >= end:
            parts += [text[end:start], MASK]
        end = max(end, stop)
    return "".join([*parts, text[end:]])


@functools.lru_cache(maxsize=1024)
def _common(secret: str) -> re.Pattern[str]:
    """Return the pattern that finds a secret as most encoders write it; some 0.3 ms."""
    in_json = json.dumps(secret, ensure_ascii=False)[1:-1]
    texts = {secret, html.escape(secret), in_json, in_json.replace("/", "\\/")}
    data = secret.encode(errors="surrogatepass")
    coded = {json.dumps(secret)[1:-1], quote(data, safe=""), quote(data), quote_plus(data), data.hex()}
    longest_first = sorted(map(re.escape, texts), key=len, reverse=True)
    without_case = sorted(map(re.escape, coded), key=len, reverse=True)  # hexadecimal digits are written in either
    return re.compile("|".join([*longest_first, *(f"(?i:{form})" for form in without_case), *_in_base64(data)]))


@functools.lru_cache(maxsize=1024)
def _in_any_form(secret: str) -> re.Pattern[str]:
    """Return the pattern that finds a secret in all its forms.

    Encoders differ in what they escape, and how: letters and digits are left alone or escaped all together (then their
    numbers follow one another, with a few characters between), any other character may be in any of its forms.
    """
    data = secret.encode(errors="surrogatepass")
    text = "".join([char if char.isascii() and char.isalnum() else _character(char) for char in secret])
    hexadecimal = "[^0-9a-f]{0,4}(?:00)?".join([f"{byte:02x}" for byte in data])
    decimal = "[^0-9]{1,7}".join([str(ord(char)) for char in secret])
    return re.compile("|".join([f"(?i:{text}|{hexadecimal}|{decimal})", *_in_base64(data, _WRAP)]))


def _character(char: str) -> str:
    """Return the pattern of one character: itself, escaped, or escaped twice."""
    data, units = char.encode(errors="surrogatepass"), char.encode("utf-16-be", "surrogatepass")
    back = r"\\{1,3}"
    forms = [
        "".join([f"%(?:25)?{byte:02x}" for byte in data]),
        "".join([f"{back}x{byte:02x}" for byte in data]),
        "".join([f"{back}u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]),
        f"&(?:amp;)?(?:#0*{ord(char)}|#x0*{ord(char):x}|{'|'.join(_entities().get(char, ['#0']))});",
        re.escape(data.decode("latin-1")),  # UTF-8 that was taken for Latin-1
        rf"\\{{0,3}}{re.escape(char)}",
    ]
    if char == " ":
        forms.append(r"\+")
    elif char in _SHORT:
        forms.append(back + _SHORT[char])
    return f"(?:{'|'.join(forms)})"


_SHORT = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}  # RFC 8259 section 7


@functools.cache
def _entities() -> dict[str, list[str]]:
    """Return the names that HTML has for each character."""
    names: dict[str, list[str]] = {}
    for name, char in html.entities.html5.items():
        if name.endswith(";"):
            names.setdefault(char, []).append(name[:-1])
    return names


def _in_base64(data: bytes, between: str = "") -> Iterator[str]:
    """Yield a pattern for each of the three offsets of data in what is encoded (RFC 4648 section 4).

    Characters at its ends hold bits of the data around it too: any character matches there. `between` is a pattern too.
    """
    for before in range(3):
        first, beyond = -(-before * 8 // 6), (before + len(data)) * 8
        sure = b64encode(bytes(before) + data).decode()[first : beyond // 6]
        yield (
            (f"{_BASE64}?" if before else "")
            + between.join([_IN_BASE64.get(char, char) for char in sure])
            + (f"{_BASE64}?(?:=|%3[Dd])*" if beyond % 6 else "")
        )


_WRAP = r"(?:[\r\n]|\\[rn])*"  # MIME and PEM break lines
_IN_BASE64 = {"+": r"(?:[+-]|%2[Bb])", "/": r"(?:\\?/|_|%2[Ff])"}


def mask_header(name: str, value: str, secrets: Iterable[str]) -> str:
    """Mask the whole value of a header that by its name carries credentials, and secrets in any other.

    The scheme of an Authorization stays: `Bearer ***`.
    """
    lower = name.lower()
    if lower in ("authorization", "proxy-authorization") and " " in value.strip():
        return f"{mask_encoded(value.split()[0], secrets)} {MASK}"
    return MASK if is_credential(name) else mask_encoded(value, secrets)


def is_credential(name: str) -> bool:
    """Return whether a header or variable, by its name, carries a credential."""
    lower = name.lower()
    return any(word in lower for word in _CREDENTIAL_WORDS) and lower != "idempotency-key"
