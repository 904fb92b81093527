"""The client of a template library: fetches one published template over HTTP.

What comes is from another machine: it is bounded in time and size, and checked before it is returned. Redirects lead to
the same host and port only, or to its HTTPS: no library makes this machine send requests to others, such as those that
only it can reach.
"""

import contextlib
import os
import time
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from amqtt_rest_bridge.addresses import basic_credentials
from amqtt_rest_bridge.cli import CommandError
from amqtt_rest_bridge.errors import CallError, ConfigurationError, FailureCode, on_one_line, visible
from amqtt_rest_bridge.http_client import ClientOptions, HttpClient, Stopwatch, finish, origin_of, redirect_refused
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method
from amqtt_rest_bridge.spelling import question

MAX_BYTES: Final = 16 * 1024 * 1024
TOTAL_SECONDS: Final = 60.0
_OK: Final = 200
_OVERLOADED: Final = (429, 502, 503, 504)
_PAUSES: Final = (0.5, 1.0, 2.0)  # seconds before it is asked again
_SHOWN: Final = 300
_NOT_FOUND: Final = "template_not_found"
_MOST_NEAREST: Final = 3
_OTHER_ADDRESS: Final = "name the address of a template library with --from"
_HINTS: Final = {
    FailureCode.CONNECTION_FAILED: f"start it, or {_OTHER_ADDRESS}; HTTP_PROXY, HTTPS_PROXY and NO_PROXY are followed",
    FailureCode.TLS_FAILED: "SSL_CERT_FILE names a file of authorities to trust",
    FailureCode.REDIRECT_REFUSED: "if you trust that address, name it with --from",
    FailureCode.RESPONSE_TOO_LARGE: _OTHER_ADDRESS,
}


class InstallError(CommandError):
    """A template cannot be installed; nothing has been written."""


class Notebook(msgspec.Struct, frozen=True):
    """A notebook of a template: its name as the library has it, and the latest cells."""

    filename: str
    cells: list[dict[str, Any]]


class Template(msgspec.Struct, frozen=True):
    """What is used of a template; other members are skipped."""

    title: str
    notebooks: list[Notebook]


class _Answer(msgspec.Struct, frozen=True):
    template: Template


class _Reason(msgspec.Struct, frozen=True):
    message: str
    hint: str = ""
    code: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Reason


class _Named(msgspec.Struct, frozen=True):
    slug: str | None = None


class _Listed(msgspec.Struct, frozen=True):
    """The answer of a search or a list."""

    results: list[_Named]


class Library:
    """A template library at the address of its API.

    Args:
        address: An http or https URL; may hold a path and credentials.
        user_agent: The User-Agent of requests.

    Raises:
        ConfigurationError: the address, or a proxy variable of the environment, cannot be used.
    """

    def __init__(self, address: str, user_agent: str) -> None:
        try:
            parts = urlsplit(address)
            origin = origin_of(parts)
        except ValueError:
            parts = None
        if parts is None or parts.query or parts.fragment or not address.isprintable() or " " in address:
            raise ConfigurationError("--from must be an address such as https://library.example")
        self.name = f"{origin}{parts.path}".rstrip("/")
        self._headers: tuple[tuple[str, str], ...] = (("Accept", "application/json"), ("User-Agent", user_agent))
        if parts.username is not None:
            credentials = basic_credentials(unquote(parts.username), unquote(parts.password or ""))
            self._headers += (("Authorization", credentials),)
        self._client = HttpClient(ClientOptions(origin, TOTAL_SECONDS, MAX_BYTES, environment=os.environ))

    def template(self, id_or_slug: str) -> Template:
        """Return a published template. Blocks for about 60 s at most.

        Raises:
            ConfigurationError: the slug cannot be one.
            InstallError: there is none, or the library cannot be asked, or what it answers is not a template.
        """
        # Only dots would be another path of the API.
        if not id_or_slug.strip(".") or not id_or_slug.isprintable() or "/" in id_or_slug or "\\" in id_or_slug:
            raise ConfigurationError(f"{visible(id_or_slug)!r} is not the slug or id of a template")
        response = self._get(f"/api/templates/{quote(id_or_slug, safe='')}")
        if response.status != _OK:
            raise self._refusal(response, id_or_slug)
        try:
            return msgspec.json.decode(response.body, type=_Answer).template
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            message = f"{self.name} answers with something that is not a template: {on_one_line(str(error), _SHOWN)}"
            raise InstallError(message, _OTHER_ADDRESS) from error

    def _get(self, path: str) -> HttpResponse:
        request, stopwatch = HttpRequest(Method.GET, f"{self.name}{path}", self._headers), Stopwatch()
        try:
            for pause in (*_PAUSES, None):
                try:
                    response = finish(self._client.exchange(request, stopwatch))
                except CallError as error:
                    if pause is None or error.code is not FailureCode.CONNECTION_FAILED:
                        raise
                else:
                    if pause is None or response.status not in _OVERLOADED:
                        break
                time.sleep(pause)
            if (refused := redirect_refused(request, response)) is not None:
                raise refused
        except CallError as error:
            hint = _HINTS.get(error.code, "try again later")
            raise InstallError(on_one_line(error.message, _SHOWN), hint) from error
        finally:
            self._client.close()
        return response

    def _refusal(self, response: HttpResponse, id_or_slug: str) -> InstallError:
        """Return what the error body of the API says, or the status only; the nearest slugs for an unknown one."""
        try:
            reason = msgspec.json.decode(response.body, type=_Refusal).error
        except (msgspec.MsgspecError, ValueError, RecursionError):
            reason = _Reason("", _OTHER_ADDRESS if response.status == 404 else "try again later")
        message = f"{self.name} answers with status {response.status}"
        if reason.message:
            message += f": {on_one_line(reason.message, _SHOWN)}"
        hint = on_one_line(reason.hint, _SHOWN)
        if reason.code == _NOT_FOUND and (near := self._nearest(id_or_slug)):
            hint = near
        return InstallError(message, hint)

    def _nearest(self, slug: str) -> str:
        """Return the hint with the nearest slugs, at most 3, else with the first that a search finds; or ""."""
        found = self._slugs(f"search?q={quote(slug.replace('-', ' '), safe='')}&limit=30")
        near = get_close_matches(slug[:_SHOWN].lower(), [*found, *self._slugs("templates?limit=30")], n=6)
        if near:
            return question(" or ".join(list(dict.fromkeys(near))[:_MOST_NEAREST]))
        return f"the library finds {', '.join(found[:_MOST_NEAREST])}" if found else ""

    def _slugs(self, path: str) -> list[str]:
        """Return the slugs of a list or search; none where the library does not answer with one."""
        with contextlib.suppress(InstallError, msgspec.MsgspecError, ValueError, RecursionError):
            listed = msgspec.json.decode(self._get(f"/api/{path}").body, type=_Listed)
            slugs = [each.slug for each in listed.results if each.slug]
            return [each for each in slugs if each.isprintable() and len(each) <= _SHOWN]
        return []
