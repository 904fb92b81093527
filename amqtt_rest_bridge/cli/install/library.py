"""The client of a template library: fetches one published template over HTTP. The one door for requests.

What comes is from another machine: it is bounded in time and size, and checked before it is returned. The request runs
on a thread of its own, so that a server that drips, or a resolver that does not answer, ends with its deadline.
"""

import contextlib
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec
import requests
from requests.adapters import HTTPAdapter, Retry
from requests.utils import get_auth_from_url

from amqtt_rest_bridge.cli.install.placing import InstallError
from amqtt_rest_bridge.errors import ConfigurationError, on_one_line, visible

MAX_BYTES: Final = 16 * 1024 * 1024
TOTAL_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 15.0
_MOST_REDIRECTS: Final = 5
_CHUNK: Final = 65_536
_RETRIES: Final = Retry(
    total=3, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504), allowed_methods=("GET",), raise_on_status=False
)
_SHOWN: Final = 300
_NOT_FOUND: Final = "template_not_found"
_MOST_NEAREST: Final = 3
_OTHER_ADDRESS: Final = "name the address of a template library with --from"
# The first that fits; requests derives some of its errors from others.
_FAILURES: Final = (
    (requests.exceptions.ProxyError, "the proxy does not work", "correct HTTP_PROXY, HTTPS_PROXY or NO_PROXY"),
    (
        requests.exceptions.SSLError,
        "its certificate cannot be verified",
        "REQUESTS_CA_BUNDLE names a file of authorities to trust",
    ),
    (requests.exceptions.Timeout, "it does not answer in time", "try again later"),
    (requests.exceptions.ConnectionError, "it cannot be reached", f"start it, or {_OTHER_ADDRESS}"),
    (requests.exceptions.RequestException, "the exchange with it fails", "try again later"),
    (ValueError, "it redirects to something that is not an address", _OTHER_ADDRESS),  # requests parses it
)


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


@dataclass(frozen=True, slots=True)
class _Received:
    status: int
    content: bytes


class Library:
    """A template library at the address of its API.

    Args:
        address: An http or https URL; may hold a path and credentials.
        user_agent: The User-Agent of requests.

    Raises:
        ConfigurationError: the address cannot be used.
    """

    def __init__(self, address: str, user_agent: str) -> None:
        self._credentials = get_auth_from_url(address)
        self._user_agent = user_agent
        self.name = _without_credentials(address)

    def template(self, id_or_slug: str) -> Template:
        """Return a published template. Blocks for at most 60 s.

        Raises:
            ConfigurationError: the slug cannot be one.
            InstallError: there is none, or the library cannot be asked, or what it answers is not a template.
        """
        # Only dots would be another path of the API.
        if not id_or_slug.strip(".") or not id_or_slug.isprintable() or "/" in id_or_slug or "\\" in id_or_slug:
            raise ConfigurationError(f"{visible(id_or_slug)!r} is not the slug or id of a template")
        received = self._received(f"{self.name}/api/templates/{quote(id_or_slug, safe='')}")
        if received.status != requests.codes.ok:
            raise self._refusal(received, id_or_slug)
        try:
            return msgspec.json.decode(received.content, type=_Answer).template
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            message = f"{self.name} answers with something that is not a template: {on_one_line(str(error), _SHOWN)}"
            raise InstallError(message, _OTHER_ADDRESS) from error

    def _received(self, url: str) -> _Received:
        future: Future[_Received] = Future()
        threading.Thread(target=self._ask, args=(url, future), name="install", daemon=True).start()
        try:
            return future.result(TOTAL_SECONDS)
        except TimeoutError as error:
            raise InstallError(f"{self.name} has not answered in {TOTAL_SECONDS:.0f} s", "try again later") from error
        except (requests.RequestException, ValueError) as error:
            reason, hint = next((text, hint) for kind, text, hint in _FAILURES if isinstance(error, kind))
            cause = _cause(error)
            raise InstallError(f"{self.name}: {reason}{f': {cause}' if cause else ''}", hint) from error

    def _ask(self, url: str, future: Future[_Received]) -> None:
        try:
            future.set_result(self._get(url))
        except BaseException as error:  # noqa: BLE001  # it is raised by the thread that waits
            future.set_exception(error)

    def _get(self, url: str) -> _Received:
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        with requests.Session() as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))
            session.auth = self._credentials if any(self._credentials) else None
            timeout = (_CONNECT_SECONDS, _READ_SECONDS)
            for _ in range(_MOST_REDIRECTS + 1):
                with session.get(url, headers=headers, timeout=timeout, stream=True, allow_redirects=False) as response:
                    if not response.is_redirect:
                        return self._read(response)
                    url = self._redirected(url, response.headers["location"])
        raise InstallError(f"{self.name} redirects more than {_MOST_REDIRECTS} times", _OTHER_ADDRESS)

    def _redirected(self, url: str, location: str) -> str:
        """Return where a redirect leads.

        Decision: only to the same host and port, or to https on the same host: no library makes this machine send
        requests to others, such as those that only it can reach.
        """
        following = urljoin(url, location)
        old, new = urlsplit(url), urlsplit(following)
        if (new.scheme, new.hostname, new.port) not in (
            (old.scheme, old.hostname, old.port),
            ("https", old.hostname, None),
        ):
            message = f"{self.name} redirects to another address, {on_one_line(following.rpartition('@')[2], _SHOWN)}"
            raise InstallError(message, "if you trust it, name it with --from")
        return following

    def _read(self, response: requests.Response) -> _Received:
        content = bytearray()
        for chunk in response.iter_content(_CHUNK):
            content += chunk
            if len(content) > MAX_BYTES:
                raise InstallError(f"{self.name} answers with more than {MAX_BYTES} bytes", _OTHER_ADDRESS)
        return _Received(response.status_code, bytes(content))

    def _refusal(self, received: _Received, id_or_slug: str) -> InstallError:
        """Return what the error body of the API says, or the status only; the nearest slugs for an unknown one."""
        try:
            reason = msgspec.json.decode(received.content, type=_Refusal).error
        except (msgspec.MsgspecError, ValueError, RecursionError):
            reason = _Reason("", _OTHER_ADDRESS if received.status == requests.codes.not_found else "try again later")
        message = f"{self.name} answers with status {received.status}"
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
            return f"did you mean {' or '.join(list(dict.fromkeys(near))[:_MOST_NEAREST])}?"
        return f"the library finds {', '.join(found[:_MOST_NEAREST])}" if found else ""

    def _slugs(self, path: str) -> list[str]:
        """Return the slugs of a list or search; none where the library does not answer with one."""
        with contextlib.suppress(InstallError, msgspec.MsgspecError, ValueError, RecursionError):
            listed = msgspec.json.decode(self._received(f"{self.name}/api/{path}").content, type=_Listed)
            slugs = [each.slug for each in listed.results if each.slug]
            return [each for each in slugs if each.isprintable() and len(each) <= _SHOWN]
        return []


def _without_credentials(address: str) -> str:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or not address.isprintable() or " " in address:
        raise ConfigurationError("--from must be an address such as https://library.example")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def _cause(error: BaseException) -> str:
    """Return what the operating system or TLS says at the bottom of a chain of exceptions, "" when nothing."""
    found, seen = "", error.__context__
    while seen is not None:
        if isinstance(seen, OSError) and not isinstance(seen, requests.RequestException) and seen.args:
            found = getattr(seen, "verify_message", "") or seen.strerror or str(seen)
        seen = seen.__cause__ or seen.__context__
    return on_one_line(found, _SHOWN)
