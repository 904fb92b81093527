"""What the tests of commands share."""

from collections.abc import Iterator

import pytest

from amqtt_rest_bridge import reload
from amqtt_rest_bridge.reload import SubprocessLoader
from tests.support.forked import load_on_a_thread
from tests.support.waiting import SECONDS


@pytest.fixture(scope="module")
def threads() -> Iterator[None]:
    """Parse route files in this process, which costs a tenth of a process for each load, however long it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reload, "_TRIAL_SECONDS", 10 * SECONDS)
        patch.setattr(SubprocessLoader, "load", load_on_a_thread)
        yield
