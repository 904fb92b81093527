"""CPU of one client-mode call in this process, the sender against a raw socket, urllib3 and http.client in one run.

`python -m tests.benchmarks.http_client [CALLS]` prints microseconds a call (medians of 7 turns) and their ratio to the
raw socket's. The server is a process of its own, on 127.0.0.1, over kept connections; payloads have 100 bytes.
"""

import http.client
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import urllib3
import urllib3.connection

from amqtt_rest_bridge.bridge.client.senders import client_options
from amqtt_rest_bridge.calls.call import OpenCall, PreparedEvent, Step
from amqtt_rest_bridge.calls.stages import prepare
from amqtt_rest_bridge.engine.requests import BuiltRequest
from amqtt_rest_bridge.http_client import HttpClient
from amqtt_rest_bridge.model import ClientEvent, HttpRequest, Message, Method, RestApiConfig, Route
from amqtt_rest_bridge.placeholders import Mode, Place, parse

TURNS = 7
PAYLOAD = b'{"v": 21.5, "unit": "C", "name": "kitchen"}'.ljust(100)
MESSAGE = Message("home/kitchen/temp", PAYLOAD, 1_767_225_600.5)

Call = Callable[[], object]


def typical_event(base: str) -> tuple[Route, ClientEvent]:
    """Make an event as users write them: placeholders in endpoint, body, a header and the destination."""
    event = ClientEvent(
        "event",
        "home/+/temp",
        Method.POST,
        parse("/rooms/{topic.2}/temp", Place.ENDPOINT, Mode.CLIENT),
        parse('{"value": {value.json.v}, "at": "{timestamp}"}', Place.JSON, Mode.CLIENT),
        (("X-Room", parse("{topic.2}", Place.HEADER, Mode.CLIENT)),),
        parse("answers/{topic.2}", Place.TOPIC, Mode.CLIENT),
    )
    config = RestApiConfig(base_address=base, enable_client=True, username="user", password="word")
    return Route("route", config, (event,)), event


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


def with_http_client(request: HttpRequest, port: int) -> Call:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = dict(request.headers)

    def call() -> object:
        connection.request(request.method, "/x", request.body, headers)
        return connection.getresponse().read()

    return call


def with_urllib3_connection(request: HttpRequest, port: int) -> Call:
    connection = urllib3.connection.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = dict(request.headers)

    def call() -> object:
        connection.request(request.method, "/x", request.body, headers)
        return connection.getresponse().data

    return call


def with_urllib3_pool(request: HttpRequest, port: int) -> Call:
    manager = urllib3.PoolManager()
    headers = dict(request.headers)
    return lambda: manager.request(request.method, request.url, body=request.body, headers=headers, retries=False).data


def built(prepared: PreparedEvent) -> HttpRequest:
    begun = prepared.begin(OpenCall(0, prepared, MESSAGE))
    assert isinstance(begun, BuiltRequest)
    return begun.request


def whole_call(prepared: PreparedEvent, event: ClientEvent, sender: HttpClient) -> Call:
    """Make all that a worker does for a message: request, exchange, publication."""

    def call() -> object:
        opened = OpenCall(0, prepared, MESSAGE)
        begun = prepared.begin(opened)
        assert isinstance(begun, BuiltRequest)
        verdict = prepared.judge(opened, sender.send(begun.request))
        assert verdict.step is Step.DONE
        return verdict.publication

    return call


def microseconds(call: Call, calls: int) -> float:
    """Measure the CPU time of this process for one call."""
    started = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - started) / calls * 1e6


@contextmanager
def server() -> Iterator[int]:
    """Run the echo server as a process."""
    command = [sys.executable, "-m", "tests.benchmarks.http_echo", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def throughput(call: Call, threads: int, calls: int) -> float:
    """Measure calls a second with some threads at once."""
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        for future in [pool.submit(lambda: [call() for _ in range(calls // threads)]) for _ in range(threads)]:
            future.result()
        return calls / (time.perf_counter() - started)


def main() -> None:
    """Measure in turns, so that the machine's moods hit all alike."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    with server() as port:
        base = f"http://127.0.0.1:{port}"
        route, event = typical_event(base)
        prepared = prepare(route, event, max_body_bytes=262_144)
        sender = HttpClient(client_options(route.config, max_response_bytes=262_144, environment={}))
        request = built(prepared)
        cases: dict[str, Call] = {
            "raw socket (the floor)": raw(request, port),
            "build a request": lambda: built(prepared),
            "HttpClient.send": lambda: sender.send(request),
            "build, send, result": whole_call(prepared, event, sender),
            "http.client": with_http_client(request, port),
            "urllib3.connection": with_urllib3_connection(request, port),
            "urllib3.PoolManager": with_urllib3_pool(request, port),
        }
        turns = [{name: microseconds(call, calls) for name, call in cases.items()} for _ in range(TURNS)]
        floor = statistics.median(turn["raw socket (the floor)"] for turn in turns)
        print(f"{'case':26}{'us of CPU':>10}{'to floor':>10}")
        for name in cases:
            median = statistics.median(turn[name] for turn in turns)
            print(f"{name:26}{median:10.1f}{median / floor:10.2f}")
        for threads in (1, 2, 4, 8):
            rate = throughput(cases["build, send, result"], threads, calls * 4)
            print(f"build, send, result with {threads} threads: {rate:.0f}/s")
        sender.close()


if __name__ == "__main__":
    main()
