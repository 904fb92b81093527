"""What the tests of the repairs share."""

from collections.abc import Iterator

import pytest

from tests.broker.repairs.users import Rights


@pytest.fixture
def rights() -> Iterator[type[Rights]]:
    """The ACL of `USERS`, which does not answer about slow topics yet; it does when the test has ended."""
    Rights.may.clear()
    Rights.asked.clear()
    yield Rights
    Rights.may.set()
