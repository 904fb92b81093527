"""Error answers of server mode's endpoints, beside those of the HTTP server itself. Pure; any thread."""

from typing import Final

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.http_server import Headers, Refusal
from amqtt_rest_bridge.http_server import refusals as http

STATUS_LINES: Final = {
    **http.STATUS_LINES,
    "unauthorized": "401 Unauthorized",
    "invalid_signature": "401 Unauthorized",
    "origin_not_allowed": "403 Forbidden",
    "not_found": "404 Not Found",
    "no_message": "404 Not Found",
    "method_not_allowed": "405 Method Not Allowed",
    "unsupported_media_type": "415 Unsupported Media Type",
    "broker_unavailable": "503 Service Unavailable",
    "reply_timeout": "504 Gateway Timeout",
}


class RefusedError(BridgeError):
    """A request gets an error answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class WrongCredentialError(RefusedError):
    """A request is refused for a password, token or signature that it holds; one that holds none was no guess."""


class IgnoredError(BridgeError):
    """WHEN is false for a request: it is answered, and publishes nothing."""


def error(code: str, message: str, hint: str, headers: Headers = ()) -> RefusedError:
    """Return the error with a code of `STATUS_LINES`; `headers` go with its answer."""
    return RefusedError(Refusal(code, STATUS_LINES[code], message, hint, headers))


def invalid_request(message: str, hint: str) -> RefusedError:
    """Return the error for a request that cannot be used as it is."""
    return RefusedError(http.invalid_request(message, hint))


def too_large(limit: int) -> RefusedError:
    """Return the error for a body of more than `limit` bytes."""
    return RefusedError(http.too_large(limit))


def overloaded() -> RefusedError:
    """Return the error for a request for which there is no room at the broker."""
    return RefusedError(
        http.overloaded("The bridge has more requests than the broker can take; this one was not published")
    )


def broker_unavailable() -> RefusedError:
    """Return the error for a request that the broker has not acknowledged; a worker's alone."""
    return error(
        "broker_unavailable",
        "The MQTT broker is away or has not acknowledged this request; it may have been published",
        "Send it again later; where doing it twice does harm, let the subscribers tell repeated ones apart",
        http.RETRY_AFTER,
    )


def port_closed() -> Refusal:
    """Refuse a request on a connection that is still open to a port which a reload took away."""
    return Refusal(
        "shutting_down",
        STATUS_LINES["shutting_down"],
        "The routes were reloaded and none is served on this port any more; this request was not published",
        "Connect to the port that the route has now",
        http.RETRY_AFTER,
    )
