"""Error answers, by the catalogue's rows, and those of the server itself. Pure; any thread."""

import json
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import AnswerRow

Headers = tuple[tuple[str, str], ...]

RETRY_AFTER: Final[Headers] = (("Retry-After", "1"),)


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


def refuse(row: AnswerRow, message: str, headers: Headers = (), *, hint: str | None = None) -> Refusal:
    """Return the answer of a row; `headers` go with it, `hint` replaces the row's where it holds facts."""
    return Refusal(row.code, row.status, message, row.hint if hint is None else hint, headers)


def invalid_request(message: str) -> Refusal:
    """Refuse a request that is not HTTP."""
    return refuse(catalogue.INVALID_REQUEST, message)


def request_timeout(seconds: float) -> Refusal:
    """Refuse a request of which only a part came in time."""
    return refuse(catalogue.REQUEST_TIMEOUT, f"The request did not arrive within {seconds:g} seconds")


def too_large(limit: int) -> Refusal:
    """Refuse a body of more than `limit` bytes."""
    return refuse(catalogue.PAYLOAD_TOO_LARGE, f"The request's body is over the limit of {limit} bytes")


def headers_too_large(limit: int) -> Refusal:
    """Refuse a request line and headers of more than `limit` bytes together."""
    message = f"The request line and headers are over the limit of {limit} bytes"
    return refuse(catalogue.HEADERS_TOO_LARGE, message)


def internal_error() -> Refusal:
    """Answer a request on which the server or its application failed, without a word of the cause."""
    return refuse(catalogue.INTERNAL_ERROR, "The bridge failed on this request")


def overloaded(message: str = "The bridge serves as many requests as it can; this one was not published") -> Refusal:
    """Refuse a request for which there is no room."""
    return refuse(catalogue.NO_ROOM, message, RETRY_AFTER)


def shutting_down() -> Refusal:
    """Refuse a request that came while the port closes."""
    return refuse(catalogue.SHUTTING_DOWN, "The bridge is shutting down; this request was not published", RETRY_AFTER)
