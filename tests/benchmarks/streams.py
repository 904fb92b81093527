"""Readers of a stream: how long a value takes from its publisher to each of them, and what they cost.

    python -m tests.benchmarks.streams [READERS] [MESSAGES_A_SECOND] [SECONDS]

Publisher and readers are this process, so that one clock measures; broker and bridge are processes of their own. A
payload holds the time; of what a reader takes in one read the newest value counts. Prints percentiles over all readers,
the values that each got, the memory that the readers add to the bridge process, and how long another caller waits.
"""

import asyncio
import re
import resource
import sys
import time

from amqtt.client import MQTTClient

from tests.benchmarks.rig import bridge_broker, children, cpu_seconds, quantile, report, resident_mb
from tests.support.ports import free_port

ROUTE = """DEFINE ROUTE Live WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
    ADD EVENT Live WITH METHOD "GET" WITH ENDPOINT "/live" WITH SOURCE_TOPIC "live" WITH STREAM "true"
    ADD EVENT Now WITH METHOD "GET" WITH ENDPOINT "/now" WITH SOURCE_TOPIC "live"
"""
_VALUE = re.compile(rb"data: ([0-9.]+) x")


async def read(port: int, delays: list[float], counts: list[int]) -> None:
    """Follow the stream; note how old the newest value of each read is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        while data := await reader.read(65_536):
            found = _VALUE.findall(data)
            if found:
                delays.append(time.time() - float(found[-1]))
                counts.append(len(found))
    finally:
        writer.close()


async def call(port: int, waits: list[float]) -> None:
    """Read the latest value again and again, as another caller of the port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        began = time.perf_counter()
        writer.write(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(0.1)
        await reader.read(1000)


async def run(mqtt: int, port: int, bridge: int, readers: int, rate: int, seconds: int) -> None:
    """Publish and read."""
    client = MQTTClient(config={"auto_reconnect": False})
    await client.connect(f"mqtt://127.0.0.1:{mqtt}/")
    await client.publish("live", b"0 x")
    before = resident_mb(bridge)
    delays: list[float] = []
    counts: list[int] = []
    waits: list[float] = []
    tasks = [asyncio.create_task(read(port, delays, counts)) for _ in range(readers)]
    await asyncio.sleep(2)
    tasks.append(asyncio.create_task(call(port, waits)))
    delays.clear()
    counts.clear()
    used = cpu_seconds(bridge)
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * rate:
            await client.publish("live", f"{time.time():.6f} x".encode().ljust(100), qos=0)
            sent += 1
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.5)
    used = cpu_seconds(bridge) - used
    after = resident_mb(bridge)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.disconnect()
    for name, values in ((f"{readers} readers", delays), ("another caller", waits)):
        p50, p99 = (quantile(values, share) * 1000 for share in (0.5, 0.99))
        report(f"{name}: p50, p99", f"{p50:.1f} ms, {p99:.1f} ms", "50 ms")
    report("values of each reader, of messages", f"{sum(counts) / readers:.0f} of {sent}")
    report("memory of the readers", f"{after - before:.1f} MiB", "50 MB")
    report("processor time of the bridge process", f"{used / seconds:.2f} s a second")


def main() -> None:
    """Run with the numbers of the command line."""
    readers, rate, seconds = (int(one) for one in (*sys.argv[1:], *("1000", "200", "10")[len(sys.argv) - 1 :]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    port = free_port()
    with bridge_broker(ROUTE.format(port=port)) as (mqtt, broker):
        (bridge,) = children(broker.pid)
        asyncio.run(run(mqtt, port, bridge, readers, rate, seconds))


if __name__ == "__main__":
    main()
