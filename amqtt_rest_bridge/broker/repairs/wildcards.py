"""Defect, amqtt 0.12.1: an entry of an ACL that ends in `+` permits subscriptions that end in `#`.

`TopicAccessControlListPlugin` compares the filter of a subscription with an entry as if the filter were a topic: its
`#` is then the text of a level, which `+` matches. So a client with the entry `ann/+` can subscribe `ann/#`, and with
the entry `+` it can subscribe all topics.

Mended: a subscription that ends in `#` has to be permitted with a hundred levels in place of the `#`, too. Of all
entries only one that ends in `#` does that.

Upstream: no issue is known.
"""

from typing import Any, Final

from amqtt.contexts import Action
from amqtt.plugins.topic_checking import TopicAccessControlListPlugin
from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker

_DEEP: Final = "/".join(["+"] * 100)


def mend(broker: Any) -> None:
    """Ask the plugin about a subscription that ends in `#` with many levels in place of the `#`, too."""

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
