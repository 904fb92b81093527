"""Defects, amqtt 0.12.1, at the shutdown.

- Messages on their way to subscribers are dropped: amqtt ends the connections of its clients at once, drops messages
  that it has acknowledged, and cancels deliveries. It also logs a stack trace for each message that a client has not
  read. Mended: the plugin first waits for deliveries (`Draining`). While HTTP requests still run, clients are read as
  usual, since a packet may be the reply that a request waits for. After that only acknowledgements and DISCONNECT are
  read, so that a client that sends without a pause does not keep the loop busy. In the end, the log has one line about
  messages that clients have not read, and one line for each publisher whose acknowledged messages are dropped.
- Before Python 3.12 a client that sends without a pause keeps the broker from shutting down. amqtt cancels the task
  that reads its connection, and waits for the end of that task. The task is in `asyncio.wait_for`, which loses a
  cancellation that comes together with a packet (https://github.com/python/cpython/issues/86296). Mended: the
  connection is aborted, and the task is cancelled again, until it ends.

Upstream: no issue is known.
"""

import asyncio
import logging
from collections.abc import Sized
from typing import Any, Final

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.repairs import connections

log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 0.05  # how long the task that reads may take to end
_PASS_SECONDS: Final = 1.0  # how long acknowledged messages may take to be passed on
_STUCK_SECONDS: Final = 1.0  # without progress for so long, the clients that are left count as not reading
_LOOK_SECONDS: Final = 0.005
_UNREAD_SECONDS: Final = 0.05  # between two packets of a client that has nothing to acknowledge
_END_SECONDS: Final = 1.0  # how long a cancelled delivery may take to end


def mend(broker: Any) -> None:
    """Abort connections that are read while amqtt stops them, and cancel unread deliveries before forwarding ends."""
    deliveries = amqtt_broker.deliveries(broker)

    async def drop_unread_and_end() -> None:
        unread = [delivery for delivery in deliveries if not delivery.done()]
        for delivery in unread:
            deliveries.remove(delivery)  # before it fails: forwarding still runs, and logs failed deliveries
            delivery.cancel()
        if unread:
            ended, _ = await asyncio.wait(unread, timeout=_END_SECONDS)
            for delivery in ended:
                delivery.cancelled() or delivery.exception()  # retrieved, else asyncio logs it
            log.warning("%d message(s) are dropped: their clients had not read them at the shutdown", len(unread))
        await end_forwarding()

    async def stop_reading(handler: Any) -> None:
        stopping = asyncio.ensure_future(stop(handler))
        try:
            while not (await asyncio.wait((stopping,), timeout=_STOP_SECONDS))[0]:
                amqtt_broker.end_reading(handler)
        finally:
            stopping.cancel()
        await stopping

    end_forwarding = amqtt_broker.replace(broker, amqtt_broker.Steps.END_FORWARDING, drop_unread_and_end)
    stop = amqtt_broker.replace(broker, amqtt_broker.Steps.STOP_HANDLER, stop_reading)


class Draining:
    """Waits at the shutdown of an amqtt broker for messages and results, before amqtt ends its sessions.

    Args:
        broker: A broker whose constructor runs, or has run.
    """

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._own: amqtt_broker.Step | None = None  # amqtt's step for packets, while it is replaced

    def end(self) -> None:
        """Read clients as usual again, since a broker can be started again after its shutdown."""
        if self._own is not None:
            amqtt_broker.replace_packet_event(self._broker, self._own)
            self._own = None

    async def passed_on(self, seconds: float = _PASS_SECONDS) -> None:
        """Wait until the messages that clients have published so far are passed on, for `seconds` at most."""
        deadline = asyncio.get_running_loop().time() + seconds
        last = [(one, one.messages_passed + one.messages_left) for one in connections.handlers(self._broker)]
        while asyncio.get_running_loop().time() < deadline and any(
            one.messages_left and one.messages_passed < end for one, end in last
        ):
            await asyncio.sleep(_LOOK_SECONDS)

    async def delivered(self, waiting: Sized, seconds: float) -> int:
        """Wait until the bridge's publications and the broker's messages are delivered; return how many are not.

        With QoS 1 and 2 a message is delivered when its client has acknowledged it, with QoS 0 when it has
        been written to the socket. The wait ends early when no delivery has made progress for a second.

        Args:
            waiting: The publications of the bridge that were not given to the broker yet.
            seconds: How long to wait at most.
        """
        broker, loop = self._broker, asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if self._own is None:
            self._own = amqtt_broker.replace_packet_event(broker, self.fire_or_discard)
        while len(waiting) and loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        await self.passed_on(min(_PASS_SECONDS, deadline - loop.time()))
        try:
            await asyncio.wait_for(amqtt_broker.forwarded(broker), max(0.0, deadline - loop.time()))
        except TimeoutError:
            under_way = [one for one in amqtt_broker.deliveries(broker) if not one.done()]
            return len(waiting) + amqtt_broker.queue_length(broker)() + len(under_way)
        begun = [one for one in amqtt_broker.deliveries(broker) if not one.done()]
        moved, before = loop.time(), (-1, -1)
        while loop.time() < min(deadline, moved + _STUCK_SECONDS):
            left = sum(not one.done() for one in begun), sum(size for size, _ in amqtt_broker.unsent(broker))
            if left == (0, 0):
                break
            if left != before:
                moved, before = loop.time(), left
            await asyncio.sleep(_LOOK_SECONDS)
        # QoS 0: amqtt has written it, and the kernel has not taken it. Counted as one message for each client.
        unsent = sum(size > 0 and not waits for size, waits in amqtt_broker.unsent(broker))
        # A cancelled delivery does not count: its client has gone.
        failed = sum(not one.done() or (not one.cancelled() and one.exception() is not None) for one in begun)
        return len(waiting) + failed + unsent

    async def fire_or_discard(self, event: Any, **arguments: Any) -> None:
        """Discard the packets of clients, except acknowledgements and DISCONNECT.

        A message that comes after all requests have ended is not acknowledged. It would be lost; so a publisher with
        QoS 1 or 2 sends it again after the start.
        """
        received = event is amqtt_broker.PACKET_RECEIVED and "session" in arguments
        if received and not amqtt_broker.ends_something(arguments["packet"]):
            # The reader of this client waits here. A client that has something to acknowledge is read without a pause.
            await asyncio.sleep(0 if arguments["session"].inflight_out else _UNREAD_SECONDS)
            raise amqtt_broker.DiscardedPacketError("the broker shuts down")
        if self._own is not None:
            await self._own(event, **arguments)
