"""Hide secrets in what people see. Pure text in, text out."""

import json
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
_SHORTEST = 3  # Decision: a secret of one or two letters stands everywhere; hiding it would hide everything else
_CREDENTIAL_WORDS = ("auth", "cookie", "credential", "key", "password", "secret", "token")


def mask(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text: as they are, percent-encoded and as they stand in JSON strings."""
    forms = {
        form
        for secret in secrets
        if len(secret) >= _SHORTEST
        for form in (secret, quote(secret, safe=""), json.dumps(secret, ensure_ascii=False)[1:-1])
    }
    for form in sorted(forms, key=len, reverse=True):  # a longer one may hold a shorter one
        text = text.replace(form, MASK)
    return text


def mask_header(name: str, value: str, secrets: Iterable[str]) -> str:
    """Hide the whole value of a header that by its name carries credentials, and secrets in any other.

    The scheme of an Authorization stays: `Bearer ***`.
    """
    lower = name.lower()
    if lower in ("authorization", "proxy-authorization") and " " in value.strip():
        return f"{mask(value.split()[0], secrets)} {MASK}"
    return MASK if is_credential(name) else mask(value, secrets)


def is_credential(name: str) -> bool:
    """Tell from its name whether a header or variable carries a credential."""
    lower = name.lower()
    return any(word in lower for word in _CREDENTIAL_WORDS) and lower != "idempotency-key"
