"""The admin port of a running bridge, as `trace`, `failures` and `retry` ask it. Main thread; every function blocks."""

import http.client
import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

import typer

from amqtt_rest_bridge.catalogue import NO_RUN
from amqtt_rest_bridge.cli import CommandError, certificate_refused
from amqtt_rest_bridge.errors import ConfigurationError, reason, visible
from amqtt_rest_bridge.mqtt.values import load_tls
from amqtt_rest_bridge.spelling import did_you_mean

DEFAULT_ADMIN: Final = "http://127.0.0.1:9464"
TOKEN_VARIABLE: Final = "REST_BRIDGE_ADMIN_TOKEN"  # noqa: S105  # the name of a variable
_CONNECT_SECONDS: Final = 10.0
_NOT_HERE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
_TOKEN: Final = re.compile(r"[\x20-\x7e]*")
_MOST_NAMES: Final = 10  # that an error lists
_MOST_SHOWN: Final = 200  # characters of what another server answers

Admin = Annotated[str, typer.Option(metavar="URL", help="the bridge's admin port")]


class AdminError(CommandError):
    """The admin port cannot be asked, or refuses; the message says why."""


class AdminPort:
    """One connection to the admin port at an address, with the files of its options --ca-file, --cert-file, --key-file.

    Raises:
        ConfigurationError: It is not an address, or a file cannot be used.
    """

    def __init__(
        self, address: str, ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None
    ) -> None:
        parts = _parse(address)
        files = {"--ca-file": ca_file, "--cert-file": cert_file, "--key-file": key_file}
        tls = load_tls(parts.scheme == "https", files, "--admin https://...")
        where, seconds = (parts.hostname or "", parts.port), _CONNECT_SECONDS
        self.connection: Final[http.client.HTTPConnection] = (
            http.client.HTTPConnection(*where, timeout=seconds)
            if tls is None
            else http.client.HTTPSConnection(*where, timeout=seconds, context=tls)
        )
        self.shown: Final = f"{parts.scheme}://{parts.hostname}:{self.connection.port}"
        self._base = parts.path.rstrip("/")

    def get(self, path: str, member: str, query: Mapping[str, str] | None = None) -> Any:
        """Return the JSON object that is answered, which has to have a member; raises `AdminError`."""
        asked = f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
        with self.asking("GET", asked) as response:
            return self._read(response, member)

    def post(self, path: str, member: str, members: Mapping[str, Any]) -> Any:
        """Post a JSON object and return the one that is answered, which has to have a member; raises `AdminError`."""
        with self.asking("POST", path, json.dumps(members).encode()) as response:
            return self._read(response, member)

    def check_route(self, name: str) -> None:
        """Raise `AdminError` for a route that the bridge does not have, of which nothing would ever be shown.

        Where the bridge cannot list its routes, the name passes.
        """
        with self.asking("GET", "/api/routes") as response:
            content = response.read()
        try:
            names = [str(route["name"]) for route in json.loads(content)["routes"]]
        except (ValueError, TypeError, KeyError):
            return
        if name not in names:
            listed = f"routes: {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
            hint = did_you_mean(name, names) or (listed if names else "it has no routes")
            raise AdminError(visible(f"there is no route {name}; {hint}"))

    @contextmanager
    def asking(self, method: str, target: str, body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
        """Ask, and read the answer within the block; raises `AdminError` where the connection fails in it."""
        token = os.environ.get(TOKEN_VARIABLE)
        if token is not None and _TOKEN.fullmatch(token) is None:  # it is not quoted: most of it may be the secret
            raise AdminError(f"{TOKEN_VARIABLE} has a line break or a letter that is in no token; write it once more")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            self.connection.request(method, f"{self._base}{target}", body, headers)
            yield self.connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, BrokenPipeError):
                raise
            why = getattr(error, "strerror", None) or reason(error)
            hint = "is admin_port set, and the bridge up?"
            if isinstance(error, ssl.SSLCertVerificationError):
                why, hint = certificate_refused(error)
            elif isinstance(error, ssl.SSLError):
                hint = "does it speak TLS, and ask for --cert-file?"
            raise AdminError(f"cannot read from {self.shown}: {why}; {hint}") from error

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _read(self, response: http.client.HTTPResponse, member: str) -> Any:
        if response.status >= 300:
            raise AdminError(f"{self.shown}: {refusal(response)}")
        try:
            answer = json.loads(response.read())
            answer[member]
        except (ValueError, TypeError, KeyError):
            raise AdminError(f"{self.shown}: {_answered(response)}") from None
        return answer


def refusal(response: http.client.HTTPResponse) -> str:
    """Return why a question was refused, in a sentence."""
    content = response.read(10_000)
    if response.status == HTTPStatus.UNAUTHORIZED:
        return f"the token is missing or wrong; set {TOKEN_VARIABLE} to the bridge's admin_token"
    try:
        error = json.loads(content)["error"]
        if error["hint"] == NO_RUN.hint:
            return visible(f"{error['message']}; rest-bridge failures lists those that are kept")
        is_other = response.status in _NOT_HERE
        return _answered(response) if is_other else visible(f"{error['message']}. {error['hint']}")
    except (ValueError, TypeError, KeyError):
        return _answered(response)


def _answered(response: http.client.HTTPResponse) -> str:
    """Return what has answered in place of an admin port, in a sentence."""
    kind, server = response.headers.get("Content-Type", "no content type"), response.headers.get("Server")
    named = "" if server is None else f", from {server}"
    answer = f"{response.status} {response.reason}, {kind}{named}"
    return visible(f"this is not the admin port of a bridge: it answers {answer[:_MOST_SHOWN]}")


def _parse(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigurationError(f"--admin is not an address; write http://HOST:PORT, for example {DEFAULT_ADMIN}")
    return parts
