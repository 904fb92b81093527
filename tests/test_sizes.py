"""Sizes in settings: bytes, or a number with KiB, MiB or GiB."""

from typing import Any

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.settings import Settings, check_settings
from amqtt_rest_bridge.sizes import read_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1000", 1000), ("64MiB", 64 << 20), (" 1 kib ", 1024), ("2GIB", 2 << 30),
        ("64MB", None), ("1.5MiB", None), ("-1", None), ("", None), ("MiB", None), ("9" * 16, None),
    ],
)  # fmt: skip
def test_a_size_is_a_number_of_bytes_or_has_a_unit(text: str, size: int | None) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1, "1 byte"), (1000, "1000 bytes"), (1536, "1536 bytes"), (64 << 20, "64 MiB")]
)
def test_messages_write_whole_units(size: int, text: str) -> None:
    assert size_text(size) == text


def test_settings_take_sizes_in_either_form() -> None:
    settings = Settings("routes", max_body_bytes="1MiB", max_response_bytes=10, queue_bytes="1GiB")
    check_settings(settings)
    assert (settings.max_body_bytes, settings.max_response_bytes) == (1 << 20, 10)
    assert (settings.queue_bytes, settings.max_message_bytes) == (1 << 30, 4 << 20)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"queue_bytes": "64MB"}, 'the setting queue_bytes is "64MB", which is not a size; write 64MiB'),
        ({"max_message_bytes": 0}, "the setting max_message_bytes is 0; allowed is 1 to 268435455"),
        ({"max_message_bytes": "1GiB"}, "the setting max_message_bytes is 1073741824; allowed is 1 to 268435455"),
    ],
)
def test_a_text_that_is_not_a_size_and_one_out_of_range_end_the_start(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_settings(Settings("routes", **values))
