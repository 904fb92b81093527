"""Threads for what has to wait."""

import threading

import pytest

from amqtt_rest_bridge.http_server.waiting_threads import WaitingThreads

PATIENCE = 20.0


def test_every_job_starts_at_once_up_to_the_limit() -> None:
    threads = WaitingThreads("w", 3)
    let_go = threading.Event()
    all_run = threading.Barrier(4)

    def job() -> None:
        all_run.wait(PATIENCE)
        let_go.wait(PATIENCE)

    assert [threads.run(job) for _ in range(3)] == [True, True, True]
    all_run.wait(PATIENCE)
    assert threads.busy == 3
    assert not threads.run(job)
    let_go.set()


def test_a_job_that_fails_is_logged_and_its_thread_serves_the_next(caplog: pytest.LogCaptureFixture) -> None:
    threads = WaitingThreads("w", 1)
    done = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError

    assert threads.run(fail)
    while not threads.run(done.set):
        done.wait(0.001)
    assert done.wait(PATIENCE)
    assert "ZeroDivisionError" in caplog.text


def test_idle_threads_are_used_again_and_end_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.http_server.waiting_threads._IDLE_SECONDS", 0.05)
    threads = WaitingThreads("idle-test", 4)

    def alive() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("idle-test")]

    for _ in range(10):
        done = threading.Event()
        assert threads.run(done.set)
        assert done.wait(PATIENCE)
        while threads.busy:
            done.wait(0)
    for thread in alive():
        thread.join(PATIENCE)
    assert alive() == []
    again = threading.Event()
    assert threads.run(again.set)
    assert again.wait(PATIENCE)
