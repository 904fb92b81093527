"""The outbox: credits bound what is under way, order is kept, nothing is sent twice."""

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.broker_end import BrokerEnd
from amqtt_rest_bridge.link.frames import INITIAL_CREDITS, CallResult, Publications, Ready, Results, ToBroker, Waiting
from amqtt_rest_bridge.model import Publication
from tests.support.waiting import eventually


class Peer:
    """The broker's end of the link, read all the time, as the broker does."""

    def __init__(self, end: BrokerEnd) -> None:
        self._end = end
        self._frames: queue.SimpleQueue[ToBroker] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def frames(self) -> list[ToBroker]:
        """Return what came since the last call; nothing more comes for a moment."""
        frames: list[ToBroker] = []
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
def linked() -> Iterator[tuple[BridgeEnd, Peer]]:
    ours, theirs = socket.socketpair()
    broker, bridge = BrokerEnd(ours), BridgeEnd(theirs)
    peer = Peer(broker)
    yield bridge, peer
    bridge.close()
    peer.join()
    broker.close()


def result(number: int, payload: bytes | None = None) -> CallResult:
    return CallResult(number, 200, None, "", 0.0, 0.1, None if payload is None else Publication("t", payload))


def test_a_hurried_result_leaves_at_once_with_those_before_it(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    outbox.done(result(1), at_once=False)
    assert peer.frames() == []
    outbox.done(result(2), at_once=True)
    assert peer.frames() == [Results([result(1), result(2)])]


def test_a_worker_waits_while_many_bytes_of_results_have_not_left(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    large = b"x" * (4 << 20)
    ended: list[int] = []

    def work() -> None:
        for number in range(8):
            outbox.done(result(number, large), at_once=True)
            ended.append(number)

    worker = threading.Thread(target=work)
    worker.start()
    eventually(lambda: len(ended) == 5)  # two have left by the credits, and three wait: above the bound
    assert len(peer.frames()) == 2
    outbox.done(result(100), at_once=True)  # nothing to publish: it needs no room
    outbox.credit(257)
    eventually(lambda: len(ended) == 6)
    outbox.release_workers()
    worker.join()


def test_waiting_results_leave_on_flush(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    outbox.done(result(1), at_once=False)
    outbox.flush()
    assert peer.frames() == [Results([result(1)])]
    outbox.flush()
    assert peer.frames() == []


def test_publications_stop_when_the_credits_are_spent_and_go_on_when_they_come_back(
    linked: tuple[BridgeEnd, Peer],
) -> None:
    outbox, peer = linked
    item = Publication("t", b"x")
    for _ in range(INITIAL_CREDITS):
        assert outbox.publish(item)
    assert not outbox.publish(item)
    assert sum(len(frame.publications) for frame in peer.frames() if isinstance(frame, Publications)) == INITIAL_CREDITS
    woken: list[int] = []
    first, second = (outbox.enqueue(item, partial(woken.append, number), confirmed=False) for number in (1, 2))
    assert not outbox.publish(item)  # behind them
    outbox.credit(1)
    assert (first.sent, second.sent, woken) == (True, False, [1])
    assert peer.frames() == [Publications([item])]


def test_confirmed_publications_of_a_turn_leave_at_its_end_or_with_the_fourth(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    items = [Publication("t", bytes([number])) for number in range(5)]
    assert all(outbox.enqueue(item, lambda: None, confirmed=True).sent for item in items)
    assert peer.frames() == [Publications(items[:4], 1)]
    assert outbox.is_behind
    outbox.end_turn()
    assert peer.frames() == [Publications(items[4:], 5)]
    assert not outbox.is_behind


def test_what_a_turn_has_gathered_leaves_before_what_follows(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    first, second = Publication("t", b"1"), Publication("t", b"2" * 16384 * INITIAL_CREDITS)
    outbox.enqueue(first, lambda: None, confirmed=True)
    outbox.send_in_order(Ready())
    assert peer.frames() == [Publications([first], 1), Ready()]
    outbox.enqueue(second, lambda: None, confirmed=True)
    waits = outbox.enqueue(first, lambda: None, confirmed=True)
    outbox.end_turn()
    assert (peer.frames(), waits.sent) == ([Publications([second], 2)], False)


def test_a_publication_that_found_no_room_is_never_sent_later(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    assert outbox.publish(Publication("t", b"x" * 16384 * INITIAL_CREDITS))
    assert not outbox.publish(Publication("t", b"refused"))
    withdrawn = outbox.enqueue(Publication("t", b"withdrawn"), lambda: None, confirmed=False)
    assert (outbox.withdraw(withdrawn), outbox.withdraw(withdrawn)) == (True, False)
    peer.frames()
    outbox.credit(10 * INITIAL_CREDITS)
    assert peer.frames() == []


def test_results_without_a_publication_need_no_credit(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    outbox.publish(Publication("t", b"x" * 16384 * INITIAL_CREDITS))
    peer.frames()
    outbox.done(result(1), at_once=True)
    outbox.done(result(2, b"y"), at_once=True)
    assert peer.frames() == [Results([result(1)])]
    outbox.credit(INITIAL_CREDITS)
    assert peer.frames() == [Results([result(2, b"y")])]


def test_other_frames_follow_what_is_ready(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    outbox.done(result(1), at_once=False)
    outbox.send_in_order(Ready())
    assert peer.frames() == [Results([result(1)]), Ready()]


def test_what_is_said_of_a_call_leaves_after_the_results_before_it(linked: tuple[BridgeEnd, Peer]) -> None:
    outbox, peer = linked
    assert outbox.publish(Publication("t", b"x" * 16384 * INITIAL_CREDITS))
    peer.frames()
    outbox.done(result(1, b"x"), at_once=True)
    outbox.send_in_order(Waiting(2, 1))  # the next call of an ORDERED event
    assert peer.frames() == []
    outbox.credit(INITIAL_CREDITS)
    assert peer.frames() == [Results([result(1, b"x")]), Waiting(2, 1)]
