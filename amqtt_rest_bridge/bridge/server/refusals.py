"""The errors that callers of server mode see: their codes, statuses and JSON body. Pure; any thread."""

import json
from enum import StrEnum
from typing import Final

from amqtt_rest_bridge.errors import BridgeError


class ErrorCode(StrEnum):
    """`error.code` of an answer; each has one status."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    INVALID_SIGNATURE = "invalid_signature"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    NOT_FOUND = "not_found"
    NO_MESSAGE = "no_message"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    HEADERS_TOO_LARGE = "headers_too_large"
    INTERNAL_ERROR = "internal_error"
    NOT_IMPLEMENTED = "not_implemented"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    REPLY_TIMEOUT = "reply_timeout"


STATUS_LINES: Final = {
    ErrorCode.INVALID_REQUEST: "400 Bad Request",
    ErrorCode.UNAUTHORIZED: "401 Unauthorized",
    ErrorCode.INVALID_SIGNATURE: "401 Unauthorized",
    ErrorCode.ORIGIN_NOT_ALLOWED: "403 Forbidden",
    ErrorCode.NOT_FOUND: "404 Not Found",
    ErrorCode.NO_MESSAGE: "404 Not Found",
    ErrorCode.METHOD_NOT_ALLOWED: "405 Method Not Allowed",
    ErrorCode.REQUEST_TIMEOUT: "408 Request Timeout",
    ErrorCode.PAYLOAD_TOO_LARGE: "413 Content Too Large",
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: "415 Unsupported Media Type",
    ErrorCode.HEADERS_TOO_LARGE: "431 Request Header Fields Too Large",
    ErrorCode.INTERNAL_ERROR: "500 Internal Server Error",
    ErrorCode.NOT_IMPLEMENTED: "501 Not Implemented",
    ErrorCode.OVERLOADED: "503 Service Unavailable",
    ErrorCode.SHUTTING_DOWN: "503 Service Unavailable",
    ErrorCode.REPLY_TIMEOUT: "504 Gateway Timeout",
}

_RETRY_AFTER: Final = (("Retry-After", "1"),)


class RequestRefused(BridgeError):  # noqa: N818  # what happens to the request, in the words of the answer
    """A request gets an error answer; `headers` go with it beside those that every answer has."""

    def __init__(self, code: ErrorCode, message: str, hint: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = headers

    @property
    def status(self) -> str:
        """Give the status line's code and reason phrase."""
        return STATUS_LINES[self.code]

    @property
    def body(self) -> bytes:
        """Give the answer's body, JSON in UTF-8."""
        error = {"code": self.code.value, "message": self.message, "hint": self.hint}
        return json.dumps({"error": error}).encode()


def overloaded() -> RequestRefused:
    """Make the answer to a request for which there is no room."""
    return RequestRefused(
        ErrorCode.OVERLOADED,
        "The bridge has more requests than the broker can take; this one was not published",
        "Send it again after the seconds in Retry-After",
        _RETRY_AFTER,
    )


def shutting_down() -> RequestRefused:
    """Make the answer to a request that came while the bridge is closing."""
    return RequestRefused(
        ErrorCode.SHUTTING_DOWN,
        "The bridge is shutting down; this request was not published",
        "Send it again after the seconds in Retry-After",
        _RETRY_AFTER,
    )


def internal_error() -> RequestRefused:
    """Make the answer to a request on which the bridge itself failed; it tells nothing of the inside."""
    return RequestRefused(
        ErrorCode.INTERNAL_ERROR,
        "The bridge failed on this request",
        "Give the operator the value of X-Request-ID: the log has the reason",
    )


def too_large(limit: int) -> RequestRefused:
    """Make the answer to a body of more than `limit` bytes."""
    return RequestRefused(
        ErrorCode.PAYLOAD_TOO_LARGE,
        f"The request's body is over the limit of {limit} bytes",
        "Send less, or let the operator raise max_body_bytes",
    )


def invalid_request(message: str, hint: str) -> RequestRefused:
    """Make the answer to a request that cannot be used as it is."""
    return RequestRefused(ErrorCode.INVALID_REQUEST, message, hint)
