"""Readers of a stream: how long a value takes from its publisher to each of them, and what they cost.

    python -m tests.benchmarks.streams [READERS] [MESSAGES_A_SECOND] [SECONDS]

Publisher, readers and another caller are processes of their own, as are broker and bridge, so that none waits for
another's interpreter; they share the machine's clock, and its processors. A payload holds the time. Prints percentiles
over all values and readers, the values that each reader got, the memory that the readers add to the bridge process,
what a value costs it for each reader, and how long another caller waits.
"""

import contextlib
import re
import resource
import selectors
import socket
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.benchmarks.rig import bridge_broker, children, cpu_seconds, quantile, report, resident_mb
from tests.support.ports import free_port

ROUTE = """DEFINE ROUTE Live WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
    ADD EVENT Live WITH METHOD "GET" WITH ENDPOINT "/live" WITH SOURCE_TOPIC "live" WITH STREAM "true"
    ADD EVENT Now WITH METHOD "GET" WITH ENDPOINT "/now" WITH SOURCE_TOPIC "live"
"""
_VALUE = re.compile(rb"data: ([0-9.]+) x")


def publish(mqtt: int, rate: int, seconds: int) -> int:
    """Publish for so long; return how many messages that were."""
    wire, sent, began = Wire(mqtt, "publisher"), 0, time.monotonic()
    with contextlib.closing(wire):
        while sent < rate * seconds:
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            wire.send(publish_packet("live", f"{time.time():.6f} x".encode().ljust(100)))
            sent += 1
    return sent


def call(port: int, seconds: int) -> list[float]:
    """Read the latest value again and again, as another caller of the port; return the waits."""
    waits, end = [], time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while time.monotonic() < end:
            began = time.perf_counter()
            sock.sendall(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
            sock.recv(4096)
            waits.append(time.perf_counter() - began)
            time.sleep(0.02)
    return waits


class Readers:
    """So many readers of one stream."""

    def __init__(self, port: int, count: int) -> None:
        self.delays: list[float] = []
        self._selector = selectors.DefaultSelector()
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            self._selector.register(sock, selectors.EVENT_READ)

    def read(self, seconds: float) -> None:
        """Read for so long; note how old each value is."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                values, now = _VALUE.findall(key.fileobj.recv(65_536)), time.time()
                self.delays.extend(now - float(value) for value in values)

    def close(self) -> None:
        """Leave."""
        for key in self._selector.get_map().values():
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


def run(mqtt: int, port: int, bridge: int, count: int, rate: int, seconds: int) -> None:
    """Publish and read."""
    before = resident_mb(bridge)
    with contextlib.closing(Readers(port, count)) as readers, ProcessPoolExecutor(2, get_context("spawn")) as others:
        others.map(abs, (1, 2))  # starts them
        readers.read(2)
        readers.delays.clear()
        used = cpu_seconds(bridge)
        sent, waits = others.submit(publish, mqtt, rate, seconds), others.submit(call, port, seconds)
        readers.read(seconds + 0.5)
        used = cpu_seconds(bridge) - used
        added = resident_mb(bridge) - before
    for name, values in ((f"{count} readers", readers.delays), ("another caller", waits.result())):
        p50, p99 = (quantile(values, share) * 1000 for share in (0.5, 0.99))
        report(f"{name}: p50, p99", f"{p50:.1f} ms, {p99:.1f} ms", "50 ms")
    report("values of each reader, of messages", f"{len(readers.delays) / count:.0f} of {sent.result()}")
    report("memory of the readers", f"{added:.1f} MiB", "50 MB")
    report("processor time of the bridge process", f"{used / seconds:.2f} s a second")
    report("for each value and reader", f"{used / len(readers.delays) * 1e6:.1f} us")


def main() -> None:
    """Run with the numbers of the command line."""
    count, rate, seconds = (int(one) for one in (*sys.argv[1:], *("1000", "200", "10")[len(sys.argv) - 1 :]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    port = free_port()
    with bridge_broker(ROUTE.format(port=port)) as (mqtt, broker):
        (bridge,) = children(broker.pid)
        run(mqtt, port, bridge, count, rate, seconds)


if __name__ == "__main__":
    main()
