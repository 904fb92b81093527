"""The broker's end of the admin port, with bridge processes that only note what they are sent."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from amqtt_rest_bridge.link.admin_frames import LiveRecords, WantLive
from amqtt_rest_bridge.model import Message, RunIds
from amqtt_rest_bridge.processes.admin_answers import AdminAnswers
from amqtt_rest_bridge.records.broker_records import BrokerRecords


class Process:
    """A bridge process and its link."""

    backlog = 0

    def __init__(self, *, ready: bool) -> None:
        self.ready = ready
        self.sent: list[object] = []

    @property
    def link(self) -> "Process":
        return self

    def send(self, frame: object) -> None:
        self.sent.append(frame)


class Pool:
    """The bridge processes, and what is called about them."""

    on_admin: Callable[[object], None]
    on_ready: Callable[[Process], None]

    def __init__(self, processes: list[Process]) -> None:
        self.processes = processes


def test_followers_that_come_before_a_replaced_process_is_ready_stay_and_those_of_its_predecessor_go() -> None:
    records, loop = BrokerRecords(RunIds()), asyncio.new_event_loop()
    unused = cast(Any, None)
    before, other, after = Process(ready=True), Process(ready=True), Process(ready=False)
    pool = Pool([before, other])
    AdminAnswers(cast(Any, pool), records, unused, {}, unused, None, unused, loop, tuple, lambda: None)
    pool.on_admin(WantLive(on=True))
    assert (before.sent, other.sent) == ([WantLive(on=True)], [WantLive(on=True)])

    pool.processes[0] = after
    pool.on_admin(WantLive(on=True))
    after.ready = True
    pool.on_ready(after)
    assert after.sent == [WantLive(on=True)]
    records.unmatched(Message("a", b"", 0.0))
    loop.call_later(0.2, loop.stop)
    loop.run_forever()
    assert [type(frame) for frame in after.sent[1:]] == [LiveRecords]

    pool.processes[0] = last = Process(ready=True)
    pool.on_ready(last)
    assert not records.following
    assert other.sent[-1] == WantLive(on=False)
    loop.close()


def test_following_ends_with_the_processes(caplog: pytest.LogCaptureFixture) -> None:
    records, loop = BrokerRecords(RunIds()), asyncio.new_event_loop()
    unused = cast(Any, None)
    pool = Pool([Process(ready=True)])
    AdminAnswers(cast(Any, pool), records, unused, {}, unused, None, unused, loop, tuple, lambda: None)
    pool.on_admin(WantLive(on=True))
    pool.processes.clear()
    records.unmatched(Message("a", b"", 0.0))
    loop.call_later(0.2, loop.stop)
    loop.run_forever()
    loop.close()
    assert not caplog.messages
