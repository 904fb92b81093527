"""A body is cut where it is shown, and no part of a secret is left at the cut."""

import pytest

from amqtt_rest_bridge.admin.evidence import MASKED_BYTES, SHOWN_BYTES, masked_body
from amqtt_rest_bridge.lot.masking import Masker

SECRET = "s3cret-" * 20


@pytest.mark.parametrize("edge", [SHOWN_BYTES, MASKED_BYTES])
@pytest.mark.parametrize("before", [0, 1, 70, 139, 140])
def test_a_secret_across_an_edge_leaves_nothing(edge: int, before: int) -> None:
    body = b"x" * (edge - before) + SECRET.encode() + b"y" * MASKED_BYTES
    shown = masked_body(Masker([SECRET]), body)
    assert (b"s3c" in shown.data, shown.size) == (False, len(body))
    assert len(shown.data) <= SHOWN_BYTES


def test_a_body_of_secrets_alone_leaves_none_of_the_last_one() -> None:
    shown = masked_body(Masker([SECRET]), SECRET.encode() * 1000)
    assert b"s3c" not in shown.data


@pytest.mark.parametrize("size", [0, 1, SHOWN_BYTES, SHOWN_BYTES + 1, MASKED_BYTES - 1, MASKED_BYTES, 1 << 20])
def test_without_secrets_as_much_is_shown_as_there_is_room_for(size: int) -> None:
    shown = masked_body(Masker([SECRET]), b"x" * size)
    assert (shown.data, shown.size) == (b"x" * min(size, SHOWN_BYTES), size)
