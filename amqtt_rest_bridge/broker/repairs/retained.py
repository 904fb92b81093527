"""Defect, amqtt 0.12.1: a client that connects is sent the retained messages of other clients' subscriptions.

It goes through the filters of all clients without asking the topic plugins, so any client reads what is retained on
topics that the ACL closes to it.

Mended: a client is sent what is retained for filters that it has subscribed to.

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
            # A client that has just subscribed is the last one.
            if any(subscriber.client_id == session.client_id for subscriber, _ in reversed(subscribers)):
                await publish(subscription, session)

        return publish_for_own

    amqtt_broker.replace(broker, amqtt_broker.Steps.PUBLISH_RETAINED, own_filters)
