"""A broker with the bridge, embedded in a test: real sockets, free ports, a real MQTT client.

    with hosting(routes) as host:
        client = host.client("out/#")
        client.publish("in", b"payload")
        assert client.message() == ("out", b"...")

The broker runs on a loop of its own in a thread, so tests are plain functions that wait for messages.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from amqtt.broker import Broker
from amqtt.client import MQTTClient

from amqtt_rest_bridge.bridge import Program
from amqtt_rest_bridge.broker.bridge_child import BridgeChild, Spawn
from amqtt_rest_bridge.broker.repairs import connections, traffic
from amqtt_rest_bridge.plugin import RestBridgePlugin
from amqtt_rest_bridge.plugin_bridge import BridgeTasks
from amqtt_rest_bridge.supervised_tasks import Times
from tests.support.forked import ForkedBridge, await_server
from tests.support.waiting import SECONDS, eventually

T = TypeVar("T")

ANONYMOUS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
PLUGIN = "amqtt_rest_bridge.plugin.RestBridgePlugin"


class Client:
    """An MQTT client whose calls block."""

    def __init__(self, host: "Host", client: MQTTClient) -> None:
        self._host = host
        self._client = client

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish, and with QoS 1 wait for the PUBACK."""
        self._host.wait(self._client.publish(topic, payload, qos=qos, retain=retain))

    def subscribe(self, *filters: str) -> None:
        """Subscribe and wait for the SUBACK."""
        self._host.wait(self._client.subscribe([(topic_filter, 1) for topic_filter in filters]))

    def message(self, seconds: float = SECONDS) -> tuple[str, bytes]:
        """Wait for the next message."""
        message = self._host.wait(self._client.deliver_message(timeout_duration=seconds))
        assert message is not None
        return message.topic, bytes(message.data)

    def messages(self, count: int) -> list[tuple[str, bytes]]:
        """Wait for so many messages."""
        return [self.message() for _ in range(count)]

    def disconnect(self) -> None:
        """Send DISCONNECT and close."""
        self._host.wait(self._client.disconnect())

    def abort(self) -> None:
        """Close a connection that amqtt's client has left open, as it can when the broker ends first."""
        writer = getattr(self._client._handler, "writer", None)
        if writer is not None and not writer._writer.transport.is_closing():
            writer._writer.transport.abort()


class Host:
    """A running broker; `plugin` is its bridge if it has one, `mqtt_port` where its clients connect.

    `path` is the route file that `hosting` has written.
    """

    path: Path

    def __init__(self, config: dict[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")
        self._thread.start()
        self._clients: list[Client] = []
        try:
            self.broker: Broker = self.wait(self._start(config))
        except BaseException:
            self._end_loop()
            raise

    @property
    def plugin(self) -> RestBridgePlugin:
        """Return the bridge of this broker."""
        plugin = self.broker.plugins_manager.get_plugin("RestBridgePlugin")
        assert isinstance(plugin, RestBridgePlugin)
        return plugin

    @property
    def program(self) -> Program:
        """Return the bridge of this broker, where it runs in the broker's loop (`processes: 0`)."""
        bridge = self.plugin.bridge
        assert isinstance(bridge, BridgeTasks)
        return bridge.program

    @property
    def child(self) -> BridgeChild:
        """Return the bridge process of this broker."""
        bridge = self.plugin.bridge
        assert isinstance(bridge, BridgeChild)
        return bridge

    @property
    def mqtt_port(self) -> int:
        """Return the port of the broker's first listener."""
        return self.port_of("default")

    def port_of(self, listener: str) -> int:
        """Return the port of a listener."""
        server = self.broker._servers[listener].instance
        return int(server.sockets[0].getsockname()[1])  # type: ignore[index]

    @property
    def http_port(self) -> int:
        """Return the port of server mode, where a test has one."""
        (port,) = self.plugin.server_ports.values()
        return port

    @property
    def admin_port(self) -> int | None:
        """Return the admin port, where a test has one."""
        return self.plugin.admin_port

    @property
    def mqtt_url(self) -> str:
        """Return the address of the broker."""
        return f"mqtt://127.0.0.1:{self.mqtt_port}"

    @property
    def status_filter(self) -> str:
        """Return the filter of the topics with the status of routes."""
        return "$SYS/broker/routes/+/status"

    def reload(self) -> None:
        """Read the route files again, and wait until they are in use."""
        self.wait(self.plugin.bridge.reload())

    def kill_bridge(self) -> None:
        """Kill the bridge process, and wait until the next one has subscribed and serves its ports."""
        ready = self.plugin.endpoint.ready
        os.kill(self.child.pid or 0, signal.SIGKILL)
        eventually(lambda: not ready.is_set(), "the broker does not notice")
        eventually(ready.is_set, "the bridge does not come back")

    def cut_off(self, sock: socket.socket, client_id: str) -> None:
        """Cut a client's connection off and wait until the broker is done with it."""
        with self.ending(client_id):
            sock.close()

    @contextlib.contextmanager
    def ending(self, client_id: str) -> Iterator[None]:
        """Wait, behind the block, until the broker is done with the connection that a client has before."""
        session, handler = self.broker._sessions[client_id]
        yield
        eventually(
            lambda: not session.transitions.is_connected() and handler not in connections.handlers(self.broker),
            "the broker does not notice",
        )

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop the broker's loop during the block: all that comes meanwhile has come at once."""
        goes_on = threading.Event()
        self._loop.call_soon_threadsafe(goes_on.wait, SECONDS)
        try:
            yield
        finally:
            goes_on.set()

    def begin(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Run a coroutine on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T], seconds: float = 3 * SECONDS) -> T:
        """Run a coroutine on the broker's loop and wait for it."""
        future = self.begin(work)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def client(self, *filters: str) -> Client:
        """Connect a client with subscriptions."""
        client = Client(self, self.wait(self._connect()))
        self._clients.append(client)
        if filters:
            client.subscribe(*filters)
        return client

    def stop(self) -> None:
        """Disconnect the clients and shut the broker down."""
        try:
            for client in self._clients:
                client.disconnect()
            self.wait(self.broker.shutdown())
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self.wait(_end_tasks(self._clients), SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self) -> MQTTClient:
        # amqtt 0.12.1 makes an event loop for a client that is made outside of one, and never closes it.
        mqtt = MQTTClient(config={"auto_reconnect": False})
        await mqtt.connect(f"mqtt://127.0.0.1:{self.mqtt_port}")
        return mqtt

    @staticmethod
    async def _start(config: dict[str, Any]) -> Broker:
        broker = Broker(config)
        await broker.start()
        return broker


async def _end_tasks(clients: Iterable[Client]) -> None:
    """End what still runs, as `asyncio.run` does, so that closed connections are closed before their loop is."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        client.abort()
    for _ in range(3):  # a transport is closed an iteration after it was told to
        await asyncio.sleep(0)


def configuration(
    routes: Path | str, plugins: dict[str, Any] | None = None, *,
    times: Times | None = None, spawn: Spawn = ForkedBridge, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a broker's configuration with the bridge; by default the bridge runs in its loop (`processes: 0`).

    `times` and `spawn` are those of the next broker that is started with it.
    """
    bridge = {"routes": str(routes), "processes": 0, "reload_seconds": 0, "status_seconds": 0, **settings}
    if bridge["processes"] or bridge["reload_seconds"]:
        await_server()
    members = {"spawn": staticmethod(spawn), "times": times or Times()}
    globals()["Handed"] = type("RestBridgePlugin", (RestBridgePlugin,), members)  # amqtt asks for a name
    plugin = f"{__name__}.Handed"
    return {
        "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}},
        "plugins": ANONYMOUS | (plugins or {}) | {plugin: bridge},
    }


@contextlib.contextmanager
def plain_broker() -> Iterator[Host]:
    """Run a broker without the bridge, which lets its clients subscribe at any time as one with it, until the end."""
    host = Host({"listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}}, "plugins": ANONYMOUS})
    traffic.mend(host.broker)
    try:
        yield host
    finally:
        host.stop()


@contextlib.contextmanager
def hosting(routes: str, plugins: dict[str, Any] | None = None, **settings: Any) -> Iterator[Host]:
    """Run a broker with the given route texts until the block ends; the settings are those of `configuration`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "routes.lot")
        path.write_text(routes)
        host = Host(configuration(path, plugins, **settings))
        host.path = path
        try:
            yield host
        finally:
            host.stop()
