"""A pool of threads that keeps few of them running: pure concurrency, nothing of HTTP.

In one interpreter, threads that compute take the lock from each other: against a server that answers at once two
threads do more than eight. Against a slow server threads only wait, and as many are needed as requests should be in
flight. The pool finds out which it is: it starts with one thread and adds another only while items wait *and* the
threads that run spend their time waiting (`_useful`), and it puts one to rest when there are more than that.

A thread's waiting cannot be measured exactly. A call's time over its computing is 2 to 4 with one thread and a server
that answers at once, as processes take turns on the processors, and it rises with the threads that run, as they wait
for the interpreter lock: growing by it alone ends at the limit with any server. Messages come in batches, so
that some wait for longer than a few milliseconds although all are done soon. So while the ratio is small (`_FEW`) a
pool grows only when items wait for long (`_LONG_SECONDS`). Measured with a limit of 64 and a server that answers at
once: one thread at work in 95 of 100 looks, against one to four with excursions to the limit without this rule.
"""

import _thread
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from amqtt_rest_bridge.bridge.timers import Timers

Lock = _thread.LockType
T = TypeVar("T")

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 0.003  # an item may wait this long before another thread is considered ...
_LONG_SECONDS: Final = 0.025  # ... and this long when calls spend little of their time waiting, which is
_FEW: Final = 8  # up to this ratio of a call's time to the part of it that computes
_SMOOTHING: Final = 0.1  # weight of the newest call in the moving averages

_MOST_THREADS: Final = 2048
"""Threads, at 0.03 MB each (with their connection, measured). A hundred routes whose servers all hang have 20 each; a
thousand with 64 each would be more than many systems start."""


class ThreadBudget:
    """Admit new threads of pools, so that many slow routes cannot use up the system's threads and memory.

    Up to `most` threads are admitted to any pool. Beyond that a pool still gets its even share of them, at least one,
    so that routes whose servers hang never keep another one from running: `2 * most` threads at most, or one a pool.
    """

    def __init__(self, most: int = _MOST_THREADS) -> None:
        self._most = most
        self._pools = 0
        self.threads = 0
        """How many threads there are."""
        self._lock = threading.Lock()

    def join(self) -> None:
        """Count a pool among those that share."""
        with self._lock:
            self._pools += 1

    def leave(self) -> None:
        """Count a pool no longer; the threads it still has remain counted until each is released."""
        with self._lock:
            self._pools -= 1

    def acquire(self, own: int) -> bool:
        """Admit one more thread of a pool that has `own`; return False when the pool has to do without."""
        with self._lock:
            if self.threads >= self._most and own >= max(1, self._most // max(1, self._pools)):
                return False
            self.threads += 1
            return True

    def release(self) -> None:
        """Count a thread that has ended, or could not be started, no longer."""
        with self._lock:
            self.threads -= 1


class Clock(Protocol):
    """What a pool reads of the module `time`."""

    def monotonic(self) -> float:
        """Return the time at which items came."""

    def perf_counter(self) -> float:
        """Return the time that a call takes."""

    def thread_time(self) -> float:
        """Return the time that a call computes."""


class WorkerPool(Generic[T]):
    """Run `work(item)` for every submitted item, started in order of arrival, on at most `limit` threads.

    Args:
        name: Of the threads.
        work: Called on a worker thread; what it raises is logged.
        limit: How many threads at most.
        timers: Check on items that wait.
        on_rest: Called on a worker thread that is about to wait, and every few milliseconds while items wait.
        budget: Admits threads, together with those of other pools; default: of its own.
        idle_seconds: A thread without work for so long ends.
        clock: Reads the time, like the module `time`.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[T], None],
        limit: int,
        timers: Timers,
        on_rest: Callable[[], None],
        budget: ThreadBudget | None = None,
        idle_seconds: float = 10.0,
        clock: Clock = time,
    ) -> None:
        self._name = name
        self._work = work
        self._limit = limit
        self._timers = timers
        self._on_rest = on_rest
        self._budget = budget or ThreadBudget()
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._budget.join()
        self.backlog: deque[tuple[float, T]] = deque()
        """What waits for a thread, with the time since when."""
        self._lock = threading.Lock()
        # Where threads sleep, most recently idle last: a lock that the sleeper holds and its waker releases. That is
        # one system call; a Semaphore is Python on top of two locks.
        self._idle: list[Lock] = []
        self.running = 0
        """How many threads have work."""
        self._threads = 0  # with work or idle
        self._started = 0
        self._watched = False
        self._short = False  # of threads
        self._closing = False
        self._finished = 0  # calls; shows `_look` whether anything moved
        self._seen_finished = 0
        self._wall = 0.0  # moving average of a call's seconds ...
        self._cpu = 0.0  # ... and of the seconds its thread computed

    def submit(self, items: Iterable[T]) -> None:
        """Queue items and start a thread on them; any thread may call."""
        if self.queue(items):
            self.wake()

    def queue(self, items: Iterable[T]) -> bool:
        """Queue items; return whether no thread is at work, so that the caller has to `wake` one or to `work`."""
        now = self._clock.monotonic()
        with self._lock:
            for item in items:
                self.backlog.append((now, item))
            asleep = not self.running
            # A lone item begins at once, so it is not watched: the timers' thread would wake twice, and take the
            # interpreter lock from the one that builds the request (100 us of CPU time at 200 messages/s).
            waits = not asleep or len(self.backlog) > 1
        if waits:
            self._watch()
        return asleep

    def wake(self, count: int = 1) -> None:
        """Start `count` more threads, up to the limit."""
        for _ in range(count):
            with self._lock:
                if self._closing or self.running >= self._limit:
                    return
                self.running += 1
                sleeper = self._idle.pop() if self._idle else None
            if sleeper is not None:
                sleeper.release()
            elif not self._start():
                return

    def work(self) -> None:
        """Work on the calling thread until nothing waits: this saves the time that waking another thread takes."""
        with self._lock:
            if self._closing or self.running >= self._limit:
                return
            self.running += 1
        self._work_off()
        self._on_rest()
        with self._lock:
            self.running -= 1
            missed = bool(self.backlog) and not self.running
        if missed:  # it came between the last look at the queue and the end
            self.wake()

    def drain(self) -> list[T]:
        """Remove and return every item that no thread has started."""
        items: list[T] = []
        while True:
            try:
                items.append(self.backlog.popleft()[1])
            except IndexError:
                return items

    def close(self) -> None:
        """End every thread after the item it runs; does not wait for them."""
        with self._lock:
            if not self._closing:
                self._budget.leave()
            self._closing = True
            idle, self._idle = self._idle, []
        for sleeper in idle:
            sleeper.release()

    def _watch(self) -> None:
        """Schedule `_look` every few milliseconds while items wait."""
        with self._lock:
            watched, self._watched = self._watched, True
        if not watched:
            self._timers.after(_PATIENCE_SECONDS, self._look)

    def _look(self) -> None:
        """Start more threads if items wait too long (timer thread)."""
        self._on_rest()
        with self._lock:
            if self._closing or not self.backlog:
                self._watched = False
                return
            waited = self._clock.monotonic() - self.backlog[0][0]
        if waited >= _PATIENCE_SECONDS:
            stuck = self._finished == self._seen_finished
            self._seen_finished = self._finished
            useful = self._useful()
            if stuck:
                useful = self._limit
            elif useful <= _FEW and waited < _LONG_SECONDS:
                useful = 1
            self.wake(min(useful - self.running, max(1, self.running)))  # doubling: 64 threads after seven looks
        self._timers.after(_PATIENCE_SECONDS, self._look)

    def _useful(self) -> int:
        """Return how many threads one interpreter can keep busy: a call's time over the part of it that computes."""
        if self._cpu <= 0.0:
            return 1
        return max(1, min(self._limit, math.floor(self._wall / self._cpu + 0.5)))

    def _start(self) -> bool:
        """Start a thread for a place among the running ones; without one, `_look` tries again while items wait."""
        with self._lock:
            admitted = self._budget.acquire(self._threads)
            self._threads += admitted
            self._started += 1
        if admitted:
            try:
                threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
            except RuntimeError as error:  # the system has no more threads
                self._end()
                if not self._short:
                    log.error("%s: no thread for waiting messages: %s", self._name, error)  # noqa: TRY400  # the fact is enough
            else:
                self._short = False
                return True
        with self._lock:
            self.running -= 1
            self._short |= admitted
        self._watch()
        return False

    def _end(self) -> None:
        with self._lock:
            self._threads -= 1
        self._budget.release()

    def _run(self) -> None:
        sleeper = threading.Lock()
        sleeper.acquire()
        try:
            while self._rest(sleeper, surplus=self._work_off()):
                pass
        finally:
            self._end()

    def _work_off(self) -> bool:
        """Run what waits, until nothing does (False) or more threads are at work than are of use (True)."""
        while True:
            try:
                _, item = self.backlog.popleft()
            except IndexError:
                return False
            wall, cpu = self._clock.perf_counter(), self._clock.thread_time()
            try:
                self._work(item)
            except Exception:
                log.exception("%s: a call ended with an unexpected error", self._name)
            # Races between threads lose a sample now and then, which does not matter to an average.
            self._finished += 1
            self._wall += _SMOOTHING * (self._clock.perf_counter() - wall - self._wall)
            self._cpu += _SMOOTHING * (self._clock.thread_time() - cpu - self._cpu)
            surplus = self.running > 2 and self.running > self._useful() + 1
            if surplus or self._closing:
                return surplus

    def _rest(self, sleeper: Lock, *, surplus: bool) -> bool:
        """Wait for work; return False when the thread has to end."""
        self._on_rest()
        with self._lock:
            if self._closing:
                self.running -= 1
                return False
            if self.backlog and (not surplus or self.running <= 1):
                return True
            self.running -= 1
            self._idle.append(sleeper)
        if not sleeper.acquire(timeout=self._idle_seconds):
            with self._lock:
                if sleeper in self._idle:
                    self._idle.remove(sleeper)
                    return False
            sleeper.acquire()  # woken in the same instant: the release is under way
        return not self._closing
