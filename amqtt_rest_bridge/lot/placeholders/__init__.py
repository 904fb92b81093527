"""Placeholders: texts with `{...}`, parsed once at load and filled per message or request. Pure; any thread.

`kinds` has the table of placeholders, `text` parses, escapes and fills, `values` reads messages and requests,
`conditions` judges WHEN. A value never changes the shape of the text around it.
"""

from amqtt_rest_bridge.lot.placeholders.conditions import (
    WHEN_UNUSABLE,
    Condition,
    Literal,
    Operand,
    Test,
    is_true,
    why_false,
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
    "WHEN_UNUSABLE",
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
    "RequestValues",
    "ResponseBody",
    "ResultValues",
    "Suspect",
    "Test",
    "Values",
    "constants",
    "dot_segments",
    "from_json",
    "is_true",
    "parse",
    "place_of",
    "recognise",
    "suspects",
    "to_json",
    "why_false",
]
