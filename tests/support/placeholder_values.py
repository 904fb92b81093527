"""What the tests of placeholders share: a message, a request, and filling a text with either."""

from types import MappingProxyType

import pytest

from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, Place, RequestValues, Values, parse

PAYLOAD = b"""{"text": "a \\"b\\"/c&d=e", "n": 21.50, "big": 12345678901234567890.123, "yes": true, "none": null,
 "list": [1, {"x": "y"}], "a": {"b": [{"c": 1}]}, "a.b": {"c": 2}, "0": "zero", "empty": "", "e": "gr\xc3\xbc\xc3\x9f",
 "half": "\\ud83c", "dots": "..", "line": "1\\n2"}"""

USER = (("site", "north/2"), ("a.b c", "first"), ("a.b c", "last"))


def message(payload: bytes = PAYLOAD, topic: str = "plant/hall 7/temp") -> MessageValues:
    return MessageValues(payload, 1769860800.1234, topic=topic, user=USER)


def request(body: bytes = b'{"a": 1}') -> RequestValues:
    return RequestValues(
        method="POST",
        path="/devices/7",
        path_parameters={"device": "7/8"},
        query={"a": ["1", "2"], "none": []},
        headers=MappingProxyType({"x-key": "k"}),
        payload=body,
        timestamp=0.0,
        request_id="id-1",
    )


def fill(text: str, place: Place = Place.TEXT, values: Values | None = None) -> str:
    mode = Mode.SERVER if isinstance(values, RequestValues) else Mode.CLIENT
    return parse(text, place, mode).fill(values or message())


def failure(text: str, place: Place = Place.TEXT, values: Values | None = None) -> CallError:
    with pytest.raises(CallError) as raised:
        fill(text, place, values)
    assert raised.value.unsent
    return raised.value
