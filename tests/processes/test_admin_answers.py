"""The broker's end of the admin port, with bridge processes that only note what they are sent."""

import asyncio
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


def test_followers_that_come_before_a_replaced_process_is_ready_stay_and_those_of_its_predecessor_go() -> None:
    records, loop = BrokerRecords(RunIds()), asyncio.new_event_loop()
    unused = cast(Any, None)
    answers = AdminAnswers(records, unused, {}, unused, None, unused, loop)
    before, other, after = Process(ready=True), Process(ready=True), Process(ready=False)
    processes = cast(Any, [before, other])
    answers.take(WantLive(on=True), processes, 0)
    assert (before.sent, other.sent) == ([WantLive(on=True)], [WantLive(on=True)])

    processes[0] = after
    answers.take(WantLive(on=True), processes, 0)
    after.ready = True
    answers.became_ready(cast(Any, after), processes)
    assert after.sent == [WantLive(on=True)]
    records.unmatched(Message("a", b"", 0.0))
    loop.call_later(0.2, loop.stop)
    loop.run_forever()
    assert [type(frame) for frame in after.sent[1:]] == [LiveRecords]

    processes[0] = last = Process(ready=True)
    answers.became_ready(cast(Any, last), processes)
    assert not records.following
    assert other.sent[-1] == WantLive(on=False)
    loop.close()


def test_following_ends_with_the_processes(caplog: pytest.LogCaptureFixture) -> None:
    records, loop = BrokerRecords(RunIds()), asyncio.new_event_loop()
    unused = cast(Any, None)
    answers = AdminAnswers(records, unused, {}, unused, None, unused, loop)
    processes = cast(Any, [Process(ready=True)])
    answers.take(WantLive(on=True), processes, 0)
    processes.clear()
    records.unmatched(Message("a", b"", 0.0))
    loop.call_later(0.2, loop.stop)
    loop.run_forever()
    loop.close()
    assert not caplog.messages
