"""Repairs of amqtt: a module for each part of it, and `mend`, which applies them to a broker.

Each module opens with its defects, the version of amqtt in which they were seen, the repairs, and the upstream issues
if there are any. `tests/broker/repairs/test_defects.py` shows each defect in a plain amqtt. If such a test fails with a
newer amqtt, amqtt has mended the defect: remove its repair. `shutdown.Draining` is called by the plugin, and a start
hook that fails by `service`.

All of it runs in the broker's loop. Private names of amqtt are in `amqtt_broker` only.
"""

from typing import Any

from amqtt_rest_bridge.broker.repairs import connections, permissions, shutdown, traffic


def mend(broker: Any) -> None:
    """Mend an amqtt broker before it starts; its constructor may still run. A second call changes nothing."""
    if isinstance(broker.subscriptions, traffic.CopiedWhenRead):
        return
    for part in (permissions, connections, traffic, shutdown):
        part.mend(broker)
