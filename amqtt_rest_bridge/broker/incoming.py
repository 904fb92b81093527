"""Where the broker's messages come in: the dispatcher is offered each one on its way to amqtt's subscribers.

Status topics are guarded on that way too: the bridge alone publishes there. The broker's loop alone.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from amqtt.session import ApplicationMessage, Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.lossless import Lossless, Taken, taken_by
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.routing.status import STATUS_TOPICS
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0

class IncomingMessages:
    """Offer a broker's messages to the dispatcher, from the constructor on.

    amqtt 0.12.1 has no hook for last wills, `$SYS` and what plugins publish, and one task a message for the rest.
    All of them pass one step, after the ACL; retained messages sent on subscription do not.

    Args:
        broker: An amqtt broker whose constructor runs, or has run.
        plugin: What amqtt fires its hooks at.
        dispatcher: Is offered every message.
        publisher: The bridge's own, whose status may pass.
        lossless: Receives the packets of lossless routes; None without a spool.
    """

    def __init__(
        self, broker: Any, plugin: Any, dispatcher: Dispatcher, publisher: Publisher, lossless: Lossless | None
    ) -> None:
        self._broker = broker
        self._plugin = plugin
        self._dispatcher = dispatcher
        self._lossless = lossless
        is_forged = _Guard(publisher).is_forged
        amqtt_broker.replace_broadcast(broker, lambda forward: _observed(forward, dispatcher, publisher, is_forged))
        amqtt_broker.replace_retain(broker, lambda retain: _guarded(retain, is_forged))

    def use_packet_hook(self) -> None:
        """Look at packets before their PUBACK exactly while a route is lossless."""
        if self._lossless is not None:
            wanted = self._dispatcher.table.lossless is not None
            amqtt_broker.use_packet_hook(self._broker, self._plugin, self._lossless.on_packet, wanted=wanted)

    def remember(self, retained: ApplicationMessage) -> None:
        """Store a message that has just been retained, for read events to answer with."""
        if retained.data:
            self._dispatcher.remember(retained.topic, bytes(retained.data))

    def remember_retained(self) -> None:
        """Store what the broker has retained, for new read events to answer with."""
        for topic, message in list(self._broker.retained_messages.items()):
            self._dispatcher.remember(topic, bytes(message.data), only_new=True)


def _observed(
    forward: amqtt_broker.Step, dispatcher: Dispatcher, publisher: Publisher, is_forged: Callable[[str], bool]
) -> amqtt_broker.Step:
    offer = dispatcher.offer

    async def broadcast(session: Session | None, topic: str, data: bytes, force_qos: int | None = None) -> None:
        if session is None and is_forged(topic):  # no client gets as far with a `$` topic, nor does its will
            return
        if topic and data is not None:
            try:
                message = Message(topic, bytes(data), time.time())
                taken = taken_by(session, topic, data) if isinstance(data, Taken) else ()
                offer(message, hops=publisher.hops, taken=taken)
            except Exception:  # nothing of ours keeps a message from its subscribers
                log.exception("a message on %s was not looked at", loggable(topic))
        await forward(session, topic, data, force_qos)

    return broadcast


def _guarded(retain: amqtt_broker.Step, is_forged: Callable[[str], bool]) -> amqtt_broker.Step:
    async def guarded(
        source_session: Session | None, topic_name: str, data: bytes | None, qos: int | None = None
    ) -> None:
        if not (topic_name and is_forged(topic_name)):
            await retain(source_session, topic_name, data, qos)

    return guarded


class _Guard:
    """Recognise what others send on the topics of the routes' status."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._limit = LineLimit(_QUIET_SECONDS)

    def is_forged(self, topic: str) -> bool:
        if not topic.startswith(STATUS_TOPICS) or self._publisher.is_status:
            return False
        if self._limit.count():
            log.warning("not published on %s: the status of routes is published by the bridge alone", loggable(topic))
        return True
