"""The outbox: credits bound what is under way, order is kept, nothing is sent twice."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from amqtt_rest_bridge.bridge.outbox import Outbox
from amqtt_rest_bridge.link import INITIAL_CREDITS, BridgeEnd, BrokerEnd, Frame, Op


class Peer:
    """The broker's end of the link, read all the time, as the broker does."""

    def __init__(self, end: BrokerEnd) -> None:
        self._end = end
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def frames(self) -> list[Frame]:
        """Give what came since the last call; nothing more comes for a moment."""
        frames: list[Frame] = []
        with contextlib.suppress(queue.Empty):
            while True:
                frames.append(self._frames.get(timeout=0.1))
        return frames

    def join(self) -> None:
        self._thread.join()

    def _read(self) -> None:
        while (frames := self._end.receive_now(10.0)) is not None:
            for frame in frames:
                self._frames.put(frame)


@pytest.fixture
def linked() -> Iterator[tuple[Outbox, Peer]]:
    ours, theirs = socket.socketpair()
    broker, bridge = BrokerEnd(ours), BridgeEnd(theirs)
    peer = Peer(broker)
    yield Outbox(bridge), peer
    bridge.close()
    peer.join()
    broker.close()


def result(number: int, payload: bytes | None = None) -> tuple[object, ...]:
    return (number, 200, None, "", 0.1, () if payload is None else (("t", payload, False),))


def test_a_hurried_result_leaves_at_once_with_those_before_it(linked: tuple[Outbox, Peer]) -> None:
    outbox, peer = linked
    outbox.done(result(1), hurry=False)
    assert peer.frames() == []
    outbox.done(result(2), hurry=True)
    assert peer.frames() == [(Op.DONE, [result(1), result(2)])]


def test_waiting_results_leave_on_flush(linked: tuple[Outbox, Peer]) -> None:
    outbox, peer = linked
    outbox.done(result(1), hurry=False)
    outbox.flush()
    assert peer.frames() == [(Op.DONE, [result(1)])]
    outbox.flush()
    assert peer.frames() == []


def test_publications_stop_when_the_credits_are_spent_and_go_on_when_they_come_back(
    linked: tuple[Outbox, Peer],
) -> None:
    outbox, peer = linked
    item = ("route", "t", b"x", False)
    for _ in range(INITIAL_CREDITS):
        assert outbox.publish(item, 0.0)
    assert not outbox.publish(item, 0.0)
    assert sum(len(frame[1]) for frame in peer.frames()) == INITIAL_CREDITS
    sent: list[bool] = []
    waiting = threading.Thread(target=lambda: sent.append(outbox.publish(item, 10.0)))
    waiting.start()
    outbox.credit(1)
    waiting.join()
    assert sent == [True]
    assert peer.frames() == [(Op.PUBLISH, [item])]


def test_a_publication_that_found_no_room_is_never_sent_later(linked: tuple[Outbox, Peer]) -> None:
    outbox, peer = linked
    assert outbox.publish(("route", "t", b"x" * 16384 * INITIAL_CREDITS, False), 0.0)
    assert not outbox.publish(("route", "t", b"refused", False), 0.01)
    peer.frames()
    outbox.credit(10 * INITIAL_CREDITS)
    assert peer.frames() == []


def test_results_without_a_publication_need_no_credit(linked: tuple[Outbox, Peer]) -> None:
    outbox, peer = linked
    outbox.publish(("route", "t", b"x" * 16384 * INITIAL_CREDITS, False), 0.0)
    peer.frames()
    outbox.done(result(1), hurry=True)
    outbox.done(result(2, b"y"), hurry=True)
    assert peer.frames() == [(Op.DONE, [result(1)])]
    outbox.credit(INITIAL_CREDITS)
    assert peer.frames() == [(Op.DONE, [result(2, b"y")])]


def test_other_frames_follow_what_is_ready(linked: tuple[Outbox, Peer]) -> None:
    outbox, peer = linked
    outbox.done(result(1), hurry=False)
    outbox.send((Op.READY,))
    assert peer.frames() == [(Op.DONE, [result(1)]), (Op.READY,)]
