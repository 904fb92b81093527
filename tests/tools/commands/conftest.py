"""What the tests of commands share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge import reload
from amqtt_rest_bridge.reload import SubprocessLoader
from tests.support.embedded_broker import Host
from tests.support.forked import load_on_a_thread
from tests.support.waiting import SECONDS
from tests.tools.commands.tools import OPEN, serving


@pytest.fixture(scope="module")
def threads() -> Iterator[None]:
    """Parse route files in this process, which costs a tenth of a process for each load, however long it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reload, "_TRIAL_SECONDS", 10 * SECONDS)
        patch.setattr(SubprocessLoader, "load", load_on_a_thread)
        yield


@pytest.fixture(scope="module")
def served(threads: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Path]]:
    """A broker that takes commands, whose ACL allows everything, and the folder of its route file."""
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, OPEN, status_seconds=60) as host:
        yield host, folder
