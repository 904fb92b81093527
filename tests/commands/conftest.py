"""What the tests of commands share."""

import asyncio
from collections.abc import Iterator, Mapping

import pytest

from amqtt_rest_bridge.language.loader import LoadResult
from amqtt_rest_bridge.processes import reload
from amqtt_rest_bridge.processes.route_loader import SubprocessLoader, load_files
from tests.support.waiting import SECONDS


async def load_on_a_thread(self: SubprocessLoader, instead: Mapping[str, str | None] | None = None) -> LoadResult:
    result, self._parsed = await asyncio.to_thread(load_files, self._argument, self._parsed, instead)
    return result


@pytest.fixture(scope="module")
def threads() -> Iterator[None]:
    """Parse route files in this process, which costs a tenth of a process for each load, however long it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reload, "_TRIAL_SECONDS", 10 * SECONDS)
        patch.setattr(SubprocessLoader, "load", load_on_a_thread)
        yield
