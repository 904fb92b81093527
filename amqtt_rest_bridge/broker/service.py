"""`run`: a broker as a service, for `rest-bridge serve`. It starts whole or not at all, and shuts down gracefully.

If it cannot start, it says why. amqtt's own command leaves a broker without a listener running when a port is taken,
hides why a plugin could not start, starts a default broker for a malformed file, and dies of SIGTERM. Main thread.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerType
from amqtt.errors import BrokerError
from amqtt.events import BrokerEvents

from amqtt_rest_bridge.broker import amqtt_broker, configuration, repairs
from amqtt_rest_bridge.errors import BridgeError, RouteFilesError, reason
from amqtt_rest_bridge.signals import Signals, loop_factory
from amqtt_rest_bridge.supervised_tasks import Supervisor
from amqtt_rest_bridge.system import freeze_garbage

log = logging.getLogger(__name__)


class CannotStartError(BridgeError):
    """A plugin, or the broker, cannot start; the message says which and why."""


class BrokerFailedError(BridgeError):
    """The broker ended without a signal, or its shutdown failed."""


def run(config: BrokerConfig, signals: Signals, on_ready: Callable[[], None]) -> None:
    """Run a broker until a signal; blocks.

    Args:
        config: What amqtt gets, without faults.
        signals: When to stop; installed already.
        on_ready: Called once clients can connect.

    Raises:
        CannotListenError: An address of a listener cannot be bound; nothing is left running.
        CannotStartError: A plugin could not start; nothing is left running.
        BrokerFailedError: The broker ended without a signal, or its shutdown failed.
    """

    async def listen_or_explain(name: str, kind: ListenerType, address: str | None, port: int, context: Any) -> Any:
        try:
            return await listen(name, kind, address, port, context)
        except OSError as error:
            raise configuration.CannotListenError(name, amqtt_broker.bare_address(address), port, error) from error

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)  # plugins' constructors may look for it, as under the amqtt command
        signals.attach(loop)
        configuration.probe(config.listeners)  # before plugins start processes and fill databases
        try:
            broker = Broker(config, loop=loop)
            repairs.mend(broker)
            listen = amqtt_broker.replace(broker, amqtt_broker.Steps.LISTEN, listen_or_explain)
        except Exception as error:
            for plugin in amqtt_broker.plugins_before(error):
                try:
                    runner.run(plugin.close())
                except Exception:
                    log.exception("plugin %s failed to close", type(plugin).__name__)
            if signals.received is not None:  # after a signal, a failure is part of the stop
                log.info("%s: stopped before the start", signals.received.name)
                return
            raise CannotStartError(_plugin_reason(error)) from error
        runner.run(_serve(broker, signals, on_ready))


async def _serve(broker: Broker, signals: Signals, on_ready: Callable[[], None]) -> None:
    failed = record_failures(broker.plugins_manager)
    try:
        if signals.received is None:
            await broker.start()
    except BrokerError as error:
        await _release(broker)
        if isinstance(error.__cause__, configuration.CannotListenError):
            raise error.__cause__ from error
        raise CannotStartError(reason(error.__cause__ or error)) from error
    if signals.received is not None and broker.transitions.state == "new":
        log.info("%s: stopped before the start", signals.received.name)
        await _release(broker)
        return
    broken = ""
    if not failed and signals.received is None:
        freeze_garbage()
        log.info("ready: MQTT on %s", ", ".join(configuration.bound_addresses(broker)) or "no listener")
        on_ready()
        broken = await _wait_for_end(broker, signals)
    if signals.received is not None:
        log.info("%s: shutting down", signals.received.name)
    else:
        signals.begin_shutdown()
    try:
        await broker.shutdown()
    except Exception as error:
        raise BrokerFailedError(f"the shutdown failed: {reason(error)}") from error
    if failed:
        raise CannotStartError(failed[0])
    if signals.received is None:
        raise BrokerFailedError(broken)


async def _wait_for_end(broker: Broker, signals: Signals) -> str:
    """Wait for a signal, a task that keeps failing, or the end of forwarding; return why for the last two."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(signals.wait())]
    supervisors = [getattr(plugin, "supervisor", None) for plugin in broker.plugins_manager.plugins]
    breaks = [asyncio.ensure_future(one.broken()) for one in supervisors if isinstance(one, Supervisor)]
    task = amqtt_broker.forwarding_task(broker)
    forwarding = [task] if task is not None else []
    await asyncio.wait([*waits, *breaks, *forwarding], return_when=asyncio.FIRST_COMPLETED)
    reasons = [one.result() for one in breaks if one.done()]
    for one in (*waits, *breaks):
        one.cancel()
    return reasons[0] if reasons else "the broker stopped forwarding messages; the log says why"


async def _release(broker: Broker) -> None:
    """Close the listeners and plugins of a broker that has not served; amqtt's `shutdown` is for one that has."""
    for _, server in amqtt_broker.servers(broker):
        await server.close_instance()
    await broker.plugins_manager.close()


def record_failures(manager: Any) -> list[str]:
    """Return a list to which each failure of a plugin's start hook is added, as a sentence.

    Defect, amqtt 0.12.1: `fire_event` only prints the exception of `on_broker_pre_start` and `on_broker_post_start`,
    and the broker runs without that plugin. Upstream: https://github.com/Yakifo/amqtt/issues/51, closed when failing
    imports and constructors began to stop the broker (https://github.com/Yakifo/amqtt/pull/203); hooks were left out.
    """
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


def _plugin_reason(error: Exception) -> str:
    """Return which plugin's constructor failed and why; amqtt keeps the reason behind its own exception."""
    name, cause = amqtt_broker.failed_plugin(error), error.__cause__
    if name is None or cause is None:
        return reason(error)
    if isinstance(cause, RouteFilesError):
        count = len(cause.faults)
        return f"{name} cannot start: the route files have {count} error{'s' if count != 1 else ''}, listed above"
    return f"{name} cannot start: {reason(cause)}"
