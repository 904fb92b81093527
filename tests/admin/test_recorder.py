"""What the records of a worker keep, and what a flood costs them."""

import asyncio
import time

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.admin.runs import RunQuery
from amqtt_rest_bridge.engine.needs import Outcome, RequestRun
from amqtt_rest_bridge.http.exchange import Request, Response, refuse, refused
from amqtt_rest_bridge.lot.model import Publication, RunIds
from tests.support.admin_client import server_route
from tests.support.route_text import load_text

AWAY = refuse(catalogue.BROKER_UNAVAILABLE, "The broker is away")


def test_of_a_flood_of_requests_that_are_not_served_the_first_and_the_last_hundred_are_kept() -> None:
    async def flood() -> None:
        (route,) = load_text(server_route()).routes
        records = RunRecorder(RunIds())
        records.use_routes([route])
        for number in range(1000):
            request = Request(f"id-{number}", "POST", "/hook", "", {}, b"{}")
            records.note_request(RequestRun(
                time.time(), Outcome.FAILED, 0, route, route.server_events[0], request, refused(AWAY), AWAY, None,
                Publication("received", b"{}"), 0.1, None, "POST /hook",
            ))  # fmt: skip
        assert [run.run.id for run in records.kept.newest()] == ["id-0"]  # nothing was masked for the others
        assert [run.id for run in records.find(RunQuery(id="id-999"))] == ["id-999"]
        assert records.kept.get("id-999") is not None
        assert len(list(records.kept.newest())) == 100

    asyncio.run(flood())


def test_a_problem_is_resolved_though_retries_that_failed_have_pushed_out_the_failures_that_they_sent_again() -> None:
    async def retry_twice() -> None:
        (route,) = load_text(server_route()).routes
        records = RunRecorder(RunIds())
        records.use_routes([route])

        def note(name: str, retry_of: str | None, *, is_served: bool) -> None:
            if retry_of is not None:
                records.kept.begin_retry(retry_of, name)
            refusal = None if is_served else AWAY
            records.note_request(RequestRun(
                time.time(), Outcome.SUCCEEDED if is_served else Outcome.FAILED, 0, route, route.server_events[0],
                Request(name, "POST", "/hook", "", {}, b"{}"), Response("200 OK") if is_served else refused(AWAY),
                refusal, None, Publication("received", b"{}"), 0.1, retry_of, "POST /hook",
            ))  # fmt: skip
            records.keep_pending()

        def problem() -> tuple[str, int, int]:
            (one,) = records.problems.present(time.time(), {})
            return one.state, one.count, one.sent_again

        for number in range(60):
            note(f"first {number}", None, is_served=False)
        for number in range(60):
            note(f"second {number}", f"first {number}", is_served=False)
        assert problem() == ("open", 60, 0), "each message counts once"
        for number in range(60):
            note(f"third {number}", f"second {number}", is_served=True)
        assert problem() == ("resolved", 60, 60)

    asyncio.run(retry_twice())
