"""The context of a trace: the headers and user properties `traceparent`, `tracestate` and `baggage`. Pure.

It goes from messages to requests, and from requests and responses to messages, without a setting. In amqtt, whose
messages are those of MQTT 3.1.1 and have no properties, it ends at the broker.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from amqtt_rest_bridge.lot.model import Pairs

TRACE_NAMES: Final = ("traceparent", "tracestate", "baggage")
"""Headers, and user properties, that name a trace and what goes with it."""

_PARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?"
)
_STATE_MEMBER: Final = re.compile(r"([a-z0-9][a-z0-9_*/@-]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_LONGEST: Final = 8192  # characters of a list; W3C Baggage section 3.3.2 wants as many
_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE: Final = r"[!#-+\--:<-\[\]-~]*"
_BAGGAGE_MEMBER: Final = re.compile(f"{_NAME}[ \t]*=[ \t]*{_VALUE}")
_BAGGAGE_PROPERTY: Final = re.compile(f"{_NAME}(?:[ \t]*=[ \t]*{_VALUE})?")
_SPACE: Final = " \t"


def trace_of(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Return the trace context in headers or user properties, () without one; names are compared in any case.

    What is malformed is dropped: `traceparent` and `tracestate` by W3C Trace Context (sections 3.2 and 3.3),
    `baggage` by W3C Baggage (section 3.3). Without a `traceparent` there is no `tracestate`.
    """
    found = [(name.lower(), value) for name, value in pairs if name.lower() in TRACE_NAMES]
    if not found:
        return ()
    parents, states, baggage = ([value.strip(_SPACE) for name, value in found if name == own] for own in TRACE_NAMES)
    kept: list[tuple[str, str]] = []
    if len(parents) == 1 and _is_parent(parents[0]):
        kept.append(("traceparent", parents[0]))
        if _is_state(state := ",".join(states)):
            kept.append(("tracestate", state))
    if _is_baggage(carrying := ",".join(baggage)):
        kept.append(("baggage", carrying))
    return tuple(kept)


def trace_in(headers: Mapping[str, str]) -> Pairs:
    """Return the trace context in headers by their names in lower case."""
    found = [(name, headers[name]) for name in TRACE_NAMES if name in headers]
    return trace_of(found) if found else ()


def _is_parent(value: str) -> bool:
    match = _PARENT.fullmatch(value)
    return match is not None and (match[1] != "00" or match[2] is None)  # later versions may say more


def _is_state(value: str) -> bool:
    members = _members(value)
    matches = [_STATE_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    return 0 < len(members) <= 32 and len(keys) == len(members)  # each key once


def _is_baggage(value: str) -> bool:
    members = _members(value)
    return 0 < len(members) <= 180 and all(map(_is_baggage_member, members))


def _is_baggage_member(member: str) -> bool:
    pair, *others = (part.strip(_SPACE) for part in member.split(";"))
    return _BAGGAGE_MEMBER.fullmatch(pair) is not None and all(map(_BAGGAGE_PROPERTY.fullmatch, others))


def _members(value: str) -> list[str]:
    """Return the members of a list that is not too long, without the empty ones."""
    if len(value) > _LONGEST:
        return []
    return [stripped for member in value.split(",") if (stripped := member.strip(_SPACE))]
