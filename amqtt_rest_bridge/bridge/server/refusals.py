"""Error answers of server mode's endpoints, beside those of the HTTP server itself. Pure; any thread."""

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.catalogue import AnswerRow
from amqtt_rest_bridge.errors import BridgeError, CallError
from amqtt_rest_bridge.http_server import Headers, Refusal
from amqtt_rest_bridge.http_server import refusals as http


class RefusedError(BridgeError):
    """A request gets an error answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class WrongCredentialError(RefusedError):
    """A request is refused for a password, token or signature that it holds; one that holds none was no guess."""


class IgnoredError(BridgeError):
    """WHEN is false for a request: it is answered, and publishes nothing."""


def error(row: AnswerRow, message: str, headers: Headers = (), *, hint: str | None = None) -> RefusedError:
    """Return the error with a row of the catalogue, see `http_server.refusals.refuse`."""
    return RefusedError(http.refuse(row, message, headers, hint=hint))


def cannot_fill(failure: CallError) -> RefusedError:
    """Return the error for a request that lacks, or whose value spoils, what a placeholder of the route needs."""
    return error(catalogue.INVALID_REQUEST, failure.message, hint=failure.hint)


def too_large(limit: int) -> RefusedError:
    """Return the error for a body of more than `limit` bytes."""
    return RefusedError(http.too_large(limit))


def overloaded() -> RefusedError:
    """Return the error for a request for which there is no room at the broker."""
    return RefusedError(
        http.overloaded("The bridge has more requests than the broker can take; this one was not published")
    )


def broker_unavailable() -> RefusedError:
    """Return the error for a request that the broker has not acknowledged; only a worker's."""
    message = "The MQTT broker is away or has not acknowledged this request; it may have been published"
    return error(catalogue.BROKER_UNAVAILABLE, message, http.RETRY_AFTER)


def port_closed() -> Refusal:
    """Refuse a request on a connection that is still open to a port which a reload took away."""
    message = "The routes were reloaded and none is served on this port any more; this request was not published"
    return http.refuse(catalogue.PORT_CLOSED, message, http.RETRY_AFTER)
