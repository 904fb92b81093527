"""Defect, amqtt 0.12.1: an entry of an ACL that ends in `+` permits subscriptions that end in `#`.

`TopicAccessControlListPlugin` compares a filter with an entry as if it were a topic, in which `#` is one more text that
`+` matches. A client that may subscribe `ann/+` subscribes `ann/#`, and is sent all that is published below; with
the entry `+` it is all topics.

Mended: a subscription that ends in `#` is refused unless the plugin permits one of a hundred levels in its place, as an
entry that ends in `#` does.

Upstream: no issue is known.
"""

from typing import Any, Final

from amqtt.contexts import Action
from amqtt.plugins.topic_checking import TopicAccessControlListPlugin
from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker

_DEEP: Final = "/".join(["+"] * 100)


def mend(broker: Any) -> None:
    """Ask the plugin twice about a subscription that ends in `#`."""

    def asking_deeper(subscribe: amqtt_broker.Step) -> amqtt_broker.Step:
        async def subscribe_if_deep(subscription: tuple[str, int], session: Session) -> Any:
            topic_filter = subscription[0]
            if topic_filter == "#" or topic_filter.endswith("/#"):
                deep = topic_filter[:-1] + _DEEP
                for plugin in broker.plugins_manager.plugins:
                    if isinstance(plugin, TopicAccessControlListPlugin) and not await plugin.topic_filtering(
                        session=session, topic=deep, action=Action.SUBSCRIBE
                    ):
                        return amqtt_broker.REFUSED
            return await subscribe(subscription, session)

        return subscribe_if_deep

    amqtt_broker.replace(broker, amqtt_broker.Steps.SUBSCRIBE, asking_deeper)
