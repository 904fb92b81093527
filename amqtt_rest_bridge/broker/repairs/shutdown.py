"""Defect, amqtt 0.12.1: a shutdown drops the messages that are on their way to subscribers.

It ends the connections of its clients at once, drops what it has acknowledged to them, and cancels what it is sending:
of 16 results 12 arrived. It also logs a stack trace for each message that a client has not read.

Mended: the plugin first waits until they have arrived (`Draining`). Meanwhile amqtt goes on reading, and one client
that sends all the time keeps the loop busy. While requests end it is read, for a packet may be the reply that one waits
for; then clients are read only for their acknowledgements. What clients do not read is dropped, with one line, and with
one for each publisher what is still not passed on.

Upstream: no issue is known.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.repairs import connections

log = logging.getLogger(__name__)

_PASS_SECONDS: Final = 1.0  # what acknowledged messages get to be passed on
_STUCK_SECONDS: Final = 1.0  # a delivery in which nothing moves for so long has a client that does not read
_LOOK_SECONDS: Final = 0.005
_UNREAD_SECONDS: Final = 0.05
_END_SECONDS: Final = 1.0  # what a delivery that was cancelled gets to end


def mend(broker: Any) -> None:
    """Drop what clients have not read before forwarding ends."""
    deliveries = amqtt_broker.deliveries(broker)

    def dropping_unread(end: amqtt_broker.Step) -> amqtt_broker.Step:
        async def drop_and_end() -> None:
            unread = [delivery for delivery in deliveries if not delivery.done()]
            for delivery in unread:
                deliveries.remove(delivery)  # first: forwarding goes on, and logs those that have failed
                delivery.cancel()
            if unread:
                ended, _ = await asyncio.wait(unread, timeout=_END_SECONDS)
                for delivery in ended:
                    delivery.cancelled() or delivery.exception()  # else asyncio logs that nothing has asked for it
                log.warning("%d message(s) are dropped: their clients had not read them at the shutdown", len(unread))
            await end()

        return drop_and_end

    amqtt_broker.replace(broker, amqtt_broker.Steps.END_FORWARDING, dropping_unread)


class Draining:
    """The shutdown of an amqtt broker until its sessions end.

    Args:
        broker: A broker whose constructor runs, or has run.
    """

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._own: amqtt_broker.Step | None = None

    def end(self) -> None:
        """Read clients as amqtt does: it may be started again."""
        if self._own is not None:
            own, self._own = self._own, None
            amqtt_broker.replace_packet_event(self._broker, lambda _: own)

    async def passed_on(self, seconds: float = _PASS_SECONDS) -> None:
        """Wait until the messages that clients have published by now are passed on, for so many seconds at most."""
        deadline = asyncio.get_running_loop().time() + seconds
        last = [(one, one.passed + one.left) for one in connections.handlers(self._broker)]
        while asyncio.get_running_loop().time() < deadline and any(one.left and one.passed < end for one, end in last):
            await asyncio.sleep(_LOOK_SECONDS)

    async def delivered(self, waiting: Callable[[], int], seconds: float) -> int:
        """Wait until what waits for the broker, and what it was given, is delivered; return how much is not.

        Decision: with QoS 1 and 2 a message is delivered when its client has acknowledged it, with QoS 0 when it has
        been written to the socket. A client that does not read is waited for until nothing has moved for a second.
        """
        broker, loop = self._broker, asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._own = amqtt_broker.replace_packet_event(broker, _discarding)
        while waiting() and loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        await self.passed_on(min(_PASS_SECONDS, deadline - loop.time()))
        try:
            await asyncio.wait_for(amqtt_broker.forwarded(broker), max(0.0, deadline - loop.time()))
        except TimeoutError:
            under_way = [one for one in amqtt_broker.deliveries(broker) if not one.done()]
            return waiting() + amqtt_broker.queue_length(broker)() + len(under_way)
        begun = [one for one in amqtt_broker.deliveries(broker) if not one.done()]
        moved, before = loop.time(), (-1, -1)
        while loop.time() < min(deadline, moved + _STUCK_SECONDS):
            left = sum(not one.done() for one in begun), sum(size for size, _ in amqtt_broker.unsent(broker))
            if left == (0, 0):
                break
            if left != before:
                moved, before = loop.time(), left
            await asyncio.sleep(_LOOK_SECONDS)
        # Of QoS 0 what amqtt has written and the system has not taken: one message for each client, or more.
        unsent = sum(size > 0 and not waits for size, waits in amqtt_broker.unsent(broker))
        # A delivery that was cancelled is that of a client that has gone.
        failed = sum(not one.done() or (not one.cancelled() and one.exception() is not None) for one in begun)
        return waiting() + failed + unsent


def _discarding(fire: amqtt_broker.Step) -> amqtt_broker.Step:
    """Return the step between two packets of a client, in which packets are discarded.

    Decision: a message that comes once all requests have ended is not acknowledged, so that a publisher of QoS 1
    or 2 sends it again, where it would be lost.
    """

    async def fire_or_discard(event: Any, **arguments: Any) -> None:
        received = event is amqtt_broker.PACKET_RECEIVED and "session" in arguments
        if received and not amqtt_broker.ends_something(arguments["packet"]):
            # A client that has nothing to acknowledge is left unread.
            await asyncio.sleep(0 if arguments["session"].inflight_out else _UNREAD_SECONDS)
            raise amqtt_broker.DiscardedPacketError("the broker shuts down")
        await fire(event, **arguments)

    return fire_or_discard
