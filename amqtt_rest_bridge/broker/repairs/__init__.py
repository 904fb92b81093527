"""One module for each defect of amqtt that is mended, and `mend`, which mends all that a broker needs of them.

Each module opens with the defect, the version of amqtt it was seen in, what is done about it, and the upstream issue
where there is one. The tests show each defect in a plain amqtt: one that fails with a newer amqtt says which module can
be removed, and its line below. Private names of amqtt are in `amqtt_broker` only. The broker's loop alone.
"""

from typing import Any

from amqtt_rest_bridge.broker.repairs import (
    acknowledged,
    connections,
    flooding,
    forwarding,
    ipv6,
    leftovers,
    resets,
    retained,
    shutdown,
    stopping,
    subscriptions,
    web_sockets,
    wildcards,
)


def mend(broker: Any) -> None:
    """Mend an amqtt broker whose constructor runs, or has run; before it starts, once or more."""
    if isinstance(broker.subscriptions, subscriptions.CopiedWhenRead):
        return
    subscriptions.mend(broker)
    retained.mend(broker)
    wildcards.mend(broker)
    acknowledged.mend(broker)
    connections.mend(broker)  # by `wills`, too
    flooding.mend(broker)
    resets.mend(broker)
    web_sockets.mend(broker)
    forwarding.mend(broker)
    leftovers.mend(broker)
    stopping.mend(broker)
    shutdown.mend(broker)
    ipv6.mend(broker)
