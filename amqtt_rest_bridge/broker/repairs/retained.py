"""Defect, amqtt 0.12.1: a client that connects is sent the retained messages of other clients' subscriptions.

amqtt uses the filters of all clients, and does not ask the topic plugins. So any client can read messages that are
retained on topics that the ACL forbids it.

Mended: a client is sent the messages that are retained for its own subscriptions.

Upstream: no issue is known.
"""

from typing import Any

from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker


def mend(broker: Any) -> None:
    """Send retained messages for a client's own filters."""

    def own_filters(publish: amqtt_broker.Step) -> amqtt_broker.Step:
        async def publish_for_own(subscription: tuple[str, int], session: Session) -> None:
            subscribers = broker.subscriptions.get(subscription[0], ())
            # From the end: a client that has just subscribed is there.
            if any(subscriber.client_id == session.client_id for subscriber, _ in reversed(subscribers)):
                await publish(subscription, session)

        return publish_for_own

    amqtt_broker.replace(broker, amqtt_broker.Steps.PUBLISH_RETAINED, own_filters)
