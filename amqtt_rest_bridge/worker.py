"""A worker: the bridge beside a broker of any kind, as a member of a group, until a signal ends it. Main thread."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import cast

from amqtt_rest_bridge.bridge import Program
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.group.member import Member
from amqtt_rest_bridge.mqtt.publisher import MqttPublisher
from amqtt_rest_bridge.mqtt.values import Broker
from amqtt_rest_bridge.settings import WorkerSettings
from amqtt_rest_bridge.signals import Signals, reloading_on_sighup

log = logging.getLogger(__name__)


class WorkerFailedError(BridgeError):
    """The worker ended without a signal; the message says why."""


async def serve(settings: WorkerSettings, broker: Broker, signals: Signals, on_ready: Callable[[], None]) -> None:
    """Run a worker until a signal.

    Args:
        settings: Those of the worker, checked.
        broker: Where to connect.
        signals: End it.
        on_ready: Called once it takes messages.

    Raises:
        BridgeError: It cannot start, or it ended without a signal; nothing is left running.
    """
    signals.attach(asyncio.get_running_loop())
    program = Program(settings, MqttPublisher(), partial(Member, settings, broker))
    signalled = asyncio.ensure_future(signals.wait())
    starting = asyncio.ensure_future(_started(program))
    try:
        with reloading_on_sighup(program.reload_soon):
            await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
            if not signalled.done():
                await starting
                member = cast("Member", program.place)
                log.info(
                    "ready: %s, with %d of %d slots of group %s, takes messages from %s",
                    member.leases.worker, sum(member.slots), settings.slots, settings.group, broker.address.shown,
                )  # fmt: skip
                on_ready()
                failing = asyncio.ensure_future(program.supervisor.broken())
                await asyncio.wait([signalled, failing], return_when=asyncio.FIRST_COMPLETED)
                failing.cancel()
                if not signalled.done():
                    raise WorkerFailedError(failing.result())
        log.info("%s: shutting down", "stopped" if signals.received is None else signals.received.name)
    finally:
        signalled.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if signals.received is None:
            signals.begin_shutdown()
        await program.stop()


async def _started(program: Program) -> None:
    await program.load()
    await program.start()
