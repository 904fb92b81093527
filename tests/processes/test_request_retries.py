"""What becomes of a retried request where the broker has no room, is away, or knows its event no more."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amqtt_rest_bridge.link.admin_frames import Retried, WantRetry
from amqtt_rest_bridge.model import MessageProperties, Publication, RunIds
from amqtt_rest_bridge.processes.failure_retries import FailureRetries
from amqtt_rest_bridge.records.broker_records import BrokerRecords
from amqtt_rest_bridge.records.kept_runs import KeptRun
from amqtt_rest_bridge.records.values import Record
from amqtt_rest_bridge.routing.claims import Claims
from amqtt_rest_bridge.routing.outcomes import Outcomes, QuietLog
from amqtt_rest_bridge.routing.server_reports import ServerReports
from amqtt_rest_bridge.routing.statistics import RouteStatistics
from amqtt_rest_bridge.spool import SeenKeys
from tests.support.server_mode import event, route


class Publisher:
    """Keeps what is published; the test confirms it."""

    def __init__(self) -> None:
        self.has_room = True
        self.published: list[Publication] = []
        self.confirms: list[Callable[[bool], None]] = []

    def put(
        self, publication: Publication, _hops: int, _release: Any = None, confirm: Any = None, *, route: str = ""
    ) -> bool:
        if self.has_room:
            self.published.append(publication)
            self.confirms.append(confirm)
        return self.has_room

    waiting_bytes = 0


class Rig:
    """A kept request of a route, and what retries it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.publisher, runs = Publisher(), RunIds()
        self.records = BrokerRecords(runs)
        hooks = route(event(retain=True), event("GET", destination=None, source="latest", name="Read"))
        statistics = dict[str, RouteStatistics]()
        outcomes = Outcomes(
            self.publisher, statistics, runs, lambda _: None, QuietLog(runs, lambda *_: None), self.records
        )
        self.server = ServerReports(outcomes, Claims(SeenKeys(None)))
        self.server.replace([hooks], (), {})
        self.records.keep([hooks])
        self._retries = FailureRetries(self.records, lambda *_: None, self.server.publish_again, runs, loop)

    def keep(self, name: str = "one", event: str = "Event") -> None:
        record = Record(1.0, "request", name, "Hooks", event, "in", "POST", "/hook", 504, "reply_timeout")
        self.records.kept.add(KeptRun(record, "in", 1.0, b"{}", None, MessageProperties((("a", "b"),))))

    def retry(self, name: str = "one") -> Retried:
        answers = list[Retried]()
        self._retries.take(WantRetry(0, [name]), answers.append)
        return answers[0]


@pytest.fixture
def rig() -> Iterator[Rig]:
    loop = asyncio.new_event_loop()
    yield Rig(loop)
    loop.close()


def test_the_message_is_published_as_the_event_is_defined_now_with_its_properties(rig: Rig) -> None:
    rig.keep()
    ((run, of),) = rig.retry().started
    assert of == "one"
    properties = MessageProperties((("a", "b"),))
    assert rig.publisher.published == [Publication("in", b"{}", retain=True, properties=properties)]
    assert rig.records.kept.get(run) is None  # it has not ended
    ((_, code, message),) = rig.retry().refused
    assert (code, message) == ("retry_runs", "a retry of this failure has not ended yet")
    rig.publisher.confirms[0](True)
    new = rig.records.kept.get(run)
    assert new is not None
    assert (new.record.status, new.record.code, new.record.retry_of) == (200, None, "one")
    old = rig.records.kept.get("one")
    assert old is not None
    assert old.record.retried_as == run


def test_a_broker_that_does_not_take_it_makes_a_failure_that_can_be_retried_in_turn(rig: Rig) -> None:
    rig.keep()
    ((run, _),) = rig.retry().started
    rig.publisher.confirms[0](False)
    new = rig.records.kept.get(run)
    assert new is not None
    assert (new.record.status, new.record.code, new.is_failure) == (503, "broker_unavailable", True)
    assert rig.records.counts()["Hooks"]["Event"].statuses == {"503": 1}
    assert rig.retry(run).started
    assert rig.retry().started


def test_without_room_nothing_is_published_and_it_may_be_retried_later(rig: Rig) -> None:
    rig.keep()
    rig.publisher.has_room = False
    assert rig.retry().refused == [("one", "broker_full", "the broker has no room for the message now")]
    rig.publisher.has_room = True
    assert rig.retry().started


def test_an_event_that_publishes_nothing_any_more_is_gone(rig: Rig) -> None:
    rig.keep(event="Read")
    rig.keep("two", event="Other")
    for name, event_name in (("one", "Read"), ("two", "Other")):
        assert rig.retry(name).refused == [(name, "route_gone", f"route Hooks has no event {event_name} any more")]
