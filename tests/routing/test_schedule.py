"""EVERY: when an event runs by itself, and that it does so once, whatever is reloaded, restarted or slow."""

import asyncio
import json
from pathlib import Path

import pytest

from amqtt_rest_bridge.model import EventName, Message, NumberedRoute
from amqtt_rest_bridge.routing.calls import Delivery
from amqtt_rest_bridge.routing.schedule import Schedule
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import recording
from tests.support.route_text import load_text


def routes(*every: str) -> list[NumberedRoute]:
    text = """DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://h" WITH ENABLE_CLIENT true\n"""
    for number, interval in enumerate(every):
        text += f'ADD EVENT E{number} WITH EVERY "{interval}" WITH METHOD GET WITH ENDPOINT "/"\n'
    loaded = load_text(text)
    assert not loaded.has_errors
    return [NumberedRoute(loaded.routes[0], tuple(range(len(every))))]


class Rig:
    """A schedule whose time is set by the test; a run ends at once unless `hold` is set."""

    def __init__(self, *every: str, chance: float = 0.5) -> None:
        self.now = 1000.0
        self.ran: list[str] = []
        self.leads = True
        self.held: list[Delivery] = []
        self.hold = False
        self.schedule = Schedule(
            self._run, lambda _: self.leads, monotonic=lambda: self.now, clock=lambda: 7.0, chance=lambda: chance
        )
        self.schedule.replace(routes(*every))

    def _run(self, name: EventName, message: Message, delivery: Delivery) -> None:
        assert message == Message(f"$schedule/{name[0]}/{name[1]}", b"", 7.0)
        self.ran.append(name[1])
        delivery.hold()
        if self.hold:
            self.held.append(delivery)
        else:
            delivery.release()

    def passes(self, seconds: float) -> list[str]:
        """Advance the time second by second; return what ran."""
        self.ran.clear()
        for _ in range(int(seconds)):
            self.now += 1
            self.schedule.run_due()
        return list(self.ran)


def test_an_event_runs_after_a_random_delay_and_then_at_its_interval() -> None:
    rig = Rig("10s", chance=0.5)
    assert rig.passes(4) == []
    assert rig.passes(1) == ["E0"]
    assert rig.passes(9) == []
    assert rig.passes(21) == ["E0"] * 3


def test_the_first_run_comes_within_a_minute() -> None:
    rig = Rig("1d", chance=1.0)
    assert rig.passes(59) == []
    assert rig.passes(1) == ["E0"]
    assert rig.passes(86_399) == []


def test_a_reload_makes_no_extra_run_and_delays_none() -> None:
    rig = Rig("10s", chance=0.0)
    assert rig.passes(1) == ["E0"]
    for _ in range(8):
        rig.schedule.replace(routes("10s", "1h"))
        assert rig.passes(1) in ([], ["E1"])
    assert rig.passes(1) == ["E0"]


def test_a_changed_interval_counts_from_the_last_run() -> None:
    rig = Rig("10s", chance=0.0)
    assert rig.passes(4) == ["E0"]
    rig.schedule.replace(routes("6s"))
    assert rig.passes(1) == []
    assert rig.passes(1) == ["E0"]


def test_a_run_that_has_not_ended_is_not_run_again_not_even_after_a_reload() -> None:
    rig = Rig("10s", chance=0.0)
    rig.hold = True
    assert rig.passes(30) == ["E0"]
    rig.schedule.replace(routes("10s"))
    assert rig.passes(30) == []
    rig.held.pop().release()
    assert rig.passes(10) == ["E0"]


def test_time_that_was_missed_is_not_made_up_for() -> None:
    rig = Rig("10s", chance=0.0)
    rig.now += 10_000
    rig.schedule.run_due()
    rig.schedule.run_due()
    assert rig.ran == ["E0"]


def test_only_the_one_that_leads_runs_it_and_takes_over_in_step() -> None:
    rig = Rig("10s", chance=0.0)
    rig.leads = False
    assert rig.passes(25) == []
    rig.leads = True
    assert rig.passes(10) == ["E0"]


def test_the_task_waits_for_routes_and_for_what_is_due() -> None:
    ran: list[EventName] = []

    async def main() -> None:
        done = asyncio.Event()

        def run(name: EventName, message: Message, delivery: Delivery) -> None:
            ran.append(name)
            done.set()

        schedule = Schedule(run, chance=lambda: 0.0)
        task = asyncio.create_task(schedule.run())
        await asyncio.sleep(0)
        schedule.replace(routes("1h"))
        await asyncio.wait_for(done.wait(), 10)
        task.cancel()

    asyncio.run(main())
    assert ran == [("R", "E0")]


POLL = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES '0'
        ADD EVENT Price WITH EVERY "1s" WITH METHOD "GET" WITH ENDPOINT "/price/{{topic.3}}"
            WITH DESTINATION_TOPIC "price" WITH RETAIN "true" WITH PAYLOAD '{{response.json.eur}}'
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_one_field_of_a_polled_api_is_published_by_one_bridge_process_alone(processes: int) -> None:
    with recording() as target:
        target.answer = lambda _: (200, json.dumps({"eur": target.arrived.qsize()}).encode())
        with hosting(POLL.format(url=target.url), processes=processes) as host:
            client = host.client("price", "$schedule/#")
            assert client.messages(3) == [("price", str(number).encode()) for number in (1, 2, 3)]
            client.publish("x", b"")
        assert target.request().path == "/price/Price"


def test_an_event_without_a_source_topic_takes_no_messages(tmp_path: Path) -> None:
    with recording() as target:
        poll = POLL.format(url=target.url).replace('"1s"', '"300d"')
        chain = 'ADD EVENT Chain WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/chain" '
        chain += 'WITH DESTINATION_TOPIC "$schedule/R/Price" ADD EVENT End WITH SOURCE_TOPIC "$schedule/#" '
        chain += 'WITH METHOD "GET" WITH ENDPOINT "/end" WITH DESTINATION_TOPIC "end"'
        with hosting(poll + chain) as host:
            client = host.client("end")
            client.publish("in", b"")
            client.message()
            paths = {target.request().path for _ in range(2)}
        assert paths == {"/chain", "/end"}


def test_a_schedule_that_changes_as_it_is_stopped_ends() -> None:
    async def run() -> None:
        rig = Rig("10s")
        running = asyncio.create_task(rig.schedule.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rig.schedule.replace(())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=10)
        assert running.done()

    asyncio.run(run())
