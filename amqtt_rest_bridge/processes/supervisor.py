"""What the plugin, `rest-bridge serve` and a worker run on: supervised tasks, `Times`, the event loop, stop signals.

A task that fails is started again, one that keeps failing is reported; processes are supervised in `child`. The
broker's loop only; `loop_factory` and `Signals` are the main thread's.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import Any, Final

from amqtt_rest_bridge.errors import reason
from amqtt_rest_bridge.processes.child import Restarts
from amqtt_rest_bridge.times import Backoff

log = logging.getLogger(__name__)

MOST_FAILURES: Final = 8  # in a row; then the bridge is said to be broken
SHUTDOWN_SECONDS: Final = 10.0  # from a signal; then the process ends at once

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Times:
    """What a service waits for, in seconds, and when what has ended is started again."""

    grace: float = 5.0  # for running requests at shutdown
    publish: float = 2.0  # ... and at least so much for their results, to reach their subscribers
    ping: float = 5.0  # between two questions to a bridge process
    tasks: Backoff = field(default_factory=partial(Backoff, first=0.1))
    bridges: Backoff = field(default_factory=partial(Backoff, at_once=True))


class Supervisor:
    """Run tasks, none of which ends unnoticed.

    A task that has failed eight times in a row (within 13 s) is tried on, every 30 s at least, but the bridge
    counts as broken until that task has run for a minute: the health of all routes is Red and `rest-bridge serve` ends.

    Args:
        tell: Called with a sentence when the bridge breaks, and with None when it has recovered.
        backoff: When a task that ended is started again; that of `Times` without.
    """

    def __init__(self, tell: Callable[[str | None], None], backoff: Backoff | None = None) -> None:
        self._tell = tell
        self._backoff = backoff or Times().tasks
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}  # why, by the names of the tasks that keep failing
        self._broken = asyncio.Event()

    def keep(self, name: str, work: Work) -> asyncio.Task[None]:
        """Run what never ends, until the task is cancelled; should it end all the same, it is started again."""
        return self._start(name, work, once=False)

    def finish(self, name: str, work: Work) -> asyncio.Task[None]:
        """Run what ends; started again until it has ended without an error."""
        return self._start(name, work, once=True)

    async def broken(self) -> str:
        """Wait until a task keeps failing, and return which and why."""
        await self._broken.wait()
        return next(iter(self._failing.values()), "")

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str, work: Work, *, once: bool) -> asyncio.Task[None]:
        task = asyncio.create_task(self._supervise(name, work, once=once), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(self, name: str, work: Work, *, once: bool) -> None:
        restarts = Restarts(self._backoff)
        while True:
            restarts.begin()
            steady = asyncio.get_running_loop().call_later(self._backoff.steady, self._recover, name)
            error = await _failure_of(work)
            steady.cancel()
            if once and error is None:
                self._recover(name)
                return
            delay = restarts.ended()
            log.error("the task %s ended; it is started again in %.1f s", name, delay, exc_info=error)
            if restarts.failures == MOST_FAILURES:
                self._give_up(name, error)
            await asyncio.sleep(delay)

    def _give_up(self, name: str, error: BaseException | None) -> None:
        why = "it ended" if error is None else reason(error)
        sentence = f"the bridge is broken: its task {name} failed {MOST_FAILURES} times in a row, the last time: {why}"
        self._failing[name] = sentence
        self._broken.set()
        log.critical("%s", sentence)
        self._tell(sentence)

    def _recover(self, name: str) -> None:
        if self._failing.pop(name, None) is None:
            return
        log.warning("the task %s has recovered", name)
        if not self._failing:
            self._broken.clear()
            self._tell(None)


async def _failure_of(work: Work) -> BaseException | None:
    """Run it and return why it failed; None when it returned. Only our own cancellation goes through."""
    try:
        # In a task of its own: each step of a coroutine goes through all that await it, and publishing a message takes
        # six steps.
        await asyncio.create_task(work())
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return error
    except Exception as error:  # noqa: BLE001  # the caller logs it
        return error
    return None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        log.debug("event loop: asyncio; the extra [fast] installs uvloop")
        return asyncio.new_event_loop
    log.info("event loop: uvloop %s", version("uvloop"))
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Signals:
    """SIGTERM and SIGINT: the first begins the shutdown, a second one ends the process at once.

    The handlers run between two bytecodes, so they write with one system call and take no lock; the watchdog is a
    thread of its own, since the loop may be what hangs.

    Args:
        last_words: Writes the line that ends the process.
    """

    def __init__(self, last_words: Callable[[str], None]) -> None:
        self.received: signal.Signals | None = None
        self._last_words = last_words
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def install(self) -> None:
        """Handle both signals from now on, whether a loop runs or not.

        SIGHUP, which asks for a reload while the broker serves, is ignored before and after: its default would end the
        process.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake `wait` on this loop from now on."""
        self._loop = loop

    async def wait(self) -> signal.Signals | None:
        """Wait for the first signal."""
        if self.received is None:
            await self._event.wait()
        return self.received

    def begin_shutdown(self) -> None:
        """Start the time limit of the shutdown; when it is over the process ends at once."""
        watchdog = threading.Timer(SHUTDOWN_SECONDS, self._overdue)
        watchdog.daemon = True
        watchdog.start()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if self.received is not None:
            self._last_words(f"rest-bridge: error: {name.name} while shutting down: ended at once")
            os._exit(128 + number)
        self.received = name
        self.begin_shutdown()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def _overdue(self) -> None:
        self._last_words(f"rest-bridge: error: not shut down within {SHUTDOWN_SECONDS:.0f} s: ended at once")
        os._exit(1)
