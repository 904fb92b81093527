"""Repairs of amqtt: a module for each part of it, and `mend`, which applies them to a broker.

Each module opens with the defects of a version of amqtt, how each is mended, and the upstream issues if there are any.
`tests/broker/repairs/test_defects.py` shows each defect in a plain amqtt. If such a test fails with a newer amqtt,
amqtt has mended the defect itself: remove the repair. The plugin calls `shutdown.Draining`; `service` notices start
hooks that fail.

All repairs run in the broker's loop. Private names of amqtt are in `amqtt_broker` only.
"""

from typing import Any

from amqtt_rest_bridge.broker.repairs import connections, permissions, shutdown, traffic


def mend(broker: Any) -> None:
    """Mend an amqtt broker before it starts; its constructor may still run. A second call changes nothing."""
    if isinstance(broker.subscriptions, traffic.CopiedWhenRead):
        return
    for part in (permissions, connections, traffic, shutdown):
        part.mend(broker)
