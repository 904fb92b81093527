"""What a worker carries of a message's properties."""

import pytest

from amqtt_rest_bridge.lot.model import MessageProperties, Pairs
from amqtt_rest_bridge.mqtt.intake import MOST_PROPERTIES, carried
from amqtt_rest_bridge.mqtt.publisher import HOPS
from amqtt_rest_bridge.mqtt.standard import MOST_USER_BYTES, Property


@pytest.mark.parametrize(
    ("user", "kept"),
    [
        pytest.param((("a", "1"), ("a", "2")), 2, id="a name twice"),
        pytest.param((("a", ""),) * (MOST_PROPERTIES + 1), MOST_PROPERTIES, id="too many"),
        pytest.param((("a", "b" * (MOST_USER_BYTES - 1)), ("", ""), ("c", ""), ("", "")), 2, id="too long together"),
        pytest.param((("a", "ü" * (MOST_USER_BYTES // 2)), ("c", "d")), 0, id="one that is too long as UTF-8"),
    ],
)
def test_the_first_properties_are_carried(user: Pairs, kept: int) -> None:
    found = {Property.USER_PROPERTY: list(user), Property.CORRELATION_DATA: b"data"}
    assert carried(found) == MessageProperties(user[:kept], b"data")


def test_a_message_without_properties_or_with_the_bridges_own_carries_none() -> None:
    assert carried({Property.SUBSCRIPTION_IDENTIFIER: [1]}) is None
    assert carried({Property.USER_PROPERTY: [(HOPS, "1")]}) is None


def test_correlation_data_that_is_longer_than_any_of_ours_stays_different_from_ours() -> None:
    assert carried({Property.CORRELATION_DATA: bytes(65_535)}) == MessageProperties((), bytes(64))
    assert carried({Property.CORRELATION_DATA: b""}) == MessageProperties((), b"")
