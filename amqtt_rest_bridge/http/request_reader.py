"""Reads the requests of one connection, one after the other. No I/O.

llhttp (httptools) reads fields, lengths and chunks, and refuses what is not HTTP. This module adds what llhttp leaves
open: the end of a request among the bytes that came, so that the next one waits; bounds for head, body and chunks; the
request line, of which llhttp knows only some methods and targets; Host; what two servers could read differently.
"""

import re
from typing import Final

import httptools

from amqtt_rest_bridge.catalogue import NOT_IMPLEMENTED
from amqtt_rest_bridge.http.exchange import Refusal, headers_too_large, invalid_request, refuse, too_large

HEADER_BYTES: Final = 65_536  # request line and headers together
_LINE_BYTES: Final = 16_384  # of size lines and trailers, from one content to the next

_HOST: Final = r"(?:\[[\w.~!$&'()*+;=%:-]+\]|[\w.~!$&'()*+;=%-]*)(?::[0-9]*)?"  # RFC 9110 section 7.2
_IS_HOST: Final = re.compile(_HOST, re.ASCII)
_IS_TARGET: Final = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?:[/?].*)?|(?!.*://).*", re.ASCII)
_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Z-]+) ([^\x00-\x20\x7f]+) HTTP/1\.([01])\r\n")
_UPGRADE: Final = re.compile(rb"(?i)\r\nupgrade(?=[ \t]*:)")
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]*")


class RequestReader:
    """Reads one request at a time; `begin` the next one once it `is_complete`. It is also once there is a `refusal`.

    `is_understood`: the head has been read, so that a refusal can be the endpoint's.

    Args:
        max_body_bytes: A larger body is refused as soon as that is known.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._limit = max_body_bytes
        self._llhttp = httptools.HttpRequestParser(self)
        self.begin()

    def begin(self) -> None:
        """Begin a request."""
        self.method = self.target = ""
        self.version = "1.1"
        self.headers: dict[str, str] = {}
        self.size = 0
        """Bytes of its body that have come."""
        self.refusal: Refusal | None = None
        self.is_complete = self.is_understood = self.is_last = False
        self._held = b""  # of a head that has not come to its end
        self._body = bytearray()
        self._left = 0  # bytes of the body, or of the chunk that is being read
        self._is_chunked = False
        self._at_size = True  # a line that begins now has the size of a chunk
        self._line = b""  # such a line, as far as it has come
        self._lines = 0  # bytes of lines between chunks since there was content

    @property
    def has_begun(self) -> bool:
        """Return whether a part of a request has come."""
        return bool(self._held) or self.is_understood

    @property
    def wants_to_continue(self) -> bool:
        """Return whether the caller waits for 100 Continue before it sends its body (RFC 9110 section 10.1.1)."""
        is_open = self.is_understood and not self.is_complete and self.size == 0
        return is_open and self.version == "1.1" and self.headers.get("expect", "").lower() == "100-continue"

    def take_body(self) -> bytes:
        """Return the body, and hold it no longer."""
        body, self._body = self._body, bytearray()
        return bytes(body)

    def read(self, data: bytes) -> bytes:
        """Read up to the end of the request; return what is behind it."""
        try:
            if not self.is_understood:
                data = self._read_head(data)
            while data and not self.is_complete:
                data = self._read_chunked(data) if self._is_chunked else self._read_body(data)
        except httptools.HttpParserError as error:
            self.refuse(_invalid(str(error)))  # words of llhttp, never the caller's
        return data

    def _read_head(self, data: bytes) -> bytes:
        held = self._held + data if self._held else data.lstrip(b"\r\n")  # RFC 9112 section 2.2
        end = held.find(b"\r\n\r\n") + 4
        line = _LINE.match(held, 0, HEADER_BYTES)
        if end == 3:
            self._held = held
            if len(held) >= HEADER_BYTES:
                self.refuse(headers_too_large(HEADER_BYTES))
            elif b"\n\n" in held or (b"\n" in held and line is None):
                self.refuse(_invalid("its first line is not one of HTTP/1.1"))
            return b""
        self._held = b""
        if end > HEADER_BYTES:
            self.refuse(headers_too_large(HEADER_BYTES))
        elif line is None:
            self.refuse(_invalid("its first line is not one of HTTP/1.1"))
        else:
            method, target, version = line.groups()
            self.method, self.target, self.version = method.decode(), target.decode("latin-1"), f"1.{version.decode()}"
            self._read_fields(b"POST / HTTP/1.%b\r\n" % version + held[line.end() : end])
        return held[end:]

    def _read_fields(self, head: bytes) -> None:
        """Read a head, whose request line is one that llhttp knows."""
        try:
            self._llhttp.feed_data(head)
        except httptools.HttpParserUpgrade:
            # It may be ignored (RFC 9110 section 7.8), but llhttp would read no body behind it.
            self._llhttp = httptools.HttpRequestParser(self)
            self.headers, self.is_complete, self.is_understood = {}, False, False
            self._read_fields(_UPGRADE.sub(b"\r\nIgnored-Upgrade", head))

    def _read_body(self, data: bytes) -> bytes:
        piece = data[: self._left]
        self._left -= len(piece)
        self._llhttp.feed_data(piece)
        return data[len(piece) :]

    def _read_chunked(self, data: bytes) -> bytes:
        """Read a part of a chunk, or of a line: the size of a chunk, its end, a trailer."""
        if self._left:
            self._lines = 0
            return self._read_body(data)
        piece = data[: data.find(b"\n") + 1 or len(data)]
        self._lines += len(piece)
        if self._at_size:
            self._line += piece
            if (size := _SIZE.match(self._line)) and size.end() > 16:  # 64 bits: llhttp would call it invalid
                self.refuse(too_large(self._limit))
        if self._lines > _LINE_BYTES:
            self.refuse(invalid_request("A chunk's size line or the trailer section is too long"))
        if self.refusal is None:
            self._llhttp.feed_data(piece)
        return data[len(piece) :]

    def refuse(self, refusal: Refusal) -> None:
        """Read no further."""
        self.refusal = self.refusal or refusal
        self.is_complete = self.is_last = True
        self._body = bytearray()

    # What llhttp calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a field."""
        if self.is_understood:  # a trailer
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Check what was read of the head."""
        headers, coding = self.headers, self.headers.get("transfer-encoding")
        host = headers.get("host")
        self._is_chunked = coding is not None
        self._left = int(headers.get("content-length", 0))
        if not _IS_HOST.fullmatch("" if host is None else host) or (host is None and self.version == "1.1"):
            self.refuse(_invalid("HTTP/1.1 needs exactly one Host header, a host with or without a port"))
        elif not self.target.startswith("/") and not _IS_TARGET.fullmatch(self.target):
            self.refuse(_invalid("the request target holds a user name, or no address"))
        elif coding is not None and self.version == "1.0":
            self.refuse(_invalid("HTTP/1.0 has no Transfer-Encoding"))
        elif coding is not None and coding.lower() != "chunked":
            self.refuse(refuse(NOT_IMPLEMENTED, "The Transfer-Encoding of the request is not supported"))
        else:
            self.is_understood = True
            if self._left > self._limit:
                self.refuse(too_large(self._limit))

    def on_chunk_header(self) -> None:
        """Note the size of a chunk, which counts before it has come."""
        match = _SIZE.match(self._line)
        self._left = int(match[0], 16) if match else 0
        self._at_size, self._line = False, b""
        if self.size + self._left > self._limit:
            self.refuse(too_large(self._limit))

    def on_chunk_complete(self) -> None:
        """Expect the size of the next chunk."""
        self._at_size = True

    def on_body(self, part: bytes) -> None:
        """Note a part of the body."""
        self.size += len(part)
        self._body += part

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        if self.refusal is None:
            self.is_complete, self.is_last = True, not self._llhttp.should_keep_alive()


def _invalid(why: str) -> Refusal:
    return invalid_request(f"The request is not valid HTTP: {why}")
