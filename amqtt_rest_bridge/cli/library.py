"""The client of a template library: fetches one published template over HTTP. The one door for requests.

What comes is from another machine: it is bounded in time and size, and checked before it is returned. Redirects lead to
the same host and port only, or to its HTTPS: no library makes this machine send requests to others, such as those that
only it can reach. requests bounds each read and not the whole, so it runs on a thread of its own: a server that sends
an octet now and then, or a name server that does not answer, ends with the deadline.
"""

import contextlib
import os
import ssl
import threading
import time
from concurrent.futures import Future
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec
import requests
from requests.utils import get_environ_proxies

from amqtt_rest_bridge.addresses import is_loopback
from amqtt_rest_bridge.cli import CommandError
from amqtt_rest_bridge.errors import ConfigurationError, on_one_line, visible
from amqtt_rest_bridge.http.origin import MOST_REDIRECTS, REDIRECTS, may_follow, origin_of, resolve
from amqtt_rest_bridge.spelling import question
from amqtt_rest_bridge.system import own_version

MAX_BYTES: Final = 16 * 1024 * 1024
TOTAL_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 15.0
_CHUNK: Final = 65_536
_OVERLOADED: Final = (429, 502, 503, 504)
_PAUSES: Final = (0.5, 1.0, 2.0)  # seconds before it is asked again
_SHOWN: Final = 300
_NOT_FOUND: Final = "template_not_found"
_MOST_NEAREST: Final = 3
_OTHER_ADDRESS: Final = "name the address of a template library with --from"
_AGAIN: Final = (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)
"""Errors after which the library is asked again, unless they are also one of these:"""
_FINAL: Final = (requests.exceptions.SSLError, requests.Timeout)
# The first that fits: requests derives some of its errors from others.
_FAILURES: Final = (
    (requests.exceptions.ProxyError, "the proxy does not work", "correct HTTP_PROXY, HTTPS_PROXY or NO_PROXY"),
    (requests.exceptions.SSLError, "TLS with it fails", "SSL_CERT_FILE names a file of authorities to trust"),
    (requests.Timeout, "it does not answer in time", "try again later"),
    (
        requests.ConnectionError,
        "it cannot be reached",
        f"start it, or {_OTHER_ADDRESS}; HTTP_PROXY, HTTPS_PROXY and NO_PROXY are followed",
    ),
    (requests.exceptions.ChunkedEncodingError, "it breaks off its answer", "try again later"),
    (requests.RequestException, "the exchange with it fails", "try again later"),
    (OSError, "the file of authorities cannot be read", "SSL_CERT_FILE names it"),
)


class InstallError(CommandError):
    """A template cannot be installed; nothing has been written."""


class Notebook(msgspec.Struct, frozen=True):
    """A notebook of a template: its name as the library has it, and the latest cells."""

    filename: str
    cells: list[dict[str, Any]]


class Template(msgspec.Struct, frozen=True):
    """A template, as far as it is used here; other members are skipped."""

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


class _Session(requests.Session):
    """A session that follows no redirects: requests would read their bodies to the end. `Library` follows them."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: no redirect is followed here."""


class Library:
    """A template library at the address of its API: an http or https URL, which may hold a path and credentials.

    Raises:
        ConfigurationError: the address cannot be used.
    """

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
            origin = origin_of(parts)
        except ValueError:
            parts = None
        if parts is None or parts.query or parts.fragment or not address.isprintable() or " " in address:
            raise ConfigurationError("--from must be an address such as https://library.example")
        self.name = f"{origin}{parts.path}".rstrip("/")
        self._session = _Session()
        self._session.trust_env = False  # ~/.netrc is not for this
        if not is_loopback(origin.host):  # a proxy could only reach itself there
            self._session.proxies = get_environ_proxies(self.name)
        authorities = ssl.get_default_verify_paths()
        self._session.verify = os.environ.get("SSL_CERT_FILE") or authorities.cafile or authorities.capath or True
        accepted = {"Accept": "application/json", "Accept-Encoding": "identity"}
        self._session.headers.update(accepted | {"User-Agent": f"amqtt-rest-bridge/{own_version()}"})
        if parts.username is not None:
            self._session.auth = unquote(parts.username), unquote(parts.password or "")

    def template(self, id_or_slug: str) -> Template:
        """Return a published template. Blocks for 60 s at most.

        Raises:
            ConfigurationError: the slug cannot be one.
            InstallError: there is none, or the library cannot be asked, or what it answers is not a template.
        """
        # Only dots would be another path of the API.
        if not id_or_slug.strip(".") or not id_or_slug.isprintable() or "/" in id_or_slug or "\\" in id_or_slug:
            raise ConfigurationError(f"{visible(id_or_slug)!r} is not the slug or id of a template")
        future: Future[Template] = Future()

        def fetch() -> None:
            try:
                status, content = self._get(f"/api/templates/{quote(id_or_slug, safe='')}")
                if status == HTTPStatus.OK:
                    future.set_result(msgspec.json.decode(content, type=_Answer).template)
                else:
                    future.set_exception(self._refusal(status, content, id_or_slug))
            except BaseException as error:  # noqa: BLE001  # it is raised by the thread that waits
                future.set_exception(error)

        threading.Thread(target=fetch, name="install", daemon=True).start()
        try:
            return future.result(TOTAL_SECONDS)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            message = f"{self.name} answers with something that is not a template: {on_one_line(str(error), _SHOWN)}"
            raise InstallError(message, _OTHER_ADDRESS) from error
        except TimeoutError as error:
            raise InstallError(f"{self.name} has not answered in {TOTAL_SECONDS:g} s", "try again later") from error
        except OSError as error:  # requests' own are such, too
            reason, hint = next((text, hint) for kind, text, hint in _FAILURES if isinstance(error, kind))
            cause = ""  # what the system or TLS says, at the bottom of the chain of exceptions
            seen: BaseException | None = error
            while seen is not None:
                if isinstance(seen, OSError) and not isinstance(seen, requests.RequestException) and seen.args:
                    cause = on_one_line(getattr(seen, "verify_message", "") or seen.strerror or str(seen), _SHOWN)
                seen = seen.__cause__ or seen.__context__
            raise InstallError(f"{self.name}: {reason}{f': {cause}' if cause else ''}", hint) from error

    def _get(self, path: str) -> tuple[int, bytes]:
        """Return the status and body of the answer to a path; asks again after an overload or a lost connection."""
        for pause in (*_PAUSES, None):
            try:
                status, content = self._follow(f"{self.name}{path}")
            except _AGAIN as error:
                if pause is None or isinstance(error, _FINAL):
                    raise
            else:
                if pause is None or status not in _OVERLOADED:
                    break
            time.sleep(pause)
        return status, content

    def _follow(self, url: str) -> tuple[int, bytes]:
        """Ask for a URL and follow redirects, which lead to the same host and port only, or to its HTTPS."""
        for number in range(MOST_REDIRECTS + 1):
            timeout = _CONNECT_SECONDS, _READ_SECONDS
            with self._session.get(url, timeout=timeout, stream=True) as response:
                location = response.headers.get("Location")
                if response.status_code not in REDIRECTS or location is None:
                    return response.status_code, self._read(response)
            target = resolve(url, location)
            shown = "an address that cannot be used" if target is None else str(target[0])
            if target is None or not may_follow(origin_of(urlsplit(url)), target[0]):
                reason = "only the same host and port is followed"
            elif number == MOST_REDIRECTS:
                reason = f"this was redirect {number + 1}, {MOST_REDIRECTS} are followed"
            else:
                url = f"{target[0]}{target[1]}"
                continue
            break
        message = f"{self.name} redirects to {on_one_line(shown, _SHOWN)}; {reason}"
        raise InstallError(message, "if you trust that address, name it with --from")

    def _read(self, response: requests.Response) -> bytes:
        """Return the body of an answer, which is bounded."""
        if response.headers.get("Content-Encoding", "identity") != "identity":  # a few octets may become millions
            raise InstallError(f"{self.name} compresses its answer, which it was not asked for", _OTHER_ADDRESS)
        content = bytearray()
        try:
            for chunk in response.iter_content(_CHUNK):
                content += chunk
                if len(content) > MAX_BYTES:
                    raise InstallError(f"{self.name} answers with more than {MAX_BYTES} bytes", _OTHER_ADDRESS)
        except requests.ConnectionError as error:  # which requests raises here if nothing comes for _READ_SECONDS
            raise requests.ReadTimeout from error
        return bytes(content)

    def _refusal(self, status: int, content: bytes, id_or_slug: str) -> InstallError:
        """Return the error for an answer of 300 and above, with the message and hint of its body if it has them.

        For an unknown slug the hint names the nearest slugs.
        """
        try:
            reason = msgspec.json.decode(content, type=_Refusal).error
        except (msgspec.MsgspecError, ValueError, RecursionError):
            reason = _Reason("", _OTHER_ADDRESS if status == HTTPStatus.NOT_FOUND else "try again later")
        message = f"{self.name} answers with status {status}"
        if reason.message:
            message += f": {on_one_line(reason.message, _SHOWN)}"
        hint = on_one_line(reason.hint, _SHOWN)
        if reason.code == _NOT_FOUND:  # the nearest slugs, else the first ones that a search finds
            found = self._slugs(f"search?q={quote(id_or_slug.replace('-', ' '), safe='')}&limit=30")
            known = [*found, *self._slugs("templates?limit=30")]
            near = list(dict.fromkeys(get_close_matches(id_or_slug[:_SHOWN].lower(), known, n=6)))
            if near:
                hint = question(" or ".join(near[:_MOST_NEAREST]))
            elif found:
                hint = f"the library finds {', '.join(found[:_MOST_NEAREST])}"
        return InstallError(message, hint)

    def _slugs(self, path: str) -> list[str]:
        """Return the slugs of a list or search; none where the library does not answer with one."""
        with contextlib.suppress(InstallError, OSError, msgspec.MsgspecError, ValueError, RecursionError):
            listed = msgspec.json.decode(self._get(f"/api/{path}")[1], type=_Listed)
            slugs = [each.slug for each in listed.results if each.slug]
            return [each for each in slugs if each.isprintable() and len(each) <= _SHOWN]
        return []
