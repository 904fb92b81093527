"""A worker beside a mosquitto, embedded in a test: the same door as `embedded_broker.hosting`.

    with hosting(routes) as host:
        client = host.client("out/#")
        client.publish("in", b"payload")
        assert client.message() == ("out", b"...")

The worker runs on a loop of its own in a thread, so tests are plain functions that wait for messages.
"""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from amqtt_rest_bridge.bridge import Program
from amqtt_rest_bridge.group.member import Member
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.values import parse_url
from amqtt_rest_bridge.settings import WorkerSettings, check_settings
from tests.support.fixed_broker import FixedBroker
from tests.support.forked import await_server
from tests.support.waiting import SECONDS
from tests.worker import mosquitto
from tests.worker.mosquitto import Mosquitto

T = TypeVar("T")


class Client:
    """An MQTT client whose calls block."""

    def __init__(self, client: mosquitto.Client) -> None:
        self._client = client

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish, and with QoS 1 wait for the PUBACK."""
        self._client.publish(topic, payload, qos=qos, retain=retain)

    def subscribe(self, *filters: str) -> None:
        """Subscribe and wait for the SUBACK."""
        self._client.subscribe(*filters)

    def message(self, seconds: float = SECONDS) -> tuple[str, bytes]:
        """Wait for the next message."""
        return self._client.next(seconds)

    def messages(self, count: int) -> list[tuple[str, bytes]]:
        """Wait for so many messages."""
        return self._client.collect(count)


class Host:
    """A running worker, and its broker; `path` is its route file."""

    def __init__(self, broker: Mosquitto, settings: WorkerSettings) -> None:
        self.broker = broker
        self.path = Path(settings.route_paths[0])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="worker")
        self._thread.start()
        try:
            self.program = self.wait(self._start(settings))
        except BaseException:
            self._end_loop()
            raise

    @property
    def http_port(self) -> int:
        """Return the port of server mode, where a test has one."""
        (port,) = self.program._ports.bound.values()
        return port

    @property
    def admin_port(self) -> int | None:
        """Return the admin port, where a test has one."""
        return self.program._admin.port

    def wait(self, work: Coroutine[Any, Any, T], seconds: float = 3 * SECONDS) -> T:
        """Run a coroutine on the worker's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    @property
    def mqtt_url(self) -> str:
        """Return the address of the broker."""
        return self.broker.url

    @property
    def status_filter(self) -> str:
        """Return the filter of the topics with the status of routes."""
        return "bridge/+/workers/+/routes/+/status"

    def reload(self) -> None:
        """Read the route files again, and wait until they are in use."""
        self.wait(self.program.reload())

    def client(self, *filters: str) -> Client:
        """Connect a client with subscriptions."""
        client = Client(self.broker.client())
        client.subscribe(*filters)
        return client

    def stop(self) -> None:
        """Shut the worker down."""
        try:
            self.wait(self.program.stop())
        finally:
            self._end_loop()

    async def _start(self, settings: WorkerSettings) -> Program:
        address = parse_url(settings.broker)
        assert address is not None
        make = partial(Member, settings, FixedBroker(address))
        program = Program(settings, MqttPublisher(), make)
        try:
            await program.load()
            await program.start()
        except BaseException:
            await program.stop()
            raise
        return program

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def hosting(routes: str, **settings: Any) -> Iterator[Host]:
    """Run a broker, and a worker with the given route texts, until the block ends; the settings are the worker's."""
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name)) as broker:
        path = Path(name, "routes.lot")
        path.write_text(routes)
        quiet: dict[str, Any] = {"reload_seconds": 0, "status_seconds": 0, "slots": 1, "group": "plant"}
        worker = WorkerSettings(routes=str(path), broker=broker.url, **(quiet | settings))
        check_settings(worker)
        if worker.reload_seconds:
            await_server()
        host = Host(broker, worker)
        try:
            yield host
        finally:
            host.stop()
