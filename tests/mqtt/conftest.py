"""Tests of this folder that are coroutines run on a loop that `factory` makes: asyncio's, by default."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(autouse=True)
def factory() -> LoopFactory:
    return asyncio.new_event_loop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, for 20 seconds at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    factory: Any = pyfuncitem.funcargs["factory"]
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 20))
    return True
