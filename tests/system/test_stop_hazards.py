"""SIGTERM on a bad day: clients that send or read nothing else, other signals, other moments."""

import os
import signal
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.http_recorder import recording
from tests.support.http_target import Seen
from tests.support.publishing import sending
from tests.system.test_stop import COUNT, Gate, Subscriber, ask, place_with, stop


@pytest.mark.parametrize("processes", [0, 1])
def test_a_publisher_that_never_pauses_delays_neither_results_nor_the_end(tmp_path: Path, processes: int) -> None:
    with recording() as recorder:
        gate = Gate(recorder)
        with place_with(tmp_path, recorder.url, processes).serving() as running:
            port = running.port
            subscribers = [Subscriber(port, qos) for qos in (0, 1, 2)]
            publisher = Wire(port, "publisher")
            payloads = ask(publisher)
            gate.await_requests()
            for subscriber in subscribers:
                subscriber.ready.set()
            with sending(port, publish_packet("noise", b"x") * 1000):
                stop(running)
                gate.open.set()
                missing = [set(payloads) - set(subscriber.until_closed()) for subscriber in subscribers]
                publisher.sock.close()
                assert running.end() == 0, running.lines
    assert [len(one) for one in missing] == [0, 0, 0], running.lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_results_of_a_thousand_messages_a_second_arrive_although_more_come_during_the_stop(
    tmp_path: Path, number: signal.Signals
) -> None:
    answered: list[bytes] = []

    def answer(seen: Seen) -> tuple[int, bytes]:
        answered.append(b"%04d" % len(answered))
        return 200, answered[-1]

    with recording() as recorder:
        recorder.answer = answer
        with place_with(tmp_path, recorder.url).serving() as running:
            port = running.port
            subscribers = [Subscriber(port, qos) for qos in (0, 1, 2)]
            for subscriber in subscribers:
                subscriber.ready.set()
            with sending(port, publish_packet("in", b"ask") * 10, 0.01):  # 1,000 a second
                for _ in range(300):
                    recorder.request(30)
                running.send(number)
                received = [subscriber.until_closed() for subscriber in subscribers]
                assert running.end() == 0, running.lines
    assert [len(set(answered) - set(one)) for one in received] == [0, 0, 0], running.lines


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_results_that_a_subscriber_does_not_read_are_counted_and_the_stop_ends(tmp_path: Path, qos: int) -> None:
    with recording() as recorder:
        gate = Gate(recorder)
        with place_with(tmp_path, recorder.url).serving() as running:
            port = running.port
            reader, unread, publisher = Subscriber(port), Wire(port, "unread"), Wire(port, "publisher")
            unread.subscribe("out", qos)
            payloads = ask(publisher, 48)
            gate.await_requests(48)
            stop(running)
            reader.ready.set()
            gate.open.set()
            assert reader.until_closed() == payloads
            assert running.end() == 0, running.lines
            publisher.sock.close()
            unread.sock.close()
    (line,) = (line for line in running.lines if "had not reached their subscribers" in line)
    count = int(line.partition("WARNING - ")[2].split()[0])
    assert (count == len(payloads)) if qos else (0 < count < len(payloads)), line


def test_a_bridge_process_killed_during_the_stop_costs_its_own_calls_and_they_are_counted(
    tmp_path: Path,
) -> None:
    with recording() as recorder:
        gate = Gate(recorder)
        with place_with(tmp_path, recorder.url).serving() as running:
            port = running.port
            subscriber, publisher = Subscriber(port), Wire(port, "publisher")
            subscriber.ready.set()
            ask(publisher)
            gate.await_requests()
            stop(running)
            os.kill(running.children()[0], signal.SIGKILL)
            gate.open.set()
            received = subscriber.until_closed()
            publisher.sock.close()
            assert running.end() == 0, running.lines
    counts = [line.partition("route Calls: ")[2] for line in running.lines if "had not been answered" in line]
    assert sum(int(count.split()[0]) for count in counts) == COUNT - len(received), running.lines
