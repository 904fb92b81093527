"""Problems: what went wrong, each kind once, with what its operator does about it."""

import pytest
from msgspec.structs import replace

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.admin.problems import LISTED_SECONDS, Problems, hint_of
from amqtt_rest_bridge.admin.runs import Problem, Run
from amqtt_rest_bridge.lot.route_set import shown_endpoint, with_bound_ports
from tests.support.route_text import load_text

ROUTE = """DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://h" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "GET" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "out"
"""
BUSY = Run(100.0, "retry", "run-1", "R", "E", status=503, code="http_status", message="the server answered 503")


@pytest.fixture
def problems() -> Problems:
    problems = Problems()
    problems.use_routes(load_text(ROUTE.format(name="R")).routes)
    return problems


def present(problems: Problems) -> list[Problem]:
    return problems.present(110.0, {"R": 105.0})


def counts(problems: Problems) -> dict[tuple[str, int | None], tuple[int, int, str | None]]:
    return {(one.code, one.status): (one.count, one.retrying, one.run) for one in present(problems)}


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        pytest.param("http_status", 404, catalogue.STATUSES[404].hint, id="status of a server"),
        pytest.param("http_status", 499, catalogue.HTTP_STATUS.hint, id="status without a hint of its own"),
        pytest.param("timeout", None, catalogue.TIMEOUT.hint, id="failure"),
        pytest.param("unauthorized", 401, catalogue.UNAUTHORIZED.for_operator, id="answer for its caller"),
        pytest.param("method_not_allowed", 405, catalogue.METHOD_NOT_ALLOWED.hint, id="answer"),
        pytest.param("no_such_code", None, None, id="unknown"),
        pytest.param(None, 200, None, id="none"),
    ],
)
def test_a_problem_has_the_hint_for_its_operator(code: str | None, status: int | None, hint: str | None) -> None:
    assert hint_of(code, status) == hint


def test_a_problem_from_before_the_clock_was_set_back_goes_with_the_next_success(problems: Problems) -> None:
    problems.add_error("R", "timeout", "too late", 10_000.0)
    assert len(problems.present(5000.0, {"R": None})) == 1
    assert problems.present(5001.0 + LISTED_SECONDS, {"R": 5001.0}) == []


def test_a_message_counts_once_from_its_first_failed_try_to_its_end(problems: Problems) -> None:
    for time in (100.0, 101.0):
        problems.add_failed_try(1, replace(BUSY, time=time))
        assert counts(problems) == {("http_status", 503): (1, 1, "run-1")}
    problems.add_failure(replace(BUSY, time=102.0, kind="call"))
    problems.end_tries(1)
    (problem,) = present(problems)
    assert (problem.count, problem.retrying, problem.first, problem.last) == (1, 0, 100.0, 102.0)
    assert not problems.retrying


def test_a_problem_leaves_at_once_when_all_its_messages_have_succeeded_with_a_later_try(problems: Problems) -> None:
    problems.add_failed_try(1, BUSY)
    problems.add_failed_try(2, replace(BUSY, id="run-2"))
    problems.end_tries(1)
    assert counts(problems) == {("http_status", 503): (1, 1, "run-2")}
    problems.end_tries(2)
    assert counts(problems) == {}


def test_a_problem_is_resolved_for_ten_minutes_once_all_its_messages_were_sent_again_with_success(
    problems: Problems,
) -> None:
    failed = [replace(BUSY, id=f"run-{number}", kind="call", time=100.0 + number) for number in range(2)]
    for record in failed:
        problems.add_failure(record)
    problems.add_success(replace(failed[0], time=99.0), 103.0)  # of an earlier problem
    problems.add_success(failed[0], 103.0)
    (problem,) = present(problems)
    assert (problem.state, problem.count, problem.sent_again) == ("open", 2, 1)
    problems.add_success(failed[1], 104.0)
    (problem,) = problems.present(103.0 + LISTED_SECONDS, {"R": 105.0})
    assert (problem.state, problem.count, problem.sent_again) == ("resolved", 2, 2)
    assert problems.present(104.0 + LISTED_SECONDS, {"R": None}) == []


def test_open_problems_come_before_resolved_ones_that_have_more_messages(problems: Problems) -> None:
    resolved = [replace(BUSY, id=f"run-{number}", kind="call") for number in range(2)]
    for failure in (*resolved, replace(BUSY, kind="call", status=500)):
        problems.add_failure(failure)
    for failure in resolved:
        problems.add_success(failure, 103.0)
    assert [(one.status, one.state) for one in present(problems)] == [(500, "open"), (503, "resolved")]


def test_a_failure_after_a_problem_was_resolved_begins_another_one(problems: Problems) -> None:
    problems.add_failure(replace(BUSY, kind="call"))
    problems.add_success(BUSY, 103.0)
    problems.add_failure(replace(BUSY, kind="call", time=106.0))
    (problem,) = problems.present(110.0, {"R": 105.0})
    assert (problem.state, problem.count, problem.first) == ("open", 1, 106.0)


def test_a_message_counts_where_its_last_try_has_failed(problems: Problems) -> None:
    timeout = replace(BUSY, code="timeout", status=None)
    problems.add_failed_try(1, BUSY)
    problems.add_failed_try(1, timeout)
    assert counts(problems) == {("timeout", None): (1, 1, "run-1")}
    problems.add_failure(replace(BUSY, kind="call", status=500))
    problems.end_tries(1)
    assert counts(problems) == {("http_status", 500): (1, 0, "run-1")}


def test_a_problem_has_passed_once_its_routes_have_worked_for_a_minute_and_says_what_waits_for_a_retry(
    problems: Problems,
) -> None:
    problems.add_failure(replace(BUSY, kind="call"))
    waiting = {problems.kind_of(BUSY): 1}
    shown = [problems.present(*when, waiting)[0] for when in ((159.0, {"R": 105.0}), (160.0, {"R": 99.0}))]
    shown += problems.present(160.0, {"R": 105.0}, waiting)
    assert [(one.passed, one.waiting) for one in shown] == [(False, 1), (False, 1), (True, 1)]


def test_what_is_tried_again_is_listed_however_old_its_last_try_is(problems: Problems) -> None:
    problems.add_failed_try(1, BUSY)
    assert len(problems.present(200.0 + LISTED_SECONDS, {"R": 200.0})) == 1


def test_a_try_of_an_event_that_is_gone_counts_no_longer(problems: Problems) -> None:
    problems.add_failed_try(1, BUSY)
    problems.use_routes([])
    problems.use_routes(load_text(ROUTE.format(name="Other")).routes)
    problems.add_failed_try(1, BUSY)
    assert (counts(problems), problems.retrying) == ({}, {})
    problems.end_tries(1)


def test_kinds_beyond_those_that_are_counted_push_out_quiet_ones_and_their_calls_leave_nothing(
    problems: Problems,
) -> None:
    for status in range(400, 700):
        problems.add_failed_try(status, replace(BUSY, time=float(status), status=status))
    kept = problems.present(700.0, {"R": None})
    assert {one.status for one in kept} == set(range(500, 700))
    problems.add_failed_try(400, replace(BUSY, time=701.0, status=400))
    assert [one.count for one in problems.present(701.0, {"R": None}) if one.status == 400] == [1]
    for call in range(400, 700):
        problems.end_tries(call)
    assert (problems.present(701.0, {"R": None}), problems.retrying) == ([], {})


@pytest.mark.parametrize(
    ("bound", "shown"),
    [
        pytest.param({0: 40_001}, "POST :40001/hook", id="bound"),
        pytest.param({8080: 8080}, "POST :(a free port)/hook", id="not bound"),
    ],
)
def test_an_endpoint_is_shown_with_the_port_that_was_found_for_server_port_0(bound: dict[int, int], shown: str) -> None:
    text = """DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT 0
        ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "out"
    """
    (served,) = with_bound_ports(load_text(text).routes, bound)
    (event,) = served.server_events
    assert shown_endpoint(event.method, served.config.server_port, event.endpoint) == shown


def test_a_problem_of_several_routes_says_how_many_messages_are_of_each(problems: Problems) -> None:
    problems.use_routes(load_text(ROUTE.format(name="R") + ROUTE.format(name="S")).routes)
    for number, route in enumerate("RSS"):
        problems.add_failure(replace(BUSY, route=route, kind="call", id=f"run-{number}"))
    problems.add_failed_try(1, BUSY)
    (problem,) = present(problems)
    assert (problem.count, problem.routes, problem.counts) == (4, ["R", "S"], [2, 2])
    problems.end_tries(1)
    assert present(problems)[0].counts == [1, 2]
    problems.remove_failure(replace(BUSY, kind="call", id="run-0"))
    assert (present(problems)[0].routes, present(problems)[0].counts) == (["S"], [2])


def test_messages_that_no_request_was_sent_for_are_a_problem_of_their_event_and_others_of_their_server(
    problems: Problems,
) -> None:
    problems.use_routes(load_text(ROUTE.format(name="R") + ROUTE.format(name="S")).routes)
    for code in ("placeholder_unresolved", "invalid_value", "schema_mismatch", "payload_too_large", "timeout"):
        for route in "RS":
            problems.add_failure(replace(BUSY, route=route, kind="call", status=None, code=code, message=f"of {route}"))
    found = {(one.code, one.target): (one.routes, one.message) for one in present(problems)}
    assert found.pop(("timeout", "http://h")) == (["R", "S"], "of S")
    assert len(found) == 8
    assert found["schema_mismatch", "route R, event E"] == (["R"], "of R")
    assert found["schema_mismatch", "route S, event E"] == (["S"], "of S")
