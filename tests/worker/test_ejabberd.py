"""What workers rely on where sessions move between the nodes of a cluster: two real ejabberd nodes.

ejabberd has no shared subscriptions, without which a worker does not start; its connections and clients do here.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.reconnecting import ConnectionUser, ReconnectingClient
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Address, ClientSession, Subscription
from tests.support.fixed_broker import FixedBroker
from tests.worker.ejabberd import PASSWORD, USER, Ejabberd
from tests.worker.test_start import reason_of, run

pytestmark = pytest.mark.ejabberd
SESSION = ClientSession("plant-0", 3600, 100)


class Taker(ConnectionUser):
    """Messages, which are acknowledged when a test says so."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[tuple[MqttConnection, Publish]] = asyncio.Queue()

    def receive(self, connection: MqttConnection, received: Publish) -> None:
        self._received.put_nowait((connection, received))

    async def connected(self, connection: MqttConnection) -> None:
        await connection.subscribe([Subscription("killed", 7)])

    async def next(self) -> tuple[MqttConnection, Publish, int]:
        """Return the next message, its connection and its packet id."""
        on, received = await asyncio.wait_for(self._received.get(), 10)
        assert received.packet_id is not None
        return on, received, received.packet_id

    async def acknowledged(self, count: int) -> list[bytes]:
        """Acknowledge the next messages, so many of them, and return their payloads."""
        payloads = []
        for _ in range(count):
            on, received, packet_id = await self.next()
            on.acknowledge(packet_id)
            payloads.append(received.payload)
        return payloads


@contextlib.asynccontextmanager
async def connected(where: Address, session: ClientSession) -> AsyncIterator[tuple[MqttConnection, Taker]]:
    """Connect, and close the socket in the end."""
    taker = Taker()
    connection = MqttConnection(where, session, taker.receive)
    await connection.open()
    try:
        yield connection, taker
    finally:
        connection.abort()


async def publish(on: MqttConnection, *payloads: bytes, topic: str = "in") -> None:
    """Publish, and wait for the acknowledgements."""
    for payload in payloads:
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        on.publish(topic, payload, done.set_result)
        assert await asyncio.wait_for(done, 10) is None


async def next_second() -> None:
    """Wait until what follows is of another second.

    ejabberd 23.01 orders connections of a client id at different nodes by whole seconds: within one, either may win.
    """
    now = int(time.time())
    while int(time.time()) == now:
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ejabberd]:
    """Two nodes, which serve the tests of this file; the last test kills one."""
    with Ejabberd(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


def address(cluster: Ejabberd, host: str) -> Address:
    return Address(host, cluster.port, USER, PASSWORD, None, host)


def test_a_worker_ends_at_its_start_with_one_line_since_there_are_no_shared_subscriptions(
    tmp_path: Path, cluster: Ejabberd
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    url = f"mqtt://{USER.replace('@', '%40')}@{cluster.hosts[0]}:{cluster.port}"
    ended = run(tmp_path, broker=url, secrets_dir=str(tmp_path), password_secret="password")
    assert reason_of(ended) == f"the broker mqtt://127.0.0.1:{cluster.port} does not support shared subscriptions"


def test_a_client_id_that_connects_at_another_node_takes_the_session_and_what_was_not_acknowledged(
    cluster: Ejabberd,
) -> None:
    async def use() -> None:
        a, b = (address(cluster, host) for host in cluster.hosts)
        async with contextlib.AsyncExitStack() as stack:
            publisher, _ = await stack.enter_async_context(connected(b, ClientSession("publisher", 0, 10)))
            old, at_old = await stack.enter_async_context(connected(a, SESSION))
            await old.subscribe([Subscription("in", 7)])
            await publish(publisher, b"done", b"first", b"second")
            assert await at_old.acknowledged(1) == [b"done"]
            _, first, packet_id = await at_old.next()
            assert (first.payload, first.duplicate) == (b"first", False)
            assert first.properties[Property.SUBSCRIPTION_IDENTIFIER] == [7]

            await next_second()
            new, at_new = await stack.enter_async_context(connected(b, SESSION))
            assert new.granted.session_present
            assert (await old.ended()).startswith("Session taken over")
            _, again, packet_id_again = await at_new.next()
            assert (again.payload, packet_id_again, again.duplicate) == (b"first", packet_id, True)
            old.acknowledge(packet_id)  # the session has moved: this reaches nothing
            await publish(publisher, b"third")
            new.abort()
            await publish(publisher, b"fourth")  # while the session has no connection

            await next_second()
            back, at_back = await stack.enter_async_context(connected(a, SESSION))
            assert back.granted.session_present
            assert await at_back.acknowledged(4) == [b"first", b"second", b"third", b"fourth"]
            await back.disconnect()

            await next_second()
            _, at_last = await stack.enter_async_context(connected(b, SESSION))
            await publish(publisher, b"fifth")
            assert await at_last.acknowledged(1) == [b"fifth"]  # what was acknowledged does not come again

    asyncio.run(asyncio.wait_for(use(), 60))


def test_a_client_of_a_killed_node_goes_on_at_the_other_one_and_only_what_its_session_held_is_lost(
    cluster: Ejabberd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name has the addresses of both nodes: a connection tries them in their order."""
    resolve = socket.getaddrinfo

    def both(host: Any, *more: Any, **options: Any) -> Any:
        hosts = cluster.hosts if host == "nodes.example" else [host]
        return [found for one in hosts for found in resolve(one, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    # It has no shared subscriptions: plain ones are tried here.
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.reconnecting.lacking_of", lambda _: None)

    async def use() -> None:
        b = address(cluster, cluster.hosts[1])
        at_killed = Taker()
        session = ClientSession("plant-2", 3600, 100)
        client = ReconnectingClient(FixedBroker(address(cluster, "nodes.example")), session, at_killed)
        await client.open()
        async with (
            connected(b, ClientSession("publisher", 0, 10)) as (publisher, _),
            connected(b, ClientSession("plant-3", 3600, 100)) as (other, at_other),
        ):
            await at_other.connected(other)
            await publish(publisher, b"before", topic="killed")
            await at_killed.next()
            running = asyncio.ensure_future(client.run())
            await next_second()
            cluster.kill(0)
            while "plant-2 is connected again" not in caplog.messages:
                await asyncio.sleep(0.01)
            await publish(publisher, b"after", topic="killed")
            assert await at_killed.acknowledged(1) == [b"after"]
            assert await at_other.acknowledged(2) == [b"before", b"after"]
            running.cancel()
            await client.close()

    with caplog.at_level("INFO"):
        asyncio.run(asyncio.wait_for(use(), 60))
    assert "the broker has forgotten the session of plant-2 and what it kept for it" in caplog.messages
