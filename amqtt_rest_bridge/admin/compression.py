"""Answers in gzip format, for callers that take it. Pure; any thread."""

import gzip
import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.http_server import Response

_COMPRESSED_FROM: Final = 1024  # bytes; below, one packet carries the answer anyway
_LEVEL: Final = 7
_NEVER: Final = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*")


def takes_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether a caller takes gzip (RFC 9110 section 12.5.3)."""
    for entry in headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip() == "gzip":
            return _NEVER.fullmatch(weight) is None
    return False


def compressed(response: Response) -> Response:
    """Return an answer with its body compressed; a small one, and a stream, as it is."""
    if len(response.body) < _COMPRESSED_FROM:
        return response
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return replace(response, headers=headers, body=gzip.compress(response.body, _LEVEL, mtime=0))
