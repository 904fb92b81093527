"""Messages are forwarded in order, and no subscriber or topic plugin delays the messages of others."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from amqtt.contexts import Action
from amqtt.plugins.base import BaseTopicPlugin

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.commands import SERVER_ROUTE
from tests.support.embedded_broker import Host, hosting
from tests.support.publishing import numbered, packets
from tests.support.waiting import SECONDS

COUNT = 200
LARGE = bytes(4_000_000)  # more than the buffers of two sockets hold


class Failing(BaseTopicPlugin):
    """An ACL that raises when messages of two topics are sent to subscribers."""

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Action | None = None
    ) -> bool:
        if action is Action.RECEIVE and topic == "failing":
            raise ValueError("no answer")
        if action is Action.RECEIVE and topic == "cancelled":
            raise asyncio.CancelledError
        return True


@pytest.fixture(scope="module")
def shared() -> Iterator[Host]:
    with hosting(SERVER_ROUTE) as host:
        yield host


def connect(host: Host, name: str, *subscribed: str, qos: int = 0, **options: Any) -> Wire:
    wire = Wire(host.mqtt_port, name, timeout=SECONDS, **options)
    for topic_filter in subscribed:
        wire.subscribe(topic_filter, qos)
    return wire


def received(wire: Wire, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) < count:
        payloads += [payload for _, payload in wire.messages()]
    return payloads


def iterations(host: Host, count: int) -> int:
    """Queue `count` messages at once; return in how many iterations of the loop they are forwarded."""

    async def forward() -> int:
        for number in range(count):
            await host.broker.internal_message_broadcast(f"unheard/{number}", b"")
        passed = 0
        while not host.broker._broadcast_queue.empty():
            await asyncio.sleep(0)
            passed += 1
        return passed

    return host.wait(forward())


@pytest.mark.parametrize("senders", [1, 8])
def test_each_subscriber_gets_the_messages_of_a_sender_in_their_order(shared: Host, senders: int) -> None:
    subscribers = [connect(shared, f"qos-{qos}", "from/+", qos=qos) for qos in (0, 1)]
    sending = [connect(shared, f"sender-{number}") for number in range(senders)]
    for number, wire in enumerate(sending):
        wire.send(packets(numbered(COUNT), qos=0, topic=f"from/{number}"))
    for subscriber in subscribers:
        by_topic: dict[str, list[bytes]] = {}
        while sum(map(len, by_topic.values())) < senders * COUNT:
            for topic, payload in subscriber.messages():
                by_topic.setdefault(topic, []).append(payload)
        assert list(by_topic.values()) == senders * [numbered(COUNT)]
    for wire in (*sending, *subscribers):
        wire.close()


def test_subscribers_that_are_slow_read_nothing_or_vanish_delay_no_others(shared: Host) -> None:
    slow = connect(shared, "slow", "news")
    unread = [connect(shared, f"unread-{qos}", "news", qos=qos) for qos in (0, 1, 2)]
    vanishing, reading = (connect(shared, name, "news", qos=1) for name in ("vanishing", "reading"))
    sender = connect(shared, "sender")
    for number, payload in enumerate(numbered(COUNT)):
        sender.send(publish_packet("news", payload + bytes(100_000)))
        if number == COUNT // 2:
            shared.cut_off(vanishing.sock, "vanishing")
        if not number % 20:
            slow.receive()
        (message,) = received(reading, 1)
        assert message.startswith(payload)
    assert shared.broker._tasks_queue, "all have read everything"
    for wire in unread:
        wire.sock.close()
    for wire in (slow, sender, reading):
        wire.close()


def test_a_client_that_gets_retained_messages_stays_connected_when_others_subscribe(shared: Host) -> None:
    for number in range(3):
        shared.wait(shared.broker.retain_message(None, f"kept/{number}", LARGE))
    watching = shared.client("kept/#")
    watching.messages(3)
    for time in ("first", "second"):  # amqtt sends a client that is back what is retained for its filters
        client = connect(shared, "again", login=("ann", ""), clean=False)
        if time == "first":
            client.subscribe("kept/#")
        shared.client("other", f"the {time} time")
        for _ in range(3):
            client.expect(0x30)
        client.subscribe("own")
        client.close()


def test_a_topic_plugin_that_fails_loses_that_message_only(caplog: pytest.LogCaptureFixture) -> None:
    with hosting(SERVER_ROUTE, {f"{__name__}.Failing": {}}) as host:
        client = connect(host, "ann", "failing", "cancelled", "other")
        for topic in ("failing", "cancelled", "failing", "other"):
            client.send(publish_packet(topic, topic.encode()))
        assert received(client, 1) == [b"other"]
        client.close()
        assert iterations(host, 300) <= 300, "amqtt's own loop forwards"
    (record,) = (one for one in caplog.records if "did not reach all subscribers" in one.message)
    assert record.exc_info is not None


def test_a_long_queue_leaves_the_loop_to_others(shared: Host) -> None:
    assert iterations(shared, 20_000) > 20, "one for each millisecond"


def test_deliveries_that_fail_are_logged_in_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise TimeoutError("no PUBACK")

    async def deliver(host: Host) -> None:
        for _ in range(3):
            host.broker._tasks_queue.append(asyncio.ensure_future(fail()))  # type: ignore[arg-type]

    with hosting(SERVER_ROUTE) as host:
        host.wait(deliver(host))
        client = connect(host, "ann", "any")
        for _ in range(3):
            client.send(publish_packet("any", b""))
            received(client, 1)
        client.close()
    (line,) = (one for one in caplog.records if "did not reach a client" in one.message)
    message = "1 message(s) did not reach a client, the last one: no PUBACK"
    assert (line.levelno, line.message) == (logging.WARNING, message)


def test_a_broker_that_is_started_again_forwards() -> None:
    with hosting(SERVER_ROUTE) as host:
        host.wait(host.broker.shutdown())
        host.wait(host.broker.start())
        client = connect(host, "ann", "any")
        client.send(publish_packet("any", b"x"))
        assert received(client, 1) == [b"x"]
        client.close()
