"""The event loops that the tests of the HTTP server run on."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.support.http_ports import Loop

ASYNCIO = pytest.param(asyncio.new_event_loop, id="asyncio")
LOOPS = {
    "test_server_streams": [ASYNCIO, pytest.param(uvloop.new_event_loop, id="uvloop")],
    "": [ASYNCIO, pytest.param(uvloop.new_event_loop, id="uvloop", marks=pytest.mark.long)],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the server on each loop; on uvloop with the long tests only, but for a few."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if name.startswith("test_server_"):
        metafunc.fixturenames.append("make_loop")
        metafunc.parametrize("make_loop", LOOPS.get(name) or LOOPS[""], indirect=True)


@pytest.fixture
def make_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loops of servers so."""
    make: Callable[[], asyncio.AbstractEventLoop] = request.param
    monkeypatch.setattr(Loop, "make", staticmethod(make))
