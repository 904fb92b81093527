"""What a message of many properties costs a worker beside mosquitto.

    python -m tests.benchmarks.large_message MEGABYTES

Another route of the worker has 100 messages a second for 15 s, alone and while such a message comes: how long its
results take, the processor time of the worker's event loop, and the memory that the worker takes at most. Mosquitto
itself stops while it reads and writes millions of properties: a relay lets the message go when mosquitto has done so.
"""

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.http_target import Target, echo
from tests.worker.mosquitto import Client, Mosquitto
from tests.worker.relay import Relay
from tests.worker.test_large_messages import EMPTY, Usage
from tests.worker.workers import Group, Worker, client_route

COUNT = 1500
A_SECOND = 100


def latencies(client: Client) -> list[float]:
    """Publish messages at their rate; return the milliseconds until each result came, sorted."""
    sent: list[float] = []
    came: dict[int, float] = {}

    def collect() -> None:
        while len(came) < COUNT:
            came[int(client.next()[1])] = time.perf_counter()

    collecting = threading.Thread(target=collect)
    collecting.start()
    for number in range(COUNT):
        sent.append(time.perf_counter())
        client.publish("well", b"%d" % number, wait=False)
        time.sleep(max(0.0, sent[0] + (number + 1) / A_SECOND - time.perf_counter()))
    collecting.join()
    return sorted(1000 * (came[number] - sent[number]) for number in range(COUNT))


def measure(name: str, worker: Worker, client: Client) -> None:
    """Print what one round takes."""
    used = Usage(worker)
    times = latencies(client)
    seconds, more = used.more()
    print(
        f"{name:<8} p50 {statistics.median(times):8.1f} ms  p99 {times[COUNT * 99 // 100]:8.1f} ms"
        f"  longest {times[-1]:8.1f} ms  loop {seconds:6.2f} s of CPU  memory +{more / 1e6:.0f} MB",
        flush=True,
    )


def main(megabytes: int) -> None:
    """Print both rounds."""
    with (
        tempfile.TemporaryDirectory() as folder, Target(echo) as target, Mosquitto(Path(folder)) as broker,
        Relay(broker.port) as relay, Group(Path(folder), broker) as group,
    ):  # fmt: skip
        group.routes(client_route("Well", target.port, "well") + client_route("Large", target.port, "large"))
        worker = group.start(slots=1, broker=relay.url).ready()
        client, failures = broker.client().subscribe("results/Well"), broker.client().subscribe("results/Large")
        latencies(client)
        measure("alone", worker, client)
        relay.stall(b"plant-0:Large")
        broker.publish_bytes("large", EMPTY * (megabytes * 1_000_000 // len(EMPTY)), b"")
        letting_go = threading.Timer(2.0, relay.resume)
        letting_go.start()
        measure("beside", worker, client)
        letting_go.join()
        print(failures.next())


if __name__ == "__main__":
    main(int(sys.argv[1]))
