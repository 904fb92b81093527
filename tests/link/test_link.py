"""The link: frames and sockets arrive whole and in order, and no end blocks a loop."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.broker_end import FRAME_BYTES, BrokerEnd
from amqtt_rest_bridge.link.frames import (
    CHUNK,
    Calls,
    CreditReturn,
    DispatchedCall,
    Failed,
    Listen,
    Log,
    Ready,
    Replies,
    ToBridge,
    ToBroker,
    TopicMessage,
    UseRoutes,
    Waiting,
    credits_for,
    encode,
)
from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.processes.bridge_process import BridgeProcess
from amqtt_rest_bridge.processes.supervisor import loop_factory
from tests.support.dispatching import Rig, route


@pytest.fixture
def ends() -> Iterator[tuple[BrokerEnd, BridgeEnd]]:
    yield from _ends()


@pytest.fixture
def gathering_ends() -> Iterator[tuple[BrokerEnd, BridgeEnd]]:
    """Ends that gather for as long as a busy machine may take from one line of a test to the next."""
    yield from _ends(coalesce_seconds=0.3)


def _ends(**times: Any) -> Iterator[tuple[BrokerEnd, BridgeEnd]]:
    ours, theirs = socket.socketpair()
    broker, bridge = BrokerEnd(ours, **times), BridgeEnd(theirs)
    yield broker, bridge
    broker.close()
    bridge.close()


def receive(end: BridgeEnd, count: int) -> list[ToBridge]:
    frames: list[ToBridge] = []
    while len(frames) < count:
        more = end.receive(5.0)
        assert more is not None, "the link closed"
        frames += more
    return frames


@pytest.mark.parametrize(
    "payload", [b"", b"x", bytes(range(256)), b"y" * 1_000_000], ids=["empty", "one", "all", "large"]
)
def test_a_frame_arrives_as_it_was_sent(ends: tuple[BrokerEnd, BridgeEnd], payload: bytes) -> None:
    broker, bridge = ends
    frame = Calls([DispatchedCall(1, 2, Message("a/ä", payload, 1.5), None)])
    sending = threading.Thread(target=broker.send_now, args=(frame,))
    sending.start()
    assert receive(bridge, 1) == [frame]
    sending.join()


def test_frames_cut_anywhere_are_put_together_again() -> None:
    ours, theirs = socket.socketpair()
    frames = [Replies([TopicMessage("t", b"z" * size)]) for size in range(6)]
    data = b"".join(map(encode, frames))
    end = BridgeEnd(theirs)
    got: list[ToBridge] = []
    for index in range(len(data)):
        ours.send(data[index : index + 1])
        got += end.receive(5.0) or []
    assert got == frames
    ours.close()
    end.close()


def test_receive_gives_nothing_after_its_timeout_and_none_at_the_end(ends: tuple[BrokerEnd, BridgeEnd]) -> None:
    broker, bridge = ends
    assert bridge.receive(0.001) == []
    broker.close()
    assert bridge.receive(5.0) is None


def test_the_broker_end_waits_blocking_before_it_is_attached(ends: tuple[BrokerEnd, BridgeEnd]) -> None:
    broker, bridge = ends
    assert broker.receive_now(0.001) == []
    bridge.send(Ready())
    assert broker.receive_now(5.0) == [Ready()]
    bridge.close()
    assert broker.receive_now(5.0) is None


def test_listening_sockets_travel_beside_their_frame(ends: tuple[BrokerEnd, BridgeEnd]) -> None:
    broker, bridge = ends
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        broker.send_now(Listen([1, 2]), [one, two])
        assert receive(bridge, 1) == [Listen([1, 2])]
        with bridge.take_socket() as first, bridge.take_socket() as second:
            assert first.getsockname() == one.getsockname()
            assert second.getsockname() == two.getsockname()


def test_half_a_surrogate_pair_in_an_error_message_arrives_as_its_escape(ends: tuple[BrokerEnd, BridgeEnd]) -> None:
    broker, bridge = ends
    bridge.send(Failed("not \ud800 readable"))
    assert broker.receive_now(5.0) == [Failed("not \\ud800 readable")]


async def _on_loop() -> None:
    got: asyncio.Queue[ToBroker] = asyncio.Queue()
    closed = asyncio.Event()
    ours, theirs = socket.socketpair()
    broker, bridge = BrokerEnd(ours, got.put_nowait, closed.set), BridgeEnd(theirs)
    broker.attach(asyncio.get_running_loop())
    with socket.create_server(("127.0.0.1", 0)) as server:
        large = UseRoutes(b"r" * 3_000_000, [])
        broker.send(large)  # more than a socket holds: the rest waits for the reader
        broker.send(Listen([7]), [server])
        broker.send(CreditReturn(5))
        assert await asyncio.to_thread(receive, bridge, 3) == [large, Listen([7]), CreditReturn(5)]
        with bridge.take_socket() as taken:
            assert taken.getsockname() == server.getsockname()
    bridge.send(Ready(), Waiting(3, 1))
    assert [await got.get(), await got.get()] == [Ready(), Waiting(3, 1)]
    bridge.close()
    await asyncio.wait_for(closed.wait(), 5)
    broker.send(CreditReturn(1))  # into the void, without an error


def test_on_the_loop_large_frames_and_sockets_keep_their_order() -> None:
    asyncio.run(_on_loop())


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "installed"])
def test_the_end_of_a_bridge_is_seen_although_it_left_frames_unread_behind_what_it_sent(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        seen: list[ToBroker] = []
        closed = asyncio.Event()
        ours, theirs = socket.socketpair()
        broker = BrokerEnd(ours, seen.append, closed.set)
        broker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)  # so that the loop polls before it all happens at once
        broker.send(CreditReturn(1))
        theirs.sendall(encode(Ready()))
        theirs.close()
        await asyncio.wait_for(closed.wait(), 5)
        assert seen == [Ready()]

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario())


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()], ids=["asyncio", "installed"])
def test_a_bridge_that_sends_faster_than_the_loop_reads_takes_no_more_of_each_iteration_in_time(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Its end of the socket is filled again with each frame, as by a process on another core."""
    frame = encode(Log(10, "x", "y" * 100_000))
    frames = [0]

    async def scenario() -> None:
        def refill(_: ToBroker) -> None:
            frames[-1] += 1
            with contextlib.suppress(BlockingIOError):
                while True:
                    unsent[:] = unsent[theirs.send(unsent) :] or frame

        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        unsent = bytearray(frame)
        broker = BrokerEnd(ours, refill)
        broker.attach(asyncio.get_running_loop())
        theirs.sendall(frame)
        for _ in range(50):
            await asyncio.sleep(0)
            frames.append(0)
        broker.close()
        theirs.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario())
    assert sum(frames) > 20
    assert max(frames) <= 2 * CHUNK // len(frame) + 1


def test_closing_with_unsent_sockets_leaves_no_descriptor_open(ends: tuple[BrokerEnd, BridgeEnd]) -> None:
    async def scenario() -> None:
        broker, bridge = ends
        broker.attach(asyncio.get_running_loop())
        broker.send(UseRoutes(b"r" * 3_000_000, []))
        with socket.create_server(("127.0.0.1", 0)) as server:
            broker.send(Listen([7]), [server])
            address = server.getsockname()
        broker.close()
        bridge.close()
        with socket.create_server(address):  # the port is free again
            pass

    asyncio.run(scenario())


DESCRIPTORS = Path("/proc/self/fd")


def test_sockets_that_cannot_all_be_sent_leave_no_descriptor_open(ends: tuple[BrokerEnd, BridgeEnd]) -> None:
    """A process that has run out of descriptors tries again and again: each try would take those that are left."""
    loop, (broker, _) = asyncio.new_event_loop(), ends
    broker.attach(loop)
    with contextlib.closing(socket.socket()) as given:
        gone = socket.socket()
        gone.close()
        before = len([*DESCRIPTORS.iterdir()])
        with pytest.raises(OSError, match="Bad file descriptor"):
            broker.send(Listen([1, 2]), [given, gone])
        assert len([*DESCRIPTORS.iterdir()]) == before
    broker.close()
    loop.close()


def replies(*names: str, size: int = 0) -> list[TopicMessage]:
    return [TopicMessage(name, b"x" * size) for name in names]


async def received(bridge: BridgeEnd, count: int) -> list[ToBridge]:
    return await asyncio.to_thread(receive, bridge, count)


def test_a_lone_item_leaves_before_the_loop_goes_on_and_a_burst_after_it_in_one_frame(
    gathering_ends: tuple[BrokerEnd, BridgeEnd],
) -> None:
    async def scenario() -> None:
        broker, bridge = gathering_ends
        broker.attach(asyncio.get_running_loop())
        broker.gather(Replies, replies("1"), 1)
        assert receive(bridge, 1) == [Replies(replies("1"))]
        for name in ("2", "3", "4"):
            broker.gather(Replies, replies(name), 1)
        assert await received(bridge, 1) == [Replies(replies("2", "3", "4"))]

    asyncio.run(scenario())


def test_items_of_another_kind_and_other_frames_leave_behind_what_is_gathered(
    gathering_ends: tuple[BrokerEnd, BridgeEnd],
) -> None:
    async def scenario() -> None:
        broker, bridge = gathering_ends
        broker.attach(asyncio.get_running_loop())
        call = DispatchedCall(1, 2, Message("a", b"", 1.5), None)
        broker.gather(Replies, replies("1"), 1)
        broker.gather(Replies, replies("2"), 1)
        broker.gather(Calls, [call], 1)
        broker.gather(Calls, [call], 1)
        broker.send(CreditReturn(5))
        sent = [Replies(replies("1")), Replies(replies("2")), Calls([call, call]), CreditReturn(5)]
        assert await received(bridge, 4) == sent

    asyncio.run(scenario())


def test_items_of_several_kinds_that_come_in_turns_leave_in_one_frame_of_each(
    gathering_ends: tuple[BrokerEnd, BridgeEnd],
) -> None:
    async def scenario() -> None:
        broker, bridge = gathering_ends
        broker.attach(asyncio.get_running_loop())
        call = DispatchedCall(1, 2, Message("a", b"", 1.5), None)
        broker.send(CreditReturn(1))
        broker.gather(Replies, replies("1"), 1)  # at once
        for name in ("2", "3", "4"):
            broker.gather(Calls, [call], 1)
            broker.gather(Replies, replies(name), 1)
        sent = [CreditReturn(1), Replies(replies("1")), Calls([call] * 3), Replies(replies("2", "3", "4"))]
        assert await received(bridge, 4) == sent

    asyncio.run(scenario())


def test_a_large_message_of_many_events_leaves_in_a_frame_for_each() -> None:
    """One for all took the memory of all at both ends, and its length could be more than the link can say."""
    theirs: list[socket.socket] = []

    def spawn(sock: socket.socket) -> tuple[int, Callable[[], None]]:
        theirs.append(sock)
        return os.getpid(), lambda: None

    async def scenario() -> None:
        rig = Rig()
        rig.use(*(route(name=name) for name in "ABCDE"))
        skip: Callable[[object], None] = lambda _: None  # noqa: E731
        process = BridgeProcess(0, asyncio.get_running_loop(), spawn, 4, rig.server, skip, skip, skip, 5.0)
        process.attach()
        rig.dispatcher.offer(Message("in/1", b"x" * (FRAME_BYTES + 1), 0.0))
        process.calls.dispatch(rig.bridge.calls)
        bridge = BridgeEnd(theirs[0])
        frames = await received(bridge, 5)
        assert [len(frame.calls) for frame in frames if isinstance(frame, Calls)] == [1] * 5
        process.disconnect()
        bridge.close()

    asyncio.run(scenario())


def test_large_items_leave_in_a_frame_each(gathering_ends: tuple[BrokerEnd, BridgeEnd]) -> None:
    async def scenario() -> None:
        broker, bridge = gathering_ends
        broker.attach(asyncio.get_running_loop())
        size = FRAME_BYTES * 2 // 3
        for name in ("1", "2", "3", "4"):
            broker.gather(Replies, replies(name, size=size), size)
        frames = [Replies(replies(*names, size=size)) for names in (["1"], ["2", "3"], ["4"])]
        assert await received(bridge, 3) == frames

    asyncio.run(scenario())


def test_a_publication_costs_by_its_size() -> None:
    assert [credits_for(b""), credits_for(b"x" * 16384), credits_for(b"x" * 262_144)] == [1, 2, 17]


def test_what_a_hanging_bridge_has_not_read_is_known_and_leaves_whole_when_it_reads(
    ends: tuple[BrokerEnd, BridgeEnd],
) -> None:
    async def scenario() -> None:
        broker, bridge = ends
        broker.attach(asyncio.get_running_loop())
        sent = [Replies([TopicMessage(str(number), bytes([number]) * 20_000)]) for number in range(250)]
        for frame in sent:
            broker.send(frame)
        assert 3_000_000 < broker.backlog < 250 * 20_100
        assert await asyncio.to_thread(receive, bridge, 250) == sent
        assert broker.backlog == 0

    asyncio.run(scenario())
