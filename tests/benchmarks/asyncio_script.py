"""What one writes by hand instead of a worker: aiomqtt, aiohttp, a queue and some tasks. A process of its own.

`python -m tests.benchmarks.asyncio_script MQTT_PORT HTTP_PORT QOS TASKS` prints `ready`. It posts what comes on `in`
and publishes the answers on `out`; a message is acknowledged on arrival, so a kill loses what is under way.
"""

import asyncio
import socket
import sys
from typing import Any

import aiohttp
import aiomqtt


async def call(
    messages: "asyncio.Queue[bytes]", mqtt: aiomqtt.Client, http: aiohttp.ClientSession, url: str, qos: int
) -> None:
    """Post messages one after the other, and publish the answers."""
    while True:
        async with http.post(url, data=await messages.get()) as response:
            await mqtt.publish("out", await response.read(), qos)


async def main(mqtt_port: int, http_port: int, qos: int, tasks: int) -> None:
    """Run until killed."""
    messages: asyncio.Queue[bytes] = asyncio.Queue()
    options: dict[str, Any] = {
        "protocol": aiomqtt.ProtocolVersion.V5,
        "max_inflight_messages": tasks,
        "socket_options": [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],  # results wait for no earlier acknowledgement
    }
    connector = aiohttp.TCPConnector(limit=tasks)
    async with (
        aiomqtt.Client("127.0.0.1", mqtt_port, **options) as mqtt,
        aiohttp.ClientSession(connector=connector) as http,
        asyncio.TaskGroup() as group,
    ):
        mqtt.pending_calls_threshold = tasks  # it logs a warning for each publication beyond
        await mqtt.subscribe("$share/plant/in", qos)
        url = f"http://127.0.0.1:{http_port}/echo"
        for _ in range(tasks):
            group.create_task(call(messages, mqtt, http, url, qos))
        print("ready", flush=True)
        async for message in mqtt.messages:
            payload: Any = message.payload
            messages.put_nowait(payload)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
