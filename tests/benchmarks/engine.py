"""Processor time of a call in the engine alone: client mode between a server and a broker that answer at once.

python -m tests.benchmarks.engine [--messages 30000] [--window 64] [--profile KIND]
"""

import argparse
import asyncio
import cProfile
import logging
import pstats
import random
import time
from collections.abc import Iterator

from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import CallRun, Host, Records, RequestRun, Turn
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.lot.model import (
    EventName,
    HttpRequest,
    HttpResponse,
    Message,
    Publication,
    RestApiConfig,
    RunIds,
)
from amqtt_rest_bridge.times import LoopClock
from tests.support.route_text import load_text

PAYLOAD = b'{"id": 4711, "name": "kitchen", "temperature": 21.50, "humidity": 48, "battery": "ok"}'
RESPONSE = HttpResponse(200, "OK", (("Content-Type", "application/json"), ("Content-Length", "2")), b"{}", 0.001)
ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://server.test:8000/api" WITH ENABLE_CLIENT "true" {config}
        ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY 100000 {route}
        ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "{endpoint}" WITH BODY '{body}'
            WITH DESTINATION_TOPIC "out" {event}
"""
FIELDS = '{"id": {value.json.id}, "at": "{timestamp}", "t": {value.json.temperature}, "topic": "{topic}"}'
KINDS: dict[str, dict[str, str]] = {
    "payload as body": {},
    "fields": {"body": FIELDS, "endpoint": "/rooms/{value.json.name}"},
    "WHEN that skips": {"event": "WITH WHEN '{value.json.temperature} > 99'"},
    "ORDERED, 100 topics": {"event": "WITH ORDERED true"},
    "lossless": {"route": 'WITH OVERLOAD_POLICY "lossless"'},
    "ON_CHANGE, 100 topics": {"event": 'WITH ON_CHANGE "{payload}"'},
    "DEDUPE_KEY": {"event": 'WITH DEDUPE_KEY "{topic}"'},
    "BATCH_SIZE 100": {"event": "WITH BATCH_SIZE 100", "body": "{batch}"},
    "BREAKER": {"route": 'WITH BREAKER "5 per 30s"'},
    "records": {},
    "records of an admin port": {},
}


class Peers:
    """The server and the broker; each answers in the next iteration of the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def soon(self, result: object) -> "asyncio.Future[object]":
        future = self.loop.create_future()
        self.loop.call_soon(future.set_result, result)
        return future

    async def send(self, request: HttpRequest, *, turn: Turn | None = None) -> HttpResponse:
        if turn is not None:
            await turn()
        await self.soon(None)
        return RESPONSE

    def close(self) -> None:
        """Keeps no connection."""

    def publish(
        self, publication: Publication, *, hops: int, route: str, wait: bool = True, mark: str = ""
    ) -> "asyncio.Future[None]":
        return self.soon(None)  # type: ignore[return-value]

    def connect(self, config: RestApiConfig, server: str) -> "Peers":
        return self

    def answer(self, key: bytes) -> bytes | None:
        return None

    def keep(self, key: bytes, seconds: float, answer: bytes) -> None:
        """Keeps no key."""

    def note_call(self, run: CallRun) -> None:
        """Keeps no run."""

    def forget_call(self, number: int) -> None:
        """Ignore it."""

    def note_error(self, route: str, code: str, message: str, now: float) -> None:
        """Ignore it."""

    def note_request(self, run: RequestRun) -> None:
        """Keeps no run."""

    def replayed_run(self, event: EventName, message: Message) -> str | None:
        """None was kept."""

    def note_unmatched(self, message: Message) -> None:
        """Keeps no message."""


class Window:
    """The messages that are not acknowledged: as many as Receive Maximum allows."""

    def __init__(self, mode: ClientMode, messages: Iterator[Message], size: int) -> None:
        self._mode, self._messages = mode, messages
        self.open, self._size = 0, size
        self.is_over = asyncio.Event()

    def fill(self) -> None:
        while self.open < self._size:
            message = next(self._messages, None)
            if message is None:
                break
            self.open += 1
            self._mode.offer(message, delivery=Acknowledgement(self))
        if not self.open:
            self.is_over.set()

    def acknowledged(self) -> None:
        self.open -= 1
        if self.open <= self._size // 2:  # as a broker sends some together
            self.fill()


class Acknowledgement:
    __slots__ = ("_window", "holds")
    is_dropped = False
    is_bounded = True
    has_key = False

    def __init__(self, window: Window) -> None:
        self._window, self.holds = window, 0

    def hold(self) -> None:
        self.holds += 1

    def release(self) -> None:
        self.holds -= 1
        if not self.holds:
            self._window.acknowledged()

    def abandon(self) -> None:
        self.release()

    def key(self, event: EventName) -> str:
        return "7d3c5a0e-0000-4000-8000-000000000000"

    def mark(self, event: EventName) -> str:
        return ""


async def run(kind: str, count: int, size: int) -> float:
    """Return the microseconds of processor time of a message."""
    parts = {"config": "", "route": "", "endpoint": "/things", "body": "{payload}", "event": ""} | KINDS[kind]
    text = ROUTE
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    loaded = load_text(text)
    assert not loaded.has_errors, loaded.faults
    peers = Peers()
    kept = RunRecorder(RunIds())
    kept.use_routes(loaded.routes)
    records: Records | None = peers if kind == "records" else kept if kind == "records of an admin port" else None
    host = Host(peers, peers.connect, peers, LoopClock(), random.SystemRandom().random, records=records)
    mode = ClientMode(host, Outcomes(host))
    mode.use_routes(loaded.routes)
    messages = (Message(f"in/{number % 100}", PAYLOAD, 1.0) for number in range(count))
    window = Window(mode, messages, size if "BATCH" not in kind else 100 * size)
    began = time.process_time()
    window.fill()
    await window.is_over.wait()
    spent = time.process_time() - began
    mode.stop()
    await mode.drain(1)
    return 1e6 * spent / count


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--profile", choices=KINDS)
    given = parser.parse_args()
    if given.profile:
        profile = cProfile.Profile()
        profile.runcall(asyncio.run, run(given.profile, given.messages, given.window))
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    for kind in KINDS:
        found = sorted(asyncio.run(run(kind, given.messages, given.window)) for _ in range(3))
        print(f"{kind:25} {found[1]:7.1f} us a message ({found[0]:.1f} to {found[2]:.1f})", flush=True)


if __name__ == "__main__":
    main()
