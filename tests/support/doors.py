"""Where a bridge runs in a test: within an amqtt broker, or as a worker beside mosquitto. One test asks both.

@pytest.mark.parametrize("hosting", DOORS)
def test_...(hosting: Hosting) -> None:
    with hosting(routes) as host: ...
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

import pytest
from _pytest.mark import ParameterSet

from amqtt_rest_bridge.bridge import Program
from tests.support import beside_broker, embedded_broker
from tests.support.waiting import SECONDS
from tests.worker.mosquitto import PROGRAM


class Client(Protocol):
    """An MQTT client whose calls block; see `embedded_broker.Client`."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None: ...
    def subscribe(self, *filters: str) -> None: ...
    def message(self, seconds: float = SECONDS) -> tuple[str, bytes]: ...
    def messages(self, count: int) -> list[tuple[str, bytes]]: ...


class Host(Protocol):
    """A broker with a bridge; see `embedded_broker.Host`. `path` is its route file."""

    path: Path

    @property
    def program(self) -> Program: ...
    @property
    def http_port(self) -> int: ...
    @property
    def admin_port(self) -> int | None: ...
    @property
    def status_filter(self) -> str: ...
    @property
    def mqtt_url(self) -> str: ...
    def client(self, *filters: str) -> Client: ...
    def reload(self) -> None: ...


Hosting = Callable[..., AbstractContextManager[Host]]
"""Runs a broker and a bridge with the given route texts and settings, until the block ends."""

_NO_MOSQUITTO: Final = pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")
WORKER: Final = pytest.param(beside_broker.hosting, id="worker", marks=[pytest.mark.mosquitto, _NO_MOSQUITTO])


def _plugins(*processes: int) -> list[ParameterSet]:
    names = {0: "plugin", 1: "plugin, a process"}
    hostings = {number: functools.partial(embedded_broker.hosting, processes=number) for number in processes}
    return [pytest.param(hosting, id=names[number]) for number, hosting in hostings.items()]


def doors(*processes: int) -> list[ParameterSet]:
    """Return a plugin with each of these settings of `processes`, and a worker."""
    return [*_plugins(*processes), WORKER]


PLUGINS: Final = _plugins(0, 1)
DOORS: Final = doors(0)
