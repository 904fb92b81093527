"""The form of each kind of value, such as addresses, endpoints, origins and media types.

Text in, value out; pure, but for a check whether a file exists. `convert` and functions named `read_` or `check_` raise
`FormError` for a text in another form.
"""

import contextlib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from amqtt_rest_bridge import sizes
from amqtt_rest_bridge.addresses import HOST_NAME
from amqtt_rest_bridge.errors import CONTROL, HintedError
from amqtt_rest_bridge.lot.model import BreakerRule
from amqtt_rest_bridge.lot.settings_table import Kind, Parameter
from amqtt_rest_bridge.spelling import closest, question
from amqtt_rest_bridge.times import SECONDS
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name


class FormError(HintedError):
    """A text does not have the form it needs."""


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::(?P<port>[0-9]{1,5}))?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2
_MEDIA_TYPE = re.compile(rf"{_TOKEN.pattern}/{_TOKEN.pattern}([ \t]*;[^\x00-\x1f\x7f-\x9f]*)?")
_NOT_IN_URL = re.compile(r"[^\x21-\x7e]|[<>\"\\]")
_SEGMENT_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
# Headers that the connection sets itself (RFC 9110 section 7.6.1, and the framing of RFC 9112 section 6).
OWN_HEADERS = ("connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")


def read_address(text: str, *, use_ssl: bool) -> str:
    """Return a BASE_ADDRESS with its scheme and without a slash at its end."""
    scheme = _SCHEME.match(text)
    name = scheme[1].lower() if scheme else ("https" if use_ssl else "http")
    if name not in _DEFAULT_PORTS:
        raise FormError(f"has the scheme {name}; allowed are http and https", None)
    if name == "http" and use_ssl:
        raise FormError("begins with http:// while USE_SSL is true", "write https:// or leave USE_SSL out")
    authority, slash, path = (text[scheme.end() :] if scheme else text).partition("/")
    if "?" in text or "#" in text:
        raise FormError("has a query or fragment", "write the query in ENDPOINT")
    _check_authority(authority)
    _check_characters(path)
    return f"{name}://{authority}{slash}{path}".rstrip("/")


ADDRESSES = ("BASE_ADDRESS", "ENDPOINT", "OAUTH2_TOKEN_URL")
"""The settings that URLs are made of."""


def address_forms(text: str) -> tuple[str, ...]:
    """Return the forms in which a part of a URL may be shown: without the last slash, and without the default port."""
    short = text.strip().rstrip("/")
    return short, re.sub(r"\A(http://[^/]*):80(?=/|\Z)|\A(https://[^/]*):443(?=/|\Z)", r"\1\2", short)


def check_url(text: str) -> None:
    """Refuse a text that is not a whole http or https URL, or has credentials or a fragment."""
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[1].lower() not in _DEFAULT_PORTS:
        raise FormError("is not an http or https address", "as in https://id.example.com/oauth/token")
    if "#" in text:
        raise FormError("has a fragment", "leave it out")
    _check_characters(text)
    _check_authority(re.split(r"[/?]", text[scheme.end() :], maxsplit=1)[0])


def _check_characters(url: str) -> None:
    if found := _NOT_IN_URL.search(url):
        hint = "a placeholder is written in braces, as in {payload}" if found[0] in "<>" else f"write {quote(found[0])}"
        raise FormError(f"holds {found[0]!r}, which is not allowed in a URL", hint)


def _check_authority(authority: str) -> None:
    """Refuse what is between scheme and path of a URL unless it is a host, with or without a port."""
    found = _AUTHORITY.fullmatch(authority)
    if "@" in authority:
        raise FormError("holds credentials", "set USERNAME and PASSWORD instead")
    is_host = found is not None and HOST_NAME.fullmatch(found["host"]) is not None
    if found is not None and found["host"].startswith("["):
        with contextlib.suppress(ValueError):
            ipaddress.IPv6Address(found["host"][1:-1])
            is_host = True
    if found is None or not is_host:
        hint = "as in http://127.0.0.1:8000, https://api.example.com/v1 or http://[::1]:8000"
        if authority in ("http:", "https:"):
            hint = "write // behind http: or https:, and quotes around the address: outside of them // begins a comment"
        if not authority.isascii():
            hint = "write the host in ASCII, a name with other letters in its xn-- form"
        raise FormError("has no valid host" if authority else "names no host", hint)
    if found["port"] is not None and not 0 < int(found["port"]) <= 65535:
        raise FormError(f"has the port {found['port']}; allowed are 1 to 65535", None)


def check_client_endpoint(text: str) -> None:
    """Refuse a text that is not a path and query to append to BASE_ADDRESS; `text` has a word for each placeholder."""
    if _SCHEME.match(text) or text.startswith("//"):
        raise FormError("is a whole address", "the scheme and host belong in BASE_ADDRESS")
    if "#" in text:
        raise FormError("holds a fragment, which is never sent to a server", "write %23 if the character is meant")
    _check_characters(text)


def read_server_endpoint(text: str) -> tuple[str, ...]:
    """Return the names of the `{name}` segments of a path that server mode exposes."""
    if not text.startswith("/"):
        raise FormError("does not begin with /", "write only the path" if _SCHEME.match(text) else f"write /{text}")
    if "?" in text or "#" in text:
        raise FormError("has a query or fragment", "the query never takes part in matching; read it with {query.x}")
    if found := CONTROL.search(text):
        raise FormError(f"holds {found[0]!r}", "write a path on one line")
    if re.search(r"%[0-9A-Fa-f]{2}", text):
        hint = "write the character itself: requests are decoded before they are matched"
        raise FormError("is percent-encoded", hint)
    names: list[str] = []
    for segment in text.split("/"):
        if segment in (".", ".."):
            raise FormError(f"has the segment {segment}", "clients resolve it before they send")
        if "{" not in segment and "}" not in segment:
            continue
        found = _SEGMENT_NAME.fullmatch(segment)
        if found is None:
            inside = re.fullmatch(r"\$?\{+\s*(?:path\.)?([A-Za-z_][A-Za-z0-9_]*)\s*\}+", segment)
            hint = f"write {{{inside[1]}}}" if inside else "{name} fills its segment alone: letters, digits and _"
            raise FormError(f"has the segment {segment}", hint)
        if found[1] in names:
            raise FormError(f"has two segments {segment}", "give them different names")
        names.append(found[1])
    return tuple(names)


def endpoint_shape(endpoint: str) -> str:
    """Return a path with `{}` for each `{name}` segment. Two paths of one shape match the same requests."""
    return _SEGMENT_NAME.sub("{}", endpoint)


def read_origins(text: str) -> tuple[str, ...]:
    """Split CORS_ORIGINS; each comes in the form in which browsers send it (RFC 6454 section 6.2)."""
    origins = [item.strip() for item in text.split(",") if item.strip()]
    if not origins:
        raise FormError("names no origin", "write * for all")
    sent: dict[str, None] = {}
    for origin in origins:
        if origin in ("*", "null"):
            sent[origin] = None
            continue
        found = _SCHEME.match(origin)
        authority = origin[found.end() :] if found else ""
        if found is None or _AUTHORITY.fullmatch(authority) is None:
            hint = "scheme://host or scheme://host:port, no path"
            hint = f"write {origin.rstrip('/')}" if origin.endswith("/") else hint
            raise FormError(f"holds {origin!r}, which is not an origin", hint)
        scheme = found[1].lower()
        sent[f"{scheme}://{authority.lower().removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}"] = None
    return tuple(sent)


_FOREIGN_LEVEL = re.compile(
    r"\*{1,2}|:(?P<colon>\w+)|<(?P<angle>\w+)>|\$(?P<dollar>[A-Za-z_]\w*)|[^{}]*(?P<braces>\{[^{}]*\}).*"
)


def foreign_levels(text: str) -> list[tuple[int, str, str]]:
    """Return levels with wildcards or placeholders of other languages: number from 1, text, and the name in it."""
    found: list[tuple[int, str, str]] = []
    for number, level in enumerate(text.partition("?")[0].split("/"), start=1):
        match = _FOREIGN_LEVEL.fullmatch(level)
        if match is not None and not (number == 1 and match["dollar"]):  # the topics of brokers begin with $
            found.append((number, level, match["colon"] or match["angle"] or match["dollar"] or ""))
    return found


_DURATION = re.compile(r"([1-9][0-9]{0,6})\s*(?:([smhd])|(second|minute|hour|day)s?)", re.IGNORECASE)
DURATION_FORM = "write 30s, 15m, 6h or 1d"
_RATE = re.compile(r"([1-9][0-9]{0,5})\s*/\s*([smhd])", re.IGNORECASE)
_BREAKER = re.compile(r"([1-9][0-9]{0,3})\s+per\s+(\S.*)", re.IGNORECASE)
_STATUSES = re.compile(r"([45][0-9]{2})(?:\s*-\s*([45][0-9]{2}))?")


def read_duration(text: str) -> int:
    """Return the seconds of a duration such as `15m` or `15 MINUTES`, at most a year."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise FormError(f'"{text}" is not a duration', DURATION_FORM)
    seconds = int(found[1]) * SECONDS[(found[2] or found[3])[0].lower()]
    if seconds > 366 * SECONDS["d"]:
        raise FormError(f'"{text}" is longer than a year')
    return seconds


def read_rate(text: str) -> float:
    """Return the seconds from one request to the next at a rate such as `5/s`."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise FormError(f'"{text}" is not a rate', "write 5/s, 100/m, 1000/h or 5000/d")
    return SECONDS[found[2].lower()] / int(found[1])


def read_breaker(text: str) -> BreakerRule:
    """Return how many failures within how many seconds a text such as `5 per 30s` names; 1000 failures at most."""
    found = _BREAKER.fullmatch(text.strip())
    if found is None or int(found[1]) > 1000:
        raise FormError(f'"{text}" is not a number of failures per time', "write 5 per 30s, or up to 1000 per 1h")
    return BreakerRule(int(found[1]), read_duration(found[2]))


def read_statuses(text: str) -> tuple[int, ...]:
    """Return the statuses of a list such as `500, 502-504`, sorted; they are from 400 to 599."""
    statuses: set[int] = set()
    for item in text.split(","):
        found = _STATUSES.fullmatch(item.strip())
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise FormError(f'holds "{item.strip()}"', "write statuses from 400 to 599 and ranges: 500, 502-504")
        statuses.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(statuses))


def read_tokens(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of bearer tokens. The errors do not hold the text, which is secret."""
    tokens = tuple(item.strip() for item in text.split(","))
    if not all(tokens):
        raise FormError("holds an empty token", "callers would be let in without one")
    if any(re.search(r"[^\x21-\x7e]", token) for token in tokens):
        raise FormError("holds a token with spaces or letters beyond ASCII", "openssl rand -hex 32 makes one")
    return tokens


def is_header_name(text: str) -> bool:
    """Return whether a text can name a header (RFC 9110 section 5.1)."""
    return _TOKEN.fullmatch(text) is not None


def is_base64(text: str) -> bool:
    """Return whether a text is Base64 (RFC 4648 section 4) of at least one byte."""
    return re.fullmatch(r"(?=.)(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", text) is not None


def has_control(text: str) -> bool:
    """Return whether a text holds a character that is not allowed in a header value."""
    return CONTROL.search(text) is not None


def read_header_value(text: str) -> str:
    """Return the value of a header (RFC 9110 section 5.5)."""
    if has_control(text):
        raise FormError("holds a control character, which a header cannot carry", "write the value on one line")
    return text


def convert(parameter: Parameter, text: str, shown: str) -> object:
    """Return the value of a setting; `shown` is its text as a fault may show it."""
    if (read_text := _READERS_OF_TEXT.get(parameter.kind)) is not None:
        return read_text(text)
    reader = _READERS.get(parameter.kind)
    return text if reader is None else reader(parameter, text, shown)


_DIGITS = re.compile(r"-?[0-9]{1,12}")
_WITH_UNIT = re.compile(r"([0-9]{1,9})\s*([A-Za-z]+)")
_TIME = re.compile(
    r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,6})?)\s*"
    r"(?:(?P<thousandth>ms|milli(?:second)?s?)|(?P<word>[smhd]|(?:sec(?:ond)?|min(?:ute)?|hour|day)s?))?",
    re.IGNORECASE,
)
_BOOLEANS = dict.fromkeys(("yes", "on", "1"), "true") | dict.fromkeys(("no", "off", "0"), "false")


def _wrong_value(parameter: Parameter, shown: str, hint: str | None = None) -> FormError:
    if hint is None and shown.endswith(","):
        hint = "leave the comma out"
    verb = "is in" if parameter.unit else "must be"
    return FormError(f'{verb} {parameter.allowed}, not "{shown}"', hint)


def read_boolean(parameter: Parameter, text: str, shown: str) -> bool:
    """Return true or false, which may be written in any case."""
    word = text.strip().lower()
    value = {"true": True, "false": False}.get(word)
    if value is None:
        # What came from outside the file is not shown, not even converted.
        meant = _BOOLEANS.get(word) if text == shown else None
        raise _wrong_value(parameter, shown, meant and f"write {meant}")
    return value


def read_integer(parameter: Parameter, text: str, shown: str) -> int:
    """Return an integer within the bounds of its setting."""
    text = text.strip()
    if not _DIGITS.fullmatch(text) or not parameter.low <= int(text) <= parameter.high:
        if text != shown.strip():  # what came from outside the file is not shown, not even converted
            raise _wrong_value(parameter, shown)
        if parameter.unit:
            raise _wrong_value(parameter, shown, _hint_of_time(parameter, text))
        unit = _WITH_UNIT.fullmatch(text)
        number = f"{unit[1]}000" if unit and unit[2] in "kK" else unit and unit[1]
        raise _wrong_value(parameter, shown, f"write {number}, without a unit" if number else None)
    return int(text)


def _hint_of_time(parameter: Parameter, text: str) -> str | None:
    """Return what to write for a time such as `2000 ms` or `0.5`, None for any other text."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    unit = 1 if parameter.unit == "seconds" else 0.001
    written = SECONDS[found["word"][0].lower()] if found["word"] else 0.001 if found["thousandth"] else unit
    seconds = float(found["number"]) * written
    number = math.ceil(round(seconds / unit, 6))
    if seconds < parameter.low * unit:
        return f"the least is {parameter.low} {parameter.unit.removesuffix('s')}"
    if number <= parameter.high:
        return f"write {number}"
    if unit == 1 and re.fullmatch("[0-9]+00", text) and number <= 1000 * parameter.high:
        return f"write {math.ceil(number / 1000)} if milliseconds are meant"
    return f"the most is {parameter.high} {parameter.unit}"


def read_size(parameter: Parameter, text: str, shown: str) -> int:
    """Return the bytes of a size within the bounds of its setting."""
    size = sizes.read_size(text)
    if size is None:
        raise _wrong_value(parameter, shown, sizes.FORM)
    if not parameter.low <= size <= parameter.high:
        bounds = f"from {sizes.size_text(parameter.low)} to {sizes.size_text(parameter.high)}"
        raise FormError(f"must be {bounds}, not {shown!r}")
    return size


_CHOICE_SYNONYMS = {"github": "hmac", "sha256": "hmac", "hmac-sha256": "hmac", "svix": "standard-webhooks"}


def read_choice(parameter: Parameter, text: str, shown: str) -> str:
    """Return one of the setting's choices, which may be written in any case."""
    wanted = text.strip().lower()
    found = next((choice for choice in parameter.choices if choice.lower() == wanted), None)
    if found is None:
        meant = _CHOICE_SYNONYMS.get(wanted) or closest(wanted, parameter.choices)
        raise _wrong_value(parameter, shown, question(meant, f'"{meant}"') if meant else None)
    return found


def read_topic(_: Parameter, text: str, shown: str) -> str:
    """Return a topic name (MQTT 3.1.1 section 4.7)."""
    if reason := check_topic_name(text):
        raise FormError(f'"{shown}" {reason}')
    return text


def read_filter(_: Parameter, text: str, shown: str) -> str:
    """Return a topic filter (MQTT 3.1.1 section 4.7)."""
    if reason := check_topic_filter(text):
        has_wildcard = "+" in text or "#" in text
        hint = "+ is one whole level, # all that follow, at the end" if has_wildcard else None
        raise FormError(f'"{shown}" {reason}', hint)
    if text.startswith("$share/"):
        raise FormError(f'"{shown}" is a shared subscription, which never matches here', "write the filter alone")
    return text


def read_header_name(_: Parameter, text: str, shown: str) -> str:
    """Return a name that a setting may give a header."""
    if not is_header_name(text):
        raise FormError(f'"{shown}" is not a header name', "letters, digits and - are safe")
    if text.lower() in OWN_HEADERS:
        raise FormError(f'"{shown}" is a header that the connection sets', "choose another name")
    return text


def read_media_type(_: Parameter, text: str, shown: str) -> str:
    """Return a Content-Type (RFC 9110 section 8.3.1)."""
    if not _MEDIA_TYPE.fullmatch(text):
        raise FormError(f'"{shown}" is not a media type', "as in application/json or text/plain; charset=utf-8")
    return text


def read_file(_: Parameter, text: str, shown: str) -> str:
    """Return the path of a file that exists."""
    if not os.path.isfile(text):  # noqa: PTH113  # Path.is_file raises for a name that is too long
        raise FormError(f'"{shown}" is not a file', "relative paths begin at the working directory")
    return text


_READERS: Final[Mapping[Kind, Callable[[Parameter, str, str], object]]] = MappingProxyType(
    {
        Kind.BOOLEAN: read_boolean,
        Kind.INTEGER: read_integer,
        Kind.SIZE: read_size,
        Kind.CHOICE: read_choice,
        Kind.TOPIC: read_topic,
        Kind.FILTER: read_filter,
        Kind.HEADER_NAME: read_header_name,
        Kind.MEDIA_TYPE: read_media_type,
        Kind.FILE: read_file,
    }
)
_READERS_OF_TEXT: Final[Mapping[Kind, Callable[[str], object]]] = MappingProxyType(
    {
        Kind.HEADER_VALUE: read_header_value,
        Kind.ORIGINS: read_origins,
        Kind.TOKENS: read_tokens,
        Kind.DURATION: read_duration,
        Kind.RATE: read_rate,
        Kind.BREAKER: read_breaker,
        Kind.STATUSES: read_statuses,
    }
)
"""The function that reads a value, by kind; a kind that is in neither table takes any text."""
