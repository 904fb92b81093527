"""What passes through amqtt to the subscribers: the dispatcher sees it; status topics are the bridge's own."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.lossless import taken_by
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.routing.dispatcher import Dispatcher
from amqtt_rest_bridge.routing.status import STATUS_TOPICS
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0


def observe(broker: Any, dispatcher: Dispatcher, publisher: Publisher) -> None:
    """See every message on its way to the subscribers, and keep all but our own off the status topics.

    amqtt 0.12.1 has no hook for last wills, `$SYS` and what plugins publish, and one task a message for the rest.
    All of them pass one step, after the ACL; retained messages sent on subscription do not.
    """
    offer = dispatcher.offer
    is_forged = _Guard(publisher).is_forged

    def observed(forward: amqtt_broker.Step) -> amqtt_broker.Step:
        async def broadcast(session: Session | None, topic: str, data: bytes, force_qos: int | None = None) -> None:
            if session is None and is_forged(topic):  # no client gets as far with a `$` topic, nor does its will
                return
            if topic and data is not None:
                try:
                    message = Message(topic, bytes(data), time.time())
                    offer(message, hops=publisher.hops, taken=taken_by(session, topic, data))
                except Exception:  # nothing of ours keeps a message from its subscribers
                    log.exception("a message on %s was not looked at", loggable(topic))
            await forward(session, topic, data, force_qos)

        return broadcast

    amqtt_broker.replace_broadcast(broker, observed)
    broker.retain_message = _guarded(broker.retain_message, is_forged)


Retain = Callable[..., Awaitable[None]]


def _guarded(retain: Retain, is_forged: Callable[[str], bool]) -> Retain:
    async def guarded(
        source_session: Session | None, topic_name: str, data: bytes | None, qos: int | None = None
    ) -> None:
        if not (topic_name and is_forged(topic_name)):
            await retain(source_session, topic_name, data, qos)

    return guarded


class _Guard:
    """Tell what others send on the topics of the routes' status."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._logged = -_QUIET_SECONDS

    def is_forged(self, topic: str) -> bool:
        if not topic.startswith(STATUS_TOPICS) or self._publisher.is_status:
            return False
        now = time.monotonic()
        if now - self._logged >= _QUIET_SECONDS:
            self._logged = now
            log.warning("not published on %s: the status of routes is published by the bridge alone", loggable(topic))
        return True
