"""The loop that waits for sockets, with channels that misbehave."""

import gc
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from amqtt_rest_bridge.http_server import Limits, Request, Response
from amqtt_rest_bridge.http_server.channel_loop import ChannelLoop
from amqtt_rest_bridge.http_server.server import HttpPort


class Fake:
    """A channel that reads what comes, when it is called."""

    accepting = False

    def __init__(self, loop: ChannelLoop, sock: socket.socket, on_read: Callable[[], None]) -> None:
        self.loop = loop
        self.descriptor = sock.fileno()
        self.on_read = on_read
        self.closed = False
        loop[self.descriptor] = self

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        self.on_read()

    def handle_write_event(self) -> None:
        raise AssertionError("it never wants to write")

    def handle_close(self) -> None:
        self.closed = True
        del self.loop[self.descriptor]


@pytest.fixture
def ready() -> Iterator[list[socket.socket]]:
    """Three sockets with something to read."""
    pairs = [socket.socketpair() for _ in range(3)]
    for theirs, _ in pairs:
        theirs.send(b"x")
    yield [ours for _, ours in pairs]
    for pair in pairs:
        for sock in pair:
            sock.close()


def nothing() -> None:
    """Do nothing on a tick."""


def broken(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


def test_a_channel_that_fails_is_closed_and_the_others_are_served(
    ready: list[socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    loop = ChannelLoop()
    served = []
    fails = Fake(loop, ready[0], broken(ZeroDivisionError("ours")))
    breaks = Fake(loop, ready[1], broken(ConnectionResetError("theirs")))

    def serve() -> None:
        served.append(1)
        if fails.closed and breaks.closed:
            loop.stop()

    Fake(loop, ready[2], serve)
    loop.run(nothing, 1.0)
    loop.close()
    assert served
    assert "ZeroDivisionError" in caplog.text
    assert "ConnectionResetError" not in caplog.text  # a peer that leaves is not a fault of ours


def test_a_channel_that_another_closed_meanwhile_is_not_served(ready: list[socket.socket]) -> None:
    loop = ChannelLoop()
    served: list[Fake] = []
    channels: list[Fake] = []

    def serve() -> None:
        served.append(channels[0])
        for other in channels:
            if not other.closed:
                other.handle_close()
        loop.stop()

    channels += [Fake(loop, sock, serve) for sock in ready]
    loop.run(nothing, 1.0)
    loop.close()
    assert len(served) == 1


def test_work_that_fails_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    loop = ChannelLoop()
    loop.soon(broken(ZeroDivisionError("work")))
    loop.soon(loop.stop)
    loop.run(nothing, 1.0)
    loop.close()
    assert "Work on the port's thread failed" in caplog.text


def test_what_thousands_have_to_do_at_once_delays_others_by_a_few_of_them(ready: list[socket.socket]) -> None:
    loop = ChannelLoop()
    done: list[int] = []
    served: list[int] = []
    Fake(loop, ready[0], lambda: served.append(len(done)))
    for number in range(1000):
        loop.patiently(partial(done.append, number))
    loop.patiently(loop.stop)
    loop.run(nothing, 1.0)
    loop.close()
    assert done == [*range(1000)]
    assert max(after - before for before, after in itertools.pairwise(served)) <= 16


def test_ticks_come_without_any_traffic() -> None:
    loop = ChannelLoop()
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            loop.stop()

    loop.run(tick, 0.01)
    loop.close()
    assert len(ticks) == 3


def test_timers_run_in_the_order_of_their_times_and_cancelled_ones_never() -> None:
    loop = ChannelLoop()
    done: list[int] = []
    loop.later(0.03, loop.stop)
    loop.later(0.02, lambda: done.append(2))
    cancelled = loop.later(0.015, lambda: done.append(0))
    loop.later(0.01, lambda: done.append(1))
    loop.later(0.0, broken(ZeroDivisionError("timer")))
    cancelled.cancel()
    cancelled.cancel()
    loop.run(nothing, 10.0)
    loop.close()
    assert done == [1, 2]


def test_cancelled_timers_are_not_kept_until_they_are_due() -> None:
    loop = ChannelLoop()
    kept = loop.later(3600, nothing)
    gc.collect()
    before = sum(type(one) is type(kept) for one in gc.get_objects())
    for _ in range(10_000):
        loop.later(3600, nothing).cancel()
    gc.collect()
    assert sum(type(one) is type(kept) for one in gc.get_objects()) - before < 200
    kept.cancel()
    loop.close()


def test_closed_descriptors_are_forgotten(ready: list[socket.socket]) -> None:
    loop = ChannelLoop()
    channel = Fake(loop, ready[0], nothing)
    channel.handle_close()
    loop.refresh(channel.descriptor)
    loop.refresh(None)
    assert len(loop) == 0
    loop.close()


def test_no_work_of_another_thread_is_left_until_the_next_tick() -> None:
    """Threads wake the loop only where it waits; one wake that is lost would last an hour here."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = HttpPort(listening.dup(), Silent(), None, 1000, None, Limits(), None)
        loop = threading.Thread(target=lambda: port.loop.run(lambda: None, 3600.0), daemon=True)
        loop.start()

        def ask() -> bool:
            for _ in range(500):
                done = threading.Event()
                port.do(done.set)
                if not done.wait(30):
                    return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(each.result() for each in [pool.submit(ask) for _ in range(4)])
        port.do(port.loop.stop)
        loop.join(30)
        assert not loop.is_alive()
        port.dispose()


class Silent:
    """An application that is never asked."""

    def answer(self, request: Request, wake: Callable[[], None]) -> Response:
        raise AssertionError("nothing is asked")
