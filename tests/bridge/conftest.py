"""What the tests of the bridge share."""

import pytest

from tests.bridge.spawning import Spawning


@pytest.fixture
def spawning(monkeypatch: pytest.MonkeyPatch) -> Spawning:
    """Return what starts the bridge processes of this test, soon again after a failure."""
    return Spawning(monkeypatch)
