"""CORS: which pages of other origins may call an endpoint and read its answers (ENABLE_CORS, CORS_ORIGINS)."""

import re
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.catalogue import ORIGIN_NOT_ALLOWED
from amqtt_rest_bridge.http.exchange import Headers, RequestRefusedError, refuse
from amqtt_rest_bridge.lot.model import RestApiConfig

_HEADER_NAMES: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_PREFLIGHT_SECONDS: Final = "600"


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """The answer of a route with ENABLE_CORS to pages of other origins; `origins` is None when all are allowed."""

    origins: frozenset[str] | None

    def answer_headers(self, origin: str | None) -> Headers:
        """Return the headers for an answer; raises `RequestRefusedError` (403) for an origin that is not listed."""
        if origin is None:
            return _VARY
        return (*_VARY, *self._allow(origin), _EXPOSE)

    def preflight_headers(self, origin: str, methods: str, wanted: str | None) -> Headers:
        """Return the headers for a preflight; raises `RequestRefusedError` (403) for an origin that is not listed."""
        headers = (*_PREFLIGHT_VARY, *self._allow(origin), ("Access-Control-Allow-Methods", methods))
        if wanted and _HEADER_NAMES.fullmatch(wanted):
            headers = (*headers, ("Access-Control-Allow-Headers", wanted))
        return (*headers, ("Access-Control-Max-Age", _PREFLIGHT_SECONDS))

    def _allow(self, origin: str) -> Headers:
        if self.origins is None:
            return _ANY_ORIGIN
        if _normal(origin) not in self.origins:
            message = "Pages of this origin may not call this endpoint; nothing was published"
            raise RequestRefusedError(refuse(ORIGIN_NOT_ALLOWED, message, _VARY))
        return (("Access-Control-Allow-Origin", origin),)


_VARY: Final = (("Vary", "Origin"),)
_PREFLIGHT_VARY: Final = (("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),)
_ANY_ORIGIN: Final = (("Access-Control-Allow-Origin", "*"),)
_EXPOSE: Final = ("Access-Control-Expose-Headers", "ETag, Retry-After, X-Request-ID")


def cors_for(config: RestApiConfig) -> CorsPolicy | None:
    """Return the CORS policy of a route, None without ENABLE_CORS."""
    if not config.enable_cors:
        return None
    origins = frozenset(_normal(origin) for origin in config.cors_origins)
    return CorsPolicy(None if "*" in origins else origins)


def _normal(origin: str) -> str:
    """Return an origin as browsers send it: lower case, no slash at its end."""
    return origin.strip().rstrip("/").lower()
