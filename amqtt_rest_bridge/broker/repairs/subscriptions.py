"""Defect, amqtt 0.12.1: clients that subscribe or go break what goes through the subscriptions meanwhile.

amqtt awaits the ACL, and the delivery of retained messages, in between: "dictionary changed size during iteration" then
keeps a message from its subscribers, or ends the connection of a client that has just connected.

Mended: the subscriptions are read as a copy.

Upstream: no issue is known.
"""

from collections.abc import Iterator
from typing import Any

from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker


def mend(broker: Any) -> None:
    """Replace the subscriptions by a mapping that is read as a copy."""
    amqtt_broker.replace_subscriptions(broker, CopiedWhenRead)


class CopiedWhenRead(dict[str, list[tuple[Session, int]]]):
    """Subscribers by filter; what goes through them sees those that there were when it began."""

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def items(self) -> Any:
        """Return each filter and its subscribers."""
        return [(topic_filter, subscribers[:]) for topic_filter, subscribers in super().items()]
