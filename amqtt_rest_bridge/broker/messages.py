"""What amqtt and the bridge pass to each other: messages, and what the bridge publishes. The broker's loop only.

`IncomingMessages` offers the endpoint of the bridge what amqtt passes on, `Publisher` publishes what the bridge
publishes, and `Statuses` is what it publishes of the routes while the bridge cannot.
"""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from amqtt.session import ApplicationMessage, Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.amqtt_broker import Steps
from amqtt_rest_bridge.broker.lossless import Lossless, Taken, taken_by
from amqtt_rest_bridge.catalogue import BRIDGE_RESTARTED, INTERNAL_ERROR
from amqtt_rest_bridge.engine.statistics import RouteError
from amqtt_rest_bridge.engine.status import STATUS_TOPICS
from amqtt_rest_bridge.lot.model import Publication
from amqtt_rest_bridge.mqtt.private import ENDPOINT_TOPICS, REPLAYING, replayed_time
from amqtt_rest_bridge.times import LineLimit, rfc3339
from amqtt_rest_bridge.topics import check_topic_name, loggable

if TYPE_CHECKING:
    from amqtt_rest_bridge.broker.endpoint import Endpoint

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 1.0
# Between two publications, in iterations of the loop: one is forwarded in the first of them and written to its
# subscribers in the second, and the third is that of everybody else. A client, too, gets one message into the queue in
# about three, since amqtt takes so many from its packet to the queue.
_ITERATIONS: Final = 3
AWAY: Final = "the bridge is away, and being started again; until then messages wait"
_STATUS: Final = "/status"
_LAST: Final = b"last"  # in the place of a payload: that of the last status, once the publication has its turn

Delivered = Callable[[Callable[[], int], float], Awaitable[int]]
"""Wait for so many seconds at most until what waits, and what the broker was given, is delivered.

Takes the function that counts what waits; returns how many messages are not delivered.
"""


class IncomingMessages:
    """Offer a broker's messages to the endpoint of its bridge, and guard the topics that the bridge alone publishes on.

    amqtt 0.12.1 has no hook for last wills, `$SYS` and what plugins publish, and one task a message for the rest. All
    of them pass one step, after the ACL; retained messages sent on subscription do not.

    Args:
        broker: An amqtt broker whose constructor runs, or has run.
        plugin: What amqtt fires its hooks at; its hooks are looked for once all plugins are constructed.
        endpoint: Is offered every message.
        publisher: Publishes for the bridge, which may publish on its own topics.
        lossless: Takes packets before their PUBACK; None without a spool.
    """

    def __init__(
        self, broker: Any, plugin: Any, endpoint: "Endpoint", publisher: "Publisher", lossless: Lossless | None
    ) -> None:
        self._broker = broker
        self._endpoint = endpoint
        self._publisher = publisher
        self._forged = LineLimit(_QUIET_SECONDS)
        self.own_topics: tuple[str, ...] = (STATUS_TOPICS, ENDPOINT_TOPICS)
        """What the topics begin with on which the bridge alone publishes."""
        amqtt_broker.replace(broker, Steps.BROADCAST, self._observed)
        amqtt_broker.replace(broker, Steps.RETAIN, self._guarded)
        if lossless is not None:
            plugin.on_mqtt_packet_received = lossless.on_packet

    def retained(self, message: ApplicationMessage) -> None:
        """Take a message that a plugin has retained, which need not have been passed on."""
        if message.data:
            self._endpoint.retain(message.topic, bytes(message.data))

    def _observed(self, forward: amqtt_broker.Step) -> amqtt_broker.Step:
        offer, publisher, is_forged = self._endpoint.offer, self._publisher, self._is_forged

        async def broadcast(session: Session | None, topic: str, data: bytes, force_qos: int | None = None) -> None:
            # No client gets as far with a `$` topic, nor does its will.
            if session is None and topic.startswith(self.own_topics) and is_forged(topic):
                return
            if topic and data is not None:
                try:
                    taken = taken_by(session, topic, data) if isinstance(data, Taken) else ()
                    is_replayed = session is not None and session.client_id and session.client_id.startswith(REPLAYING)
                    first = replayed_time(session.client_id) if session is not None and is_replayed else None
                    offer(topic, bytes(data), publisher.hops, taken, first)
                except Exception:  # nothing of ours keeps a message from its subscribers
                    log.exception("a message on %s was not looked at", loggable(topic))
            if force_qos is None:
                await forward(session, topic, data)
            else:  # amqtt would use it for those that have subscribed with less too, of wills as well [MQTT-3.8.4-6]
                amqtt_broker.broadcast_at_most(self._broker, session, topic, data, force_qos)

        return broadcast

    def _guarded(self, retain: amqtt_broker.Step) -> amqtt_broker.Step:
        async def guarded(
            source_session: Session | None, topic_name: str, data: bytes | None, qos: int | None = None
        ) -> None:
            if not (topic_name and topic_name.startswith(self.own_topics) and self._is_forged(topic_name)):
                await retain(source_session, topic_name, data, qos)

        return guarded

    def _is_forged(self, topic: str) -> bool:
        """Return whether another than the bridge sends on this topic, which is one of its own."""
        if self._publisher.is_own:
            return False
        if self._forged.count():
            log.warning("not published on %s: this is published by the bridge alone", loggable(topic))
        return True


def retained_messages(broker: Any) -> Iterator[tuple[str, bytes]]:
    """Return topic and payload of what a broker has retained by now."""
    return ((topic, bytes(message.data)) for topic, message in list(broker.retained_messages.items()))


class Publisher:
    """Publishes in amqtt what the bridge publishes, at a pace that delays no other client.

    amqtt's own queue has no bound, and a message waits there for all that came before it. So one task hands a
    publication to amqtt and waits for three iterations of the loop before it takes the next one. The bridge is sent the
    acknowledgement of a publication then, and has only so many unacknowledged.

    The queue is bounded by the endpoint, which reads no more of the bridge's publications while many wait here.

    Args:
        broadcast: Sends a payload to the subscribers of a topic with a QoS at most (amqtt's `broadcast_message`).
        retain: Keeps a payload for later subscribers (amqtt's `retain_message`, which does not deliver).
        delivered: Waits until all has arrived.
        amended: Returns what is published in the place of a publication that is `own`.
    """

    def __init__(
        self,
        broadcast: Callable[[str, bytes, int | None], Awaitable[None]],
        retain: Callable[[str, bytes, int | None], Awaitable[None]],
        delivered: Delivered,
        amended: Callable[[Publication], Publication] = lambda publication: publication,
    ) -> None:
        self._broadcast = broadcast
        self._retain = retain
        self._delivered = delivered
        self._amended = amended
        self._queue: deque[tuple[Publication, int, bool, Callable[[], None]]] = deque()
        self._filled = asyncio.Event()
        self.waiting_bytes = 0
        """Payloads that wait."""
        self.hops = 0
        """How many routes the message that is being broadcast right now has passed through."""
        self.is_own = False
        """Whether what is being broadcast or retained right now may go to the topics of the bridge alone."""

    def __len__(self) -> int:
        """Return how many publications wait."""
        return len(self._queue)

    def put(self, publication: Publication, hops: int, *, own: bool, done: Callable[[], None]) -> None:
        """Queue a publication.

        Args:
            publication: What is published.
            hops: Routes that its message has passed through.
            own: Whether it is the status of a route or the answer to a command.
            done: Called after its turn, also where it could not be published, which is in the log.
        """
        self.waiting_bytes += len(publication.payload)
        self._queue.append((publication, hops, own, done))
        self._filled.set()

    async def settled(self, seconds: float) -> int:
        """Wait until all that is queued has reached its subscribers; return how many messages have not in time."""
        return await self._delivered(self.__len__, seconds)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            while self._queue:
                publication, hops, own, done = self._queue.popleft()
                self.waiting_bytes -= len(publication.payload)
                try:
                    await self._publish(self._amended(publication) if own else publication, hops, own=own)
                    for _ in range(_ITERATIONS):
                        await asyncio.sleep(0)
                finally:
                    done()
            self._filled.clear()
            await self._filled.wait()

    async def _publish(self, publication: Publication, hops: int, *, own: bool) -> None:
        fault = check_topic_name(publication.topic)
        if fault is not None:  # amqtt would take it and fail later, or send it
            log.error("not published: the topic %s", fault)
            return
        self.hops, self.is_own = hops, own
        try:
            await self._broadcast(publication.topic, publication.payload, publication.qos)
            if publication.retain:
                qos = amqtt_broker.RETAINED_QOS_0 if publication.qos == 0 else publication.qos
                await self._retain(publication.topic, publication.payload, qos)
        except Exception:
            log.exception("not published on %s", loggable(publication.topic))
        finally:
            self.hops, self.is_own = 0, False


class Statuses:
    """Keep the last status of each route, and publish it with health Red while there is a fault.

    While the bridge is away, or a task of the broker's side keeps failing, only this side can say so.
    A bridge that publishes no statuses (`status_seconds: 0`) has none that could be Red.

    Args:
        publish: Queues a publication on a topic of the bridge alone.
    """

    def __init__(self, publish: Callable[[Publication], None]) -> None:
        self._publish = publish
        self._last: dict[str, Publication] = {}  # by topic, as the bridge published it
        self._away: RouteError | None = None
        self._broken: RouteError | None = None
        self._changed = asyncio.Event()

    def amended(self, publication: Publication) -> Publication:
        """Return what is published in the place of a publication of the bridge: a status while there is a fault.

        Any other publication stays as it is.
        """
        topic = publication.topic
        if not (publication.retain and topic.startswith(STATUS_TOPICS) and topic.endswith(_STATUS)):
            return publication
        if publication.payload == _LAST:
            publication = self._last.get(topic) or Publication(topic, b"", retain=True)
        if not publication.payload:  # its route is gone
            self._last.pop(topic, None)
            return publication
        self._last[topic] = publication
        return self._as_now(publication)

    def bridge_went_away(self) -> None:
        """Report all routes Red until the bridge is ready again."""
        self._away = RouteError(time.time(), BRIDGE_RESTARTED.code.value, AWAY)
        self._changed.set()

    def report_broken(self, fault: str | None) -> None:
        """Report all routes Red for this reason from now on; None: as the bridge reports them."""
        self._broken = None if fault is None else RouteError(time.time(), INTERNAL_ERROR.code, fault)
        self._changed.set()

    async def run(self, ready: asyncio.Event) -> None:
        """Publish the status of all routes after each change, until cancelled; `ready` is set while the bridge is."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._publish_all()
            if self._away is not None:
                await ready.wait()
                self._away = None
                self._changed.set()

    async def _publish_all(self) -> None:
        for topic in list(self._last):
            self._publish(Publication(topic, _LAST, retain=True))
            await asyncio.sleep(0)

    def _as_now(self, publication: Publication) -> Publication:
        fault = self._broken or self._away
        if fault is None:
            return publication
        try:
            status = json.loads(publication.payload)
        except ValueError:
            log.warning("the status on %s is not JSON", publication.topic)
            return publication
        status |= {
            "health": "Red", "health_reason": fault.message, "last_error": fault.members(),
            "timestamp": rfc3339(time.time()),
        }  # fmt: skip
        payload = json.dumps(status, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        return Publication(publication.topic, payload, retain=True)
