"""The event loops that the tests of the HTTP server run on, and a server for tests that need no own one."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.support.http_ports import Loop, Raw, Served, hook_route, served

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
        metafunc.parametrize("make_loop", LOOPS.get(name) or LOOPS[""], indirect=True, scope="module")


@pytest.fixture(scope="module")
def make_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the loops of servers so."""
    make: Callable[[], asyncio.AbstractEventLoop] = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "make", staticmethod(make))
        yield


@pytest.fixture(scope="module")
def shared(make_loop: None) -> Iterator[Served]:
    with served() as hooks:
        yield hooks


@pytest.fixture
def hooks(shared: Served) -> Served:
    """A server with `hook_route`, whose broker has had nothing yet."""
    shared.use(hook_route())
    shared.server.loop.call(lambda: shared.broker.reply("last", b"21.5"))
    shared.broker.forget()
    return shared


@pytest.fixture
def raw(hooks: Served) -> Iterator[Raw]:
    """A connection to it."""
    with hooks.connect() as raw:
        yield raw
