"""Clients that subscribe or leave while amqtt loops over the subscriptions break no connection and lose no message."""

import asyncio
import threading
from typing import Any

from amqtt.contexts import Action
from amqtt.plugins.base import BaseTopicPlugin

from tests.benchmarks.mqtt_wire import Wire
from tests.support.commands import SERVER_ROUTE
from tests.support.embedded_broker import hosting

LARGE = bytes(4_000_000)  # more than the buffers of two sockets hold


class Asking(BaseTopicPlugin):
    """An ACL that answers about the first delivery of `news` once `may` is set."""

    asked = threading.Event()
    may = threading.Event()

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Action | None = None
    ) -> bool:
        if action is Action.RECEIVE and topic == "news" and not self.asked.is_set():
            self.asked.set()
            await asyncio.to_thread(self.may.wait, 30)
        return True


def test_a_client_that_gets_retained_messages_stays_connected_when_others_subscribe() -> None:
    with hosting(SERVER_ROUTE) as host:
        for number in range(3):
            host.wait(host.broker.retain_message(None, f"kept/{number}", LARGE))
        watching = host.client("kept/#")
        watching.messages(3)
        for time in ("first", "second"):  # amqtt sends a client that is back what is retained for its filters
            client = Wire(host.mqtt_port, "again", timeout=10, login=("ann", ""), clean=False)
            if time == "first":
                client.subscribe("kept/#")
            host.client("other", f"the {time} time")
            for _ in range(3):
                client.expect(0x30)
            client.subscribe("own")
            client.close()


def test_a_message_reaches_all_its_subscribers_when_others_come_and_go_meanwhile() -> None:
    with hosting(SERVER_ROUTE, {f"{__name__}.Asking": {}}) as host:
        subscribers = {name: Wire(host.mqtt_port, name, timeout=10) for name in ("leaving", "other", "last")}
        for subscriber in subscribers.values():
            subscriber.subscribe("news")
        subscribers["last"].subscribe("+")
        publisher = host.client()
        publisher.publish("news", b"x")
        assert Asking.asked.wait(30)
        host.client("other/filter")
        subscribers["leaving"].send(b"\xa2\x08\x00\x02\x00\x04news")  # UNSUBSCRIBE
        subscribers["leaving"].expect(0xB0)
        Asking.may.set()
        assert subscribers["other"].messages() == [("news", b"x")]
        received: list[tuple[str, bytes]] = []
        while len(received) < 2:  # by both filters
            received += subscribers["last"].messages()
        assert received == [("news", b"x")] * 2
        for subscriber in subscribers.values():
            subscriber.close()
