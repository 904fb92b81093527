"""Defect, amqtt 0.12.1: clients that subscribe or go break what goes through the subscriptions meanwhile.

amqtt awaits the ACL, and the delivery of retained messages, in between: "dictionary changed size during iteration" then
keeps a message from its subscribers, or ends the connection of a client that has just connected.

Mended: the subscriptions are read as a copy, which serves until they change.

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
    """Subscribers by filter; what goes through them sees those that there were when it began.

    amqtt goes through them for each message, and looks up those of a filter right before it changes them. So the copy
    of all is made by the first message that follows a look-up.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def items(self) -> Any:
        """Return each filter and its subscribers."""
        copy = [(topic_filter, subscribers[:]) for topic_filter, subscribers in super().items()]
        self.items = copy.__iter__  # type: ignore[method-assign]  # instead of this method, until something changes
        return iter(copy)

    def __getitem__(self, topic_filter: str) -> list[tuple[Session, int]]:
        vars(self).clear()
        return super().__getitem__(topic_filter)

    def __setitem__(self, topic_filter: str, subscribers: list[tuple[Session, int]]) -> None:
        vars(self).clear()
        super().__setitem__(topic_filter, subscribers)

    def __delitem__(self, topic_filter: str) -> None:
        vars(self).clear()
        super().__delitem__(topic_filter)

    def clear(self) -> None:
        """Remove all: the broker starts again."""
        vars(self).clear()
        super().clear()
