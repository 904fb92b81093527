"""Payloads of topics as answers: media type by content, entity tag. Pure; any thread."""

import hashlib
import json
from functools import cached_property
from typing import Final

_JSON_STARTS: Final = frozenset(b'{["-0123456789tfn')
_JSON_SPACE: Final = b" \t\r\n"


class TopicPayload:
    """A message's payload for any number of answers; its headers are computed once, for the first one."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    @cached_property
    def content_type(self) -> str:
        """Return the media type; see `content_type_of`."""
        return content_type_of(self.payload)

    @cached_property
    def entity_tag(self) -> str:
        """Return the entity tag; see `entity_tag_of`."""
        return entity_tag_of(self.payload)


def content_type_of(payload: bytes) -> str:
    """Return a payload's media type by its content: JSON (RFC 8259), else UTF-8 text, else octets."""
    start = payload.lstrip(_JSON_SPACE)[:1]
    try:
        if start and start[0] in _JSON_STARTS:
            json.loads(payload.decode(), parse_constant=_refuse_constant)
            return "application/json"
    except UnicodeDecodeError:
        return "application/octet-stream"
    except (ValueError, RecursionError):
        pass
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "application/octet-stream" if "\0" in text else "text/plain; charset=utf-8"


def entity_tag_of(payload: bytes) -> str:
    """Return a strong entity tag (RFC 9110 section 8.8.3): the same for the same bytes in every process."""
    return f'"{hashlib.blake2b(payload, digest_size=16).hexdigest()}"'


def is_not_modified(if_none_match: str | None, entity_tag: str) -> bool:
    """Return whether the caller has this entity already (If-None-Match, weak comparison, RFC 9110 section 13.1.2)."""
    if not if_none_match:
        return False
    given = [item.strip().removeprefix("W/") for item in if_none_match.split(",")]
    return entity_tag in given or given == ["*"]


def _refuse_constant(_name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError
