"""The pool: everything runs once, few threads for quick work, all of them for slow work."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amqtt_rest_bridge.bridge.client.worker_pool import ThreadBudget, WorkerPool
from amqtt_rest_bridge.bridge.timers import Timers
from tests.support.waiting import SECONDS


@pytest.fixture
def timers() -> Iterator[Timers]:
    timers = Timers()
    yield timers
    timers.close()


class CountedWork:
    """Work that waits until it is let go, and counts its threads."""

    def __init__(self, expected: int) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = self.done = 0
        self.expected = expected
        self.reached = threading.Event()
        self.finished = threading.Event()
        self.open = threading.Event()

    def work(self, _item: int) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside == self.expected:
                self.reached.set()
        self.open.wait(SECONDS)
        with self.lock:
            self.inside -= 1
            self.done += 1
            if self.done == 100:
                self.finished.set()


Work = Callable[[int], None]


def pool_for(
    timers: Timers, work: Work, limit: int = 8, budget: ThreadBudget | None = None, **times: Any
) -> WorkerPool[int]:
    return WorkerPool("test", work, limit, timers, lambda: None, budget, **times)


def test_work_that_waits_gets_all_threads_and_not_one_more(timers: Timers) -> None:
    counted = CountedWork(8)
    pool = pool_for(timers, counted.work)
    pool.submit(range(100))
    assert counted.reached.wait(SECONDS)
    assert len(pool.backlog) == 92
    counted.open.set()
    assert counted.finished.wait(SECONDS)
    assert counted.most == 8
    pool.close()


def test_items_start_in_order_and_run_once(timers: Timers) -> None:
    seen: list[int] = []
    finished = threading.Event()

    def work(item: int) -> None:
        seen.append(item)
        if item == 999:
            finished.set()

    pool = pool_for(timers, work, limit=1)
    for start in range(0, 1000, 10):
        pool.submit(range(start, start + 10))
    assert finished.wait(SECONDS)
    assert seen == list(range(1000))
    pool.close()


def test_an_error_in_one_item_is_logged_and_the_next_runs(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    finished = threading.Event()

    def work(item: int) -> None:
        if item == 0:
            raise ValueError("broken")
        finished.set()

    pool = pool_for(timers, work, limit=1)
    with caplog.at_level(logging.ERROR):
        pool.submit((0, 1))
        assert finished.wait(SECONDS)
    assert "unexpected error" in caplog.text
    pool.close()


def test_drain_gives_back_what_has_not_started(timers: Timers) -> None:
    counted = CountedWork(1)
    pool = pool_for(timers, counted.work, limit=1)
    pool.submit(range(5))
    assert counted.reached.wait(SECONDS)
    assert pool.drain() == [1, 2, 3, 4]
    counted.open.set()
    pool.close()


def test_a_thread_that_rested_takes_new_work(timers: Timers) -> None:
    rested, worked = threading.Semaphore(0), threading.Semaphore(0)
    threads: set[int] = set()

    def work(_item: int) -> None:
        threads.add(threading.get_ident())
        worked.release()

    pool = WorkerPool("test", work, 4, timers, rested.release)
    for _ in range(3):
        pool.submit((1,))
        assert worked.acquire(timeout=SECONDS)
        assert rested.acquire(timeout=SECONDS)
    pool.close()
    assert len(threads) <= 3


def test_a_system_without_threads_to_give_delays_items_and_loses_none(
    timers: Timers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = threading.Event()
    start, failures = threading.Thread.start, iter(range(3))

    def scarce(thread: threading.Thread) -> None:
        if thread.name.startswith("test-") and next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    pool = pool_for(timers, lambda _: finished.set())
    pool.submit((1,))
    assert finished.wait(SECONDS)
    assert caplog.text.count("no thread for waiting messages") == 1
    pool.close()


def test_timed_actions_run_in_order_of_their_time_and_not_after_close() -> None:
    timers = Timers()
    ran: list[str] = []
    done = threading.Event()

    def late() -> None:
        ran.append("late")
        done.set()

    timers.after(0.02, late)
    timers.after(0.0, lambda: ran.append("soon"))
    timers.after(60.0, lambda: ran.append("never"))
    assert done.wait(SECONDS)
    timers.close()
    assert ran == ["soon", "late"]


def test_an_error_in_a_timed_action_is_logged_and_others_run(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    with caplog.at_level(logging.ERROR):
        timers.after(0.0, lambda: 1 / 0)
        timers.after(0.001, done.set)
        assert done.wait(SECONDS)
    assert "timed action" in caplog.text


def test_the_caller_may_do_the_work_itself(timers: Timers) -> None:
    threads: list[str] = []
    pool = pool_for(timers, lambda _: threads.append(threading.current_thread().name))
    assert pool.queue(range(3))
    pool.work()
    assert threads == [threading.current_thread().name] * 3
    assert not pool.running
    pool.close()


def test_a_caller_that_queues_beside_work_in_progress_need_not_wake_a_thread(timers: Timers) -> None:
    counted = CountedWork(1)
    pool = pool_for(timers, counted.work, limit=1)
    pool.submit(range(50))
    assert counted.reached.wait(SECONDS)
    assert not pool.queue(range(50))
    pool.work()  # one thread is the limit, and it is at work: there is nothing to do here
    counted.open.set()
    assert counted.finished.wait(SECONDS)
    assert counted.most == 1
    pool.close()


def test_pools_whose_work_never_ends_share_the_threads_there_may_be(timers: Timers) -> None:
    budget = ThreadBudget(20)
    hanging = CountedWork(20)
    hogs = [pool_for(timers, hanging.work, limit=16, budget=budget) for _ in range(2)]
    for hog in hogs:
        hog.submit(range(50))
    assert hanging.reached.wait(SECONDS)
    late = CountedWork(6)  # of 20 threads for three pools
    other = pool_for(timers, late.work, limit=16, budget=budget)
    other.submit(range(100))
    assert late.reached.wait(SECONDS)
    assert budget.threads <= 2 * 20
    for counted in (hanging, late):
        counted.open.set()
        assert counted.finished.wait(SECONDS)
    assert late.most == 6
    assert hanging.most <= 16 + 10  # each had half of them for certain while there were two
    for pool in (*hogs, other):
        pool.close()


def test_a_thread_that_is_idle_for_long_ends_and_leaves_its_place_to_others(timers: Timers) -> None:
    ended = threading.Semaphore(0)

    class Counting(ThreadBudget):
        def release(self) -> None:
            super().release()
            ended.release()

    budget, counted = Counting(), CountedWork(8)
    pool = pool_for(timers, counted.work, budget=budget, idle_seconds=0.001)
    pool.submit(range(100))
    assert counted.reached.wait(SECONDS)
    counted.open.set()
    assert all(ended.acquire(timeout=SECONDS) for _ in range(8))
    pool.close()
    assert budget.threads == 0


class HandTimers(Timers):
    """Keeps the last action for the test to run; nothing runs by itself."""

    def __init__(self) -> None:
        self.action: Callable[[], object] = lambda: None

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.action = action


def test_a_lone_item_wakes_no_thread_but_its_own() -> None:
    timers = HandTimers()
    done: list[int] = []
    unset = timers.action
    pool = pool_for(timers, done.append)
    for item in range(3):
        assert pool.queue((item,))
        pool.work()
    assert done == [0, 1, 2]
    assert timers.action is unset
    pool.close()


def test_an_item_that_waits_for_another_is_looked_after() -> None:
    timers, counted = HandTimers(), CountedWork(2)
    unset = timers.action
    pool = pool_for(timers, counted.work)
    pool.submit((1,))
    pool.submit((2,))
    assert timers.action is not unset
    while not counted.reached.is_set():
        timers.action()
    counted.open.set()
    pool.close()


class SlowTime:
    """A clock for which each call takes 0.3 ms, of which its thread computes 0.1 ms."""

    def __init__(self) -> None:
        self.now = self.wall = self.cpu = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        self.wall += 0.0003
        return self.wall

    def thread_time(self) -> float:
        self.cpu += 0.0001
        return self.cpu


def test_a_batch_of_quick_calls_does_not_bring_in_threads_unless_it_waits_for_long() -> None:
    clock, timers = SlowTime(), HandTimers()
    begun, may_end = threading.Semaphore(0), threading.Semaphore(0)

    def work(_item: int) -> None:
        begun.release()
        assert may_end.acquire(timeout=SECONDS)

    pool = pool_for(timers, work, clock=clock)
    pool.submit(range(100))
    for _ in range(50):
        may_end.release()
    for _ in range(51):
        assert begun.acquire(timeout=SECONDS)
    clock.now = 0.005
    timers.action()
    assert pool.running == 1
    may_end.release()
    assert begun.acquire(timeout=SECONDS)
    clock.now = 0.03
    timers.action()
    assert begun.acquire(timeout=SECONDS)
    assert pool.running == 2
    pool.drain()
    for _ in range(2):
        may_end.release()
    pool.close()
