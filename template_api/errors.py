"""The exceptions of the template API, a row for each code of an error response, and how messages show foreign text."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum, unique
from http import HTTPStatus


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


class IndexNotReadyError(TemplateApiError):
    """A first search index is being built; there is none to search in yet."""


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


_LOGGED = "Try again later; the log of the server has the reason."


@unique
class ErrorCode(Enum):
    """A code of error responses: its status, what to do next, and the message of one that has the same each time."""

    INVALID_REQUEST = 400, "Send a well-formed HTTP/1.1 request (RFC 9112).", "The request is not well-formed"
    INVALID_PARAMETER = 400, "See /openapi.json for the parameters of this API."
    INVALID_BODY = 400, "See /openapi.json for the body of this request."
    TEMPLATE_NOT_FOUND = 404, "GET /api/templates lists the published templates with their ids and slugs."
    NOT_FOUND = 404, "The paths of this API are described at /openapi.json.", "This API has no such path"
    METHOD_NOT_ALLOWED = 405, "Use one of those in Allow."
    PAYLOAD_TOO_LARGE = 413, "Send a body of at most 65536 bytes.", "The body is larger than 65536 bytes"
    UNSUPPORTED_MEDIA_TYPE = (
        415,
        "Send the body as JSON with the header Content-Type: application/json and without Content-Encoding.",
        "The body is not sent as application/json",
    )
    SEARCH_NOT_READY = (
        503,
        "Try again in a second; lists and single templates are answered meanwhile.",
        "The search index is being built",
    )
    SEARCH_FAILED = 500, _LOGGED, "The search could not be run"
    TEMPLATE_UNAVAILABLE = 500, _LOGGED, "The template could not be loaded"
    LIBRARY_UNAVAILABLE = 500, _LOGGED, "The library cannot be read"
    INTERNAL_ERROR = 500, _LOGGED, "The request could not be answered"

    def __init__(self, status: int, hint: str, message: str = "") -> None:
        self.status = HTTPStatus(status)
        self.hint = hint
        self.message = message


class ApiError(TemplateApiError):
    """An error response (specification, "Error body"): that of its code, but for the members and headers given."""

    def __init__(
        self, code: ErrorCode, message: str = "", *, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = code.status
        self.code = code.name.lower()
        self.message = message or code.message
        self.hint = hint or code.hint
        self.headers = headers or {}
        super().__init__(self.message)
