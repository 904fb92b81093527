"""What the tests of the broker's side share: a broker with a spool, in a process of its own, that can be killed."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture
def start_broker(tmp_path: Path, spool: Path) -> Iterator[StartBroker]:
    """Starts a broker with these routes and settings; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(routes: str, **settings: Any) -> BrokerProcess:
            broker = BrokerProcess(tmp_path, routes, spool=str(spool), **settings)
            stack.callback(broker.close)
            broker.start()
            return broker

        yield start


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run
