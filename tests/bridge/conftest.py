"""What the tests of the engine share."""

from collections.abc import Iterator

import pytest

from tests.bridge.engine_rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()
