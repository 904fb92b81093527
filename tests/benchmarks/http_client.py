"""CPU of one request of client mode in this process: our client, a raw socket and urllib3 in one run.

`python -m tests.benchmarks.http_client [CALLS]` prints microseconds a call (medians of 7 turns) and their ratio to the
raw socket's. The server is a process of its own, on 127.0.0.1, over kept connections; payloads have 100 bytes.
"""

import asyncio
import socket
import statistics
import sys
import time
from collections.abc import Callable

import urllib3

from amqtt_rest_bridge.http.client import HttpClient, client_for
from amqtt_rest_bridge.lot.model import HttpRequest, Method, RestApiConfig
from tests.benchmarks.rig import echo_server

TURNS = 7
AT_ONCE = 64
PAYLOAD = b'{"v": 21.5, "unit": "C", "name": "kitchen"}'.ljust(100)

Call = Callable[[], object]


def raw(request: HttpRequest, port: int) -> Call:
    """Make the floor: one write and one read of ready bytes."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(30)
    target = request.url.partition(f":{port}")[2]
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
    data = f"{request.method} {target} HTTP/1.1\r\n{head}\r\n".encode() + (request.body or b"")

    def call() -> object:
        sock.sendall(data)
        return sock.recv(65_536)

    return call


def with_urllib3_pool(request: HttpRequest, port: int) -> Call:
    manager = urllib3.PoolManager()
    headers = dict(request.headers)
    return lambda: manager.request(request.method, request.url, body=request.body, headers=headers, retries=False).data


def one_after_the_other(loop: asyncio.AbstractEventLoop, client: HttpClient, request: HttpRequest, calls: int) -> Call:
    async def send() -> None:
        for _ in range(calls):
            await client.send(request)

    return lambda: loop.run_until_complete(send())


def many_at_once(loop: asyncio.AbstractEventLoop, client: HttpClient, request: HttpRequest, calls: int) -> Call:
    async def some() -> None:
        for _ in range(calls // AT_ONCE):
            await client.send(request)

    async def send() -> None:
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    return lambda: loop.run_until_complete(send())


def repeated(call: Call, calls: int) -> Call:
    def run() -> None:
        for _ in range(calls):
            call()

    return run


def microseconds(run: Call, calls: int) -> float:
    """Measure the CPU time of this process for one call of those that `run` makes."""
    started = time.process_time()
    run()
    return (time.process_time() - started) / calls * 1e6


def main() -> None:
    """Measure in turns, so that the machine's moods hit all alike."""
    calls = (int(sys.argv[1]) if len(sys.argv) > 1 else 2_000) // AT_ONCE * AT_ONCE
    loop = asyncio.new_event_loop()
    with echo_server() as port:
        base = f"http://127.0.0.1:{port}"
        config = RestApiConfig(base_address=base, enable_client=True)
        client = client_for(config, base, max_response_bytes=262_144, environment={})
        headers = (("Host", f"127.0.0.1:{port}"), ("Content-Type", "application/json"), ("Content-Length", "100"))
        request = HttpRequest(Method.POST, f"{base}/x", headers, PAYLOAD)
        cases: dict[str, Call] = {
            "raw socket (the floor)": repeated(raw(request, port), calls),
            "HttpClient.send": one_after_the_other(loop, client, request, calls),
            f"HttpClient.send, {AT_ONCE} at once": many_at_once(loop, client, request, calls),
            "urllib3.PoolManager": repeated(with_urllib3_pool(request, port), calls),
        }
        turns = [{name: microseconds(run, calls) for name, run in cases.items()} for _ in range(TURNS)]
        floor = statistics.median(turn["raw socket (the floor)"] for turn in turns)
        print(f"{'case':32}{'us of CPU':>10}{'to floor':>10}")
        for name in cases:
            median = statistics.median(turn[name] for turn in turns)
            print(f"{name:32}{median:10.1f}{median / floor:10.2f}")
        loop.call_soon(client.close)
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()


if __name__ == "__main__":
    main()
