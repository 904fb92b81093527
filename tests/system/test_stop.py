"""SIGTERM while requests run: what their servers answered reaches every connected subscriber, or is counted."""

import signal
import struct
import threading
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.commands import Running, Workplace
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import Seen

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


class Gate:
    """A server that answers once it is open."""

    def __init__(self, recorder: Recorder, size: int = 200_000) -> None:
        self.open = threading.Event()
        self.padding = bytes(size)  # more than sockets take at once
        self.recorder = recorder
        recorder.answer = self.answer

    def answer(self, seen: Seen) -> tuple[int, bytes]:
        self.open.wait()
        return 200, seen.body + self.padding

    def await_requests(self, count: int = COUNT) -> None:
        for _ in range(count):
            self.recorder.request(30)


def place_with(folder: Path, url: str, processes: int = 1, retain: str = "false") -> Workplace:
    place = Workplace(folder)
    place.configure(("processes: 0", f"processes: {processes}"))
    place.write("routes.lot", ROUTE.format(url=url, retain=retain))
    return place


def ask(publisher: Wire, count: int = COUNT) -> list[bytes]:
    payloads = [b"%04d" % number for number in range(count)]
    for number, payload in enumerate(payloads, 1):
        publisher.send(publish_packet("in", payload, number))
        publisher.expect(0x40)
    return payloads


def stop(running: Running) -> None:
    running.send(signal.SIGTERM)
    running.line("SIGTERM: shutting down")


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("processes", [0, 1])
def test_each_request_that_is_answered_during_the_stop_has_its_result_at_each_subscriber(
    tmp_path: Path, rounds: int, processes: int
) -> None:
    missing = []
    for number in range(rounds):
        with recording() as recorder:
            gate, folder = Gate(recorder), tmp_path / str(number)
            folder.mkdir()
            with place_with(folder, recorder.url, processes, "true" if number % 2 else "false").serving() as running:
                port = running.port
                subscribers = [Subscriber(port, qos) for qos in (0, 1, 2)]
                publisher = Wire(port, "publisher")  # stays: amqtt drops what is under way at a DISCONNECT
                payloads = ask(publisher)
                gate.await_requests()
                stop(running)
                for subscriber in subscribers:
                    subscriber.ready.set()
                publisher.send(publish_packet("noise", b"x") * NOISE)
                gate.open.set()
                missing += [set(payloads) - set(subscriber.until_closed()) for subscriber in subscribers]
                publisher.sock.close()
                assert running.end() == 0
    assert [len(one) for one in missing if one] == []
