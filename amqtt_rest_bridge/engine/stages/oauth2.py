"""OAUTH2 settings: requests carry an access token of the client credentials grant (RFC 6749 section 4.4).

A route has one token. It is fetched when it is first needed, and again before it expires. A request that the server
answers with 401 is sent once more, with a new token. `AccessTokens` decides, without I/O; `AuthorizedClient` sends. No
message, log line or failure holds a token.
"""

import asyncio
import json
import math
import re
from collections import deque
from dataclasses import dataclass, field
from dataclasses import replace as replace_dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from msgspec.structs import replace

from amqtt_rest_bridge.addresses import basic_credentials
from amqtt_rest_bridge.catalogue import NOT_A_TOKEN, OAUTH2_FAILED, TOKEN_REFUSED
from amqtt_rest_bridge.engine.needs import Clock, Sends, Turn
from amqtt_rest_bridge.engine.requests import has_own_authorization
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.http.failures import describe_status
from amqtt_rest_bridge.lot.model import HttpRequest, HttpResponse, Method, RestApiConfig

_MARGIN_SECONDS: Final = 30.0  # a token is renewed so long before it expires, or after 90 % of a short life
_MOST_MASKED: Final = 4  # the last tokens of a route, which are masked
_LOGIN_REFUSALS: Final = (400, 401)  # statuses with which a token server may refuse Basic
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")  # RFC 6749 appendix A.12, without spaces: it becomes part of a header
_ERROR: Final = re.compile(r"[a-z_]{1,40}")  # RFC 6749 section 5.2


@dataclass(frozen=True, slots=True)
class _Token:
    value: str = field(repr=False)
    renewed_at: float  # monotonic time


class AccessTokens:
    """The access token of a route, and the requests for it; `config` has the OAUTH2 settings. Times are monotonic."""

    def __init__(self, config: RestApiConfig) -> None:
        self.in_body = False
        """Whether the server accepts the client's credentials in the form only, not as Basic."""
        self.issued: deque[str] = deque(maxlen=_MOST_MASKED)
        """The last tokens, for masking."""
        self._config = config
        self._token: _Token | None = None

    def current(self, now: float) -> str | None:
        """Return the token, None if there is none or it has to be renewed."""
        return None if self._token is None or now >= self._token.renewed_at else self._token.value

    def request(self, *, in_body: bool) -> HttpRequest:
        """Return the request for a token, with the client's credentials in the form or as Basic."""
        config, form = self._config, {"grant_type": "client_credentials"}
        client_id, secret = config.oauth2_client_id or "", config.oauth2_client_secret or ""
        optional = {"scope": config.oauth2_scope, "audience": config.oauth2_audience}
        form |= {name: text for name, text in optional.items() if text is not None}
        headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json")]
        if in_body:
            form |= {"client_id": client_id, "client_secret": secret}
        else:
            headers.append(("Authorization", basic_credentials(quote_plus(client_id), quote_plus(secret))))
        return HttpRequest(Method.POST, config.oauth2_token_url or "", tuple(headers), urlencode(form).encode())

    def may_need_body(self, response: HttpResponse) -> bool:
        """Return whether the server may have refused the credentials because they were sent as Basic.

        Basic is tried first (RFC 6749 section 2.3.1); some servers accept credentials in the form only.
        """
        return response.status in _LOGIN_REFUSALS and not self.in_body

    def keep_token(self, response: HttpResponse, started: float, *, in_body: bool) -> str:
        """Keep the token of an answer to a request that was sent at `started`, and return it.

        Raises:
            CallError: `oauth2_failed`.
        """
        self.in_body = in_body
        self._token = _read_token(response, started)
        self.issued.append(self._token.value)
        return self._token.value

    def forget_token(self, token: str) -> None:
        """Forget a token that the server did not accept."""
        if self._token is not None and self._token.value == token:
            self._token = None


class AuthorizedClient:
    """Sends the requests of a route with its access token; fulfils `Sends`.

    Args:
        client: Sends to the server of the route.
        issuer: Sends to the server of OAUTH2_TOKEN_URL.
        config: Has the OAUTH2 settings.
        clock: Its monotonic time decides when a token is renewed.
    """

    def __init__(self, client: Sends, issuer: Sends, config: RestApiConfig, clock: Clock) -> None:
        self._client = client
        self._issuer = issuer
        self._clock = clock
        self._tokens = AccessTokens(config)
        self._fetching: asyncio.Task[str | CallError] | None = None

    async def send(self, request: HttpRequest, *, turn: Turn | None = None) -> HttpResponse:
        """Send a request. After a 401, which means that it was not processed, send it once more with a new token.

        Requests for a token take no turn: they go to another server.
        """
        if has_own_authorization(request):
            return await self._client.send(request, turn=turn)
        sent = token = await self._token()
        response = await self._client.send(authorized(request, token), turn=turn)
        if response.status == HTTPStatus.UNAUTHORIZED:
            self._tokens.forget_token(token)
            took, token = response.elapsed, await self._token()
            response = await self._client.send(authorized(request, token), turn=turn)
            response = replace_dataclass(response, elapsed=took + response.elapsed)
        return replace_dataclass(response, credentials=response.credentials.union([sent, token], self._tokens.issued))

    def close(self) -> None:
        """Close idle connections to both servers."""
        self._client.close()
        self._issuer.close()

    async def _token(self) -> str:
        """Return the token. All calls that need one at the same time share one fetch, and its failure.

        Raises:
            CallError: `oauth2_failed`.
        """
        token = self._tokens.current(self._clock.monotonic())
        if token is not None:
            return token
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())
        fetched = await asyncio.shield(self._fetching)  # cancelling one call does not cancel the fetch for others
        if isinstance(fetched, CallError):
            raise fetched
        return fetched

    async def _fetch(self) -> str | CallError:
        started, in_body = self._clock.monotonic(), self._tokens.in_body
        try:
            response = await self._issuer.send(self._tokens.request(in_body=in_body))
            if self._tokens.may_need_body(response):
                other = await self._issuer.send(self._tokens.request(in_body=True))
                if other.status < 300:
                    response, in_body = other, True
        except CallError as error:
            return token_failure(error)
        try:
            return self._tokens.keep_token(response, started, in_body=in_body)
        except CallError as error:
            return error


def authorized(request: HttpRequest, token: str) -> HttpRequest:
    """Return a request with its token."""
    return replace(request, headers=(*request.headers, ("Authorization", f"Bearer {token}")))


def token_failure(error: CallError) -> CallError:
    """Return the failure of a call for which no token came; `error` is the failure of the request for it."""
    hint = error.hint.replace("BASE_ADDRESS", "OAUTH2_TOKEN_URL")
    return OAUTH2_FAILED.error(_without_token(error.message), hint=hint, unsent=True)


def _read_token(response: HttpResponse, started: float) -> _Token:
    """Return the token in an answer of the token server (RFC 6749 sections 5.1 and 5.2)."""
    try:
        answer: Any = json.loads(response.body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        answer = {}
    if response.status >= 300:
        error = answer.get("error")
        named = f" ({error})" if isinstance(error, str) and _ERROR.fullmatch(error) else ""
        is_final = 400 <= response.status < 500 and response.status != 429  # else the call may be tried again
        message = _without_token(f"its server answered {describe_status(response.status)}{named}")
        raise TOKEN_REFUSED.error(message, unsent=not is_final)
    token, kind, seconds = answer.get("access_token"), answer.get("token_type", "bearer"), answer.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token) or str(kind).lower() != "bearer":
        raise NOT_A_TOKEN.error(_without_token("its server answered without a bearer token"))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str):
        return _Token(token, float("inf"))  # until the first 401
    try:
        life = float(seconds)
    except (ValueError, OverflowError):
        life = math.inf
    return _Token(token, started + max(life - _MARGIN_SECONDS, life * 0.9))


def _without_token(reason: str) -> str:
    return f"there is no access token: {reason}"
