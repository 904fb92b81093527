"""Answers as bytes: made once per version of the library, sent whole, compressed or as 304.

`ReplyCache` is shared by the server's threads.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from http import HTTPStatus

import falcon

try:  # three times as fast; the extra `fast`
    from isal import igzip as gzip
except ImportError:
    import gzip  # type: ignore[no-redef]

from template_api.errors import ApiError
from template_api.query import SEARCH_PATH

JSON = "application/json"
_CACHED_REPLIES = 4096
_CACHED_BYTES = 64 * 1024 * 1024
_COMPRESSED_FROM = 1024  # bytes; below, one packet carries the answer anyway
# For 20 results of 54 kB of random words 0.10 ms of CPU with ISA-L and 0.36 ms with zlib, to 38 and 39 %; zlib's
# level 6 takes 1.1 ms and saves a tenth more, but few searches are asked for twice.
_LEVEL = 1


class Reply:
    """One answer with its media type, its entity tag and, from its first use on, its compressed form.

    The tag depends on the content alone, so an import that changes nothing changes no tag. It is a weak one because the
    compressed form shares it (RFC 9110 section 8.8.1).
    """

    __slots__ = ("_compressed", "body", "etag", "media_type", "total")

    def __init__(self, body: bytes, total: int = 0, media_type: str = JSON) -> None:
        self.body = body
        self.media_type = media_type
        self.total = total
        self.etag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        self._compressed: bytes | None = None

    def compressed(self) -> bytes:
        """Return the body in gzip format, the same bytes each time."""
        if self._compressed is None:
            self._compressed = gzip.compress(self.body, _LEVEL, mtime=0)
        return self._compressed

    def size(self) -> int:
        """Return how many bytes this answer may occupy in memory."""
        return len(self.body) * 2


class ReplyCache:
    """A cache of the answers of one version of the library: the most recently used ones, up to 64 MiB."""

    def __init__(self, max_bytes: int = _CACHED_BYTES, max_replies: int = _CACHED_REPLIES) -> None:
        self._lock = threading.Lock()
        self._replies: OrderedDict[Hashable, Reply] = OrderedDict()
        self._edition: Hashable = None
        self._bytes = 0
        self._max_bytes = max_bytes
        self._max_replies = max_replies

    def reply(self, edition: Hashable, key: Hashable, make: Callable[[], Reply]) -> Reply:
        """Return the answer for `key`, made by `make` when the cache has none of this edition of the library."""
        with self._lock:
            if edition != self._edition:
                self._replies.clear()
                self._edition, self._bytes = edition, 0
            found = self._replies.get(key)
            if found is not None:
                self._replies.move_to_end(key)
                return found
        made = make()
        with self._lock:
            if edition == self._edition and key not in self._replies:
                self._replies[key] = made
                self._bytes += made.size()
            while self._bytes > self._max_bytes or len(self._replies) > self._max_replies:
                self._bytes -= self._replies.popitem(last=False)[1].size()
        return made


def encoded(document: object) -> bytes:
    """Return a JSON value as compact UTF-8."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def error_body(error: ApiError, method: str, path: str) -> bytes:
    """Return the body of an error; POST /api/search has a form of its own, with `error` as a string."""
    members = {"code": error.code, "message": error.message, "hint": error.hint}
    document = {"error": error.message, **members} if (method, path) == ("POST", SEARCH_PATH) else {"error": members}
    # A path may hold what UTF-8 cannot carry, so nothing but ASCII is written here.
    return json.dumps(document, separators=(",", ":")).encode()


def send(request: falcon.Request, response: falcon.Response, reply: Reply) -> None:
    """Send an answer: as 304 to a caller that holds it, compressed to one that takes gzip."""
    # Decision: callers may keep an answer but ask each time whether it is current, so that a change is seen at once.
    response.set_headers((("ETag", reply.etag), ("Cache-Control", "no-cache")))
    held = {tag.strip().removeprefix("W/") for tag in (request.get_header("If-None-Match") or "").split(",")}
    if "*" in held or reply.etag.removeprefix("W/") in held:  # a weak comparison (RFC 9110 section 13.1.2)
        response.set_header("Vary", "Accept-Encoding")
        response.status = HTTPStatus.NOT_MODIFIED
    else:
        send_whole(request, response, reply)


def send_whole(request: falcon.Request, response: falcon.Response, reply: Reply) -> None:
    """Send an answer that no caller keeps, such as one to POST; compressed to a caller that takes gzip."""
    response.content_type = reply.media_type
    response.set_header("Vary", "Accept-Encoding")
    if len(reply.body) >= _COMPRESSED_FROM and takes_gzip(request.get_header("Accept-Encoding")):
        response.set_header("Content-Encoding", "gzip")
        response.data = reply.compressed()
    else:
        response.data = reply.body


def takes_gzip(accept_encoding: str | None) -> bool:
    """Return whether an Accept-Encoding field takes gzip (RFC 9110 section 12.5.3).

    A weight of 0 forbids a coding; `*` holds for those that are not named.
    """
    taken: dict[str, bool] = {}
    for item in (accept_encoding or "").lower().replace(" ", "").split(","):
        coding, _, weight = item.partition(";")
        taken.setdefault(coding, not weight or weight.removeprefix("q=").strip("0.") != "")
    return taken.get("gzip", taken.get("x-gzip", taken.get("*", False)))
