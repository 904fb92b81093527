"""The turns of a port: what is done in one iteration of the loop, and in which order."""

import asyncio
import itertools

import pytest

from amqtt_rest_bridge.http import server as turns
from amqtt_rest_bridge.http.exchange import Request, Response
from amqtt_rest_bridge.http.server import Port, PortLimits


class NoApplication:
    def answer(self, request: Request) -> Response:
        raise AssertionError(request)


class Work:
    """Something to do, which takes so many milliseconds."""

    def __init__(self, name: str, clock: "Clock", milliseconds: float, done: list[str]) -> None:
        self.name, self.clock, self.milliseconds, self.done = name, clock, milliseconds, done

    def take_turn(self) -> None:
        self.clock.now += self.milliseconds / 1000
        self.done.append(self.name)


class Clock:
    """A clock that goes on while something is done."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_turn_has_a_bound_for_each_kind_of_callers_and_those_that_wait_come_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, done, iterations = Clock(), list[str](), list[list[str]]()
    monkeypatch.setattr(turns, "time", clock)
    port = Port(NoApplication(), PortLimits(), 1000)
    for number in range(4):
        port.streaming.append(Work(f"stream {number}", clock, 0.3, done))
        port.handshakes.append(Work(f"handshake {number}", clock, 1.0, done))
        port.refused.append(Work(f"refused {number}", clock, 0.1, done))
        port.ready.append(Work(f"ready {number}", clock, 0.4, done))

    async def run() -> None:
        port.schedule()
        port.schedule()  # twice is once
        while len(done) < 16:
            before = len(done)
            await asyncio.sleep(0)
            iterations.append(done[before:])

    asyncio.run(run())
    assert iterations == [
        ["ready 0", "ready 1", "ready 2", "refused 0", "refused 1", "refused 2", "handshake 0", "stream 0", "stream 1"],
        ["ready 3", "refused 3", "handshake 1", "stream 2", "stream 3"],
        ["handshake 2"],
        ["handshake 3"],
    ]


def test_what_is_queued_again_during_a_turn_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, done = Clock(), list[str]()
    monkeypatch.setattr(turns, "time", clock)
    port, names = Port(NoApplication(), PortLimits(), 1000), itertools.count()

    class Again(Work):
        def take_turn(self) -> None:
            super().take_turn()
            if len(done) < 6:
                port.ready.append(Again(str(next(names)), clock, 0.0, done))

    async def run() -> list[int]:
        port.ready.extend(Again(str(next(names)), clock, 0.0, done) for _ in range(2))
        port.schedule()
        counts = []
        for _ in range(5):
            await asyncio.sleep(0)
            counts.append(len(done))
        return counts

    assert asyncio.run(run()) == [2, 4, 6, 7, 7]
