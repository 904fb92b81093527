"""Answers as bytes: made once per version of the library, sent whole, compressed or as 304.

`ReplyCache` is shared by the server's threads.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from functools import partial
from http import HTTPStatus

import falcon
import msgspec

try:  # three times as fast; the extra `fast`
    from isal import igzip as gzip
except ImportError:
    import gzip  # type: ignore[no-redef]

from template_api.errors import ApiError
from template_api.query import SEARCH_PATH

JSON = "application/json"
_CACHED_REPLIES = 4096
_CACHED_BYTES = 8 * 1024 * 1024
_KEY_BYTES = 16  # of memory for a character of a key: an id of three letters occupies a hundred bytes
_COMPRESSED_FROM = 1024  # bytes; below, one packet carries the answer anyway
# For 20 results of 54 kB of random words 0.10 ms of CPU with ISA-L and 0.36 ms with zlib, to 38 and 39 %; zlib's
# level 6 takes 1.1 ms and saves a tenth more, but few searches are asked for twice.
_LEVEL = 1


class Reply:
    """One answer with its headers, its media type, its entity tag and, from its first use on, its compressed form.

    The tag depends on the content only, so an import that changes nothing changes no tag. It is a weak one because the
    compressed form shares it (RFC 9110 section 8.8.1). `total` is the number of templates found, on all pages; `status`
    is that of an answer that no caller keeps.
    """

    __slots__ = ("_compressed", "body", "etag", "headers", "media_type", "status", "total")

    def __init__(
        self, body: bytes, headers: Iterable[tuple[str, str]] = (), media_type: str = JSON, total: int = 0,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:  # fmt: skip
        self.body = body
        self.total = total
        self.status = status
        self.media_type = media_type
        self.headers = (("Vary", "Accept-Encoding"), *headers)
        self.etag = falcon.ETag(hashlib.blake2b(body, digest_size=12).hexdigest())
        self.etag.is_weak = True
        self._compressed: bytes | None = None

    def beside(self, *headers: tuple[str, str]) -> "Reply":
        """Return this answer with more headers."""
        more = copy(self)
        more.headers = (*self.headers, *headers)
        return more

    def compressed(self) -> bytes:
        """Return the body in gzip format, the same bytes each time."""
        if self._compressed is None:
            self._compressed = gzip.compress(self.body, _LEVEL, mtime=0)
        return self._compressed


class ReplyCache:
    """The answers of one version of the library: the most recently used ones, up to 8 MiB with their keys."""

    def __init__(self, max_bytes: int = _CACHED_BYTES, max_replies: int = _CACHED_REPLIES) -> None:
        self._lock = threading.Lock()
        self._replies: OrderedDict[Hashable, tuple[Reply, int]] = OrderedDict()
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
                return found[0]
        made = make()
        # Twice the body, as its compressed form comes later; a body of 64 KiB may ask for 16,000 ids and find nothing.
        size = len(made.body) * 2 + len(repr(key)) * _KEY_BYTES
        with self._lock:
            if edition == self._edition and key not in self._replies:
                self._replies[key] = made, size
                self._bytes += size
            while self._bytes > self._max_bytes or len(self._replies) > self._max_replies:
                self._bytes -= self._replies.popitem(last=False)[1][1]
        return made


def encoded(document: object) -> bytes:
    """Return a JSON value as compact UTF-8; `msgspec.Raw` in it is JSON already."""
    return msgspec.json.encode(document)  # a sixth of the time of the standard library's encoder


def error_body(error: ApiError, method: str, path: str) -> bytes:
    """Return the body of an error; POST /api/search has a form of its own, with `error` as a string."""
    members = {"code": error.code, "message": error.message, "hint": error.hint}
    document = {"error": error.message, **members} if (method, path) == ("POST", SEARCH_PATH) else {"error": members}
    # A path may hold what UTF-8 cannot carry, so nothing but ASCII is written here.
    return json.dumps(document, separators=(",", ":")).encode()


def send(request: falcon.Request, response: falcon.Response, reply: Reply) -> None:
    """Send an answer: as 304 to a caller that holds it, compressed to one that takes gzip."""
    # Decision: callers may keep an answer but ask each time whether it is current, so that a change is seen at once.
    response.etag = reply.etag
    response.set_header("Cache-Control", "no-cache")
    held: Sequence[str] = request.if_none_match or ()
    if "*" in held or reply.etag in held:  # a weak comparison (RFC 9110 section 13.1.2)
        response.set_headers(reply.headers)
        response.status = HTTPStatus.NOT_MODIFIED
    else:
        send_whole(request, response, reply)


def send_whole(request: falcon.Request, response: falcon.Response, reply: Reply) -> None:
    """Send an answer that no caller keeps, such as one to POST; compressed to a caller that takes gzip."""
    response.status = reply.status
    response.content_type = reply.media_type
    response.set_headers(reply.headers)
    if len(reply.body) >= _COMPRESSED_FROM and takes_gzip(request.get_header("Accept-Encoding")):
        response.set_header("Content-Encoding", "gzip")
        response.data = reply.compressed()
    else:
        response.data = reply.body


def takes_gzip(accept_encoding: str | None) -> bool:
    """Return whether an Accept-Encoding field takes gzip (RFC 9110 section 12.5.3); a weight of 0 forbids a coding."""
    weights: dict[str, bool] = {}
    for item in "".join((accept_encoding or "").lower().split()).split(","):
        coding, _, weight = item.partition(";")
        weights.setdefault(coding, not weight or weight.removeprefix("q=").strip("0.") != "")
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


class Resource:
    """Answer GET, HEAD and perhaps POST of a path.

    Args:
        get: makes the answer to a request; takes the fields of the path too.
        post: makes the answer to a POST, which no cache keeps.
        headers: added to each answer.
        kept: whether callers may keep answers to GET; else they hold at that moment only.
    """

    def __init__(
        self,
        get: Callable[..., Reply],
        post: Callable[[falcon.Request], Reply] | None = None,
        headers: Iterable[tuple[str, str]] = (),
        *,
        kept: bool = True,
    ) -> None:
        self._get = get
        self._headers = tuple(headers)
        self._kept = kept
        if post is not None:  # Falcon allows the methods that a resource has
            self.on_post = partial(self._send_new, post)

    def on_get(self, req: falcon.Request, resp: falcon.Response, **fields: str) -> None:
        """Send the answer."""
        if self._kept:
            reply = self._get(req, **fields)
            resp.set_headers(self._headers)
            send(req, resp, reply)
        else:
            self._send_new(self._get, req, resp)

    on_head = on_get

    def _send_new(self, make: Callable[[falcon.Request], Reply], req: falcon.Request, resp: falcon.Response) -> None:
        send_whole(req, resp, make(req))
        resp.set_headers((*self._headers, ("Cache-Control", "no-store")))
