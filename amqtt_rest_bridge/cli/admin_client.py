"""The client of a bridge's admin port, for `status`, `failures`, `retry` and `trace`. Every function blocks.

The address is given by `--admin` or by REST_BRIDGE_ADMIN; there is no default. The one door for urllib3.
"""

import json
import os
import re
import shlex
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import IncompleteRead
from typing import Annotated, Any, Final
from urllib.parse import urlencode, urlsplit

import typer
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError, LocationValueError, ProtocolError

from amqtt_rest_bridge.catalogue import NO_RUN, STILL_RETRIED
from amqtt_rest_bridge.cli import CommandError, certificate_refused, own_name
from amqtt_rest_bridge.errors import ConfigurationError, reason, visible
from amqtt_rest_bridge.mqtt.values import load_tls
from amqtt_rest_bridge.settings import ADMIN_TOKEN_VARIABLE, ADMIN_VARIABLE
from amqtt_rest_bridge.spelling import did_you_mean

_SECONDS: Final = 10.0  # to connect, and between two bytes of an answer
_SILENCE_SECONDS: Final = 60.0  # between two bytes of the live stream, in which a comment comes every 15 s
_NOT_HERE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
_BROKEN_OFF: Final = (ssl.SSLError, ConnectionResetError, BrokenPipeError)
_TOKEN: Final = re.compile(r"[\x20-\x7e]*")
_MOST_NAMES: Final = 10  # that an error lists
_MOST_SHOWN: Final = 200  # characters of what another server answers
_FORM: Final = "write http://HOST:PORT, as in http://127.0.0.1:9464"

Admin = Annotated[
    str | None,
    typer.Option(metavar="URL", help=f"the bridge's admin port, http://HOST:PORT (default: {ADMIN_VARIABLE})"),
]
ADMIN_HELP: Final = f"""\
The bridge needs the setting admin_port: name it by --admin or the variable {ADMIN_VARIABLE}. Where it asks for a
token, set {ADMIN_TOKEN_VARIABLE}.
"""


def admin_option(given: str | None) -> str:
    """Return the option --admin for the next command that a hint names; nothing where the variable has the address."""
    return "" if given is None else f" --admin {visible(shlex.quote(given))}"


class AdminError(CommandError):
    """The admin port cannot be asked, or refuses; the message says why."""


class AdminClient:
    """One connection to the admin port at an address, with the files of its options --ca-file, --cert-file, --key-file.

    The default address is that of REST_BRIDGE_ADMIN.

    Raises:
        ConfigurationError: There is no address, it is not one, or a file cannot be used.
    """

    def __init__(
        self, given: str | None, ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None
    ) -> None:
        address = given or os.environ.get(ADMIN_VARIABLE)
        if not address:
            raise ConfigurationError(f"name the bridge's admin port with --admin or {ADMIN_VARIABLE}: {_FORM}")
        wrong = f"{'--admin' if given else ADMIN_VARIABLE} is not an address; {_FORM}"
        try:
            parts = urlsplit(address)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise ConfigurationError(wrong)
        files = {"--ca-file": ca_file, "--cert-file": cert_file, "--key-file": key_file}
        self._tls = load_tls(parts.scheme == "https", files, "--admin https://...")
        try:
            manager = PoolManager(retries=False, ssl_context=self._tls)
            self._pool = manager.connection_from_host(parts.hostname, parts.port, parts.scheme)
        except LocationValueError:
            raise ConfigurationError(wrong) from None
        self.shown: Final = f"{parts.scheme}://{parts.hostname}:{self._pool.port}"
        self._base = parts.path.rstrip("/")

    def get(
        self, path: str, member: str, query: Mapping[str, str] | None = None, expected: Collection[int] = ()
    ) -> Any:
        """Return the JSON object of the answer, which must have `member`; raises `AdminError`.

        A status of 300 and above is an error, unless it is `expected`.
        """
        asked = f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
        with self.asking("GET", asked) as response:
            return self._read_answer(response, member, expected)

    def post(self, path: str, member: str, members: Mapping[str, Any]) -> Any:
        """Post a JSON object and return that of the answer, which must have `member`; raises `AdminError`."""
        with self.asking("POST", path, json.dumps(members).encode()) as response:
            return self._read_answer(response, member)

    def check_route(self, name: str) -> None:
        """Raise `AdminError` for a route that the bridge does not have."""
        routes = self.get("/api/routes", "routes")["routes"]
        names = [str(route["name"]) for route in routes if isinstance(route, dict) and "name" in route]
        if name not in names:
            listed = f"routes: {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
            hint = did_you_mean(name, names) or (listed if names else "it has no routes")
            raise AdminError(visible(f"there is no route {name}; {hint}"))

    def follow(self, path: str, query: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a stream until it ends; raises `AdminError`, also once nothing has come for a minute."""
        target = f"{path}?{urlencode(query, errors='surrogateescape')}"
        with self.asking("GET", target, silence=_SILENCE_SECONDS) as response:
            if response.status == HTTPStatus.NOT_FOUND:  # of a port of server mode, or of any other server
                raise AdminError(f"{self.shown}: it has no live stream; is it the admin port of a bridge?")
            if response.status != HTTPStatus.OK:
                raise AdminError(f"{self.shown}: {refusal(response)}")
            rest = b""
            try:
                while data := response.read1():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        yield line.decode("utf-8", "replace")
            except ProtocolError as error:
                if not isinstance(_cause(error), IncompleteRead):  # which is how the answer of a killed bridge ends
                    raise

    @contextmanager
    def asking(
        self, method: str, target: str, body: bytes | None = None, *, silence: float = _SECONDS
    ) -> Iterator[BaseHTTPResponse]:
        """Send a request; its answer is read within the block.

        Raises:
            AdminError: The connection fails, before the block or in it, or nothing comes for `silence` seconds.
        """
        token = os.environ.get(ADMIN_TOKEN_VARIABLE)
        if token is not None and _TOKEN.fullmatch(token) is None:  # the message does not hold it: it may be the secret
            raise AdminError(
                f"{ADMIN_TOKEN_VARIABLE} has a line break or a letter that is in no token; write it once more"
            )
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            response = self._pool.urlopen(
                method, f"{self._base}{target}", body, headers, redirect=False, preload_content=False,
                timeout=Timeout(connect=_SECONDS, read=silence),
            )  # fmt: skip
        except HTTPError as error:
            raise self._connection_error(error) from error
        try:
            yield response
        except HTTPError as error:
            raise self._connection_error(error) from error
        finally:
            response.close()

    def _connection_error(self, failure: HTTPError) -> AdminError:
        """Return the error of a connection that failed, with a hint."""
        error = _cause(failure)
        why = getattr(error, "strerror", None) or reason(error)
        hint = "is admin_port set, and the bridge up?"
        if isinstance(error, ssl.SSLCertVerificationError):
            why, hint = certificate_refused(error)
        elif self._tls is not None and isinstance(error, _BROKEN_OFF):
            hint = "does it speak TLS, and ask for --cert-file?"
        return AdminError(f"cannot read from {self.shown}: {why}; {hint}")

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    def _read_answer(self, response: BaseHTTPResponse, member: str, expected: Collection[int] = ()) -> Any:
        if response.status >= 300 and response.status not in expected:
            raise AdminError(f"{self.shown}: {refusal(response)}")
        try:
            answer = json.loads(response.read())
            answer[member]
        except (ValueError, TypeError, KeyError):
            raise AdminError(f"{self.shown}: {_describe_other_server(response)}") from None
        return answer


def refusal(response: BaseHTTPResponse) -> str:
    """Return why a question was refused, in a sentence."""
    content = response.read(10_000)
    if response.status == HTTPStatus.UNAUTHORIZED:
        what = "the token is wrong" if os.environ.get(ADMIN_TOKEN_VARIABLE) else "no token was given"
        return f"{what}; set {ADMIN_TOKEN_VARIABLE} to the bridge's: admin_token, or the file of admin_token_secret"
    try:
        error = json.loads(content)["error"]
        if error["hint"] == NO_RUN.hint:
            return visible(f"{error['message']}; {own_name()} failures lists those that are kept")
        is_other = response.status in _NOT_HERE and error["hint"] != STILL_RETRIED.hint
        return _describe_other_server(response) if is_other else visible(f"{error['message']}. {error['hint']}")
    except (ValueError, TypeError, KeyError):
        return _describe_other_server(response)


def _describe_other_server(response: BaseHTTPResponse) -> str:
    """Return a sentence that says what answered, which is not an admin port."""
    kind, server = response.headers.get("Content-Type", "no content type"), response.headers.get("Server")
    named = "" if server is None else f", from {server}"
    answer = f"{response.status} {response.reason}, {kind}{named}"
    return visible(f"this is not the admin port of a bridge: it answers {answer[:_MOST_SHOWN]}")


def _cause(error: Exception) -> Exception:
    """Return the innermost exception that urllib3 has wrapped: its message is the reason alone."""
    while isinstance(error, HTTPError):
        inner = [one for one in (*error.args, error.__cause__) if isinstance(one, Exception)]
        if not inner:
            break
        error = inner[0]
    return error
