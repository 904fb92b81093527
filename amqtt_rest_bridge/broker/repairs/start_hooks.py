"""Defect, amqtt 0.12.1: a plugin whose start hook fails leaves the broker running without it.

`fire_event` only prints the exception of `on_broker_pre_start` and `on_broker_post_start`.

Mended: failures are recorded, and `rest-bridge serve` ends with the first.

Upstream: https://github.com/Yakifo/amqtt/issues/51, closed when failing imports and constructors began to stop the
broker (https://github.com/Yakifo/amqtt/pull/203); hooks were left out.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from amqtt.events import BrokerEvents

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.errors import reason


def record_failures(manager: Any) -> list[str]:
    """Return the list to which failures of the plugins' start hooks will be added, each as a sentence."""
    failed: list[str] = []

    def recording(hook: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        async def run(**arguments: Any) -> None:
            try:
                await hook(**arguments)
            except Exception as error:  # noqa: BLE001  # of any plugin; the reason why the start failed
                failed.append(f"{type(getattr(hook, '__self__', hook)).__name__} cannot start: {reason(error)}")

        return run

    hooks = amqtt_broker.hooks(manager)
    for event in (BrokerEvents.PRE_START, BrokerEvents.POST_START):
        if event in hooks:
            hooks[event] = [recording(hook) for hook in hooks[event]]
    return failed
