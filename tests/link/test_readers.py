"""Two threads that take turns at reading, with what they read and do under the test's control."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from amqtt_rest_bridge.link.bridge_end import BridgeEnd, LinkReaders, Runnable, SocketTurn, Turn
from amqtt_rest_bridge.link.broker_end import BrokerEnd
from amqtt_rest_bridge.link.frames import Calls, DispatchedCall, ToBridge
from tests.support.waiting import SECONDS


class Job:
    """Work that ends when it is let go; says which thread it was begun by."""

    def __init__(self) -> None:
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.go = threading.Event()

    def work(self) -> None:
        self.begun.put(threading.current_thread().name)
        assert self.go.wait(SECONDS)

    def wake(self) -> None:
        self.begun.put("another thread")


class Script:
    """Readers of what the test puts in; each is a frame on the link."""

    def __init__(self, make_turn: Callable[[int], Turn]) -> None:
        self._given: queue.SimpleQueue[list[Runnable] | Exception] = queue.SimpleQueue()
        self.errors: list[Exception] = []
        ours, theirs = socket.socketpair()
        self._broker, self._bridge = BrokerEnd(ours), BridgeEnd(theirs)
        self._readers = LinkReaders(self._bridge, self._take, self._no_other, make_turn(theirs.fileno()))
        self._running = threading.Thread(target=self._run)
        self._running.start()

    def _run(self) -> None:
        try:
            self._readers.run()
        except ValueError as error:
            self.errors.append(error)

    def _no_other(self, frame: ToBridge) -> None:
        raise AssertionError(frame)

    def _take(self, calls: list[DispatchedCall]) -> list[Runnable]:
        assert calls == []
        given = self._given.get(timeout=SECONDS)
        if isinstance(given, Exception):
            raise given
        return given

    def feed(self, given: list[Runnable] | Exception) -> None:
        self._given.put(given)
        self._broker.send_now(Calls([]))

    def end(self, how: Exception | None = None) -> None:
        if how is not None:
            self.feed(how)
        self._broker.close()
        self._running.join(SECONDS)
        assert not self._running.is_alive()
        self._bridge.close()


@pytest.fixture(params=[lambda _: Turn(), SocketTurn], ids=["lock", "socket"])
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    before = set(threading.enumerate())
    yield Script(request.param)
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_a_lone_piece_of_work_is_done_by_its_reader_and_the_next_one_by_another_thread(
    script: Script,
) -> None:
    first, second, third = Job(), Job(), Job()
    script.feed([first])
    one = first.begun.get(timeout=SECONDS)
    script.feed([second])
    assert second.begun.get(timeout=SECONDS) == "another thread"
    first.go.set()
    third.go.set()
    while True:  # until the first reader is back
        script.feed([third])
        done = third.begun.get(timeout=SECONDS)
        if done != "another thread":
            break
    assert {one, done} <= {"link-1", "link-2"}
    script.end()


def test_of_several_pieces_none_waits_for_another(script: Script) -> None:
    jobs = [Job(), Job()]
    script.feed([*jobs])
    assert [job.begun.get(timeout=SECONDS) for job in jobs] == ["another thread"] * 2
    script.end()


def test_the_end_does_not_wait_for_work(script: Script) -> None:
    job = Job()
    script.feed([job])
    job.begun.get(timeout=SECONDS)
    script.end()
    job.go.set()


def test_what_reading_raises_ends_it(script: Script) -> None:
    error = ValueError("what is wrong")
    script.end(error)
    assert script.errors == [error]
