"""What the tests of the broker's side share."""

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess


@pytest.fixture
def processes() -> Iterator[list[BrokerProcess]]:
    """Brokers that a test puts in here end with it."""
    started: list[BrokerProcess] = []
    yield started
    for one in started:
        one.close()
