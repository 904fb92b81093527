"""MQTT load of a process of its own, so that it takes no time from what is measured; results as JSON on stdout.

`python -m tests.benchmarks.load MODE PORT SECONDS NUMBER ...` runs the function of that name.
"""

import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.benchmarks.mqtt_wire import Wire, publish_packet

_PAYLOAD = 100


def _payload(number: int) -> bytes:
    return struct.pack(">Qd", number, time.perf_counter()) + b"x" * (_PAYLOAD - 16)


def _publications(numbers: range, qos: int) -> bytes:
    return b"".join(publish_packet("in", _payload(n), 1 + n % 60_000 if qos else None) for n in numbers)


def window(port: int, seconds: float, outstanding: int, limit: int = 0, qos: int = 0) -> dict[str, object]:
    """Keep messages under way from `in` to `out` for some seconds, or until `limit`; wait for the last ones."""
    receiver, sender = Wire(port, "window-receiver"), Wire(port, "window-sender")
    receiver.subscribe("out", qos)
    sender.send(_publications(range(outstanding), qos))
    sent, seen, doubled, failed = outstanding, set[int](), 0, 0
    started = time.perf_counter()
    steady: list[tuple[float, int]] = []  # when messages came before the end, and how many until then
    while True:
        more = 0
        for _, payload in receiver.messages():
            if len(payload) != _PAYLOAD:
                failed += 1
                continue
            number = struct.unpack_from(">Q", payload)[0]
            doubled += number in seen
            seen.add(number)
            more += 1
        now = time.perf_counter()
        if now - started < seconds:
            steady.append((now, len(seen)))
        if now - started < seconds and (not limit or sent < limit):
            sender.send(_publications(range(sent, sent + more), qos))
            sent += more
            if qos and select.select([sender.sock], [], [], 0)[0]:
                sender.receive()  # acknowledgements
        elif len(seen) + failed >= sent or now - started > seconds + 10:
            break
    return {
        "per_second": len(seen) / (time.perf_counter() - started),
        "steady_per_second": (steady[-1][1] - steady[0][1]) / max(1e-9, steady[-1][0] - steady[0][0]),
        "sent": sent,
        "lost": sent - len(seen) - failed,
        "failed": failed,
        "doubled": doubled,
    }


def flood(port: int, seconds: float, count: int) -> dict[str, object]:
    """Send `count` messages at once; wait for all of them; again and again for some seconds, once at least."""
    rounds, started = list[dict[str, int]](), time.perf_counter()
    while not rounds or time.perf_counter() - started < seconds:
        rounds.append(window(port, 60, count, count))  # type: ignore[arg-type]
    total = {name: sum(one[name] for one in rounds) for name in ("sent", "lost", "failed", "doubled")}
    return {"per_second": total["sent"] / (time.perf_counter() - started), **total}


def clients(port: int, seconds: float, count: int) -> dict[str, object]:
    """Send 250 messages from each of `count` clients to another one; wait for all; again and again for some seconds."""
    receiver, senders = Wire(port, "clients-receiver"), [Wire(port, f"clients-{number}") for number in range(count)]
    receiver.subscribe("aside")
    sent, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for sender in senders:
            sender.send(publish_packet("aside", b"x" * _PAYLOAD) * 250)
        left = 250 * count
        sent += left
        while left:
            left -= len(receiver.messages())
    return {"per_second": sent / (time.perf_counter() - started), "sent": sent, "lost": 0, "failed": 0, "doubled": 0}


def large(port: int, seconds: float, count: int) -> dict[str, object]:
    """Send `count` large JSON messages at once; wait for all results; again and again for some seconds."""
    receiver, sender = Wire(port, "large-receiver"), Wire(port, "large-sender")
    receiver.subscribe("out")
    text = json.dumps({"wanted": "x" * _PAYLOAD, "rest": ["x" * 1_000] * 4_000}).encode()
    sent = failed = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        sender.send(publish_packet("in", text) * count)
        sent, left = sent + count, count
        while left:
            results = receiver.messages()
            failed += sum(len(payload) != _PAYLOAD for _, payload in results)
            left -= len(results)
    per_second = sent / (time.perf_counter() - started)
    return {"per_second": per_second, "sent": sent, "lost": 0, "failed": failed, "doubled": 0}


def relay(port: int, seconds: float, per_second: float) -> dict[str, object]:
    """Send from one client to another at a rate, as many as are due at a time."""
    receiver, sender = Wire(port, "relay-receiver"), Wire(port, "relay-sender")
    receiver.subscribe("aside")
    sent = received = 0
    packet, started = publish_packet("aside", b"x" * _PAYLOAD), time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        due = min(int(passed * per_second) - sent, 250)
        if due > 0:
            sender.send(packet * due)
            sent += due
        if select.select([receiver.sock], [], [], 0.001)[0]:
            received += len(receiver.messages())
    return {"per_second": received / seconds, "sent": max(1, sent)}


def pair(port: int, seconds: float) -> dict[str, object]:
    """Send messages between two clients, 100 a second, and take the round trips in milliseconds."""
    one, two = Wire(port, "pair-one"), Wire(port, "pair-two")
    one.subscribe("pair/back")
    two.subscribe("pair/forth")
    trips = []
    started = time.perf_counter()
    while (begun := time.perf_counter()) - started < seconds:
        one.send(publish_packet("pair/forth", b"x" * _PAYLOAD))
        two.send(publish_packet("pair/back", two.messages()[0][1]))
        one.messages()
        trips.append((time.perf_counter() - begun) * 1000)
        select.select([], [], [], max(0.0, 0.01 - (time.perf_counter() - begun)))
    return {"trips": trips}


def count(port: int, seconds: float, idle: float = 2.0) -> dict[str, object]:
    """Count messages on `out` for some seconds from the first one, or until none comes for `idle` seconds."""
    receiver = Wire(port, "count-receiver")
    receiver.subscribe("out")
    print("ready", flush=True)
    received = len(receiver.messages())
    started = last = time.perf_counter()
    receiver.sock.settimeout(idle)
    while last - started < seconds:
        try:
            received += len(receiver.messages())
        except TimeoutError:
            break
        last = time.perf_counter()
    return {"received": received, "seconds": last - started}


def hook(port: int, seconds: float, http_port: int, per_second: float) -> dict[str, object]:
    """Post at a rate and take the time of each message until a subscriber has it in milliseconds.

    Others may post: their payloads are as long, and begin with a letter.
    """
    receiver, latencies = Wire(port, "hook-receiver"), list[float]()
    receiver.subscribe("out")
    head = f"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: {_PAYLOAD}\r\n\r\n".encode()
    sent, total, started = 0, int(seconds * per_second), time.perf_counter()
    with socket.create_connection(("127.0.0.1", http_port)) as caller:
        while len(latencies) < total and time.perf_counter() - started < seconds + 10:
            due = started + sent / per_second
            if sent < total and time.perf_counter() >= due:
                caller.sendall(head + _payload(sent))
                sent += 1
            wait = max(0.0, due - time.perf_counter()) if sent < total else 1.0
            readable = select.select([receiver.sock, caller], [], [], wait)[0]
            if caller in readable:
                caller.recv(65_536)
            if receiver.sock in readable:
                ours = [payload for _, payload in receiver.messages() if payload[0] == 0]
                now = time.perf_counter()
                latencies += [(now - struct.unpack_from(">d", payload, 8)[0]) * 1000 for payload in ours]
    return {"latencies": latencies}


MODES: Final[dict[str, Callable[..., dict[str, object]]]] = {
    one.__name__: one for one in (window, flood, clients, large, relay, pair, count, hook)
}


def main(mode: str, port: int, *numbers: float) -> dict[str, object]:
    """Run one mode. Numbers without a fraction are whole."""
    return MODES[mode](port, *(int(number) if number.is_integer() else number for number in numbers))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))))
