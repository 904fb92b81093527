"""Supervised tasks: one that fails is started again, one that keeps failing is reported. Event loop only."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from amqtt_rest_bridge.child_process import Restarts
from amqtt_rest_bridge.errors import reason
from amqtt_rest_bridge.times import Backoff

log = logging.getLogger(__name__)

MOST_FAILURES: Final = 8  # in a row; then the bridge counts as broken

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that a bridge in a child process is given, and when it and its tasks are started again."""

    grace: float = 5.0  # for running requests at shutdown
    publish: float = 2.0  # at least, for their results to reach their subscribers
    ping: float = 5.0  # between two questions to a bridge process
    tasks: Backoff = field(default_factory=partial(Backoff, first=0.1))
    bridges: Backoff = field(default_factory=partial(Backoff, at_once=True))


class Supervisor:
    """Run tasks, none of which ends unnoticed.

    A task that fails is started again, after 30 s at most. While a task has failed eight times in a row (within 13 s)
    and has not run for a minute since, the bridge counts as broken: the health of all routes is Red, and
    `rest-bridge serve` ends.

    Args:
        report: Called, if given, with a sentence when the bridge breaks, and with None when it has recovered.
        backoff: When a task that ended is started again; that of `Times` without.
    """

    def __init__(self, report: Callable[[str | None], None] | None = None, backoff: Backoff | None = None) -> None:
        self._report = report
        self._backoff = backoff or Times().tasks
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}  # why, by the names of the tasks that keep failing
        self._broken = asyncio.Event()

    def keep_running(self, name: str, work: Work) -> asyncio.Task[None]:
        """Run work that never ends, until the task is cancelled. If it ends or fails, it is started again."""
        return self._start(name, work, once=False)

    def run_to_end(self, name: str, work: Work) -> asyncio.Task[None]:
        """Run work that ends. If it fails, it is started again until it has ended without an error."""
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
        """Run work again whenever it has ended; note when it keeps failing."""
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
                failed = f"its task {name} failed {MOST_FAILURES} times in a row"
                why = "it ended" if error is None else reason(error)
                self._failing[name] = sentence = f"the bridge is broken: {failed}, the last time: {why}"
                self._broken.set()
                log.critical("%s", sentence)
                if self._report is not None:
                    self._report(sentence)
            await asyncio.sleep(delay)

    def _recover(self, name: str) -> None:
        """Note that a task has run for long enough, or has done its work."""
        if self._failing.pop(name, None) is None:
            return
        log.warning("the task %s has recovered", name)
        if not self._failing:
            self._broken.clear()
            if self._report is not None:
                self._report(None)


async def _failure_of(work: Work) -> BaseException | None:
    """Run `work` to its end; return why it failed, None if it did not.

    Raises:
        CancelledError: The caller's task is cancelled. A cancellation of the work alone is returned like an error.
    """
    try:
        # In a task of its own, since each step of a coroutine passes through every coroutine that awaits it. Publishing
        # a message takes six steps.
        await asyncio.create_task(work())
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return error
    except Exception as error:  # noqa: BLE001  # the caller logs it
        return error
    return None
