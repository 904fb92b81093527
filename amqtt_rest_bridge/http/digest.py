"""Digest access authentication (RFC 7616): which challenge is answered, and with what. Pure.

A server refuses the first request with a challenge: an algorithm and a nonce. The request is sent again with a digest
of the password, the nonce and the request. Later requests answer the same nonce at once, each with the next count,
until the server names another nonce. The password itself is never sent.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from amqtt_rest_bridge.catalogue import NO_DIGEST
from amqtt_rest_bridge.errors import CONTROL, CallError, on_one_line
from amqtt_rest_bridge.lot.model import Pairs, RestApiConfig, values_of

_ALGORITHMS: Final[Mapping[str, str]] = MappingProxyType(
    {"md5": "md5", "sha-256": "sha256", "sha-512-256": "sha512_256"}
)
"""The algorithms of hashlib by their names in challenges, the weakest first."""
_MOST_BYTES: Final = 16_384  # of all challenges of a response
_MOST_REPEATS: Final = 2  # of a request: for a nonce, and for one that has become stale meanwhile
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ITEM: Final = re.compile(
    rf'(?P<name>{_WORD})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<bare>{_WORD}))\s*(?=,|\Z)'
    rf"|(?P<scheme>{_WORD})(?:\s+[A-Za-z0-9._~+/-]+=*\s*(?=,|\Z)|(?=[\s,]|\Z))"
)
_BETWEEN: Final = re.compile(r"[\s,]*")
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The challenge of a server; its parts are named as in RFC 7616 section 3.3.

    `algorithm` is as the server wrote it; None if it wrote none, which means MD5. `qop` is False if the server offers
    none, as old cameras do (RFC 2069). `stale` says that the nonce alone was refused, not the credentials.
    """

    realm: str
    nonce: str
    algorithm: str | None = None
    qop: bool = True
    opaque: str | None = None
    userhash: bool = False
    stale: bool = False

    def answer(self, login: tuple[str, str], method: str, target: str, count: int, cnonce: str) -> str:
        """Return the value of Authorization for a request, the `count`th one with this nonce (section 3.4).

        Args:
            login: User name and password.
            method: Of the request.
            target: Its path and query.
            count: From 1.
            cnonce: A text that cannot be guessed.
        """

        def digest(*parts: str) -> str:
            return hashlib.new(_ALGORITHMS[(self.algorithm or "md5").lower()], ":".join(parts).encode()).hexdigest()

        username, password = login
        secret, request = digest(username, self.realm, password), digest(method, target)
        named = _quoted("username", digest(username, self.realm) if self.userhash else username)
        if not username.isascii() and not self.userhash:
            named = f"username*=UTF-8''{quote(username, safe='')}"  # RFC 5987
        fields = [named, _quoted("realm", self.realm), _quoted("nonce", self.nonce), _quoted("uri", target)]
        if self.algorithm is not None:
            fields.append(f"algorithm={self.algorithm}")
        if self.qop:
            fields += ["qop=auth", f"nc={count:08x}", f'cnonce="{cnonce}"']
            response = digest(secret, self.nonce, f"{count:08x}", cnonce, "auth", request)
        else:
            response = digest(secret, self.nonce, request)
        fields.append(f'response="{response}"')
        if self.opaque is not None:
            fields.append(_quoted("opaque", self.opaque))
        if self.userhash:
            fields.append("userhash=true")
        return f"Digest {', '.join(fields)}"


@dataclass(slots=True)
class AnsweredChallenge:
    """A challenge, and how many requests have answered it."""

    challenge: Challenge
    count: int = 0


class DigestLogin:
    """The Digest login of a route, which all its requests share.

    Args:
        config: Has USERNAME and PASSWORD.
        new_cnonce: Returns hexadecimal digits that cannot be guessed.
    """

    def __init__(self, config: RestApiConfig, new_cnonce: Callable[[], str]) -> None:
        self.credentials = config.username or "", config.password or ""
        self.new_cnonce = new_cnonce
        self.accepted: AnsweredChallenge | None = None
        """The last challenge to which the server has accepted an answer. New requests answer it."""


class RequestLogin:
    """The Digest login of one request, which may be sent several times.

    No other request answers a challenge to this request before the server has accepted an answer of this one: a nonce
    may be valid for one request only.
    """

    def __init__(self, route: DigestLogin) -> None:
        self._route = route
        self._answered: AnsweredChallenge | None = None  # by the request as it was sent last
        self._repeats = 0  # of the request, after a 401

    def authorization(self, method: str, target: str) -> str | None:
        """Return the value of Authorization for the request, None if no challenge is known."""
        if not self._repeats:
            self._answered = self._route.accepted
        answered = self._answered
        if answered is None:
            return None
        answered.count += 1
        return answered.challenge.answer(
            self._route.credentials, method, target, answered.count, self._route.new_cnonce()
        )

    def must_repeat(self, status: int, headers: Pairs) -> bool:
        """Note the response to the request; return whether the request has to be sent again.

        After a 401 a request of any method is repeated, since the server has not processed it. It is repeated a second
        time only if its nonce was `stale`; otherwise the credentials are wrong.

        Raises:
            CallError: The server asks for a login other than Digest, or for a digest that is not supported.
        """
        if status != HTTPStatus.UNAUTHORIZED:
            if self._answered is None:
                return False
            if self._repeats:
                self._route.accepted, self._repeats = self._answered, 0
            for following in values_of(headers, "authentication-info"):
                nonce = {name: text for _, name, text in _items(following)}.get("nextnonce")
                if nonce and not CONTROL.search(nonce):
                    self._route.accepted = AnsweredChallenge(replace(self._answered.challenge, nonce=nonce))
            return False
        if self._route.accepted is self._answered:
            self._route.accepted = None
        challenge = strongest_challenge(values_of(headers, "www-authenticate"))
        if self._repeats >= _MOST_REPEATS or (self._repeats and not challenge.stale):
            self._repeats = 0
            return False
        self._answered, self._repeats = AnsweredChallenge(challenge), self._repeats + 1
        return True


def strongest_challenge(values: Iterable[str]) -> Challenge:
    """Return the challenge with the strongest algorithm out of the values of WWW-Authenticate.

    Their order does not count: an attacker that adds a challenge must not be able to choose MD5.

    Raises:
        CallError: No challenge can be answered.
    """
    offered: list[tuple[str, dict[str, str]]] = []
    for scheme, name, text in _items(", ".join(values)):
        if not name:
            offered.append((scheme.lower(), {}))
        elif offered:
            offered[-1][1].setdefault(name, text)
    digests = [fields for scheme, fields in offered if scheme == "digest"]
    usable = [challenge for challenge in map(_challenge_of, digests) if challenge is not None]
    if usable:
        ranks = list(_ALGORITHMS)
        return max(usable, key=lambda one: ranks.index((one.algorithm or "md5").lower()))
    if not digests:
        schemes = on_one_line(", ".join(dict.fromkeys(scheme for scheme, _ in offered))) or "nothing"
        raise _unanswerable(f"and asks for {schemes}, not for Digest")
    if any("auth-int" in _qops(fields) and "auth" not in _qops(fields) for fields in digests):
        raise _unanswerable("and asks for a digest of the body (qop auth-int), which is not supported")
    named = on_one_line(", ".join(fields.get("algorithm", "none") for fields in digests))
    raise _unanswerable(f"with a Digest challenge that cannot be answered (algorithm {named})")


def _unanswerable(reason: str) -> CallError:
    return NO_DIGEST.error(f"the server answered 401 {reason}")


def _challenge_of(fields: Mapping[str, str]) -> Challenge | None:
    """Return the challenge with these parameters, None if it cannot be answered."""
    realm, nonce, opaque = fields.get("realm"), fields.get("nonce"), fields.get("opaque")
    algorithm, qops = fields.get("algorithm"), _qops(fields)
    if realm is None or not nonce or (algorithm or "md5").lower() not in _ALGORITHMS:
        return None
    if (qops and "auth" not in qops) or any(CONTROL.search(text) for text in (realm, nonce, opaque or "")):
        return None
    flags = {name: fields.get(name, "").lower() == "true" for name in ("userhash", "stale")}
    return Challenge(realm, nonce, algorithm, bool(qops), opaque, **flags)


def _qops(fields: Mapping[str, str]) -> list[str]:
    return re.findall(r"[^\s,]+", fields.get("qop", "").lower())


def _items(text: str) -> Iterable[tuple[str, str, str]]:
    """Yield each scheme of challenges as (scheme, "", ""), then its parameters as ("", name, value).

    The syntax is that of RFC 9110 section 11. A malformed part is skipped up to the next comma.
    """
    offset, text = 0, text[:_MOST_BYTES]
    while (offset := _BETWEEN.match(text, offset).end()) < len(text):  # type: ignore[union-attr]  # it always matches
        found = _ITEM.match(text, offset)
        if found is None:
            comma = text.find(",", offset)
            offset = len(text) if comma < 0 else comma
            continue
        offset = found.end()
        if found["scheme"] is not None:
            yield found["scheme"], "", ""
        else:
            yield "", found["name"].lower(), found["bare"] or _ESCAPED.sub(r"\1", found["quoted"] or "")


def _quoted(name: str, text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'
