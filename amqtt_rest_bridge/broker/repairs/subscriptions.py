"""Defect, amqtt 0.12.1: a loop over the subscriptions fails when a client subscribes or leaves meanwhile.

amqtt awaits the ACL, and the delivery of retained messages, inside such loops. With "dictionary changed size during
iteration" a message does not reach its subscribers, or the connection of a client that has just connected ends.

Mended: a loop goes over a copy of the subscriptions; the copy is used until they change.

Upstream: no issue is known.
"""

from collections.abc import Iterator
from typing import Any

from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker


def mend(broker: Any) -> None:
    """Replace the mapping of subscriptions by `CopiedWhenRead`."""
    amqtt_broker.replace_subscriptions(broker, CopiedWhenRead)


class CopiedWhenRead(dict[str, list[tuple[Session, int]]]):
    """Subscribers by filter; a loop over them sees those that there were when it began.

    amqtt calls `items` for each message, so the copy is kept for the next one. amqtt changes the list of a filter right
    after it has looked it up, so each look-up drops the copy.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.keys()))

    def items(self) -> Any:
        """Return each filter and its subscribers."""
        copy = [(topic_filter, subscribers[:]) for topic_filter, subscribers in super().items()]
        self.items = copy.__iter__  # type: ignore[method-assign]  # in place of this method, until `vars(self).clear()`
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
