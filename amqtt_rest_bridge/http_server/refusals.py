"""Error answers: status, code, message and hint, and those of the server itself. Pure; any thread."""

import json
from dataclasses import dataclass
from typing import Final

Headers = tuple[tuple[str, str], ...]

STATUS_LINES: Final = {
    "invalid_request": "400 Bad Request",
    "request_timeout": "408 Request Timeout",
    "payload_too_large": "413 Content Too Large",
    "headers_too_large": "431 Request Header Fields Too Large",
    "internal_error": "500 Internal Server Error",
    "not_implemented": "501 Not Implemented",
    "overloaded": "503 Service Unavailable",
    "shutting_down": "503 Service Unavailable",
}
RETRY_AFTER: Final[Headers] = (("Retry-After", "1"),)
_HTTP_HINT: Final = "Send a request as RFC 9112 has it; an HTTP library does"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer of a request that is not served; `headers` are added to it."""

    code: str
    status: str
    message: str
    hint: str
    headers: Headers = ()

    @property
    def body(self) -> bytes:
        """Return the answer's body, JSON in UTF-8."""
        error = {"code": self.code, "message": self.message, "hint": self.hint}
        return json.dumps({"error": error}).encode()


def invalid_request(message: str, hint: str = _HTTP_HINT) -> Refusal:
    """Refuse a request that cannot be used as it is."""
    return _refusal("invalid_request", message, hint)


def request_timeout(seconds: float) -> Refusal:
    """Refuse a request of which only a part came in time."""
    return _refusal("request_timeout", f"The request did not arrive within {seconds:g} seconds", "Send it faster")


def too_large(limit: int) -> Refusal:
    """Refuse a body of more than `limit` bytes."""
    return _refusal(
        "payload_too_large",
        f"The request's body is over the limit of {limit} bytes",
        "Send less, or ask the operator to raise max_body_bytes",
    )


def headers_too_large(limit: int) -> Refusal:
    """Refuse a request line and headers of more than `limit` bytes together."""
    return _refusal(
        "headers_too_large",
        f"The request line and headers are over the limit of {limit} bytes",
        "Send fewer or shorter headers",
    )


def not_implemented(reason: str) -> Refusal:
    """Refuse a transfer coding other than chunked."""
    return _refusal("not_implemented", reason, "Send the body plain or chunked")


def internal_error() -> Refusal:
    """Answer a request on which the server or its application failed, without a word of the cause."""
    return _refusal(
        "internal_error",
        "The bridge failed on this request",
        "Send the operator the value of X-Request-ID: the log has the reason",
    )


def overloaded(message: str = "The bridge serves as many requests as it can; this one was not published") -> Refusal:
    """Refuse a request for which there is no room."""
    return _refusal("overloaded", message, "Send it again after the seconds in Retry-After", RETRY_AFTER)


def shutting_down() -> Refusal:
    """Refuse a request that came while the port closes."""
    message = "The bridge is shutting down; this request was not published"
    return _refusal("shutting_down", message, "Send it again after the seconds in Retry-After", RETRY_AFTER)


def _refusal(code: str, message: str, hint: str, headers: Headers = ()) -> Refusal:
    return Refusal(code, STATUS_LINES[code], message, hint, headers)
