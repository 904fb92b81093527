"""The event loop of a service, and its tasks: one that fails is started again, one that keeps failing is reported.

The broker's loop alone; `loop_factory` on the main thread, before there is one.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any, Final

from amqtt_rest_bridge.errors import reason

log = logging.getLogger(__name__)

FIRST_SECONDS: Final = 0.1  # before a task is started again; doubled each time ...
LONGEST_SECONDS: Final = 30.0  # ... up to here
STEADY_SECONDS: Final = 60.0  # a task that ran this long has recovered
MOST_FAILURES: Final = 8  # in a row; then the bridge is said to be broken

Work = Callable[[], Coroutine[Any, Any, None]]


class Supervisor:
    """Run tasks, none of which ends unnoticed.

    Decision: a task that has failed eight times in a row (within 13 s) is tried on, every 30 s at least, but the bridge
    counts as broken until that task has run for a minute: the health of all routes is Red and `rest-bridge serve` ends.

    Args:
        tell: Called with a sentence when the bridge breaks, and with None when it has recovered.
    """

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}  # why, by the names of the tasks that keep failing
        self._broken = asyncio.Event()

    def keep(self, name: str, work: Work) -> None:
        """Run what never ends; should it end all the same, it is started again."""
        self._start(name, work, once=False)

    def finish(self, name: str, work: Work) -> None:
        """Run what ends; started again until it has ended without an error."""
        self._start(name, work, once=True)

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

    def _start(self, name: str, work: Work, *, once: bool) -> None:
        task = asyncio.create_task(self._supervise(name, work, once=once), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, name: str, work: Work, *, once: bool) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            started = loop.time()
            steady = loop.call_later(STEADY_SECONDS, self._recover, name)
            error = await _failure_of(work)
            steady.cancel()
            if once and error is None:
                self._recover(name)
                return
            failures = 1 if loop.time() - started >= STEADY_SECONDS else failures + 1
            delay = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
            log.error("the task %s ended; it is started again in %.1f s", name, delay, exc_info=error)
            if failures == MOST_FAILURES:
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
