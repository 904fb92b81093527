"""Problems: what went wrong, each kind once, with what its operator does about it."""

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.records.problems import LISTED_SECONDS, Problems, hint_of
from tests.support.dispatching import route


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


def test_a_problem_from_before_the_clock_was_set_back_goes_with_the_next_success() -> None:
    problems = Problems()
    problems.use([route()])
    problems.failed_try("R", "timeout", "too late", None, 10_000.0)
    assert len(problems.listed(5000.0, {"R": None})) == 1
    assert problems.listed(5001.0 + LISTED_SECONDS, {"R": 5001.0}) == []
