"""The errors of the template API.

Only exception classes live here, all derived from `TemplateApiError`, and how their messages show foreign text and ask
for the name that was meant.
Any thread may raise them.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from http import HTTPStatus

FORM_HINT = "See /openapi.json for the parameters of this API."


def visible(text: str) -> str:
    """Write out what cannot be seen, such as line breaks and escape sequences: names of folders may hold any."""
    return text if text.isprintable() else "".join([char if char.isprintable() else repr(char)[1:-1] for char in text])


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the end of a message that asks for the nearest of the names, None when none is near."""
    near = get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else None


class TemplateApiError(Exception):
    """Base class of the exceptions of this package."""


class SettingsError(TemplateApiError):
    """A setting cannot be used; the message names it and what is allowed."""


class StartError(TemplateApiError):
    """The API cannot start; the message is one line for the operator."""


class DatabaseUnavailableError(TemplateApiError):
    """The library's database cannot be read or written now; it may come back."""


class DamagedIndexError(TemplateApiError):
    """The search index cannot be read or written; it can be rebuilt from the database."""


class IndexNotReadyError(TemplateApiError):
    """A first search index is being built; there is none to search in yet."""


class UnknownTemplateError(TemplateApiError):
    """No template in any state has this id or slug; the message names the nearest slug."""

    def __init__(self, id_or_slug: str, database: str, slugs: Sequence[str]) -> None:
        advice = did_you_mean(id_or_slug, slugs) or ", nor one that is near (see template-api list)"
        super().__init__(f"database {database} holds no template with the id or slug {id_or_slug!r}{advice}")


class SourceError(TemplateApiError):
    """A template cannot be imported; the message has its file and line.

    Attributes:
        where: `path:line`, or the path alone where no line applies.
        reason: what is wrong and what is allowed.
    """

    def __init__(self, where: str, reason: str) -> None:
        self.where = visible(where)
        self.reason = visible(reason)
        super().__init__(f"{self.where}: {self.reason}")


class ApiError(TemplateApiError):
    """An error response: status, stable code, message and hint (specification, "Error body")."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal_error"
    hint = "Try again later; the log of the server has the reason."

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint


class InternalError(ApiError):
    """An unexpected failure; the log has its cause."""

    def __init__(self) -> None:
        super().__init__("The request could not be answered")


class InvalidRequestError(ApiError):
    """The request is not well-formed HTTP."""

    status = HTTPStatus.BAD_REQUEST
    code = "invalid_request"
    hint = "Send a well-formed HTTP/1.1 request (RFC 9112)."


class InvalidParameterError(ApiError):
    """A query parameter breaks its rule; the message names it and what is allowed."""

    status = HTTPStatus.BAD_REQUEST
    code = "invalid_parameter"
    hint = FORM_HINT


class InvalidBodyError(ApiError):
    """The request body breaks a rule; the message names the member and what is allowed."""

    status = HTTPStatus.BAD_REQUEST
    code = "invalid_body"
    hint = FORM_HINT


class TemplateNotFoundError(ApiError):
    """No published template has the id or slug."""

    status = HTTPStatus.NOT_FOUND
    code = "template_not_found"
    hint = "GET /api/templates lists the published templates with their ids and slugs."


class NotFoundError(ApiError):
    """The API has no such path."""

    status = HTTPStatus.NOT_FOUND
    code = "not_found"
    hint = "The paths of this API are described at /openapi.json."


class MethodNotAllowedError(ApiError):
    """The path exists, but not for this method.

    Attributes:
        allowed: the methods of the path, for the `Allow` field (RFC 9110 section 15.5.6).
    """

    status = HTTPStatus.METHOD_NOT_ALLOWED
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{method} is not allowed here", f"Use one of {', '.join(allowed)}.")
        self.allowed = allowed


class PayloadTooLargeError(ApiError):
    """The request body is over the limit."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "payload_too_large"
    hint = "Send a body of at most 65536 bytes."


class UnsupportedMediaTypeError(ApiError):
    """The request body is not plain JSON."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "unsupported_media_type"
    hint = "Send the body as JSON with the header Content-Type: application/json and without Content-Encoding."


class HeadersTooLargeError(ApiError):
    """The header section is over the limit (RFC 6585 section 5)."""

    status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    code = "headers_too_large"
    hint = "Send a request line and headers of less than 65536 bytes together; long queries go to POST /api/search."


class RequestTimeoutError(ApiError):
    """A request began and did not arrive whole in time."""

    status = HTTPStatus.REQUEST_TIMEOUT
    code = "request_timeout"
    hint = "Send the request in one go."


class OverloadedError(ApiError):
    """503: the server has no room for another connection."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "overloaded"
    hint = "Try again in a second."


class ShuttingDownError(OverloadedError):
    """503: a request came on an open connection while the server ends."""

    code = "shutting_down"


class UnsupportedTransferError(ApiError):
    """The transfer coding is not chunked (RFC 9112 section 6.1)."""

    status = HTTPStatus.NOT_IMPLEMENTED
    code = "not_implemented"
    hint = "Send the body with Content-Length, or with Transfer-Encoding: chunked alone."


class SearchFailedError(ApiError):
    """Templates could not be listed or searched; the log has the cause."""

    code = "search_failed"

    def __init__(self) -> None:
        super().__init__("The search could not be run")


class SearchNotReadyError(ApiError):
    """503: the search index is being built for the first time; lists and reads are answered meanwhile."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "search_not_ready"
    hint = "Try again in a second; lists and single templates are answered meanwhile."

    def __init__(self) -> None:
        super().__init__("The search index is being built")


class TemplateUnavailableError(ApiError):
    """A template could not be loaded; the log has the cause."""

    code = "template_unavailable"

    def __init__(self) -> None:
        super().__init__("The template could not be loaded")


class LibraryUnavailableError(ApiError):
    """The library's database cannot be read; the log has the cause."""

    code = "library_unavailable"

    def __init__(self) -> None:
        super().__init__("The library cannot be read")
