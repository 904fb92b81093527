"""Answers as bytes: made once per version of the library, and sent whole, compressed or as 304.

The server's threads share a `ReplyCache`, which counts searches too.
"""

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import falcon

try:  # three times as fast; the extra `fast`
    from isal import igzip as gzip
except ImportError:
    import gzip  # type: ignore[no-redef]

from template_api.errors import DatabaseUnavailableError, IndexNotReadyError, visible
from template_api.library import TemplateLibrary

log = logging.getLogger(__name__)

JSON = "application/json"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
MAX_BODY_BYTES = 65536
_REPLY_BYTES = 2048  # of an answer without its texts
_CACHED_BYTES = 24 * 1024 * 1024
_COMPRESSED_FROM = 1024  # bytes; below, one packet carries the answer anyway
# For 20 results of 54 kB of random words 0.10 ms of CPU with ISA-L and 0.36 ms with zlib, to 38 and 39 %; zlib's
# level 6 takes 1.1 ms and saves a tenth more, but few searches are asked for twice.
_LEVEL = 1

_LONGEST_LOGGED: Final = 200
# What no search needs and a log must not keep: addresses, words of letters with digits like keys and tokens, long ones.
_SECRET: Final = re.compile(r".*@.*|(?=.*\d)(?=.*[^\W\d]).{16,}|.{33,}")
_WORD: Final = re.compile(r"\S+")


class Reply:
    """One answer with its headers and, from its first use on, its compressed form.

    Callers may keep one that is `kept`. Its entity tag depends on the content only, so that an import that changes
    nothing changes no tag; the tag is weak, as the compressed form shares it (RFC 9110 section 8.8.1). `searched` is
    the text of the search that this answers, `total` how many templates that found.
    """

    def __init__(
        self, body: bytes, headers: Mapping[str, str] | None = None, media_type: str = JSON,
        status: HTTPStatus = HTTPStatus.OK, *, kept: bool = True, searched: str = "", total: int = 0,
    ) -> None:  # fmt: skip
        self.body = body
        self.status = status
        self.media_type = media_type
        self.searched = searched
        self.total = total
        self.etag: falcon.ETag | None = None
        self.headers = {"vary": "Accept-Encoding", **(headers or {})}
        if kept:
            self.etag = falcon.ETag(hashlib.blake2b(body, digest_size=12).hexdigest())
            self.etag.is_weak = True
            # Callers ask each time whether what they keep is current, so that a change is seen at once.
            self.headers |= {"etag": self.etag.dumps(), "cache-control": "no-cache"}
        else:
            self.headers["cache-control"] = "no-store"
        self._compressed: bytes | None = None

    def send(self, request: falcon.Request, response: falcon.Response) -> None:
        """Send it: as 304 to a caller that holds it, compressed to one that takes gzip."""
        response.set_headers(self.headers)
        held = request.if_none_match if self.etag is not None else None
        if held and ("*" in held or self.etag in held):  # a weak comparison (RFC 9110 section 13.1.2)
            response.status = HTTPStatus.NOT_MODIFIED
            return
        response.status = self.status
        response.content_type = self.media_type
        if len(self.body) >= _COMPRESSED_FROM and _takes_gzip(request.get_header("Accept-Encoding")):
            response.set_header("content-encoding", "gzip")
            if self._compressed is None:
                self._compressed = gzip.compress(self.body, _LEVEL, mtime=0)
            response.data = self._compressed
        else:
            response.data = self.body


Make = Callable[..., Reply]


class ReplyCache:
    """Answers of one edition of the library, and how many searches they answered; begun again when 24 MiB are kept.

    With `log_empty`, searches that found nothing are logged at INFO, without control characters, cut at 200 characters
    and with `***` for what may be a secret.
    """

    def __init__(self, library: TemplateLibrary, *, log_empty: bool = False, max_bytes: int = _CACHED_BYTES) -> None:
        self._library = library
        self._log_empty = log_empty
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._replies: dict[Hashable, Reply] = {}
        self._edition: Hashable = None
        self._bytes = 0
        self._searches = self._empty_searches = 0

    def reply(self, path: str, asked: str | bytes, make: Callable[[], Reply]) -> Reply:
        """Return the answer to what is asked at a path, made by `make` unless it is here."""
        edition, key = self._library.edition, (path, asked)
        with self._lock:
            if edition != self._edition or self._bytes > self._max_bytes:
                self._replies, self._edition, self._bytes = {}, edition, 0
            reply = self._replies.get(key)
        if reply is None:
            reply = make()
            with self._lock:
                if edition == self._edition and key not in self._replies:
                    self._replies[key] = reply
                    # Twice the body, as its compressed form comes later; texts have up to 4 bytes a character.
                    self._bytes += _REPLY_BYTES + len(reply.body) * 2 + 4 * (len(path) + len(asked))
        if reply.searched:
            with self._lock:
                self._searches += 1
                self._empty_searches += not reply.total
            if self._log_empty and not reply.total:
                shown = _WORD.sub(lambda word: "***" if _SECRET.fullmatch(word[0]) else word[0], reply.searched)
                # Cut only now: a part of a secret would be a short word.
                text = json.dumps(shown[:_LONGEST_LOGGED], ensure_ascii=False)
                log.info("search without a result: %s", visible(text))
        return reply

    def metrics(self) -> Reply:
        """Return the counts in Prometheus' text format, and whether searches are answered."""
        try:
            self._library.check()
            ready = 1
        except (DatabaseUnavailableError, IndexNotReadyError):
            ready = 0
        rows = (
            ("template_api_searches_total", "counter", "Searches with a text.", self._searches),
            ("template_api_empty_searches_total", "counter", "Searches that found nothing.", self._empty_searches),
            ("template_api_ready", "gauge", "1 while searches are answered.", ready),
        )
        text = "# HELP {0} {2}\n# TYPE {0} {1}\n{0} {3}\n"
        return Reply("".join(text.format(*row) for row in rows).encode(), media_type=_METRICS, kept=False)


@lru_cache(64)
def _takes_gzip(accept_encoding: str | None) -> bool:
    """Return whether an Accept-Encoding field takes gzip (RFC 9110 section 12.5.3); a weight of 0 forbids a coding."""
    weights: dict[str, bool] = {}
    for item in "".join((accept_encoding or "").lower().split()).split(","):
        coding, _, weight = item.partition(";")
        weights.setdefault(coding, not weight or weight.removeprefix("q=").strip("0.") != "")
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))


class Resource:
    """A path, which answers GET, HEAD and perhaps POST.

    `get` is a reply that stays the same, or makes one for a request and the fields of its path; `cache` keeps replies
    that are made from the library. `post` makes a reply for a request.
    """

    def __init__(self, get: Reply | Make, post: Make | None = None, cache: ReplyCache | None = None) -> None:
        self._get = get
        self._cache = cache
        if post is not None:  # Falcon allows the methods that a resource has
            self.on_post = lambda req, resp: post(req).send(req, resp)

    def on_get(self, req: falcon.Request, resp: falcon.Response, **fields: str) -> None:
        """Send the answer."""
        get = self._get
        if isinstance(get, Reply):
            reply = get
        elif self._cache is None:
            reply = get(req, **fields)
        else:
            reply = self._cache.reply(req.path, req.query_string, lambda: get(req, **fields))
        reply.send(req, resp)

    on_head = on_get
