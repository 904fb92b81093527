"""waitress's request parser, stricter: what two servers could read differently is refused. On the port's thread."""

import re
from typing import Any, Final

from waitress.parser import HTTPRequestParser, ParsingError

from amqtt_rest_bridge.catalogue import NOT_IMPLEMENTED
from amqtt_rest_bridge.http.exchange import Refusal, headers_too_large, invalid_request, refuse, too_large

HEADER_BYTES: Final = 65_536  # request line and headers together
_CHUNK_LINE_BYTES: Final = 16_384  # a chunk's size with its extensions, and all trailers; waitress holds any number

# waitress comes without types; with the stubs of another package or without, its classes count as Any here.
_Base: Any = HTTPRequestParser

_CODINGS: Final = re.compile(rb"\r\ntransfer-encoding:([^\r\n]*)", re.IGNORECASE)
_FOLD: Final = re.compile(rb"\r\n[ \t]")
_HOST: Final = re.compile(r"(?:\[[\w.~!$&'()*+;=%:-]+\]|[\w.~!$&'()*+;=%-]*)(?::[0-9]*)?", re.ASCII)  # RFC 9110 7.2
_QUOTED: Final = re.compile(r' ?".*', re.DOTALL)


def raw_limit(max_body_bytes: int) -> int:
    """Return how many bytes a body may take on the wire: chunks have sizes and extensions beside their content."""
    return 8 * max_body_bytes + HEADER_BYTES


class RequestParser(_Base):  # type: ignore[misc]  # see _Base
    """Collects one request; `error` becomes a `Refusal` as soon as the request cannot be served.

    `is_understood`: request line and headers could be read, so that the answer can be the endpoint's. The
    limit for bodies is `adj.max_body_bytes`.
    """

    error: Any
    command = ""
    is_understood = False
    _has_begun = False

    def received(self, data: bytes) -> int:
        """Parse bytes of the request; returns how many were used."""
        try:
            self._check_begin(data)
            consumed: int = super().received(data)
        except (ParsingError, ValueError) as error:  # the latter: absurd numbers and addresses, waitress 3.0.2
            self.error = invalid_request(f"The request is not valid HTTP: {error}")
            consumed = len(data)
        if self.error is None:
            limit = self.adj.max_body_bytes
            # A chunk counts as soon as its size is known, not once it has come.
            if self.content_length > limit or (
                self.chunked and len(self.body_rcv) + self.body_rcv.chunk_remainder > limit
            ):
                self.error = too_large(limit)
            elif self.chunked and max(len(self.body_rcv.control_line), len(self.body_rcv.trailer)) > _CHUNK_LINE_BYTES:
                self.error = invalid_request("A chunk's size line or the trailer section is too long")
        if self.error is not None:
            if not isinstance(self.error, Refusal):
                self.error = _refusal(self.error, self.adj.max_body_bytes)
            self.completed = True
            self.headers_finished = True
            self.expect_continue = False  # waitress would still send 100 Continue
        return consumed

    def parse_header(self, header_plus: bytes) -> None:
        """Read request line and headers."""
        super().parse_header(header_plus)
        headers = self.headers
        if header_plus == _OF_TOO_LARGE:
            return
        if not header_plus.startswith(self.first_line + b"\r\n"):
            raise ParsingError("the request line ends with whitespace")
        if self.version not in ("1.0", "1.1"):
            raise ParsingError("the version is not HTTP/1.0 or HTTP/1.1")
        if "TRANSFER_ENCODING" in headers:  # waitress takes it away where it obeys it; RFC 9112 section 6.1
            raise ParsingError("HTTP/1.0 has no Transfer-Encoding")
        codings = _CODINGS.findall(header_plus)
        if codings:  # what another server might not take for one chunked body is refused (RFC 9112 section 6)
            if "CONTENT_LENGTH" in headers:
                raise ParsingError("Content-Length and Transfer-Encoding together")
            if len(codings) != 1 or codings[0].strip(b" \t").lower() != b"chunked":
                raise ParsingError("Transfer-Encoding is not one chunked")
        if _FOLD.search(header_plus):  # waitress joins the lines; RFC 9112 section 5.2 has a server refuse them
            raise ParsingError("a header is folded over several lines")
        self._check_authority(headers.get("HOST"))
        connection = {token.strip().lower() for token in headers.get("CONNECTION", "").split(",")}
        self.connection_close = "close" in connection or (self.version == "1.0" and "keep-alive" not in connection)
        self.is_understood = True

    @property
    def asked(self) -> tuple[str, str]:
        """Return method and target, those of a request that is not understood as far as it was read."""
        if self.command:
            return self.command, self.request_uri
        words = getattr(self, "first_line", b"").decode("latin-1").split(" ")
        return words[0], words[1] if len(words) > 1 else ""

    def _check_begin(self, data: bytes) -> None:
        """Refuse whitespace before the request line, which waitress strips; empty lines are allowed (section 2.2)."""
        if not self._has_begun and (begin := data.lstrip(b"\r\n")[:1]):
            self._has_begun = True
            if begin.isspace():
                raise ParsingError("the request line begins with whitespace")

    def _check_authority(self, host: str | None) -> None:
        """Refuse a host that is not one, or comes with a user name or password."""
        if "," in (host or "") or (host is None and self.version == "1.1"):  # RFC 9112 section 3.2
            raise ParsingError("HTTP/1.1 needs exactly one Host header")
        if host is not None and not _HOST.fullmatch(host):
            raise ParsingError("the Host header is not a host with or without a port")
        if "@" in (self.proxy_netloc or ""):  # RFC 9110 section 4.2.4
            raise ParsingError("the request target holds a user name")


_OF_TOO_LARGE: Final = b"GET / HTTP/1.0\r\n"  # what waitress parses in place of headers that are too large


def _refusal(error: Any, max_body_bytes: int) -> Refusal:
    """Return the refusal for what waitress found (its `utilities.Error`)."""
    reason = _QUOTED.sub("", str(error.body))  # never the caller's own bytes
    match error.code:
        case 413:
            return too_large(max_body_bytes)
        case 431:
            return headers_too_large(HEADER_BYTES)
        case 501:
            return refuse(NOT_IMPLEMENTED, reason)
        case _:
            return invalid_request(f"The request is not valid HTTP: {reason}")
