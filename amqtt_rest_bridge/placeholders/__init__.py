"""Placeholders: texts with `{...}`, parsed once at load and filled per message or request. Pure; any thread.

`names` says which placeholders there are, `text` parses and fills, `values` takes a message or request apart,
`escaping` has one rule per place, `matching` tells which filters a topic can match. What is inserted never changes the
shape of what it is inserted into.
"""

from amqtt_rest_bridge.placeholders.escaping import Place, place_of
from amqtt_rest_bridge.placeholders.matching import may_match, pattern
from amqtt_rest_bridge.placeholders.names import PLACEHOLDERS, Mode, Placeholder, PlaceholderKind, recognise
from amqtt_rest_bridge.placeholders.text import (
    Fixed,
    LoneBackslashError,
    PlaceholderText,
    Suspect,
    constants,
    dot_segments,
    parse,
    suspects,
)
from amqtt_rest_bridge.placeholders.values import MessageValues, RequestValues, Values, rfc3339

__all__ = [
    "PLACEHOLDERS",
    "Fixed",
    "LoneBackslashError",
    "MessageValues",
    "Mode",
    "Place",
    "Placeholder",
    "PlaceholderKind",
    "PlaceholderText",
    "RequestValues",
    "Suspect",
    "Values",
    "constants",
    "dot_segments",
    "may_match",
    "parse",
    "pattern",
    "place_of",
    "recognise",
    "rfc3339",
    "suspects",
]
