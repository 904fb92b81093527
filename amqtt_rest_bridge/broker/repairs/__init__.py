"""Repairs of amqtt: one module for each defect, and `mend`, which applies them to a broker.

Each module opens with the defect, the version of amqtt in which it was seen, the repair, and the upstream issue if
there is one. `tests/broker/repairs/test_defects.py` shows each defect in a plain amqtt. If such a test fails with a
newer amqtt, amqtt has mended the defect: remove the module and its line below. `wills` is called by `connections`,
`start_hooks` by `rest-bridge serve`, and `shutdown.Draining` by the plugin.

All of it runs in the broker's loop. Private names of amqtt are in `amqtt_broker` only.
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
    """Mend an amqtt broker before it starts; its constructor may still run. A second call changes nothing."""
    if isinstance(broker.subscriptions, subscriptions.CopiedWhenRead):
        return
    subscriptions.mend(broker)
    retained.mend(broker)
    wildcards.mend(broker)
    acknowledged.mend(broker)
    connections.mend(broker)
    flooding.mend(broker)
    resets.mend(broker)
    web_sockets.mend(broker)
    forwarding.mend(broker)
    leftovers.mend(broker)
    stopping.mend(broker)
    shutdown.mend(broker)
    ipv6.mend(broker)
