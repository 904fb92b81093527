"""Placeholders: texts with `{...}`, parsed once at load and filled per message or request. Pure; any thread.

`kinds` has the table of placeholders, `text` parses, escapes and fills, `values` reads messages and requests,
`conditions` compiles WHEN. A value never changes the shape of the text around it.
"""

from amqtt_rest_bridge.lot.placeholders.conditions import (
    Condition,
    Literal,
    Operand,
    Predicate,
    Test,
    predicate,
)
from amqtt_rest_bridge.lot.placeholders.kinds import (
    BATCH,
    BATCH_LINES,
    PLACEHOLDERS,
    Mode,
    Placeholder,
    PlaceholderKind,
    Suspect,
    recognise,
    suspects,
)
from amqtt_rest_bridge.lot.placeholders.text import (
    Fixed,
    LoneBackslashError,
    Place,
    PlaceholderText,
    constants,
    dot_segments,
    parse,
    place_of,
)
from amqtt_rest_bridge.lot.placeholders.values import (
    BatchValues,
    JsonNumber,
    MessageValues,
    RequestValues,
    ResponseBody,
    ResultValues,
    Values,
    from_json,
    to_json,
)

__all__ = [
    "BATCH",
    "BATCH_LINES",
    "PLACEHOLDERS",
    "BatchValues",
    "Condition",
    "Fixed",
    "JsonNumber",
    "Literal",
    "LoneBackslashError",
    "MessageValues",
    "Mode",
    "Operand",
    "Place",
    "Placeholder",
    "PlaceholderKind",
    "PlaceholderText",
    "Predicate",
    "RequestValues",
    "ResponseBody",
    "ResultValues",
    "Suspect",
    "Test",
    "Values",
    "constants",
    "dot_segments",
    "from_json",
    "parse",
    "place_of",
    "predicate",
    "recognise",
    "suspects",
    "to_json",
]
