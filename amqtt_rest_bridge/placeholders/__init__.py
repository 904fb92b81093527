"""Placeholders: texts with `{...}`, parsed once at load and filled per message or request. Pure; any thread.

`syntax` has the table of placeholders, `text` parses, escapes and fills, `values` reads messages and requests,
`conditions` compiles WHEN. A value never changes the shape of the text around it.
"""

from amqtt_rest_bridge.placeholders.conditions import (
    Combination,
    Comparison,
    Condition,
    Existence,
    Likeness,
    Literal,
    Membership,
    Negation,
    Operand,
    Predicate,
    Test,
    predicate,
)
from amqtt_rest_bridge.placeholders.syntax import PLACEHOLDERS, Mode, Placeholder, PlaceholderKind, recognise
from amqtt_rest_bridge.placeholders.text import (
    Fixed,
    LoneBackslashError,
    Place,
    PlaceholderText,
    constants,
    dot_segments,
    parse,
    place_of,
)
from amqtt_rest_bridge.placeholders.values import (
    JsonNumber,
    MessageValues,
    RequestValues,
    ResponseBody,
    ResultValues,
    Values,
    to_json,
)

__all__ = [
    "PLACEHOLDERS",
    "Combination",
    "Comparison",
    "Condition",
    "Existence",
    "Fixed",
    "JsonNumber",
    "Likeness",
    "Literal",
    "LoneBackslashError",
    "Membership",
    "MessageValues",
    "Mode",
    "Negation",
    "Operand",
    "Place",
    "Placeholder",
    "PlaceholderKind",
    "PlaceholderText",
    "Predicate",
    "RequestValues",
    "ResponseBody",
    "ResultValues",
    "Test",
    "Values",
    "constants",
    "dot_segments",
    "parse",
    "place_of",
    "predicate",
    "recognise",
    "to_json",
]
