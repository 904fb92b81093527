"""SIGTERM while requests run: what their servers answered reaches every connected subscriber, or is counted."""

import contextlib
import os
import signal
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.commands import Running, Workplace
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import Seen
from tests.support.publishing import sending

COUNT = 16
NOISE = 3000  # messages of others, behind which the results wait
ROUTE = """
DEFINE ROUTE Calls WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
    ADD EVENT Ask WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/ask" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out" WITH RETAIN "{retain}"
"""


class Subscriber(Wire):
    """Reads what is published on `out`, once it is `ready`, until the broker closes the connection."""

    def __init__(self, port: int, qos: int = 1) -> None:
        super().__init__(port, f"subscriber-{qos}")
        self.payloads: list[bytes] = []
        self.ready = threading.Event()
        self.subscribe("out", qos)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def until_closed(self) -> list[bytes]:
        """Return all payloads once the broker has closed the connection."""
        self._reading.join()
        self.sock.close()
        return sorted(self.payloads)

    def _read(self) -> None:
        self.ready.wait()
        try:
            while True:
                for kind, body in self.receive():
                    self._take(kind, body)
        except OSError:
            pass

    def _take(self, kind: int, body: bytes) -> None:
        if kind & 0xF0 == 0x60:  # PUBREL
            self.send(b"\x70\x02" + body[:2])
        elif kind & 0xF0 == 0x30:
            start = 2 + struct.unpack_from(">H", body)[0]
            qos = kind >> 1 & 3
            self.payloads.append(body[start + (2 if qos else 0) :][:4])
            if qos:
                self.send((b"\x40" if qos == 1 else b"\x50") + b"\x02" + body[start : start + 2])


class Stop:
    """A broker with calls under way, whose server answers once `open` is set."""

    def __init__(self, running: Running, recorder: Recorder, qos: Sequence[int], count: int) -> None:
        self.running, self.port, self.open = running, running.port, threading.Event()
        recorder.answer = self._answer
        self.subscribers = [Subscriber(self.port, one) for one in qos]
        self.publisher = Wire(self.port, "publisher")  # stays: amqtt drops what is under way at a DISCONNECT
        self.payloads = [b"%04d" % number for number in range(count)]
        for number, payload in enumerate(self.payloads, 1):
            self.publisher.send(publish_packet("in", payload, number))
            self.publisher.expect(0x40)
        for _ in self.payloads:
            recorder.request(30)

    def _answer(self, seen: Seen) -> tuple[int, bytes]:
        self.open.wait()
        return 200, seen.body + bytes(200_000)  # more than sockets take at once

    def begin(self) -> None:
        """Send SIGTERM."""
        self.running.send(signal.SIGTERM)
        self.running.line("SIGTERM: shutting down")

    def read(self) -> None:
        """Begin to read at each subscriber."""
        for subscriber in self.subscribers:
            subscriber.ready.set()

    def end(self) -> list[set[bytes]]:
        """Open the server and wait for the end; return the results that each subscriber has not got."""
        self.open.set()
        missing = [set(self.payloads) - set(subscriber.until_closed()) for subscriber in self.subscribers]
        self.publisher.sock.close()
        assert self.running.end() == 0, self.running.lines
        return missing


def place_with(folder: Path, url: str, processes: int = 1, retain: str = "false") -> Workplace:
    place = Workplace(folder)
    place.configure(("processes: 0", f"processes: {processes}"))
    place.write("routes.lot", ROUTE.format(url=url, retain=retain))
    return place


@contextlib.contextmanager
def asked(
    folder: Path, processes: int = 1, retain: str = "false", qos: Sequence[int] = (0, 1, 2), count: int = COUNT
) -> Iterator[Stop]:
    with recording() as recorder, place_with(folder, recorder.url, processes, retain).serving() as running:
        yield Stop(running, recorder, qos, count)


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("processes", [0, 1])
def test_each_request_that_is_answered_during_the_stop_has_its_result_at_each_subscriber(
    tmp_path: Path, rounds: int, processes: int
) -> None:
    missing = []
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        with asked(folder, processes, "true" if number % 2 else "false") as stop:
            stop.begin()
            stop.read()
            stop.publisher.send(publish_packet("noise", b"x") * NOISE)
            missing += stop.end()
    assert [len(one) for one in missing if one] == []


@pytest.mark.parametrize("processes", [0, 1])
def test_a_publisher_that_never_pauses_delays_neither_results_nor_the_end(tmp_path: Path, processes: int) -> None:
    with asked(tmp_path, processes) as stop:
        stop.read()
        with sending(stop.port, publish_packet("noise", b"x") * 1000):
            stop.begin()
            missing = stop.end()
    assert missing == [set(), set(), set()], stop.running.lines


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
    with asked(tmp_path, qos=[1], count=48) as stop:
        unread = Wire(stop.port, "unread")
        unread.subscribe("out", qos)
        stop.begin()
        stop.read()
        assert stop.end() == [set()]
        unread.sock.close()
    (line,) = (line for line in stop.running.lines if "had not reached their subscribers" in line)
    count = int(line.partition("WARNING - ")[2].split()[0])
    assert (count == len(stop.payloads)) if qos else (0 < count < len(stop.payloads)), line


def test_a_bridge_process_killed_during_the_stop_costs_its_own_calls_and_they_are_counted(tmp_path: Path) -> None:
    with asked(tmp_path, qos=[1]) as stop:
        stop.read()
        stop.begin()
        os.kill(stop.running.children()[0], signal.SIGKILL)
        (missing,) = stop.end()
    counts = [line.partition("route Calls: ")[2] for line in stop.running.lines if "had not been answered" in line]
    assert sum(int(count.split()[0]) for count in counts) == len(missing), stop.running.lines
