"""Two threads that take turns at reading, with what they read and do under the test's control."""

import queue
import threading

from amqtt_rest_bridge.bridge.link_readers import LinkReaders, Worker

SECONDS = 10.0


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
    """Readers of what the test puts in."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[list[Worker] | Exception | None] = queue.SimpleQueue()
        self.errors: list[Exception] = []
        self.running = threading.Thread(target=self._run)
        self.running.start()

    def _run(self) -> None:
        try:
            LinkReaders(self._read).run()
        except ValueError as error:
            self.errors.append(error)

    def _read(self) -> list[Worker] | None:
        given = self.given.get(timeout=SECONDS)
        if isinstance(given, Exception):
            raise given
        return given

    def end(self, how: Exception | None = None) -> None:
        self.given.put(how)
        self.running.join(SECONDS)
        assert not self.running.is_alive()


def test_a_lone_piece_of_work_is_done_by_its_reader_and_the_next_one_by_another_thread() -> None:
    script, first, second, third = Script(), Job(), Job(), Job()
    script.given.put([first])
    one = first.begun.get(timeout=SECONDS)
    script.given.put([second])
    assert second.begun.get(timeout=SECONDS) == "another thread"
    first.go.set()
    third.go.set()
    while True:  # until the first reader is back
        script.given.put([third])
        done = third.begun.get(timeout=SECONDS)
        if done != "another thread":
            break
    assert {one, done} <= {"link-1", "link-2"}
    script.end()


def test_of_several_pieces_none_waits_for_another() -> None:
    script, jobs = Script(), [Job(), Job()]
    script.given.put([*jobs])
    assert [job.begun.get(timeout=SECONDS) for job in jobs] == ["another thread"] * 2
    script.end()


def test_the_end_does_not_wait_for_work() -> None:
    script, job = Script(), Job()
    script.given.put([job])
    job.begun.get(timeout=SECONDS)
    script.end()
    job.go.set()


def test_what_reading_raises_ends_it() -> None:
    script, error = Script(), ValueError("what is wrong")
    script.end(error)
    assert script.errors == [error]
