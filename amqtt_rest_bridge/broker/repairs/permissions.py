"""Defects, amqtt 0.12.1: clients get what the ACL forbids them, and a topic plugin that fails costs other clients.

- An entry of `TopicAccessControlListPlugin` that ends in `+`, as `ann/+`, permits the subscription `ann/#`. The plugin
  compares a filter with its entries as if it were a topic, and `+` matches its level `#`. Mended: such a subscription
  must also be permitted with a hundred levels in place of the `#`, and only an entry that ends in `#` permits these.
- A client that connects gets the retained messages of other clients' subscriptions, whatever the ACL says. Mended: it
  gets those of its own subscriptions.
- A topic plugin that fails for a subscription ends the connection. Mended: the subscription is refused.
- A last will is sent to any topic, even below `$SYS`, without asking the ACL. Mended: `send_will` asks it; called by
  `connections`.

Upstream: no issue is known.
"""

import asyncio
import logging
from typing import Any, Final

from amqtt.contexts import Action
from amqtt.plugins.topic_checking import TopicAccessControlListPlugin
from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import check_topic_name, loggable

log = logging.getLogger(__name__)

_DEEP: Final = "/".join(["+"] * 100)
_QUIET_SECONDS: Final = 1.0
_ACL_SECONDS: Final = 10.0  # how long the end of a connection waits for the ACL


def mend(broker: Any) -> None:
    """Ask the topic plugins about what a client subscribes and is sent."""
    refused = LineLimit(_QUIET_SECONDS)

    async def subscribe_or_refuse(subscription: tuple[str, int], session: Session) -> Any:
        try:
            if await _is_deep_forbidden(broker, subscription[0], session):
                return amqtt_broker.REFUSED
            return await subscribe(subscription, session)
        except Exception:  # of a topic plugin
            if count := refused.count():
                log.exception("%d subscription(s) are refused; the last one failed so", count)
            return amqtt_broker.REFUSED

    async def publish_for_own_filters(subscription: tuple[str, int], session: Session) -> None:
        subscribers = broker.subscriptions.get(subscription[0], ())
        # From the end: a client that has just subscribed is there.
        if any(subscriber.client_id == session.client_id for subscriber, _ in reversed(subscribers)):
            await publish(subscription, session)

    subscribe = amqtt_broker.replace(broker, amqtt_broker.Steps.SUBSCRIBE, subscribe_or_refuse)
    publish = amqtt_broker.replace(broker, amqtt_broker.Steps.PUBLISH_RETAINED, publish_for_own_filters)


async def _is_deep_forbidden(broker: Any, topic_filter: str, session: Session) -> bool:
    """Return whether amqtt's plugin forbids a filter that ends in `#` for topics of many levels."""
    if topic_filter != "#" and not topic_filter.endswith("/#"):
        return False
    deep = topic_filter[:-1] + _DEEP
    for plugin in broker.plugins_manager.plugins:
        if isinstance(plugin, TopicAccessControlListPlugin) and not await plugin.topic_filtering(
            session=session, topic=deep, action=Action.SUBSCRIBE
        ):
            return True
    return False


async def send_will(broker: Any, owner: Session) -> None:
    """Send the will of a client whose connection ended without DISCONNECT; retain it if the client asked for that."""
    client, topic = loggable(owner.client_id or ""), owner.will_topic or ""
    may_send = not topic.startswith("$") and check_topic_name(topic) is None
    if may_send:
        try:
            async with asyncio.timeout(_ACL_SECONDS):
                may_send = await amqtt_broker.Acl(broker).may_publish(owner, topic)
        except Exception:
            log.exception("the ACL did not answer whether %s may publish on %s", client, loggable(topic))
            may_send = False
    if not may_send:
        log.info("%s may not publish on %s: its will is not sent", client, loggable(topic))
        return
    will = (owner, owner.will_topic, owner.will_message, owner.will_qos)
    await amqtt_broker.broadcast(broker, *will)
    if owner.will_retain:
        await broker.retain_message(*will)
