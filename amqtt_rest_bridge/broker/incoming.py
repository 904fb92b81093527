"""Each message that amqtt broadcasts enters here, and is offered to the endpoint. The broker's loop only."""

import logging
from collections.abc import Iterator
from typing import Any, Final

from amqtt.session import ApplicationMessage, Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.amqtt_broker import Steps
from amqtt_rest_bridge.broker.endpoint import PrivateEndpoint
from amqtt_rest_bridge.broker.lossless import Lossless, TakenPayload, taken_by
from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.engine.status_reporter import STATUS_TOPICS
from amqtt_rest_bridge.mqtt.private import ENDPOINT_TOPICS, REPLAYING, replayed_time
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0


class IncomingMessages:
    """Offers a broker's messages to the endpoint of its bridge, and refuses others on the topics of the bridge.

    Every message passes amqtt's step `BROADCAST`, after the ACL: those of clients and plugins, last wills and `$SYS`.
    (Retained messages that a client gets when it subscribes do not pass it.) The step is replaced, since amqtt 0.12.1
    has hooks only for the messages of clients, and runs these in a task for each message.

    Args:
        broker: An amqtt broker whose constructor runs, or has run.
        plugin: Gets the hook of `lossless`; amqtt looks for hooks once all plugins are constructed.
        endpoint: Is offered every message.
        publisher: Publishes for the bridge; knows whether the present message is the bridge's own.
        lossless: Keeps messages before their PUBACK; None without a spool.
    """

    def __init__(
        self, broker: Any, plugin: Any, endpoint: PrivateEndpoint, publisher: Publisher, lossless: Lossless | None
    ) -> None:
        self._broker = broker
        self._endpoint = endpoint
        self._publisher = publisher
        self._refusal_warnings = LineLimit(_QUIET_SECONDS)
        self.own_topics: tuple[str, ...] = (STATUS_TOPICS, ENDPOINT_TOPICS)
        """Beginnings of topics; only the bridge may publish on these topics."""
        self._broadcast_as_amqtt = amqtt_broker.replace(broker, Steps.BROADCAST, self.broadcast)
        self._retain_as_amqtt = amqtt_broker.replace(broker, Steps.RETAIN, self.retain)
        if lossless is not None:
            plugin.on_mqtt_packet_received = lossless.on_packet

    def offer_retained(self, message: ApplicationMessage) -> None:
        """Offer the endpoint a message that a plugin has retained; a plugin can do this without publishing it."""
        if message.data:
            self._endpoint.offer_retained(message.topic, bytes(message.data))

    # What amqtt calls.

    async def broadcast(self, session: Session | None, topic: str, data: bytes, force_qos: int | None = None) -> None:
        """Offer a message to the endpoint, then pass it on."""
        # Messages of plugins have no session. amqtt has already refused messages and wills of clients on `$` topics.
        if session is None and topic.startswith(self.own_topics) and self._is_forged(topic):
            return
        if topic and data is not None:
            try:
                taken = taken_by(session, topic, data) if isinstance(data, TakenPayload) else ()
                is_replayed = session is not None and session.client_id and session.client_id.startswith(REPLAYING)
                first = replayed_time(session.client_id) if session is not None and is_replayed else None
                self._endpoint.offer(topic, bytes(data), self._publisher.hops, taken, first)
            except Exception:  # an error of the bridge must not keep a message from its subscribers
                log.exception("a message on %s was not looked at", loggable(topic))
        if force_qos is None:
            await self._broadcast_as_amqtt(session, topic, data)
        else:  # amqtt would use `force_qos` even for clients that have subscribed with a lower QoS [MQTT-3.8.4-6]
            amqtt_broker.broadcast_at_most(self._broker, session, topic, data, force_qos)

    async def retain(
        self, source_session: Session | None, topic_name: str, data: bytes | None, qos: int | None = None
    ) -> None:
        """Retain a message, unless only the bridge may publish on its topic."""
        if not (topic_name and topic_name.startswith(self.own_topics) and self._is_forged(topic_name)):
            await self._retain_as_amqtt(source_session, topic_name, data, qos)

    def _is_forged(self, topic: str) -> bool:
        """Return whether a message on a topic of the bridge comes from somewhere else."""
        if self._publisher.is_own:
            return False
        if self._refusal_warnings.count():
            log.warning("not published on %s: this is published by the bridge alone", loggable(topic))
        return True


def retained_messages(broker: Any) -> Iterator[tuple[str, bytes]]:
    """Return topic and payload of each message that a broker retains at present."""
    return ((topic, bytes(message.data)) for topic, message in list(broker.retained_messages.items()))
